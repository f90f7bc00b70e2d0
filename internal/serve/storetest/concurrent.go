package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// slowRecursion is the default of Backend.Slow.
const slowRecursion = "SELECT id FROM items WHERE id < (WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < " +
	"1000000000) SELECT max(n) FROM s)"

// testChanges changes rows between two reads. A source must not cache.
func testChanges(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	fillItems(t, db, 5, 2)
	source := db.source(t, definition(selectItems, "id"))
	steps := []struct {
		sql  string
		want []int
	}{
		{"INSERT INTO items VALUES (9, 1, 'later', 1)", []int{9, 5, 4, 3, 2, 1}},
		{"INSERT INTO items VALUES (7, 1, 'out of order', 1)", []int{9, 7, 5, 4, 3, 2, 1}},
		{"DELETE FROM items WHERE id IN (9, 4)", []int{7, 5, 3, 2, 1}},
		{"UPDATE items SET name = 'changed' WHERE id = 7", []int{7, 5, 3, 2, 1}},
	}
	for _, step := range steps {
		db.exec(t, step.sql)
		if got := ids(t, source, feed.Range{Limit: 10}); !slices.Equal(got, step.want) {
			t.Errorf("%s: ids %v, want %v", step.sql, got, step.want)
		}
	}
	if got := decodeItems(t, read(t, source, feed.Range{Limit: 1})); got[0].Name != "changed" {
		t.Errorf("after the update: %+v", got[0])
	}
}

// testTimeout runs a slow statement under the pool's statement timeout and
// under a context's deadline.
func testTimeout(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{StatementTimeout: 300 * time.Millisecond})
	fillItems(t, db, 3, 2)
	slow := db.source(t, definition(cmp.Or(b.Slow, slowRecursion), "id"))
	fast := db.source(t, definition(selectItems, "id"))
	err := ended(t, "a statement with a timeout of 300 ms", func() error {
		return slow.Read(t.Context(), feed.Range{Limit: 10}, new(feed.Rows))
	})
	if err == nil || errors.Is(err, feed.ErrCursor) {
		t.Errorf("statement timeout: %v", err)
	}
	// On a slow machine even a fast statement may meet the timeout.
	apptest.AwaitState(t, "a fast statement is answered after a slow one", func() (string, bool) {
		rows, err := tryRead(t, fast, feed.Range{Limit: 10})
		return fmt.Sprintf("%d rows, %v", rows.Len(), err), err == nil && rows.Len() == 3
	})
	testDeadline(t, b)
}

// testDeadline runs a slow statement under a context's deadline only.
func testDeadline(t *testing.T, b Backend) {
	t.Helper()
	db := b.open(t, database.Pool{})
	fillItems(t, db, 3, 2)
	slow := db.source(t, definition(cmp.Or(b.Slow, slowRecursion), "id"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := ended(t, "a statement with a deadline of 50 ms", func() error {
		return slow.Read(ctx, feed.Range{Limit: 10}, new(feed.Rows))
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	if got := ids(t, db.source(t, definition(selectItems, "id")), feed.Range{Limit: 10}); len(got) != 3 {
		t.Errorf("after a deadline: ids %v", got)
	}
}

// ended returns the error of a call that must end by itself. The slow statement would take
// longer than a test waits.
func ended(t *testing.T, what string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	return apptest.Receive(t, "the end of "+what, done)
}

// testCancel cancels running calls, and calls that have not begun, more often than the
// pool has connections. No connection may be lost.
func testCancel(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{Max: 2})
	fillItems(t, db, 3, 2)
	slow := db.source(t, definition(cmp.Or(b.Slow, slowRecursion), "id"))
	fast := db.source(t, definition(selectItems, "id"))
	for i := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		if i%2 == 0 {
			cancel()
		}
		stop := time.AfterFunc(50*time.Millisecond, cancel)
		err := ended(t, "a call that was cancelled after 50 ms", func() error {
			_, err := slow.Keys(ctx, feed.Range{Limit: 10}, 1)
			return err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		stop.Stop()
		cancel()
		if got := ids(t, fast, feed.Range{Limit: 10}); len(got) != 3 {
			t.Errorf("afterwards: ids %v", got)
		}
	}
}

// testConcurrent reads from many goroutines while rows come in.
func testConcurrent(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{Max: 4})
	const n = 300
	fillItems(t, db, n, 10)
	source := db.source(t, definition(selectItems, "id"))
	oldest := read(t, source, feed.Range{Limit: n}).Keys[n-1]

	var readers sync.WaitGroup
	for reader := range 8 {
		readers.Go(func() {
			for i := range 25 {
				readWhileWritten(t, source, feed.Range{Until: oldest, Skip: i, Limit: 10 + 13*reader})
			}
		})
	}
	for i := range 50 {
		db.exec(t, fmt.Sprintf("INSERT INTO items VALUES (%d, 1, 'new', 1)", n+1+i))
	}
	readers.Wait()
	if got := ids(t, source, feed.Range{Limit: 1000}); len(got) != n+50 {
		t.Errorf("%d rows, want %d", len(got), n+50)
	}
}

func readWhileWritten(t *testing.T, source feed.Source, r feed.Range) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var rows feed.Rows
	if err := source.Read(ctx, r, &rows); err != nil {
		t.Errorf("read: %v", err)
		return
	}
	if rows.Len() != r.Limit {
		t.Errorf("%d rows, want %d", rows.Len(), r.Limit)
	}
	last, err := source.Keys(ctx, feed.Range{After: rows.Keys[rows.Len()-1], Until: rows.Keys[rows.Len()-1], Limit: 5}, 1)
	if err != nil || last.Count != 0 {
		t.Errorf("between a key and itself: %+v, %v", last, err)
	}
}

// testRestart restarts the server. The next read must succeed.
func testRestart(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{Max: 4})
	if db.Restart == nil {
		return
	}
	fillItems(t, db, 20, 4)
	source := db.source(t, definition(selectItems, "id"))
	var readers sync.WaitGroup
	for range 4 { // opens several connections
		readers.Go(func() {
			for range 10 {
				if err := source.Read(t.Context(), feed.Range{Limit: 20}, new(feed.Rows)); err != nil {
					t.Errorf("before: %v", err)
				}
			}
		})
	}
	readers.Wait()
	for range 2 {
		if err := db.Restart(); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if got := ids(t, source, feed.Range{Limit: 20}); len(got) != 20 {
				t.Errorf("after a restart: ids %v", got)
			}
		}
	}
}
