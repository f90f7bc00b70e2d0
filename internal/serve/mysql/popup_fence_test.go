package mysql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/popup"
)

// After a failover another server has the events. The lock on the earlier one, which stays connected,
// is worth nothing then: it is taken again, and without it nothing is stored.
func TestPopupLockFailover(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t)
	admin := freshDatabase(t, server)
	mustExecute(t, admin, "CREATE USER plain@'%' IDENTIFIED BY 'x'", "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, REFERENCES ON *.* TO plain@'%'")
	p := open(t, strings.Replace(admin, "root@", "plain:x@", 1), database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	take := func(again bool) (held *heldLock) {
		t.Helper()
		apptest.Await(t, "the lock is taken", func() bool { // the earlier session may not have ended
			taken, err := p.takeLock(t.Context(), [16]byte{1}, "a", again)
			if locked, ok := errors.AsType[*popup.LockedError](err); ok {
				t.Fatal(locked)
			}
			held, _ = taken.(*heldLock)
			return err == nil
		})
		if err := held.Check(t.Context()); err != nil {
			t.Fatalf("a new lock: %v", err)
		}
		return held
	}
	lost := func(why string, held *heldLock) {
		t.Helper()
		if err := held.Check(t.Context()); !errors.Is(err, errMoved) && !isReadOnly(err) {
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
	p.db.connector.renew(&session{}) // which is old
	lost("replaced connections", held)
	held = take(true)
	mustExecute(t, admin, "UPDATE popup_holder SET token = REPEAT('2', 16)")
	if err := apply(); !errors.Is(err, errNotHolder) {
		t.Errorf("store for another process: %v", err)
	}
	lost("a refused event", held)
	if _, err := p.takeLock(t.Context(), [16]byte{1}, "a", true); !errors.As(err, new(*popup.LockedError)) {
		t.Errorf("take what another process has taken: %v", err)
	}
	mustExecute(t, admin, "DELETE FROM popup_holder")
	held = take(true)
	mustExecute(t, admin, "SET GLOBAL read_only = 1")
	lost("a read-only server", held)
}
