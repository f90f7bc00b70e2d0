package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"spillway/internal/serve/popup"
)

// campaignView is a campaign in the API. In requests id, problem and the counts are ignored,
// so that an answer can be sent back.
type campaignView struct {
	ID           popup.CampaignID `json:"id"`
	Version      int64            `json:"version"`
	Name         string           `json:"name"`
	Placement    string           `json:"placement"`
	Priority     int32            `json:"priority"`
	Order        int32            `json:"order"`
	Payload      json.RawMessage  `json:"payload"`
	Variants     []popup.Variant  `json:"variants"`
	Target       string           `json:"target"`
	Zone         string           `json:"zone"`
	Rollout      float64          `json:"rollout"`
	Holdout      float64          `json:"holdout"`
	Status       popup.Status     `json:"status"`
	Testers      []string         `json:"testers"`
	Start        *time.Time       `json:"start"`
	End          *time.Time       `json:"end"`
	RepeatAfter  *period          `json:"repeat_after"`  // null: the default of the configuration
	QuietClick   *period          `json:"quiet_click"`   // the same
	QuietDismiss *period          `json:"quiet_dismiss"` // the same
	Cap          int              `json:"cap"`
	Again        *period          `json:"again"` // null: never

	Problem     string  `json:"problem,omitempty"` // why it is never shown
	Shows       uint64  `json:"shows"`
	Clicks      uint64  `json:"clicks"`
	Dismissals  uint64  `json:"dismissals"`
	Withheld    uint64  `json:"withheld"`
	Conversions uint64  `json:"conversions"`
	ClickRate   float64 `json:"click_rate"` // clicks / shows, 0 without shows
}

// everybodyRollout is the rollout of a campaign that has none, in percent.
const everybodyRollout = 100

func newView(c popup.StoredCampaign, problem string, n popup.Counts) campaignView {
	v := campaignView{
		ID: c.ID, Version: c.Version, Name: c.Name, Placement: c.Placement, Priority: c.Priority, Order: c.Order,
		Payload: c.Payload, Variants: c.Variants, Target: cmp.Or(c.Target, everybody), Zone: c.Zone,
		Rollout: cmp.Or(c.Rollout, everybodyRollout), Holdout: c.Holdout, Status: c.Status, Testers: c.Testers,
		Start: orNil(c.Start), End: orNil(c.End), RepeatAfter: newPeriod(c.RepeatAfter),
		QuietClick: newPeriod(c.QuietClick), QuietDismiss: newPeriod(c.QuietDismiss), Cap: c.Cap, Again: newPeriod(c.Again), Problem: problem,
		Shows: n.Shows, Clicks: n.Clicks, Dismissals: n.Dismissals, Withheld: n.Withheld, Conversions: n.Conversions,
	}
	if v.Variants == nil {
		v.Variants = []popup.Variant{}
	}
	if v.Testers == nil {
		v.Testers = []string{}
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
		ID: c.ID, Name: v.Name, Placement: v.Placement, Priority: v.Priority, Order: v.Order, Payload: v.Payload, Variants: v.Variants,
		Target: v.Target, Zone: v.Zone, Rollout: v.Rollout, Holdout: v.Holdout, Status: cmp.Or(v.Status, c.Status), Testers: v.Testers,
		RepeatAfter: v.RepeatAfter.duration(), QuietClick: v.QuietClick.duration(), QuietDismiss: v.QuietDismiss.duration(),
		Cap: v.Cap, Again: v.Again.duration(), Created: c.Created,
	}
	if c.Target == everybody {
		c.Target = ""
	}
	switch v.Rollout {
	case everybodyRollout:
		c.Rollout = 0
	case 0:
		c.Rollout = invalid
	}
	if v.Start != nil {
		c.Start = v.Start.UTC()
	}
	if v.End != nil {
		c.End = v.End.UTC()
	}
}

// invalid replaces a zero that a request gives for a field whose zero value has another
// meaning. A campaign with it is refused.
const invalid = -1

func compareViews(a, b campaignView) int {
	return cmp.Or(cmp.Compare(a.Placement, b.Placement), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
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

// newPeriod returns d; nil for 0, which stands for a default.
func newPeriod(d time.Duration) *period {
	if d == 0 {
		return nil
	}
	return (*period)(&d)
}

// duration is the reverse of newPeriod.
func (p *period) duration() time.Duration {
	switch {
	case p == nil:
		return 0
	case *p == 0:
		return invalid
	}
	return time.Duration(*p)
}

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
