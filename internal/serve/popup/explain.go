package popup

import (
	"time"
)

// Verdict says why a user does or does not get a campaign.
type Verdict string

// The verdicts, in the order of their checks.
const (
	IsArchived   Verdict = "archived"
	HasProblem   Verdict = "problem" // Problem: why it is never shown
	IsPaused     Verdict = "paused"
	HasEnded     Verdict = "ended"       // At: when
	Passed       Verdict = "passed"      // not later in the order than the last one, or answered itself
	IsCapped     Verdict = "capped"      // shown Shows times, Cap allowed
	NotStarted   Verdict = "not-started" // At: when it starts
	DoesNotMatch Verdict = "does-not-suit"
	UserWaits    Verdict = "user-waits" // At: until when; zero: forever
	BehindOthers Verdict = "behind"     // an earlier one is shown
	IsGiven      Verdict = "given"      // the user gets it now
)

// Explanation says why a user does or does not get one campaign.
type Explanation struct {
	Campaign  *Campaign // shared; must not be changed
	Verdict   Verdict
	At        time.Time // the time that decided, if any
	Problem   string    // with HasProblem
	Condition string    // with DoesNotMatch: the first condition that is false
	Shows     int       // to this user, if the campaign has a Cap
}

// Explain returns for each campaign of p, archived ones too, why the user does or does not
// get it. It agrees with Decide.
func Explain(p *Placement, s State, a *Attributes, now time.Time) []Explanation {
	if p == nil {
		return nil
	}
	at, due, first := now.UnixMilli(), p.due(s), p.first(s)
	given := false
	out := make([]Explanation, 0, len(p.all))
	for _, c := range p.all {
		e := Explanation{Campaign: &c.Campaign, Verdict: IsGiven, Shows: s.Shows(c.ID)}
		condition := ""
		if c.Status != Archived && c.problem == nil {
			condition = c.target.failing(a)
		}
		switch {
		case c.Status == Archived:
			e.Verdict = IsArchived
		case c.problem != nil:
			e.Verdict, e.Problem = HasProblem, c.problem.Error()
		case c.Status == Paused:
			e.Verdict = IsPaused
		case at >= c.end:
			e.Verdict, e.At = HasEnded, c.End
		case c.from < first:
			e.Verdict = Passed
		case c.Cap > 0 && e.Shows >= c.Cap:
			e.Verdict = IsCapped
		case at < c.start:
			e.Verdict, e.At = NotStarted, c.Start
		case condition != "":
			e.Verdict, e.Condition = DoesNotMatch, condition
		case at < due:
			e.Verdict, e.At = UserWaits, instant(due)
		case given:
			e.Verdict = BehindOthers
		default:
			given = true
		}
		out = append(out, e)
	}
	return out
}
