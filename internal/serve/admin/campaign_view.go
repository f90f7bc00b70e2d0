package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"spillway/internal/serve/popup"
)

// campaignView is a campaign in the API. In requests id, problem, note and the counts are
// ignored, so that an answer can be sent back.
type campaignView struct {
	ID           popup.CampaignID `json:"id"`
	Version      int64            `json:"version"`
	Name         string           `json:"name"`
	Placement    string           `json:"placement"`
	Order        int32            `json:"order"`
	Payload      json.RawMessage  `json:"payload"`
	Target       string           `json:"target"`
	Status       popup.Status     `json:"status"`
	Start        *time.Time       `json:"start"`
	End          *time.Time       `json:"end"`
	RepeatAfter  *period          `json:"repeat_after"` // null: the default of the configuration
	QuietClick   period           `json:"quiet_click"`
	QuietDismiss period           `json:"quiet_dismiss"`
	Cap          int              `json:"cap"`

	Problem    string  `json:"problem,omitempty"` // why it is never shown
	Note       string  `json:"note,omitempty"`    // a consequence of the change
	Shows      uint64  `json:"shows"`
	Clicks     uint64  `json:"clicks"`
	Dismissals uint64  `json:"dismissals"`
	ClickRate  float64 `json:"click_rate"` // clicks / shows, 0 without shows
}

func newView(c popup.StoredCampaign, problem string, n popup.Counts) campaignView {
	v := campaignView{
		ID: c.ID, Version: c.Version, Name: c.Name, Placement: c.Placement, Order: c.Order, Payload: c.Payload, Target: cmp.Or(c.Target, everybody),
		Status: c.Status, Start: orNil(c.Start), End: orNil(c.End), QuietClick: period(c.QuietClick), QuietDismiss: period(c.QuietDismiss),
		Cap: c.Cap, Problem: problem, Shows: n.Shows, Clicks: n.Clicks, Dismissals: n.Dismissals,
	}
	if c.RepeatAfter != 0 {
		repeat := period(c.RepeatAfter)
		v.RepeatAfter = &repeat
	}
	if n.Shows > 0 {
		v.ClickRate = float64(n.Clicks) / float64(n.Shows)
	}
	return v
}

// everybody is the target that says so. It is stored as an empty expression.
const everybody = "true"

// fill sets the fields of a campaign from a request. Without a status it keeps the old one.
func (v *campaignView) fill(c *popup.StoredCampaign) {
	c.Campaign = popup.Campaign{
		ID: c.ID, Name: v.Name, Placement: v.Placement, Order: v.Order, Payload: v.Payload, Target: v.Target,
		Status: cmp.Or(v.Status, c.Status), QuietClick: time.Duration(v.QuietClick), QuietDismiss: time.Duration(v.QuietDismiss), Cap: v.Cap,
	}
	if c.Target == everybody {
		c.Target = ""
	}
	if v.Start != nil {
		c.Start = v.Start.UTC()
	}
	if v.End != nil {
		c.End = v.End.UTC()
	}
	if v.RepeatAfter != nil {
		c.RepeatAfter = time.Duration(*v.RepeatAfter)
	}
}

func compareViews(a, b campaignView) int {
	return cmp.Or(cmp.Compare(a.Placement, b.Placement), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// period is a duration in the API: "24h0m0s", or "forever".
type period time.Duration

const forever = "forever"

// MarshalJSON implements json.Marshaler.
func (p period) MarshalJSON() ([]byte, error) {
	if time.Duration(p) == popup.Forever {
		return json.Marshal(forever)
	}
	return json.Marshal(time.Duration(p).String())
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *period) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errPeriod
	}
	if text == forever {
		*p = period(popup.Forever)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return errPeriod
	}
	*p = period(d)
	return nil
}

var errPeriod = errors.New(`a duration with its unit in text, as "24h" or "90m", or "forever"`)
