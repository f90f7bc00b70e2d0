package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/popup"
)

const roleToEdit = admin.RoleEdit

// share is a rate with its interval.
type share struct{ Rate, Low, High float64 }

// reportData is what the report of a campaign shows.
type reportData struct {
	Campaign campaign
	From, To time.Time
	Hours    []reportHour
	Variants []reportVariant
	Chart    string // JSON for the chart: hours, and a series for each variant
}

type reportHour struct {
	Hour    time.Time
	Variant string
	popup.Counts
}

type reportVariant struct {
	Variant string
	popup.Counts
	Users          uint64
	ClickRate      *share          `json:"click_rate"`
	ConversionRate *share          `json:"conversion_rate"`
	Difference     *rateDifference `json:"conversion_rate_difference"`
	ToFirst        *rateDifference `json:"difference_to_first"`
}

// rateDifference is by how much a rate is higher than that of another variant.
type rateDifference struct {
	To string
	share
}

// Title names a variant.
func (v reportVariant) Title() string {
	if v.Variant == "" {
		return "all users"
	}
	return strings.Trim(v.Variant, "()")
}

// report shows what happened with a campaign.
func (q *request) report() (err error) {
	var d reportData
	if d.Campaign, err = q.readCampaign(); err != nil {
		return err
	}
	var answer struct {
		From, To time.Time
		Hours    []reportHour
		Variants []reportVariant
	}
	if err := q.get("/popups/campaigns/"+url.PathEscape(q.r.PathValue("id"))+"/report", &answer); err != nil {
		return err
	}
	d.From, d.To, d.Hours, d.Variants = answer.From, answer.To, answer.Hours, answer.Variants
	chart, err := json.Marshal(reportChart(d.Hours, d.Variants))
	if err != nil {
		return err
	}
	d.Chart = string(chart)
	return q.render(http.StatusOK, "report", "Report", d)
}

// chartData are the series of a chart over time.
type chartData struct {
	Times  []int64       `json:"times"` // in seconds
	Series []chartSeries `json:"series"`
}

type chartSeries struct {
	Name   string   `json:"name"`
	Values []uint64 `json:"values"`
}

// reportChart returns the shows by hour and variant, from the first hour to the last one, and at least of a day.
func reportChart(hours []reportHour, variants []reportVariant) chartData {
	var c chartData
	if len(hours) == 0 {
		return c
	}
	last := hours[len(hours)-1].Hour.Unix()
	first := min(hours[0].Hour.Unix(), last-23*3600)
	for at := first; at <= last; at += 3600 {
		c.Times = append(c.Times, at)
	}
	for _, v := range variants {
		s := chartSeries{v.Title(), make([]uint64, len(c.Times))}
		for _, h := range hours {
			if h.Variant == v.Variant {
				s.Values[(h.Hour.Unix()-first)/3600] += h.Shows + h.Withheld
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// change is an entry of the history of a campaign.
type change struct {
	Version  int64                      `json:"version"`
	At       time.Time                  `json:"at"`
	By       string                     `json:"by"`
	Campaign map[string]json.RawMessage `json:"campaign"`
}

// who returns the name of who made a change.
func (c change) who() string {
	if c.By == "" {
		return "Somebody without a token"
	}
	return c.By
}

// asCampaign returns the campaign after a change.
func (c change) asCampaign() (of campaign) {
	text, _ := json.Marshal(c.Campaign)    // it was JSON
	_ = json.Unmarshal(text, &of.Campaign) // a field that cannot be read is empty, and differs
	of.Version = c.Version
	return of
}

func (q *request) readHistory() ([]change, error) {
	var answer struct{ Changes []change }
	err := q.get("/popups/campaigns/"+url.PathEscape(q.r.PathValue("id"))+"/history", &answer)
	return answer.Changes, err
}

// historyEntry is a change as the page shows it.
type historyEntry struct {
	change
	Who     string
	Fields  []fieldChange // what differs from the change before
	First   bool          // there is none before
	Current bool
}

type fieldChange struct{ Name, Before, After string }

// history shows who changed what.
func (q *request) history() error {
	c, err := q.readCampaign()
	if err != nil {
		return err
	}
	changes, err := q.readHistory()
	if err != nil {
		return err
	}
	d := struct {
		Campaign campaign
		Changes  []historyEntry
	}{Campaign: c}
	for i, one := range changes {
		e := historyEntry{change: one, Who: one.who(), First: i == len(changes)-1, Current: one.Version == c.Version}
		if !e.First {
			e.Fields = differences(changes[i+1].Campaign, one.Campaign)
		}
		d.Changes = append(d.Changes, e)
	}
	return q.render(http.StatusOK, "history", "History", d)
}

// differences returns the fields that differ.
func differences(before, after map[string]json.RawMessage) []fieldChange {
	var all []fieldChange
	for _, name := range append(fieldNames(), "status", "variants") {
		if !bytes.Equal(before[name], after[name]) {
			all = append(all, fieldChange{name, readable(before[name]), readable(after[name])})
		}
	}
	return all
}

// readable returns a JSON value for people.
func readable(value json.RawMessage) string {
	var text string
	switch {
	case len(value) == 0 || string(value) == "null":
		return "none"
	case json.Unmarshal(value, &text) == nil:
		return text
	}
	return indented(value)
}

// restore saves a campaign as it was after an earlier change. Its status stays.
func (q *request) restore() error {
	changes, err := q.readHistory()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(changes, func(c change) bool { return fmt.Sprint(c.Version) == q.r.PostFormValue("restore") })
	if i < 0 {
		return &failure{Status: http.StatusNotFound, Detail: "The history does not have this change any more."}
	}
	body := map[string]any{}
	for name, value := range changes[i].Campaign {
		body[name] = value
	}
	delete(body, "status")
	delete(body, "created")
	path := "/popups/campaigns/" + url.PathEscape(q.r.PathValue("id"))
	if err := q.call(http.MethodPut, path, body, nil, "If-Match", strconv.Quote(q.r.PostFormValue("version"))); err != nil {
		return err
	}
	return q.redirect("/console" + strings.TrimPrefix(path, "/popups") + "?saved=restored")
}
