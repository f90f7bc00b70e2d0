package postgres

import (
	"errors"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/popup"
)

// After a failover another server has the events. The session's lock on the earlier one, which stays
// connected, is worth nothing then: it is taken again, and without it nothing is stored.
func TestPopupLockFailover(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t)
	url := pg.CreateDatabase(t)
	p := open(t, url, database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	take := func(again bool) (held popup.Holding) {
		t.Helper()
		apptest.AwaitState(t, "the lock is taken", func() (string, bool) { // the earlier session may not have ended
			var err error
			held, err = p.takeLock(t.Context(), [16]byte{1}, "a", again)
			if locked, ok := errors.AsType[*popup.LockedError](err); ok {
				t.Fatal(locked)
			}
			return "", err == nil
		})
		if err := held.Check(t.Context()); err != nil {
			t.Fatalf("a new lock: %v", err)
		}
		return held
	}
	lost := func(why string, held popup.Holding) {
		t.Helper()
		if err := held.Check(t.Context()); !errors.Is(err, errMoved) {
			t.Errorf("%s: %v", why, err)
		}
		held.Release()
	}
	event := popup.Event{ID: [16]byte{9}, Key: popup.Key{User: "7", Placement: "home"}, Sequence: 1, Kind: popup.KindShow, Campaign: 1, ShownAt: time.Now(), At: time.Now()}
	apply := func() error { return p.Apply(t.Context(), []popup.Event{event}) }

	held := take(false)
	if err := apply(); err != nil {
		t.Error(err)
	}
	p.db.pool.Renew()
	lost("replaced connections", held)
	held = take(true)
	mustExecute(t, url, "UPDATE popup_holder SET token = '02000000-0000-0000-0000-000000000000'")
	if err := apply(); !errors.Is(err, errNotHolder) {
		t.Errorf("store for another process: %v", err)
	}
	lost("a refused event", held)
	if _, err := p.takeLock(t.Context(), [16]byte{1}, "a", true); !errors.As(err, new(*popup.LockedError)) {
		t.Errorf("take what another process has taken: %v", err)
	}
	mustExecute(t, url, "DELETE FROM popup_holder")
	held = take(true)
	mustExecute(t, url, "ALTER SYSTEM SET default_transaction_read_only = on")
	mustExecute(t, url, "SELECT pg_reload_conf()")
	apptest.Await(t, "the server is read-only", func() bool { return queryText(t, url, "SHOW default_transaction_read_only") == "on" })
	apptest.Await(t, "the lock is lost", func() bool { return held.Check(t.Context()) != nil })
	lost("a read-only server", held)
}
