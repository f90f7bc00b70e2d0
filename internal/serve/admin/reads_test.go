package admin

import (
	"net/http"
	"strings"
	"testing"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// rows are the rows of one value. Everything that is done is noted.
type rows struct{ done []string }

func (r *rows) Values(text string, most int) ([]feed.Value, int) {
	age := 0.5
	value := feed.Value{
		Arguments: map[string][]string{"city": {"Oslo"}}, AgeSeconds: &age, Idle: true, Hits: 1, Older: 1, Waiting: 1, Listeners: 1, Problem: "down",
	}
	return []feed.Value{value, {Arguments: map[string][]string{}}}[:min(most, 2)], 2
}

func (r *rows) Pause(args []string, paused bool) {
	r.done = append(r.done, map[bool]string{true: "pause ", false: "resume "}[paused]+strings.Join(args, "|"))
}

func (r *rows) Drop(args []string) bool {
	r.done = append(r.done, "drop "+strings.Join(args, "|"))
	return args[0] == "Oslo"
}

// someRead returns the feed /orders, with parameters of each kind.
func (r *rows) someRead(path string) *Read {
	if path != "/orders" {
		return nil
	}
	return &Read{
		Path: path, Kind: "feed", Database: "sqlite:x", SQL: "SELECT 1", Plans: []feed.CheckedPlan{{SQL: "SELECT 1", Plan: "SCAN"}}, Engine: r,
		Params: []param.Param{{Name: "city", Type: param.Text}, {Name: "ids", Type: param.Integer, ListMax: 3, Optional: true, Default: "-"}, param.Filter("on", param.Boolean)},
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	r := &rows{}
	base := start(t, Config{Read: r.someRead})
	for _, c := range []struct {
		path, body string
		status     int
		done       string
	}{
		{"pause", `{"path": "/orders", "arguments": {"city": ["Oslo"]}}`, http.StatusNoContent, "pause Oslo|-|" + param.Absent},
		{"resume", `{"path": "/orders", "arguments": {"city": ["Oslo"], "on": ["1"]}}`, http.StatusNoContent, "resume Oslo|-|true"},
		{"drop", `{"path": "/orders", "arguments": {"city": ["Bergen"]}}`, http.StatusNotFound, "drop Bergen|-|" + param.Absent},
		{"pause", `{"path": "/orders", "arguments": {"town": ["Oslo"]}}`, http.StatusBadRequest, ""},
		{"pause", `{"path": "/orders", "arguments": {"city": ["Oslo"], "ids": ["x"]}}`, http.StatusBadRequest, ""},
		{"pause", `{"path": "/orders"}{}`, http.StatusBadRequest, ""},
		{"pause", `{"path": "/nothing"}`, http.StatusNotFound, ""},
	} {
		r.done = nil
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/reads/"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != c.status || strings.Join(r.done, "") != c.done {
			t.Errorf("%s %s: %d, %q, %v", c.path, c.body, response.StatusCode, r.done, err)
		}
	}
}

// reads provokes every status of the API of feeds and queries.
func (w *walk) reads() {
	w.send("", "GET", "/reads", "/reads?path=/orders", "")
	for _, work := range []string{"pause", "resume", "drop"} {
		path := "/reads/" + work
		for _, city := range []string{"Oslo", "Bergen"} {
			w.send("", "POST", path, path, `{"path": "/orders", "arguments": {"city": ["`+city+`"]}}`)
		}
		w.send("", "POST", path, path, `{"path": "/nothing"}`)
		w.send("", "POST", path, path, `{"path": "/orders", "arguments": {"city": ["Oslo"]}}`, "Sec-Fetch-Site", "cross-site")
		w.send("down", "POST", path, path, `{"path": "/orders"}`)
	}
}
