package mysql

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// quickly is a table whose batches are quick after a while, behind a proxy.
type quickly struct {
	url    string
	proxy  *storetest.Proxy
	sink   *Stream
	schema *stream.Schema
	next   int
}

func newQuickly(t *testing.T) *quickly {
	t.Helper()
	server := apptest.MariaDB(t)
	q := &quickly{url: freshDatabase(t, server), proxy: storetest.NewProxy(t, server.Addr(), isCommit)}
	mustExecute(t, q.url, "CREATE TABLE events (id bigint NOT NULL UNIQUE, note varchar(9))")
	schema, err := stream.NewSchema(stream.Definition{Name: "/events", Table: "events", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "note", Type: stream.Text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	q.schema, q.sink = schema, open(t, strings.Replace(q.url, server.Addr(), q.proxy.Addr(), 1), database.Pool{Max: 1}).Stream(schema)
	q.await(t)
	return q
}

// batch returns a batch of new records.
func (q *quickly) batch(t *testing.T, n int) *stream.Batch {
	var bodies []string
	for range n {
		q.next++
		bodies = append(bodies, fmt.Sprintf(`{"id":%d}`, q.next))
	}
	b := notesOf(t, q.schema, 1, bodies...)
	b.ID[1], b.ID[2] = byte(q.next>>8), byte(q.next)
	return b
}

// commit commits a batch and returns the round trips.
func (q *quickly) commit(t *testing.T, b *stream.Batch) (trips int, err error) {
	before := q.proxy.Trips()
	err = q.sink.Commit(t.Context(), b)
	return q.proxy.Trips() - before, err
}

// await commits batches until one is quick: then the table is old enough.
func (q *quickly) await(t *testing.T) {
	t.Helper()
	apptest.AwaitState(t, "a batch takes one round trip", func() (string, bool) {
		trips, err := q.commit(t, q.batch(t, 1))
		return fmt.Sprintf("%d, %v", trips, err), trips == 1
	})
}

// missing returns which of the records that were sent are not in the table.
func (q *quickly) missing(t *testing.T) string {
	t.Helper()
	return value(t, q.url, fmt.Sprintf("SELECT COALESCE(GROUP_CONCAT(seq), '') FROM seq_1_to_%d WHERE seq NOT IN (SELECT id FROM events)", q.next))
}

// A quick batch is stored or not as others are: with a record that the database refuses, an id that it has, an answer that is lost,
// and a lock.
func TestStreamQuick(t *testing.T) {
	t.Parallel()
	q := newQuickly(t)
	for i, n := range []int{3, 3, quickMost, quickMost, quickMost + 1} {
		if trips, err := q.commit(t, q.batch(t, n)); err != nil || (trips == 1) != (i == 1 || i == 3) {
			t.Errorf("%d rows: %d round trips, %v", n, trips, err)
		}
	}
	twice := notesOf(t, q.schema, 2, `{"id":1}`, fmt.Sprintf(`{"id":%d}`, q.next+1))
	q.next++
	for range 2 {
		twice.Reset()
		if _, err := q.commit(t, twice); err != nil || len(twice.Requests[0].Result.Refused) != 1 || len(twice.Requests[1].Result.Refused) != 0 {
			t.Errorf("a record is there already: %+v, %v", twice.Requests[0].Result, err)
		}
	}
	for _, where := range []storetest.Cut{storetest.CutBefore, storetest.CutAfter} {
		q.await(t)
		q.proxy.Arm(where)
		b := q.batch(t, 1)
		if _, err := q.commit(t, b); !errors.Is(err, stream.ErrUnconfirmed) {
			t.Errorf("cut %d: %v", where, err)
		}
		b.Reset()
		if _, err := q.commit(t, b); err != nil || len(b.Requests[0].Result.Refused) > 0 {
			t.Errorf("cut %d, again: %+v, %v", where, b.Requests[0].Result, err)
		}
	}
	q.await(t)
	release := holdLock(t, q.url, fmt.Sprintf("INSERT INTO events (id) VALUES (%d)", q.next+1))
	b := q.batch(t, 1)
	b.LockWait = time.Second
	if _, err := q.commit(t, b); !errors.Is(err, stream.ErrBlocked) {
		t.Errorf("a lock: %v", err)
	}
	release()
	b.Reset()
	if _, err := q.commit(t, b); err != nil || q.missing(t) != "" {
		t.Errorf("the lock is free: %v; missing are %s", err, q.missing(t))
	}
}

// Behind a change of its table, a quick batch is not stored before the table is checked.
func TestStreamQuickChanges(t *testing.T) {
	t.Parallel()
	for alter, want := range map[string]error{"ALTER TABLE events ENGINE=MyISAM": tables.ErrUnusable, "ALTER TABLE events ADD COLUMN more int": nil} {
		q := newQuickly(t)
		mustExecute(t, q.url, alter)
		b := q.batch(t, 1)
		if _, err := q.commit(t, b); !errors.Is(err, stream.ErrTransient) || !strings.Contains(err.Error(), "has changed") {
			t.Errorf("%s: %v", alter, err)
		}
		if last := fmt.Sprint(q.next); q.missing(t) != last {
			t.Errorf("%s: missing are %s, want %s", alter, q.missing(t), last)
		}
		b.Reset()
		if _, err := q.commit(t, b); !errors.Is(err, want) {
			t.Errorf("%s, checked again: %v, want %v", alter, err, want)
		}
	}
}

// CommitTimeout ends a quick batch that waits for a lock: the batch is repeated, and stored once.
func TestStreamQuickLocked(t *testing.T) {
	t.Parallel()
	q := newQuickly(t)
	s := stream.Open(stream.Config{
		Committers: 1, BatchRows: 500, BatchBytes: 1 << 20, QueueRows: 1000, QueueBytes: 1 << 20, WaitMax: time.Hour,
		CommitTimeout: time.Second, RetryFor: time.Hour, KeyTTL: time.Hour, Log: slog.New(slog.DiscardHandler),
	}, q.schema, q.sink)
	lock := connect(t, q.url)
	if err := lock.Exec(t.Context(), "LOCK TABLES events WRITE"); err != nil {
		t.Fatal(err)
	}
	_, waiting, err := s.Begin(t.Context(), stream.Request{Records: q.batch(t, 1).Requests[0].Records}, nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	apptest.AwaitState(t, "two sessions have waited for the lock", func() (string, bool) {
		seen[value(t, q.url, "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'")] = true
		delete(seen, "0")
		return fmt.Sprint(seen), len(seen) > 1
	})
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Receipt(t.Context()); err != nil || q.missing(t) != "" {
		t.Errorf("behind the lock: %v; missing are %s", err, q.missing(t))
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
