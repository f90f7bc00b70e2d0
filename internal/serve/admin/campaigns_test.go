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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spillway/internal/database"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/sqlite"
)

// campaignAPI is the API with its own database.
type campaignAPI struct {
	base   string
	config Config
	tables *recordedTables
	popup  *popup.Popup
	schema *popup.Schema
}

// recordedTables record who saved which campaign.
type recordedTables struct {
	*sqlite.Popups
	mu      sync.Mutex
	by      []string // who saved, in order
	history []popup.CampaignChange
	hours   []popup.Hour
}

// Hours implements ReportTables.
func (s *recordedTables) Hours(_ context.Context, _ popup.CampaignID, from, to time.Time) (all []popup.Hour, err error) {
	for _, h := range s.hours {
		if !h.Hour.Before(from) && h.Hour.Before(to) {
			all = append(all, h)
		}
	}
	return all, nil
}

// History implements ReportTables.
func (s *recordedTables) History(_ context.Context, id popup.CampaignID, limit int) (all []popup.CampaignChange, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range slices.Backward(s.history) {
		if one.ID == id && len(all) < limit {
			all = append(all, one)
		}
	}
	return all, nil
}

func (s *recordedTables) SaveCampaign(ctx context.Context, c popup.StoredCampaign, checked int64, by audit.Author) (popup.StoredCampaign, error) {
	saved, err := s.Popups.SaveCampaign(ctx, c, checked, by)
	if err != nil {
		return saved, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by = append(s.by, by.By)
	s.history = append(s.history, popup.CampaignChange{StoredCampaign: saved, At: time.Now(), By: by.By})
	return saved, nil
}

func startCampaigns(t *testing.T) *campaignAPI {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	url, err := database.Parse("sqlite:" + filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.New(url, database.Pool{}, log)
	if err == nil {
		err = db.Ping(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &campaignAPI{tables: &recordedTables{Popups: db.Popups()}}
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
	signer := popup.NewSigner([][]byte{make([]byte, 32)}, time.Hour)
	if c.popup, err = popup.Open(popup.Config{Store: popup.NewMemory(10, nil), Signer: signer, Log: log}, set); err != nil {
		t.Fatal(err)
	}
	c.config = Config{Log: log, Reload: func(context.Context) error { return nil }, Popups: &Popups{
		Popup: c.popup, Campaigns: popup.NewCampaigns(c.tables, c.tables, c.popup, popup.Defaults{}, log), Counts: c.tables.Counts, Reports: c.tables, Forget: forgetter(nil),
		Placements: []string{"home", "checkout"}, User: param.Integer, ClockOffset: true,
		Attributes: []popup.Attribute{{Name: "age", Type: popup.Integer}},
	}}
	c.base = start(t, c.config)
	return c
}

// forgetter returns a Popups.Forget that refuses ids that are no numbers, or fails.
func forgetter(err error) func(context.Context, string) (Forgotten, error) {
	return func(_ context.Context, user string) (Forgotten, error) {
		if user, bad := param.Parse(param.Param{Name: "user", Type: param.Integer}, user); bad == nil {
			return Forgotten{User: user, States: 2, Rows: 31}, err
		} else {
			return Forgotten{}, fmt.Errorf("%w: %w", popup.ErrRequest, bad)
		}
	}
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
	t.Parallel()
	c := startCampaigns(t)
	created, header := c.send(t, "POST", "/popups/campaigns", birthday, 201)
	if header.Get("Location") != "/popups/campaigns/1" || header.Get("ETag") != `"1"` {
		t.Errorf("created: %v", header)
	}
	want := map[string]any{
		"id": 1.0, "version": 1.0, "name": "birthday", "placement": "home", "order": 5.0, "payload": map[string]any{"a": []any{1.0, 2.0}}, "target": "age > 17",
		"status": "active", "start": "2026-01-02T03:04:05Z", "end": "2098-12-31T16:00:00Z", "repeat_after": "12h0m0s", "quiet_click": "forever",
		"quiet_dismiss": "1h30m0s", "cap": 3.0, "shows": 0.0, "clicks": 0.0, "dismissals": 0.0, "withheld": 0.0, "conversions": 0.0, "click_rate": 0.0,
		"again": nil, "priority": 0.0, "rollout": 100.0, "holdout": 0.0, "variants": []any{}, "zone": "", "testers": []any{},
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
	for _, tag := range []string{"", "0", `"0"`} {
		c.send(t, "PUT", "/popups/campaigns/1", birthday, 412, "If-Match", tag)
		c.send(t, "POST", "/popups/campaigns/1/pause", "", 412, "If-Match", tag)
	}
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

// Priority comes before order; a draft has testers; variants, rollout and holdout are kept.
func TestCampaignSettings(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	c.send(t, "POST", "/popups/campaigns", birthday, 201)
	const settings = `"again":"720h","priority":7,"rollout":12.5,"holdout":10,"variants":[{"name":"a","weight":1,"payload":{"n":1}},{"name":"b","weight":3,"payload":null}],` +
		`"zone":"Asia/Shanghai","testers":["7","8"]`
	created, _ := c.send(t, "POST", "/popups/campaigns", `{"name":"b","placement":"home","order":99,"payload":0,"status":"draft",`+settings+`}`, 201)
	var want map[string]any
	if err := json.Unmarshal([]byte(`{`+strings.Replace(settings, `"720h"`, `"720h0m0s"`, 1)+`,"status":"draft","quiet_click":null,"repeat_after":null}`), &want); err != nil {
		t.Fatal(err)
	}
	compare := func(when string, got map[string]any) {
		t.Helper()
		for name, value := range want {
			if diff := cmp.Diff(value, got[name]); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", when, name, diff)
			}
		}
	}
	compare("created", created)
	got, _ := c.send(t, "GET", "/popups/campaigns/2", "", 200)
	compare("read", got)
	got, _ = c.send(t, "PATCH", "/popups/campaigns/2", `{"variants":[{"name":"c","weight":1,"payload":3}],"rollout":null,"testers":null,"again":null,"version":2}`, 200, "Content-Type", "application/merge-patch+json")
	want["variants"], want["rollout"] = []any{map[string]any{"name": "c", "weight": 1.0, "payload": 3.0}}, 100.0
	want["testers"], want["again"] = []any{}, nil
	compare("patched", got)
	drafts, _ := c.send(t, "GET", "/popups/campaigns?status=draft", "", 200)
	if len(drafts["campaigns"].([]any)) != 1 {
		t.Errorf("drafts: %v", drafts)
	}
	all, _ := c.send(t, "GET", "/popups/campaigns", "", 200)
	if first := all["campaigns"].([]any)[0].(map[string]any); first["name"] != "b" {
		t.Errorf("the first by priority: %v", first)
	}
	if now, _ := c.send(t, "POST", "/popups/campaigns/2/resume", "", 200); now["status"] != "active" {
		t.Errorf("a draft that is started: %v", now)
	}
}

// A campaign whose placement is no longer configured can be stopped, but not started.
func TestCampaignsPlacementGone(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	gone := popup.StoredCampaign{Campaign: popup.Campaign{Name: "a", Placement: "gone", Payload: []byte("1"), Status: popup.Active, Rollout: 100}}
	if _, err := c.tables.SaveCampaign(t.Context(), gone, 0, audit.Author{}); err != nil {
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
	t.Parallel()
	c := startCampaigns(t)
	for body, want := range map[string]string{
		strings.Replace(birthday, "age > 17", "age >\\n agee", 1):                                   "target 2:2",
		strings.Replace(birthday, "home", "nowhere", 1):                                             "placement 0:0",
		strings.Replace(birthday, `"cap":3`, `"cap":-1`, 1):                                         "cap 0:0",
		strings.Replace(birthday, `"birthday"`, `"","end":null`, 1):                                 "name 0:0",
		strings.Replace(birthday, `"active"`, `"on"`, 1):                                            "status 0:0",
		strings.Replace(birthday, "2099-01-01", "2020-01-01", 1):                                    "end 0:0",
		strings.Replace(birthday, `"12h"`, `"1ms"`, 1):                                              "repeat_after 0:0",
		`{"name":"a","placement":"home","payload":1,"target":"true)"}`:                              "target 1:5",
		strings.Replace(birthday, "birthday", "a\\u0000", 1):                                        "name 0:0",
		strings.Replace(birthday, "age > 17", "age > 1\\u0000", 1):                                  "target 0:0",
		strings.Replace(birthday, `"12h"`, `"0s"`, 1):                                               "repeat_after 0:0",
		strings.Replace(birthday, `"forever"`, `"0s"`, 1):                                           "quiet_click 0:0",
		strings.Replace(birthday, `"90m"`, `"0s"`, 1):                                               "quiet_dismiss 0:0",
		strings.Replace(birthday, `"cap":3`, `"again":"0s"`, 1):                                     "again 0:0",
		strings.Replace(birthday, `"cap":3`, `"rollout":0`, 1):                                      "rollout 0:0",
		strings.Replace(birthday, `"cap":3`, `"holdout":100`, 1):                                    "holdout 0:0",
		strings.Replace(birthday, `"cap":3`, `"priority":1001`, 1):                                  "priority 0:0",
		strings.Replace(birthday, `"cap":3`, `"testers":[""]`, 1):                                   "testers 0:0",
		strings.Replace(birthday, `"cap":3`, `"variants":[{"name":"a","weight":0,"payload":1}]`, 1): "variants 0:0",
	} {
		problem, _ := c.send(t, "POST", "/popups/campaigns", body, 422)
		first := problem["errors"].([]any)[0].(map[string]any)
		line, _ := first["line"].(float64)
		column, _ := first["column"].(float64)
		if got := fmt.Sprintf("%v %v:%v", first["field"], line, column); got != want {
			t.Errorf("%s: %s (%v), want %s", body, got, first["message"], want)
		}
	}
	all, _ := c.send(t, "POST", "/popups/campaigns", `{"name":"","placement":"nowhere","payload":1,"cap":-1,"target":"agee > 1"}`, 422)
	if len(all["errors"].([]any)) != 4 {
		t.Errorf("four mistakes: %v", all)
	}
}

// A body that has not the form of a campaign is refused with 400.
func TestCampaignsMalformed(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	for body, want := range map[string]string{
		`{"nam":"a","name":"a","placement":"home","payload":1}`: "nam is not a field of a campaign",
		`{"name":"a","placement":"nowhere","payload":1,"quiet_click":"1d","repeat_after":60,"order":"1","cap":null,"start":"now","target":""}`: `cap must be a whole number; ` +
			`order must be a whole number of 32 bits; quiet_click must be a duration with its unit in text, as "24h" or "90m", or "forever"; ` +
			`repeat_after must be a duration with its unit in text, as "24h" or "90m", or "forever"; start must be a time of RFC 3339, as 2026-01-02T03:04:05Z, or null; ` +
			`target is required: an expression over the attributes, or "true" for everybody; placement must be home or checkout: popups.placements of the configuration`,
		`{"name":"a","placement":"home","payload":1,"holdout":"1","testers":"a","variants":[{"name":"a","wait":1}]}`: `holdout must be a number; testers must be a list of texts; ` +
			`variants must be a list of {"name": TEXT, "weight": WHOLE NUMBER, "payload": JSON}`,
		`{}`: "name is required; placement is required; payload is required",
	} {
		problem, _ := c.send(t, "POST", "/popups/campaigns", body, 400)
		var messages []string
		for _, one := range problem["errors"].([]any) {
			message := one.(map[string]any)["message"].(string)
			if messages = append(messages, message); !strings.HasPrefix(message, one.(map[string]any)["field"].(string)+" ") {
				t.Errorf("the message does not name the field: %v", one)
			}
		}
		if got := strings.Join(messages, "; "); got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
	for body, want := range map[string]string{
		`[]`: "one JSON object", `{} {}`: "not JSON at byte", `null`: "one JSON object", `{"name"`: "not JSON at byte", "": "not JSON at byte",
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

// A replacement must say whom the campaign is for, and everybody is said explicitly.
func TestCampaignTarget(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	const rest = `"name":"a","placement":"home","payload":1`
	c.send(t, "POST", "/popups/campaigns", `{`+rest+`,"target":"age > 17","status":"active"}`, 201)
	for _, target := range []string{``, `,"target":""`, `,"target":" "`, `,"target":null`} {
		problem, _ := c.send(t, "PUT", "/popups/campaigns/1", `{`+rest+target+`}`, 400, "If-Match", `"1"`)
		if one := problem["errors"].([]any)[0].(map[string]any); one["field"] != "target" {
			t.Errorf("%s: %v", target, problem)
		}
	}
	if now, _ := c.send(t, "GET", "/popups/campaigns/1", "", 200); now["target"] != "age > 17" {
		t.Errorf("a refused replacement changed the target: %v", now)
	}
	now, _ := c.send(t, "PUT", "/popups/campaigns/1", `{`+rest+`,"target":"true"}`, 200, "If-Match", `"1"`)
	if _, stored, err := c.tables.Campaigns(t.Context()); now["target"] != "true" || err != nil || stored[0].Target != popup.Everybody {
		t.Errorf("everybody: %v, stored %v, %v", now, stored, err)
	}
	if fresh, _ := c.send(t, "POST", "/popups/campaigns", `{`+rest+`}`, 201); fresh["target"] != "true" || fresh["status"] != "paused" {
		t.Errorf("a new campaign: %v", fresh)
	}
}

// PATCH changes the given fields and no others.
func TestCampaignPatch(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	created, _ := c.send(t, "POST", "/popups/campaigns", strings.Replace(birthday, `{"a":[1, 2]}`, `{"title":"<b>","n":12345678901234567890,"link":{"to":"/x","new":true}}`, 1), 201)
	patch := func(body string, want int, headers ...string) map[string]any {
		t.Helper()
		answer, _ := c.send(t, "PATCH", "/popups/campaigns/1", body, want, append([]string{"Content-Type", "application/merge-patch+json"}, headers...)...)
		return answer
	}
	for _, step := range []struct {
		body string
		want map[string]any // fields that change
	}{
		{`{"cap":4.0,"version":1e0}`, map[string]any{"cap": 4.0}},
		{`{"repeat_after":null,"end":null,"quiet_click":null}`, map[string]any{"repeat_after": nil, "end": nil, "quiet_click": nil}},
		{`{"payload":{"link":{"new":null,"at":[null]},"more":1},"shows":7}`, map[string]any{"payload": map[string]any{
			"title": "<b>", "n": 12345678901234567890.0, "link": map[string]any{"to": "/x", "at": []any{nil}}, "more": 1.0,
		}}},
		{`{"payload":[1]}`, map[string]any{"payload": []any{1.0}}},
		{`{"target":"true","status":"paused"}`, map[string]any{"target": "true", "status": "paused"}},
		{`{}`, nil},
	} {
		got := patch(step.body, 200, "If-Match", fmt.Sprintf("%q", fmt.Sprint(created["version"])))
		want := maps.Clone(created)
		maps.Copy(want, step.want)
		want["version"] = want["version"].(float64) + 1
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.body, diff)
		}
		created = got
	}
	_, stored, err := c.tables.Campaigns(t.Context())
	if err != nil || string(stored[0].Payload) != "[1]" {
		t.Errorf("%s, %v", stored[0].Payload, err)
	}
	patch(`{"cap":5}`, 428)
	patch(`{"cap":5,"version":null}`, 428)
	patch(`{"cap":5,"version":2}`, 412)
	patch(`{"cap":5}`, 412, "If-Match", `"2"`)
	patch(`{"cap":5}`, 415, "Content-Type", "application/json")
	patch(`{"cap":"5","version":true,"target":null,"name":null,"nam":1}`, 400, "If-Match", `"7"`)
	patch(`{"cap":-1,"target":"agee"}`, 422, "If-Match", `"7"`)
	patch(`[]`, 400)
	c.send(t, "POST", "/popups/campaigns/1/archive", "", 200)
	patch(`{"cap":5}`, 409, "If-Match", `"8"`)
}

// FuzzMergePatch compares the merge of all fields with the rules of RFC 7396 on the whole.
func FuzzMergePatch(f *testing.F) {
	f.Add(`{"a":{"b":1,"c":[1]}}`, `{"a":{"b":null,"d":{"e":null}},"f":1.0}`)
	f.Add(`[1]`, `{"a":{"b":{"c":null}}}`)
	f.Add(`{"a":1}`, `null`)
	f.Fuzz(func(t *testing.T, target, patch string) {
		if !json.Valid([]byte(target)) || !json.Valid([]byte(patch)) {
			return
		}
		merged := mergePatch(decode([]byte(target)), decode([]byte(patch)))
		again := mergePatch(decode(encode(merged)), decode([]byte(patch)))
		if diff := cmp.Diff(merged, again); diff != "" {
			t.Errorf("%s with %s is not stable:\n%s", target, patch, diff)
		}
		if _, object := decode([]byte(patch)).(map[string]any); !object && !cmp.Equal(merged, decode([]byte(patch))) {
			t.Errorf("%s with %s: %v", target, patch, merged)
		}
	})
}

func TestExplain(t *testing.T) {
	t.Parallel()
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
	later := time.Now().Add(13 * time.Hour).UTC().Format(time.RFC3339)
	if got := verdicts("user=7&age=18&at=" + later); got != "1 given <nil>, 2 behind <nil>" {
		t.Error(got)
	}
	if got := verdicts("user=8&age=18&at=2025-12-31T23:00:00Z"); got != "1 not-started <nil>, 2 given <nil>" {
		t.Error(got)
	}
	if answer, _ := c.send(t, "GET", "/popups/explain?user=8&at=2026-01-02T08:00:00%2B08:00", "", 200); answer["now"] != "2026-01-02T00:00:00Z" {
		t.Errorf("another zone: %v", answer["now"])
	}
	for query, want := range map[string]string{
		"": "user", "user=x": "user", "user=7&age=x": "age", "user=7&placement=nowhere": "placement", "user=7&clock_offset=1": "clock_offset",
		"user=7&at=2026-01-02": "at", "user=7&at=2026-01-02T08:00:00+08:00": "at", "user=7&at=9999-12-31T23:59:59-12:00": "at", "user=7&age=x&at=x&placement=x": "at placement age",
	} {
		problem, _ := c.send(t, "GET", "/popups/explain?"+query, "", 400)
		var fields []string
		for _, one := range problem["errors"].([]any) {
			fields = append(fields, one.(map[string]any)["field"].(string))
		}
		if got := strings.Join(fields, " "); got != want {
			t.Errorf("%s: %v", query, problem)
		}
	}
}

// A list has the users of its last valid upload, by their canonical ids.
func TestLists(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(PopupListStats(c.popup.Lists))
	text := []string{"Content-Type", "text/plain; charset=utf-8"}
	list, _ := c.send(t, "PUT", "/popups/lists/vip", "\ufeff7\r\n\r\n008\n7", 200, text...)
	if list["name"] != "vip" || list["users"] != 2.0 {
		t.Errorf("%v", list)
	}
	lists := c.popup.Lists()
	if !lists.Contains("vip", "7") || !lists.Contains("vip", "8") || lists.Len("vip") != 2 {
		t.Errorf("%d users in force", lists.Len("vip"))
	}
	want := `# HELP spillway_popup_list_users Users of each list in force, 8 bytes of memory each; 0 until it was read.
# TYPE spillway_popup_list_users gauge
spillway_popup_list_users{list="vip"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	many := strings.Repeat("9\n", 5000) + "\nx\n9\n" + strings.Repeat("y\n", 99)
	bad, _ := c.send(t, "PUT", "/popups/lists/vip", many, 422, text...)
	detail := fmt.Sprint(bad["detail"])
	if errs, _ := bad["errors"].([]any); len(errs) != listFlawsMax || !strings.HasPrefix(detail, "line 5002: user must be a") || !strings.Contains(detail, "; line 5004: ") {
		t.Errorf("%d errors: %v", len(errs), detail)
	}
	for path, body := range map[string]string{"Vip": "7", "vip": strings.Repeat("7", 129), "gold": strings.Repeat("7", 5000)} {
		if bad, _ := c.send(t, "PUT", "/popups/lists/"+path, body, 422, text...); bad["detail"] == "" {
			t.Errorf("%s: %v", path, bad)
		}
	}
	c.send(t, "PUT", "/popups/lists/vip", "[7]", 415)
	all, _ := c.send(t, "GET", "/popups/lists", "", 200)
	at := regexp.MustCompile(`replaced_at:\d{4}-\S+Z `)
	if got := at.ReplaceAllString(fmt.Sprint(all), ""); got != "map[lists:[map[name:vip users:2 version:1]]]" {
		t.Errorf("%v, %s", all, got)
	}
}

func TestPopupStats(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Stats("spillway_popup_", func() []PopupFigures {
		s := popup.Stats{Shows: 3, Clicks: 2, Conversions: 7, Withheld: 8, Refused: 4, Unavailable: 5}
		return []PopupFigures{{Stats: s, SetAside: 6, Down: true}}
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
spillway_popup_events_total{kind="convert"} 7
spillway_popup_events_total{kind="dismiss"} 0
spillway_popup_events_total{kind="show"} 3
spillway_popup_events_total{kind="withhold"} 8
# HELP spillway_popup_unavailable_total Requests that met a failure of the states, the event log or attributes_sql.
# TYPE spillway_popup_unavailable_total counter
spillway_popup_unavailable_total 5
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "spillway_popup_down", "spillway_popup_events_set_aside",
		"spillway_popup_events_total", "spillway_popup_unavailable_total"); err != nil {
		t.Error(err)
	}
}

// The click rate is clicks per show, and explain names the problem of an invalid campaign.
func TestCampaignCounts(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	const plain = `{"name":"all","placement":"home","payload":1,"status":"active"`
	if created, _ := c.send(t, "POST", "/popups/campaigns", plain+"}", 201); created["click_rate"] != 0.0 {
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
	if err := c.tables.Apply(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	got, _ := c.send(t, "GET", "/popups/campaigns/1", "", 200)
	if got["shows"] != 4.0 || got["clicks"] != 1.0 || got["click_rate"] != 0.25 {
		t.Errorf("%v shows, %v clicks, rate %v", got["shows"], got["clicks"], got["click_rate"])
	}
	set, _ := popup.UsableSet(c.schema, []popup.Campaign{{ID: 1, Name: "a", Placement: "home", Payload: []byte("1"), Status: popup.Active, Rollout: 100, Target: "gone"}})
	if err := c.popup.Replace(set); err != nil {
		t.Fatal(err)
	}
	explained, _ := c.send(t, "GET", "/popups/explain?user=7", "", 200)
	if one := explained["campaigns"].([]any)[0].(map[string]any); one["verdict"] != "problem" || one["problem"] != "target: 1:1: unknown name gone" {
		t.Errorf("explained: %v", one)
	}
}
