package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/stream"
)

// Pairs returns the pairs of types that a stream accepts.
func Pairs() (list []stream.Pair) {
	for _, p := range pairs {
		list = append(list, p.Pair)
	}
	return list
}

// SetLog replaces the log of a database.
func SetLog(db *DB, log *slog.Logger) { db.log = log }

// NeverSlow has event loops read however long it takes.
func NeverSlow(db *DB) *DB {
	db.proofs, db.quickRead, db.loopLimit = 0, forever, forever
	return db
}

const forever = time.Hour

// Reads returns how many rows of tables the statement of a feed without lists visits for a range.
func Reads(ctx context.Context, from feed.Source, r feed.Range) (reads float64, err error) {
	s := from.(*source)
	err = s.db.read(ctx, func(conn conn) error {
		shape, err := s.describe(conn, false)
		if err != nil {
			return err
		}
		ck := &checker{source: s, conn: conn, shape: shape, filters: param.Given(s.def.Params, r.Args), check: plans.Check{
			SQL: s.inner, Catalog: plans.Catalog{Dialect: plans.SQLite, Query: func(sql string, args ...string) ([][]string, error) {
				return texts(conn.Conn, sql, args...)
			}},
		}}
		bits := 0
		if r.After != "" {
			bits = withAfter
		}
		text := s.text(bits, ck.filters)
		plan, err := ck.explain(text)
		if err != nil {
			return err
		}
		if ck.check.Tables, err = ck.check.SQLiteTables(plan); err != nil {
			return err
		}
		var known bool
		if reads, known, err = ck.measure(text, plan, r); err == nil && !known {
			err = errors.New("not measured: " + text)
		}
		return err
	})
	return reads, err
}
