package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"spillway/internal/database"
)

func sqliteDialect() dialect {
	quote := quoteName(database.SQLite)
	return dialect{
		driver:      database.SQLite,
		placeholder: func(int) string { return "?" },
		readOnly:    "PRAGMA query_only = on",
		readWrite:   "PRAGMA query_only = off",
		table:       sqliteTable,
		explain:     sqliteExplain,
		begin:       func(context.Context, session, int64) error { return nil },
		copyTable: func(ctx context.Context, s session, t *TableInfo, name string, rows int64) error {
			return run(ctx, s, fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT * FROM %s LIMIT %d", name, t.quoted(database.SQLite), rows))
		},
		again: func(ctx context.Context, s session, t *TableInfo, from, name string, indexed bool) error {
			err := run(ctx, s, fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT * FROM %s", name, from))
			for i, index := range t.Indexes {
				if err == nil && indexed && index.whole {
					err = run(ctx, s, fmt.Sprintf("CREATE INDEX temp.%s_%d ON %s (%s)", name, i, name, writeColumns(index.Columns, quote)))
				}
			}
			return err
		},
		index: func(ctx context.Context, s session, name string, columns []indexColumn) error {
			return run(ctx, s, fmt.Sprintf("CREATE INDEX temp.candidate_%s ON %s (%s)", name, name, writeColumns(columns, quote)))
		},
		settle: func(ctx context.Context, s session, name string) error { return run(ctx, s, "ANALYZE temp."+name) },
		indexBytes: func(ctx context.Context, s session, _ *TableInfo, name string, columns []indexColumn) (int64, bool, error) {
			rows, err := s.query(ctx, fmt.Sprintf("SELECT coalesce(sum(8 + %s), 0) FROM %s", lengths(columns, quote), name))
			if err != nil {
				return 0, true, err
			}
			return parseNumber(rows[0][0]), true, nil
		},
		limit:   func(context.Context, session, time.Duration) error { return nil }, // the context ends statements
		tooLong: func(err error) bool { return sqlite.ErrCode(err) == sqlite.ResultInterrupt },
	}
}

// lengths sums the bytes of columns.
func lengths(columns []indexColumn, quote func(string) string) string {
	var words []string
	for _, c := range columns {
		words = append(words, fmt.Sprintf("1 + coalesce(length(%s), 0)", quote(c.Name)))
	}
	return strings.Join(words, " + ")
}

func sqliteTable(ctx context.Context, s session, ref tableRef) (*TableInfo, error) {
	t := &TableInfo{Name: ref.name, plain: ref.name, schema: ref.schema}
	name := value{text: ref.name}
	columns, err := s.query(ctx, "SELECT name, type, pk FROM pragma_table_info(?)", name)
	if err != nil {
		return nil, err
	}
	for _, c := range columns {
		kind := strings.ToUpper(c[1])
		number := strings.Contains(kind, "INT") || strings.Contains(kind, "REAL") || strings.Contains(kind, "NUM") || strings.Contains(kind, "DEC") || strings.Contains(kind, "DOUB") || strings.Contains(kind, "FLOA")
		t.columns = append(t.columns, column{name: c[0], kind: kind, number: number})
		if c[2] == "1" && kind == "INTEGER" {
			t.Indexes = append(t.Indexes, Index{Name: "rowid", whole: true, unique: true, Columns: []indexColumn{{Name: c[0]}}})
		}
	}
	if len(columns) == 0 {
		return t, nil
	}
	rows, err := s.query(ctx, "SELECT count(*) FROM "+t.quoted(database.SQLite))
	if err != nil {
		return nil, err
	}
	t.Rows = parseNumber(rows[0][0])
	indexes, err := s.query(ctx, `SELECT l.name, coalesce(x.name, ''), x."desc", l.partial = 0 AND x.cid >= 0, l."unique" FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x WHERE x.key = 1 ORDER BY l.name, x.seqno`, name)
	if err != nil {
		return nil, err
	}
	for _, row := range indexes {
		if len(t.Indexes) == 0 || t.Indexes[len(t.Indexes)-1].Name != row[0] {
			t.Indexes = append(t.Indexes, Index{Name: row[0], whole: true, unique: row[4] == "1"})
		}
		last := &t.Indexes[len(t.Indexes)-1]
		last.Columns = append(last.Columns, indexColumn{Name: row[1], Desc: row[2] == "1"})
		last.whole = last.whole && row[3] == "1"
	}
	return t, nil
}

// sqliteExplain reads EXPLAIN QUERY PLAN and executes the statement within
// limit. SQLite counts no rows for its client.
func sqliteExplain(ctx context.Context, s session, text string, args []value, limit time.Duration) (*Plan, error) {
	rows, err := s.query(ctx, "EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	for _, row := range rows {
		detail := row[len(row)-1]
		p.Lines = append(p.Lines, detail)
		if strings.HasPrefix(detail, "SCAN ") && !strings.Contains(detail, "USING") {
			p.Costs = append(p.Costs, "reads all of "+strings.TrimPrefix(detail, "SCAN "))
		}
		if strings.HasPrefix(detail, "USE TEMP B-TREE FOR") {
			p.Sorts = true
			p.Costs = append(p.Costs, "sorts what it finds ("+detail+")")
		}
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	if _, err := s.query(limited, text, args...); err != nil {
		if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
			return p, nil
		}
		return nil, err
	}
	seconds := time.Since(start).Seconds()
	p.ExecutionSeconds = &seconds
	return p, nil
}
