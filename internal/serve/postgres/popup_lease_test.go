package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/popup"
)

// runsOut lets a lease run out.
const runsOut = "UPDATE popup_holder SET since = clock_timestamp() - interval '1 second'"

// Of processes behind a pooler and direct ones, one has the lock. A process whose lease has run
// out stores no events until it has renewed it, and none at all once another one has the lock.
func TestPopupLease(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	direct := pg.CreateDatabase(t)
	pooled := strings.Replace(direct, pg.Addr(), bouncer.Addr(), 1)
	process := func(url string) *Popups { return open(t, url, database.Pool{}).Popups() }
	a, b, c := process(pooled), process(pooled), process(direct)
	if err := a.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	tokens := map[*Popups][16]byte{a: {1}, b: {2}, c: {3}}
	names := map[*Popups]string{a: "a", b: "b", c: "c"}
	take := func(p *Popups, again bool) popup.Holding {
		t.Helper()
		held, err := p.takeLock(t.Context(), tokens[p], names[p], again)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	refused := func(p *Popups, again bool, holder string) {
		t.Helper()
		var locked *popup.LockedError
		if _, err := p.takeLock(t.Context(), tokens[p], names[p], again); !errors.As(err, &locked) || locked.Holder != holder {
			t.Errorf("%s, again %t: %v, want it refused because of %s", names[p], again, err, holder)
		}
	}
	applies := func(p *Popups, want bool) {
		t.Helper()
		event := popup.Event{ID: [16]byte{9}, Key: popup.Key{User: "7", Placement: "home"}, Sequence: 1, Kind: popup.KindShow, Campaign: 1, ShownAt: time.Now(), At: time.Now()}
		if err := p.Apply(t.Context(), []popup.Event{event}); (err == nil) != want || !want && !errors.Is(err, errNotHolder) {
			t.Errorf("%s stores: %v", names[p], err)
		}
	}
	runOut := func() { mustExecute(t, direct, runsOut) }

	held := take(a, false)
	applies(a, true)
	refused(b, false, "a")
	refused(c, false, "a")
	runOut()
	applies(a, false)
	if err := held.Check(t.Context()); err != nil {
		t.Errorf("renew what nobody has taken: %v", err)
	}
	applies(a, true)
	runOut()
	second := take(b, false)
	applies(a, false)
	if err := held.Check(t.Context()); !errors.Is(err, errNotHolder) {
		t.Errorf("renew what another process has: %v", err)
	}
	held.Release() // does not end the lease of b
	refused(a, true, "b")
	refused(c, false, "b")
	applies(b, true)
	second.Release()
	third := take(c, false) // a session
	refused(a, false, "c")
	refused(b, true, "c")
	applies(b, false)
	applies(c, true)
	third.Release()
	apptest.Await(t, "the session has ended", func() bool {
		_, err := a.takeLock(t.Context(), tokens[a], "a", false)
		return err == nil
	})
}

// Who takes a lease over waits until the transactions under it have ended, and then has their events.
func TestPopupLeaseWaits(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	url := pg.CreateDatabase(t)
	p := open(t, strings.Replace(url, pg.Addr(), bouncer.Addr(), 1), database.Pool{}).Popups()
	if err := p.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, second := [16]byte{1}, [16]byte{2}
	held, err := p.takeLock(t.Context(), first, "a", false)
	if err != nil {
		t.Fatal(err)
	}
	applying, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer applying.Close(t.Context())
	if _, err := applying.Exec(t.Context(), "BEGIN; "+strings.Replace(checkLease, "$1", "'01000000-0000-0000-0000-000000000000'", 1)); err != nil {
		t.Fatal(err)
	}
	if err := held.Check(t.Context()); err != nil { // the renewal does not wait
		t.Errorf("renew during a transaction: %v", err)
	}
	mustExecute(t, url, "UPDATE popup_holder SET since = clock_timestamp()")
	taken := make(chan error, 1)
	go func() {
		_, err := p.takeLock(t.Context(), second, "b", false)
		taken <- err
	}()
	apptest.Await(t, "the other process waits", func() bool {
		return queryText(t, url, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == "1"
	})
	if _, err := applying.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := apptest.Receive(t, "the lease", taken); err != nil {
		t.Error(err)
	}
}
