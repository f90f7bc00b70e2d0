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
	CampaignNameMax    = 200 // bytes
	PlacementBytesMax  = 32
	CapMax             = math.MaxUint16
	DurationMax        = 10 * 365 * 24 * time.Hour
	DefaultRepeatAfter = 24 * time.Hour
)

// Forever is a quiet period that does not end.
const Forever time.Duration = math.MaxInt64

// CampaignID names a campaign for good. It is 1 or more.
type CampaignID uint32

// Status says whether a campaign takes part.
type Status string

// The statuses. An archived campaign is never shown again, but stays in the set:
// its quiet periods go on.
const (
	Active   Status = "active"
	Paused   Status = "paused"
	Archived Status = "archived"
)

// Campaign is one popup and the rules for showing it.
type Campaign struct {
	ID        CampaignID
	Name      string // for people, not unique
	Placement string // where it is shown; each placement has its own order and state
	Order     int32  // campaigns of a placement are given by ascending Order, then ID
	Payload   json.RawMessage
	Target    string // an expression over the schema's attributes; empty: everybody
	Status    Status

	Start, End time.Time // runs from Start until before End; zero: no bound

	RepeatAfter  time.Duration // shown and neither clicked nor dismissed: again after so long; 0: DefaultRepeatAfter
	QuietClick   time.Duration // after a click nothing is shown for so long; Forever allowed
	QuietDismiss time.Duration // after a dismissal; Forever allowed
	Cap          int           // shows to one user since the campaign has a cap; 0: no bound
}

// Validate returns what is wrong with c by itself, all of it; nil when nothing is.
// Expressions are checked by Schema.CheckTarget, duplicates by NewSet.
func (c *Campaign) Validate() error {
	var problems []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	refuse(c.ID == 0 || c.ID > math.MaxInt32, "id must be 1 to %d", math.MaxInt32)
	refuse(c.Name == "" || len(c.Name) > CampaignNameMax || !utf8.ValidString(c.Name), "name must be UTF-8 text of 1 to %d bytes", CampaignNameMax)
	refuse(!IsPlacement(c.Placement), "placement must be 1 to %d lower-case letters, digits and -, not - first", PlacementBytesMax)
	refuse(len(c.Payload) > PayloadBytesMax, "payload has %d bytes, more than %d", len(c.Payload), PayloadBytesMax)
	refuse(!json.Valid(c.Payload), "payload must be JSON")
	switch c.Status {
	case Active, Paused, Archived:
	default:
		refuse(true, "status must be active, paused or archived, not %q", c.Status)
	}
	refuse(!c.Start.IsZero() && !inYears(c.Start), "start must be from %d to %d", yearMin, yearMax)
	refuse(!c.End.IsZero() && !inYears(c.End), "end must be from %d to %d", yearMin, yearMax)
	refuse(!c.Start.IsZero() && !c.End.IsZero() && !c.Start.Before(c.End), "end must be after start")
	refuse(c.RepeatAfter != 0 && !between(c.RepeatAfter, time.Second), "repeat_after must be 1s to %s, or forever", DurationMax)
	refuse(!between(c.QuietClick, 0), "quiet_click must be 0 to %s, or forever", DurationMax)
	refuse(!between(c.QuietDismiss, 0), "quiet_dismiss must be 0 to %s, or forever", DurationMax)
	refuse(c.Cap < 0 || c.Cap > CapMax, "cap must be 0 to %d", CapMax)
	return errors.Join(problems...)
}

// between reports whether d is a whole number of milliseconds that is at least low
// and at most DurationMax, or Forever.
func between(d, low time.Duration) bool {
	return d == Forever || low <= d && d <= DurationMax && d%time.Millisecond == 0
}

// IsPlacement reports whether name may name a placement.
func IsPlacement(name string) bool { return isName(name, '-', PlacementBytesMax) }
