package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

func TestPopupConformance(t *testing.T) {
	t.Parallel()
	settings := append(hostileSettings(), "--innodb-flush-log-at-trx-commit=1", "--max-allowed-packet=1M")
	storetest.Popup(t, popupBackend(apptest.MySQL(t, settings...)))
}

func BenchmarkPopupApply(b *testing.B) {
	storetest.PopupApply(b, popupBackend(apptest.MySQL(b, "--innodb-flush-log-at-trx-commit=1")))
}

func popupBackend(server *apptest.Server) storetest.PopupBackend {
	return storetest.PopupBackend{
		Open: func(t testing.TB) storetest.PopupDB {
			url := freshDatabase(t, server)
			return storetest.PopupDB{
				Tables: func(t testing.TB) storetest.PopupTables { return open(t, url, database.Pool{}).Popups() },
				Rows:   func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Kill:   server.Kill, Start: server.Start,
			}
		},
		Millis: func(column string) string { return fmt.Sprintf("CAST(UNIX_TIMESTAMP(%s) * 1000 AS SIGNED)", column) },
		Newer:  []string{"CREATE TABLE popup_history (id int) COMMENT='spillway format 2'"},
	}
}

// A campaign whose commit's answer is lost is not created a second time.
func TestPopupCommitUnanswered(t *testing.T) {
	t.Parallel()
	server := plainServer(t)
	url := freshDatabase(t, server)
	proxy := storetest.NewProxy(t, server.Addr(), isCommit)
	p := open(t, strings.Replace(url, server.Addr(), proxy.Addr(), 1), database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Arm(storetest.CutAfter)
	c := popup.StoredCampaign{Campaign: popup.Campaign{Name: "once", Placement: "home", Payload: []byte("1"), Status: popup.Active, Rollout: 100}}
	if _, err := p.SaveCampaign(t.Context(), c, 0, audit.Author{}); err == nil || !strings.Contains(err.Error(), "may have succeeded") {
		t.Errorf("the answer was cut off: %v", err)
	}
	if _, all, err := p.Campaigns(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%d campaigns, %v", len(all), err)
	}
}

// A save does not wait longer for a COMMIT than for a statement, nor after its client has
// left. The COMMIT goes on, until the database is closed.
func TestPopupCommitWaits(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t)
	c := popup.StoredCampaign{Campaign: popup.Campaign{Name: "once", Placement: "home", Payload: []byte("1"), Status: popup.Active, Rollout: 100}}
	for _, test := range []struct {
		name    string
		timeout time.Duration
	}{{"limit", time.Second}, {"client", time.Hour}, {"close", time.Hour}} {
		url := freshDatabase(t, server)
		unhurried := open(t, url, database.Pool{}).Popups()
		if err := unhurried.EnsureTables(t.Context()); err != nil {
			t.Fatal(err)
		}
		db := open(t, url, database.Pool{AcquireTimeout: test.timeout, StatementTimeout: test.timeout})
		release := blockCommits(t, url)
		defer release()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		done := make(chan error, 1)
		go func() {
			done <- inTime(func() error {
				_, err := db.Popups().SaveCampaign(ctx, c, 0, audit.Author{})
				if err != nil && strings.Contains(err.Error(), "may be stored") {
					err = errors.Join(stream.ErrUnconfirmed, err)
				}
				return err
			})
		}()
		apptest.Await(t, "COMMIT waits", func() bool { return committing(t, url, 0) == "1" })
		if test.name != "limit" {
			leave()
		}
		if err := apptest.Receive(t, test.name+": the end of the save", done); !errors.Is(err, stream.ErrUnconfirmed) {
			t.Errorf("%s: %v", test.name, err)
		}
		apptest.Await(t, "only the COMMIT has a connection", func() bool { return db.Stats().InUse == 1 })
		if test.name == "close" {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
		release()
		apptest.Await(t, "the campaign is stored", func() bool {
			waiting := committing(t, url, -time.Millisecond)
			_, all, err := unhurried.Campaigns(t.Context())
			// A server gives up a COMMIT whose client has been away for a second.
			gaveUp := test.name == "close" && waiting == "0"
			return err == nil && (len(all) == 1 || gaveUp)
		})
		apptest.Await(t, "the connection is free", func() bool { return db.Stats().InUse == 0 })
	}
}

// The server keeps the lock of a session that it has not ended. No other process holds it.
// It ends a session that does not look at its lock.
func TestPopupLockOldSession(t *testing.T) {
	t.Parallel()
	p := open(t, freshDatabase(t, plainServer(t)), database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, two := [16]byte{1}, [16]byte{2}
	held, err := p.takeLock(t.Context(), one, "a", false)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	se := held.(*heldLock).se
	if rows, err := se.texts(t.Context(), "SELECT @@wait_timeout"); err != nil || rows[0][0] != "15" {
		t.Errorf("wait_timeout: %v, %v, want 15", rows, err)
	}
	if err := se.Exec(t.Context(), "SET SESSION wait_timeout = 3600"); err != nil { // this test may be slow
		t.Fatal(err)
	}
	if _, err := p.takeLock(t.Context(), one, "a", true); err == nil || !strings.Contains(err.Error(), "earlier session") {
		t.Errorf("again: %v", err)
	}
	var locked *popup.LockedError
	for _, again := range []bool{false, true} {
		if _, err := p.takeLock(t.Context(), two, "b", again); !errors.As(err, &locked) || locked.Holder != "a" {
			t.Errorf("another process, again %v: %v", again, err)
		}
	}
}
