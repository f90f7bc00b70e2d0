package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"spillway/internal/serve/popup"
	"spillway/internal/stats"
)

// preview answers what a user would get of a campaign, whatever its status and the user's
// state. It changes nothing.
func (p *Popups) preview(w http.ResponseWriter, r *http.Request) {
	c, _, ok := p.find(w, r)
	if !ok {
		return
	}
	key := popup.Key{User: r.URL.Query().Get("user"), Placement: c.Placement}
	attributes := p.Popup.Attributes()
	defer p.Popup.Release(attributes)
	if flaws := p.readAttributes(&key, r.URL.Query(), attributes); len(flaws) > 0 {
		writeFlaws(w, http.StatusBadRequest, flaws...)
		return
	}
	seen, err := p.Popup.Preview(r.Context(), c.Campaign, key.User, attributes)
	switch {
	case errors.Is(err, popup.ErrRequest):
		writeFlaws(w, http.StatusBadRequest, flaw{Field: "user", Message: withoutClass(err)})
	case errors.Is(err, popup.ErrUnavailable) || r.Context().Err() != nil:
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, err.Error())
	case err != nil:
		writeProblem(w, http.StatusUnprocessableEntity, err.Error(), flawsOf(err)...)
	default:
		writeJSON(w, "application/json", http.StatusOK, struct {
			User      string          `json:"user"`
			Payload   json.RawMessage `json:"payload"`
			Variant   string          `json:"variant,omitempty"`
			Matches   bool            `json:"matches"`
			Condition string          `json:"condition,omitempty"` // the first one that is false
			Rollout   bool            `json:"rollout"`             // the user is in it
			Holdout   bool            `json:"holdout"`             // the user is in it
		}{key.User, seen.Payload(), variantName(seen.Campaign, seen.Variant), seen.Condition == "", seen.Condition, seen.Rollout, seen.Holdout})
	}
}

// dryRun answers how many recent users a campaign would match.
func (p *Popups) dryRun(w http.ResponseWriter, r *http.Request) {
	body, ok := readFields(w, r, "application/json")
	if !ok {
		return
	}
	view := campaignView{Campaign: newCampaign()}
	view.Name, view.Placement, view.Payload, view.Status = "dry run", p.Placements[0], json.RawMessage("null"), popup.Active
	for name := range body {
		if !slices.Contains([]string{"placement", "target", "zone", "rollout"}, name) {
			writeFlaws(w, http.StatusBadRequest, flaw{Field: name, Message: name + " does not belong to a dry run: placement, target, zone and rollout do"})
			return
		}
	}
	if flaws := view.set(body); len(flaws) > 0 {
		writeFlaws(w, http.StatusBadRequest, flaws...)
		return
	}
	if flaws := p.flaws(view.Campaign); len(flaws) > 0 {
		writeFlaws(w, http.StatusUnprocessableEntity, flaws...)
		return
	}
	d, err := p.Popup.DryRun(r.Context(), view.Campaign)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, "application/json", http.StatusOK, struct {
		Users     int        `json:"users"`
		Matched   int        `json:"matched"`
		Undecided int        `json:"undecided"` // their row of attributes_sql could not be read
		Share     *share     `json:"share"`     // matched / (users - undecided); null without users
		Since     *time.Time `json:"since"`
	}{d.Users, d.Matched, d.Undecided, newShare(stats.NewShare(uint64(d.Matched), uint64(d.Users-d.Undecided), stats.Level)), orNil(d.Since.UTC())})
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
