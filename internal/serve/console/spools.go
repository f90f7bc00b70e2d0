package console

import (
	"encoding/json"
	"fmt"
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

// letterFilter is a filter as the forms have it.
type letterFilter struct {
	Stream, Reason, Since, Until string
	InDoubt                      bool
}

// filterOf reads a filter from a query or a form.
func filterOf(form url.Values) letterFilter {
	return letterFilter{form.Get("stream"), form.Get("reason"), form.Get("since"), form.Get("until"), form.Get("in_doubt") == "true"}
}

// Query returns the filter as it is in the address of the page.
func (f letterFilter) Query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"stream": f.Stream, "reason": f.Reason, "since": f.Since, "until": f.Until} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.InDoubt {
		query.Set("in_doubt", "true")
	}
	return query
}

// filter returns the filter for the API.
func (q *request) filter(f letterFilter) (spool.Filter, error) {
	filter := spool.Filter{Stream: f.Stream, Reason: f.Reason, InDoubt: &f.InDoubt}
	for text, at := range map[*string]*time.Time{&f.Since: &filter.Since, &f.Until: &filter.Until} {
		if *text == "" {
			continue
		}
		var err error
		if *at, err = parseTime(*text, q.zone); err != nil {
			return filter, &failure{Status: http.StatusBadRequest, Detail: fmt.Sprintf("%q is not a time such as 2026-01-31T12:00.", *text)}
		}
	}
	return filter, nil
}

// parseTime reads the value of a datetime-local input.
func parseTime(text string, zone *time.Location) (time.Time, error) {
	t, err := time.ParseInLocation(fieldLayout, text, zone)
	if err != nil {
		t, err = time.ParseInLocation(minuteLayout, text, zone)
	}
	return t, err
}

// apiQuery returns a filter as the API's paths have it.
func apiQuery(f spool.Filter) url.Values {
	query := url.Values{"stream": {f.Stream}, "reason": {f.Reason}, "in_doubt": {strconv.FormatBool(*f.InDoubt)}}
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return query
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
	Filter  letterFilter
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
	filter, err := q.filter(d.Filter)
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
		if d.Filter.Stream == "" || d.Filter.Stream == s.Name {
			d.Dead, d.InDoubt = d.Dead+s.Dead-s.InDoubt, d.InDoubt+s.InDoubt
		}
	}
	ask := apiQuery(filter)
	d.Export = "/console" + base + "/export?" + d.Filter.Query().Encode()
	ask.Set("limit", strconv.Itoa(lettersShown+1))
	ask.Set("after", query.Get("after"))
	var answer struct {
		Letters []letterView `json:"dead_letters"`
	}
	if err := q.get(base+"/dead?"+ask.Encode(), &answer); err != nil {
		return err
	}
	if d.Letters = answer.Letters; len(d.Letters) > lettersShown {
		d.Letters = d.Letters[:lettersShown]
		next := d.Filter.Query()
		next.Set("after", strconv.FormatInt(d.Letters[lettersShown-1].ID, 10))
		d.Next = "?" + next.Encode()
	}
	return q.render(http.StatusOK, "letters", "Dead letters", d)
}

// export answers with all dead letters of a filter, as NDJSON.
func (q *request) export() error {
	filter, err := q.filter(filterOf(q.r.URL.Query()))
	if err != nil {
		return err
	}
	name := q.r.PathValue("spool")
	q.w.Header().Set("Content-Disposition", `attachment; filename="dead-letters.ndjson"`)
	return q.pass("/spools/" + url.PathEscape(name) + "/dead/export?" + apiQuery(filter).Encode())
}

// orderData is what a page asks before an order is executed.
type orderData struct {
	Spool, Work string
	Filter      letterFilter
	IDs         []string
	Which       string // selected or all
	Letters     int    // how many it concerns
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
	filter, err := q.filter(d.Filter)
	if err != nil {
		return err
	}
	if d.Which != "all" {
		filter.IDs = []int64{}
		for _, text := range d.IDs {
			if id, err := strconv.ParseInt(text, 10, 64); err == nil {
				filter.IDs = append(filter.IDs, id)
			}
		}
		if len(filter.IDs) == 0 {
			return &failure{Status: http.StatusBadRequest, Detail: "No dead letter is selected. Go back and select some, or choose all that match."}
		}
	}
	path := "/spools/" + url.PathEscape(d.Spool) + "/" + d.Work
	if d.Work == discard || d.Filter.InDoubt {
		var would spool.Done
		if err := q.call(http.MethodPost, path, spool.Order{Filter: filter, DryRun: true}, &would); err != nil {
			return err
		}
		d.Letters = would.Letters
		if typed := form.Get("confirm"); typed != strconv.Itoa(would.Letters) {
			d.Wrong = typed != ""
			return q.render(http.StatusOK, "confirm", "Confirm", d)
		}
	}
	var done spool.Done
	if err := q.call(http.MethodPost, path, spool.Order{Filter: filter}, &done); err != nil {
		return err
	}
	back := d.Filter.Query()
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
