package popup

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ChangedByMax is the maximum length of the name of who changed a campaign, in characters.
const ChangedByMax = 200

// CampaignChange is an entry of a campaign's history: the campaign after a change.
type CampaignChange struct {
	StoredCampaign
	At time.Time // by the database's clock
	By string    // the name of who changed it; "": not known
}

// campaignText is a campaign as the history keeps it.
type campaignText struct {
	ID           CampaignID      `json:"id"`
	Version      int64           `json:"version"`
	Name         string          `json:"name"`
	Placement    string          `json:"placement"`
	Order        int32           `json:"order"`
	Status       Status          `json:"status"`
	Target       string          `json:"target"`
	Start        *time.Time      `json:"start,omitempty"`
	End          *time.Time      `json:"end,omitempty"`
	RepeatAfter  int64           `json:"repeat_after_ms"` // -1: forever
	QuietClick   int64           `json:"quiet_click_ms"`
	QuietDismiss int64           `json:"quiet_dismiss_ms"`
	Cap          int             `json:"cap"`
	Payload      json.RawMessage `json:"payload"`
	Settings     json.RawMessage `json:"settings"`
}

// EncodeChange returns a campaign as JSON for the history, and refuses a name of who changed
// it that databases do not store.
func EncodeChange(c StoredCampaign, by string) (string, error) {
	if utf8.RuneCountInString(by) > ChangedByMax || !isText(by) {
		return "", fmt.Errorf("the name of who changes a campaign must be UTF-8 text of at most %d characters without zero bytes", ChangedByMax)
	}
	settings, err := c.Settings()
	if err != nil {
		return "", err
	}
	t := campaignText{
		ID: c.ID, Version: c.Version, Name: c.Name, Placement: c.Placement, Order: c.Order, Status: c.Status, Target: c.Target,
		RepeatAfter: Milliseconds(c.RepeatAfter), QuietClick: Milliseconds(c.QuietClick), QuietDismiss: Milliseconds(c.QuietDismiss),
		Cap: c.Cap, Payload: c.Payload, Settings: json.RawMessage(settings),
	}
	if !c.Start.IsZero() {
		t.Start = &c.Start
	}
	if !c.End.IsZero() {
		t.End = &c.End
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(t); err != nil {
		return "", fmt.Errorf("encode a campaign: %w", err)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// DecodeChange is the reverse of EncodeChange. The payload has lost insignificant white space.
func DecodeChange(text, by string, at time.Time) (CampaignChange, error) {
	var t campaignText
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return CampaignChange{}, fmt.Errorf("decode a campaign of the history: %w", err)
	}
	c := CampaignChange{At: at, By: by, StoredCampaign: StoredCampaign{Version: t.Version, Campaign: Campaign{
		ID: t.ID, Name: t.Name, Placement: t.Placement, Order: t.Order, Status: t.Status, Target: t.Target,
		RepeatAfter: FromMilliseconds(t.RepeatAfter), QuietClick: FromMilliseconds(t.QuietClick), QuietDismiss: FromMilliseconds(t.QuietDismiss),
		Cap: t.Cap, Payload: t.Payload,
	}}}
	if t.Start != nil {
		c.Start = t.Start.UTC()
	}
	if t.End != nil {
		c.End = t.End.UTC()
	}
	c.SetSettings(string(t.Settings))
	return c, nil
}
