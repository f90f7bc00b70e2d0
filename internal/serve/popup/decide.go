package popup

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Reason explains a decision.
type Reason uint8

// The reasons. The first four come with a campaign.
const (
	First         Reason = iota + 1 // nothing was shown before
	Again                           // shown, not answered, and RepeatAfter has passed
	Next                            // the first in order that the user has not finished
	Test                            // a draft, for one of its testers
	WaitShown                       // the last one was not answered; RepeatAfter has not passed
	WaitClicked                     // quiet period after a click
	WaitDismissed                   // quiet period after a dismissal
	WaitLimit                       // Config.Limits are reached
	NoneMatches                     // campaigns run, but none matches the user's attributes
	NoneRuns                        // campaigns are left, but none has started
	NoneLeft                        // no campaign is left for the user
	HeldOut                         // a campaign is withheld, because the user is in its holdout
	Unavailable                     // the state could not be read or written
)

// String returns the reason as it appears in answers and logs.
func (r Reason) String() string {
	names := [...]string{
		"", "first", "again", "next", "test", "wait-shown", "wait-clicked", "wait-dismissed", "wait-limit",
		"none-suits", "none-runs", "none-left", "held-out", "unavailable",
	}
	if int(r) < len(names) {
		return names[r]
	}
	return ""
}

// Decision is what a user gets.
type Decision struct {
	Campaign *Campaign // nil: nothing is shown. It is shared and must not be changed. With HeldOut: what is withheld.
	Variant  uint8     // of the campaign, from 1; 0: it has none
	Reason   Reason
	// NextAt is when a request may get a popup again, if nothing is shown; zero if no time
	// is known. Unless campaigns change, a waiting user gets nothing before NextAt, the end of
	// the wait; then there may be none that the user has not finished. A user whom no campaign
	// matches gets nothing before and a popup at NextAt, with the same attributes. If a target
	// reads the clock, NextAt is at most ClockTargetWait away, and nothing is promised.
	NextAt time.Time
}

// Shown reports whether the user gets a popup.
func (d Decision) Shown() bool { return d.Campaign != nil && d.Reason != HeldOut }

// Payload returns what the user gets.
func (d Decision) Payload() json.RawMessage { return d.Campaign.payload(d.Variant) }

// ClockTargetWait is when to ask again if a target that reads the clock did not match.
const ClockTargetWait = time.Hour

// Decide returns the campaign that a user gets at p, or none and until when. It is a pure
// function. a has the set's schema and the user's id (For).
func Decide(p *Placement, s State, a *Attributes, now time.Time) Decision {
	if d, decided := Wait(p, s, a.user, now); decided {
		return d
	}
	return p.choose(s, a, now).Decision
}

// Wait returns Decide's decision if it does not depend on attributes: the user waits, or the
// placement has no campaigns. It reports whether that is so.
func Wait(p *Placement, s State, user string, now time.Time) (Decision, bool) {
	if p == nil {
		return Decision{Reason: NoneLeft}, true
	}
	if len(p.drafts) > 0 {
		if c := p.draft(s, user, now); c != nil {
			return Decision{Campaign: &c.Campaign, Variant: c.variant(xxhash.Sum64String(user)), Reason: Test}, true
		}
	}
	at := now.UnixMilli()
	due := p.due(&s, at)
	if at >= due {
		return Decision{}, false
	}
	return Decision{Reason: WaitShown + Reason(s.Phase-Shown), NextAt: instant(p.soonest(due))}, true
}

// draft returns the first draft of which the user is a tester and that is not finished.
func (p *Placement) draft(s State, user string, now time.Time) *compiled {
	at := now.UnixMilli()
	for _, c := range p.drafts[user] {
		r, known := s.record(c.ID)
		done, _ := c.finished(r, at)
		if s.Campaign == c.ID {
			r.at = s.Shown
		}
		waits := known && r.last == KindShow && at < later(r.at, c.repeat) && r.at <= later(at, futureMax)
		if !done && !waits {
			return c
		}
	}
	return nil
}

// choice is a Decision for a user who does not wait.
type choice struct {
	Decision
	needsRow bool         // there is none before the user's row is read, which a target uses
	skipped  []CampaignID // that cannot be decided: the user's row, or a list, could not be read
}

// choose decides for a user who does not wait.
func (p *Placement) choose(s State, a *Attributes, now time.Time) choice {
	at := now.UnixMilli()
	a.At(now)
	done := p.finished(&s, at)
	user := xxhash.Sum64String(a.user)
	if c := p.byID[s.Campaign]; s.Phase == Shown && c != nil && c.live >= 0 && !done.has(c.live) && c.runs(at) && c.admits(user) {
		switch {
		case a.lacksRow(c):
			return choice{needsRow: true}
		case !a.skips(c) && c.matches(a):
			return choice{Decision: Decision{Campaign: &c.Campaign, Variant: c.variant(user), Reason: Again}}
		}
	}
	var skipped []CampaignID
	next, reason := int64(never), NoneLeft
	for i, c := range p.alive {
		if at >= c.end || done.has(i) {
			continue
		}
		if !c.admits(user) {
			if at >= c.start {
				reason = NoneMatches
			}
			continue
		}
		if a.lacksRow(c) {
			return choice{needsRow: true}
		}
		if a.skips(c) {
			skipped = append(skipped, c.ID)
			continue
		}
		matches := c.matches(a)
		if at >= c.start && matches {
			return choice{Decision: p.given(s, c, user), skipped: skipped}
		}
		if at >= c.start {
			reason = NoneMatches
		} else if reason == NoneLeft {
			reason = NoneRuns
		}
		switch {
		case c.target.clock:
			next = min(next, later(at, ClockTargetWait.Milliseconds()))
		case matches && at < c.start:
			next = min(next, c.start)
		}
	}
	if len(skipped) > 0 {
		return choice{Decision: Decision{Reason: Unavailable}, skipped: skipped}
	}
	return choice{Decision: Decision{Reason: reason, NextAt: instant(min(next, p.restart(&s, a, at, user)))}}
}

// given is the decision for the first campaign that the user has not finished.
func (p *Placement) given(s State, c *compiled, user uint64) Decision {
	d := Decision{Campaign: &c.Campaign, Reason: Next}
	r, known := s.record(c.ID)
	switch {
	case (!known || r.last == KindWithhold) && c.Holdout > 0 && percent(purposeHoldout, user, c.ID) < c.Holdout:
		d.Reason = HeldOut
		return d
	case s.Phase == Fresh:
		d.Reason = First
	case s.Phase == Shown && s.Campaign == c.ID:
		d.Reason = Again
	}
	d.Variant = c.variant(user)
	return d
}

// restart returns when the first finished campaign starts over that the user could get then.
func (p *Placement) restart(s *State, a *Attributes, at int64, user uint64) int64 {
	next := int64(never)
	for _, c := range p.alive {
		if c.again == never || !c.admits(user) {
			continue
		}
		r, known := s.record(c.ID)
		if !known {
			continue
		}
		if done, again := c.finished(r, at); done {
			if again = max(again, c.start); again < min(next, c.end) && !a.lacksRow(c) && !a.skips(c) && c.matches(a) {
				next = again
			}
		}
	}
	return next
}

// matches reports whether the target is true and each list that it names exists.
func (c *compiled) matches(a *Attributes) bool {
	return (len(c.target.lists) == 0 || a.lists.absent(c.target.lists) == "") && c.target.matches(a)
}

// marks are campaigns by their index in Placement.alive.
type marks [(CampaignsMax + 63) / 64]uint64

func (m *marks) set(i int)      { m[i/64] |= 1 << (i % 64) }
func (m *marks) has(i int) bool { return m[i/64]&(1<<(i%64)) != 0 }

// finished returns the campaigns that the user has finished.
func (p *Placement) finished(s *State, at int64) (m marks) {
	if r, ok := s.latest(); ok {
		p.mark(&m, r, at)
	}
	all := records{src: s.others}
	for r, ok := all.next(); ok; r, ok = all.next() {
		p.mark(&m, r, at)
	}
	return m
}

func (p *Placement) mark(m *marks, r record, at int64) {
	if c := p.byID[r.campaign]; c != nil && c.live >= 0 {
		if done, _ := c.finished(r, at); done {
			m.set(c.live)
		}
	}
}

// finished reports whether a user with this record has finished the campaign, and when it
// starts over. One that a clock of the future has finished starts over now.
func (c *compiled) finished(r record, at int64) (done bool, again int64) {
	if !c.over(r) || c.again != never && r.at > later(at, futureMax) {
		return false, never
	}
	again = later(r.at, c.again)
	return at < again, again
}

// over is finished before the campaign starts over.
func (c *compiled) over(r record) bool {
	return r.last > KindShow || r.last == KindShow && c.Cap > 0 && r.shows >= c.Cap
}

// futureMax is how far in the future a time may be. A clock that was further ahead was wrong.
const futureMax = int64(time.Hour / time.Millisecond)

// due returns when the wait after the last show ends, by the campaign's current rules, or by
// those at its last event if the campaign is gone. A wait that began in the future is over.
func (p *Placement) due(s *State, now int64) int64 {
	from := s.Answered
	if s.Phase == Shown {
		from = s.Shown
	}
	if s.Phase == Fresh || from > later(now, futureMax) {
		return 0
	}
	c := p.byID[s.Campaign]
	switch {
	case c == nil:
		return s.Until
	case s.Phase == Shown:
		return later(from, c.repeat)
	case s.Phase == Clicked:
		return later(from, c.quietClick)
	}
	return later(from, c.quietDismiss)
}

// soonest returns the earliest time from due on at which a campaign of p runs. The user may
// have finished it.
func (p *Placement) soonest(due int64) int64 {
	if at := max(due, p.opens); at < p.closes {
		return at
	}
	return never
}

// Purposes of percent. Their numbers, and the function, decide who is in which group, so
// they must not change.
const (
	purposeRollout uint64 = 1
	purposeHoldout uint64 = 2
	purposeVariant uint64 = 3
)

// percent returns a number from 0 to less than 100 that is the same for a user and a campaign
// at all times, and independent between campaigns and purposes. user is the xxHash64 of the
// user's id. The mixing is that of SplitMix64 (Steele et al., Fast Splittable Pseudorandom
// Number Generators, 2014).
func percent(purpose, user uint64, campaign CampaignID) float64 {
	x := user + 0x9e3779b97f4a7c15*(uint64(campaign)<<2|purpose)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53) * 100
}

// admits reports whether a user is in the campaign's rollout.
func (c *compiled) admits(user uint64) bool {
	return c.Rollout == 100 || percent(purposeRollout, user, c.ID) < c.Rollout
}

// variant returns the variant that a user gets.
func (c *compiled) variant(user uint64) uint8 {
	if c.weights == 0 {
		return 0
	}
	at := percent(purposeVariant, user, c.ID) / 100 * float64(c.weights)
	for i := range c.Variants {
		if at -= float64(c.Variants[i].Weight); at < 0 {
			return uint8(i + 1)
		}
	}
	return uint8(len(c.Variants))
}

// runs reports whether the campaign has started and not ended.
func (c *compiled) runs(at int64) bool { return at >= c.start && at < c.end }

// Errors of Click and Dismiss with a valid token. The state does not change.
var (
	// ErrRepeated: this show was clicked or dismissed before.
	ErrRepeated = errors.New("this show was answered before")
	// ErrLate: another popup was shown since.
	ErrLate = errors.New("this show is no longer the last one")
	// ErrUnknownShow: the state does not have the show. It was lost and is being restored.
	ErrUnknownShow = errors.New("this show is not known")
)

// show returns the state after c was shown or withheld, and the event. keep is how many
// times of shows the state keeps.
func (p *Placement) show(key Key, s State, c *compiled, d Decision, now time.Time, keep int) (State, Event) {
	at := now.UnixMilli()
	before, known := s.record(c.ID)
	var room [16]record // of most users
	if d.Reason == HeldOut {
		next := s
		next.Version++
		next.others = p.encode(append(s.without(room[:0], c.ID), record{campaign: c.ID, last: KindWithhold, at: roundUp(at)}))
		event := next.event(key, KindWithhold, c.ID, at, at)
		event.First = !known
		return next, event
	}
	shows := before.shows + 1
	if c.over(before) { // it starts over
		shows = 1
	}
	next := State{
		Version: s.Version + 1, Phase: Shown, Campaign: c.ID, Variant: d.Variant, Shows: uint16(min(shows, CapMax)),
		Shown: at, Until: later(at, c.repeat), others: p.encode(s.behind(room[:0], c.ID)), recent: s.withRecent(at, keep),
	}
	event := next.event(key, KindShow, c.ID, at, at)
	event.First = !known
	return next, event
}

// without appends the records of s, but for that of the last show and that of a campaign.
func (s *State) without(dst []record, campaign CampaignID) []record {
	all := records{src: s.others}
	for r, ok := all.next(); ok; r, ok = all.next() {
		if r.campaign != campaign {
			dst = append(dst, r)
		}
	}
	return dst
}

// behind appends the records of s, but for that of a campaign, which is shown after s.
func (s *State) behind(dst []record, campaign CampaignID) []record {
	dst = s.without(dst, campaign)
	if r, ok := s.latest(); ok && r.campaign != campaign {
		dst = append(dst, r)
	}
	return dst
}

// encode encodes records for a state. Those of archived campaigns are removed. Those of campaigns
// that p does not know stay while there is room, because p can be older than the state.
func (p *Placement) encode(kept []record) string {
	kept = slices.DeleteFunc(kept, func(r record) bool {
		c := p.byID[r.campaign]
		return c != nil && c.Status == Archived
	})
	slices.SortFunc(kept, func(a, b record) int { return int(a.campaign) - int(b.campaign) })
	if over := len(kept) - RecordsMax; over > 0 {
		kept = slices.DeleteFunc(kept, func(r record) bool {
			drop := over > 0 && p.byID[r.campaign] == nil
			if drop {
				over--
			}
			return drop
		})
		kept = kept[:min(len(kept), RecordsMax)]
	}
	var out []byte
	last := CampaignID(0)
	for _, r := range kept {
		out = appendRecord(out, last, r)
		last = r.campaign
	}
	return string(out)
}

// Show returns the state after a decision's campaign was shown or withheld, and the event to
// record. d is Decide's for this placement and state.
func Show(p *Placement, key Key, s State, d Decision, now time.Time) (State, Event, error) {
	if d.Campaign == nil || p == nil || p.byID[d.Campaign.ID] == nil {
		return s, Event{}, errors.New("show: the decision gives no campaign of this placement")
	}
	next, event := p.show(key, s, p.byID[d.Campaign.ID], d, now, 0)
	return next, event, nil
}

// AnswerShow returns the state after the show of a token was clicked or dismissed, and the event
// to record. The error is ErrRepeated, ErrLate or ErrUnknownShow. If p is nil, because the
// placement has no campaigns, the quiet period is DefaultQuiet.
func AnswerShow(p *Placement, s State, t Token, kind Kind, now time.Time) (State, Event, error) {
	// A store that lost states assigns a version twice, so the time is compared too. What was
	// withheld since the show has made new versions.
	same := s.Campaign == t.Campaign && s.Shown == t.At.UnixMilli()
	switch {
	case same && s.Phase == Shown && s.Version >= t.Version:
	case same && s.Phase > Shown && s.Version > t.Version:
		return s, Event{}, fmt.Errorf("%w (%s)", ErrRepeated, s.Phase)
	case s.Version > t.Version:
		return s, Event{}, ErrLate
	default:
		return s, Event{}, ErrUnknownShow
	}
	next := s
	next.Version++
	next.Answered = now.UnixMilli()
	if s.Shown <= later(next.Answered, futureMax) { // clocks may differ a little
		next.Answered = max(next.Answered, s.Shown)
	}
	quiet := DefaultQuiet.millis()
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
	return next, next.event(t.Key, kind, next.Campaign, next.Shown, next.Answered), nil
}

// campaign returns the campaign with an id; nil if there is none.
func (p *Placement) campaign(id CampaignID) *compiled {
	if p == nil {
		return nil
	}
	return p.byID[id]
}
