package sqlite

import (
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"

	"spillway/internal/plans"
)

// Check implements feed.Source. It explains the statement for the first rows
// and the one for the rows after a key, without filters and with each of them.
func (f *Feed) Check(ctx context.Context, window int) error {
	err := f.db.read(ctx, func(conn *sqlite.Conn) error { return f.check(conn, window) })
	if err != nil {
		return fmt.Errorf("check feed %s: %w", f.def.Name, err)
	}
	return nil
}

func (f *Feed) check(conn *sqlite.Conn, window int) error {
	s, err := f.describe(conn)
	if err != nil {
		return err
	}
	if err := f.def.CheckFilters(s.names()); err != nil {
		return err
	}
	check := plans.Check{Window: window, SQL: f.inner, Catalog: plans.Catalog{
		Dialect: plans.SQLite,
		Query:   func(sql string, args ...string) ([][]string, error) { return texts(conn, sql, args...) },
	}}
	if check.Key, err = f.readKey(conn); err != nil {
		return err
	}
	return f.def.EachFilter(func(position int) error {
		var filters []int
		if position >= 0 {
			filters = []int{position}
		}
		for _, bits := range []int{0, withAfter} {
			rows, err := texts(conn, "EXPLAIN QUERY PLAN "+f.text(bits, filters))
			if err != nil {
				return fmt.Errorf("explain: %w", err)
			}
			plan, err := plans.ReadSQLite(rows)
			if err != nil {
				return err
			}
			check.Behind = bits&withAfter != 0
			if err := check.Judge(plan); err != nil {
				return err
			}
		}
		return nil
	})
}

// readKey returns the key's columns with their tables. SQLite does not tell which column
// of the table an output column is, so a column of the same name is assumed.
func (f *Feed) readKey(conn *sqlite.Conn) ([]plans.KeyColumn, error) {
	stmt, _, err := conn.PrepareTransient(f.texts[keysOnly])
	if err != nil {
		return nil, err
	}
	var key []plans.KeyColumn
	for i, column := range f.def.Key {
		table := plans.TableName{Name: stmt.ColumnTableName(i)}
		key = append(key, plans.KeyColumn{Output: column.Name, Desc: !column.Ascending, Table: table, Column: column.Name})
	}
	return key, stmt.Finalize()
}
