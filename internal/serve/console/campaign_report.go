package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/serve/admin"
)

const roleToEdit = admin.RoleEdit

// reportData is what the report of a campaign shows.
type reportData struct {
	Campaign campaign
	admin.Report
	Chart string // JSON for the chart: hours, and a series for each variant
}

// Variant names a variant.
func (v *view) Variant(name string) string { return variantTitle(name) }

func variantTitle(name string) string {
	if name == "" {
		return "all users"
	}
	return strings.Trim(name, "()")
}

// report shows what happened with a campaign.
func (q *request) report() (err error) {
	var d reportData
	if d.Campaign, err = q.readCampaign(); err != nil {
		return err
	}
	if err := q.get("/popups/campaigns/"+url.PathEscape(q.r.PathValue("id"))+"/report", &d.Report); err != nil {
		return err
	}
	chart, err := json.Marshal(reportChart(&d.Report))
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
func reportChart(r *admin.Report) chartData {
	var c chartData
	if len(r.Hours) == 0 {
		return c
	}
	last := r.Hours[len(r.Hours)-1].Hour.Unix()
	first := min(r.Hours[0].Hour.Unix(), last-23*3600)
	for at := first; at <= last; at += 3600 {
		c.Times = append(c.Times, at)
	}
	for _, v := range r.Variants {
		s := chartSeries{variantTitle(v.Variant), make([]uint64, len(c.Times))}
		for _, h := range r.Hours {
			if h.Variant == v.Variant {
				s.Values[(h.Hour.Unix()-first)/3600] += h.Shows + h.Withheld
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// asCampaign returns the campaign after a change.
func asCampaign(c admin.CampaignChange) (of campaign) {
	text, _ := json.Marshal(c.Campaign)    // it was JSON
	_ = json.Unmarshal(text, &of.Campaign) // a field that cannot be read is empty, and differs
	of.Version = c.Version
	return of
}

func (q *request) readHistory() ([]admin.CampaignChange, error) {
	var answer struct{ Changes []admin.CampaignChange }
	err := q.get("/popups/campaigns/"+url.PathEscape(q.r.PathValue("id"))+"/history", &answer)
	return answer.Changes, err
}

// nobody made a change without tokens.
const nobody = "Somebody without a token"

// historyEntry is a change as the page shows it.
type historyEntry struct {
	admin.CampaignChange
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
		e := historyEntry{CampaignChange: one, Who: cmp.Or(one.By, nobody), First: i == len(changes)-1, Current: one.Version == c.Version}
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
	i := slices.IndexFunc(changes, func(c admin.CampaignChange) bool { return fmt.Sprint(c.Version) == q.r.PostFormValue("restore") })
	if i < 0 {
		return &failure{Status: http.StatusNotFound, Detail: "The history does not have this change any more."}
	}
	body := changes[i].Campaign
	delete(body, "status")
	delete(body, "created")
	path := "/popups/campaigns/" + url.PathEscape(q.r.PathValue("id"))
	if err := q.call(http.MethodPut, path, body, nil, "If-Match", strconv.Quote(q.r.PostFormValue("version"))); err != nil {
		return err
	}
	return q.redirect("/console" + strings.TrimPrefix(path, "/popups") + "?saved=restored")
}
