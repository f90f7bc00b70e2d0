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
	DefaultRepeatAfter = 24 * time.Hour
)

// Forever is a quiet period that does not end.
const Forever time.Duration = math.MaxInt64

// CampaignID is the permanent id of a campaign, from 1.
type CampaignID uint32

// Status says whether a campaign may be shown.
type Status string

// The statuses. An archived campaign is never shown again. It stays in the set, because its
// quiet periods continue.
const (
	Active   Status = "active"
	Paused   Status = "paused"
	Archived Status = "archived"
)

// Campaign is one popup and the rules for showing it.
type Campaign struct {
	ID        CampaignID
	Name      string // for people, not unique
	Placement string // where it is shown; each placement has its own order and states
	Order     int32  // ascending; equal ones by ID
	Payload   json.RawMessage
	Target    string // expression over the schema's attributes; empty: all users
	Status    Status

	Start, End time.Time // runs from Start until before End; zero: no limit

	RepeatAfter  time.Duration // until an unanswered show is repeated; 0: DefaultRepeatAfter
	QuietClick   time.Duration // without any popup after a click; Forever is allowed
	QuietDismiss time.Duration // the same after a dismissal
	Cap          int           // shows to one user, counted from when the cap was set; 0: no limit
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
	refuse(c.ID == 0 || c.ID > math.MaxInt32, "id", "must be 1 to %d", math.MaxInt32)
	refuse(c.Name == "" || utf8.RuneCountInString(c.Name) > CampaignNameMax || !isText(c.Name), "name", "must be UTF-8 text of 1 to %d characters without zero bytes", CampaignNameMax)
	refuse(!IsPlacement(c.Placement), "placement", "must be 1 to %d lower-case letters, digits and -, not - first", PlacementBytesMax)
	refuse(len(c.Payload) > PayloadBytesMax, "payload", "has %d bytes, more than %d", len(c.Payload), PayloadBytesMax)
	refuse(!json.Valid(c.Payload) || !isText(string(c.Payload)), "payload", "must be JSON in UTF-8")
	refuse(!isText(c.Target), "target", "must be UTF-8 text without zero bytes")
	switch c.Status {
	case Active, Paused, Archived:
	default:
		refuse(true, "status", "must be active, paused or archived, not %q", c.Status)
	}
	refuse(!c.Start.IsZero() && !inYears(c.Start), "start", "must be from %d to %d", yearMin, yearMax)
	refuse(!c.End.IsZero() && !inYears(c.End), "end", "must be from %d to %d", yearMin, yearMax)
	refuse(!c.Start.IsZero() && !c.End.IsZero() && !c.Start.Before(c.End), "end", "must be after start")
	refuse(c.RepeatAfter != 0 && !between(c.RepeatAfter, time.Second), "repeat_after", "must be 1s to %s, or forever", DurationMax)
	refuse(!between(c.QuietClick, 0), "quiet_click", "must be 0 to %s, or forever", DurationMax)
	refuse(!between(c.QuietDismiss, 0), "quiet_dismiss", "must be 0 to %s, or forever", DurationMax)
	refuse(c.Cap < 0 || c.Cap > CapMax, "cap", "must be 0 to %d", CapMax)
	return errors.Join(problems...)
}

// between reports whether d is whole milliseconds from low to DurationMax, or Forever.
func between(d, low time.Duration) bool {
	return d == Forever || low <= d && d <= DurationMax && d%time.Millisecond == 0
}

// IsPlacement reports whether name is a valid name of a placement.
func IsPlacement(name string) bool { return isName(name, '-', PlacementBytesMax) }
