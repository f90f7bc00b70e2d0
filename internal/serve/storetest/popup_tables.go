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

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
)

// run runs statements that are not the adapter's.
func (db PopupDB) run(t *testing.T, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := db.Rows(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// number returns what a query counts.
func (db PopupDB) number(t *testing.T, sql string) string {
	t.Helper()
	rows, err := db.Rows(t.Context(), sql)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%s: %v, %v", sql, rows, err)
	}
	return rows[0][0]
}

// Processes that start at the same time create the tables. Those of a newer version are refused.
func testPopupTables(t *testing.T, b PopupBackend) {
	db := b.Open(t)
	var all sync.WaitGroup
	for range 4 {
		tables := db.Tables(t)
		all.Go(func() {
			if err := tables.EnsureTables(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	db.run(t, append([]string{"DROP TABLE popup_history"}, b.Newer...)...)
	err := db.Tables(t).EnsureTables(t.Context())
	if err == nil || !strings.Contains(err.Error(), "popup_history has format 2, this program supports format 1") {
		t.Errorf("tables of a newer version: %v", err)
	}
}

// A state of all campaigns of a placement is stored.
func testPopupLargeState(t *testing.T, b PopupBackend) {
	_, tables := openPopups(t, b)
	schema, err := popup.NewSchema(nil)
	if err != nil {
		t.Fatal(err)
	}
	var campaigns []popup.Campaign
	for i := range popup.CampaignsMax {
		campaigns = append(campaigns, popup.Campaign{
			ID: popup.CampaignID(1 + i*1000), Name: "c", Placement: "home", Payload: []byte("1"), Status: popup.Active, Rollout: 100,
			RepeatAfter: popup.Period(time.Hour), Cap: 1,
		})
	}
	set, err := popup.NewSet(schema, campaigns)
	if err != nil {
		t.Fatal(err)
	}
	key, place, now := popup.Key{User: "7", Placement: "home"}, set.Placement("home"), popupDay
	var state popup.State
	var event popup.Event
	for range campaigns {
		now = now.Add(25 * time.Hour)
		if state, event, err = popup.Show(place, key, state, popup.Decide(place, state, schema.New(), now), now); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(popup.AppendState(nil, state)); n < 3000 {
		t.Errorf("the state has only %d bytes", n)
	}
	if err := tables.Apply(t.Context(), []popup.Event{event}); err != nil {
		t.Fatal(err)
	}
	if states, err := tables.States(t.Context(), []popup.Key{key}); err != nil || states[0] != state {
		t.Errorf("state: %v, %v", states, err)
	}
}

// A state that cannot be read, such as one that a newer version has written, does not keep other users from theirs.
func testPopupUnreadableState(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	key := popup.Key{User: "7", Placement: "home"}
	if err := tables.Apply(t.Context(), popupHistory(t, popupPlaces(t)[0], key, rand.New(rand.NewPCG(1, 2)), 1)); err != nil {
		t.Fatal(err)
	}
	db.run(t, "UPDATE popup_state SET state = SUBSTR(state, 1, 2)")
	lookups := popup.NewLookups(tables, time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { lookups.Run(ctx) })
	if _, err := lookups.Read(t.Context(), key); err == nil {
		t.Error("half of a state was read")
	}
	apptest.AwaitState(t, "another user is read", func() (string, bool) {
		_, err := lookups.Read(t.Context(), popup.Key{User: "8", Placement: "home"})
		return fmt.Sprint(err), err == nil
	})
	stop()
	running.Wait()
}

// Forgetting a user deletes all of that user's rows, and none of others.
func testPopupForget(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	var events, kept []popup.Event
	const user = "it's ü 🚚"
	for i, name := range []string{user, "IT'S ü 🚚", "7"} {
		for place, placement := range popupPlaces(t) {
			key := popup.Key{User: name, Placement: []string{"home", "cart"}[place]}
			some := popupHistory(t, placement, key, rand.New(rand.NewPCG(uint64(i), 3)), 20)
			if events = append(events, some...); name != user {
				kept = append(kept, some...)
			}
		}
	}
	for i := range 4000 { // more than one page
		some := popupHistory(t, popupPlaces(t)[0], popup.Key{User: fmt.Sprint("u", i), Placement: "home"}, rand.New(rand.NewPCG(uint64(i), 4)), 1)
		events, kept = append(events, some...), append(kept, some...)
	}
	if err := tables.Apply(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if _, err := tables.ReplaceList(t.Context(), name, hashesOf(user, "7"), ann); err != nil {
			t.Fatal(err)
		}
	}
	other, err := tables.ReplaceList(t.Context(), "other", hashesOf("7"), ann)
	if err != nil {
		t.Fatal(err)
	}
	var all, model popupModel
	all.add(events...)
	model.add(kept...)
	want := int64(len(all.events) - len(model.events) + len(all.newest) - len(model.newest) + 2)
	if rows, err := tables.Forget(t.Context(), user); err != nil || rows != want {
		t.Errorf("%d rows, want %d, %v", rows, want, err)
	}
	if err := model.check(t.Context(), tables); err != nil {
		t.Error(err)
	}
	if n := db.number(t, "SELECT COUNT(*) FROM popup_events"); n != fmt.Sprint(len(model.events)) {
		t.Errorf("%s events are left, want %d", n, len(model.events))
	}
	lists, err := tables.Lists(t.Context())
	if err != nil || len(lists) != 3 || lists[0].Size != 1 || lists[2].Size != 1 || lists[0].Version != other.Version+1 ||
		lists[2].Version != other.Version+1 || lists[1] != other {
		t.Errorf("lists %v, of which %v does not change, %v", lists, other, err)
	}
	version, err := tables.Version(t.Context())
	if err != nil || version != other.Version+1 {
		t.Errorf("version %d after %d, %v", version, other.Version, err)
	}
	if rows, err := tables.Forget(t.Context(), user); err != nil || rows != 0 {
		t.Errorf("again: %d rows, %v", rows, err)
	}
}

// The oldest events are deleted first. Counts and states remain.
func testPopupDeleteEvents(t *testing.T, b PopupBackend) {
	db, tables := openPopups(t, b)
	place := popupPlaces(t)[0]
	var events []popup.Event
	for i := range 10 {
		key, at := popup.Key{User: fmt.Sprint(i), Placement: "home"}, popupDay.Add(time.Duration(i)*time.Hour)
		a := noAttributes(t)
		a.For(key.User)
		_, event, err := popup.Show(place, key, popup.State{}, popup.Decide(place, popup.State{}, a, at), at)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	if err := tables.Apply(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	before := popupDay.Add(5 * time.Hour) // the sixth event is not before
	for i, want := range []int{3, 2, 0} {
		if n, err := tables.DeleteEvents(t.Context(), before, 3); err != nil || n != want {
			t.Errorf("%d: %d deleted, want %d, %v", i, n, want, err)
		}
	}
	rows, err := db.Rows(t.Context(), "SELECT user_id FROM popup_events ORDER BY at")
	if err != nil || fmt.Sprint(rows) != "[[5] [6] [7] [8] [9]]" {
		t.Errorf("events of %v are left, %v", rows, err)
	}
	var model popupModel
	model.add(events...)
	if err := errors.Join(model.check(t.Context(), tables), model.checkHours(t.Context(), tables)); err != nil {
		t.Error(err)
	}
}
