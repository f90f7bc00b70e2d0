package main

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
)

// popupShown is a popup in the answer to GET.
type popupShown struct {
	Campaign int
	Payload  json.RawMessage
	Show     string
}

// popupAsk requests a popup and returns the answer and the popup in it.
func popupAsk(t *testing.T, s *apptest.Spillway, query string) (answer, popupShown) {
	t.Helper()
	a := fetch(t, s.URL("popup?"+query))
	var shown popupShown
	if a.status == http.StatusOK {
		if err := json.Unmarshal(a.body, &shown); err != nil {
			t.Fatalf("%s: %v", a.body, err)
		}
	}
	return a, shown
}

// popupSend sends JSON and returns the status and the body.
func popupSend(ctx context.Context, client *http.Client, method, url, body string, headers ...string) (int, []byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	var out bytes.Buffer
	_, err = out.ReadFrom(resp.Body)
	return resp.StatusCode, out.Bytes(), resp.Header, err
}

func popupPost(t *testing.T, url, body string) (int, string) {
	t.Helper()
	status, answer, _, err := popupSend(t.Context(), http.DefaultClient, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, string(answer)
}

func popupToken(show string) string { return fmt.Sprintf(`{"show":%q}`, show) }

// popupCampaign sends a campaign to the admin API of a server.
func popupCampaign(t *testing.T, s *apptest.Spillway, method, path, body string, want int, headers ...string) map[string]any {
	t.Helper()
	status, answer, _, err := popupSend(t.Context(), http.DefaultClient, method, s.Admin+path, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	var campaign map[string]any
	if err := json.Unmarshal(answer, &campaign); err != nil || status != want {
		t.Fatalf("%s %s: %d %s %v, want %d", method, path, status, answer, err, want)
	}
	return campaign
}

// popupDemo serves the freight app.
func popupDemo(t *testing.T) *apptest.Spillway {
	t.Helper()
	s := apptest.Serve(t, shared.binary)
	s.WaitReady(t)
	return s
}

// TestPopupDemo follows the documented tour and tests every row of the table of rules, with
// the campaigns of the freight app.
func TestPopupDemo(t *testing.T) {
	t.Parallel()
	s := popupDemo(t)
	const old = "&app_version=29"
	_, first := popupAsk(t, s, "user=7"+old)
	if first.Campaign != 1 || !strings.Contains(string(first.Payload), "new version") {
		t.Fatalf("the first matching campaign: %+v", first)
	}
	if _, new := popupAsk(t, s, "user=9&app_version=31"); new.Campaign == 1 {
		t.Errorf("campaign 1 does not match: %+v", new)
	}
	for offset, want := range map[string]string{"0s": "wait-shown", "23h59m": "wait-shown"} {
		a, _ := popupAsk(t, s, "user=7&clock_offset="+offset+old)
		if a.status != 204 || a.header.Get("Spillway-Reason") != want || a.header.Get("Spillway-Next-At") == "" {
			t.Errorf("not clicked, %s later: %d %v", offset, a.status, a.header)
		}
	}
	_, again := popupAsk(t, s, "user=7&clock_offset=24h1m"+old)
	if again.Campaign != 1 || again.Show == first.Show {
		t.Errorf("not clicked, after repeat_after: %+v", again)
	}
	if _, next := popupAsk(t, s, "user=7&clock_offset=48h5m&app_version=31"); next.Campaign != 2 && next.Campaign != 3 {
		t.Errorf("not clicked, and it no longer matches: %+v", next)
	}
	if status, body := popupPost(t, s.URL("popup/click?clock_offset=24h2m"), popupToken(again.Show)); status != 410 {
		t.Errorf("a click after the next show: %d %s", status, body)
	}

	_, shown := popupAsk(t, s, "user=0000000000000000008"+old) // the same user as 8, because ids are numbers
	if status, body := popupPost(t, s.URL("popup/click"), popupToken(shown.Show)); status != 204 {
		t.Fatalf("click: %d %s", status, body)
	}
	a, _ := popupAsk(t, s, "user=8&clock_offset=23h59m"+old)
	if a.status != 204 || a.header.Get("Spillway-Reason") != "wait-clicked" {
		t.Errorf("clicked, in the quiet period: %d %v", a.status, a.header)
	}
	_, next := popupAsk(t, s, "user=8&clock_offset=24h1m"+old)
	if next.Campaign < 2 {
		t.Errorf("clicked, after it: %+v", next)
	}
	offset := 24*time.Hour + 2*time.Minute
	for next.Campaign == 2 || next.Campaign == 3 { // dismiss the rest
		at := fmt.Sprintf("clock_offset=%s", offset)
		if status, body := popupPost(t, s.URL("popup/dismiss?"+at), popupToken(next.Show)); status != 204 {
			t.Fatalf("dismiss: %d %s", status, body)
		}
		offset += 8 * 24 * time.Hour
		a, next = popupAsk(t, s, fmt.Sprintf("user=8&clock_offset=%s%s", offset, old))
	}
	if a.status != 204 || a.header.Get("Spillway-Reason") != "none-left" || a.header.Get("Spillway-Next-At") != "" {
		t.Errorf("none left: %d %v", a.status, a.header)
	}
	popupDemoAdmin(t, s, fmt.Sprintf("user=8&clock_offset=%s%s", offset, old))

	if a := fetch(t, s.URL("popup?user=x")); a.status != 400 || !bytes.Contains(a.body, []byte("user must be a whole number")) {
		t.Errorf("an id that is no number: %d %s", a.status, a.body)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if status, _ := popupPost(t, s.URL("popup/click"), popupToken(shown.Show)); status != 410 && status != 409 {
		t.Errorf("a repeated click on a show from before the restart: %d", status)
	}
	if a, _ := popupAsk(t, s, "user=7&clock_offset=48h6m"+old); a.status != 204 || a.header.Get("Spillway-Reason") != "wait-shown" {
		t.Errorf("the restart lost the state: %d %v", a.status, a.header)
	}
}

// popupDemoAdmin creates a campaign for a user who has none left, and requests the explanation.
func popupDemoAdmin(t *testing.T, s *apptest.Spillway, query string) {
	t.Helper()
	c := popupCampaign(t, s, "POST", "/popups/campaigns", `{"name":"late","placement":"home","order":99,"payload":{"n":1},"target":"app_version < 30","status":"active"}`, 201)
	eventually(t, "the new campaign is shown", func() bool {
		_, shown := popupAsk(t, s, query)
		return shown.Campaign == int(c["id"].(float64))
	})
	var explained struct {
		State     struct{ Phase string }
		Campaigns []struct {
			Campaign int
			Verdict  string
		}
	}
	a := fetch(t, s.Admin+"/popups/explain?"+query)
	if err := json.Unmarshal(a.body, &explained); err != nil || a.status != 200 || len(explained.Campaigns) != 4 || explained.State.Phase != "shown" ||
		explained.Campaigns[0].Verdict != "clicked" || explained.Campaigns[3].Verdict != "user-waits" {
		t.Errorf("explain: %d %s %v", a.status, a.body, err)
	}
	eventually(t, "the database has all shows", func() bool {
		var one struct{ Shows, Clicks int }
		a := fetch(t, s.Admin+"/popups/campaigns/1")
		return json.Unmarshal(a.body, &one) == nil && one.Shows == 3 && one.Clicks == 1
	})
}

// popupConfig writes a configuration with popups. more contains further lines of the block.
func popupConfig(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	text := "popups:\n  path: /popup\n  placements: [home, checkout]\n  attributes: {country: text, age: integer, vip: boolean}\n" + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const popupForAll = `{"name":"all","placement":"home","order":10,"payload":{"n":1},"status":"active","quiet_click":"1h"}`

// TestPopupCrowd: one of 1,000 concurrent requests of a user gets the popup. After kill -9
// under load each acknowledged click is stored once. A second process is refused.
func TestPopupCrowd(t *testing.T) {
	t.Parallel()
	database := shared.postgres.CreateDatabase(t)
	file := popupConfig(t, "")
	s := apptest.Serve(t, shared.binary, "--database", database, file)
	s.WaitReady(t)
	popupCampaign(t, s, "POST", "/popups/campaigns", popupForAll, 201)
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1000, MaxIdleConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	popupCrowd(t, client, []*apptest.Spillway{s}, "one-of-thousand")

	_, stderr, code := spillway(t, "serve", "--strict", "--database", database, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir(), file)
	if code != 3 || !strings.Contains(stderr, fmt.Sprintf("process %d on", s.PID())) || !strings.Contains(stderr, "popups.store: redis") {
		t.Errorf("a second process on the database: exit %d, %s", code, stderr)
	}

	acked := popupKillUnderLoad(t, client, s)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	eventually(t, "all events reach the database", func() bool { return metric(t, s, "spillway_popup_events_waiting") == 0 })
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
	for user := range acked {
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM popup_events WHERE kind = 2 AND user_id = $1`, user).Scan(&n); err != nil {
			t.Fatal(err)
		}
		a, _ := popupAsk(t, s, "user="+user)
		if n != 1 || a.header.Get("Spillway-Reason") != "wait-clicked" {
			t.Fatalf("the acknowledged click of user %s is %d times in the database; the next answer: %v", user, n, a.header)
		}
	}
	t.Logf("%d clicks were acknowledged before the kill, %d are stored", len(acked), clicks)
}

// popupCrowd sends 1,000 concurrent requests of one user. Exactly one may get the popup.
func popupCrowd(t *testing.T, client *http.Client, replicas []*apptest.Spillway, user string) {
	t.Helper()
	var shown, none atomic.Int64
	var group sync.WaitGroup
	for i := range 1000 {
		group.Go(func() {
			a, err := tryFetch(t.Context(), client, replicas[i%len(replicas)].URL("popup?user="+user))
			switch {
			case err == nil && a.status == http.StatusOK:
				shown.Add(1)
			case err == nil && a.status == http.StatusNoContent:
				none.Add(1)
			default:
				t.Errorf("%d %s %v", a.status, a.body, err)
			}
		})
	}
	group.Wait()
	if shown.Load() != 1 || none.Load() != 999 {
		t.Errorf("user %s: %d shows, %d answers without a popup", user, shown.Load(), none.Load())
	}
}

// popupKillUnderLoad kills the server while users click, restarts it, and returns the users
// whose click was acknowledged.
func popupKillUnderLoad(t *testing.T, client *http.Client, s *apptest.Spillway) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	acked := map[string]bool{}
	enough := make(chan struct{})
	var group sync.WaitGroup
	for worker := range 32 {
		group.Go(func() {
			for i := 0; ; i++ {
				user := fmt.Sprintf("w%d-%d", worker, i)
				a, err := tryFetch(t.Context(), client, s.URL("popup?user="+user))
				if err != nil {
					return // killed
				}
				var shown popupShown
				if json.Unmarshal(a.body, &shown) != nil || shown.Show == "" {
					t.Errorf("user %s: %d %s", user, a.status, a.body)
					return
				}
				status, body, _, err := popupSend(t.Context(), client, http.MethodPost, s.URL("popup/click"), popupToken(shown.Show))
				if err != nil {
					return
				}
				if status != http.StatusNoContent {
					t.Errorf("click: %d %s", status, body)
					return
				}
				mu.Lock()
				if acked[user] = true; len(acked) == 2000 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(30 * time.Second):
		t.Error("fewer than 2,000 clicks in 30 s")
	}
	s.Kill()
	group.Wait()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	return acked
}

// TestPopupReplicas: two processes with Redis show a popup to a user once, and apply each
// other's changes of campaigns within a second.
func TestPopupReplicas(t *testing.T) {
	t.Parallel()
	database, store := shared.postgres.CreateDatabase(t), apptest.Redis(t)
	file := popupConfig(t, "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n")
	var replicas []*apptest.Spillway
	for range 2 {
		s := apptest.Serve(t, shared.binary, "--database", database, "--redis", store.URL(""), file)
		s.WaitReady(t)
		replicas = append(replicas, s)
	}
	c := popupCampaign(t, replicas[0], "POST", "/popups/campaigns", popupForAll, 201)
	follows := func(status int, user string) {
		t.Helper()
		begin := time.Now()
		for n := 0; ; n++ {
			if a, _ := popupAsk(t, replicas[1], fmt.Sprintf("user=%s-%d", user, n)); a.status == status {
				break
			}
			took := time.Since(begin)
			if took > time.Second {
				t.Fatalf("the other replica does not have the change after %s", took)
			}
			select { // a busy loop would take the CPU that polling needs
			case <-time.After(10 * time.Millisecond):
			case <-t.Context().Done():
			}
		}
	}
	follows(200, "new")
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 500, MaxIdleConnsPerHost: 500}}
	defer client.CloseIdleConnections()
	popupCrowd(t, client, replicas, "one-of-thousand")

	_, shown := popupAsk(t, replicas[0], "user=7") // shown by one replica, clicked on the other
	if status, body := popupPost(t, replicas[1].URL("popup/click"), popupToken(shown.Show)); status != 204 {
		t.Errorf("click: %d %s", status, body)
	}
	if a, _ := popupAsk(t, replicas[0], "user=7"); a.header.Get("Spillway-Reason") != "wait-clicked" {
		t.Errorf("after a click on the other replica: %d %v", a.status, a.header)
	}
	popupCampaign(t, replicas[0], "POST", fmt.Sprintf("/popups/campaigns/%v/pause", c["id"]), "", 200)
	follows(204, "paused")
	eventually(t, "the click is counted", func() bool {
		return strings.Contains(string(fetch(t, replicas[1].Admin+"/popups/campaigns").body), `"clicks":1`)
	})

	store.Kill()
	eventually(t, "popups are unavailable without Redis", func() bool {
		a, _ := popupAsk(t, replicas[0], "user=7")
		return a.status == 503 && a.header.Get("Retry-After") != "" && strings.Contains(string(a.body), "popups-down")
	})
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the empty Redis has the states again", func() bool {
		a, _ := popupAsk(t, replicas[0], "user=7")
		return a.header.Get("Spillway-Reason") == "wait-clicked"
	})
}

// TestPopupOnMariaDB: a click is accepted while the database is down, reaches it later, and
// survives a restart.
func TestPopupOnMariaDB(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t, "--innodb-flush-log-at-trx-commit=1") // commits survive a kill
	s := apptest.Serve(t, shared.binary, "--database", server.URL("test"), popupConfig(t, ""))
	s.WaitReady(t)
	popupCampaign(t, s, "POST", "/popups/campaigns", popupForAll, 201)
	_, shown := popupAsk(t, s, "user=7")
	server.Kill()
	if status, body := popupPost(t, s.URL("popup/click"), popupToken(shown.Show)); status != 204 {
		t.Errorf("a click while the database is down: %d %s", status, body)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the database has the click", func() bool {
		return strings.Contains(string(fetch(t, s.Admin+"/popups/campaigns").body), `"shows":1,"clicks":1`)
	})
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if a, _ := popupAsk(t, s, "user=7"); a.header.Get("Spillway-Reason") != "wait-clicked" {
		t.Errorf("after a restart: %d %v", a.status, a.header)
	}
}

// TestPopupUsers: attributes come from the user's row, the user's id from a token.
func TestPopupUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.db")
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
	if err != nil {
		t.Fatal(err)
	}
	err = sqlitex.ExecuteScript(conn, "CREATE TABLE users (id text PRIMARY KEY, age integer, vip boolean); INSERT INTO users VALUES ('7', 40, true), ('8', 12, false), ('9', NULL, NULL)", nil)
	if err != nil || conn.Close() != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, shared.binary, "--database", "sqlite:"+path, popupConfig(t,
		"  attributes_sql: SELECT age, vip FROM users WHERE id = :user\n  identity: {trust: jwt, key: 0123456789abcdef0123456789abcdef, header: X-User-Token}\n"))
	s.WaitReady(t)
	popupCampaign(t, s, "POST", "/popups/campaigns", `{"name":"grown","placement":"home","payload":1,"status":"active","target":"age >= 18 and vip"}`, 201)
	ask := func(token, query string) (int, string) {
		t.Helper()
		status, body, _, err := popupSend(t.Context(), http.DefaultClient, http.MethodGet, s.URL("popup"+query), "", "X-User-Token", token)
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
	if n := metric(t, s, `spillway_query_executions_total{query="popups.attributes_sql"}`); n != 4 {
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
	database := shared.postgres.CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	execute(t, conn, "CREATE TABLE items (id int PRIMARY KEY)")
	serve := func(set string, args ...string) float64 {
		t.Setenv("GOMAXPROCS", set)
		s := apptest.Serve(t, shared.binary, args...)
		s.WaitReady(t)
		return metric(t, s, "go_sched_gomaxprocs_threads")
	}
	without := serve("", "--database", database, feeds)
	if got := serve(""); without < 2 || got != without+1 {
		t.Errorf("%v threads with popups, %v without", got, without)
	}
	if got := serve("5"); got != 5+5+1 {
		t.Errorf("%v threads with GOMAXPROCS=5", got)
	}
}
