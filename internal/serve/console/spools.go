package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
)

const (
	lettersShown = 100
	recordShown  = 2000 // characters of one dead letter; an export has all
	fieldLayout  = "2006-01-02T15:04:05"
	minuteLayout = "2006-01-02T15:04" // browsers leave out seconds that are 0
	discard      = "discard"
)

// streams shows the streams, and what is in the spools.
func (q *request) streams() error {
	return q.render(http.StatusOK, "streams", "Streams", q.cfg.Access.Figures())
}

// filterOf returns the filter of a query or a form, as the address of the page has it.
func filterOf(form url.Values) url.Values {
	filter := url.Values{}
	for _, name := range []string{"stream", "reason", "since", "until", "in_doubt"} {
		if text := form.Get(name); text != "" && (name != "in_doubt" || text == "true") {
			filter.Set(name, text)
		}
	}
	return filter
}

// apiFilter returns a filter as the API has it.
func (q *request) apiFilter(filter url.Values) (url.Values, error) {
	api := maps.Clone(filter)
	api.Set("in_doubt", strconv.FormatBool(filter.Has("in_doubt")))
	for _, name := range []string{"since", "until"} {
		text := filter.Get(name)
		if text == "" {
			continue
		}
		at, err := parseTime(text, q.zone)
		if err != nil {
			return nil, &failure{Status: http.StatusBadRequest, Detail: fmt.Sprintf("%q is not a time such as 2026-01-31T12:00.", text)}
		}
		api.Set(name, at.UTC().Format(time.RFC3339Nano))
	}
	return api, nil
}

// parseTime reads the value of a datetime-local input.
func parseTime(text string, zone *time.Location) (time.Time, error) {
	t, err := time.ParseInLocation(fieldLayout, text, zone)
	if err != nil {
		t, err = time.ParseInLocation(minuteLayout, text, zone)
	}
	return t, err
}

// letterView is a dead letter on a page.
type letterView struct {
	queue.DeadLetter
	Records json.RawMessage `json:"records"`
}

// Text returns the records of a dead letter, or the first of them.
func (l letterView) Text() string { return short(plainJSON(string(l.Records)), recordShown) }

// lettersData is what the page of dead letters shows.
type lettersData struct {
	Spool   string
	Filter  url.Values
	Streams []spool.NameStats
	Letters []letterView
	Next    string // the address of the next page; "": there is none
	First   bool
	Export  string
	Dead    int64 // of all streams, or that of the filter; not in doubt
	InDoubt int64
	Done    string // what was done before
}

// letters lists dead letters.
func (q *request) letters() error {
	query := q.r.URL.Query()
	d := lettersData{Spool: q.r.PathValue("spool"), Filter: filterOf(query), First: query.Get("after") == "", Done: doneText(query)}
	ask, err := q.apiFilter(d.Filter)
	if err != nil {
		return err
	}
	base := "/spools/" + url.PathEscape(d.Spool)
	var status struct{ Streams []spool.NameStats }
	if err := q.get(base, &status); err != nil {
		return err
	}
	d.Streams = status.Streams
	for _, s := range d.Streams {
		if name := d.Filter.Get("stream"); name == "" || name == s.Name {
			d.Dead, d.InDoubt = d.Dead+s.Dead-s.InDoubt, d.InDoubt+s.InDoubt
		}
	}
	d.Export = "/console" + base + "/export?" + d.Filter.Encode()
	if d.Letters, err = q.readLetters(base, ask, query.Get("after"), lettersShown); err != nil {
		return err
	}
	if n := len(d.Letters); n > 0 {
		next := maps.Clone(d.Filter)
		next.Set("after", strconv.FormatInt(d.Letters[n-1].ID, 10))
		more, err := q.readLetters(base, ask, next.Get("after"), 1)
		if err != nil {
			return err
		}
		if len(more) > 0 {
			d.Next = "?" + next.Encode()
		}
	}
	return q.render(http.StatusOK, "letters", "Dead letters", d)
}

// readLetters returns dead letters behind an id: fewer than that many if they are large.
func (q *request) readLetters(base string, ask url.Values, after string, most int) ([]letterView, error) {
	ask.Set("after", after)
	ask.Set("limit", strconv.Itoa(most))
	var answer struct {
		Letters []letterView `json:"dead_letters"`
	}
	err := q.get(base+"/dead?"+ask.Encode(), &answer)
	return answer.Letters, err
}

// export answers with all dead letters of a filter, as NDJSON.
func (q *request) export() error {
	filter, err := q.apiFilter(filterOf(q.r.URL.Query()))
	if err != nil {
		return err
	}
	name := q.r.PathValue("spool")
	q.w.Header().Set("Content-Disposition", `attachment; filename="dead-letters.ndjson"`)
	return q.pass("/spools/" + url.PathEscape(name) + "/dead/export?" + filter.Encode())
}

// orderData is what a page asks before an order is executed.
type orderData struct {
	Spool, Work string
	Filter      url.Values
	IDs         []string
	Which       string // selected or all
	Letters     int    // how many it concerns
	Upto        int64  // the last of them: later ones were not confirmed
	Wrong       bool   // the confirmation was another number
}

// order retries or discards dead letters: those that are selected, or all of a filter.
func (q *request) order() error {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, 1<<20)
	if err := q.r.ParseForm(); err != nil {
		return &failure{Status: http.StatusBadRequest, Detail: "The form cannot be read."}
	}
	form := q.r.PostForm
	d := orderData{
		Spool: q.r.PathValue("spool"), Work: q.r.PathValue("work"), Filter: filterOf(form), IDs: form["id"], Which: form.Get("which"),
	}
	if !slices.Contains([]string{"retry", discard}, d.Work) {
		return q.notFound()
	}
	filter, err := q.apiFilter(d.Filter)
	if err != nil {
		return err
	}
	order := map[string]any{}
	for name := range filter {
		order[name] = filter.Get(name)
	}
	order["in_doubt"] = d.Filter.Has("in_doubt")
	if d.Which != "all" {
		ids := []int64{}
		for _, text := range d.IDs {
			if id, err := strconv.ParseInt(text, 10, 64); err == nil {
				ids = append(ids, id)
			}
		}
		if order["ids"] = ids; len(ids) == 0 {
			return &failure{Status: http.StatusBadRequest, Detail: "No dead letter is selected. Go back and select some, or choose all that match."}
		}
	}
	path := "/spools/" + url.PathEscape(d.Spool) + "/" + d.Work
	order["upto"], _ = strconv.ParseInt(form.Get("upto"), 10, 64) // 0: it was not asked yet
	if order["dry_run"] = true; d.Work == discard || d.Filter.Has("in_doubt") {
		var would spool.Done
		if err := q.call(http.MethodPost, path, order, &would); err != nil {
			return err
		}
		d.Letters, d.Upto, order["upto"] = would.Letters, would.Upto, would.Upto
		if typed := form.Get("confirm"); typed != strconv.Itoa(would.Letters) {
			d.Wrong = typed != ""
			return q.render(http.StatusOK, "confirm", "Confirm", d)
		}
	}
	delete(order, "dry_run")
	var done spool.Done
	if err := q.call(http.MethodPost, path, order, &done); err != nil {
		return err
	}
	back := maps.Clone(d.Filter)
	back.Set("done", d.Work)
	back.Set("n", strconv.Itoa(done.Letters))
	return q.redirect("/console/spools/" + url.PathEscape(d.Spool) + "/dead?" + back.Encode())
}

// doneText says what an order has done, after the redirect.
func doneText(query url.Values) string {
	n, err := strconv.Atoi(query.Get("n"))
	if err != nil {
		return ""
	}
	switch query.Get("done") {
	case "retry":
		return fmt.Sprintf("%d dead letters wait again. Those that the database refuses again come back.", n)
	case discard:
		return fmt.Sprintf("%d dead letters were discarded.", n)
	}
	return ""
}
