package sqlite_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"

	"spillway/internal/database"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/stream"
)

// events is a file with the table events (id, parent, note), and a stream into it.
type events struct {
	schema *stream.Schema
	sink   *sqlite.Stream
	writer *driver.Conn
	last   byte // of the batch ids
}

func newEvents(t *testing.T, statements string) *events {
	t.Helper()
	db, writer := open(t, database.Pool{})
	script(t, writer, statements)
	return openEvents(t, db, writer)
}

func openEvents(t *testing.T, db *sqlite.DB, writer *driver.Conn) *events {
	t.Helper()
	schema, err := stream.NewSchema(stream.Definition{Name: "/events", Table: "events", Spooled: true, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "parent", Type: stream.Integer}, {Name: "note", Type: stream.Text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &events{schema: schema, sink: streamSink(t, db, schema), writer: writer}
}

const plainEvents = "CREATE TABLE events (id INTEGER PRIMARY KEY, parent INTEGER, note TEXT)"

// entry returns a request with those records.
func (e *events) entry(t *testing.T, lines string) *stream.Entry {
	t.Helper()
	records, refused, err := e.schema.Parse([]byte(lines), stream.FormLines, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 1000, Depth: 10, Fields: 10})
	if err != nil || len(refused) > 0 {
		t.Fatal(err, refused)
	}
	return &stream.Entry{Records: records}
}

// batch returns a batch of requests with a new id.
func (e *events) batch(t *testing.T, requests ...string) *stream.Batch {
	t.Helper()
	e.last++
	b := &stream.Batch{ID: [16]byte{e.last}, KeyTTL: time.Hour}
	for _, lines := range requests {
		b.Requests = append(b.Requests, e.entry(t, lines))
	}
	return b
}

// drained returns a batch of groups of a spool that begin with a number.
func (e *events) drained(t *testing.T, epoch byte, first uint64, sums string, requests ...string) *stream.Batch {
	t.Helper()
	b := e.batch(t, requests...)
	b.Mark = &queue.Mark{Spool: [16]byte{9}, Name: "/events", Epoch: [16]byte{epoch}, First: first}
	for _, sum := range []byte(sums) {
		b.Mark.Sums = append(b.Mark.Sums, [16]byte{sum})
	}
	return b
}

func (e *events) commit(t *testing.T, b *stream.Batch) {
	t.Helper()
	if err := e.sink.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// want compares the ids in the table.
func (e *events) want(t *testing.T, ids string) {
	t.Helper()
	if got := e.value(t, "SELECT COALESCE(group_concat(id), '') FROM (SELECT id FROM events ORDER BY id)"); got != ids {
		t.Errorf("stored %s, want %s", got, ids)
	}
}

func (e *events) value(t *testing.T, sql string) string {
	t.Helper()
	rows, err := streamRows(e.writer, sql)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%s: %v, %v", sql, rows, err)
	}
	return rows[0][0]
}

// reasons returns the refused rows of each request.
func reasons(b *stream.Batch) string {
	var all []string
	for i, e := range b.Requests {
		for _, r := range e.Result.Refused {
			text := fmt.Sprintf("%d.%d %s", i, r.Row, r.Reason)
			if r.Unsure {
				text += " (unsure)"
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// A batch id that is found again is acknowledged behind a commit of its own.
func TestStreamFoundAgain(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents)
	b := e.batch(t, `{"id":1}`)
	e.commit(t, b)
	version := e.value(t, "PRAGMA data_version") // another connection's commits change it
	e.commit(t, b)
	if after := e.value(t, "PRAGMA data_version"); after == version {
		t.Error("nothing was committed before the batch was acknowledged")
	}
	if got := e.value(t, "SELECT count(*) FROM spillway_batches"); got != "2" {
		t.Errorf("%s rows in spillway_batches, want 2", got)
	}
	e.want(t, "1")
}

// TestStreamEpochs drains groups of two copies of a spool, groups again, and other groups
// with the same numbers.
func TestStreamEpochs(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents)
	e.commit(t, e.drained(t, 1, 1, "ab", "{\"id\":1}\n{\"id\":1}"))
	e.commit(t, e.drained(t, 2, 1, "a", `{"id":2}`)) // another epoch
	version := e.value(t, "PRAGMA data_version")
	again := e.drained(t, 1, 1, "abc", `{"id":3}`)
	e.commit(t, again)
	if after := e.value(t, "PRAGMA data_version"); after == version {
		t.Error("nothing was committed before groups were found again")
	}
	m := again.Mark
	if m.Last != 2 || len(m.Known) != 2 || !m.Known[0].Same || !m.Known[1].Same || !strings.Contains(string(m.Known[1].Stored.Results), "UNIQUE") {
		t.Errorf("found again: last %d, %+v", m.Last, m.Known)
	}
	other := e.drained(t, 1, 2, "x", `{"id":3}`)
	e.commit(t, other)
	if m = other.Mark; len(m.Known) != 1 || m.Known[0].Same || m.Known[0].Stored.First != 1 {
		t.Errorf("another group: %+v", m.Known)
	}
	e.want(t, "1,2")
	behind := e.drained(t, 1, 5, "e", `{"id":4}`)
	e.commit(t, behind)
	if m = behind.Mark; len(m.Known) > 0 || m.Behind == nil || *m.Behind != 2 {
		t.Errorf("behind a gap: %+v", m)
	}
	next := e.drained(t, 1, 6, "f", `{"id":5}`)
	e.commit(t, next)
	if next.Mark.Behind != nil || next.Mark.Known != nil {
		t.Errorf("the next groups: %+v", next.Mark)
	}
	e.want(t, "1,2,4,5")
	if got := e.value(t, "SELECT group_concat(last) FROM (SELECT last FROM spillway_epochs ORDER BY epoch)"); got != "6,1" {
		t.Errorf("the last numbers are %s", got)
	}
}

// TestStreamKeyTimes stores requests with one key in both orders of acceptance.
func TestStreamKeyTimes(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-10 * time.Hour).Truncate(time.Microsecond)
	keyed := func(e *events, id int, after time.Duration) *stream.Batch {
		b := e.batch(t, fmt.Sprintf(`{"id":%d}`, id))
		b.Requests[0].Key, b.Requests[0].Accepted, b.Requests[0].Fingerprint = "key", start.Add(after), [32]byte{byte(id)}
		return b
	}
	for name, order := range map[string][]time.Duration{
		"in order":  {0, 90 * time.Minute, 4 * time.Hour},
		"backwards": {4 * time.Hour, 90 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvents(t, plainEvents)
			for i, after := range order {
				b := keyed(e, i, after)
				e.commit(t, b)
				if r := b.Requests[0].Result; r.Stored != nil || r.Reused {
					t.Errorf("the request accepted after %s is another one: %+v", after, r)
				}
			}
			e.want(t, "0,1,2")
			for i, after := range order {
				for _, shift := range []time.Duration{-59 * time.Minute, 0, 30 * time.Minute} {
					if after == 0 && shift > 0 || after == 90*time.Minute && shift < 0 {
						continue // nearer to the other one
					}
					b := keyed(e, i, after+shift)
					e.commit(t, b)
					if b.Requests[0].Result.Stored == nil {
						t.Errorf("accepted after %s: stored again: %+v", after+shift, b.Requests[0].Result)
					}
				}
			}
			b := keyed(e, 9, 4*time.Hour)
			if e.commit(t, b); !b.Requests[0].Result.Reused {
				t.Errorf("another body: %+v", b.Requests[0].Result)
			}
			e.want(t, "0,1,2")
		})
	}
}

// A key forgets requests that a Sweep would delete.
func TestStreamKeyForgets(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents)
	now := time.Now()
	for i, ago := range []time.Duration{50 * time.Hour, 40 * time.Hour, 2 * time.Hour, 0} {
		b := e.batch(t, fmt.Sprintf(`{"id":%d}`, i))
		b.KeyKeep = 3 * time.Hour
		b.Requests[0].Key, b.Requests[0].Accepted = "key", now.Add(-ago)
		e.commit(t, b)
	}
	if got := e.value(t, "SELECT json_array_length(earlier) FROM spillway_requests"); got != "1" {
		t.Errorf("%s earlier requests are kept, want 1", got)
	}
	e.want(t, "0,1,2,3")
}

// TestStreamSweepMarks deletes marks by their age.
func TestStreamSweepMarks(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents)
	for n := range uint64(3) {
		e.commit(t, e.drained(t, 1, n+1, "a", fmt.Sprintf(`{"id":%d}`, n)))
	}
	sweep := func(marks time.Duration, want int) {
		t.Helper()
		if n, err := e.sink.Sweep(t.Context(), stream.Keep{Batches: time.Hour, Keys: time.Hour, Marks: marks}, 2); err != nil || n != want {
			t.Errorf("swept %d, %v, want %d", n, err, want)
		}
	}
	sweep(time.Hour, 0)
	sweep(-time.Hour, 3)
	sweep(-time.Hour, 1)
	sweep(-time.Hour, 0)
}

// A record that breaks a DEFERRED foreign key, which SQLite reports at COMMIT, fails alone.
func TestStreamDeferredKeyAlone(t *testing.T) {
	t.Parallel()
	const parents = "CREATE TABLE parents (id INTEGER PRIMARY KEY); INSERT INTO parents VALUES (1); "
	deferred := parents + "CREATE TABLE events (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED, note TEXT)"
	requests := []string{`{"id":1,"parent":1}`, "{\"id\":2,\"parent\":7}\n{\"id\":3}", `{"id":4,"parent":1}`}
	const want = "1.0 constraint failed: FOREIGN KEY constraint failed"
	t.Run("direct", func(t *testing.T) {
		e := newEvents(t, deferred)
		b := e.batch(t, requests...)
		if e.commit(t, b); reasons(b) != want {
			t.Errorf("refused: %s", reasons(b))
		}
		e.want(t, "1,3,4")
	})
	t.Run("drained", func(t *testing.T) {
		e := newEvents(t, deferred)
		b := e.drained(t, 1, 1, "abc", requests...)
		if e.commit(t, b); reasons(b) != want {
			t.Errorf("refused: %s", reasons(b))
		}
		e.want(t, "1,3,4")
	})
	t.Run("a row that was broken before", func(t *testing.T) {
		e := newEvents(t, deferred+"; PRAGMA foreign_keys = OFF; INSERT INTO events VALUES (100, 50, NULL);")
		b := e.drained(t, 1, 1, "abc", requests...)
		if e.commit(t, b); reasons(b) != want {
			t.Errorf("refused: %s", reasons(b))
		}
		e.want(t, "1,3,4,100")
	})
	t.Run("of another table", func(t *testing.T) {
		e := newEvents(t, parents+plainEvents+`;
CREATE TABLE links (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
CREATE TRIGGER link AFTER INSERT ON events BEGIN INSERT INTO links VALUES (NEW.id, NEW.parent); END;`)
		b := e.drained(t, 1, 1, "abc", requests...)
		var held *stream.Held
		if err := e.sink.Commit(t.Context(), b); !errors.As(err, &held) || errors.Is(err, stream.ErrTransient) {
			t.Errorf("drained: %v", err)
		}
		b = e.drained(t, 1, 1, "a", requests[0], `{"id":2,"parent":1}`)
		e.commit(t, b)
		b = e.drained(t, 1, 2, "b", `{"id":3,"parent":7}`)
		if e.commit(t, b); reasons(b) != "0.0 constraint failed: FOREIGN KEY constraint failed" {
			t.Errorf("alone: %s", reasons(b))
		}
		e.want(t, "1,2")
	})
}

// A trigger that rolls back the transaction refuses only its own row.
func TestStreamRollbackAlone(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents+`;
CREATE TRIGGER bad BEFORE INSERT ON events WHEN NEW.note = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'no'); END;`)
	b := e.batch(t, `{"id":1}`, "{\"id\":2,\"note\":\"bad\"}\n{\"id\":3}", `{"id":4,"note":"bad"}`)
	if e.commit(t, b); reasons(b) != "1.0 constraint failed: no; 2.0 constraint failed: no" {
		t.Errorf("refused: %s", reasons(b))
	}
	e.want(t, "1,3")
}

// An error that may be the database's refuses a drained record only if a later one is stored.
func TestStreamHeld(t *testing.T) {
	t.Parallel()
	e := newEvents(t, plainEvents+`;
CREATE TRIGGER parse AFTER INSERT ON events WHEN NEW.note IS NOT NULL BEGIN SELECT json_extract(NEW.note, '$.a'); END;`)
	b := e.drained(t, 1, 1, "abc", `{"id":1}`, `{"id":2,"note":"{"}`, `{"id":3}`)
	if e.commit(t, b); !strings.HasPrefix(reasons(b), "1.0 ") || !strings.HasSuffix(reasons(b), "malformed JSON (unsure)") {
		t.Errorf("refused: %s", reasons(b))
	}
	e.want(t, "1,3")
	b = e.drained(t, 1, 4, "de", `{"id":4}`, `{"id":5,"note":"{"}`)
	var held *stream.Held
	if err := e.sink.Commit(t.Context(), b); !errors.As(err, &held) || held.Row != 1 {
		t.Errorf("the last record: %v", err)
	}
	e.want(t, "1,3")
	// A request is not split here: the stream does that.
	if err := e.sink.Commit(t.Context(), e.batch(t, `{"id":4}`, `{"id":5,"note":"{"}`)); err == nil || errors.Is(err, stream.ErrTransient) {
		t.Errorf("direct: %v", err)
	}
	// A table that is missing for all is no record's fault.
	script(t, e.writer, "ALTER TABLE events RENAME TO away")
	b = e.drained(t, 1, 4, "d", "{\"id\":4}\n{\"id\":5}")
	if err := e.sink.Commit(t.Context(), b); !errors.Is(err, stream.ErrHeld) || !strings.Contains(err.Error(), "events") {
		t.Errorf("no table: %v", err)
	}
	script(t, e.writer, "ALTER TABLE away RENAME TO events")
	b.Reset()
	e.commit(t, b)
	e.want(t, "1,3,4,5")
}

// Equal decimals of a key are one record, however they are written.
func TestStreamDecimalKey(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE events (price DECIMAL_TEXT NOT NULL UNIQUE, free, amount NUMERIC)")
	schema, err := stream.NewSchema(stream.Definition{Name: "/events", Table: "events", Key: []string{"price"}, Columns: []stream.Column{
		{Name: "price", Type: stream.Decimal, Required: true}, {Name: "free", Type: stream.Decimal}, {Name: "amount", Type: stream.Decimal},
	}})
	if err != nil {
		t.Fatal(err)
	}
	e := &events{schema: schema, sink: streamSink(t, db, schema), writer: writer}
	if err := e.sink.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.commit(t, e.batch(t, `{"price":1.50,"free":1.50,"amount":1.50}`, `{"price":"15e-1"}`, `{"price":150e-2}`))
	rows, err := streamRows(writer, "SELECT price, typeof(price), free, amount, typeof(amount) FROM events")
	if err != nil || len(rows) != 1 || strings.Join(rows[0], " ") != "1.5 text 1.50 1.5 real" {
		t.Errorf("%v, %v", rows, err)
	}
}

// TestStreamKnownAmongBroken: a record whose key is stored already is not refused because of
// the record before it, which breaks a deferred foreign key.
func TestStreamKnownAmongBroken(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE events (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED, note TEXT UNIQUE); INSERT INTO events (id, note) VALUES (1, 'dup')")
	schema, err := stream.NewSchema(stream.Definition{Name: "/events", Table: "events", Key: []string{"note"}, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "parent", Type: stream.Integer}, {Name: "note", Type: stream.Text, Required: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	e := &events{schema: schema, sink: streamSink(t, db, schema), writer: writer}
	b := e.batch(t, `{"id":2,"parent":9,"note":"bad"}`, `{"id":3,"note":"dup"}`, `{"id":4,"note":"good"}`)
	b.KeyTTL = time.Hour
	if err := e.sink.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0, 0} {
		if got := b.Requests[i].Result.Refused; len(got) != want {
			t.Errorf("record %d: refused %+v", i, got)
		}
	}
}
