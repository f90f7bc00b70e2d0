package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
)

// Query runs one query. It implements query.Source.
//
// A list becomes placeholders, IN (?, ?), because JSON_TABLE is missing before MySQL 8.0 and
// MariaDB 10.6, and would convert the values' types and collations.
type Query struct {
	def        query.Definition
	expansions []*Feed // for their columns and parameters; they have no key
}

var _ query.Source = (*Query)(nil)

// Query returns the source of the query that def describes. Mistakes that only the
// database can find are errors of Run and Check. DB.Feed says how parameters are bound.
func (db *DB) Query(def query.Definition) (*Query, error) {
	expansions, err := param.Expand(def.SQL, plans.MySQL, def.Params)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", def.Name, err)
	}
	q := &Query{def: def}
	for _, e := range expansions {
		f, err := db.statement(feed.Definition{Name: def.Name, SQL: e.SQL, Params: e.Params, RFC3339: def.RFC3339, NumbersAsText: def.NumbersAsText})
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", def.Name, err)
		}
		q.expansions = append(q.expansions, f)
	}
	return q, nil
}

// Run implements query.Source.
func (q *Query) Run(ctx context.Context, args []string, limit query.Limit, rows *query.Rows) error {
	n, args, err := param.ExpandArguments(q.def.Params, args)
	if err != nil {
		return err
	}
	f, to := q.expansions[n], &queryRows{rows: rows, limit: limit}
	err = f.runQuery(ctx, args, false, to)
	if errors.Is(err, errOutdated) {
		f.stale.Store(true)
		to.Reset()
		err = f.runQuery(ctx, args, true, to)
	}
	return f.explainError(feed.Range{}, err)
}

// runQuery runs the statement of a query.
func (f *Feed) runQuery(ctx context.Context, args []string, adapt bool, to feed.RowHandler[driver.Value]) error {
	d, err := f.describe(ctx)
	if err != nil {
		return err
	}
	values, err := f.bindParams(args, nil, d.columns)
	if err != nil {
		return err
	}
	s := &statement{sql: f.body, columns: f.reading(d, false, adapt), endless: true}
	return f.db.query(ctx, s, namedValues(values), to)
}

// Columns returns the columns of the rows; nil if they are not known yet.
func (q *Query) Columns() []feed.Column { return q.expansions[0].Columns() }

// Check has the database prepare the statement without running it, with the shortest and the
// longest lists.
func (q *Query) Check(ctx context.Context) error {
	for _, f := range slices.Compact([]*Feed{q.expansions[0], q.expansions[len(q.expansions)-1]}) {
		if _, err := f.describe(ctx); err != nil {
			return fmt.Errorf("query %s: %w", q.def.Name, f.explainError(feed.Range{}, err))
		}
	}
	return nil
}

// queryRows encodes the rows of a query.
type queryRows struct {
	rows  *query.Rows
	limit query.Limit
}

func (s *queryRows) Row(e feed.RowEncoder[driver.Value], values []driver.Value) error {
	s.rows.Begin()
	s.rows.Data = e.AppendObject(s.rows.Data, values)
	return s.rows.End(s.limit)
}

func (s *queryRows) Reset() { s.rows.Reset() }
