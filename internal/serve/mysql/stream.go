package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
	"spillway/internal/serve/tables"
)

// Stream stores the records of one stream. It implements stream.Sink.
//
// A batch is one transaction of several round trips, as streamtables has them. No timeout ends the COMMIT. Rows are multi-row INSERTs
// prepared for powers of two: 300 rows are statements of 256, 32, 8 and 4. InnoDB rolls back a failed statement alone, so the halves of a
// refused one are tried without savepoints. INSERT IGNORE is never used, because it changes values to fit. Tables of engines other than
// InnoDB are refused, also behind a view. Each batch compares what the table is with what it was when it was checked.
//
// With stream.Definition.Key, the same INSERT fails if a key exists. The rows whose keys the table has are then left out, and the others
// are inserted. ON DUPLICATE KEY UPDATE is never used, because it applies to every unique index, and runs UPDATE triggers.
//
// Booleans are stored as 1 and 0, timestamps in UTC, JSON and UUIDs as text. The server rounds or
// cuts many values that a column does not hold, so that these are refused here.
type Stream struct {
	db      *DB
	schema  *stream.Schema
	def     stream.Definition
	columns []stream.Column
	textKey []string          // columns of the key whose collation matters
	most    int               // rows of one statement, a power of two
	quicks  [quickMost]string // by rows - 1

	checked  atomic.Pointer[checkedTable] // nil: it must be checked
	semiSync atomic.Bool                  // the server may wait for a replica
}

// checkedTable is what the table was when it was checked.
type checkedTable struct {
	*stamp
	held []heldColumn // its columns, by the stream's columns
	name string       // with its database
}

var _ stream.Sink = (*Stream)(nil)

const (
	placeholdersMax = 65535 // of one prepared statement
	rowsMax         = 512   // of one statement
)

// Stream returns the stream.Sink of a stream. Mistakes that only the database can find are errors of Commit and Check.
func (db *DB) Stream(schema *stream.Schema) *Stream {
	columns := schema.Columns()
	most := min(rowsMax, placeholdersMax/len(columns))
	st := &Stream{db: db, schema: schema, def: schema.Definition(), columns: columns, textKey: schema.TextKey(), most: powerBelow(most)}
	for i := range st.quicks {
		st.quicks[i] = st.quick(i + 1)
	}
	return st
}

// powerBelow returns the largest power of two up to n.
func powerBelow(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// insert returns the INSERT of n rows. It fails on any unique index.
func (st *Stream) insert(n int) string {
	var names []string
	for _, c := range st.columns {
		names = append(names, plans.MySQL.QuoteAlways(c.Name))
	}
	table := plans.ParseTableName(st.def.Table).SQL(plans.MySQL)
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES %s", table, strings.Join(names, ", "), tuples(n, len(st.columns)))
}

// tuples writes the placeholders of n rows.
func tuples(n, columns int) string {
	row := "(?" + strings.Repeat(",?", columns-1) + ")"
	return row + strings.Repeat(","+row, n-1)
}

// Ping implements stream.Database. A server that is read-only for this user does not answer.
func (st *Stream) Ping(ctx context.Context) error {
	return st.db.again(ctx, st.db.statementLimit(), func(ctx context.Context, se *session) error {
		err := se.Exec(ctx, "DELETE FROM spillway_batches WHERE 1 = 0")
		if isRefusal(err, numNoSuchTable) {
			return nil // Check creates it
		}
		return err
	})
}

// Close does nothing: the connections belong to the DB.
func (st *Stream) Close() error { return nil }

// Check has the database prepare the stream's statements, creates the stream's own tables if they are missing, and checks the privileges.
func (st *Stream) Check(ctx context.Context) error {
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		table, err := st.prepareTables(ctx, se)
		if err != nil {
			return err
		}
		if _, err := se.prepare(ctx, st.insert(1)); err != nil {
			return err
		}
		if len(st.def.Key) > 0 {
			if _, err := se.prepare(ctx, st.find(table.held, 1)); err != nil {
				return err
			}
		}
		return checkRights(ctx, se, streamtables.Own(dialect, st.def.Spooled))
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}

// prepareTables creates the stream's own tables that are missing, and checks the table of the records, once.
func (st *Stream) prepareTables(ctx context.Context, se *session) (*checkedTable, error) {
	if table := st.checked.Load(); table != nil {
		return table, nil
	}
	if err := tables.Ensure(ctx, tableSession{se}, dialect, streamtables.Own(dialect, st.def.Spooled)); err != nil {
		return nil, err
	}
	stamp, err := st.readStamp(ctx, se)
	if err == nil && len(stamp.watched) == 0 {
		if _, err = se.prepare(ctx, st.insert(1)); err == nil { // or else the server says what is missing
			err = fmt.Errorf("%w: %s has changed", stream.ErrTransient, st.def.Table)
		}
	}
	var held []heldColumn
	if err == nil {
		held, err = st.checkColumns(ctx, se)
	}
	if err != nil {
		return nil, err
	}
	name := plans.ParseTableName(st.def.Table)
	rows, err := se.texts(ctx, "SELECT CONCAT(COALESCE(NULLIF(?, ''), DATABASE()), '.', ?)", name.Schema, name.Name)
	if err != nil {
		return nil, fmt.Errorf("look up the idempotency keys of %s: %w", st.def.Table, err)
	}
	table := &checkedTable{stamp, held, rows[0][0]}
	st.checked.Store(table)
	return table, nil
}

// Durability implements stream.Sink.
func (st *Stream) Durability(ctx context.Context) (stream.Durability, error) {
	var d stream.Durability
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		var err error
		if d.Unsafe, err = se.unsafeSettings(ctx); err != nil {
			return err
		}
		semi, err := readSemiSync(ctx, se)
		if err != nil {
			return err
		}
		st.semiSync.Store(semi.enabled)
		d.Level = stream.LevelLocal
		if semi.on {
			d.Level = stream.LevelSemiSync
		}
		d.Clock, err = readClock(ctx, se)
		return err
	})
	return d, err
}

// readClock returns how far the server's clock is ahead of this process's.
func readClock(ctx context.Context, se *session) (time.Duration, error) {
	before := time.Now()
	rows, err := se.Query(ctx, "SELECT UTC_TIMESTAMP(6)")
	if err != nil {
		return 0, err
	}
	middle := before.Add(time.Since(before) / 2)
	now, err := parseDatetime(rows[0][0])
	return now.Sub(middle), err
}

// Sweep implements stream.Sink.
func (st *Stream) Sweep(ctx context.Context, keep stream.Keep, limit int) (int, error) {
	total := 0
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		if _, err := st.prepareTables(ctx, se); err != nil {
			return err
		}
		var err error
		total, err = streamtables.Sweep(ctx, tableSession{se}, dialect, st.def.Spooled, keep, limit)
		return err
	})
	return total, err
}

// parseDatetime reads a DATETIME in UTC.
func parseDatetime(text string) (time.Time, error) {
	t, err := time.Parse("2006-01-02 15:04:05.999999", text)
	if err != nil {
		return t, fmt.Errorf("read a time of the database: %w", err)
	}
	return t, nil
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
