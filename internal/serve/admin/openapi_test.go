package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/apptest"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/spool"
)

// TestOpenAPI walks all routes: every answer is as documented, and every documented path,
// status and field occurs.
func TestOpenAPI(t *testing.T) {
	c := startCampaigns(t)
	document, header := fetchDocument(t, c.base)
	if header.Get("Content-Type") != "application/json" {
		t.Errorf("content type %s", header.Get("Content-Type"))
	}
	d := apptest.NewOpenAPI(t, document)
	w := &walk{OpenAPI: d, t: t, servers: map[string]string{"": c.base}}
	w.startOthers(t, c)
	w.everyRoute(t)
	w.send("", "GET", "/figures/traffic", "/figures/traffic?step_seconds=2", "")
	w.send("", "GET", "/figures/traffic", "/figures/traffic?step_seconds=1", "")
	w.campaigns(c)
	w.spools(t)
	w.reads()
	w.changes(t, c)
	w.busy(t)

	statuses, fields := d.Promises()
	compareSets(t, "statuses", statuses, d.Statuses)
	compareSets(t, "fields", fields, d.Fields)
}

func compareSets(t *testing.T, what string, documented, seen map[string]bool) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(seen))); diff != "" {
		t.Errorf("%s (-documented +seen):\n%s", what, diff)
	}
}

func asObject(value any) map[string]any { object, _ := value.(map[string]any); return object }

func fetchDocument(t *testing.T, base string) ([]byte, http.Header) {
	t.Helper()
	status, header, text := get(t, base+"/openapi.json", nil)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	return []byte(text), header
}

// walk sends requests of documented paths to servers in different states.
type walk struct {
	*apptest.OpenAPI
	t       *testing.T
	servers map[string]string // base URLs by state
}

// send sends a request to a server, with pairs of headers, and checks the answer.
func (w *walk) send(server, method, path, target, body string, headers ...string) (int, []byte) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.servers[server]+target, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Close = true
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	w.See(method, path, response, text)
	return response.StatusCode, text
}

// startOthers starts a server with a token, and one whose parts do not answer.
func (w *walk) startOthers(t *testing.T, c *campaignAPI) {
	t.Helper()
	down := errors.New("down")
	popups := *c.config.Popups
	popups.Counts = func(context.Context) (map[popup.CampaignID]popup.Counts, error) { return nil, down }
	signer := popup.NewSigner([][]byte{make([]byte, 32)}, time.Hour)
	broken, err := popup.Open(popup.Config{Store: popup.NewLocal(10, time.Second, nil, nil, c.config.Log), Signer: signer, Log: c.config.Log}, c.popup.Set())
	if err != nil {
		t.Fatal(err)
	}
	popups.Popup, popups.Reports, popups.Forget = broken, downTables{down}, forgetter(down)
	popups.Campaigns = popup.NewCampaigns(downTables{down}, downTables{down}, broken, popup.Defaults{}, c.config.Log)
	parts := []Part{
		{Name: "/a", Group: Reads, Reason: "down", Detail: "down: refused", Since: time.Now()},
		{Name: "POST /b", Group: Writes, Reason: "down", Detail: "down: refused", Since: time.Now()},
		{Name: "/popup", Group: Shows, Reason: "down", Detail: "down: refused", Since: time.Now()},
	}
	w.servers["down"] = start(t, Config{
		Popups: &popups, Ready: func() []Part { return parts }, Acks: func() []StreamAck { return []StreamAck{{"/b", "spool"}} },
		Reload: func(context.Context) error { return down },
		Spools: map[string]*Spool{"streams": {Open: func() *spool.Spool { return nil }}},
		Read:   func(path string) *Read { return &Read{Path: path, Kind: "query", Plans: []feed.CheckedPlan{}} },
	})
	w.servers["token"] = start(t, Config{Popups: c.config.Popups, Tokens: []Token{{"admin", "secret", RoleAdmin}}, Reload: c.config.Reload})
	w.servers["reader"] = start(t, Config{Popups: c.config.Popups, Tokens: []Token{{"ann", "secret", RoleRead}}, Reload: c.config.Reload})
}

// downTables do not answer.
type downTables struct{ err error }

func (d downTables) Version(context.Context) (int64, error) { return 0, d.err }

func (d downTables) Campaigns(context.Context) (int64, []popup.StoredCampaign, error) {
	return 0, nil, d.err
}

func (d downTables) SaveCampaign(_ context.Context, c popup.StoredCampaign, _ int64, _ audit.Author) (popup.StoredCampaign, error) {
	return c, d.err
}

func (d downTables) Lists(context.Context) ([]popup.ListVersion, error) { return nil, d.err }

func (d downTables) ListUsers(context.Context, string) (popup.ListVersion, []uint64, error) {
	return popup.ListVersion{}, nil, d.err
}

func (d downTables) ReplaceList(context.Context, string, []uint64, audit.Author) (popup.ListVersion, error) {
	return popup.ListVersion{}, d.err
}

func (d downTables) DeleteList(context.Context, string, audit.Author) error { return d.err }

func (d downTables) Hours(context.Context, popup.CampaignID, time.Time, time.Time) ([]popup.Hour, error) {
	return nil, d.err
}

func (d downTables) History(context.Context, popup.CampaignID, int) ([]popup.CampaignChange, error) {
	return nil, d.err
}

// everyRoute compares the routes with the documented paths, and sends each method to each.
func (w *walk) everyRoute(t *testing.T) {
	t.Helper()
	s := Server{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	s.cfg.Registry, s.cfg.Popups, s.cfg.Reload = prometheus.NewRegistry(), &Popups{Reports: downTables{}, Forget: forgetter(nil)}, func(context.Context) error { return nil }
	routes := map[string]bool{}
	for _, r := range append(s.openRoutes(), s.closedRoutes()...) {
		routes[r.method+" "+strings.TrimSuffix(r.path, "{$}")] = true
	}
	operations := map[string]bool{}
	for path, methods := range asObject(w.Document["paths"]) {
		for method := range asObject(methods) {
			operations[strings.ToUpper(method)+" "+path] = true
		}
	}
	compareSets(t, "routes", operations, routes)
	w.send("", "POST", "/popups/campaigns", "/popups/campaigns", birthday, "Content-Type", "application/json")
	w.send("", "GET", "/popups/explain", "/popups/explain?user=7", "") // a condition is false
	for _, path := range slices.Sorted(maps.Keys(asObject(w.Document["paths"]))) {
		target := strings.NewReplacer("{id}", "1", "{name}", "heap", "{user}", "7", "{list}", "vip", "{spool}", "streams").Replace(path) + "?user=7"
		switch path {
		case "/debug/pprof/profile":
			target += "&seconds=1"
		case "/debug/pprof/trace":
			target += "&seconds=0.01"
		}
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			w.send("", method, path, target, "")
			w.send("", method, path, target, "", "Host", "evil.example")
			w.send("token", method, path, target, "")
			w.send("reader", method, path, target, "", "Authorization", "Bearer secret")
			if strings.HasPrefix(path, "/readyz") {
				w.send("", method, path, target+"&parts=/nothing", "")
			}
			if !strings.HasPrefix(path, "/debug/") {
				w.send("down", method, path, target, birthday, "Content-Type", "application/json", "If-Match", `"1"`)
			}
		}
	}
}

// campaigns provokes every status of the campaign API.
func (w *walk) campaigns(c *campaignAPI) {
	const all, one = "/popups/campaigns", "/popups/campaigns/{id}"
	large := `{"payload":"` + strings.Repeat("x", campaignBytesMax) + `"}`
	json := []string{"Content-Type", "application/json"}
	send := func(method, path, target, body string, headers ...string) {
		w.t.Helper()
		w.send("", method, path, target, body, append(json, headers...)...)
	}
	foreign := []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}
	send("GET", all, all+"?status=on", "")
	const check = all + "/check"
	for _, body := range []string{`{"target":"agee > 1"}`, `[]`, large} {
		send("POST", check, check, body)
	}
	send("POST", all, all, `{"name":"a","placement":"home","payload":1,"target":"x"}`)
	send("POST", all, all, `{}`)
	send("POST", all, all, birthday, foreign...)
	send("POST", "/reload", "/reload", "", foreign...)
	send("POST", all, all, large)
	for method, media := range map[string]string{"PUT": "application/json", "PATCH": "application/merge-patch+json"} {
		created, text := w.send("", "POST", all, all, birthday, json...)
		var view campaignView
		if err := decodeInto(text, &view); err != nil || created != http.StatusCreated {
			w.t.Fatalf("%d %s %v", created, text, err)
		}
		id := fmt.Sprint(all, "/", view.ID)
		change := func(target, body string, version int64, headers ...string) {
			headers = append([]string{"Content-Type", media}, headers...)
			if version > 0 {
				headers = append(headers, "If-Match", fmt.Sprintf("%q", fmt.Sprint(version)))
			}
			w.send("", method, one, target, body, headers...)
		}
		change(id, birthday, view.Version)
		change(id, birthday, view.Version)
		change(id, birthday, 0)
		change(id, strings.Replace(birthday, "age > 17", "agee", 1), view.Version+1)
		change(id, birthday, view.Version+1, foreign...)
		change(id, large, 1)
		change(id, `{"nam":1}`, 1)
		change(all+"/99", birthday, 1)
		w.send("down", method, one, id, birthday, "Content-Type", media, "If-Match", fmt.Sprintf("%q", fmt.Sprint(view.Version+1)))
		for _, action := range []string{"pause", "resume", "archive"} {
			path := one + "/" + action
			if action != "archive" {
				send("POST", path, id+"/"+action, "")
			}
			send("POST", path, id+"/"+action, "", foreign...)
			send("POST", path, id+"/"+action, "", "If-Match", `"1"`)
			send("POST", path, all+"/99/"+action, "")
			w.send("down", "POST", path, id+"/"+action, "")
		}
		send("POST", one+"/archive", id+"/archive", "")
		change(id, birthday, w.version(id))
		for _, action := range []string{"pause", "resume"} {
			send("POST", one+"/"+action, id+"/"+action, "")
		}
	}
	send("GET", one, all+"/99", "")
	for path, query := range map[string]string{"/report": "?from=x", "/history": "?limit=0"} {
		send("GET", one+path, all+"/99"+path+"?user=7", "")
		send("GET", one+path, all+"/1"+path+query, "")
	}
	w.lists(c, foreign)
	send("DELETE", "/popups/users/{user}", "/popups/users/x", "")
	send("DELETE", "/popups/users/{user}", "/popups/users/7", "", foreign...)
	send("GET", "/popups/explain", "/popups/explain", "")
	w.send("", "GET", "/debug/pprof/{name}", "/debug/pprof/nothing", "")
	w.shown(c)
}

// lists provokes every status of lists.
func (w *walk) lists(c *campaignAPI, foreign []string) {
	const path = "/popups/lists/{list}"
	text := []string{"Content-Type", "text/plain"}
	w.send("down", "PUT", path, "/popups/lists/vip", "7\n", text...)
	w.send("", "PUT", path, "/popups/lists/vip", "7\n8\n", text...)
	w.send("", "GET", "/popups/lists", "/popups/lists", "")
	w.send("", "PUT", path, "/popups/lists/vip", "7\nx\n", text...)
	w.send("", "PUT", path, "/popups/lists/vip", "", append(text, foreign...)...)
	s := newServer(Config{Listen: "127.0.0.1:0", Registry: prometheus.NewRegistry(), Popups: c.config.Popups})
	large := httptest.NewRequest(http.MethodPut, "http://localhost/popups/lists/vip", http.NoBody)
	large.ContentLength = listBytesMax + 1
	large.Header.Set("Content-Type", "text/plain")
	recorder := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(recorder, large)
	w.See("PUT", path, recorder.Result(), recorder.Body.Bytes())
	campaign := `{"name":"a","placement":"home","payload":1,"target":"in_list(\"vip\")"}`
	_, body := w.send("", "POST", "/popups/campaigns", "/popups/campaigns", campaign, "Content-Type", "application/json")
	var view campaignView
	if err := decodeInto(body, &view); err != nil {
		w.t.Fatal(err)
	}
	w.send("", "DELETE", path, "/popups/lists/vip", "")
	w.send("", "DELETE", path, "/popups/lists/vip", "", foreign...)
	w.send("", "POST", "/popups/campaigns/{id}/archive", fmt.Sprintf("/popups/campaigns/%d/archive", view.ID), "")
	w.send("", "DELETE", path, "/popups/lists/vip", "")
	w.send("", "DELETE", path, "/popups/lists/vip", "")
}

// version returns the current version of a campaign.
func (w *walk) version(target string) int64 {
	var view campaignView
	if _, text := w.send("", "GET", "/popups/campaigns/{id}", target, ""); decodeInto(text, &view) != nil {
		w.t.Fatalf("%s", text)
	}
	return view.Version
}

func decodeInto(text []byte, to any) error { return json.Unmarshal(text, to) }

// shown shows campaigns to a user, so that all fields of explanations and campaigns occur.
func (w *walk) shown(c *campaignAPI) {
	w.t.Helper()
	gone := popup.StoredCampaign{Campaign: popup.Campaign{Name: "gone", Placement: "gone", Payload: []byte("1"), Status: popup.Paused, Rollout: 100}}
	saved, err := c.tables.SaveCampaign(w.t.Context(), gone, w.latest(c), audit.Author{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.send("", "POST", "/popups/campaigns/{id}/resume", fmt.Sprintf("/popups/campaigns/%d/resume", saved.ID), "")
	capless := `{"name":"all","placement":"home","order":9,"payload":1,"status":"active","variants":[{"name":"a","weight":1,"payload":1}],"testers":["5"]}`
	_, text := w.send("", "POST", "/popups/campaigns", "/popups/campaigns", capless, "Content-Type", "application/json")
	var view campaignView
	if err := decodeInto(text, &view); err != nil {
		w.t.Fatal(err)
	}
	key, now := popup.Key{User: "7", Placement: "home"}, time.Now()
	a := c.popup.Attributes()
	defer c.popup.Release(a)
	answer, err := c.popup.Ask(w.t.Context(), key, a, now)
	if err != nil || answer.Campaign == nil {
		w.t.Fatalf("%+v %v", answer, err)
	}
	if err := c.popup.Click(w.t.Context(), answer.Token, "7", now); err != nil {
		w.t.Fatal(err)
	}
	place := c.popup.Set().Placement("home")
	_, event, err := popup.Show(place, key, popup.State{}, popup.Decide(place, popup.State{}, a, now), now)
	if err == nil {
		err = c.tables.Apply(w.t.Context(), []popup.Event{event})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	target := fmt.Sprintf("/popups/campaigns/%d", view.ID)
	w.send("", "PATCH", "/popups/campaigns/{id}", target, `{"cap":2,"version":`+fmt.Sprint(view.Version)+`}`, "Content-Type", "application/merge-patch+json")
	other := popup.Key{User: "8", Placement: "home"}
	if _, err := c.popup.Ask(w.t.Context(), other, a, now); err != nil {
		w.t.Fatal(err)
	}
	w.send("", "POST", "/popups/campaigns", "/popups/campaigns", birthday, "Content-Type", "application/json") // does not match
	last := time.Now().UTC().Truncate(time.Hour)
	c.tables.hours = []popup.Hour{{Variant: 1, Kind: popup.KindShow, Hour: last, Events: 2, Users: 2}, {Variant: 2, Kind: popup.KindShow, Hour: last, Events: 1, Users: 1}, {Variant: popup.VariantWithheld, Kind: popup.KindWithhold, Hour: last, Events: 1, Users: 1}}
	w.send("", "GET", "/popups/campaigns/{id}/report", target+"/report", "")
	for _, query := range []string{"user=7", "user=8", "user=9", "user=7&placement=checkout"} {
		w.send("", "GET", "/popups/explain", "/popups/explain?"+query, "")
	}
	// A campaign whose attribute is gone has a problem.
	bad := popup.StoredCampaign{Campaign: popup.Campaign{Name: "bad", Placement: "home", Payload: []byte("1"), Status: popup.Active, Rollout: 100, Target: "gone"}}
	if _, err := c.tables.SaveCampaign(w.t.Context(), bad, w.latest(c), audit.Author{}); err != nil {
		w.t.Fatal(err)
	}
	if err := c.config.Popups.Campaigns.Reload(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.send("", "GET", "/popups/campaigns", "/popups/campaigns", "")
	w.send("", "GET", "/popups/explain", "/popups/explain?user=8", "")
}

func (w *walk) latest(c *campaignAPI) int64 {
	version, err := c.tables.Version(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return version
}

// busy provokes what happens while others use the same path.
func (w *walk) busy(t *testing.T) {
	t.Helper()
	if err := errors.Join(pprof.StartCPUProfile(io.Discard), trace.Start(io.Discard)); err != nil {
		t.Fatal(err)
	}
	w.send("", "GET", "/debug/pprof/profile", "/debug/pprof/profile?seconds=1", "")
	w.send("", "GET", "/debug/pprof/trace", "/debug/pprof/trace?seconds=1", "")
	pprof.StopCPUProfile()
	trace.Stop()

	gathering, done := make(chan struct{}), make(chan struct{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slow", Help: "Slow."}, func() float64 {
		gathering <- struct{}{}
		<-done
		return 1
	}))
	s := newServer(Config{Listen: "127.0.0.1:0", Registry: registry})
	ask := func() *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", http.NoBody))
		return recorder
	}
	answers := make(chan int)
	for range MetricsRequestMax {
		go func() { answers <- ask().Code }()
		<-gathering
	}
	last := ask()
	w.See("GET", "/metrics", last.Result(), last.Body.Bytes())
	close(done)
	for range MetricsRequestMax {
		if code := <-answers; code != http.StatusOK {
			t.Errorf("metrics: %d", code)
		}
	}
}

// Without popups, the document has none of their paths.
func TestOpenAPIWithoutPopups(t *testing.T) {
	base := start(t, Config{})
	document, _ := fetchDocument(t, base)
	if strings.Contains(string(document), `"/popups/`) {
		t.Error("paths of popups")
	}
	for path, methods := range asObject(apptest.NewOpenAPI(t, document).Document["paths"]) {
		if asObject(methods)["get"] == nil || strings.Contains(path, "{") || path == "/debug/pprof/profile" {
			continue
		}
		if status, _, _ := get(t, base+path+"?seconds=0.01&path=/orders", nil); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
}
