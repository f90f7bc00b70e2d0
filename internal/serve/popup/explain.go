package popup

import (
	"time"
)

// Verdict says what keeps a campaign from a user, or that nothing does.
type Verdict string

// The verdicts, in the order in which they are looked for.
const (
	IsArchived   Verdict = "archived"
	IsBroken     Verdict = "problem" // Problem: what keeps it from being shown to anybody
	IsPaused     Verdict = "paused"
	HasEnded     Verdict = "ended"       // At: when
	Passed       Verdict = "passed"      // it is not later in the order than the last one, or is the last one and was answered
	IsCapped     Verdict = "capped"      // shown Shows times, Cap allowed
	NotStarted   Verdict = "not-started" // At: when it starts
	DoesNotSuit  Verdict = "does-not-suit"
	UserWaits    Verdict = "user-waits" // At: until when; zero: for ever
	BehindOthers Verdict = "behind"     // it would be given, but for an earlier one
	IsGiven      Verdict = "given"      // it is what the user gets now
)

// Explanation says why a user does or does not get one campaign.
type Explanation struct {
	Campaign  *Campaign // shared; must not be changed
	Verdict   Verdict
	At        time.Time // the time that decided, where one did
	Problem   string    // problem: what it is
	Condition string    // does-not-suit: the first condition that does not hold
	Shows     int       // to this user, where the campaign has a Cap
}

// Explain returns, in their order, why the user gets each campaign of p or not,
// archived ones included. It agrees with Decide.
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
			e.Verdict, e.Problem = IsBroken, c.problem.Error()
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
			e.Verdict, e.Condition = DoesNotSuit, condition
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
