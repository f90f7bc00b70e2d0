package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
)

// Query runs one query. It implements query.Source.
type Query struct {
	feed *Feed // for its columns and parameters; it has no key
}

var _ query.Source = (*Query)(nil)

// Query returns the source of the query that def describes. Mistakes that only the
// database can find are errors of Run and Check. DB.Feed says how parameters are bound.
func (db *DB) Query(def query.Definition) (*Query, error) {
	f, err := db.statement(feed.Definition{Name: def.Name, SQL: def.SQL, Params: def.Params})
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", def.Name, err)
	}
	return &Query{feed: f}, nil
}

// Run implements query.Source.
func (q *Query) Run(ctx context.Context, args []string, limit query.Limit, rows *query.Rows) error {
	to := &queryRows{rows: rows, limit: limit}
	err := q.runOnce(ctx, args, false, to)
	if errors.Is(err, errOutdated) {
		q.feed.stale.Store(true)
		to.Reset()
		err = q.runOnce(ctx, args, true, to)
	}
	return q.feed.explainError(feed.Range{}, err)
}

func (q *Query) runOnce(ctx context.Context, args []string, adapt bool, to feed.RowHandler[driver.Value]) error {
	d, err := q.feed.describe(ctx)
	if err != nil {
		return err
	}
	values, err := q.feed.bindParams(args)
	if err != nil {
		return err
	}
	s := &statement{sql: q.feed.body, columns: q.feed.reading(d, false, adapt), endless: true}
	return q.feed.db.query(ctx, s, namedValues(values), to)
}

// Check has the database prepare the statement without running it.
func (q *Query) Check(ctx context.Context) error {
	if _, err := q.feed.describe(ctx); err != nil {
		return fmt.Errorf("query %s: %w", q.feed.def.Name, q.feed.explainError(feed.Range{}, err))
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
