package popuptest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestPopupRedisClock: the popups go by the clock of Redis, and go on after that was wild.
func TestPopupRedisClock(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	store := apptest.RedisAt(t, -10*time.Minute)
	db := storetest.PostgresDatabase(t, postgres.Get(t))
	s := apptest.Serve(t, binary.Path(t), "--database", db.URL, "--redis", store.URL(""), apptest.PopupConfig(t, popupRedis))
	testPopupClock(t, s, store, db)
}

// TestPopupClock: with store memory, the popups go by the clock of the database.
func TestPopupClock(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	server.SetClock(t, -10*time.Minute)
	db := storetest.PostgresDatabase(t, server)
	s := apptest.Serve(t, binary.Path(t), "--database", db.URL, apptest.PopupConfig(t, ""))
	testPopupClock(t, s, server.Server, db)
}

// testPopupClock moves the clock of a store, which is ten minutes behind.
func testPopupClock(t *testing.T, s *apptest.Spillway, store *apptest.Server, db storetest.Database) {
	t.Helper()
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	expect := func(user, want string) {
		t.Helper()
		expectReason(t, s, "user="+user, want)
	}
	clicks, shown := showTo(t, s, "clicks")
	postShow(t, s.URL("popup/click"), shown.Show)
	expect("sees", "200 1 first")
	if skew := apptest.Metric(t, s, "spillway_popup_clock_skew_seconds"); skew < 540 || skew > 660 {
		t.Errorf("the clock of the store is 600 s behind, and the metric says %v", skew)
	}
	apptest.Await(t, "the log warns", func() bool {
		return strings.Contains(s.Log(t), "the clock of this machine differs from that of the popups' store")
	})
	counted := popupCount(t, db)
	apptest.Await(t, "the events are in the database", func() bool { return counted() >= 3 })
	var shownAt float64
	if _, err := fmt.Sscan(db.Query(t, "SELECT max(extract(epoch FROM shown_at)) FROM popup_events")[0][0], &shownAt); err != nil {
		t.Fatal(err)
	}
	if behind := float64(time.Now().Unix()) - shownAt; behind < 540 {
		t.Errorf("shown_at is %v s ago, and the clock of the store is 600 s behind", behind)
	}

	store.SetClock(t, 45*time.Minute) // 55 minutes pass, and the quiet period is an hour
	expect("later", "200 1 first")
	apptest.Await(t, "the popups follow", func() bool { return apptest.Metric(t, s, "spillway_popup_clock_skew_seconds") < 0 })
	expect(clicks, "204 0 wait-clicked")
	store.SetClock(t, 55*time.Minute)
	expect(clicks, "204 0 none-left")

	store.SetClock(t, 10*365*24*time.Hour)
	expect("sees", "200 1 again")
	store.SetClock(t, 0)
	expect("sees", "200 1 again") // the show ten years ahead is not believed
	expect("sees", "204 0 wait-shown")
	expect("new", "200 1 first")
	apptest.Await(t, "all shows are in the database", func() bool {
		return db.Query(t, "SELECT count(*) FROM popup_events WHERE user_id IN ('sees', 'new')")[0][0] == "4"
	})
}
