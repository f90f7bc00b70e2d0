package popup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"spillway/internal/serve/queue"
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
	Variant  uint8      // of that campaign, from 1; 0: it had none
	Shows    uint16     // of that campaign, since it last started over
	Shown    int64      // when
	Answered int64      // when it was clicked or dismissed, 0 before
	Until    int64      // nothing is shown before, by the rules at the time of the event

	others string // records of other campaigns, by ascending id
	recent string // times of the last shows, the newest first
}

// record is what a state knows about one campaign.
type record struct {
	campaign CampaignID
	shows    int   // since it last started over
	last     Kind  // KindShow, KindClick, KindDismiss or KindWithhold
	at       int64 // of that event, in milliseconds, rounded up to a second
}

// Bounds of a state.
const (
	RecordsMax     = 600 // campaigns of a placement that are not archived, and some that are unknown
	recordBytesMax = 5 + 4 + 5
	RecentMax      = 20 // shows whose times a state keeps
	recentBytes    = 4
)

// records reads State.others.
type records struct {
	src  string
	last CampaignID
	bad  bool
}

// next returns the next record; false at the end or if the rest is not valid.
func (r *records) next() (record, bool) {
	if r.src == "" {
		return record{}, false
	}
	step, ok := r.varint(math.MaxInt32)
	word, also := r.varint(math.MaxUint16<<2 | 3)
	seconds, all := r.varint(math.MaxUint32)
	id := uint64(r.last) + step
	if !ok || !also || !all || step == 0 || id > math.MaxInt32 {
		r.bad = true
		return record{}, false
	}
	r.last = CampaignID(id)
	return record{campaign: r.last, shows: int(word >> 2), last: Kind(word&3) + KindShow, at: int64(seconds) * 1000}, true
}

// varint reads a number in its shortest form.
func (r *records) varint(most uint64) (v uint64, ok bool) {
	for i := 0; i < len(r.src) && i < 5; i++ {
		b := r.src[i]
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			r.src = r.src[i+1:]
			return v, v <= most && (b != 0 || i == 0)
		}
	}
	return 0, false
}

// appendRecord appends a record behind that of the campaign last.
func appendRecord(dst []byte, last CampaignID, r record) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.campaign-last))
	dst = binary.AppendUvarint(dst, uint64(min(r.shows, CapMax))<<2|uint64(r.last-KindShow))
	return binary.AppendUvarint(dst, uint64(min(max(r.at/1000, 0), math.MaxUint32)))
}

// roundUp returns a time rounded up to a second, as records keep it.
func roundUp(t int64) int64 { return (max(t, 0) + 999) / 1000 * 1000 }

// latest returns the record of the last show; false if nothing was shown.
func (s *State) latest() (record, bool) {
	if s.Phase == Fresh {
		return record{}, false
	}
	at := s.Shown
	if s.Phase > Shown {
		at = s.Answered
	}
	return record{s.Campaign, int(s.Shows), Kind(s.Phase), roundUp(at)}, true
}

// record returns the record of a campaign; false if it was never shown or withheld.
func (s *State) record(campaign CampaignID) (record, bool) {
	if r, ok := s.latest(); ok && r.campaign == campaign {
		return r, true
	}
	all := records{src: s.others}
	for r, ok := all.next(); ok && r.campaign <= campaign; r, ok = all.next() {
		if r.campaign == campaign {
			return r, true
		}
	}
	return record{}, false
}

// recentShow returns the time of the i-th last show, in milliseconds; false if it is not kept.
func (s *State) recentShow(i int) (int64, bool) {
	if (i+1)*recentBytes > len(s.recent) {
		return 0, false
	}
	b := s.recent[i*recentBytes:]
	return int64(uint32(b[0])<<24|uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3])) * 1000, true
}

// withRecent returns s's recent shows behind one at a time, at most keep of them.
func (s *State) withRecent(at int64, keep int) string {
	if keep == 0 {
		return ""
	}
	kept := min(len(s.recent), (min(keep, RecentMax)-1)*recentBytes)
	dst := make([]byte, 0, recentBytes+kept)
	dst = binary.BigEndian.AppendUint32(dst, uint32(min(roundUp(at)/1000, math.MaxUint32)))
	return string(append(dst, s.recent[:kept]...))
}

// stateFormat is the first byte of an encoded state.
const stateFormat = 1

// StateBytesMax is the maximum size of an encoded state.
const StateBytesMax = 96 + RecordsMax*recordBytesMax + RecentMax*recentBytes

// errState is the error of DecodeState, but for a state of another format.
var errState = errors.New("not an encoded popup state")

// otherFormat returns the error of a state or an event that begins with another format than ours.
func otherFormat(what string, format, ours byte) error {
	return fmt.Errorf("a popup %s of format %d, but this version of Spillway reads format %d: a newer version wrote it, or it is damaged",
		what, format, ours)
}

// AppendState appends the encoding of s: a format byte, the phase, and varints. The zero
// State has the format byte and the phase only. The encoding is canonical.
func AppendState(dst []byte, s State) []byte {
	dst = append(dst, stateFormat, byte(s.Phase))
	if s == (State{}) {
		return dst
	}
	dst = binary.AppendUvarint(dst, s.Version)
	if s.Phase != Fresh {
		dst = binary.AppendUvarint(dst, uint64(s.Campaign))
		dst = append(dst, s.Variant)
		dst = binary.AppendUvarint(dst, uint64(s.Shows))
		dst = binary.AppendVarint(dst, s.Shown)
		dst = binary.AppendVarint(dst, s.Answered)
		dst = binary.AppendVarint(dst, s.Until)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.recent)))
	dst = append(dst, s.recent...)
	return append(dst, s.others...)
}

// DecodeState decodes a state and refuses any other data.
func DecodeState(src []byte) (State, error) {
	switch {
	case len(src) > 0 && src[0] != stateFormat:
		return State{}, otherFormat("state", src[0], stateFormat)
	case len(src) < 2 || len(src) > StateBytesMax || src[1] > byte(Dismissed):
		return State{}, errState
	}
	s, r := State{Phase: Phase(src[1])}, varints{queue.Decoder{Rest: src[2:]}}
	if s.Phase == Fresh && len(r.Rest) == 0 {
		return s, nil
	}
	s.Version = r.unsigned(math.MaxUint64)
	if s.Phase != Fresh {
		s.Campaign = CampaignID(r.unsigned(math.MaxInt32))
		s.Variant = r.byte(math.MaxUint8)
		s.Shows = uint16(r.unsigned(math.MaxUint16))
		s.Shown = r.signed(math.MinInt64, never)
		s.Answered = r.signed(math.MinInt64, never)
		s.Until = r.signed(math.MinInt64, never)
	}
	s.recent = string(r.Take(int(r.unsigned(RecentMax * recentBytes))))
	s.others = string(r.Rest)
	if r.Bad || s.Version == 0 || s.Phase != Fresh && s.Campaign == 0 || len(s.recent)%recentBytes != 0 || !s.recordsValid() {
		return State{}, errState
	}
	return s, nil
}

// recordsValid reports whether the others are complete, and the last campaign is not among them.
func (s *State) recordsValid() bool {
	all := records{src: s.others}
	n := 0
	for r, ok := all.next(); ok; r, ok = all.next() {
		if n++; n > RecordsMax || s.Phase != Fresh && r.campaign == s.Campaign {
			return false
		}
	}
	return !all.bad
}

// varints reads numbers of a range. Bad is set after one that is not.
type varints struct{ queue.Decoder }

func (r *varints) unsigned(most uint64) uint64 {
	v := r.Uvarint()
	r.Bad = r.Bad || v > most
	return v
}

func (r *varints) signed(least, most int64) int64 {
	v := r.Varint()
	r.Bad = r.Bad || v < least || v > most
	return v
}

func (r *varints) byte(most byte) byte {
	b := r.Take(1)
	if r.Bad = r.Bad || b[0] > most; r.Bad {
		return 0
	}
	return b[0]
}
