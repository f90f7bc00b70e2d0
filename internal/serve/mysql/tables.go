package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"strconv"
	"time"

	"spillway/internal/database"
	"spillway/internal/plans"
	"spillway/internal/serve/tables"
)

// dialect is how MySQL and MariaDB write what the server's own tables need. Names are bytes, so
// that no collation merges two of them. Times are in UTC.
var dialect = tables.Dialect{
	SQL: plans.MySQL,
	Types: map[string]string{
		"uuid": "BINARY(16)", "name": "VARBINARY(255)", "shortbytes": "VARBINARY(255)", "bytes": "LONGBLOB",
		"integer": "BIGINT", "number": "INT", "small": "SMALLINT", "boolean": "BOOLEAN", "time": "DATETIME(6)",
		"text": "MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "word": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
	},
	Now:       "UTC_TIMESTAMP(6)",
	Later:     "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
	ForUpdate: " FOR UPDATE",
	Find:      "SELECT table_name, table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN (%s)",
	Create:    "%s",
	Duplicate: func(err error) bool { return isRefusal(err, numDuplicate) },
	Locked:    func(err error) bool { return isRefusal(err, numLockWait) },
	Denied:    func(err error) bool { return isRefusal(err, numTableDenied, numDatabaseDenied) },
}

// tableSession is a connection that runs statements of the server's own tables. It implements tables.Session.
type tableSession struct{ *session }

// Exec implements tables.Session.
func (s tableSession) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	if len(args) > 0 {
		return s.exec(ctx, sql, parameters(args))
	}
	return 0, s.session.Exec(ctx, sql)
}

// Rows implements tables.Session.
func (s tableSession) Rows(ctx context.Context, sql string, args ...any) (all []tables.Row, err error) {
	stmt, err := s.prepare(ctx, sql)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(ctx, parameters(args))
	if err != nil {
		return nil, s.forget(sql, err)
	}
	all, err = readRows(rows)
	return all, errors.Join(err, rows.Close())
}

// readRows reads all rows as tables.Row has them.
func readRows(rows driver.Rows) ([]tables.Row, error) {
	texts, err := database.ReadTexts(rows)
	if err != nil {
		return nil, err
	}
	kinds := rows.(driver.RowsColumnTypeDatabaseTypeName)
	all := make([]tables.Row, len(texts))
	for i, row := range texts {
		for column, value := range row {
			if value == "" || kinds.ColumnTypeDatabaseTypeName(column) != "DATETIME" {
				continue
			}
			at, err := parseDatetime(value)
			if err != nil {
				return nil, err
			}
			row[column] = strconv.FormatInt(at.UnixMicro(), 10)
		}
		all[i] = row
	}
	return all, nil
}

// parameters returns the arguments of a statement as the driver takes them.
func parameters(args []any) []driver.NamedValue {
	named := namedValues(args)
	for i, arg := range args {
		switch v := arg.(type) {
		case [16]byte:
			named[i].Value = v[:]
		case time.Time:
			named[i].Value = appendDatetime(nil, v)
		}
	}
	return named
}
