package popuptest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/exit"
)

// popupDemo serves the freight app with few orders.
func popupDemo(t *testing.T) *apptest.Spillway {
	t.Helper()
	data := t.TempDir()
	if _, stderr, code := binary.Run(t, "seed", "freight", "--database", "sqlite:"+filepath.Join(data, "spillway.db"), "--users", "100", "--days", "20", "--per-day", "5"); code != exit.OK {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	s := apptest.Serve(t, binary.Path(t), "--data", data)
	s.WaitReady(t)
	return s
}

// TestPopupDemo follows the documented tour and tests every row of the table of rules, with
// the campaigns of the freight app.
func TestPopupDemo(t *testing.T) {
	t.Parallel()
	s := popupDemo(t)
	const old = "&app_version=29"
	_, first := apptest.AskPopup(t, s, "user=7"+old)
	if first.Campaign != 1 || !strings.Contains(string(first.Payload), "new version") {
		t.Fatalf("the first matching campaign: %+v", first)
	}
	if _, new := apptest.AskPopup(t, s, "user=9&app_version=31"); new.Campaign == 1 {
		t.Errorf("campaign 1 does not match: %+v", new)
	}
	for offset, want := range map[string]string{"0s": "wait-shown", "23h59m": "wait-shown"} {
		a, _ := apptest.AskPopup(t, s, "user=7&clock_offset="+offset+old)
		if a.Status != 204 || a.Header.Get("Spillway-Reason") != want || a.Header.Get("Spillway-Next-At") == "" {
			t.Errorf("not clicked, %s later: %d %v", offset, a.Status, a.Header)
		}
	}
	_, again := apptest.AskPopup(t, s, "user=7&clock_offset=24h1m"+old)
	if again.Campaign != 1 || again.Show == first.Show {
		t.Errorf("not clicked, after repeat_after: %+v", again)
	}
	if _, next := apptest.AskPopup(t, s, "user=7&clock_offset=48h5m&app_version=31"); next.Campaign != 2 && next.Campaign != 3 {
		t.Errorf("not clicked, and it no longer matches: %+v", next)
	}
	if status, body := apptest.PostPopup(t, s.URL("popup/click?clock_offset=24h2m"), apptest.ShowToken(again.Show)); status != 410 {
		t.Errorf("a click after the next show: %d %s", status, body)
	}

	_, shown := apptest.AskPopup(t, s, "user=0000000000000000008"+old) // the same user as 8, because ids are numbers
	if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != 204 {
		t.Fatalf("click: %d %s", status, body)
	}
	a, _ := apptest.AskPopup(t, s, "user=8&clock_offset=23h59m"+old)
	if a.Status != 204 || a.Header.Get("Spillway-Reason") != "wait-clicked" {
		t.Errorf("clicked, in the quiet period: %d %v", a.Status, a.Header)
	}
	_, next := apptest.AskPopup(t, s, "user=8&clock_offset=24h1m"+old)
	if next.Campaign < 2 {
		t.Errorf("clicked, after it: %+v", next)
	}
	offset := 24*time.Hour + 2*time.Minute
	for next.Campaign == 2 || next.Campaign == 3 { // dismiss the rest
		at := fmt.Sprintf("clock_offset=%s", offset)
		if status, body := apptest.PostPopup(t, s.URL("popup/dismiss?"+at), apptest.ShowToken(next.Show)); status != 204 {
			t.Fatalf("dismiss: %d %s", status, body)
		}
		offset += 8 * 24 * time.Hour
		a, next = apptest.AskPopup(t, s, fmt.Sprintf("user=8&clock_offset=%s%s", offset, old))
	}
	if a.Status != 204 || a.Header.Get("Spillway-Reason") != "none-left" || a.Header.Get("Spillway-Next-At") != "" {
		t.Errorf("none left: %d %v", a.Status, a.Header)
	}
	popupDemoAdmin(t, s, fmt.Sprintf("user=8&clock_offset=%s%s", offset, old))

	if a := apptest.Fetch(t, s.URL("popup?user=x")); a.Status != 400 || !bytes.Contains(a.Body, []byte("user must be a whole number")) {
		t.Errorf("an id that is no number: %d %s", a.Status, a.Body)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if status, _ := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != 410 && status != 409 {
		t.Errorf("a repeated click on a show from before the restart: %d", status)
	}
	if a, _ := apptest.AskPopup(t, s, "user=7&clock_offset=48h6m"+old); a.Status != 204 || a.Header.Get("Spillway-Reason") != "wait-shown" {
		t.Errorf("the restart lost the state: %d %v", a.Status, a.Header)
	}
}

// popupDemoAdmin creates a campaign for a user who has none left, and requests the explanation.
func popupDemoAdmin(t *testing.T, s *apptest.Spillway, query string) {
	t.Helper()
	c := apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"late","placement":"home","order":99,"payload":{"n":1},"target":"app_version < 30","status":"active"}`, 201)
	apptest.Await(t, "the new campaign is shown", func() bool {
		_, shown := apptest.AskPopup(t, s, query)
		return shown.Campaign == int(c["id"].(float64))
	})
	var explained struct {
		State     struct{ Phase string }
		Campaigns []struct {
			Campaign int
			Verdict  string
		}
	}
	a := apptest.Fetch(t, s.Admin+"/popups/explain?"+query)
	if err := json.Unmarshal(a.Body, &explained); err != nil || a.Status != 200 || len(explained.Campaigns) != 4 || explained.State.Phase != "shown" ||
		explained.Campaigns[0].Verdict != "clicked" || explained.Campaigns[3].Verdict != "user-waits" {
		t.Errorf("explain: %d %s %v", a.Status, a.Body, err)
	}
	apptest.Await(t, "the database has all shows", func() bool {
		var one struct{ Shows, Clicks int }
		a := apptest.Fetch(t, s.Admin+"/popups/campaigns/1")
		return json.Unmarshal(a.Body, &one) == nil && one.Shows == 3 && one.Clicks == 1
	})
}

// TestPopupCrowd: one of 1,000 concurrent requests of a user gets the popup. After kill -9
// under load each acknowledged click is stored once. A second process is refused.
func TestPopupCrowd(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	file := apptest.PopupConfig(t, "  timeout: 1m\n")
	s := apptest.Serve(t, binary.Path(t), "--database", database, file)
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1000, MaxIdleConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	popupCrowd(t, client, []*apptest.Spillway{s}, "one-of-thousand")

	_, stderr, code := binary.Run(t, "serve", "--strict", "--database", database, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir(), file)
	if code != 3 || !strings.Contains(stderr, fmt.Sprintf("process %d on", s.PID())) || !strings.Contains(stderr, "popups.store: redis") {
		t.Errorf("a second process on the database: exit %d, %s", code, stderr)
	}

	acked := popupKillUnderLoad(t, client, s)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Await(t, "all events reach the database", func() bool { return apptest.Metric(t, s, "spillway_popup_events_waiting") == 0 })
	var clicks, users, gaps int
	if err := conn.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT user_id) FROM popup_events WHERE kind = 2`).Scan(&clicks, &users); err != nil {
		t.Fatal(err)
	}
	if clicks != users {
		t.Errorf("%d clicks of %d users, who clicked once", clicks, users)
	}
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT user_id FROM popup_events GROUP BY user_id HAVING max(sequence) <> count(*)) AS g`).Scan(&gaps); err != nil {
		t.Fatal(err)
	}
	if gaps != 0 {
		t.Errorf("%d users have a missing or duplicate event", gaps)
	}
	rows, err := conn.Query(t.Context(), `SELECT user_id FROM popup_events WHERE kind = 2`)
	if err != nil {
		t.Fatal(err)
	}
	clicked, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]int{}
	for _, user := range clicked {
		stored[user]++
	}
	for user := range acked {
		n := stored[user]
		a, _ := apptest.AskPopup(t, s, "user="+user)
		if n != 1 || a.Header.Get("Spillway-Reason") != "wait-clicked" {
			t.Fatalf("the acknowledged click of user %s is %d times in the database; the next answer: %v", user, n, a.Header)
		}
	}
	t.Logf("%d clicks were acknowledged before the kill, %d are stored", len(acked), clicks)
}

// popupCrowd sends 1,000 concurrent requests of one user. Exactly one may get the popup. A
// request is repeated while the answer is 503, which a store may get that is late: then the
// popup may have been shown although no answer says so.
func popupCrowd(t *testing.T, client *http.Client, replicas []*apptest.Spillway, user string) {
	t.Helper()
	var shown, none, unknown atomic.Int64
	var group sync.WaitGroup
	for i := range 1000 {
		group.Go(func() {
			var a apptest.Answer
			var err error
			for try := range 10 {
				a, err = apptest.TryFetch(t.Context(), client, replicas[i%len(replicas)].URL("popup?user="+user))
				if err != nil || a.Status != http.StatusServiceUnavailable || try == 9 {
					break
				}
				unknown.Add(1)
			}
			switch {
			case err == nil && a.Status == http.StatusOK:
				shown.Add(1)
			case err == nil && a.Status == http.StatusNoContent:
				none.Add(1)
			default:
				t.Errorf("%d %s %v", a.Status, a.Body, err)
			}
		})
	}
	group.Wait()
	lost := shown.Load() == 0 && unknown.Load() > 0
	if shown.Load() != 1 && !lost || shown.Load()+none.Load() != 1000 {
		t.Errorf("user %s: %d shows, %d answers without a popup, %d answers of 503; want one show", user, shown.Load(), none.Load(), unknown.Load())
	}
}

// popupKillUnderLoad kills the server while users click, restarts it, and returns the users
// whose click was acknowledged.
func popupKillUnderLoad(t *testing.T, client *http.Client, s *apptest.Spillway) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	most := 500
	if testing.Short() {
		most = 150
	}
	acked := map[string]bool{}
	enough := make(chan struct{})
	var group sync.WaitGroup
	for worker := range 32 {
		group.Go(func() {
			for i := 0; ; i++ {
				user := fmt.Sprintf("w%d-%d", worker, i)
				a, err := apptest.TryFetch(t.Context(), client, s.URL("popup?user="+user))
				if err != nil {
					return // killed
				}
				var shown apptest.ShownPopup
				if json.Unmarshal(a.Body, &shown) != nil || shown.Show == "" {
					t.Errorf("user %s: %d %s", user, a.Status, a.Body)
					return
				}
				status, body, _, err := apptest.SendJSON(t.Context(), client, http.MethodPost, s.URL("popup/click"), apptest.ShowToken(shown.Show))
				if err != nil {
					return
				}
				if status != http.StatusNoContent {
					t.Errorf("click: %d %s", status, body)
					return
				}
				mu.Lock()
				if acked[user] = true; len(acked) == most {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	apptest.Receive(t, fmt.Sprintf("%d acknowledged clicks", most), enough)
	s.Kill()
	group.Wait()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	return acked
}

// TestPopupReplicas: two processes with Redis show a popup to a user once, and apply each
// other's changes of campaigns.
func TestPopupReplicas(t *testing.T) {
	t.Parallel()
	database, store := postgres.Get(t).CreateDatabase(t), apptest.Redis(t)
	file := apptest.PopupConfig(t, "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n")
	var replicas []*apptest.Spillway
	for range 2 {
		s := apptest.Serve(t, binary.Path(t), "--database", database, "--redis", store.URL(""), file)
		s.WaitReady(t)
		replicas = append(replicas, s)
	}
	c := apptest.SendCampaign(t, replicas[0], "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	follows := func(status int, user string) {
		t.Helper()
		n := 0
		apptest.Await(t, "the other replica has the change", func() bool {
			n++
			a, _ := apptest.AskPopup(t, replicas[1], fmt.Sprintf("user=%s-%d", user, n))
			return a.Status == status
		})
	}
	follows(200, "new")
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 500, MaxIdleConnsPerHost: 500}}
	defer client.CloseIdleConnections()
	popupCrowd(t, client, replicas, "one-of-thousand")

	user, shown := showTo(t, replicas[0], "clicks") // shown by one replica, clicked on the other
	postShow(t, replicas[1].URL("popup/click"), shown.Show)
	if got := decided(t, replicas[0], "user="+user); got != "204 0 wait-clicked" {
		t.Errorf("after a click on the other replica: %s, want 204 0 wait-clicked", got)
	}
	apptest.SendCampaign(t, replicas[0], "POST", fmt.Sprintf("/popups/campaigns/%v/pause", c["id"]), "", 200)
	follows(204, "paused")
	apptest.Await(t, "the click is counted", func() bool {
		return strings.Contains(string(apptest.Fetch(t, replicas[1].Admin+"/popups/campaigns").Body), `"clicks":1`)
	})

	store.Kill()
	apptest.Await(t, "popups are unavailable without Redis", func() bool {
		a, _ := apptest.AskPopup(t, replicas[0], "user="+user)
		return a.Status == 503 && a.Header.Get("Retry-After") != "" && strings.Contains(string(a.Body), "popups-down")
	})
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	expectReason(t, replicas[0], "user="+user, "204 0 wait-clicked") // the empty Redis has the states again
}

// TestPopupOnMariaDB: a click is accepted while the database is down, reaches it later, and
// survives a restart.
func TestPopupOnMariaDB(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t, "--innodb-flush-log-at-trx-commit=1") // commits survive a kill
	s := apptest.Serve(t, binary.Path(t), "--database", server.URL("test"), apptest.PopupConfig(t, ""))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	_, shown := apptest.AskPopup(t, s, "user=7")
	server.Kill()
	if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != 204 {
		t.Errorf("a click while the database is down: %d %s", status, body)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the database has the click", func() bool {
		return strings.Contains(string(apptest.Fetch(t, s.Admin+"/popups/campaigns").Body), `"shows":1,"clicks":1`)
	})
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if a, _ := apptest.AskPopup(t, s, "user=7"); a.Header.Get("Spillway-Reason") != "wait-clicked" {
		t.Errorf("after a restart: %d %v", a.Status, a.Header)
	}
}

// TestPopupUsers: attributes come from the user's row, the user's id from a token.
func TestPopupUsers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users.db")
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
	if err != nil {
		t.Fatal(err)
	}
	err = sqlitex.ExecuteScript(conn, "CREATE TABLE users (id text PRIMARY KEY, age integer, vip boolean); INSERT INTO users VALUES ('7', 40, true), ('8', 12, false), ('9', NULL, NULL)", nil)
	if err != nil || conn.Close() != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, binary.Path(t), "--database", "sqlite:"+path, apptest.PopupConfig(t,
		"  attributes_sql: SELECT age, vip FROM users WHERE id = :user\n  attributes_timeout: 1m\n  identity: {trust: jwt, header: X-User-Token}\n"+
			"auth: {jwt: {keys: [{key: 0123456789abcdef0123456789abcdef}]}}\n"))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"grown","placement":"home","payload":1,"status":"active","target":"age >= 18 and vip"}`, 201)
	ask := func(token, query string) (int, string) {
		t.Helper()
		status, body, _, err := apptest.SendJSON(t.Context(), http.DefaultClient, http.MethodGet, s.URL("popup"+query), "", "X-User-Token", token)
		if err != nil {
			t.Fatal(err)
		}
		return status, string(body)
	}
	// The row takes precedence, even with NULL. Without a row the request's values are used.
	for user, want := range map[string]int{"7": 200, "8": 204, "9": 204, "10": 200} {
		if status, body := ask(popupJWT(t, user), "?age=99&vip=true"); status != want {
			t.Errorf("user %s: %d %s, want %d", user, status, body, want)
		}
	}
	if status, _ := ask(popupJWT(t, "9"), ""); status != 204 {
		t.Errorf("user 9 again: %d", status)
	}
	if status, body := ask(popupJWT(t, "8"), "?user=7"); status != 403 || !strings.Contains(body, "other-user") {
		t.Errorf("another user's id: %d %s", status, body)
	}
	if status, body := ask("", "?user=7"); status != 401 {
		t.Errorf("no token: %d %s", status, body)
	}
	if n := apptest.Metric(t, s, `spillway_query_executions_total{query="popups.attributes_sql"}`); n != 4 {
		t.Errorf("%v executions for four users, one of whom asked twice", n)
	}
}

// popupJWT returns a user's token, signed with HS256 and the key of the tests.
func popupJWT(t *testing.T, user string) string {
	t.Helper()
	part := base64.RawURLEncoding
	text := part.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + part.EncodeToString(fmt.Appendf(nil, `{"sub":%q,"exp":%d}`, user, time.Now().Add(time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte("0123456789abcdef0123456789abcdef"))
	mac.Write([]byte(text))
	return text + "." + part.EncodeToString(mac.Sum(nil))
}

// TestPopupThreads: with popups GOMAXPROCS is one more than without, and event loops add one each to the cores, or to what the
// environment says.
func TestPopupThreads(t *testing.T) {
	feeds := filepath.Join(t.TempDir(), "feeds.yaml")
	if err := os.WriteFile(feeds, []byte("feeds:\n  - path: /items\n    sql: SELECT id FROM items\n    key: id\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	database := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	apptest.Execute(t, conn, "CREATE TABLE items (id int PRIMARY KEY)")
	popups := apptest.PopupConfig(t, "")
	serve := func(set, database, file string) float64 {
		t.Setenv("GOMAXPROCS", set)
		s := apptest.Serve(t, binary.Path(t), "--database", database, file)
		s.WaitReady(t)
		return apptest.Metric(t, s, "go_sched_gomaxprocs_threads")
	}
	without := serve("", database, feeds)
	if got := serve("", "sqlite:"+filepath.Join(t.TempDir(), "a.db"), popups); without < 2 || got != without+1 {
		t.Errorf("%v threads with popups, %v without, want 2 or more without, and one more with them", got, without)
	}
	if got := serve("5", "sqlite:"+filepath.Join(t.TempDir(), "b.db"), popups); got != 5+5+1 {
		t.Errorf("%v threads with GOMAXPROCS=5, want 11", got)
	}
}
