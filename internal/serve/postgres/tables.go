package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/plans"
	"spillway/internal/serve/tables"
)

// dialect is how PostgreSQL writes what the server's own tables need.
//
// A lock serializes the processes that create tables, because concurrent CREATE IF NOT EXISTS can
// fail. The transaction waits for no standby: what is stored in the tables does.
var dialect = tables.Dialect{
	SQL: plans.Postgres,
	Types: map[string]string{
		"uuid": "uuid", "shortbytes": "bytea", "bytes": "bytea", "time": "timestamptz", "boolean": "boolean",
		"name": `text COLLATE "C"`, "word": `text COLLATE "C"`, "text": "text",
		"integer": "bigint", "number": "integer", "small": "smallint",
	},
	Now:       "now()",
	Later:     "now() + ? * interval '1 microsecond'",
	ForUpdate: " FOR UPDATE",
	Find: "SELECT c.relname, COALESCE(obj_description(c.oid, 'pg_class'), '') FROM unnest(ARRAY[%s]) AS own (name) " +
		"JOIN pg_class c ON c.oid = to_regclass(own.name)",
	Create:    "BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_advisory_xact_lock(x'7370696c6c'::bigint); %s; COMMIT",
	Duplicate: func(err error) bool { return hasState(err, stateUniqueViolation) },
	Locked:    func(err error) bool { return hasState(err, stateLockTimeout) },
	Denied:    func(err error) bool { return hasState(err, stateInsufficientPrivilege) },
}

// ensureTables creates the server's own tables that are missing, and refuses those of another
// format.
func ensureTables(ctx context.Context, conn *pgconn.PgConn, own []tables.Table) error {
	err := tables.Ensure(ctx, tableSession{conn}, dialect, own)
	if err != nil && conn.TxStatus() != 'I' && !conn.IsClosed() {
		err = errors.Join(err, exec(ctx, conn, "ROLLBACK"))
	}
	return err
}

// hasState reports whether the server has refused a statement with that SQLSTATE.
func hasState(err error, state string) bool {
	var pgErr *pgconn.PgError
	return isDefinite(err, &pgErr) && pgErr.Code == state
}

// tableSession is a connection that runs statements of the server's own tables. It prepares
// none of them, so that they work behind any pooler. It implements tables.Session.
type tableSession struct{ conn *pgconn.PgConn }

// Exec implements tables.Session.
func (s tableSession) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	if len(args) > 0 {
		result := s.run(ctx, sql, args)
		return result.CommandTag.RowsAffected(), result.Err
	}
	return 0, exec(ctx, s.conn, sql)
}

// Rows implements tables.Session.
func (s tableSession) Rows(ctx context.Context, sql string, args ...any) ([]tables.Row, error) {
	result := s.run(ctx, sql, args)
	if result.Err != nil {
		return nil, result.Err
	}
	rows := make([]tables.Row, len(result.Rows))
	for i, row := range result.Rows {
		rows[i] = make(tables.Row, len(row))
		for j, value := range row {
			rows[i][j] = textOf(result.FieldDescriptions[j].DataTypeOID, value)
		}
	}
	return rows, nil
}

// run runs a statement with parameters. All values of its rows are binary.
func (s tableSession) run(ctx context.Context, sql string, args []any) *pgconn.Result {
	var numbered strings.Builder
	for i, part := range strings.Split(sql, "?") {
		if i > 0 {
			numbered.WriteString("$" + strconv.Itoa(i))
		}
		numbered.WriteString(part)
	}
	values, formats := make([][]byte, len(args)), make([]int16, len(args))
	for i, arg := range args {
		values[i], formats[i] = parameter(arg)
	}
	return s.conn.ExecParams(ctx, numbered.String(), values, nil, formats, binaryFormat).Read()
}

// parameter returns an argument and its format. The server derives its type.
func parameter(arg any) (value []byte, format int16) {
	switch v := arg.(type) {
	case nil:
		return nil, pgtype.TextFormatCode
	case []byte:
		return v, pgtype.BinaryFormatCode
	case [16]byte:
		return v[:], pgtype.BinaryFormatCode
	case []any:
		return arrayArgument(v), pgtype.BinaryFormatCode
	case time.Time:
		return v.UTC().AppendFormat(nil, "2006-01-02 15:04:05.000000Z"), pgtype.TextFormatCode
	}
	return fmt.Append([]byte{}, arg), pgtype.TextFormatCode // not nil, which is NULL
}

// arrayArgument returns values of one type as an array.
func arrayArgument(values []any) []byte {
	oid := uint32(pgtype.TextOID)
	switch values[0].(type) {
	case []byte:
		oid = pgtype.ByteaOID
	case [16]byte:
		oid = pgtype.UUIDOID
	}
	array := appendArrayHeader(nil, oid, len(values))
	for _, value := range values {
		element, _ := parameter(value)
		array = appendElement(array, element)
	}
	return array
}

// textOf returns a binary value as tables.Row has it.
func textOf(oid uint32, value []byte) string {
	switch {
	case value == nil:
		return ""
	case oid == pgtype.TimestamptzOID:
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(value))+postgresEpoch, 10)
	case oid == pgtype.Int8OID:
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(value)), 10)
	case oid == pgtype.Int4OID:
		return strconv.FormatInt(int64(int32(binary.BigEndian.Uint32(value))), 10)
	case oid == pgtype.Int2OID:
		return strconv.FormatInt(int64(int16(binary.BigEndian.Uint16(value))), 10)
	}
	return string(value)
}
