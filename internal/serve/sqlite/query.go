package sqlite

import (
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
)

// Query runs one query. It implements query.Source.
type Query struct {
	def  query.Definition
	feed *Feed // for its columns and parameters; it has no key
}

var _ query.Source = (*Query)(nil)

// Query returns the source of def. It does not open the database: a statement that SQLite
// refuses is an error of Check and Run.
func (db *DB) Query(def query.Definition) (*Query, error) {
	f, err := db.statement(feed.Definition{Name: def.Name, SQL: def.SQL, Params: def.Params})
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", def.Name, err)
	}
	return &Query{def: def, feed: f}, nil
}

// Run implements query.Source.
func (q *Query) Run(ctx context.Context, args []string, limit query.Limit, rows *query.Rows) error {
	return q.feed.db.read(ctx, func(conn *sqlite.Conn) error {
		shape, err := q.feed.describe(conn)
		if err != nil {
			return err
		}
		stmt, err := conn.Prepare(q.feed.inner)
		if err != nil {
			return err
		}
		if err := q.feed.bindArgs(stmt, args); err != nil {
			return err
		}
		reader := rowReader{stmt: stmt, shape: shape}
		for {
			found, err := q.feed.nextRow(stmt, len(shape.columns), false)
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

// Check has the database prepare the statement without running it.
func (q *Query) Check(ctx context.Context) error {
	err := q.feed.db.read(ctx, func(conn *sqlite.Conn) error {
		_, err := q.feed.describe(conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("query %s: %w", q.def.Name, err)
	}
	return nil
}
