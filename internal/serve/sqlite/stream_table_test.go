package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// openKeyed opens a stream into the table events with a key, or none.
func openKeyed(t *testing.T, statements, key, skipped string) *events {
	t.Helper()
	db, writer := open(t, database.Pool{})
	script(t, writer, statements)
	def := stream.Definition{Name: "/events", Table: "events", Spooled: true, SkippedRows: skipped, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "note", Type: stream.Text, Required: true},
	}}
	if key != "" {
		def.Key = []string{key}
	}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	return &events{schema: schema, sink: streamSink(t, db, schema), writer: writer}
}

// TestStreamSkipped counts rows that the table leaves out without an error.
func TestStreamSkipped(t *testing.T) {
	t.Parallel()
	const (
		dropSome = "CREATE TRIGGER drop_some BEFORE INSERT ON events WHEN NEW.note LIKE 'drop%' BEGIN SELECT RAISE(IGNORE); END;"
		table    = "CREATE TABLE events (id INTEGER UNIQUE, note TEXT UNIQUE)"
		trigger  = table + ";" + dropSome
		ignored  = "CREATE TABLE events (id INTEGER UNIQUE ON CONFLICT IGNORE, note TEXT COLLATE NOCASE); CREATE UNIQUE INDEX exact ON events (note COLLATE BINARY)"
		mixed    = "CREATE TABLE events (id INTEGER, note TEXT COLLATE NOCASE); CREATE UNIQUE INDEX exact ON events (note COLLATE BINARY);" +
			dropSome
	)
	tests := []struct{ table, key, skipped, before, records, refused, stored, check string }{
		{table: trigger, records: "1:a 2:drop 3:c", refused: "1.0", stored: "1,3"},
		{table: trigger, skipped: stream.SkippedAccept, records: "1:a 2:drop 3:c", stored: "1,3"},
		{table: trigger, key: "note", records: "1:a 2:drop 1:a 3:c", refused: "1.0", stored: "1,3"},
		{table: trigger, key: "note", before: "DROP TRIGGER drop_some; INSERT INTO events VALUES (9, 'drop')", records: "2:drop 3:c", stored: "3,9"},
		{table: ignored, records: "1:a 1:b 3:c", refused: "1.0", stored: "1,3"},
		{table: ignored, key: "note", records: "1:a 1:b 5:a 3:c", refused: "1.0", stored: "1,3"},
		{table: mixed, key: "note", before: "INSERT INTO events VALUES (8, 'x'); DROP TRIGGER drop_some; INSERT INTO events VALUES (9, 'DROP');" + dropSome, records: "1:a 2:drop 3:c", refused: "1.0", stored: "1,3,8,9"},
		{table: "CREATE TABLE events (id INTEGER UNIQUE ON/* or */CONFLICT -- then\n REPLACE, note TEXT)", check: "ON CONFLICT REPLACE"},
		{table: "CREATE TABLE events (id INTEGER UNIQUE ON CONFLICT REPLACE, note TEXT)", skipped: stream.SkippedAccept, records: "1:a 1:b", stored: "1"},
		{
			table: "CREATE TABLE other (id, note); CREATE VIEW events AS SELECT * FROM other; CREATE TRIGGER i INSTEAD OF INSERT ON events BEGIN INSERT INTO other VALUES (NEW.id, NEW.note); END;",
			check: "INSTEAD OF",
		},
	}
	for _, drained := range []bool{false, true} {
		for i, test := range tests {
			e := openKeyed(t, test.table, test.key, test.skipped)
			if err := e.sink.Check(t.Context()); (err == nil) != (test.check == "") || err != nil && !strings.Contains(err.Error(), test.check) {
				t.Errorf("%d: check: %v, want %q", i, err, test.check)
			}
			if test.check != "" {
				continue
			}
			if test.before != "" {
				script(t, e.writer, test.before)
			}
			var requests []string
			for record := range strings.FieldsSeq(test.records) {
				id, note, _ := strings.Cut(record, ":")
				requests = append(requests, fmt.Sprintf(`{"id":%s,"note":%q}`, id, note))
			}
			b := e.batch(t, requests...)
			if drained {
				b = e.drained(t, 1, 1, strings.Repeat("a", len(requests)), requests...)
			}
			if e.commit(t, b); test.refused == "" && reasons(b) != "" || test.refused != "" && !strings.HasPrefix(reasons(b), test.refused+" row-skipped:") {
				t.Errorf("%d, drained %v: refused %q, want %s", i, drained, reasons(b), test.refused)
			}
			if skips := strings.Count(test.records, "drop"); test.skipped != "" && skips != b.Skipped {
				t.Errorf("%d: %d skipped, want %d", i, b.Skipped, skips)
			}
			e.want(t, test.stored)
		}
	}
	// If every row is skipped, the drain is held.
	e := openKeyed(t, trigger, "", "")
	if err := e.sink.Commit(t.Context(), e.drained(t, 1, 1, "a", `{"id":1,"note":"drop"}`)); !errors.Is(err, stream.ErrHeld) || !strings.Contains(err.Error(), "skipped_rows") {
		t.Errorf("every row is skipped: %v", err)
	}
}

// A table that changes after the start is checked again before anything is stored in it.
func TestStreamTableChanges(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents)
	e.commit(t, e.batch(t, `{"id":1}`))
	script(t, e.writer, "DROP TABLE events; CREATE TABLE events (id INTEGER UNIQUE ON CONFLICT REPLACE, parent INTEGER, note TEXT)")
	if err := e.sink.Commit(t.Context(), e.batch(t, `{"id":2}`)); err == nil || !strings.Contains(err.Error(), "ON CONFLICT REPLACE") {
		t.Errorf("a table that replaces rows: %v", err)
	}
	e.want(t, "")
}

// A key whose index is missing at the start is found when another process has created it.
func TestStreamKeyIndexLater(t *testing.T) {
	t.Parallel()
	e := openKeyed(t, "CREATE TABLE events (id INTEGER, note TEXT)", "note", "")
	if err := e.sink.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "ON CONFLICT") {
		t.Errorf("without an index: %v", err)
	}
	script(t, e.writer, "CREATE UNIQUE INDEX exact ON events (note)")
	if err := e.sink.Check(t.Context()); err != nil {
		t.Errorf("with the index: %v", err)
	}
}

// TestFileReplaced replaces the file while it is open, with and without its log.
func TestFileReplaced(t *testing.T) {
	t.Parallel()
	for _, kept := range []string{"", "-wal"} {
		t.Run("log kept "+kept, func(t *testing.T) {
			t.Parallel()
			testFileReplaced(t, kept)
		})
	}
}

func testFileReplaced(t *testing.T, kept string) {
	file := filepath.Join(t.TempDir(), "app.db")
	db := openFile(t, file, database.Pool{})
	writer := openWriter(t, file)
	script(t, writer, plainEvents)
	e := openEvents(t, db, writer)
	e.commit(t, e.batch(t, `{"id":1}`))
	if err := sqlitex.ExecuteTransient(writer, "VACUUM INTO '"+file+".bak'", nil); err != nil {
		t.Fatal(err)
	}
	e.commit(t, e.batch(t, `{"id":2}`)) // in the log
	if err := db.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if suffix != kept || suffix == "" {
			if err := os.Remove(file + suffix); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := e.batch(t, `{"id":3}`)
	if err := e.sink.Commit(t.Context(), b); !errors.Is(err, stream.ErrTransient) {
		t.Errorf("without a file: %v", err)
	}
	apptest.Await(t, "without a file the database does not answer", func() bool { return db.Ping(t.Context()) != nil })
	if err := os.Rename(file+".bak", file); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := os.Chtimes(file, now, now); err != nil {
		t.Fatal(err)
	}
	if err := e.sink.Commit(t.Context(), b); !errors.Is(err, stream.ErrTransient) {
		t.Errorf("with a file that somebody is writing: %v", err)
	}
	if err := os.Chtimes(file, now, now.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	connects := db.Stats().Connects
	e.commit(t, b)
	if err := db.Ping(t.Context()); err != nil || db.Stats().Connects == connects {
		t.Errorf("the pool does not read the new file: %v", err)
	}
	e.writer = openWriter(t, file)
	e.want(t, "1,3")
}

// TestFileReplacedWhileWriting replaces the file by copies of itself while a stream writes. What is
// acknowledged between a replacement and the next copy is in the last file.
func TestFileReplacedWhileWriting(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	db := openFile(t, file, database.Pool{})
	writer := openWriter(t, file)
	script(t, writer, plainEvents)
	e := openEvents(t, db, writer)
	var copying atomic.Bool
	var stored atomic.Int64
	more := func() {
		before := stored.Load()
		apptest.Await(t, "some records are stored", func() bool { return stored.Load() > before+2 })
	}
	var safe []string // acknowledged while nothing was copied or replaced
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for id := 1; ; id++ {
			select {
			case <-stop:
				return
			default:
			}
			records, _, _ := e.schema.Parse(fmt.Appendf(nil, `{"id":%d}`, id), stream.FormLines, time.Now(), stream.Limits{Bytes: 99, Records: 1, Depth: 9, Fields: 9})
			b := &stream.Batch{ID: [16]byte{1, byte(id >> 8), byte(id)}, Requests: []*stream.Entry{{Records: records}}}
			for {
				b.Reset()
				err := e.sink.Commit(t.Context(), b)
				if err == nil {
					break
				}
				if !errors.Is(err, stream.ErrTransient) && !errors.Is(err, stream.ErrUnconfirmed) {
					t.Errorf("record %d: %v", id, err)
				}
				runtime.Gosched()
			}
			stored.Add(1)
			if !copying.Load() {
				safe = append(safe, strconv.Itoa(id))
			}
			_ = db.Ping(t.Context())
		}
	}()
	for range 8 {
		more()
		copying.Store(true)
		current := openWriter(t, file)
		if err := sqlitex.ExecuteTransient(current, "VACUUM INTO '"+file+".bak'", nil); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Minute)
		if err := errors.Join(os.Chtimes(file+".bak", old, old), os.Rename(file+".bak", file)); err != nil {
			t.Fatal(err)
		}
		copying.Store(false)
	}
	more()
	close(stop)
	<-ended
	e.writer = openWriter(t, file)
	if got := e.value(t, "SELECT count(*) FROM events WHERE id IN ("+strings.Join(safe, ",")+")"); got != strconv.Itoa(len(safe)) {
		t.Errorf("%s of %d acknowledged records are in the file", got, len(safe))
	}
	if got := e.value(t, "PRAGMA integrity_check"); got != "ok" {
		t.Error(got)
	}
	t.Logf("%d records", len(safe))
}
