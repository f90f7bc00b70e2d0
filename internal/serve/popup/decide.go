package popup

import (
	"errors"
	"fmt"
	"time"
)

// Reason explains a decision.
type Reason uint8

// The reasons. The first three come with a campaign.
const (
	First         Reason = iota + 1 // nothing was shown before
	Again                           // shown, not answered, and RepeatAfter has passed
	Next                            // later in the order than the last one
	WaitShown                       // the last one was not answered; RepeatAfter has not passed
	WaitClicked                     // quiet period after a click
	WaitDismissed                   // quiet period after a dismissal
	NoneMatches                     // campaigns run, but none matches the user's attributes
	NoneRuns                        // campaigns are left, but none has started
	NoneLeft                        // no campaign is left for the user
	Unavailable                     // the state could not be read or written
)

// String returns the reason as it appears in answers and logs.
func (r Reason) String() string {
	names := [...]string{
		"", "first", "again", "next", "wait-shown", "wait-clicked", "wait-dismissed",
		"none-suits", "none-runs", "none-left", "unavailable",
	}
	if int(r) < len(names) {
		return names[r]
	}
	return ""
}

// Decision is what a user gets.
type Decision struct {
	Campaign *Campaign // nil: nothing is shown. It is shared and must not be changed.
	Reason   Reason
	// NextAt is when a request may get a popup again, if nothing is shown; zero if no time
	// is known. Unless campaigns change, a waiting user gets nothing before NextAt, and a
	// user whom no campaign matches gets nothing before and a popup at NextAt, with the
	// same attributes.
	NextAt time.Time
}

// Decide returns the campaign that a user gets at p, or none and until when. It is a pure
// function. a has the set's schema.
func Decide(p *Placement, s State, a *Attributes, now time.Time) Decision {
	if d, waits := Wait(p, s, now); waits {
		return d
	}
	at := now.UnixMilli()
	next, reason := int64(never), NoneLeft
	for _, c := range p.live[p.first(s):] {
		if at >= c.end || c.Cap > 0 && s.Shows(c.ID) >= c.Cap {
			continue
		}
		if at < c.start {
			if reason == NoneLeft {
				reason = NoneRuns
			}
			if c.start < next && c.target.matches(a) {
				next = c.start
			}
			continue
		}
		if c.target.matches(a) {
			return Decision{Campaign: &c.Campaign, Reason: given(s, c)}
		}
		reason = NoneMatches
	}
	return Decision{Reason: reason, NextAt: instant(next)}
}

// Wait returns Decide's decision if it does not depend on attributes: the user waits, or the
// placement has no campaigns. It reports whether that is so.
func Wait(p *Placement, s State, now time.Time) (Decision, bool) {
	if p == nil {
		return Decision{Reason: NoneLeft}, true
	}
	due := p.due(s)
	if now.UnixMilli() >= due {
		return Decision{}, false
	}
	return Decision{Reason: WaitShown + Reason(s.Phase-Shown), NextAt: instant(p.soonest(s, due))}, true
}

// given is the reason for showing c.
func given(s State, c *compiled) Reason {
	switch {
	case s.Phase == Fresh:
		return First
	case s.Phase == Shown && s.Campaign == c.ID:
		return Again
	}
	return Next
}

// due returns when the wait after the last show ends, by the campaign's current rules, or by
// those at its last event if the campaign is gone.
func (p *Placement) due(s State) int64 {
	if s.Phase == Fresh {
		return 0
	}
	c := p.byID[s.Campaign]
	switch {
	case c == nil:
		return s.Until
	case s.Phase == Shown:
		return later(s.Shown, c.repeat)
	case s.Phase == Clicked:
		return later(s.Answered, c.quietClick)
	}
	return later(s.Answered, c.quietDismiss)
}

// first returns the index of the first live campaign that the user may get: the last one if
// it was not answered, otherwise the next in the order.
func (p *Placement) first(s State) int {
	if s.Phase == Fresh {
		return 0
	}
	if c := p.byID[s.Campaign]; c != nil {
		if s.Phase == Shown {
			return c.from
		}
		return c.after
	}
	for i, c := range p.live {
		if c.Order > s.Order || c.Order == s.Order && c.ID > s.Campaign {
			return i
		}
	}
	return len(p.live)
}

// soonest returns the earliest time from due on at which a campaign runs that the user may
// get, regardless of attributes.
func (p *Placement) soonest(s State, due int64) int64 {
	next := int64(never)
	if due == never {
		return never
	}
	for _, c := range p.live[p.first(s):] {
		at := max(due, c.start)
		if at >= min(c.end, next) || c.Cap > 0 && s.Shows(c.ID) >= c.Cap {
			continue
		}
		if next = at; next == due {
			break
		}
	}
	return next
}

// Errors of Click and Dismiss with a valid token. The state does not change.
var (
	// ErrRepeated: this show was clicked or dismissed before.
	ErrRepeated = errors.New("this show was answered before")
	// ErrLate: another popup was shown since.
	ErrLate = errors.New("this show is no longer the last one")
	// ErrUnknownShow: the state does not have the show. It was lost and is being restored.
	ErrUnknownShow = errors.New("this show is not known")
)

// show returns the state after c was shown, and the event.
func (p *Placement) show(key Key, s State, c *compiled, now time.Time) (State, Event) {
	at := now.UnixMilli()
	next := State{
		Version: s.Version + 1, Phase: Shown, Campaign: c.ID, Order: c.Order,
		Shown: at, Until: later(at, c.repeat), counts: p.counted(s, c),
	}
	return next, next.event(key, KindShow, at)
}

// Show returns the state after a decision's campaign was shown, and the event to record. d is
// Decide's for this placement and state.
func Show(p *Placement, key Key, s State, d Decision, now time.Time) (State, Event, error) {
	if d.Campaign == nil || p == nil || p.byID[d.Campaign.ID] == nil {
		return s, Event{}, errors.New("show: the decision gives no campaign of this placement")
	}
	next, event := p.show(key, s, p.byID[d.Campaign.ID], now)
	return next, event, nil
}

// AnswerShow returns the state after the show of a token was clicked or dismissed, and the event
// to record. The error is ErrRepeated, ErrLate or ErrUnknownShow. If p is nil, because the
// placement has no campaigns, there is no quiet period.
func AnswerShow(p *Placement, s State, t Token, kind Kind, now time.Time) (State, Event, error) {
	// A store that lost states assigns a version twice, so the time is compared too.
	same := s.Campaign == t.Campaign && s.Shown == t.At.UnixMilli()
	switch {
	case same && s.Phase == Shown && s.Version == t.Version:
	case same && s.Phase > Shown && s.Version == t.Version+1:
		return s, Event{}, fmt.Errorf("%w (%s)", ErrRepeated, s.Phase)
	case s.Version > t.Version:
		return s, Event{}, ErrLate
	default:
		return s, Event{}, ErrUnknownShow
	}
	next := s
	next.Version++
	next.Answered = max(now.UnixMilli(), s.Shown) // the clocks of replicas differ
	var quiet int64
	next.Phase = Clicked
	if kind == KindDismiss {
		next.Phase = Dismissed
	}
	if c := p.campaign(s.Campaign); c != nil {
		quiet = c.quietClick
		if kind == KindDismiss {
			quiet = c.quietDismiss
		}
	}
	next.Until = later(next.Answered, quiet)
	return next, next.event(t.Key, kind, next.Answered), nil
}

// campaign returns the campaign with an id; nil if there is none.
func (p *Placement) campaign(id CampaignID) *compiled {
	if p == nil {
		return nil
	}
	return p.byID[id]
}
