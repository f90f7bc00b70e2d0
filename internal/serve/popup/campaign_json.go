package popup

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// StoredCampaign is a campaign as a database stores it.
type StoredCampaign struct {
	Campaign
	// Version is the version of all campaigns at the last change of this one. It grows
	// with each change. A change names the version that was read.
	Version int64  `json:"version"`
	Created Moment `json:"created"` // when it was saved first; none: not known
}

// Storable returns c as databases store it: times in UTC and whole milliseconds, a payload
// without insignificant white space, a target, lists that are not nil. It refuses texts that some databases do
// not accept, also as the name of who changes it.
func (c StoredCampaign) Storable(by string) (StoredCampaign, error) {
	if utf8.RuneCountInString(by) > ChangedByMax || !isText(by) {
		return c, fmt.Errorf("the name of who changes a campaign must be UTF-8 text of at most %d characters without zero bytes", ChangedByMax)
	}
	for field, text := range map[string]string{"name": c.Name, "payload": string(c.Payload), "target": c.Target} {
		if !isText(text) {
			return c, fmt.Errorf("%s must be UTF-8 text without zero bytes", field)
		}
	}
	for _, t := range []*Moment{&c.Start, &c.End, &c.Created} {
		if !t.IsZero() {
			t.Time = time.UnixMilli(t.UnixMilli()).UTC()
		}
	}
	var payload bytes.Buffer
	if err := json.Compact(&payload, c.Payload); err != nil {
		return c, fmt.Errorf("payload must be JSON: %w", err)
	}
	c.Payload, c.Target = payload.Bytes(), cmp.Or(c.Target, Everybody)
	c.Variants, c.Testers = append([]Variant{}, c.Variants...), append([]string{}, c.Testers...)
	return c, nil
}

// Encode returns c as one line of JSON.
func (c StoredCampaign) Encode() (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("encode a campaign: %w", err)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// Decode sets the fields of c from the text that Encode returned, but for those that a
// database also has as columns: id, name, placement, status and version. If the text is not
// valid, or has a field of a newer version, the campaign is not valid either.
func (c *StoredCampaign) Decode(text string) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var all StoredCampaign
	err := decoder.Decode(&all)
	all.ID, all.Name, all.Placement, all.Status, all.Version = c.ID, c.Name, c.Placement, c.Status, c.Version
	*c = all
	c.unread = err
}

// ChangedByMax is the maximum length of the name of who changed a campaign, in characters.
const ChangedByMax = 200

// CampaignChange is an entry of a campaign's history: the campaign after a change.
type CampaignChange struct {
	StoredCampaign
	At time.Time // by the database's clock
	By string    // the name of who changed it; "": not known
}

// DecodeChange returns an entry of the history from the text that Encode returned.
func DecodeChange(text, by string, at time.Time) (CampaignChange, error) {
	c := CampaignChange{At: at, By: by}
	if err := json.Unmarshal([]byte(text), &c.StoredCampaign); err != nil {
		return c, fmt.Errorf("decode a campaign of the history: %w", err)
	}
	return c, nil
}

// Moment is a time; none is null in JSON.
type Moment struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (m Moment) MarshalJSON() ([]byte, error) {
	if m.IsZero() {
		return []byte("null"), nil
	}
	return m.Time.MarshalJSON()
}

// UnmarshalJSON implements json.Unmarshaler. The time is in UTC.
func (m *Moment) UnmarshalJSON(text []byte) error {
	var t time.Time
	err := t.UnmarshalJSON(text)
	m.Time = t.UTC()
	return err
}

// Period is a duration. In JSON it is "24h0m0s", or "forever"; none is null.
type Period time.Duration

// Forever is a period that does not end.
const Forever Period = math.MaxInt64

// noPeriod is what "0s" is read as, because 0 stands for null. No campaign may have it.
const noPeriod Period = -1

// ErrPeriod: the text is not a period.
var ErrPeriod = errors.New(`a duration with its unit in text, as "24h" or "90m", or "forever"`)

// MarshalJSON implements json.Marshaler.
func (p Period) MarshalJSON() ([]byte, error) {
	switch p {
	case 0:
		return []byte("null"), nil
	case Forever:
		return []byte(`"forever"`), nil
	}
	return json.Marshal(time.Duration(p).String())
}

// UnmarshalJSON implements json.Unmarshaler. The error is ErrPeriod.
func (p *Period) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return ErrPeriod
	}
	switch {
	case text == nil:
		*p = 0
		return nil
	case *text == "forever":
		*p = Forever
		return nil
	}
	d, err := time.ParseDuration(*text)
	if err != nil {
		return ErrPeriod
	}
	if *p = Period(d); d == 0 {
		*p = noPeriod
	}
	return nil
}

// millis returns p in milliseconds.
func (p Period) millis() int64 {
	if p == Forever {
		return never
	}
	return time.Duration(p).Milliseconds()
}
