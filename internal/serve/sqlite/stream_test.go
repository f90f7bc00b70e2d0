package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

func TestStream(t *testing.T) {
	t.Parallel()
	storetest.Stream(t, storetest.StreamBackend{
		Open: func(t testing.TB, pool database.Pool) storetest.StreamDB {
			file := filepath.Join(t.TempDir(), "stream.db")
			db := openFile(t, file, pool)
			writer := openWriter(t, file)
			return storetest.StreamDB{
				Sink: func(t testing.TB, schema *stream.Schema) stream.Sink { return streamSink(t, db, schema) },
				Exec: func(_ context.Context, sql string) error { return sqlitex.ExecuteTransient(writer, sql, nil) },
				Rows: func(_ context.Context, sql string) ([][]string, error) { return streamRows(writer, sql) },
			}
		},
		Types: map[stream.Type]string{
			stream.Integer: "INTEGER", stream.Real: "REAL", stream.Text: "TEXT", stream.Boolean: "BOOLEAN",
			stream.Timestamp: "TIMESTAMP", stream.JSON: "TEXT", stream.UUID: "UUID", stream.Decimal: "DECIMAL_TEXT",
		},
		Newer:  []string{"CREATE TABLE spillway_requests (id INTEGER -- spillway format 2\n)"},
		Serial: "INTEGER PRIMARY KEY",
		Fixed:  "DECIMAL(20,2)", Narrow: "DECIMAL(15,2)", Inexact: []string{"12345678901234567.89", "9223372036854775809", `"0.1234567890123456789"`},
		Insensitive: "TEXT COLLATE NOCASE", Sensitive: "TEXT",
		Spoil: []string{"CREATE TRIGGER spoil BEFORE INSERT ON readings WHEN NEW.note = 'spoil' BEGIN SELECT json('{'); END"},
	})
}

func streamSink(t testing.TB, db *sqlite.DB, schema *stream.Schema) *sqlite.Stream {
	sink := db.Stream(schema)
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return sink
}

func streamRows(conn *driver.Conn, sql string) ([][]string, error) {
	var rows [][]string
	err := sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *driver.Stmt) error {
		var row []string
		for i := range stmt.ColumnCount() {
			text := stmt.ColumnText(i)
			switch stmt.ColumnType(i) {
			case driver.TypeNull:
				text = "NULL"
			case driver.TypeFloat:
				text = strconv.FormatFloat(stmt.ColumnFloat(i), 'g', -1, 64)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
		return nil
	}})
	return rows, err
}

func TestStreamDurability(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{})
	for fsync, want := range map[stream.Fsync]string{
		stream.FsyncOn: "database", stream.FsyncServer: "database", stream.FsyncOff: "database, not fsynced: synchronous=NORMAL",
	} {
		schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: "t", Fsync: fsync, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := streamSink(t, db, schema).Durability(t.Context()); err != nil || d.String() != want {
			t.Errorf("fsync %q: %q, %v, want %q", fsync, d, err, want)
		}
	}
}

// A foreign key that is looked at no sooner than at COMMIT is refused.
func TestStreamDeferred(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, `CREATE TABLE p (id INTEGER PRIMARY KEY);
CREATE TABLE c (id INTEGER REFERENCES p);
CREATE TABLE d (id INTEGER REFERENCES p deferrable
	initially  deferred);`)
	for table, want := range map[string]bool{"c": true, "D": false} {
		schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: table, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := streamSink(t, db, schema).Check(t.Context()); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "make it immediate") {
			t.Errorf("%s: %v", table, err)
		}
	}
}

// A batch that waits for another writer's lock gives up with its context and can be
// tried again.
func TestStreamLocked(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE t (id INTEGER)")
	schema, err := stream.NewSchema(stream.Definition{Name: "/t", Table: "t", Columns: []stream.Column{{Name: "id", Type: stream.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	sink := streamSink(t, db, schema)
	if err := sink.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.ExecuteTransient(writer, "BEGIN IMMEDIATE", nil); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if err := sink.Commit(ctx, &stream.Batch{}); !errors.Is(err, stream.ErrTransient) {
			t.Errorf("locked, with a context of %s: %v", wait, err)
		}
		cancel()
	}
	if err := sqlitex.ExecuteTransient(writer, "COMMIT", nil); err != nil {
		t.Fatal(err)
	}
	if err := sink.Commit(t.Context(), &stream.Batch{}); err != nil {
		t.Errorf("unlocked: %v", err)
	}
}
