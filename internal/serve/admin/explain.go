package admin

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
)

// Explained says what a user gets at a placement, and why.
type Explained struct {
	User      string              `json:"user"`
	Placement string              `json:"placement"`
	Now       time.Time           `json:"now"`
	State     UserState           `json:"state"`
	Campaigns []popup.Explanation `json:"campaigns"`
}

// UserState is a user's state at a placement.
type UserState struct {
	Version  uint64           `json:"version"`
	Phase    string           `json:"phase"`
	Campaign popup.CampaignID `json:"campaign,omitempty"`
	Shown    *time.Time       `json:"shown,omitempty"`
	Answered *time.Time       `json:"answered,omitempty"`
	Until    *time.Time       `json:"until,omitempty"` // nothing is shown before; absent with a phase other than fresh: never again
}

// explain answers what a user would get now, or at another time with the same state, and why,
// by campaign. It changes nothing.
func (p *Popups) explain(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	key := popup.Key{User: query.Get("user"), Placement: cmp.Or(query.Get("placement"), p.Placements[0])}
	attributes := p.Popup.Attributes()
	defer p.Popup.Release(attributes)
	now, flaws := p.explainedAt(query)
	if !slices.Contains(p.Placements, key.Placement) {
		flaws = append(flaws, Flaw{Field: "placement", Message: "placement must be " + strings.Join(p.Placements, " or ")})
	}
	flaws = append(flaws, p.readAttributes(&key, query, attributes)...)
	if len(flaws) > 0 {
		return nil, flawed(http.StatusBadRequest, flaws...)
	}
	all, state, err := p.Popup.Explain(r.Context(), key, attributes, now)
	switch {
	case errors.Is(err, popup.ErrRequest): // the placement is one of ours
		return nil, flawed(http.StatusBadRequest, Flaw{Field: "user", Message: withoutClass(err)})
	case err != nil:
		return nil, later(err.Error())
	}
	return explanations(key, now, state, all), nil
}

// explainActive returns why the user of a query would or would not get a campaign if it were active. The flaws are those of the
// query.
func (p *Popups) explainActive(r *http.Request, c popup.Campaign) (*popup.Explanation, []Flaw, error) {
	query := r.URL.Query()
	key := popup.Key{User: query.Get("user"), Placement: c.Placement}
	attributes := p.Popup.Attributes()
	defer p.Popup.Release(attributes)
	now, flaws := p.explainedAt(query)
	if flaws = append(flaws, p.readAttributes(&key, query, attributes)...); len(flaws) > 0 {
		return nil, flaws, nil
	}
	c.Name = cmp.Or(c.Name, "unnamed") // nobody has typed it yet
	one, err := p.Campaigns.ExplainActive(r.Context(), c, key.User, attributes, now)
	if errors.Is(err, popup.ErrRequest) {
		return nil, []Flaw{{Field: "user", Message: withoutClass(err)}}, nil
	}
	return &one, nil, err
}

// withoutClass returns the text of an error that wraps popup.ErrRequest, without that.
func withoutClass(err error) string {
	return strings.TrimPrefix(err.Error(), popup.ErrRequest.Error()+": ")
}

// explainedAt returns the time of the explanation: at, or now, shifted by clock_offset if that
// is allowed.
func (p *Popups) explainedAt(query url.Values) (now time.Time, flaws []Flaw) {
	now = p.Popup.Time()
	if at := query.Get("at"); at != "" {
		var err error
		if now, err = time.Parse(time.RFC3339, at); err != nil {
			return now, []Flaw{{Field: "at", Message: "at must be a time of RFC 3339, as 2026-01-02T03:04:05Z; write + as %2B"}}
		}
	}
	if offset := query.Get("clock_offset"); p.ClockOffset && offset != "" {
		d, err := time.ParseDuration(offset)
		if err != nil {
			flaws = append(flaws, Flaw{Field: "clock_offset", Message: "clock_offset must be a duration with its unit, as 25h"})
		}
		now = now.Add(d)
	}
	if year := now.UTC().Year(); year < 0 || year > 9999 {
		flaws = append(flaws, Flaw{Field: "at", Message: "at must be in the years 0 to 9999 of UTC"})
	}
	return now, flaws
}

// readAttributes makes the user's id canonical and parses the attributes.
func (p *Popups) readAttributes(key *popup.Key, query url.Values, attributes *popup.Attributes) (flaws []Flaw) {
	if key.User != "" && p.User != param.Text {
		canonical, err := param.Parse(param.Param{Name: "user", Type: p.User}, key.User)
		if err != nil {
			return []Flaw{{Field: "user", Message: err.Error()}}
		}
		key.User = canonical
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		for _, value := range query[name] {
			if err := attributes.Add(name, value); err != nil {
				flaws = append(flaws, Flaw{Field: name, Message: withoutClass(err)})
				break
			}
		}
	}
	return flaws
}

func explanations(key popup.Key, now time.Time, s popup.State, all []popup.Explanation) Explained {
	state := UserState{Version: s.Version, Phase: s.Phase.String(), Campaign: s.Campaign}
	answer := Explained{key.User, key.Placement, now.UTC(), state, all}
	if s.Phase != popup.Fresh {
		answer.State.Shown = new(time.UnixMilli(s.Shown).UTC())
	}
	if s.Answered != 0 {
		answer.State.Answered = new(time.UnixMilli(s.Answered).UTC())
	}
	if until := time.UnixMilli(s.Until).UTC(); s.Phase != popup.Fresh && until.Year() < 10000 {
		answer.State.Until = &until
	}
	return answer
}
