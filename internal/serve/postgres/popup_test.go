package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/storetest"
)

func TestPopupConformance(t *testing.T) {
	t.Parallel()
	storetest.Popup(t, popupBackend(apptest.Postgres(t, hostileSettings...), nil))
}

// Through PgBouncer in transaction mode, the lock included.
func TestPopupConformancePgBouncer(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	b := popupBackend(pg, func(url string) string { return strings.Replace(url, pg.Addr(), bouncer.Addr(), 1) })
	open := b.Open
	b.Open = func(t testing.TB) storetest.PopupDB {
		db := open(t)
		db.Kill, db.Start = nil, nil // the pooler's errors after a restart are tested with streams
		return db
	}
	b.Pooled = true
	storetest.Popup(t, b)
}

func BenchmarkPopupApply(b *testing.B) {
	storetest.PopupApply(b, popupBackend(apptest.Postgres(b, "fsync=on", "synchronous_commit=on"), nil))
}

func popupBackend(pg *apptest.PostgresServer, via func(string) string) storetest.PopupBackend {
	return storetest.PopupBackend{
		Open: func(t testing.TB) storetest.PopupDB {
			url := pg.CreateDatabase(t)
			reached := url
			if via != nil {
				reached = via(url)
			}
			return storetest.PopupDB{
				Tables: func(t testing.TB) storetest.PopupTables { return open(t, reached, database.Pool{}).Popups() },
				Rows:   func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Kill:   pg.Kill, Start: pg.Start,
			}
		},
		Millis: func(column string) string { return fmt.Sprintf("(extract(epoch FROM %s) * 1000)::bigint", column) },
		Newer:  []string{"CREATE TABLE popup_history (id int)", "COMMENT ON TABLE popup_history IS 'spillway format 2'"},
	}
}

// States are read in the order of their index near the end of the table too, where PostgreSQL
// expects so few rows after a user, if each column is compared on its own, that it sorts them.
func TestPopupRestorePlan(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	if err := open(t, url, database.Pool{}).Popups().EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustExecute(t, url, "INSERT INTO popup_state (user_id, placement, sequence, kind, campaign_id, at, event_id, state) "+
		"SELECT g, 'home', 1, 1, 1, now(), gen_random_uuid(), '\\x00' FROM generate_series(1, 100000) AS g ORDER BY hashint4(g)")
	mustExecute(t, url, "ANALYZE popup_state")
	condition, args := dialect.After([2]string{"user_id", "placement"}, [2]any{"'8'", "'home'"})
	for _, arg := range args {
		condition = strings.Replace(condition, "?", arg.(string), 1)
	}
	plan, err := streamRows(t.Context(), url, "EXPLAIN SELECT user_id, placement, state FROM popup_state WHERE "+condition+
		" ORDER BY user_id, placement LIMIT 5000")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(plan); !strings.Contains(text, "Index Scan") || strings.Contains(text, "Sort") {
		t.Errorf("plan: %s", text)
	}
}

// A missing privilege on a table is named with the statement that grants it.
func TestPopupRights(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	if err := open(t, url, database.Pool{}).Popups().EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	role := "popup_limited_" + apptest.DatabaseName(url)
	mustExecute(t, url, "CREATE ROLE "+role+" LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+role)
	limited := open(t, strings.Replace(url, "postgres@", role+"@", 1), database.Pool{}).Popups()
	if err := limited.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustExecute(t, url, "REVOKE DELETE ON popup_events FROM "+role)
	if err := limited.EnsureTables(t.Context()); err == nil || !strings.Contains(err.Error(), "GRANT DELETE ON popup_events TO "+role) {
		t.Errorf("without DELETE: %v", err)
	}
}

// A campaign that is refused costs no connection.
func TestPopupOutdatedKeepsConnection(t *testing.T) {
	t.Parallel()
	db := open(t, shared.Get(t).CreateDatabase(t), database.Pool{Max: 1})
	p := db.Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	campaign := popup.StoredCampaign{Campaign: popup.Campaign{Name: "c", Placement: "home", Payload: []byte("{}"), Status: popup.Active, Rollout: 100}}
	before := db.Stats().Connects
	for range 3 {
		if _, err := p.SaveCampaign(t.Context(), campaign, 7, audit.Author{}); !errors.Is(err, popup.ErrOutdated) {
			t.Errorf("saved: %v", err)
		}
	}
	if version, err := p.Version(t.Context()); err != nil || version != 0 {
		t.Errorf("version %d, %v", version, err)
	}
	if got := db.Stats().Connects; got != before {
		t.Errorf("%d connections were opened", got-before)
	}
}

// The server keeps the lock of a session that it has not ended. No other process holds it.
// It ends a session whose client is gone.
func TestPopupLockOldSession(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	p := open(t, pg.CreateDatabase(t), database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, two := [16]byte{1}, [16]byte{2}
	held, err := p.takeLock(t.Context(), one, "a", false)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	for name, want := range map[string]string{
		"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "2", "tcp_user_timeout": "15000",
		"idle_in_transaction_session_timeout": "0",
	} {
		var value string
		if err := held.(*heldLock).conn.QueryRow(t.Context(), "SHOW "+name).Scan(&value); err != nil || value != want {
			t.Errorf("%s: %q, %v", name, value, err)
		}
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
