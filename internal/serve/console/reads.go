package console

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/feed"
)

// readsData is what the page of feeds and queries shows.
type readsData struct {
	admin.Figures
	Down []admin.Part // of feeds and queries that have not started
}

// reads lists the feeds and queries.
func (q *request) reads() error {
	d := readsData{Figures: q.cfg.Access.Figures()}
	started := make(map[string]bool)
	for _, f := range d.Feeds {
		started[f.Name] = true
	}
	for _, one := range d.Queries {
		started[one.Name] = true
	}
	for _, p := range q.cfg.Access.Parts() {
		if p.Group == admin.Reads && !started[p.Name] {
			d.Down = append(d.Down, p)
		}
	}
	return q.render(http.StatusOK, "reads", "Feeds and queries", d)
}

// readData is what the page of a feed or a query shows.
type readData struct {
	admin.Read
	Contains string // the filter of the values
	Command  string // to run, so that it starts
	Done     string // what was done before
}

// read shows a feed or a query.
func (q *request) read() error {
	query := q.r.URL.Query()
	d := readData{Contains: query.Get("contains")}
	ask := url.Values{"path": {query.Get("path")}, "contains": {d.Contains}}
	if err := q.get("/reads?"+ask.Encode(), &d.Read); err != nil {
		return err
	}
	d.Command = indexCommand(d.Problem)
	d.Done = map[string]string{
		"pause":  "Nothing of this value is read any more. Its rows are served as long as their age permits.",
		"resume": "It is read again.",
		"drop":   "Its rows are forgotten. The next request has them read anew.",
	}[query.Get("done")]
	return q.render(http.StatusOK, "read", d.Path, d)
}

// changeRead pauses, resumes or drops a value.
func (q *request) changeRead() error {
	work, path := q.r.PathValue("work"), q.r.PostFormValue("path")
	if !slices.Contains([]string{"pause", "resume", "drop"}, work) {
		return q.notFound()
	}
	value := struct {
		Path      string          `json:"path"`
		Arguments json.RawMessage `json:"arguments"`
	}{path, json.RawMessage(q.r.PostFormValue("arguments"))}
	if !json.Valid(value.Arguments) {
		return &failure{Status: http.StatusBadRequest, Detail: "The form cannot be read."}
	}
	if err := q.call(http.MethodPost, "/reads/"+work, value, nil); err != nil {
		return err
	}
	back := url.Values{"path": {path}, "contains": {q.r.PostFormValue("contains")}, "done": {work}}
	return q.redirect("/console/reads/one?" + back.Encode())
}

// ReadPage returns the address of the page of a feed or a query.
func (v *view) ReadPage(path string) string {
	return "/console/reads/one?path=" + url.QueryEscape(path)
}

// Arguments returns the arguments of a value as a person reads them.
func (v *view) Arguments(of feed.Value) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of.Arguments)) {
		all = append(all, name+" = "+strings.Join(of.Arguments[name], ", "))
	}
	return short(strings.Join(all, "; "), 300)
}

// JSON returns a value as JSON.
func (v *view) JSON(x any) (string, error) {
	text, err := json.Marshal(x)
	return string(text), err
}

// Share returns the share that a part has in the whole.
func (v *view) Share(part, whole uint64) string {
	if whole == 0 {
		return "–"
	}
	return v.Percent(float64(part) / float64(whole))
}

// Mean returns a sum of seconds divided by a count.
func (v *view) Mean(seconds float64, n uint64) string {
	if n == 0 {
		return "–"
	}
	return v.Seconds(seconds / float64(n))
}

// Add returns a sum.
func (v *view) Add(a, b uint64) uint64 { return a + b }
