package popup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Key says whose state it is.
type Key struct {
	User      string
	Placement string
}

// UserBytesMax is the longest user id.
const UserBytesMax = 128

// Phase is what the user last did at a placement.
type Phase uint8

// The phases.
const (
	Fresh     Phase = iota // nothing was shown yet
	Shown                  // and neither clicked nor dismissed
	Clicked                // what was shown last
	Dismissed              // what was shown last
)

// String returns the phase as a word.
func (p Phase) String() string {
	return [...]string{"fresh", "shown", "clicked", "dismissed"}[p&3]
}

// State is what is known of a user at a placement. The zero State is that of a
// user to whom nothing was shown. It is a value: it does not change, transitions
// return a new one, equal states are ==. Times are in milliseconds since 1970.
type State struct {
	Version  uint64     // 0 at first; each transition adds 1. It is the sequence of the event.
	Phase    Phase      // of the last show
	Campaign CampaignID // shown last
	Order    int32      // that campaign's, when it was shown
	Shown    int64      // when
	Answered int64      // when it was clicked or dismissed, 0 before
	Until    int64      // nothing is shown before, by the rules when the event happened
	counts   string     // shows of campaigns since they have a cap: 6 bytes each, by ascending id
}

const countBytes = 6

// Shows returns how often campaign was shown since it has a cap.
func (s *State) Shows(campaign CampaignID) int {
	for i := 0; i < len(s.counts); i += countBytes {
		id, n := count(s.counts[i:])
		if id == campaign {
			return n
		}
	}
	return 0
}

// count reads one entry of State.counts.
func count(s string) (CampaignID, int) {
	_ = s[countBytes-1]
	id := uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
	return CampaignID(id), int(s[4])<<8 | int(s[5])
}

// counted returns s's counts with one more show of c, without those of campaigns
// that are archived or gone, or have no cap any more. Only a campaign with a cap
// counts: so there are CountsMax at most.
func (p *Placement) counted(s State, c *compiled) string {
	if !c.counts && s.counts == "" {
		return ""
	}
	out := make([]byte, 0, len(s.counts)+countBytes)
	put := func(id CampaignID, n int) {
		out = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(out, uint32(id)), uint16(min(n, CapMax)))
	}
	open := c.counts // c's entry is still to be written
	for i := 0; i < len(s.counts); i += countBytes {
		id, n := count(s.counts[i:])
		if open && id >= c.ID {
			put(c.ID, s.Shows(c.ID)+1)
			open = false
		}
		if id == c.ID && c.counts {
			continue
		}
		if other := p.byID[id]; other != nil && other.counts {
			put(id, n)
		}
	}
	if open {
		put(c.ID, 1)
	}
	return string(out)
}

// Errors of Click and Dismiss: the token is good, but the show is not the one that
// can be answered. The state stays as it was.
var (
	// ErrRepeated: this show was clicked or dismissed before.
	ErrRepeated = errors.New("this show was answered before")
	// ErrLate: another show has come since.
	ErrLate = errors.New("this show is no longer the last one")
	// ErrUnknownShow: the state does not know the show; it was lost and is being restored.
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

// Show returns the state after the campaign of a decision was shown, and the event
// to record. d is Decide's for the same placement and state.
func Show(p *Placement, key Key, s State, d Decision, now time.Time) (State, Event, error) {
	if d.Campaign == nil || p == nil || p.byID[d.Campaign.ID] == nil {
		return s, Event{}, errors.New("show: the decision gives no campaign of this placement")
	}
	next, event := p.show(key, s, p.byID[d.Campaign.ID], now)
	return next, event, nil
}

// Click returns the state after the show of a token was clicked, and the event to
// record. On an error, ErrRepeated, ErrLate or ErrUnknownShow, s is returned.
// p may be nil: the placement's campaigns are gone, and so is the quiet period.
func Click(p *Placement, s State, t Token, now time.Time) (State, Event, error) {
	return answer(p, s, t, KindClick, now)
}

// Dismiss is Click for a popup that was closed.
func Dismiss(p *Placement, s State, t Token, now time.Time) (State, Event, error) {
	return answer(p, s, t, KindDismiss, now)
}

func answer(p *Placement, s State, t Token, kind Kind, now time.Time) (State, Event, error) {
	// A store that lost its newest states gives a version again: the time tells.
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
	next.Answered = max(now.UnixMilli(), s.Shown) // clocks of replicas differ
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

// campaign returns the campaign of that id, nil where there is none.
func (p *Placement) campaign(id CampaignID) *compiled {
	if p == nil {
		return nil
	}
	return p.byID[id]
}
