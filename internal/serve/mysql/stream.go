package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// streamTables are created if they are missing. Without the right to create tables, an
// administrator creates them.
var streamTables = []string{
	`CREATE TABLE IF NOT EXISTS spillway_batches (
	id BINARY(16) NOT NULL PRIMARY KEY,
	created_at DATETIME(6) NOT NULL,
	results LONGBLOB,
	KEY created_at (created_at)
) ENGINE=InnoDB`,
	"CREATE TABLE IF NOT EXISTS spillway_requests (\n" +
		"	stream VARBINARY(255) NOT NULL,\n" +
		"	`key` VARBINARY(255) NOT NULL,\n" +
		`	fingerprint BINARY(32) NOT NULL,
	outcome LONGBLOB NOT NULL,
	expires_at DATETIME(6) NOT NULL,
	` + "PRIMARY KEY (stream, `key`),\n" + `	KEY expires_at (expires_at)
) ENGINE=InnoDB`,
}

// Stream stores the records of one stream. It implements stream.Sink.
//
// A batch is one transaction of several round trips: START TRANSACTION, the batch id, the
// rows, the idempotency keys and COMMIT. Rows are multi-row INSERTs prepared for powers of
// two: 300 rows are statements of 256, 32, 8 and 4. InnoDB rolls back a failed statement
// alone, so the halves of a refused one are tried without savepoints. INSERT IGNORE is
// never used, because it changes values to fit. Tables of engines other than InnoDB are
// refused.
//
// With stream.Definition.Key, ON DUPLICATE KEY UPDATE leaves a row whose key exists
// unchanged. That clause applies to every unique index; if the existing row has another
// key, it sets a key column to NULL, which fails. Key columns must therefore be NOT NULL.
//
// Booleans are stored as 1 and 0, timestamps in UTC, JSON and UUIDs as text.
type Stream struct {
	db      *DB
	schema  *stream.Schema
	def     stream.Definition
	columns []stream.Column
	most    int // rows of one statement, a power of two

	ready  atomic.Bool // the tables have been checked
	drains atomic.Bool // and the table of spools
}

var _ stream.Sink = (*Stream)(nil)

const (
	placeholdersMax = 65535 // of one prepared statement
	rowsMax         = 512   // of one statement
)

// Stream returns the stream.Sink of a stream. Mistakes that only the database can find are
// errors of Commit and Check.
func (db *DB) Stream(schema *stream.Schema) *Stream {
	columns := schema.Columns()
	most := min(rowsMax, placeholdersMax/len(columns))
	return &Stream{db: db, schema: schema, def: schema.Definition(), columns: columns, most: powerBelow(most)}
}

// powerBelow returns the largest power of two up to n.
func powerBelow(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// insert returns the INSERT of n rows. A plain one fails on any unique index.
func (st *Stream) insert(n int, plain bool) string {
	var names []string
	for _, c := range st.columns {
		names = append(names, quoteName(c.Name))
	}
	sql := fmt.Sprintf("INSERT INTO %s (%s) VALUES %s", plans.ParseTableName(st.def.Table).SQL(plans.MySQL), strings.Join(names, ", "), tuples(n, len(st.columns)))
	if len(st.def.Key) == 0 || plain {
		return sql
	}
	var same []string
	for _, name := range st.def.Key {
		same = append(same, fmt.Sprintf("%s <=> VALUES(%s)", quoteName(name), quoteName(name)))
	}
	first := quoteName(st.def.Key[0])
	return fmt.Sprintf("%s ON DUPLICATE KEY UPDATE %s = IF(%s, %s, NULL)", sql, first, strings.Join(same, " AND "), first)
}

// tuples writes the placeholders of n rows.
func tuples(n, columns int) string {
	row := "(?" + strings.Repeat(",?", columns-1) + ")"
	return row + strings.Repeat(","+row, n-1)
}

// Ping implements stream.Database.
func (st *Stream) Ping(ctx context.Context) error { return st.db.Ping(ctx) }

// Close does nothing: the connections belong to the DB.
func (st *Stream) Close() error { return nil }

// Check has the database prepare the stream's statement, and creates the stream's own
// tables if they are missing.
func (st *Stream) Check(ctx context.Context) error {
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		if err := st.prepareTables(ctx, se); err != nil {
			return err
		}
		_, err := se.prepare(ctx, st.insert(1, false))
		return err
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}

// prepareTables creates the stream's own tables and checks the table of the records.
func (st *Stream) prepareTables(ctx context.Context, se *session) error {
	if st.ready.Load() {
		return nil
	}
	present, err := se.Query(ctx, "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ('spillway_batches', 'spillway_requests')")
	if err != nil {
		return err
	}
	for _, sql := range streamTables {
		if present[0][0] == "2" {
			break
		}
		if err := se.Exec(ctx, sql); err != nil {
			return fmt.Errorf("create the tables spillway_batches and spillway_requests: %w", err)
		}
	}
	if err := st.checkTable(ctx, se); err != nil {
		return err
	}
	st.ready.Store(true)
	return nil
}

// checkTable refuses a table without transactions, and a key column that may be NULL.
func (st *Stream) checkTable(ctx context.Context, se *session) error {
	database, table, named := strings.Cut(st.def.Table, ".")
	if !named {
		database, table = "", st.def.Table
	}
	const where = " WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?"
	engines, err := se.texts(ctx, "SELECT engine FROM information_schema.tables"+where, database, table)
	if err != nil {
		return err
	}
	if len(engines) == 1 && engines[0][0] != "" && engines[0][0] != "InnoDB" {
		return fmt.Errorf("%w: %s is of engine %s, which has no transactions; run ALTER TABLE %s ENGINE=InnoDB", errTable, st.def.Table, engines[0][0], plans.ParseTableName(st.def.Table).SQL(plans.MySQL))
	}
	for _, name := range st.def.Key {
		nullable, err := se.texts(ctx, "SELECT is_nullable FROM information_schema.columns"+where+" AND column_name = ?", database, table, name)
		if err != nil {
			return err
		}
		if len(nullable) == 1 && nullable[0][0] == "YES" {
			return fmt.Errorf("%w: the key column %s of %s may be NULL; make it NOT NULL", errTable, name, st.def.Table)
		}
	}
	return nil
}

// Durability implements stream.Sink.
func (st *Stream) Durability(ctx context.Context) (stream.Durability, error) {
	var d stream.Durability
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		rows, err := se.Query(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')")
		if err != nil {
			return err
		}
		settings := make(map[string]string)
		for _, row := range rows {
			settings[row[0]] = row[1]
		}
		// MariaDB's 3 syncs even more often than 1.
		if flush := settings["innodb_flush_log_at_trx_commit"]; flush != "1" && flush != "3" {
			d.Unsafe = append(d.Unsafe, "innodb_flush_log_at_trx_commit="+flush)
		}
		// After a crash InnoDB also undoes what the binary log lacks.
		if log := settings["log_bin"]; (log == "ON" || log == "1") && settings["sync_binlog"] != "1" {
			d.Unsafe = append(d.Unsafe, "sync_binlog="+settings["sync_binlog"])
		}
		return nil
	})
	return d, err
}

// Sweep implements stream.Sink.
func (st *Stream) Sweep(ctx context.Context, now, batches time.Time, limit int) (int, error) {
	total := 0
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		if err := st.prepareTables(ctx, se); err != nil {
			return err
		}
		steps := []struct {
			sql    string
			before time.Time
		}{
			{"DELETE FROM spillway_batches WHERE created_at < ? LIMIT ?", batches},
			{"DELETE FROM spillway_requests WHERE expires_at < ? LIMIT ?", now},
		}
		for _, step := range steps {
			n, err := se.exec(ctx, step.sql, []driver.NamedValue{
				{Ordinal: 1, Value: appendDatetime(nil, step.before)}, {Ordinal: 2, Value: int64(limit)},
			})
			if err != nil {
				return err
			}
			total += int(n)
		}
		return nil
	})
	return total, err
}

func appendDatetime(dst []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(dst, "2006-01-02 15:04:05.000000")
}

// exec runs a prepared statement without rows and returns how many rows it changed.
func (se *session) exec(ctx context.Context, sql string, args []driver.NamedValue) (int64, error) {
	stmt, err := se.prepare(ctx, sql)
	if err != nil {
		return 0, err
	}
	result, err := stmt.(driver.StmtExecContext).ExecContext(ctx, args)
	if err != nil {
		return 0, se.forget(sql, err)
	}
	return result.RowsAffected()
}

// Error numbers of the server that a stream distinguishes.
const (
	numDuplicate      = 1062
	numNotNull        = 1048
	numNoSuchTable    = 1146
	numWrongValue     = 1366
	numNoDefault      = 1364
	numTruncated      = 1265
	numCheckMySQL     = 3819
	numCheckMariaDB   = 4025
	numSignal         = 1644
	numRowTooLarge    = 1118
	numJSONFirst      = 3140
	numJSONLast       = 3158
	numLockWait       = 1205
	numDeadlock       = 1213
	numChanged        = 1020
	numConnections    = 1040
	numNotReady       = 1047
	numReadOnlyOption = 1290
	numReadOnly       = 1836
	numTableFull      = 1114
	numDiskFull       = 1021
)

// isData reports whether the server refuses the rows themselves.
func isData(err error) (reason string, ok bool) {
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) {
		return "", false
	}
	switch n := refused.Number; n {
	case numDuplicate, numNotNull, numWrongValue, numNoDefault, numTruncated, numCheckMySQL, numCheckMariaDB, numSignal,
		numRowTooLarge, numCannotConvert, numInvalidCharacters:
		return refused.Message, true
	default:
		class := string(refused.SQLState[:2])
		return refused.Message, class == "22" || class == "23" || class == "45" || n >= numJSONFirst && n <= numJSONLast
	}
}

// classify wraps the server's error about a transaction that was not committed.
func (st *Stream) classify(err error) error {
	if err == nil || errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrTransient) || errors.Is(err, errClosed) {
		return err
	}
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) {
		if errors.Is(err, errTable) {
			return err
		}
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	switch refused.Number {
	case numLockWait, numDeadlock, numChanged, numConnections, numNotReady, numReadOnlyOption, numReadOnly, numTableFull, numDiskFull,
		numShutdown, numUnknownStatement, numInterrupted, numNeedsPreparing, numKilled, numStatementTimeout, numQueryTimeout, numDisconnectedIdle:
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	case numNoSuchTable: // one of the stream's own tables may have been dropped
		st.ready.Store(false)
		st.drains.Store(false)
	}
	return err
}

// errTable is the error of a table that cannot be used.
var errTable = errors.New("the table cannot be used")
