package popuptest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
)

// popupReason requests a popup and returns status, campaign and reason.
func popupReason(t *testing.T, s *apptest.Spillway, query string) string {
	t.Helper()
	a, shown := apptest.AskPopup(t, s, query)
	return strings.TrimSpace(fmt.Sprintf("%d %d %s", a.Status, shown.Campaign, a.Header.Get("Spillway-Reason")))
}

// expectReason waits until a request gets an answer. After 503 nobody knows whether a popup was
// shown: then the next request may be answered that the user waits.
func expectReason(t *testing.T, s *apptest.Spillway, query, want string) {
	t.Helper()
	unknown := false
	apptest.AwaitState(t, query+" gets "+want, func() (string, bool) {
		got := popupReason(t, s, query)
		unknown = unknown || strings.HasPrefix(got, "503")
		return got, got == want || unknown && strings.HasPrefix(want, "200") && got == "204 0 wait-shown"
	})
}

// showTo returns a popup that is shown to a user whose name begins with prefix. Another user
// asks if the answer was 503, after which nobody knows whether the popup was shown.
func showTo(t *testing.T, s *apptest.Spillway, prefix string) (user string, shown apptest.ShownPopup) {
	t.Helper()
	asked := 0
	apptest.AwaitState(t, "a user gets a popup", func() (string, bool) {
		asked++
		user = fmt.Sprintf("%s%d", prefix, asked)
		var a apptest.Answer
		a, shown = apptest.AskPopup(t, s, "user="+user)
		return fmt.Sprintf("%d %s", a.Status, a.Body), shown.Show != ""
	})
	return user, shown
}

// decided returns the first answer that is not 503, as popupReason does.
func decided(t *testing.T, s *apptest.Spillway, query string) (answer string) {
	t.Helper()
	apptest.Await(t, query+" is decided", func() bool {
		answer = popupReason(t, s, query)
		return !strings.HasPrefix(answer, "503")
	})
	return answer
}

// postShow posts a token until the answer is not 503, which is safe, and expects 204.
func postShow(t *testing.T, url, show string) {
	t.Helper()
	apptest.Await(t, url+" is answered", func() bool {
		status, body := apptest.PostPopup(t, url, apptest.ShowToken(show))
		if status != http.StatusNoContent && status != http.StatusServiceUnavailable {
			t.Fatalf("%s: %d %s, want 204", url, status, body)
		}
		return status == http.StatusNoContent
	})
}

// TestPopupFollow: a change of a campaign reaches three replicas within a second. Concurrent
// saves on all replicas respect the limits.
func TestPopupFollow(t *testing.T) {
	t.Parallel()
	database, store := postgres.Get(t).CreateDatabase(t), apptest.Redis(t)
	file := apptest.PopupConfig(t, "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n")
	var replicas []*apptest.Spillway
	for range 3 {
		s := apptest.Serve(t, binary.Path(t), "--database", database, "--redis", store.URL(""), file)
		s.WaitReady(t)
		replicas = append(replicas, s)
	}
	c := apptest.SendCampaign(t, replicas[0], "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	user := 0
	arrives := func(status int) (took time.Duration) {
		t.Helper()
		begin := time.Now()
		for r, s := range replicas {
			apptest.Await(t, fmt.Sprintf("replica %d answers %d", r, status), func() bool {
				user++
				a, _ := apptest.AskPopup(t, s, fmt.Sprint("user=", user))
				return a.Status == status
			})
		}
		return time.Since(begin)
	}
	arrives(200)
	for i := range 2 {
		apptest.SendCampaign(t, replicas[1+i], "POST", fmt.Sprintf("/popups/campaigns/%v/pause", c["id"]), "", 200)
		arrives(204)
		apptest.SendCampaign(t, replicas[i], "POST", fmt.Sprintf("/popups/campaigns/%v/resume", c["id"]), "", 200)
		arrives(200)
	}
	apptest.AwaitState(t, "a change is on every replica within a second", func() (string, bool) { // the machine may delay some
		apptest.SendCampaign(t, replicas[0], "POST", fmt.Sprintf("/popups/campaigns/%v/resume", c["id"]), "", 200)
		arrives(200)
		apptest.SendCampaign(t, replicas[2], "POST", fmt.Sprintf("/popups/campaigns/%v/pause", c["id"]), "", 200)
		took := arrives(204)
		return "it took " + took.String(), took < time.Second
	})
	if testing.Short() {
		popupManySave(t, database, replicas, 12)
	} else {
		popupManySave(t, database, replicas, 40)
	}
}

// popupManySave concurrently saves campaigns at a placement that may have 8 less.
func popupManySave(t *testing.T, database string, replicas []*apptest.Spillway, saves int) {
	t.Helper()
	const most, refused = 500, 8
	popupStore(t, database, fmt.Sprintf(`INSERT INTO popup_campaigns SELECT 100 + n, 'many', 'checkout', status, version, (campaign::jsonb || jsonb_build_object('order', n, 'target', 'true'))::text
		FROM popup_campaigns, generate_series(1, %d) AS n WHERE id = 1`, most-saves+refused))
	var mu sync.Mutex
	statuses := map[int]int{}
	var group sync.WaitGroup
	for i := range saves {
		group.Go(func() {
			body := fmt.Sprintf(`{"name":"one more, %d","placement":"checkout","payload":1,"status":"active"}`, i)
			for {
				status, _, _, err := apptest.SendJSON(t.Context(), http.DefaultClient, http.MethodPost, replicas[i%3].Admin+"/popups/campaigns", body)
				if err != nil {
					t.Error(err)
					return
				}
				if status != http.StatusServiceUnavailable { // too many at once: retry
					mu.Lock()
					defer mu.Unlock()
					statuses[status]++
					return
				}
			}
		})
	}
	group.Wait()
	if statuses[201] != saves-refused || statuses[422] != refused {
		t.Errorf("answers to %d campaigns: %v, want 201 to all but %d, which get 422", saves, statuses, refused)
	}
	for _, s := range replicas {
		apptest.Await(t, "all replicas go on", func() bool { return popupReason(t, s, "user=7&placement=checkout")[:1] == "2" })
	}
}

// popupStore changes stored campaigns.
func popupStore(t *testing.T, database string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range append(statements, "UPDATE popup_version SET version = version + 1") {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPopupBroken: an invalid stored campaign does not affect the others or the start of a
// replica, and explain names the problem.
func TestPopupBroken(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	s := apptest.Serve(t, binary.Path(t), "--database", database, apptest.PopupConfig(t, ""))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"old","placement":"home","payload":1,"status":"active","target":"age > 1","order":1}`, 201)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"odd","placement":"home","payload":1,"status":"active","order":2}`, 201)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	popupStore(t, database,
		`UPDATE popup_campaigns SET campaign = (campaign::jsonb || '{"target":"gone > 1"}')::text WHERE id = 1`, // an attribute that is no longer configured
		`UPDATE popup_campaigns SET campaign = (campaign::jsonb || '{"cap":-7}')::text WHERE id = 2`,
		`INSERT INTO popup_campaigns SELECT 100 + n, 'many', placement, status, version, (campaign::jsonb || jsonb_build_object('order', 50 + n, 'cap', 1, 'target', 'true'))::text
			FROM popup_campaigns, generate_series(1, 499) AS n WHERE id = 3`)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if got := popupReason(t, s, "user=7"); got != "200 3 first" {
		t.Errorf("the campaign that can be shown: %s", got)
	}
	var explained struct {
		Campaigns []struct {
			Campaign         int
			Verdict, Problem string
		}
	}
	a := apptest.Fetch(t, s.Admin+"/popups/explain?user=8")
	if err := json.Unmarshal(a.Body, &explained); err != nil || len(explained.Campaigns) != 502 {
		t.Fatalf("%s %v", a.Body, err)
	}
	want := map[int]string{1: "target: 1:1: unknown name gone", 2: "cap must be", 599: "more than 500"}
	for _, one := range explained.Campaigns {
		problem, broken := want[one.Campaign]
		if broken != (one.Verdict == "problem") || !strings.Contains(one.Problem, problem) {
			t.Errorf("%+v, want %q", one, problem)
		}
	}
	// It can be corrected, and no other one can be added.
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns/599/archive", "", 200)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns/1/archive", "", 200)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"more","placement":"home","payload":1,"cap":1}`, 422)
}

// TestPopupTimes: start and end, a cap and another placement.
func TestPopupTimes(t *testing.T) {
	t.Parallel()
	s := popupDemo(t)
	for id := 1; id <= 3; id++ {
		apptest.SendCampaign(t, s, "POST", fmt.Sprintf("/popups/campaigns/%d/archive", id), "", 200)
	}
	at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	c := apptest.SendCampaign(t, s, "POST", "/popups/campaigns", fmt.Sprintf(
		`{"name":"later","placement":"home","payload":1,"status":"active","start":%q,"end":%q,"cap":2,"repeat_after":"1h"}`, at(10*time.Hour), at(20*time.Hour)), 201)
	later := fmt.Sprint(c["id"])
	for _, step := range []struct{ query, want string }{
		{"user=1", "204 0 none-runs"},
		{"user=1&clock_offset=9h59m", "204 0 none-runs"},
		{"user=1&clock_offset=10h1m", "200 " + later + " first"},
		{"user=1&clock_offset=10h30m", "204 0 wait-shown"},
		{"user=1&clock_offset=11h2m", "200 " + later + " again"},
		{"user=1&clock_offset=13h", "204 0 none-left"}, // shown twice
		{"user=2&clock_offset=19h59m", "200 " + later + " first"},
		{"user=3&clock_offset=20h1m", "204 0 none-left"},
		{"user=2&clock_offset=21h", "204 0 none-left"},
	} {
		if got := popupReason(t, s, step.query); got != step.want {
			t.Errorf("%s: %s, want %s", step.query, got, step.want)
		}
	}
	a, _ := apptest.AskPopup(t, s, "user=1")
	if next, err := time.Parse(time.RFC3339, a.Header.Get("Spillway-Next-At")); a.Status != 204 || err == nil && time.Until(next) > 21*time.Hour {
		t.Errorf("%d %v %v", a.Status, a.Header, err)
	}
}

// TestPopupPlacements: a user's states at two placements are independent.
func TestPopupPlacements(t *testing.T) {
	t.Parallel()
	s := apptest.Serve(t, binary.Path(t), "--database", "sqlite:"+filepath.Join(t.TempDir(), "db"), apptest.PopupConfig(t, ""))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", strings.Replace(apptest.PopupForAll, `"home"`, `"checkout"`, 1), 201)
	_, home := apptest.AskPopup(t, s, "user=7")
	if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(home.Show)); status != 204 {
		t.Errorf("click: %d %s", status, body)
	}
	for _, step := range []struct{ query, want string }{
		{"user=7", "204 0 wait-clicked"},
		{"user=7&placement=home", "204 0 wait-clicked"},
		{"user=7&placement=checkout", "200 2 first"},
		{"user=7&placement=checkout", "204 0 wait-shown"},
		{"user=7&placement=nowhere", "400 0"},
	} {
		if got := popupReason(t, s, step.query); got != step.want {
			t.Errorf("%s: %s, want %s", step.query, got, step.want)
		}
	}
	apptest.Await(t, "the rate of clicks is known", func() bool {
		var one struct {
			Rate float64 `json:"click_rate"`
		}
		return json.Unmarshal(apptest.Fetch(t, s.Admin+"/popups/campaigns/1").Body, &one) == nil && one.Rate == 1
	})
}

// TestPopupAnyway: without Redis, on_unavailable: anyway shows what a new user would get,
// without a token, and clicks are refused.
func TestPopupAnyway(t *testing.T) {
	t.Parallel()
	store := apptest.Redis(t)
	s := apptest.Serve(t, binary.Path(t), "--database", postgres.Get(t).CreateDatabase(t), "--redis", store.URL(""),
		apptest.PopupConfig(t, "  store: redis\n  on_unavailable: anyway\n  keys: [0123456789abcdef0123456789abcdef]\n"))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	user, shown := showTo(t, s, "user")
	store.Kill()
	for range 2 {
		if a, shown := apptest.AskPopup(t, s, "user="+user); a.Status != 200 || shown.Campaign != 1 || shown.Show != "" || a.Header.Get("Spillway-Reason") != "unavailable" {
			t.Errorf("%d %s %v", a.Status, a.Body, a.Header)
		}
	}
	if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != 503 || !strings.Contains(body, "popups-down") {
		t.Errorf("click: %d %s", status, body)
	}
	apptest.Await(t, "how many events wait is not known", func() bool { return apptest.Metric(t, s, "spillway_popup_events_waiting") == -1 })
}

// TestPopupRows: "no row" is cached, and an invalid value counts as missing.
func TestPopupRows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users.db")
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
	if err != nil {
		t.Fatal(err)
	}
	err = sqlitex.ExecuteScript(conn, "CREATE TABLE users (id text PRIMARY KEY, age real, country text); INSERT INTO users VALUES ('half', 1.5, 'NO'), ('endless', 9e999, 'NO'), "+
		"('long', 1, printf('%.2000c', 'x'))", nil)
	if err != nil || conn.Close() != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, binary.Path(t), "--database", "sqlite:"+path, apptest.PopupConfig(t, "  attributes_sql: SELECT age, country FROM users WHERE id = :user\n  attributes_ttl: 1h\n  attributes_timeout: 1m\n"))
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"a","placement":"home","payload":1,"status":"active","target":"age == nil and country == \"NO\"","order":1}`, 201)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"b","placement":"home","payload":1,"status":"active","target":"age == 1 and country == nil","order":2}`, 201)
	for range 3 { // requests the row each time, because no popup is shown
		if got := popupReason(t, s, "user=nobody&age=17"); got != "204 0 none-suits" {
			t.Errorf("a user without a row: %s", got)
		}
	}
	if n := apptest.Metric(t, s, `spillway_query_executions_total{query="popups.attributes_sql"}`); n != 1 {
		t.Errorf("%v statements for one user without a row", n)
	}
	for user, want := range map[string]string{"half": "200 1 first", "endless": "200 1 first", "long": "200 2 first"} {
		if got := popupReason(t, s, "user="+user+"&age=1&country=NO"); got != want {
			t.Errorf("user %s: %s, want %s", user, got, want)
		}
	}
	if n := apptest.Metric(t, s, "spillway_popup_attributes_refused_total"); n < 2 || n > 3 {
		t.Errorf("%v values are counted as refused", n) // the database may store infinity as NULL
	}
	if log := s.Log(t); strings.Contains(log, "popup state is not available") {
		t.Error(log)
	}
}

// TestPopupRedisRefused: an unsuitable Redis is a configuration error at start, in one line.
func TestPopupRedisRefused(t *testing.T) {
	t.Parallel()
	store := apptest.Redis(t, "--maxmemory-policy", "allkeys-lru")
	_, stderr, code := binary.Run(t, "serve", "--strict", "--database", postgres.Get(t).CreateDatabase(t), "--redis", store.URL(""), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		apptest.PopupConfig(t, "  store: redis\n  keys: [0123456789abcdef0123456789abcdef]\n"))
	if code != 2 || !strings.Contains(stderr, "CONFIG SET maxmemory-policy noeviction") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// TestPopupMemoryUsers: a process that may keep the states of few users serves many. The
// database has those that it evicts, and each user's popups go on, also after a restart with
// more stored states than it may keep.
func TestPopupMemoryUsers(t *testing.T) {
	t.Parallel()
	const users, limit = 60, 20
	database := postgres.Get(t).CreateDatabase(t)
	file := apptest.PopupConfig(t, fmt.Sprintf("  memory_users: %d\n", limit))
	s := apptest.Serve(t, binary.Path(t), "--database", database, file)
	s.WaitReady(t)
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", apptest.PopupForAll, 201)
	for user := range users {
		apptest.Await(t, "a popup for a new user", func() bool {
			// Nobody can be evicted while the events of all wait for the database.
			a, shown := apptest.AskPopup(t, s, fmt.Sprintf("user=%d", user))
			if a.Status == http.StatusOK {
				if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != http.StatusNoContent {
					t.Fatalf("click: %d %s", status, body)
				}
			}
			return a.Status == http.StatusOK
		})
	}
	check := func() {
		t.Helper()
		for user := range users {
			if got := popupReason(t, s, fmt.Sprintf("user=%d", user)); got != "204 0 wait-clicked" {
				t.Errorf("user %d: %s", user, got)
			}
		}
		if states, evicted := apptest.Metric(t, s, "spillway_popup_states"), apptest.Metric(t, s, "spillway_popup_states_evicted_total"); states > limit || evicted < users-limit {
			t.Errorf("%v states, %v evicted", states, evicted)
		}
	}
	apptest.Await(t, "the database has all events", func() bool { return apptest.Metric(t, s, "spillway_popup_events_waiting") == 0 })
	check()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	check()
}
