package popup

import (
	"encoding/binary"
	"errors"
	"math"
)

// stateFormat is the first byte of an encoded state.
const stateFormat = 1

// StateBytesMax is the most bytes of an encoded state.
const StateBytesMax = 64 + CountsMax*countBytes

// CountsMax is the most campaigns whose shows a state counts.
const CountsMax = CappedMax

// errState is the error of DecodeState.
var errState = errors.New("not an encoded popup state")

// AppendState appends s for a store: a format byte, the phase, and varints. The
// zero State is the format byte and the phase alone. Encoding is canonical: equal
// states give equal bytes.
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

// DecodeState reads what AppendState wrote. It refuses anything else.
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

// countsValid reports whether s is entries by ascending id, none of them empty.
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

// varints reads numbers in their shortest form and remembers whether one was bad.
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
