package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/popup"
	"spillway/internal/stats"
)

// campaign is a campaign as the API answers it.
type campaign struct {
	popup.Campaign
	Version int64  `json:"version"`
	Problem string `json:"problem"` // why it is never shown
	popup.Counts
}

// State returns what is the matter with a campaign now: its status, or for an active one what its dates say.
func (c campaign) State() string {
	now := time.Now()
	switch {
	case c.Status != popup.Active:
		return string(c.Status)
	case c.Problem != "":
		return "not shown"
	case !c.End.IsZero() && !now.Before(c.End.Time):
		return "ended"
	case !c.Start.IsZero() && now.Before(c.Start.Time):
		return "scheduled"
	}
	return "running"
}

// ClickRate returns the share of shows that were clicked, with its interval.
func (c campaign) ClickRate() stats.Share { return stats.NewShare(c.Clicks, c.Shows, stats.Level) }

// VariantShare returns the share of users that get a variant, out of 1.
func (c campaign) VariantShare(v popup.Variant) float64 {
	sum := 0
	for _, one := range c.Variants {
		sum += one.Weight
	}
	return float64(v.Weight) / float64(max(1, sum))
}

// compareOrder is the order in which campaigns of a placement are tried.
func compareOrder(a, b campaign) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
}

const campaignsShown = 100

// campaignsData is what the list shows.
type campaignsData struct {
	Placements []string
	Placement  string
	Status     string // "": all but archived
	Name       string // a part of the names
	Campaigns  []campaign
	Total      int // that the filter selects
	Page       int
	Previous   string // addresses; "": there is none
	Next       string
	Filtered   bool // the order cannot be changed: not all of a placement are shown
	Done       string
}

// readCampaigns returns the campaigns of a placement in their order; "": of all.
func (q *request) readCampaigns(placement string) ([]campaign, error) {
	var all struct{ Campaigns []campaign }
	err := q.get("/popups/campaigns?"+url.Values{"placement": {placement}}.Encode(), &all)
	return all.Campaigns, err
}

func (q *request) campaigns() error {
	d, err := q.campaignsData(q.r.URL.Query())
	if err != nil {
		return err
	}
	return q.render(http.StatusOK, "campaigns", "Campaigns", d)
}

func (q *request) campaignsData(query url.Values) (d campaignsData, err error) {
	d = campaignsData{Placement: query.Get("placement"), Status: query.Get("status"), Name: query.Get("name"), Done: savedText(query)}
	options, err := q.options()
	if err != nil {
		return d, err
	}
	d.Placements = options.Placements
	if !slices.Contains(d.Placements, d.Placement) {
		d.Placement = d.Placements[0]
	}
	all, err := q.readCampaigns(d.Placement)
	if err != nil {
		return d, err
	}
	for _, c := range all {
		shown := c.State() == d.Status || string(c.Status) == d.Status || d.Status == "" && c.Status != popup.Archived
		if shown && strings.Contains(strings.ToLower(c.Name), strings.ToLower(d.Name)) {
			d.Campaigns = append(d.Campaigns, c)
		}
	}
	d.Filtered, d.Total = d.Status != "" || d.Name != "", len(d.Campaigns)
	d.Page, _ = strconv.Atoi(query.Get("page")) // 0: the first
	d.Page = max(0, min(d.Page, (d.Total-1)/campaignsShown))
	at := func(page int) string {
		return "?" + url.Values{"placement": {d.Placement}, "status": {d.Status}, "name": {d.Name}, "page": {strconv.Itoa(page)}}.Encode()
	}
	if d.Page > 0 {
		d.Previous = at(d.Page - 1)
	}
	first, end := d.Page*campaignsShown, min((d.Page+1)*campaignsShown, d.Total)
	if end < d.Total {
		d.Next = at(d.Page + 1)
	}
	d.Campaigns = d.Campaigns[first:end]
	return d, nil
}

// options are what a campaign may name.
type options struct {
	Attributes []struct{ Name, Type string }
	Lists      []string
	Placements []string
}

func (q *request) options() (o options, err error) { return o, q.get("/popups/attributes", &o) }

// moveUp returns the campaigns that must change so that the one at i, from 1, is tried before the one that precedes it. The changes are
// valid in their order: after each, all others are where they were.
func moveUp(all []campaign, i int) []campaign {
	above, to := all[i-1], all[i]
	to.Priority, to.Order = above.Priority, above.Order
	if compareOrder(to, above) > 0 {
		to.Order--
	}
	changes := []campaign{to}
	for j := i - 2; j >= 0 && compareOrder(all[j], to) >= 0; j-- { // those above make room
		one := all[j]
		one.Priority, one.Order = to.Priority, to.Order
		if compareOrder(one, to) > 0 {
			one.Order--
		}
		changes, to = append(changes, one), one
	}
	slices.Reverse(changes)
	return changes
}

// moveCampaign moves a campaign up or down in the order of its placement, among those that are not archived.
func (q *request) moveCampaign() error {
	id, down := q.r.PathValue("id"), q.r.PostFormValue("direction") == "down"
	query := url.Values{"placement": {q.r.PostFormValue("placement")}, "page": {q.r.PostFormValue("page")}}
	all, err := q.readCampaigns(query.Get("placement"))
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c campaign) bool { return c.Status == popup.Archived })
	slices.SortFunc(all, compareOrder)
	i := slices.IndexFunc(all, func(c campaign) bool { return fmt.Sprint(c.ID) == id })
	if i < 0 {
		return &failure{Status: http.StatusNotFound, Detail: "The campaign is not there any more."}
	}
	upper := i // the one that moves up
	if down {
		upper++
	}
	place := i + 1
	if upper > 0 && upper < len(all) {
		for _, c := range moveUp(all, upper) {
			body := map[string]any{"priority": c.Priority, "order": c.Order, "version": c.Version}
			if err := q.call(http.MethodPatch, fmt.Sprintf("/popups/campaigns/%d", c.ID), body, nil,
				"Content-Type", "application/merge-patch+json"); err != nil {
				return err
			}
		}
		if place--; down {
			place += 2
		}
	}
	query.Set("saved", "moved")
	query.Set("n", strconv.Itoa(place))
	if q.r.Header.Get("HX-Request") == "" {
		return q.redirect("/console/campaigns?" + query.Encode())
	}
	d, err := q.campaignsData(query)
	if err != nil {
		return err
	}
	return q.fragment("campaigns", "list", d)
}

// savedText says what was done, after the redirect.
func savedText(query url.Values) string {
	if query.Get("saved") == "moved" {
		return "Moved to place " + query.Get("n") + "."
	}
	return map[string]string{
		"created": "Created.", "saved": "Saved.", "restored": "Restored.", "active": "It runs now.", "paused": "It is paused.",
		"tested": "The user is a tester of the draft now, and gets it with the next request.", "untested": "The user is no tester any more.",
		"forgotten": "All that was known about the user is deleted.",
		"archived":  "It is archived.", "uploaded": "The list was replaced.", "deleted": "The list was deleted.",
	}[query.Get("saved")]
}

// setStatus pauses, resumes or archives a campaign of the version that was seen.
func (q *request) setStatus() error {
	action := q.r.PathValue("action")
	status := map[string]string{"pause": "paused", "resume": "active", "archive": "archived"}[action]
	if status == "" {
		return q.notFound()
	}
	path := "/popups/campaigns/" + url.PathEscape(q.r.PathValue("id"))
	if action == "archive" && strings.TrimSpace(q.r.PostFormValue("confirm")) != "archive" {
		return &failure{Status: http.StatusBadRequest, Detail: `Nothing has changed: go back and type "archive" to confirm. It is for good.`}
	}
	if err := q.call(http.MethodPost, path+"/"+action, nil, nil, "If-Match", strconv.Quote(q.r.PostFormValue("version"))); err != nil {
		return err
	}
	return q.redirect("/console" + strings.TrimPrefix(path, "/popups") + "?saved=" + status)
}
