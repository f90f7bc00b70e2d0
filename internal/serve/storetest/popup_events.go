package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
)

// The columns for readers show the event; never is NULL.
func testPopupColumns(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	key := popup.Key{User: "it's ü 🚚 ", Placement: "cart"}
	events := popupHistory(t, popupPlaces(t)[1], key, rand.New(rand.NewPCG(5, 5)), 40)
	upper := popup.Key{User: "IT'S ü 🚚 ", Placement: "cart"}
	events = append(events, popupHistory(t, popupPlaces(t)[1], upper, rand.New(rand.NewPCG(1, 1)), 1)...)
	if err := tables.Apply(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	var model popupModel
	model.add(events...)
	columns := "kind, sequence, campaign_id, " + b.Millis("at") + ", COALESCE(" + b.Millis("next_at") + ", -1)"
	rows, err := db.Rows(t.Context(), "SELECT "+columns+", "+b.Millis("shown_at")+", variant, CASE WHEN first THEN 'first' ELSE '' END "+
		"FROM popup_events")
	if err != nil {
		t.Fatal(err)
	}
	shown := func(e popup.Event) string {
		next := int64(-1)
		if !e.NextAt.IsZero() {
			next = e.NextAt.UnixMilli()
		}
		return fmt.Sprint(int(e.Kind), e.Sequence, e.Campaign, e.At.UnixMilli(), next)
	}
	want, never := make(map[string]bool), false
	for _, e := range events { // one that was repeated later has either row
		first := ""
		if e.First {
			first = "first"
		}
		want[fmt.Sprint(shown(e), " ", e.ShownAt.UnixMilli(), " ", e.Variant, " ", first)] = true
		never = never || e.NextAt.IsZero()
	}
	if !never || len(model.newest) != 2 {
		t.Fatal("no event whose next time never comes, or one user: the test tests less than it says")
	}
	for _, row := range rows {
		if text := strings.Join(row, " "); !want[text] {
			t.Errorf("popup_events has %s", text)
		}
	}
	rows, err = db.Rows(t.Context(), "SELECT "+columns+" FROM popup_state WHERE sequence > 1")
	if err != nil || len(rows) != 1 {
		t.Fatalf("popup_state: %v, %v", rows, err)
	}
	if text := fmt.Sprint(rows[0][0], " ", rows[0][1], " ", rows[0][2], " ", rows[0][3], " ", rows[0][4]); text != shown(model.newest[key]) {
		t.Errorf("popup_state has %s, want %s", text, shown(model.newest[key]))
	}
	if err := model.checkAll(t.Context(), db, tables); err != nil {
		t.Error(err)
	}
}

// In any order, with repeats and in any batches, the result is the model's.
func testPopupAnyOrder(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	places := popupPlaces(t)
	var all popupModel
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), uint64(round)))
		var events []popup.Event
		for user := range 1 + random.IntN(4) {
			place := random.IntN(2)
			key := popup.Key{User: fmt.Sprint(round, "-", user), Placement: []string{"home", "cart"}[place]}
			events = append(events, popupHistory(t, places[place], key, random, 12)...)
		}
		var model popupModel
		model.add(events...)
		all.add(events...)
		if len(events) > 0 {
			for range rapid.IntRange(0, 20).Draw(rt, "repeats") {
				events = append(events, events[random.IntN(len(events))])
			}
		}
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for len(events) > 0 {
			n := 1 + random.IntN(len(events))
			if err := tables.Apply(t.Context(), events[:n]); err != nil {
				rt.Fatal(err)
			}
			events = events[n:]
		}
		if err := model.check(t.Context(), tables); err != nil {
			rt.Fatal(err)
		}
	})
	if err := all.checkAll(t.Context(), db, tables); err != nil {
		t.Error(err)
	}
}

// Concurrent processes that apply the same events do not block each other for long, and
// each event counts once.
func testPopupAtOnce(t *testing.T, b PopupBackend) {
	db, first := openPopups(t, b)
	tables := []PopupTables{first, db.Tables(t), db.Tables(t)}
	places := popupPlaces(t)
	random := rand.New(rand.NewPCG(3, 4))
	var events []popup.Event
	for user := range 40 {
		for place, name := range []string{"home", "cart"} {
			events = append(events, popupHistory(t, places[place], popup.Key{User: fmt.Sprint(user), Placement: name}, random, 20)...)
		}
	}
	var model popupModel
	model.add(events...)
	var all sync.WaitGroup
	for i := range tables {
		mine := append([]popup.Event(nil), events...)
		order := rand.New(rand.NewPCG(uint64(i), 9))
		order.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		all.Go(func() {
			for rest := mine; len(rest) > 0; {
				n := min(len(rest), 97)
				for tries := 0; ; tries++ {
					err := tables[i].Apply(t.Context(), rest[:n])
					if err == nil {
						break
					}
					if tries == 10 {
						t.Errorf("apply: %v", err)
						return
					}
				}
				rest = rest[n:]
			}
		})
	}
	all.Wait()
	if err := model.checkAll(t.Context(), db, first); err != nil {
		t.Error(err)
	}
}

// More users than one statement of Restore reads, more events than one transaction has.
func testPopupMany(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	place := popupPlaces(t)[0]
	var events []popup.Event
	for user := range 5300 {
		key := popup.Key{User: fmt.Sprint(user % 3000), Placement: []string{"home", "cart"}[user/3000]}
		events = append(events, popupHistory(t, place, key, rand.New(rand.NewPCG(uint64(user), 1)), 1)...)
	}
	if err := tables.Apply(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	var model popupModel
	model.add(events...)
	if err := model.checkAll(t.Context(), db, tables); err != nil {
		t.Error(err)
	}
	stop := errors.New("enough")
	if err := tables.Restore(t.Context(), func(popup.Key, popup.State) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("restore stopped: %v", err)
	}
}

// A call whose time is up stores nothing, and one without events changes nothing.
func testPopupCancelled(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	events := popupHistory(t, popupPlaces(t)[0], popup.Key{User: "7", Placement: "home"}, rand.New(rand.NewPCG(1, 1)), 5)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // whatever notices the end of the time first
		if err := tables.Apply(cancelled, events); err == nil {
			t.Fatal("a call whose time is up went through")
		}
	}
	if err := tables.Apply(t.Context(), nil); err != nil {
		t.Error(err)
	}
	var model popupModel
	if err := model.checkAll(t.Context(), db, tables); err != nil {
		t.Error(err)
	}
	model.add(events...)
	if err := errors.Join(tables.Apply(t.Context(), events), model.checkAll(t.Context(), db, tables)); err != nil {
		t.Error(err)
	}
}

// One process has the lock. The next one learns which, and a restart of the server does
// not lose the lock unnoticed.
func testPopupLock(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	first, err := tables.Lock(t.Context(), "host a, pid 1")
	if err != nil {
		t.Fatal(err)
	}
	other := db.Tables(t)
	var locked *popup.LockedError
	if _, err := other.Lock(t.Context(), "host b, pid 2"); !errors.As(err, &locked) || locked.Holder != "host a, pid 1" {
		t.Fatalf("second lock: %v", err)
	}
	if db.Kill != nil {
		db.Kill()
		if err := db.Start(); err != nil {
			t.Fatal(err)
		}
		second, err := other.Lock(t.Context(), "host b, pid 2")
		switch {
		case err == nil: // the second process took it first
			apptest.Receive(t, "the news that the lock is lost", first.Lost())
			second.Close()
		case !errors.As(err, &locked):
			t.Errorf("after a restart: %v", err)
		}
	}
	first.Close()
	apptest.AwaitState(t, "the lock is free after the end of the first", func() (string, bool) { // the server may notice it late
		last, err := other.Lock(t.Context(), "host b, pid 2")
		if err == nil {
			last.Close()
			return "", true
		}
		if !errors.As(err, &locked) {
			t.Fatalf("after the end of the first: %v", err)
		}
		return err.Error(), false
	})
}

// A server whose commits are not synced can forget in a crash who holds the lock. The only
// process takes the lock again.
func testPopupLockForgotten(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	if db.Kill == nil {
		return
	}
	lock, err := tables.Lock(t.Context(), "host a, pid 1")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := db.Rows(t.Context(), "DELETE FROM popup_holder"); err != nil {
		t.Fatal(err)
	}
	events := popupHistory(t, popupPlaces(t)[0], popup.Key{User: "7", Placement: "home"}, rand.New(rand.NewPCG(1, 1)), 5)
	if err := tables.Apply(t.Context(), events); err != nil { // synced with everything before it
		t.Fatal(err)
	}
	db.Kill()
	if err := db.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.AwaitState(t, "the lock is taken again", func() (string, bool) {
		select {
		case <-lock.Lost():
			t.Fatal("the only process was told that another one has the lock")
		default:
		}
		rows, err := db.Rows(t.Context(), "SELECT holder FROM popup_holder")
		return fmt.Sprintf("%v, %v", rows, err), err == nil && len(rows) == 1 && rows[0][0] == "host a, pid 1"
	})
	var locked *popup.LockedError
	if _, err := db.Tables(t).Lock(t.Context(), "host b, pid 2"); !errors.As(err, &locked) || locked.Holder != "host a, pid 1" {
		t.Errorf("a second process: %v", err)
	}
}

// The server is killed while events are applied. Events that are applied until there is no
// error count once.
func testPopupCrash(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	if db.Kill == nil {
		return
	}
	places := popupPlaces(t)
	random := rand.New(rand.NewPCG(8, 8))
	var events []popup.Event
	users, most := 300, 2
	if testing.Short() {
		users, most = 100, 1
	}
	for user := range users {
		events = append(events, popupHistory(t, places[0], popup.Key{User: fmt.Sprint(user), Placement: "home"}, random, 20)...)
	}
	var model popupModel
	model.add(events...)
	applied := make(chan int, len(events))
	var all sync.WaitGroup
	all.Go(func() {
		for rest, n := events, 0; len(rest) > 0; rest = rest[n:] {
			n = min(len(rest), 40)
			if err := applyUntilDone(t.Context(), tables, rest[:n]); err != nil {
				t.Error(err)
				break
			}
			applied <- n
		}
		close(applied)
	})
	done, crashes := 0, 0
	for n := range applied {
		if done += n; done > len(events)/4*(crashes+1) && crashes < most {
			crashes++
			db.Kill()
			if err := db.Start(); err != nil {
				t.Error(err)
			}
		}
	}
	all.Wait()
	if crashes != most {
		t.Errorf("%d crashes, want %d", crashes, most)
	}
	if err := model.checkAll(t.Context(), db, tables); err != nil {
		t.Error(err)
	}
}

// applyUntilDone applies events again until there is no error, for as long as a call may take.
func applyUntilDone(ctx context.Context, tables PopupTables, events []popup.Event) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := tables.Apply(ctx, events)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
