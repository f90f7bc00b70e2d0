package sqlite

import (
	"context"
	"fmt"
	"slices"

	"zombiezen.com/go/sqlite"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
)

// Query runs one query. It implements query.Source.
//
// A list becomes parameters, IN (?1, ?2), as on MySQL. json_each would read reals from text.
type Query struct {
	def        query.Definition
	expansions []*Feed // for their columns and parameters; they have no key
}

var _ query.Source = (*Query)(nil)

// Query returns the source of def. It does not open the database: a statement that SQLite
// refuses is an error of Check and Run.
func (db *DB) Query(def query.Definition) (*Query, error) {
	expansions, err := param.Expand(def.SQL, plans.SQLite, def.Params)
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
	f := q.expansions[n]
	return f.db.read(ctx, func(conn *sqlite.Conn) error {
		shape, err := f.describe(conn)
		if err != nil {
			return err
		}
		stmt, err := f.db.prepareOn(conn, f.inner)
		if err != nil {
			return err
		}
		if err := f.bindArgs(stmt, args, nil); err != nil {
			return err
		}
		reader := rowReader{stmt: stmt, shape: shape}
		for {
			found, err := f.nextRow(stmt, len(shape.columns), false)
			if !found {
				return err
			}
			rows.Begin()
			rows.Data = reader.appendObject(rows.Data)
			if err := rows.End(limit); err != nil {
				return err
			}
		}
	})
}

// Columns returns the columns of the rows; nil if they are not known yet.
func (q *Query) Columns() []feed.Column { return q.expansions[0].Columns() }

// Check has the database prepare the statement without running it, with the shortest and the
// longest lists.
func (q *Query) Check(ctx context.Context) error {
	for _, f := range slices.Compact([]*Feed{q.expansions[0], q.expansions[len(q.expansions)-1]}) {
		err := f.db.read(ctx, func(conn *sqlite.Conn) error {
			_, err := f.describe(conn)
			return err
		})
		if err != nil {
			return fmt.Errorf("query %s: %w", q.def.Name, err)
		}
	}
	return nil
}
