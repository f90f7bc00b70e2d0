package sqlite

import (
	"context"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/plans"
	"spillway/internal/serve/tables"
)

// dialect is how SQLite writes what the server's own tables need. Times are in microseconds
// since 1970, by the clock of this host. A transaction that writes locks the file.
var dialect = tables.Dialect{
	SQL: plans.SQLite,
	Types: map[string]string{
		"uuid": "BLOB", "name": "TEXT", "shortbytes": "BLOB", "bytes": "BLOB", "time": "INTEGER",
		"text": "TEXT", "word": "TEXT", "integer": "INTEGER", "number": "INTEGER", "small": "INTEGER", "boolean": "INTEGER",
	},
	Now:       "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
	Later:     "CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?",
	Find:      "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name IN (%s)",
	Create:    "%s",
	Duplicate: func(err error) bool { return sqlite.ErrCode(err).ToPrimary() == sqlite.ResultConstraint },
	Locked:    func(error) bool { return false },
	Denied:    func(error) bool { return false },
}

// tableSession is a connection that runs statements of the server's own tables. It implements
// tables.Session.
type tableSession struct{ conn *sqlite.Conn }

// Exec implements tables.Session.
func (s tableSession) Exec(_ context.Context, sql string, args ...any) (int64, error) {
	options := &sqlitex.ExecOptions{Args: parameters(args)}
	for statement := range strings.SplitSeq(sql, ";\n") {
		if err := sqlitex.Execute(s.conn, statement, options); err != nil {
			return 0, err
		}
	}
	return int64(s.conn.Changes()), nil
}

// Rows implements tables.Session.
func (s tableSession) Rows(_ context.Context, sql string, args ...any) (all []tables.Row, err error) {
	err = sqlitex.Execute(s.conn, sql, &sqlitex.ExecOptions{Args: parameters(args), ResultFunc: func(stmt *sqlite.Stmt) error {
		row := make(tables.Row, stmt.ColumnCount())
		for i := range row {
			if stmt.ColumnType(i) == sqlite.TypeBlob {
				row[i] = string(columnBytes(stmt, i))
				continue
			}
			row[i] = stmt.ColumnText(i)
		}
		all = append(all, row)
		return nil
	}})
	return all, err
}

// parameters returns the arguments of a statement as the driver takes them.
func parameters(args []any) []any {
	values := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case [16]byte:
			values[i] = v[:]
		case time.Time:
			values[i] = v.UnixMicro()
		default:
			values[i] = arg
		}
	}
	return values
}

func columnBytes(stmt *sqlite.Stmt, column int) []byte {
	data := make([]byte, stmt.ColumnLen(column))
	stmt.ColumnBytes(column, data)
	return data
}
