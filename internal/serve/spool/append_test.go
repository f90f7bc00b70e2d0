package spool

import (
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

// slowDown delays each transaction of a group with a trigger, and returns the entries of each.
// It must be called before the first append.
func slowDown(t *testing.T, s *Spool, took time.Duration) *[]int {
	t.Helper()
	var entries []int
	err := s.file.writer.CreateFunction("slow", &sqlite.FunctionImpl{
		NArgs: 1, AllowIndirect: true, Scalar: func(_ sqlite.Context, args []sqlite.Value) (sqlite.Value, error) {
			entries = append(entries, args[0].Int())
			<-time.After(took)
			return sqlite.Value{}, nil
		},
	})
	if err == nil {
		err = sqlitex.ExecuteScript(s.file.writer, "CREATE TEMP TRIGGER slow BEFORE INSERT ON main.groups BEGIN SELECT slow(new.rows); END;", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &entries
}

// A single client waits for one transaction. Concurrent clients share one, which starts when
// all have sent their requests, or after gatherEvery.
func TestGather(t *testing.T) {
	const disk, rounds = 200 * time.Microsecond, 20
	run := func(writers int, pause time.Duration) (groups []int, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
			entries := slowDown(t, s, disk)
			start := time.Now()
			var group sync.WaitGroup
			for i := range writers {
				group.Go(func() {
					if wait := time.Duration(i) * pause; wait > 0 {
						<-time.After(wait)
					}
					for range rounds {
						if _, err := s.Append(t.Context(), "/a", queue.Entry{Payload: []byte("x"), Rows: 1}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
			took = time.Since(start)
			closeSpool(t, s)
			groups = *entries
		})
		return groups, took
	}
	if groups, took := run(1, 0); len(groups) != rounds || took != rounds*disk {
		t.Errorf("alone: %d transactions in %s", len(groups), took)
	}
	if groups, took := run(10, 0); len(groups) > rounds+2 || took > 2*rounds*disk {
		t.Errorf("ten at once: %v in %s", groups, took)
	}
	// Clients that come one after the other share transactions in the end: 22, and 40
	// without a wait.
	if groups, took := run(10, 30*time.Microsecond); len(groups) > rounds+4 || took > 2*rounds*disk {
		t.Errorf("ten, one after the other: %v in %s", groups, took)
	}
}
