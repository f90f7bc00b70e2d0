package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/streamtables"
	"spillway/internal/serve/tables"
)

// Stream stores the records of one stream. It implements stream.Sink. The owner calls
// Close.
//
// It writes over a separate connection. SQLite has one writer at a time, so one
// committer is enough. A batch is one transaction, and each row is one run of a prepared
// INSERT, which fails alone. Foreign keys are enforced. A table with a DEFERRED foreign
// key is refused at start. If one appears later, or a trigger writes to such a table, the
// rows that break it are looked for when COMMIT has failed.
//
// If the file was replaced, nothing is acknowledged until its connection is opened again.
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
	find    string       // selects a row by its key; "" without one
	checked int64        // the schema's version of the last checkSchema, in a run of the writer
	held    []heldColumn // by the last checkColumns, in such a run
}

var _ stream.Sink = (*Stream)(nil)

// Stream returns the stream.Sink of a stream. Mistakes that only the database can find are
// errors of Commit and Check.
func (db *DB) Stream(schema *stream.Schema) *Stream {
	st := &Stream{db: db, schema: schema, def: schema.Definition()}
	st.table = plans.ParseTableName(st.def.Table)
	st.writer = newWriter(db, "stream "+st.def.Name, st.open)
	var names, marks, key []string
	for _, c := range schema.Columns() {
		names = append(names, plans.SQLite.QuoteAlways(c.Name))
		marks = append(marks, "?")
	}
	list, values := strings.Join(names, ", "), strings.Join(marks, ", ")
	st.insert = fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", st.table.SQL(plans.SQLite), list, values)
	for _, name := range st.def.Key {
		key = append(key, plans.SQLite.QuoteAlways(name))
	}
	if len(key) > 0 {
		st.insert += " ON CONFLICT (" + strings.Join(key, ", ") + ") DO NOTHING"
		var same []string
		for i, c := range schema.Columns() {
			if slices.Contains(st.def.Key, c.Name) {
				same = append(same, fmt.Sprintf("%s COLLATE BINARY IS ?%d", plans.SQLite.QuoteAlways(c.Name), i+1))
			}
		}
		st.find = "SELECT 1 FROM " + st.table.SQL(plans.SQLite) + " WHERE " + strings.Join(same, " AND ") +
			fmt.Sprintf(" AND ?%[1]d IS ?%[1]d", len(schema.Columns())) // so that it has the parameters of the INSERT
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
	st.checked = 0 // the file may be another one
	conn, err := st.db.connectWriter(ctx, pragmas...)
	if err != nil {
		return nil, err
	}
	err = tables.Ensure(ctx, tableSession{conn}, dialect, streamtables.Own(dialect, st.def.Spooled))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// resolved returns the table with its schema.
func (st *Stream) resolved() string {
	return strings.ToLower(cmp.Or(st.table.Schema, "main") + "." + st.table.Name)
}

// Ping implements stream.Database.
func (st *Stream) Ping(ctx context.Context) error { return st.db.Ping(ctx) }

// Check has SQLite prepare the stream's statement, and creates the stream's own tables if
// they are missing.
func (st *Stream) Check(ctx context.Context) error {
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		// SQLite reads a changed schema again when it runs a statement, and not for every error of Prepare.
		if err := st.checkTable(conn); err != nil {
			return err
		}
		if err := st.checkForeignKeys(conn); err != nil {
			return err
		}
		_, err := conn.Prepare(st.insert)
		return err
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}

// checkForeignKeys refuses a table with a deferred foreign key. Only the text of the
// table's definition tells.
func (st *Stream) checkForeignKeys(conn *sqlite.Conn) error {
	_, definition, err := st.definition(conn)
	if err == nil && strings.Contains(definition, "INITIALLY DEFERRED") {
		return fmt.Errorf("%s has a foreign key that is INITIALLY DEFERRED, so one record could fail others at COMMIT; make it immediate",
			st.def.Table)
	}
	return err
}

// Durability implements stream.Sink.
func (st *Stream) Durability(ctx context.Context) (stream.Durability, error) {
	var d stream.Durability
	err := st.run(ctx, func(conn *sqlite.Conn) error {
		mode, err := texts(conn, "PRAGMA journal_mode")
		if err != nil {
			return err
		}
		if journal := strings.ToUpper(mode[0][0]); journal == "MEMORY" || journal == "OFF" {
			d.Unsafe = append(d.Unsafe, "journal_mode="+journal)
		}
		level, err := integer(conn, "PRAGMA synchronous")
		switch {
		case err != nil:
		case level == 0:
			d.Unsafe = append(d.Unsafe, "synchronous=OFF")
		case level == 1: // in WAL mode the log is synced from time to time
			d.Unsafe = append(d.Unsafe, "synchronous=NORMAL")
		}
		return err
	})
	return d, err
}

// Sweep implements stream.Sink.
func (st *Stream) Sweep(ctx context.Context, keep stream.Keep, limit int) (deleted int, err error) {
	err = st.run(ctx, func(conn *sqlite.Conn) error {
		deleted, err = streamtables.Sweep(ctx, tableSession{conn}, dialect, st.def.Spooled, keep, limit)
		return err
	})
	return deleted, err
}
