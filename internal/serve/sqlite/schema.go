package sqlite

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// schema resolves the names that a plan shows. A plan shows the alias where
// there is one, and the alias stands behind its table in the statement or in a view.
type schema struct {
	tables []string
	texts  []string
}

func readSchema(conn *sqlite.Conn, sql string) (*schema, error) {
	s := &schema{texts: []string{sql}}
	err := sqlitex.ExecuteTransient(conn, "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'view')", &sqlitex.ExecOptions{
		ResultFunc: func(stmt *sqlite.Stmt) error {
			if stmt.ColumnText(0) == "table" {
				s.tables = append(s.tables, stmt.ColumnText(1))
			} else {
				s.texts = append(s.texts, stmt.ColumnText(2))
			}
			return nil
		},
	})
	return s, err
}

// table returns the table that a plan calls name, "" when name is none.
func (s *schema) table(name string) string {
	if name == "" {
		return ""
	}
	for _, table := range s.tables {
		if strings.EqualFold(table, name) {
			return table
		}
	}
	const quotes = "[\"`\\[\\]]?"
	for _, table := range s.tables {
		alias := regexp.MustCompile(`(?i)(^|[^\pL\pN_])` + regexp.QuoteMeta(table) + quotes + `\s+(AS\s+)?` + quotes + regexp.QuoteMeta(name) + `($|[^\pL\pN_])`)
		if slices.ContainsFunc(s.texts, alias.MatchString) {
			return table
		}
	}
	return ""
}

// isBig counts no further than it needs to.
func isBig(conn *sqlite.Conn, table string) (bool, error) {
	n := 0
	sql := fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s LIMIT %d)", quote(table), bigTable+1)
	err := sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		n = stmt.ColumnInt(0)
		return nil
	}})
	if err != nil {
		return false, fmt.Errorf("count the rows of %s: %w", table, err)
	}
	return n > bigTable, nil
}

// columnsOf returns the names of a table's columns.
func columnsOf(conn *sqlite.Conn, table string) ([]string, error) {
	return texts(conn, "SELECT name FROM pragma_table_info(?)", table)
}

// texts returns the first column of what sql yields for one argument.
func texts(conn *sqlite.Conn, sql, argument string) ([]string, error) {
	var found []string
	err := sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{
		Args: []any{argument},
		ResultFunc: func(stmt *sqlite.Stmt) error {
			found = append(found, stmt.ColumnText(0))
			return nil
		},
	})
	return found, err
}
