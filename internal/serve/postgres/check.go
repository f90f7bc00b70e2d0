package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
)

// explainName is the prepared statement that Check explains.
const explainName = "spillway_explain"

// Check implements feed.Source. It explains the statement for a window and the
// one for the rows after a key, as they are planned for unknown parameters. It does
// so without filters and with each of them. It also returns an error if a key column's table lets it be NULL, and logs a
// warning if no unique index covers the key.
func (f *Feed) Check(ctx context.Context, window int) error {
	if err := f.check(ctx, window); err != nil {
		return fmt.Errorf("check feed %s: %w", f.def.Name, err)
	}
	return nil
}

func (f *Feed) check(ctx context.Context, window int) error {
	pooled, err := f.db.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	limited, cancel := context.WithTimeout(ctx, f.db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	conn := pooled.Conn().PgConn()
	description, err := f.describe(limited, conn)
	if err != nil {
		return adviseArray(f.def.Params, err)
	}
	c, err := newColumns(f.def, description.Fields)
	if err != nil {
		return err
	}
	f.known.Store(c)
	check := plans.Check{Window: window, Catalog: plans.Catalog{
		Dialect: plans.Postgres,
		Query: func(sql string, args ...string) ([][]string, error) {
			return texts(limited, conn, sql, args...)
		},
	}}
	if check.Key, err = f.readKey(check.Catalog, c); err != nil {
		return err
	}
	if err := f.def.CheckFilters(c.names()); err != nil {
		return err
	}
	explained := func(s shape) error {
		w := f.writer()
		text := w.write(s)
		plan, err := explain(limited, conn, text, w.parameters())
		if err != nil {
			return err
		}
		check.Window = s.rows
		return check.Judge(plan)
	}
	return f.def.EachFilter(func(position int) error {
		s := shape{rows: powerOfTwo(window)}
		if position >= 0 {
			s.filters = 1 << position
		}
		if err := explained(s); err != nil {
			return err
		}
		s.after = true
		return explained(s)
	})
}

// readKey looks up the tables of the key's columns. It checks that the columns are NOT
// NULL, and logs a warning if no unique index covers the key.
func (f *Feed) readKey(catalog plans.Catalog, c *columns) ([]plans.KeyColumn, error) {
	var key []plans.KeyColumn
	var names []string
	for i, column := range c.key {
		k := plans.KeyColumn{Output: column.name, Desc: !f.def.Key[i].Ascending}
		field := c.fields[column.index]
		rows, err := catalog.Query(`SELECT n.nspname, c.relname, a.attname
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE a.attrelid = $1::oid AND a.attnum = $2::int2`, fmt.Sprint(field.TableOID), fmt.Sprint(field.TableAttributeNumber))
		if err != nil {
			return nil, fmt.Errorf("look up the key column %s: %w", column.name, err)
		}
		if len(rows) == 1 {
			k.Table, k.Column = plans.TableName{Schema: rows[0][0], Name: rows[0][1]}, rows[0][2]
		}
		key, names = append(key, k), append(names, k.Column)
	}
	unique := false
	one := true
	for _, k := range key {
		one = one && k.Table == key[0].Table
		if k.Column == "" {
			one = false
			continue
		}
		t, err := catalog.Table(k.Table)
		if err != nil {
			return nil, err
		}
		column, known := t.Column(k.Column) // otherwise it belongs to a view
		if known && column.Nullable {
			return nil, fmt.Errorf("the key column %s may be NULL; run ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
				k.Output, t.SQL(plans.Postgres), plans.Postgres.Quote(column.Name))
		}
		one = one && known && !t.View
		for _, index := range t.Indexes {
			unique = unique || index.Unique && index.Whole && index.Within(names)
		}
	}
	if one && !unique {
		f.db.log.Warn("no unique index covers the feed's key; rows with equal keys can be lost between pages",
			"feed", f.def.Name, "table", key[0].Table.String())
	}
	return key, nil
}

// explain returns the generic plan of a statement with a number of parameters. It runs in
// a transaction, which keeps one server connection behind any pooler.
func explain(ctx context.Context, conn *pgconn.PgConn, sql string, parameters int) (*plans.Plan, error) {
	err := exec(ctx, conn, "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; PREPARE "+explainName+" AS "+sql)
	if err != nil {
		return nil, errors.Join(err, exec(ctx, conn, "ROLLBACK"))
	}
	arguments := "" // without parameters, there are no parentheses
	if parameters > 0 {
		arguments = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", parameters), ", ") + ")"
	}
	rows, err := texts(ctx, conn, "EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE "+explainName+arguments)
	if err != nil {
		return nil, errors.Join(err, exec(ctx, conn, "ROLLBACK; DEALLOCATE "+explainName))
	}
	if err := exec(ctx, conn, "DEALLOCATE "+explainName+"; ROLLBACK"); err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		return nil, errors.New("EXPLAIN returned no document")
	}
	return plans.ReadPostgres(rows[0][0])
}
