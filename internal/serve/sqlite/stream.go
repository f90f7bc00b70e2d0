package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// streamTables are the tables that the streams of a file share. Times are in microseconds
// since 1970.
const streamTables = `CREATE TABLE IF NOT EXISTS spillway_batches ( -- ` + stream.TableComment + `
	id BLOB PRIMARY KEY,
	created_at INTEGER NOT NULL,
	results BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spillway_requests ( -- ` + stream.TableComment + `
	stream TEXT NOT NULL,
	key TEXT NOT NULL,
	fingerprint BLOB NOT NULL,
	outcome BLOB NOT NULL,
	expires_at INTEGER NOT NULL,
	accepted_at INTEGER NOT NULL,
	earlier BLOB,
	PRIMARY KEY (stream, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spillway_requests_expires_at ON spillway_requests (expires_at);
CREATE TABLE IF NOT EXISTS spillway_epochs ( -- ` + stream.TableComment + `
	spool BLOB NOT NULL,
	epoch BLOB NOT NULL,
	stream TEXT NOT NULL,
	last INTEGER NOT NULL,
	updated_at INTEGER NOT NULL,
	PRIMARY KEY (spool, epoch)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spillway_drained ( -- ` + stream.TableComment + `
	spool BLOB NOT NULL,
	epoch BLOB NOT NULL,
	last INTEGER NOT NULL,
	first INTEGER NOT NULL,
	sums BLOB NOT NULL,
	results BLOB,
	created_at INTEGER NOT NULL,
	PRIMARY KEY (spool, epoch, last)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spillway_drained_created_at ON spillway_drained (created_at);`

// Stream stores the records of one stream. It implements stream.Sink. The owner calls
// Close.
//
// It writes over a separate connection. SQLite has one writer at a time, so one
// committer is enough. A batch is one transaction, and each row is one run of a prepared
// INSERT, which fails alone. Foreign keys are enforced. A table with a DEFERRED foreign
// key is refused at start. If one appears later, or a trigger writes to such a table, the
// rows that break it are looked for when COMMIT has failed.
//
// Booleans are stored as 1 and 0, timestamps as 2016-12-01 23:59:57.123456 in UTC, JSON
// and UUIDs as text. A decimal is stored as text if its column has text, or else as an integer
// or a double if that holds it exactly.
//
// The database's clock is that of this host.
type Stream struct {
	*writer
	db      *DB
	schema  *stream.Schema
	def     stream.Definition
	table   plans.TableName
	insert  string
	checked int64 // the schema's version of the last checkSchema, in a run of the writer
}

var _ stream.Sink = (*Stream)(nil)

// Stream returns the stream.Sink of a stream. Mistakes that only the database can find are
// errors of Commit and Check.
func (db *DB) Stream(schema *stream.Schema) *Stream {
	st := &Stream{db: db, schema: schema, def: schema.Definition()}
	st.table = plans.ParseTableName(st.def.Table)
	st.writer = newWriter("stream "+st.def.Name, st.open)
	var names, marks, key []string
	for _, c := range schema.Columns() {
		names = append(names, quote(c.Name))
		marks = append(marks, "?")
	}
	st.insert = fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", st.table.SQL(plans.SQLite), strings.Join(names, ", "), strings.Join(marks, ", "))
	for _, name := range st.def.Key {
		key = append(key, quote(name))
	}
	if len(key) > 0 {
		st.insert += " ON CONFLICT (" + strings.Join(key, ", ") + ") DO NOTHING"
	}
	return st
}

// open opens the connection for writing and creates the stream's own tables. Tables of a newer
// format are refused.
func (st *Stream) open(ctx context.Context) (*sqlite.Conn, error) {
	pragmas := []string{"foreign_keys = ON"}
	switch st.def.Fsync {
	case stream.FsyncOn:
		pragmas = append(pragmas, "synchronous = FULL")
	case stream.FsyncOff:
		pragmas = append(pragmas, "synchronous = NORMAL")
	}
	conn, err := st.db.connectWriter(ctx, pragmas...)
	if err != nil {
		return nil, err
	}
	own, err := texts(conn, "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name GLOB 'spillway_*'")
	for _, table := range own {
		err = errors.Join(err, stream.CheckFormat(table[0], table[1]))
	}
	if err == nil {
		err = sqlitex.ExecuteScript(conn, streamTables, nil)
	}
	if err != nil {
		err = fmt.Errorf("prepare the stream's own tables, such as spillway_batches: %w", err)
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Ping implements stream.Database.
func (st *Stream) Ping(ctx context.Context) error { return st.db.Ping(ctx) }

// Check has SQLite prepare the stream's statement, and creates the stream's own tables if
// they are missing.
func (st *Stream) Check(ctx context.Context) error {
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		if _, err := conn.Prepare(st.insert); err != nil {
			return err
		}
		if err := st.checkColumns(conn); err != nil {
			return err
		}
		return st.checkForeignKeys(conn)
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}

// checkForeignKeys refuses a table with a deferred foreign key. Only the text of the
// table's definition tells.
func (st *Stream) checkForeignKeys(conn *sqlite.Conn) error {
	definition := ""
	err := sqlitex.Execute(conn, "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE", &sqlitex.ExecOptions{
		Args: []any{st.def.Table}, ResultFunc: func(stmt *sqlite.Stmt) error {
			definition = stmt.ColumnText(0)
			return nil
		},
	})
	if err != nil {
		return err
	}
	if strings.Contains(strings.ToUpper(strings.Join(strings.Fields(definition), " ")), "INITIALLY DEFERRED") {
		return fmt.Errorf("%s has a foreign key that is INITIALLY DEFERRED, so one record could fail others at COMMIT; make it immediate", st.def.Table)
	}
	return nil
}

// Durability implements stream.Sink.
func (st *Stream) Durability(ctx context.Context) (stream.Durability, error) {
	var d stream.Durability
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "PRAGMA synchronous", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			switch stmt.ColumnInt(0) {
			case 0:
				d.Unsafe = []string{"synchronous=OFF"}
			case 1: // in WAL mode the log is synced from time to time
				d.Unsafe = []string{"synchronous=NORMAL"}
			}
			return nil
		}})
	})
	return d, err
}

// Sweep implements stream.Sink.
func (st *Stream) Sweep(ctx context.Context, keep stream.Keep, limit int) (int, error) {
	now := time.Now()
	batches, keys, marks := now.Add(-keep.Batches), now.Add(-keep.Keys), now.Add(-keep.Marks)
	total := 0
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		steps := []struct {
			sql    string
			before time.Time
		}{
			{"DELETE FROM spillway_batches WHERE id IN (SELECT id FROM spillway_batches WHERE created_at < ? LIMIT ?)", batches},
			{"DELETE FROM spillway_requests WHERE (stream, key) IN (SELECT stream, key FROM spillway_requests WHERE expires_at < ? LIMIT ?)", keys},
			{"DELETE FROM spillway_drained WHERE (spool, epoch, last) IN (SELECT spool, epoch, last FROM spillway_drained WHERE created_at < ? LIMIT ?)", marks},
			{"DELETE FROM spillway_epochs WHERE (spool, epoch) IN (SELECT spool, epoch FROM spillway_epochs WHERE updated_at < ? LIMIT ?)", marks},
		}
		for _, step := range steps {
			if err := sqlitex.Execute(conn, step.sql, &sqlitex.ExecOptions{Args: []any{step.before.UnixMicro(), limit}}); err != nil {
				return err
			}
			total += conn.Changes()
		}
		return nil
	})
	return total, err
}
