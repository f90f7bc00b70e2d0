package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/spool"
)

// changes provokes what happens when changes are recorded, read, and cannot be recorded.
func (w *walk) changes(t *testing.T, c *campaignAPI) {
	t.Helper()
	problem := func() Configuration { return Configuration{"a.yaml", "a: 1", []SettingChange{}, "line 1"} }
	kept := &keptChanges{}
	config := c.config
	config.Configuration, config.Changes, config.Read = problem, audit.Log{kept}, new(rows).someRead
	w.servers["changes"] = start(t, config)
	w.send("changes", "GET", "/configuration", "/configuration", "")
	kept.all = append(kept.all, audit.Change{At: time.Now(), Campaign: 7, Detail: "name"})
	w.send("changes", "GET", "/changes", "/changes?limit=1", "")
	w.send("changes", "GET", "/changes", "/changes?limit=0&since=x", "")
	kept.err = errors.New("disk full")
	w.send("changes", "GET", "/changes", "/changes", "")
	w.send("changes", "POST", "/reload", "/reload", "")
	for _, work := range []string{"/reads/pause", "/reads/resume", "/reads/drop"} {
		w.send("changes", "POST", work, work, `{"path": "/orders", "arguments": {"city": ["Oslo"]}}`)
	}
	w.send("changes", "DELETE", "/popups/users/{user}", "/popups/users/7", "")
	w.servers["spool unrecorded"], _ = startSpoolWith(t, Config{Changes: audit.Log{kept}})
	for _, work := range []string{"/retry", "/move", "/discard"} {
		w.send("spool unrecorded", "POST", "/spools/{spool}"+work, "/spools/streams"+work, `{"to":"/b"}`)
		w.send("spool unrecorded", "POST", "/spools/{spool}"+work, "/spools/streams"+work, `{}`)
	}
	const check = "/popups/campaigns/check"
	w.send("", "POST", check, check+"?user=7&age=3", birthday, "Content-Type", "application/json")
	w.send("down", "POST", check, check+"?user=7", birthday, "Content-Type", "application/json")
}

// Each change is recorded before it is answered, and no attempt that changes nothing.
func TestChanges(t *testing.T) {
	t.Parallel()
	kept := &keptChanges{}
	reload := func(context.Context) error { return nil }
	forget := func(_ context.Context, user string) (Forgotten, error) { return Forgotten{User: user}, nil }
	popups := *startCampaigns(t).config.Popups
	popups.Forget = forget
	base, _ := startSpoolWith(t, Config{
		Tokens: []Token{{"ann", "secret", RoleAdmin}, {"bob", "other", RoleRead}}, Changes: audit.Log{kept}, Reload: reload, Popups: &popups,
		Read: new(rows).someRead,
	})
	send := func(method, path, token, body string) (int, string) { return sendAs(t, method, base+path, token, body) }
	send("POST", "/reload", "other", "")
	send("POST", "/spools/streams/retry", "secret", `{"dry_run":true}`)
	send("POST", "/spools/streams/retry", "secret", `[]`)
	send("POST", "/popups/campaigns/check", "other", birthday)
	send("POST", "/reload", "secret", "")
	send("POST", "/spools/streams/retry", "secret", `{"stream":"/old"}`)
	send("POST", "/reads/drop", "secret", `{"path": "/orders", "arguments": {"city": ["Bergen"]}}`)
	send("POST", "/reads/drop", "secret", `{"path": "/orders", "arguments": {"city": ["Oslo"]}}`)
	send("DELETE", "/popups/users/4711", "secret", "")
	var got []string
	for _, c := range kept.all {
		if c.By != "ann" || c.Address != "127.0.0.1" || time.Since(c.At).Abs() > time.Hour {
			t.Errorf("%+v", c)
		}
		got = append(got, c.Request+": "+c.Detail)
	}
	want := []string{"POST /reload: listen", "POST /spools/streams/retry: /old: 2 dead letters, 0 records that wait", "POST /reads/drop: /orders map[city:[Oslo]]", "DELETE /popups/users/{user}: "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	ask := func(query string) (requests []string, next string) {
		t.Helper()
		_, text := send("GET", "/changes?"+query, "other", "")
		var answer struct {
			Changes []audit.Change
			Next    string
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatal(err)
		}
		for _, c := range answer.Changes {
			requests = append(requests, c.Request)
		}
		return requests, answer.Next
	}
	all := []string{"DELETE /popups/users/{user}", "POST /reads/drop", "POST /spools/streams/retry", "POST /reload"}
	for query, want := range map[string][]string{
		"": all, "by=bob": nil, "by=ann&text=LISTEN": all[3:], "text=127.0": all, "limit=2": all[:2], "since=2100-01-01T00:00:00Z": nil,
		"until=2020-01-01T00:00:00Z": nil,
	} {
		if got, _ := ask(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	_, next := ask("limit=2")
	if rest, last := ask("until=" + strings.ReplaceAll(next, "+", "%2B")); !slices.Equal(rest, all[2:]) || last != "" {
		t.Errorf("after %s: %q, %q", next, rest, last)
	}

	kept.err = errors.New("no space left on device")
	if status, text := send("POST", "/reload", "secret", ""); status != http.StatusInternalServerError || !strings.Contains(text, "it is done") || !strings.Contains(text, "no space left") {
		t.Errorf("%d %s", status, text)
	}
}

// An order on a spool is executed although its client has left, and then it is recorded.
func TestRecordedAfterLeaving(t *testing.T) {
	t.Parallel()
	_, open := startSpool(t)
	kept := &keptChanges{}
	ctx, leave := context.WithCancel(t.Context())
	do := func(ctx context.Context, _ *spool.Spool, _ spool.Order) (spool.Done, error) {
		leave()
		return spool.Done{Letters: 7}, ctx.Err() // what the spool answers to a ctx that has ended; it goes on
	}
	spools := map[string]*Spool{"streams": {Open: func() *spool.Spool { return open }, Do: do}}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/spools/streams/discard", strings.NewReader("{}"))
	s := newServer(Config{Changes: audit.Log{kept}, Spools: spools, Log: slog.New(slog.DiscardHandler)})
	s.handler().ServeHTTP(httptest.NewRecorder(), r)
	if len(kept.all) != 1 || kept.all[0].Detail != "all streams: 7 dead letters, 0 records that wait" {
		t.Errorf("%+v", kept.all)
	}
}

// sendAs sends a request with a token.
func sendAs(t *testing.T, method, url, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// A campaign is explained to a user as if it were active, before and after it is saved.
func TestExplainActive(t *testing.T) {
	t.Parallel()
	c := startCampaigns(t)
	check := func(query, body, want string) {
		t.Helper()
		answer, _ := c.send(t, "POST", "/popups/campaigns/check?"+query, body, http.StatusOK)
		text, err := json.Marshal(answer)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s %s: %s, %v, want %s", query, body, text, err, want)
		}
	}
	const draft = `{"name":"A","placement":"home","payload":1,"status":"draft","target":"age > 17"`
	check("user=7&age=18", draft+"}", `"verdict":"given"`)
	check("user=7&age=17", draft+"}", `"condition":"age \u003e 17"`)
	check("user=7&age=18&at=2026-01-01T00:00:00Z", draft+`,"start":"2026-02-01T00:00:00Z"}`, `"verdict":"not-started"`)
	check("user=x&age=18", draft+"}", `"field":"user"`)
	check("user=7&age=x", draft+"}", `"field":"age"`)
	check("user=7", strings.Replace(draft, "age", "agee", 1)+"}", `"verdict":"problem"`)
	check("user=7&age=18", `{"placement":"home","payload":1,"target":"true"}`, `"verdict":"given"`)
	saved, _ := c.send(t, "POST", "/popups/campaigns", draft+"}", http.StatusCreated)
	check("user=7&age=18", draft+`,"id":1}`, `"campaign":1,`)
	if saved["id"] != 1.0 {
		t.Errorf("%v", saved)
	}
	c.send(t, "POST", "/popups/campaigns", `{"name":"B","placement":"home","payload":1,"status":"active","priority":1,"target":"true"}`, http.StatusCreated)
	check("user=7&age=18", draft+`,"id":1}`, `"verdict":"behind"`)
}
