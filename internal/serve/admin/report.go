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
	Users uint64 `json:"users"` // whom it was shown for the first time
}

// add adds the events of an hour.
func (f *figures) add(h popup.Hour) {
	f.Add(h.Kind, h.Events)
	if h.Kind == popup.KindShow {
		f.Users += h.Users
	}
}

// reportHour is an hour of a variant.
type reportHour struct {
	Hour    time.Time `json:"hour"`
	Variant string    `json:"variant"`
	figures
}

// share is a rate with its interval of 95 %.
type share struct {
	Rate float64 `json:"rate"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// difference is that of the conversion rates of a variant and another one.
type difference struct {
	To string `json:"to"`
	share
}

// reportVariant is the totals of a variant, or of the holdout.
type reportVariant struct {
	Variant string `json:"variant"`
	figures
	ClickRate      *share      `json:"click_rate"`                 // clicks / shows; null without shows
	ConversionRate *share      `json:"conversion_rate"`            // conversions / users; null without users
	Difference     *difference `json:"conversion_rate_difference"` // null: there is nothing to compare with
	ToFirst        *difference `json:"difference_to_first"`        // of the conversion rates of two variants; null: the same
}

// holdoutName is the variant of the users from whom a campaign is withheld. The names of
// variants have no such form.
const holdoutName = "(holdout)"

// reportMax is the longest time of a report.
const reportMax = 366 * 24 * time.Hour

// report answers what happened with a campaign, by hour and variant.
func (p *Popups) report(w http.ResponseWriter, r *http.Request) {
	c, _, ok := p.find(w, r)
	if !ok {
		return
	}
	from, to, flaws := p.reported(c.Created.Time, r.URL.Query())
	if len(flaws) > 0 {
		writeFlaws(w, http.StatusBadRequest, flaws...)
		return
	}
	hours, err := p.Reports.Hours(r.Context(), c.ID, from, to)
	if err != nil {
		writeDown(w, err)
		return
	}
	answer := struct {
		Campaign popup.CampaignID `json:"campaign"`
		From     time.Time        `json:"from"`
		To       time.Time        `json:"to"`
		Hours    []reportHour     `json:"hours"`
		Variants []reportVariant  `json:"variants"`
	}{c.ID, from, to, byHour(&c.Campaign, hours), byVariant(&c.Campaign, hours)}
	writeJSON(w, "application/json", http.StatusOK, answer)
}

// reported returns the time of a report, in whole hours. The default is the campaign's time
// until now, or the last part of it.
func (p *Popups) reported(created time.Time, query url.Values) (from, to time.Time, flaws []flaw) {
	read := func(name string, fallback time.Time) time.Time {
		text := query.Get(name)
		if text == "" {
			return fallback
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil || t.UTC().Year() < 1900 || t.UTC().Year() > 2150 {
			flaws = append(flaws, flaw{Field: name, Message: name + " must be a time of RFC 3339, as 2026-01-02T03:00:00Z; write + as %2B"})
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
		flaws = append(flaws, flaw{Field: "from", Message: "from must be before to, by at most 366 days"})
	}
	return from, to, flaws
}

// byHour returns the hours of a report: one for each variant in which something happened.
func byHour(c *popup.Campaign, hours []popup.Hour) []reportHour {
	type cell struct {
		hour    int64
		variant uint8
	}
	all, places := []reportHour{}, map[cell]int{}
	for _, h := range hours {
		at := cell{h.Hour.Unix(), h.Variant}
		i, known := places[at]
		if !known {
			i = len(all)
			places[at], all = i, append(all, reportHour{Hour: h.Hour.UTC(), Variant: reportName(c, h.Variant)})
		}
		all[i].add(h)
	}
	slices.SortFunc(all, func(a, b reportHour) int {
		return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Variant, b.Variant))
	})
	return all
}

// byVariant returns the totals of the variants in their order, the holdout last. Each is
// compared with the holdout, or with the first variant if nothing was withheld.
func byVariant(c *popup.Campaign, hours []popup.Hour) []reportVariant {
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
	all := []reportVariant{}
	var conversions []stats.Share
	for _, n := range numbers {
		f := totals[n]
		clicks, converted := stats.NewShare(f.Clicks, f.Shows, stats.Level), stats.NewShare(f.Conversions, f.Users+f.Withheld, stats.Level)
		conversions = append(conversions, converted)
		all = append(all, reportVariant{Variant: reportName(c, n), figures: *f, ClickRate: newShare(clicks), ConversionRate: newShare(converted)})
	}
	other := 0
	if len(all) > 0 && all[len(all)-1].Variant == holdoutName {
		other = len(all) - 1
	}
	compare := func(i, to int) *difference {
		if i == to || conversions[i].Cases == 0 || conversions[to].Cases == 0 {
			return nil
		}
		return &difference{all[to].Variant, share(conversions[i].Minus(conversions[to]))}
	}
	for i := range all {
		if all[i].Difference = compare(i, other); all[i].Variant != holdoutName {
			all[i].ToFirst = compare(i, 0)
		}
	}
	return all
}

// newShare returns nil for a share without cases.
func newShare(s stats.Share) *share {
	if s.Cases == 0 {
		return nil
	}
	return &share{s.Rate, s.Low, s.High}
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

// change is an entry of a campaign's history.
type change struct {
	Version  int64     `json:"version"`
	At       time.Time `json:"at"`
	By       string    `json:"by"` // the name of the token; "" without one
	Campaign fields    `json:"campaign"`
}

// history answers with the last changes of a campaign, the newest first.
func (p *Popups) history(w http.ResponseWriter, r *http.Request) {
	c, _, ok := p.find(w, r)
	if !ok {
		return
	}
	limit := historyMax
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > historyMax {
			writeFlaws(w, http.StatusBadRequest, flaw{Field: "limit", Message: "limit must be from 1 to " + strconv.Itoa(historyMax)})
			return
		}
	}
	changes, err := p.Reports.History(r.Context(), c.ID, limit)
	if err != nil {
		writeDown(w, err)
		return
	}
	all := []change{}
	for _, one := range changes {
		all = append(all, change{one.Version, one.At.UTC(), one.By, writableFields(one.StoredCampaign)})
	}
	writeJSON(w, "application/json", http.StatusOK, struct {
		Changes []change `json:"changes"`
	}{all})
}
