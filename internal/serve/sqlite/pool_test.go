package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// endless is a feed whose statement never ends.
func endless() feed.Definition {
	return feed.Definition{
		Name: "/endless",
		SQL:  "SELECT max(n) AS n FROM (WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT n FROM s)",
		Key:  []feed.KeyColumn{{Name: "n"}},
	}
}

func TestOpenCreatesFileInWALMode(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "new.db")
	db := openFile(t, file, database.Pool{})
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := db.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	mode := ""
	err := sqlitex.ExecuteTransient(openWriter(t, file), "PRAGMA journal_mode", &sqlitex.ExecOptions{
		ResultFunc: func(stmt *driver.Stmt) error {
			mode = stmt.ColumnText(0)
			return nil
		},
	})
	if err != nil || mode != "wal" {
		t.Errorf("journal mode %q, %v", mode, err)
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := database.Parse("postgres://user:hidden@localhost/app")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		url  database.URL
		want string
	}{
		{parse(t, filepath.Join(dir, "missing", "x.db")), "missing: no such file or directory"},
		{parse(t, text), "not a database"},
		{parse(t, dir), dir},
		{server, "sqlite:PATH"},
	}
	for _, test := range tests {
		db, err := opened(t, test.url, database.Pool{})
		if err == nil {
			t.Errorf("%s: opened", test.url)
			_ = db.Close()
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: error %q does not say %q", test.url, err, test.want)
		}
	}
}

// TestOpenWaitsForLock opens a file that another process has locked: it gives
// up after the connect timeout.
func TestOpenWaitsForLock(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "locked.db")
	writer := openWriter(t, file)
	script(t, writer, "CREATE TABLE t (id INTEGER)")
	for _, sql := range []string{"PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"} {
		if err := sqlitex.ExecuteTransient(writer, sql, nil); err != nil {
			t.Fatal(err)
		}
	}
	pool := database.Pool{ConnectTimeout: 100 * time.Millisecond}
	_, err := opened(t, parse(t, file), pool)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("locked: %v", err)
	}
	if err := sqlitex.ExecuteTransient(writer, "COMMIT", nil); err != nil {
		t.Fatal(err)
	}
	openFile(t, file, database.Pool{})
}

// TestPool takes every connection, lets one more statement wait in vain, and
// checks the figures at each point.
func TestPool(t *testing.T) {
	t.Parallel()
	pool := database.Pool{Min: 1, Max: 2, AcquireTimeout: 20 * time.Millisecond, StatementTimeout: time.Hour}
	db, _ := open(t, pool)
	if s := db.Stats(); s.Idle != 1 || s.InUse != 0 || s.Max != 2 || s.Connects != 1 {
		t.Errorf("at start: %+v", s)
	}
	source, err := db.Source(endless())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			if err := source.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
	apptest.AwaitState(t, "both connections are in use", func() (string, bool) {
		s := db.Stats()
		return fmt.Sprintf("%+v", s), s.InUse == 2 && s.Idle == 0 && s.Connects == 2
	})
	if err := db.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "acquire timeout of 20ms") {
		t.Errorf("no connection free: %v", err)
	}
	if s := db.Stats(); s.InUse != 2 || s.Idle != 0 || s.Waiting != 0 || s.Waits != 1 || s.WaitTime < 20*time.Millisecond || s.Connects != 2 {
		t.Errorf("all in use: %+v", s)
	}
	cancel()
	running.Wait()
	if s := db.Stats(); s.InUse != 0 || s.Idle != 2 {
		t.Errorf("afterwards: %+v", s)
	}
}

// A statement that waits for a connection gives up with its context.
func TestPoolDeadline(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{Max: 1, AcquireTimeout: time.Hour, StatementTimeout: time.Hour})
	source, err := db.Source(endless())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := source.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
	apptest.Await(t, "the connection is in use", func() bool { return db.Stats().InUse == 1 })
	over, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	if err := db.Probe(over); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, database.ErrBusy) {
		t.Errorf("deadline while waiting: %v", err)
	}
	if s := db.Stats(); s.Waiting != 0 || s.Waits != 1 {
		t.Errorf("%d wait and %d have waited, want 0 and 1", s.Waiting, s.Waits)
	}
	cancel()
	running.Wait()
}

func TestStatementTimeoutSaysSo(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{StatementTimeout: 30 * time.Millisecond})
	source, err := db.Source(endless())
	if err != nil {
		t.Fatal(err)
	}
	err = source.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows))
	if err == nil || !strings.Contains(err.Error(), "/endless") || !strings.Contains(err.Error(), "statement timeout of 30ms") {
		t.Errorf("error %q", err)
	}
}

// TestClose closes a pool while statements run: they end first, and later ones
// are refused.
func TestClose(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "test.db")
	db, err := opened(t, parse(t, file), database.Pool{StatementTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	source, err := db.Source(endless())
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for { // a busy machine may not see the first statement before its timeout
			err := source.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows))
			if err == nil {
				t.Error("the endless statement ended")
			}
			if err == nil || strings.Contains(err.Error(), "closed") {
				return
			}
		}
	})
	apptest.Await(t, "the statement runs", func() bool { return db.Stats().InUse == 1 })
	if err := db.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	running.Wait()
	if err := db.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after close: %v", err)
	}
}

// TestAfterInterruption: on a connection whose last statement was interrupted, or left between two rows, the next one runs as usual, and
// no read leaves a transaction behind.
func TestAfterInterruption(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{Max: 1, StatementTimeout: 20 * time.Millisecond})
	script(t, writer, "CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
	long, all := source(t, db, endless()), source(t, db, feed.Definition{Name: "/t", SQL: "SELECT id FROM t"})
	gone, leave := context.WithCancel(t.Context())
	leave()
	for i, test := range []struct {
		ctx  context.Context
		from feed.Source
		most int
		want string
	}{
		{t.Context(), long, 1, "statement timeout"},
		{gone, all, 3, "canceled"},
		{t.Context(), all, 1, "too large"},
		{t.Context(), all, 3, ""},
	} {
		rows := feed.Rows{Limit: feed.Limit{Rows: test.most, Bytes: 1000}}
		err := test.from.Read(test.ctx, feed.Range{Limit: 1}, &rows)
		for err != nil && test.from == all && strings.Contains(err.Error(), "statement timeout") { // a busy machine is late with a short one
			rows = feed.Rows{Limit: rows.Limit}
			err = all.Read(test.ctx, feed.Range{Limit: 1}, &rows)
		}
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d: %v, want %q", i, err, test.want)
		}
		script(t, writer, fmt.Sprintf("INSERT INTO t VALUES (%d)", 10+i))
		busy := -1
		err = sqlitex.ExecuteTransient(writer, "PRAGMA wal_checkpoint(TRUNCATE)", &sqlitex.ExecOptions{
			ResultFunc: func(stmt *driver.Stmt) error { busy = stmt.ColumnInt(0); return nil },
		})
		if err != nil || busy != 0 {
			t.Errorf("%d: a checkpoint that waits for no reader: busy %d, %v", i, busy, err)
		}
		script(t, writer, fmt.Sprintf("DELETE FROM t WHERE id = %d", 10+i))
	}
}

// TestReadOnly makes sure that a feed's statement cannot write.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
	for _, sql := range []string{
		"WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
		"SELECT 1 AS id) AS feed; DROP TABLE t; --",
		"DELETE FROM t RETURNING id",
	} {
		source, err := db.Source(feed.Definition{Name: "/t", SQL: sql, Key: []feed.KeyColumn{{Name: "id"}}})
		if err == nil {
			err = source.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows))
		}
		if err == nil {
			t.Errorf("%s: no error", sql)
		}
	}
	script(t, writer, "INSERT INTO t VALUES (1)")
}
