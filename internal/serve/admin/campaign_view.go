package admin

import (
	"cmp"
	"time"

	"spillway/internal/serve/popup"
)

// campaignView is a campaign in the API. In requests id, problem and the counts are
// ignored, so that an answer can be sent back.
type campaignView struct {
	popup.Campaign
	Version int64  `json:"version"`
	Problem string `json:"problem,omitempty"` // why it is never shown
	popup.Counts
	ClickRate float64 `json:"click_rate"` // clicks / shows, 0 without shows
}

func newView(c popup.StoredCampaign, problem string, n popup.Counts) campaignView {
	v := campaignView{Campaign: c.Campaign, Version: c.Version, Problem: problem, Counts: n}
	if n.Shows > 0 {
		v.ClickRate = float64(n.Clicks) / float64(n.Shows)
	}
	return v
}

// newCampaign returns what a campaign has that a request does not say.
func newCampaign() popup.Campaign {
	return popup.Campaign{Target: popup.Everybody, Rollout: 100}
}

func compareViews(a, b campaignView) int {
	return cmp.Or(cmp.Compare(a.Placement, b.Placement), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
