package admin

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
)

// explanation says why a user does or does not get a campaign.
type explanation struct {
	Campaign  popup.CampaignID `json:"campaign"`
	Name      string           `json:"name"`
	Order     int32            `json:"order"`
	Verdict   popup.Verdict    `json:"verdict"`
	At        *time.Time       `json:"at,omitempty"`        // the time to which the verdict refers
	Problem   string           `json:"problem,omitempty"`   // why it is never shown
	Condition string           `json:"condition,omitempty"` // the first one that is false
	Shows     int              `json:"shows,omitempty"`     // to this user since it has a cap
}

// userState is a user's state at a placement.
type userState struct {
	Version  uint64           `json:"version"`
	Phase    string           `json:"phase"`
	Campaign popup.CampaignID `json:"campaign,omitempty"`
	Shown    *time.Time       `json:"shown,omitempty"`
	Answered *time.Time       `json:"answered,omitempty"`
	Until    *time.Time       `json:"until,omitempty"` // nothing is shown before; absent with a phase other than fresh: never again
}

// explain answers what a user would get now, and why, by campaign. It changes nothing.
func (p *Popups) explain(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := popup.Key{User: query.Get("user"), Placement: query.Get("placement")}
	if key.Placement == "" {
		key.Placement = p.Placements[0]
	}
	if !slices.Contains(p.Placements, key.Placement) {
		writeProblem(w, http.StatusBadRequest, "placement must be "+strings.Join(p.Placements, " or "))
		return
	}
	now := time.Now()
	if offset := query.Get("clock_offset"); p.ClockOffset && offset != "" {
		d, err := time.ParseDuration(offset)
		if err != nil {
			writeProblem(w, http.StatusBadRequest, "clock_offset must be a duration with its unit, as 25h")
			return
		}
		now = now.Add(d)
	}
	attributes := p.Popup.Attributes()
	defer p.Popup.Release(attributes)
	err := p.readAttributes(&key, query, attributes)
	var all []popup.Explanation
	var state popup.State
	if err == nil {
		all, state, err = p.Popup.Explain(r.Context(), key, attributes, now)
	}
	switch {
	case errors.Is(err, popup.ErrRequest):
		writeProblem(w, http.StatusBadRequest, strings.TrimPrefix(err.Error(), popup.ErrRequest.Error()+": "))
	case err != nil:
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, err.Error())
	default:
		writeExplanations(w, key, now, state, all)
	}
}

// readAttributes makes the user's id canonical and parses the attributes.
func (p *Popups) readAttributes(key *popup.Key, query map[string][]string, attributes *popup.Attributes) error {
	if key.User != "" && p.User != param.Text {
		canonical, err := param.Parse(param.Param{Name: "user", Type: p.User}, key.User)
		if err != nil {
			return errors.Join(popup.ErrRequest, err)
		}
		key.User = canonical
	}
	for name, values := range query {
		for _, value := range values {
			if err := attributes.Add(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeExplanations(w http.ResponseWriter, key popup.Key, now time.Time, s popup.State, all []popup.Explanation) {
	answer := struct {
		User      string        `json:"user"`
		Placement string        `json:"placement"`
		Now       time.Time     `json:"now"`
		State     userState     `json:"state"`
		Campaigns []explanation `json:"campaigns"`
	}{key.User, key.Placement, now.UTC(), userState{Version: s.Version, Phase: s.Phase.String(), Campaign: s.Campaign}, []explanation{}}
	if s.Phase != popup.Fresh {
		answer.State.Shown = orNil(time.UnixMilli(s.Shown).UTC())
	}
	if s.Answered != 0 {
		answer.State.Answered = orNil(time.UnixMilli(s.Answered).UTC())
	}
	if until := time.UnixMilli(s.Until).UTC(); s.Phase != popup.Fresh && until.Year() < 10000 {
		answer.State.Until = &until
	}
	for _, e := range all {
		answer.Campaigns = append(answer.Campaigns, explanation{
			Campaign: e.Campaign.ID, Name: e.Campaign.Name, Order: e.Campaign.Order, Verdict: e.Verdict, At: orNil(e.At),
			Problem: e.Problem, Condition: e.Condition, Shows: e.Shows,
		})
	}
	writeJSON(w, "application/json", http.StatusOK, answer)
}
