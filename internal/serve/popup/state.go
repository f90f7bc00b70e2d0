package popup

import (
	"encoding/binary"
	"errors"
	"math"
)

// Key identifies a state.
type Key struct {
	User      string
	Placement string
}

// UserBytesMax is the maximum size of a user id.
const UserBytesMax = 128

// Phase is what happened last at a placement.
type Phase uint8

// The phases.
const (
	Fresh Phase = iota // nothing was shown
	Shown              // neither clicked nor dismissed
	Clicked
	Dismissed
)

// String returns the phase as a word.
func (p Phase) String() string {
	return [...]string{"fresh", "shown", "clicked", "dismissed"}[p&3]
}

// State is what a user was shown and did at a placement. The zero State is that of a new
// user. It is an immutable value; equal states are ==. Times are in milliseconds since 1970.
type State struct {
	Version  uint64     // 0 for a new user; each event adds 1
	Phase    Phase      // of the last show
	Campaign CampaignID // shown last
	Order    int32      // that campaign's, when it was shown
	Shown    int64      // when
	Answered int64      // when it was clicked or dismissed, 0 before
	Until    int64      // nothing is shown before, by the rules at the time of the event
	counts   string     // shows of campaigns with a cap: 6 bytes each, by ascending id
}

const countBytes = 6

// Shows returns how often a campaign was shown since it has a cap.
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

// counted returns s's counts with one more show of c. Only campaigns with a cap are counted,
// so there are at most CountsMax. Campaigns that are archived or gone are removed.
func (p *Placement) counted(s State, c *compiled) string {
	if !c.counts && s.counts == "" {
		return ""
	}
	out := make([]byte, 0, len(s.counts)+countBytes)
	put := func(id CampaignID, n int) {
		out = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(out, uint32(id)), uint16(min(n, CapMax)))
	}
	open := c.counts // c's entry must still be written
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

// stateFormat is the first byte of an encoded state.
const stateFormat = 1

// StateBytesMax is the maximum size of an encoded state.
const StateBytesMax = 64 + CountsMax*countBytes

// CountsMax is the maximum of campaigns whose shows a state counts.
const CountsMax = CappedMax

// errState is the error of DecodeState.
var errState = errors.New("not an encoded popup state")

// AppendState appends the encoding of s: a format byte, the phase, and varints. The zero
// State has the format byte and the phase only. The encoding is canonical.
func AppendState(dst []byte, s State) []byte {
	dst = append(dst, stateFormat, byte(s.Phase))
	if s.Phase == Fresh {
		return dst
	}
	dst = binary.AppendUvarint(dst, s.Version)
	dst = binary.AppendUvarint(dst, uint64(s.Campaign))
	dst = binary.AppendVarint(dst, int64(s.Order))
	dst = binary.AppendVarint(dst, s.Shown)
	dst = binary.AppendVarint(dst, s.Answered)
	dst = binary.AppendVarint(dst, s.Until)
	return append(dst, s.counts...)
}

// DecodeState decodes a state and refuses any other data.
func DecodeState(src []byte) (State, error) {
	if len(src) < 2 || len(src) > StateBytesMax || src[0] != stateFormat || src[1] > byte(Dismissed) {
		return State{}, errState
	}
	s := State{Phase: Phase(src[1])}
	r := varints{src: src[2:]}
	if s.Phase != Fresh {
		s.Version = r.unsigned(math.MaxUint64)
		s.Campaign = CampaignID(r.unsigned(math.MaxInt32))
		s.Order = int32(r.signed(math.MinInt32, math.MaxInt32))
		s.Shown = r.signed(math.MinInt64, never)
		s.Answered = r.signed(math.MinInt64, never)
		s.Until = r.signed(math.MinInt64, never)
		s.counts = string(r.src)
		r.src = nil
	}
	if r.bad || len(r.src) > 0 || !countsValid(s.counts) || s.Phase != Fresh && (s.Version == 0 || s.Campaign == 0) {
		return State{}, errState
	}
	return s, nil
}

// countsValid reports whether s has entries by ascending id, none of them zero.
func countsValid(s string) bool {
	if len(s)%countBytes != 0 || len(s) > CountsMax*countBytes {
		return false
	}
	last := CampaignID(0)
	for i := 0; i < len(s); i += countBytes {
		id, n := count(s[i:])
		if id <= last || id > math.MaxInt32 || n == 0 {
			return false
		}
		last = id
	}
	return true
}

// varints reads numbers in their shortest form. bad is set after one that is not.
type varints struct {
	src []byte
	bad bool
}

func (r *varints) unsigned(most uint64) uint64 {
	v, n := binary.Uvarint(r.src)
	if n <= 0 || v > most || n > 1 && r.src[n-1] == 0 {
		r.bad = true
		return 0
	}
	r.src = r.src[n:]
	return v
}

func (r *varints) signed(least, most int64) int64 {
	u := r.unsigned(math.MaxUint64)
	v := int64(u>>1) ^ -int64(u&1)
	if v < least || v > most {
		r.bad = true
		return 0
	}
	return v
}
