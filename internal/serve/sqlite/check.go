package sqlite

import (
	"context"
	"fmt"

	"zombiezen.com/go/sqlite"

	"spillway/internal/plans"
)

// Check implements feed.Source. It explains a feed's statement for the first rows and the one
// for the rows after a key, without filters and with each of them. A query's statement is
// prepared.
func (s *source) Check(ctx context.Context, window int) error {
	err := s.db.read(ctx, func(conn conn) error {
		shape, err := s.describe(conn)
		if err != nil || s.def.IsQuery() {
			return err
		}
		return s.explain(conn.Conn, shape, window)
	})
	if err != nil {
		return fmt.Errorf("check %s: %w", &s.def, err)
	}
	return nil
}

// explain judges the plans of a feed's statements.
func (s *source) explain(conn *sqlite.Conn, shape *shape, window int) error {
	if err := s.def.CheckFilters(shape.names); err != nil {
		return err
	}
	check := plans.Check{Window: window, SQL: s.inner, Catalog: plans.Catalog{
		Dialect: plans.SQLite,
		Query:   func(sql string, args ...string) ([][]string, error) { return texts(conn, sql, args...) },
	}}
	var err error
	if check.Key, err = s.readKey(conn); err != nil {
		return err
	}
	return s.def.EachFilter(func(position int) error {
		var filters []int
		if position >= 0 {
			filters = []int{position}
		}
		for _, bits := range []int{0, withAfter} {
			rows, err := texts(conn, "EXPLAIN QUERY PLAN "+s.text(bits, filters))
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
func (s *source) readKey(conn *sqlite.Conn) ([]plans.KeyColumn, error) {
	stmt, _, err := conn.PrepareTransient(s.texts[keysOnly])
	if err != nil {
		return nil, err
	}
	var key []plans.KeyColumn
	for i, column := range s.def.Key {
		table := plans.TableName{Name: stmt.ColumnTableName(i)}
		key = append(key, plans.KeyColumn{Output: column.Name, Desc: !column.Ascending, Table: table, Column: column.Name})
	}
	return key, stmt.Finalize()
}
