package popup

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Verdict says why a user does or does not get a campaign.
type Verdict string

// The verdicts, in the order of their checks.
const (
	IsArchived   Verdict = "archived"
	HasProblem   Verdict = "problem" // Problem: why nobody gets it
	IsPaused     Verdict = "paused"
	HasEnded     Verdict = "ended"        // At: when
	WasClicked   Verdict = "clicked"      // finished; At: when it starts over, zero: never
	WasDismissed Verdict = "dismissed"    // the same
	WasWithheld  Verdict = "withheld"     // the same
	IsCapped     Verdict = "capped"       // shown Shows times, Cap allowed; At: when it starts over
	NotStarted   Verdict = "not-started"  // At: when it starts
	NotForUser   Verdict = "not-for-user" // a draft of other testers, or outside the rollout
	DoesNotMatch Verdict = "does-not-suit"
	UserWaits    Verdict = "user-waits" // At: until when; zero: forever
	BehindOthers Verdict = "behind"     // another one is shown
	IsHeldOut    Verdict = "held-out"   // it would be shown, but the user is in its holdout
	IsGiven      Verdict = "given"      // the user gets it now
)

// Explanation says why a user does or does not get one campaign.
type Explanation struct {
	Campaign  CampaignID `json:"campaign"`
	Name      string     `json:"name"`
	Priority  int32      `json:"priority"`
	Order     int32      `json:"order"`
	Verdict   Verdict    `json:"verdict"`
	At        Moment     `json:"at,omitzero"`         // the time that decided, if any
	Problem   string     `json:"problem,omitempty"`   // with HasProblem, and of a paused campaign or a draft: which list is not there
	Condition string     `json:"condition,omitempty"` // the first condition that is false, with DoesNotMatch, and of a paused campaign or a draft
	Shows     int        `json:"shows,omitempty"`     // to this user, since it last started over
	Variant   string     `json:"variant,omitempty"`   // that the user gets; "": the campaign has none
	Last      string     `json:"last,omitempty"`      // the last event: show, click, dismiss or withhold; "": none
	LastAt    Moment     `json:"last_at,omitzero"`    // when, rounded up to a second
}

// Explain returns for each campaign of p, archived ones too, why the user does or does not
// get it. It agrees with Decide. a has the user's id and row. Until blocked, limits of all
// placements together forbid a show; zero: they do not.
func Explain(p *Placement, s State, a *Attributes, now, blocked time.Time) []Explanation {
	if p == nil {
		return []Explanation{}
	}
	a.At(now)
	user, at := xxhash.Sum64String(a.user), now.UnixMilli()
	due, given := p.due(&s, at), Decide(p, s, a, now)
	if blocked.After(now) && given.Reason != Test {
		due, given = max(due, blocked.UnixMilli()), Decision{}
	}
	out := make([]Explanation, 0, len(p.all))
	for _, c := range p.all {
		e := Explanation{Campaign: c.ID, Name: c.Name, Priority: c.Priority, Order: c.Order, Variant: c.VariantName(c.variant(user))}
		e.explain(c, &s, a, at)
		switch {
		case e.Verdict != "":
		case given.Campaign == &c.Campaign && given.Reason == HeldOut:
			e.Verdict = IsHeldOut
		case given.Campaign == &c.Campaign:
			e.Verdict = IsGiven
		case at < due:
			e.Verdict, e.At = UserWaits, Moment{instant(due)}
		default:
			e.Verdict = BehindOthers
		}
		out = append(out, e)
	}
	return out
}

// explain sets the verdict if it does not depend on other campaigns or on a wait.
func (e *Explanation) explain(c *compiled, s *State, a *Attributes, at int64) {
	r, known := s.record(c.ID)
	if e.Shows = r.shows; known {
		e.Last, e.LastAt = r.last.String(), Moment{instant(r.at)}
	}
	done, again := c.finished(r, at)
	if c.problem == nil && (c.Status == Paused || c.Status == Draft) { // whom it would not match
		if e.Problem = c.listProblem(a); e.Problem == "" {
			e.Condition = c.target.failing(a)
		}
	}
	switch {
	case c.Status == Archived:
		e.Verdict = IsArchived
	case c.problem != nil:
		e.Verdict, e.Problem = HasProblem, c.problem.Error()
	case c.Status == Paused:
		e.Verdict = IsPaused
	case at >= c.end && c.Status != Draft:
		e.Verdict, e.At = HasEnded, c.End
	case done:
		e.Verdict, e.At = map[Kind]Verdict{
			KindShow: IsCapped, KindClick: WasClicked, KindDismiss: WasDismissed,
			KindWithhold: WasWithheld,
		}[r.last], Moment{instant(again)}
	case c.Status == Draft:
		if !slices.Contains(c.Testers, a.user) {
			e.Verdict = NotForUser
		}
	case at < c.start:
		e.Verdict, e.At = NotStarted, c.Start
	case !c.admits(xxhash.Sum64String(a.user)):
		e.Verdict = NotForUser
	case c.listProblem(a) != "":
		e.Verdict, e.Problem = HasProblem, c.listProblem(a)
	default:
		if e.Condition = c.target.failing(a); e.Condition != "" {
			e.Verdict = DoesNotMatch
		}
	}
}

// listProblem returns which list of the target keeps the campaign from every user; "" if none.
func (c *compiled) listProblem(a *Attributes) string {
	if name := a.lists.unread(c.target.lists); name != "" {
		return "list " + name + " has not been read yet"
	}
	if name := a.lists.absent(c.target.lists); name != "" {
		return "list " + name + " does not exist"
	}
	return ""
}
