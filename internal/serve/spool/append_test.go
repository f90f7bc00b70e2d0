package spool

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
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

// TestBytesInFlight: what is being written counts for the bytes of the spool.
func TestBytesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.Bytes = 1 << 20
		s := openAt(t, filepath.Join(t.TempDir(), "s.db"), cfg)
		slowDown(t, s, time.Minute)
		entry := queue.Entry{Payload: make([]byte, 600<<10), Rows: 1}
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := s.Append(t.Context(), "/a", entry); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait() // the first is being written
		var over *queue.Overload
		if _, err := s.Append(t.Context(), "/a", entry); !errors.As(err, &over) || over.Limit != queue.LimitSpool {
			t.Errorf("while as much is written: %v", err)
		}
		first.Wait()
		s.mu.Lock()
		if s.writing != 0 {
			t.Errorf("%d bytes are being written in the end", s.writing)
		}
		s.mu.Unlock()
		closeSpool(t, s)
	})
}

// TestLookUpFails: an idempotency key that cannot be looked up is an error that is counted and logged.
func TestLookUpFails(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg := testConfig()
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), cfg)
	if err := sqlitex.ExecuteTransient(s.file.writer, "ALTER TABLE keys RENAME TO gone", nil); err != nil {
		t.Fatal(err)
	}
	_, err := s.Append(t.Context(), "/a", queue.Entry{Payload: []byte("x"), Rows: 1, Key: "key"})
	if failed := s.Stats().Failed; err == nil || failed != 1 {
		t.Errorf("%v, %d failed", err, failed)
	}
	closeSpool(t, s)
	if !strings.Contains(log.String(), "look up an idempotency key") {
		t.Errorf("the log has\n%s", &log)
	}
}
