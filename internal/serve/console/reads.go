package console

import (
	"encoding/json"
	"net/http"
	"net/url"

	"spillway/internal/serve/admin"
)

// reads lists the feeds and queries.
func (q *request) reads() error {
	return q.render(http.StatusOK, "reads", "Feeds and queries", q.overviewData())
}

// readData is what the page of a feed or a query shows.
type readData struct {
	admin.Read
	Contains string // the filter of the values
	Command  string // to run, so that it starts
	Done     string // what was done before: pause, resume or drop
}

// read shows a feed or a query.
func (q *request) read() error {
	query := q.r.URL.Query()
	d := readData{Contains: query.Get("contains"), Done: query.Get("done")}
	ask := url.Values{"path": {query.Get("path")}, "contains": {d.Contains}}
	if err := q.get("/reads?"+ask.Encode(), &d.Read); err != nil {
		return err
	}
	d.Command = indexCommand(d.Problem)
	return q.render(http.StatusOK, "read", d.Path, d)
}

// changeRead pauses, resumes or drops a value.
func (q *request) changeRead() error {
	work, path, arguments := q.r.PathValue("work"), q.r.PostFormValue("path"), json.RawMessage(q.r.PostFormValue("arguments"))
	if !json.Valid(arguments) {
		return &failure{Status: http.StatusBadRequest, Detail: "The form cannot be read."}
	}
	if err := q.call(http.MethodPost, "/reads/"+work, map[string]any{"path": path, "arguments": arguments}, nil); err != nil {
		return err
	}
	back := url.Values{"path": {path}, "contains": {q.r.PostFormValue("contains")}, "done": {work}}
	return q.redirect("/console/reads/one?" + back.Encode())
}

// ReadPage returns the address of the page of a feed or a query.
func (v *view) ReadPage(path string) string {
	return "/console/reads/one?path=" + url.QueryEscape(path)
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
