package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/database"
	"spillway/internal/plans"
)

func sqliteDialect() dialect {
	quote := plans.SQLite.QuoteAlways
	return dialect{
		driver:      database.SQLite,
		placeholder: func(int) string { return "?" },
		readOnly:    "PRAGMA query_only = on",
		readWrite:   "PRAGMA query_only = off",
		explain:     sqliteExplain,
		begin:       func(context.Context, session, int64) error { return nil },
		copyTable: func(t *plans.Table, name string, rows int64) string {
			return fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT * FROM %s LIMIT %d", name, t.Full.SQL(plans.SQLite), rows)
		},
		duplicate: func(ctx context.Context, s session, t *plans.Table, from, name string, indexed bool) error {
			err := run(ctx, s, fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT * FROM %s", name, from))
			for i, index := range t.Indexes {
				if err == nil && indexed && index.Whole {
					err = run(ctx, s, fmt.Sprintf("CREATE INDEX temp.%s_%d ON %s (%s)", name, i, name, plans.WriteColumns(index.Columns, quote)))
				}
			}
			return err
		},
		index:   "CREATE INDEX temp.%[2]s ON %[1]s (%[3]s)",
		analyze: "ANALYZE temp.%s",
		indexBytes: func(ctx context.Context, s session, _ *plans.Table, table, _ string, columns []plans.IndexColumn) (int64, bool, error) {
			rows, err := s.query(ctx, fmt.Sprintf("SELECT coalesce(sum(8 + %s), 0) FROM %s", lengths(columns, quote), table))
			if err != nil {
				return 0, true, err
			}
			return parseNumber(rows[0][0]), true, nil
		},
		limit:   func(context.Context, session, time.Duration) error { return nil }, // statements end with the context
		tooLong: func(err error) bool { return sqlite.ErrCode(err) == sqlite.ResultInterrupt },
	}
}

// lengths adds up the bytes of columns.
func lengths(columns []plans.IndexColumn, quote func(string) string) string {
	var words []string
	for _, c := range columns {
		words = append(words, fmt.Sprintf("1 + coalesce(length(%s), 0)", quote(c.Name)))
	}
	return strings.Join(words, " + ")
}

// sqliteExplain reads EXPLAIN QUERY PLAN and executes the statement within limit. SQLite
// does not count rows.
func sqliteExplain(ctx context.Context, s session, text string, args []value, limit time.Duration) (*Plan, error) {
	rows, err := s.query(ctx, "EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		return nil, err
	}
	plan, err := plans.ReadSQLite(rows)
	if err != nil {
		return nil, err
	}
	p := newPlan(plan)
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	if _, err := s.query(limited, text, args...); err != nil {
		if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
			return p, nil
		}
		return nil, err
	}
	p.ExecutionSeconds = new(time.Since(start).Seconds())
	return p, nil
}
