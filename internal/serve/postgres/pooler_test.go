package postgres

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// Behind a pooler that hands each statement to any server connection, two
// processes with different feeds read the right rows from the start, and each
// says once that it goes on without prepared statements.
func TestPooler(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 50)")
	mustExecute(t, url, "CREATE TABLE b (id text PRIMARY KEY); INSERT INTO b SELECT 'b' || generate_series(10, 59)")
	parsed, err := database.Parse(strings.Replace(url, pg.Addr(), bouncer.Addr(), 1))
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for _, feedOf := range []struct{ sql, first string }{{"SELECT id FROM a", `{"id":50}`}, {"SELECT id FROM b", `{"id":"b59"}`}} {
		var log bytes.Buffer
		db, err := Open(t.Context(), parsed, patient(database.Pool{Max: 6}), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		source := mustFeed(t, db, feedOf.sql, "id")
		var readers sync.WaitGroup
		for range 6 {
			readers.Go(func() { readThroughPooler(t, source, feedOf.first) })
		}
		clients.Go(func() {
			readers.Wait()
			if err := db.Probe(t.Context()); err != nil {
				t.Error(err)
			}
			if n := strings.Count(log.String(), "loses prepared statements"); n != 1 {
				t.Errorf("want one line that says so, got %d: %s", n, &log)
			}
			db.Close()
		})
	}
	clients.Wait()
}

func readThroughPooler(t *testing.T, source *source, first string) {
	for i := range 40 {
		var rows feed.Rows
		if err := source.Read(t.Context(), feed.Range{Limit: 1 + i}, &rows); err != nil {
			t.Error(err)
			return
		}
		if got := string(rows.Slice(0, 1)); got != first || rows.Len() != 1+i {
			t.Errorf("%d rows, the first is %s, want %s", rows.Len(), got, first)
		}
	}
}

// The pooler refuses statement_timeout; a statement ends all the same, also on
// the server.
func TestPoolerTimeout(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	url := pg.CreateDatabase(t)
	db := open(t, strings.Replace(url, pg.Addr(), bouncer.Addr(), 1), database.Pool{StatementTimeout: 100 * time.Millisecond})
	slow := mustFeed(t, db, "SELECT 1 AS id FROM pg_sleep(3600)", "id")
	for range 3 {
		err := slow.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("read: %v", err)
		}
	}
	apptest.AwaitState(t, "no statement runs on the server", func() (string, bool) {
		n := sleeping(t, url)
		return n + " run", n == "0"
	})
	if err := bouncer.Stop(); err != nil { // says so when the pooler has crashed
		t.Error(err)
	}
}

// oneServerConnection returns a pooler that runs all statements on a database on one connection.
// So it is certain which of them are prepared there.
func oneServerConnection(t *testing.T, pg *apptest.PostgresServer) *apptest.Server {
	t.Helper()
	return apptest.PgBouncer(t, pg, "transaction", "default_pool_size = 1")
}

// A batch that an earlier attempt has stored is confirmed by a COMMIT. That one finds its
// statements prepared by another process, or lost. It fails once, and succeeds when it is
// repeated.
func TestPoolerConfirms(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := oneServerConnection(t, pg)
	batches := map[string]func(*stream.Batch){
		"id":         func(*stream.Batch) {},
		"row by row": func(b *stream.Batch) { b.RowByRow = true },
		"groups": func(b *stream.Batch) {
			b.Mark = &queue.Mark{Spool: [16]byte{1}, Epoch: [16]byte{1}, Name: "/t", First: 1, Sums: [][16]byte{{1}}}
		},
	}
	for name, change := range batches {
		for _, kept := range []bool{true, false} {
			state := map[bool]string{true: "kept", false: "lost"}[kept]
			t.Run(name+", statements "+state, func(t *testing.T) {
				url := pg.CreateDatabase(t)
				pooled := strings.Replace(url, pg.Addr(), bouncer.Addr(), 1)
				sink, schema := newIDs(t, pooled)
				commit := func() (*stream.Batch, error) {
					b := &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{idEntry(t, schema, "", 1)}}
					change(b)
					return b, sink.Commit(t.Context(), b)
				}
				if _, err := commit(); err != nil {
					t.Fatal(err)
				}
				if kept {
					sink = open(t, pooled, database.Pool{Max: 3}).Stream(schema)
				} else {
					mustExecute(t, pooled, "DEALLOCATE ALL")
				}
				if _, err := commit(); !errors.Is(err, stream.ErrUnconfirmed) && !errors.Is(err, stream.ErrTransient) {
					t.Errorf("the first attempt: %v", err)
				}
				if b, err := commit(); err != nil || b.Mark != nil && !b.Mark.Known[0].Same {
					t.Errorf("the second attempt: %v, mark %+v", err, b.Mark)
				}
				if got := storedIDs(t, url); got != "1" {
					t.Errorf("stored %s", got)
				}
			})
		}
	}
}

// Statements that were lost once are prepared again after a while.
func TestPoolerPreparesAgain(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	pooled := strings.Replace(pg.CreateDatabase(t), pg.Addr(), oneServerConnection(t, pg).Addr(), 1)
	db := open(t, pooled, database.Pool{Max: 1})
	read := func() {
		t.Helper()
		if err := db.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	read()
	mustExecute(t, pooled, "DEALLOCATE ALL")
	read()
	if !db.unprepared.active() {
		t.Fatal("no statement was lost")
	}
	db.unprepared.until.Store(1)
	read()
	if db.unprepared.active() {
		t.Error("the statement was not prepared again")
	}
}
