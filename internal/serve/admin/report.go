package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"spillway/internal/serve/popup"
	"spillway/internal/stats"
)

// ReportTables is where a database keeps what happened with campaigns by hour.
type ReportTables interface {
	// Hours returns the hours of a campaign that begin from a time until before another one.
	Hours(ctx context.Context, campaign popup.CampaignID, from, to time.Time) ([]popup.Hour, error)
	// History returns the last changes of a campaign, the newest first.
	History(ctx context.Context, campaign popup.CampaignID, limit int) ([]popup.CampaignChange, error)
}

// figures are the events of a campaign in some time.
type figures struct {
	popup.Counts
	Users uint64 `json:"users"` // whom it was shown, or withheld from, for the first time
}

// add adds the events of an hour.
func (f *figures) add(h popup.Hour) {
	f.Add(h.Kind, h.Events)
	f.Users += h.Users
}

// ReportHour is an hour of a variant.
type ReportHour struct {
	Hour    time.Time `json:"hour"`
	Variant string    `json:"variant"`
	figures
}

// Share is a rate with its interval of 95 %.
type Share struct {
	Rate float64 `json:"rate"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Difference is that of the conversion rates of a variant and another one.
type Difference struct {
	To string `json:"to"`
	Share
}

// ReportVariant is the totals of a variant, or of the holdout.
type ReportVariant struct {
	Variant string `json:"variant"`
	figures
	ClickRate      *Share      `json:"click_rate"`                 // clicks / shows; null without shows
	ConversionRate *Share      `json:"conversion_rate"`            // conversions / users; null without users
	Difference     *Difference `json:"conversion_rate_difference"` // null: there is nothing to compare with
	ToFirst        *Difference `json:"difference_to_first"`        // of the conversion rates of two variants; null: the same
}

// Report is what happened with a campaign.
type Report struct {
	Campaign popup.CampaignID `json:"campaign"`
	From     time.Time        `json:"from"`
	To       time.Time        `json:"to"`
	Hours    []ReportHour     `json:"hours"`
	Variants []ReportVariant  `json:"variants"`
}

// holdoutName is the variant of the users from whom a campaign is withheld. The names of
// variants have no such form.
const holdoutName = "(holdout)"

// reportMax is the longest time of a report.
const reportMax = 366 * 24 * time.Hour

// report answers what happened with a campaign, by hour and variant.
func (p *Popups) report(_ http.ResponseWriter, r *http.Request) (any, error) {
	c, _, err := p.find(r)
	if err != nil {
		return nil, err
	}
	from, to, flaws := p.reported(c.Created.Time, r.URL.Query())
	if len(flaws) > 0 {
		return nil, flawed(http.StatusBadRequest, flaws...)
	}
	hours, err := p.Reports.Hours(r.Context(), c.ID, from, to)
	if err != nil {
		return nil, err
	}
	return Report{c.ID, from, to, byHour(&c.Campaign, hours), byVariant(&c.Campaign, hours)}, nil
}

// reported returns the time of a report, in whole hours. The default is the campaign's time
// until now, or the last part of it.
func (p *Popups) reported(created time.Time, query url.Values) (from, to time.Time, flaws []Flaw) {
	read := func(name string, fallback time.Time) time.Time {
		text := query.Get(name)
		if text == "" {
			return fallback
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil || t.UTC().Year() < 1900 || t.UTC().Year() > 2150 {
			flaws = append(flaws, Flaw{Field: name, Message: name + " must be a time of RFC 3339, as 2026-01-02T03:00:00Z; write + as %2B"})
		}
		return t.UTC()
	}
	to = read("to", p.Popup.Time().UTC()).Add(time.Hour - 1).Truncate(time.Hour)
	from = to.Add(-reportMax)
	if created.After(from) {
		from = created
	}
	from = read("from", from).Truncate(time.Hour)
	if len(flaws) == 0 && (!from.Before(to) || to.Sub(from) > reportMax) {
		flaws = append(flaws, Flaw{Field: "from", Message: "from must be before to, by at most 366 days"})
	}
	return from, to, flaws
}

// byHour returns the hours of a report: one for each variant in which something happened.
func byHour(c *popup.Campaign, hours []popup.Hour) []ReportHour {
	type cell struct {
		hour    int64
		variant uint8
	}
	all, places := []ReportHour{}, map[cell]int{}
	for _, h := range hours {
		at := cell{h.Hour.Unix(), h.Variant}
		i, known := places[at]
		if !known {
			i = len(all)
			places[at], all = i, append(all, ReportHour{Hour: h.Hour.UTC(), Variant: reportName(c, h.Variant)})
		}
		all[i].add(h)
	}
	slices.SortFunc(all, func(a, b ReportHour) int {
		return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Variant, b.Variant))
	})
	return all
}

// byVariant returns the totals of the variants in their order, the holdout last. Each is
// compared with the holdout, or with the first variant if nothing was withheld.
func byVariant(c *popup.Campaign, hours []popup.Hour) []ReportVariant {
	numbers := []uint8{}
	totals := map[uint8]*figures{}
	for _, h := range hours {
		if totals[h.Variant] == nil {
			totals[h.Variant] = &figures{}
			numbers = append(numbers, h.Variant)
		}
		totals[h.Variant].add(h)
	}
	slices.Sort(numbers)
	all := []ReportVariant{}
	var conversions []stats.Share
	for _, n := range numbers {
		f := totals[n]
		clicks, converted := stats.NewShare(f.Clicks, f.Shows, stats.Level), stats.NewShare(f.Conversions, f.Users, stats.Level)
		conversions = append(conversions, converted)
		all = append(all, ReportVariant{Variant: reportName(c, n), figures: *f, ClickRate: newShare(clicks), ConversionRate: newShare(converted)})
	}
	other := 0
	if len(all) > 0 && all[len(all)-1].Variant == holdoutName {
		other = len(all) - 1
	}
	compare := func(i, to int) *Difference {
		if i == to || conversions[i].Cases == 0 || conversions[to].Cases == 0 {
			return nil
		}
		return &Difference{all[to].Variant, Share(conversions[i].Minus(conversions[to]))}
	}
	for i := range all {
		if all[i].Difference = compare(i, other); all[i].Variant != holdoutName {
			all[i].ToFirst = compare(i, 0)
		}
	}
	return all
}

// newShare returns nil for a share without cases.
func newShare(s stats.Share) *Share {
	if s.Cases == 0 {
		return nil
	}
	return &Share{s.Rate, s.Low, s.High}
}

// reportName returns the name of a variant in a report; "" for campaigns without variants,
// and "#3" for a third variant that has been removed.
func reportName(c *popup.Campaign, variant uint8) string {
	if variant == popup.VariantWithheld {
		return holdoutName
	}
	if variant > 0 && int(variant) > len(c.Variants) {
		return fmt.Sprintf("#%d", variant)
	}
	return c.VariantName(variant)
}

// historyMax is the maximum of changes in one answer.
const historyMax = 100

// CampaignChange is an entry of a campaign's history.
type CampaignChange struct {
	Version  int64     `json:"version"`
	At       time.Time `json:"at"`
	By       string    `json:"by"` // the name of the token; "" without one
	Campaign fields    `json:"campaign"`
}

// history answers with the last changes of a campaign, the newest first.
func (p *Popups) history(_ http.ResponseWriter, r *http.Request) (any, error) {
	c, _, err := p.find(r)
	if err != nil {
		return nil, err
	}
	limit := historyMax
	if text := r.URL.Query().Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > historyMax {
			return nil, flawed(http.StatusBadRequest, Flaw{Field: "limit", Message: "limit must be from 1 to " + strconv.Itoa(historyMax)})
		}
	}
	changes, err := p.Reports.History(r.Context(), c.ID, limit)
	if err != nil {
		return nil, err
	}
	all := []CampaignChange{}
	for _, one := range changes {
		all = append(all, CampaignChange{one.Version, one.At.UTC(), one.By, writableFields(one.StoredCampaign)})
	}
	return map[string][]CampaignChange{"changes": all}, nil
}
