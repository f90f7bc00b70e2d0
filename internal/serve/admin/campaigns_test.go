package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"spillway/internal/database"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/sqlite"
)

// campaignAPI is the API with its own database.
type campaignAPI struct {
	base   string
	tables *sqlite.Popups
	popup  *popup.Popup
	schema *popup.Schema
}

func startCampaigns(t *testing.T) *campaignAPI {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	url, err := database.Parse("sqlite:" + filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.Open(t.Context(), url, database.Pool{}, log)
	if err != nil {
		t.Fatal(err)
	}
	c := &campaignAPI{tables: db.Popups()}
	t.Cleanup(func() {
		if err := errors.Join(c.tables.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := c.tables.EnsureTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.schema, err = popup.NewSchema([]popup.Attribute{{Name: "age", Type: popup.Integer}}); err != nil {
		t.Fatal(err)
	}
	set, err := popup.NewSet(c.schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := popup.NewSigner([][]byte{make([]byte, 32)}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if c.popup, err = popup.Open(popup.Config{Store: popup.NewMemory(10, nil), Signer: signer, Log: log}, set); err != nil {
		t.Fatal(err)
	}
	c.base = start(t, Config{Popups: &Popups{
		Popup: c.popup, Campaigns: popup.NewCampaigns(c.tables, c.popup, 0, log), Counts: c.tables.Counts,
		Placements: []string{"home", "checkout"}, User: param.Integer, ClockOffset: true,
	}})
	return c
}

// send sends JSON, expects a status and returns the JSON answer.
func (c *campaignAPI) send(t *testing.T, method, path, body string, want int, headers ...string) (map[string]any, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var answer map[string]any
	if err != nil || json.Unmarshal(text, &answer) != nil || response.StatusCode != want {
		t.Fatalf("%s %s %s: %d %s %v, want %d", method, path, body, response.StatusCode, text, err, want)
	}
	return answer, response.Header
}

const birthday = `{"name":"birthday","placement":"home","order":5,"payload":{"a":[1, 2]},"target":"age > 17","start":"2026-01-02T03:04:05Z",` +
	`"end":"2099-01-01T00:00:00+08:00","repeat_after":"12h","quiet_click":"forever","quiet_dismiss":"90m","cap":3,"status":"active"}`

func TestCampaigns(t *testing.T) {
	c := startCampaigns(t)
	created, header := c.send(t, "POST", "/popups/campaigns", birthday, 201)
	if header.Get("Location") != "/popups/campaigns/1" || header.Get("ETag") != `"1"` {
		t.Errorf("created: %v", header)
	}
	want := map[string]any{
		"id": 1.0, "version": 1.0, "name": "birthday", "placement": "home", "order": 5.0, "payload": map[string]any{"a": []any{1.0, 2.0}}, "target": "age > 17",
		"status": "active", "start": "2026-01-02T03:04:05Z", "end": "2098-12-31T16:00:00Z", "repeat_after": "12h0m0s", "quiet_click": "forever",
		"quiet_dismiss": "1h30m0s", "cap": 3.0, "shows": 0.0, "clicks": 0.0, "dismissals": 0.0, "click_rate": 0.0,
	}
	if diff := cmp.Diff(want, created); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	got, _ := c.send(t, "GET", "/popups/campaigns/1", "", 200)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}

	// An answer can be changed and sent back. The version protects the changes of others.
	got["name"], got["repeat_after"] = "greeting", nil
	delete(got, "status")
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if changed, _ := c.send(t, "PUT", "/popups/campaigns/1", string(text), 200); changed["name"] != "greeting" || changed["status"] != "active" || changed["repeat_after"] != nil {
		t.Errorf("changed: %v", changed)
	}
	c.send(t, "PUT", "/popups/campaigns/1", string(text), 412)
	c.send(t, "PUT", "/popups/campaigns/1", birthday, 428)
	c.send(t, "PUT", "/popups/campaigns/1", birthday, 412, "If-Match", `"1"`)
	c.send(t, "PUT", "/popups/campaigns/1", birthday, 412, "If-Match", `*x`)
	c.send(t, "PUT", "/popups/campaigns/1", birthday, 200, "If-Match", `"2"`)

	for _, step := range []struct{ action, status string }{{"pause", "paused"}, {"pause", "paused"}, {"resume", "active"}, {"archive", "archived"}} {
		if now, _ := c.send(t, "POST", "/popups/campaigns/1/"+step.action, "", 200); now["status"] != step.status {
			t.Errorf("%s: %v", step.action, now)
		}
	}
	c.send(t, "POST", "/popups/campaigns/1/resume", "", 409)
	c.send(t, "PUT", "/popups/campaigns/1", birthday, 409, "If-Match", `"6"`)
	c.send(t, "GET", "/popups/campaigns/9", "", 404)
	c.send(t, "POST", "/popups/campaigns/x/pause", "", 404)
	c.send(t, "DELETE", "/popups/campaigns/1", "", 405)

	c.send(t, "POST", "/popups/campaigns", `{"name":"b","placement":"checkout","payload":null}`, 201)
	c.send(t, "POST", "/popups/campaigns", `{"name":"c","placement":"home","payload":null,"order":-1}`, 201)
	for query, want := range map[string]string{"": "2 3 1", "?placement=home": "3 1", "?status=paused": "2 3", "?placement=home&status=archived": "1"} {
		all, _ := c.send(t, "GET", "/popups/campaigns"+query, "", 200)
		var ids []string
		for _, one := range all["campaigns"].([]any) {
			ids = append(ids, fmt.Sprint(one.(map[string]any)["id"]))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("list %s: %s, want %s", query, got, want)
		}
	}
}

// A campaign whose placement is no longer configured can be stopped, but not started.
func TestCampaignsPlacementGone(t *testing.T) {
	c := startCampaigns(t)
	gone := popup.StoredCampaign{Campaign: popup.Campaign{Name: "a", Placement: "gone", Payload: []byte("1"), Status: popup.Active}}
	if _, err := c.tables.SaveCampaign(t.Context(), gone, 0); err != nil {
		t.Fatal(err)
	}
	if now, _ := c.send(t, "POST", "/popups/campaigns/1/pause", "", 200); now["status"] != "paused" {
		t.Errorf("pause: %v", now)
	}
	c.send(t, "POST", "/popups/campaigns/1/resume", "", 422)
	if now, _ := c.send(t, "POST", "/popups/campaigns/1/archive", "", 200); now["status"] != "archived" {
		t.Errorf("archive: %v", now)
	}
}

func TestCampaignsRefused(t *testing.T) {
	c := startCampaigns(t)
	for body, want := range map[string]string{
		strings.Replace(birthday, "age > 17", "age >\\n agee", 1):      "target 2:2",
		strings.Replace(birthday, "home", "nowhere", 1):                "placement 0:0",
		strings.Replace(birthday, `"cap":3`, `"cap":-1`, 1):            "cap 0:0",
		strings.Replace(birthday, `"birthday"`, `"","end":null`, 1):    "name 0:0",
		strings.Replace(birthday, `"active"`, `"on"`, 1):               "status 0:0",
		strings.Replace(birthday, "2099-01-01", "2020-01-01", 1):       "end 0:0",
		strings.Replace(birthday, `"12h"`, `"1ms"`, 1):                 "repeat_after 0:0",
		`{"name":"a","placement":"home","payload":1,"target":"true)"}`: "target 1:5",
	} {
		problem, _ := c.send(t, "POST", "/popups/campaigns", body, 422)
		first := problem["errors"].([]any)[0].(map[string]any)
		line, _ := first["line"].(float64)
		column, _ := first["column"].(float64)
		if got := fmt.Sprintf("%v %v:%v", first["field"], line, column); got != want {
			t.Errorf("%s: %s (%v), want %s", body, got, first["message"], want)
		}
	}
	both, _ := c.send(t, "POST", "/popups/campaigns", `{"name":"","placement":"home","payload":1,"cap":-1}`, 422)
	if len(both["errors"].([]any)) != 2 {
		t.Errorf("two mistakes: %v", both)
	}
	for body, want := range map[string]string{
		`{"nam":"a"}`:          `unknown field "nam"`,
		`{"quiet_click":"1d"}`: "a duration is text with its unit",
		`{"repeat_after":60}`:  "a duration is text with its unit",
		`[]`:                   "cannot unmarshal array",
		`{} {}`:                "more than one",
	} {
		if problem, _ := c.send(t, "POST", "/popups/campaigns", body, 400); !strings.Contains(problem["detail"].(string), want) {
			t.Errorf("%s: %v", body, problem)
		}
	}
	c.send(t, "POST", "/popups/campaigns", `{"payload":"`+strings.Repeat("x", campaignBytesMax)+`"}`, 413)
	c.send(t, "POST", "/popups/campaigns", birthday, 415, "Content-Type", "text/plain")
	c.send(t, "POST", "/popups/campaigns", birthday, 403, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	all, _ := c.send(t, "GET", "/popups/campaigns", "", 200)
	if len(all["campaigns"].([]any)) != 0 {
		t.Errorf("a refused campaign is there: %v", all)
	}
}

func TestExplain(t *testing.T) {
	c := startCampaigns(t)
	c.send(t, "POST", "/popups/campaigns", birthday, 201)
	c.send(t, "POST", "/popups/campaigns", `{"name":"all","placement":"home","order":9,"payload":1,"status":"active"}`, 201)
	verdicts := func(query string) string {
		t.Helper()
		answer, _ := c.send(t, "GET", "/popups/explain?"+query, "", 200)
		var got []string
		for _, one := range answer["campaigns"].([]any) {
			e := one.(map[string]any)
			got = append(got, fmt.Sprintf("%v %v %v", e["campaign"], e["verdict"], e["condition"]))
		}
		return strings.Join(got, ", ")
	}
	if got := verdicts("user=007&age=17"); got != "1 does-not-suit age > 17, 2 given <nil>" {
		t.Error(got)
	}
	if got := verdicts("user=7&age=18"); got != "1 given <nil>, 2 behind <nil>" {
		t.Error(got)
	}
	key := popup.Key{User: "7", Placement: "home"}
	a := c.popup.Attributes()
	if err := a.Add("age", "18"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.popup.Ask(t.Context(), key, a, time.Now()); err != nil {
		t.Fatal(err)
	}
	c.popup.Release(a)
	if got := verdicts("user=7&age=18"); got != "1 user-waits <nil>, 2 user-waits <nil>" {
		t.Error(got)
	}
	if got := verdicts("user=7&age=18&clock_offset=13h"); got != "1 given <nil>, 2 behind <nil>" {
		t.Error(got)
	}
	for _, query := range []string{"", "user=x", "user=7&age=x", "user=7&placement=nowhere", "user=7&clock_offset=1"} {
		c.send(t, "GET", "/popups/explain?"+query, "", 400)
	}
}

// TestOpenAPI compares the document with the server: every path answers, and the answers match
// their schemas.
func TestOpenAPI(t *testing.T) {
	c := startCampaigns(t)
	c.send(t, "POST", "/popups/campaigns", birthday, 201)
	document, _ := c.send(t, "GET", "/openapi.json", "", 200)
	for path, methods := range document["paths"].(map[string]any) {
		for method := range methods.(map[string]any) {
			r, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(method), c.base+strings.Replace(path, "{id}", "1", 1)+"?user=7", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Close = true
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode == 404 || response.StatusCode == 405 || response.StatusCode >= 500 {
				t.Errorf("%s %s: %d", method, path, response.StatusCode)
			}
		}
	}
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(openAPI))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	if err := compiler.AddResource("openapi.json", schema); err != nil {
		t.Fatal(err)
	}
	list, _ := c.send(t, "GET", "/popups/campaigns", "", 200)
	explained, _ := c.send(t, "GET", "/popups/explain?user=7", "", 200)
	refused, _ := c.send(t, "POST", "/popups/campaigns", `{"name":"a","placement":"home","payload":1,"target":"x"}`, 422)
	for name, answer := range map[string]any{"Campaign": list["campaigns"].([]any)[0], "Explained": explained, "Refused": refused} {
		compiled, err := compiler.Compile("openapi.json#/components/schemas/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := compiled.Validate(value); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	properties := document["components"].(map[string]any)["schemas"].(map[string]any)["Campaign"].(map[string]any)["properties"].(map[string]any)
	var documented, served []string
	for name := range properties {
		documented = append(documented, name)
	}
	for i := range reflect.TypeFor[campaignView]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[campaignView]().Field(i).Tag.Get("json"), ",")
		served = append(served, name)
	}
	slices.Sort(documented)
	slices.Sort(served)
	if diff := cmp.Diff(served, documented); diff != "" {
		t.Errorf("fields of a campaign (-served +documented):\n%s", diff)
	}
}

func TestPopupStats(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(PopupStats(func() PopupFigures {
		return PopupFigures{Stats: popup.Stats{Shows: 3, Clicks: 2, Refused: 4, Unavailable: 5}, SetAside: 6, Down: true}
	}))
	want := `# HELP spillway_popup_down 1 while the states do not answer.
# TYPE spillway_popup_down gauge
spillway_popup_down 1
# HELP spillway_popup_events_set_aside Events that could not be decoded and must be repaired by hand.
# TYPE spillway_popup_events_set_aside gauge
spillway_popup_events_set_aside 6
# HELP spillway_popup_events_total Events recorded.
# TYPE spillway_popup_events_total counter
spillway_popup_events_total{kind="click"} 2
spillway_popup_events_total{kind="dismiss"} 0
spillway_popup_events_total{kind="show"} 3
# HELP spillway_popup_unavailable_total Requests that met a failure of the states, the event log or attributes_sql.
# TYPE spillway_popup_unavailable_total counter
spillway_popup_unavailable_total 5
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "spillway_popup_down", "spillway_popup_events_set_aside",
		"spillway_popup_events_total", "spillway_popup_unavailable_total"); err != nil {
		t.Error(err)
	}
}

// The click rate is clicks per show, a new cap has a note on earlier shows, and explain names
// the problem of an invalid campaign.
func TestCampaignCounts(t *testing.T) {
	c := startCampaigns(t)
	const plain = `{"name":"all","placement":"home","payload":1,"status":"active"`
	if created, _ := c.send(t, "POST", "/popups/campaigns", plain+"}", 201); created["click_rate"] != 0.0 || created["note"] != nil {
		t.Errorf("created: %v", created)
	}
	place, now := c.popup.Set().Placement("home"), time.Now()
	a := c.popup.Attributes()
	defer c.popup.Release(a)
	var events []popup.Event
	for user := range 4 {
		key := popup.Key{User: fmt.Sprint(user), Placement: "home"}
		state, event, err := popup.Show(place, key, popup.State{}, popup.Decide(place, popup.State{}, a, now), now)
		if err != nil {
			t.Fatal(err)
		}
		if events = append(events, event); user == 0 {
			_, event, err = popup.AnswerShow(place, state, popup.Token{Key: key, Campaign: 1, Version: 1, At: event.ShownAt}, popup.KindClick, now)
			if events = append(events, event); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.tables.Apply(t.Context(), nil, events); err != nil {
		t.Fatal(err)
	}
	got, _ := c.send(t, "GET", "/popups/campaigns/1", "", 200)
	if got["shows"] != 4.0 || got["clicks"] != 1.0 || got["click_rate"] != 0.25 {
		t.Errorf("%v shows, %v clicks, rate %v", got["shows"], got["clicks"], got["click_rate"])
	}
	capped, header := c.send(t, "PUT", "/popups/campaigns/1", plain+`,"cap":2}`, 200, "If-Match", `"1"`)
	if note, _ := capped["note"].(string); !strings.Contains(note, "the 4 shows before it do not count") {
		t.Errorf("a cap on a campaign that was shown: %v", capped)
	}
	if again, _ := c.send(t, "PUT", "/popups/campaigns/1", plain+`,"cap":3}`, 200, "If-Match", header.Get("ETag")); again["note"] != nil {
		t.Errorf("another cap: %v", again)
	}
	set, _ := popup.UsableSet(c.schema, []popup.Campaign{{ID: 1, Name: "a", Placement: "home", Payload: []byte("1"), Status: popup.Active, Target: "gone"}})
	if err := c.popup.Replace(set); err != nil {
		t.Fatal(err)
	}
	explained, _ := c.send(t, "GET", "/popups/explain?user=7", "", 200)
	if one := explained["campaigns"].([]any)[0].(map[string]any); one["verdict"] != "problem" || one["problem"] != "target: 1:1: unknown name gone" {
		t.Errorf("explained: %v", one)
	}
}
