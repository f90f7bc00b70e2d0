package popup

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"
)

// Bounds and defaults of campaigns.
const (
	PayloadBytesMax    = 64 << 10
	CampaignNameMax    = 200 // characters
	PlacementBytesMax  = 32
	CapMax             = math.MaxUint16
	DurationMax        = 10 * 365 * 24 * time.Hour
	DefaultRepeatAfter = Period(24 * time.Hour)
	DefaultQuiet       = Period(24 * time.Hour)
	VariantsMax        = 16
	VariantNameMax     = 32
	WeightMax          = 10_000
	TestersMax         = 20
	PriorityMax        = 1000
)

// Everybody is the expression of a campaign for all users.
const Everybody = "true"

// CampaignID is the permanent id of a campaign, from 1.
type CampaignID uint32

// Status says whether a campaign may be shown.
type Status string

// The statuses. A draft is shown to its testers only. An archived campaign is never shown
// again. It stays in the set, because its quiet periods continue.
const (
	Draft    Status = "draft"
	Active   Status = "active"
	Paused   Status = "paused"
	Archived Status = "archived"
)

// Campaign is one popup and the rules for showing it. It has one form in JSON: in the API, in
// databases and in Redis.
type Campaign struct {
	ID        CampaignID      `json:"id"`
	Name      string          `json:"name"`      // for people, not unique
	Placement string          `json:"placement"` // where it is shown; each placement has its own order and states
	Priority  int32           `json:"priority"`  // descending, before Order
	Order     int32           `json:"order"`     // ascending; equal ones by ID
	Payload   json.RawMessage `json:"payload"`
	Variants  []Variant       `json:"variants"` // payloads that share the users by weight; none: Payload for all
	Target    string          `json:"target"`   // expression over the schema's attributes; Everybody or "": all users
	Zone      string          `json:"zone"`     // IANA time zone of hour() and weekday() in Target; "": UTC
	Rollout   float64         `json:"rollout"`  // percent of users who may get it, by a hash of user and campaign; above 0
	Holdout   float64         `json:"holdout"`  // percent of those from whom it is withheld, for comparison
	Status    Status          `json:"status"`
	Testers   []string        `json:"testers"` // users to whom a draft is shown

	Start Moment `json:"start"` // runs from then
	End   Moment `json:"end"`   // until before then

	RepeatAfter  Period `json:"repeat_after"`  // until an unanswered show is repeated; none: DefaultRepeatAfter
	QuietClick   Period `json:"quiet_click"`   // without any popup after a click; Forever is allowed; none: DefaultQuiet
	QuietDismiss Period `json:"quiet_dismiss"` // the same after a dismissal
	Cap          int    `json:"cap"`           // shows to one user; 0: no limit
	Again        Period `json:"again"`         // after a click, dismissal or the last show that Cap allows, the campaign starts over; none: never

	unread error // why Decode failed
}

// Variant is one payload of a campaign. Variants are numbered from 1.
type Variant struct {
	Name    string          `json:"name"`
	Weight  int             `json:"weight"` // its share is Weight / the sum of weights
	Payload json.RawMessage `json:"payload"`
}

// payload returns the payload of a variant; 0: the campaign's own.
func (c *Campaign) payload(variant uint8) json.RawMessage {
	if variant == 0 || int(variant) > len(c.Variants) {
		return c.Payload
	}
	return c.Variants[variant-1].Payload
}

// VariantName returns the name of a variant; "" if the campaign has no such one.
func (c *Campaign) VariantName(variant uint8) string {
	if variant == 0 || int(variant) > len(c.Variants) {
		return ""
	}
	return c.Variants[variant-1].Name
}

// FieldError is an error in a field of a campaign.
type FieldError struct {
	Field   string // as the API names it
	Message string // a sentence that names the field
}

// Error returns the message.
func (e *FieldError) Error() string { return e.Message }

// Validate returns all errors of c as joined FieldErrors, except those of its expression
// (Schema.CheckTarget) and of duplicates (NewSet).
func (c *Campaign) Validate() error {
	var problems []error
	refuse := func(bad bool, field, format string, args ...any) {
		if bad {
			problems = append(problems, &FieldError{field, field + " " + fmt.Sprintf(format, args...)})
		}
	}
	refuse(c.unread != nil, "campaign", "cannot be read: %v", c.unread)
	refuse(c.ID == 0 || c.ID > math.MaxInt32, "id", "must be 1 to %d", math.MaxInt32)
	refuse(c.Name == "" || utf8.RuneCountInString(c.Name) > CampaignNameMax || !isText(c.Name), "name",
		"must be UTF-8 text of 1 to %d characters without zero bytes", CampaignNameMax)
	refuse(!IsPlacement(c.Placement), "placement", "must be 1 to %d lower-case letters, digits and -, not - first", PlacementBytesMax)
	refuse(len(c.Payload) > PayloadBytesMax, "payload", "has %d bytes, more than %d", len(c.Payload), PayloadBytesMax)
	refuse(!json.Valid(c.Payload) || !isText(string(c.Payload)), "payload", "must be JSON in UTF-8")
	refuse(!isText(c.Target), "target", "must be UTF-8 text without zero bytes")
	switch c.Status {
	case Draft, Active, Paused, Archived:
	default:
		refuse(true, "status", "must be draft, active, paused or archived, not %q", c.Status)
	}
	refuse(!c.Start.IsZero() && !inYears(c.Start.Time), "start", "must be from %d to %d", yearMin, yearMax)
	refuse(!c.End.IsZero() && !inYears(c.End.Time), "end", "must be from %d to %d", yearMin, yearMax)
	refuse(!c.Start.IsZero() && !c.End.IsZero() && !c.Start.Before(c.End.Time), "end", "must be after start")
	refuse(c.RepeatAfter != 0 && !between(c.RepeatAfter, time.Second), "repeat_after", "must be 1s to %s, or forever", DurationMax)
	refuse(c.QuietClick != 0 && !between(c.QuietClick, time.Second), "quiet_click", "must be 1s to %s, or forever", DurationMax)
	refuse(c.QuietDismiss != 0 && !between(c.QuietDismiss, time.Second), "quiet_dismiss", "must be 1s to %s, or forever", DurationMax)
	refuse(c.Cap < 0 || c.Cap > CapMax, "cap", "must be 0 to %d", CapMax)
	refuse(c.Again != 0 && (c.Again == Forever || !between(c.Again, time.Second)), "again", "must be 1s to %s, or null", DurationMax)
	refuse(c.Priority < -PriorityMax || c.Priority > PriorityMax, "priority", "must be %d to %d", -PriorityMax, PriorityMax)
	refuse(!(c.Rollout > 0 && c.Rollout <= 100), "rollout",
		"must be more than 0 and at most 100 percent; pause a campaign to show it to nobody")
	refuse(!(c.Holdout >= 0 && c.Holdout < 100), "holdout", "must be 0 to less than 100 percent")
	refuse(c.Zone != "" && !IsZone(c.Zone), "zone", "must be a time zone of the IANA database, as Europe/Oslo, or UTC, not %q", c.Zone)
	refuse(len(c.Testers) > TestersMax, "testers", "must be at most %d users", TestersMax)
	for _, user := range c.Testers {
		refuse(user == "" || len(user) > UserBytesMax || !isText(user), "testers", "must be UTF-8 texts of 1 to %d bytes without zero bytes",
			UserBytesMax)
	}
	c.validateVariants(refuse)
	return errors.Join(problems...)
}

// validateVariants refuses what is wrong with the variants.
func (c *Campaign) validateVariants(refuse func(bad bool, field, format string, args ...any)) {
	refuse(len(c.Variants) > VariantsMax, "variants", "must be at most %d", VariantsMax)
	names, sum, bytes := map[string]bool{}, 0, 0
	for _, v := range c.Variants {
		refuse(!isName(v.Name, '-', VariantNameMax), "variants", "must have names of 1 to %d lower-case letters, digits and -, not - first",
			VariantNameMax)
		refuse(names[v.Name], "variants", "has the name %q twice", v.Name)
		refuse(v.Weight < 0 || v.Weight > WeightMax, "variants", "must have weights of 0 to %d", WeightMax)
		refuse(!json.Valid(v.Payload) || !isText(string(v.Payload)), "variants", "must have payloads that are JSON in UTF-8")
		names[v.Name] = true
		sum, bytes = sum+v.Weight, bytes+len(v.Payload)
	}
	refuse(len(c.Variants) > 0 && sum <= 0, "variants", "must have a weight above 0")
	refuse(bytes > PayloadBytesMax, "variants", "have payloads of %d bytes, more than %d together", bytes, PayloadBytesMax)
}

// between reports whether p is whole milliseconds from low to DurationMax, or Forever.
func between(p Period, low time.Duration) bool {
	d := time.Duration(p)
	return p == Forever || low <= d && d <= DurationMax && d%time.Millisecond == 0
}

// IsPlacement reports whether name is a valid name of a placement.
func IsPlacement(name string) bool { return isName(name, '-', PlacementBytesMax) }
