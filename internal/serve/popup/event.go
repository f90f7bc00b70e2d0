package popup

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds of events. Their numbers are stored.
const (
	KindShow    Kind = 1
	KindClick   Kind = 2
	KindDismiss Kind = 3
)

// String returns the kind as a word.
func (k Kind) String() string {
	return [...]string{"none", "show", "click", "dismiss"}[k&3]
}

// Event is one show, click or dismissal.
type Event struct {
	ID       [16]byte // the same whenever the same event is recorded again
	Kind     Kind
	Key      Key
	Sequence uint64 // 1, 2, 3… per Key: the version of the state after it
	Campaign CampaignID
	Order    int32     // the campaign's, when it was shown
	ShownAt  time.Time // when it was shown, in milliseconds
	At       time.Time // when the event happened; ShownAt for a show
	NextAt   time.Time // nothing is shown to the user before; zero: never again
	State    State     // of the user after the event
}

// event returns the event that led to s.
func (s State) event(key Key, kind Kind, at int64) Event {
	return Event{
		ID: eventID(key, kind, s), Kind: kind, Key: key, Sequence: s.Version, Campaign: s.Campaign, Order: s.Order,
		ShownAt: instant(s.Shown), At: instant(at), NextAt: instant(s.Until), State: s,
	}
}

// eventID returns the time of the show in 6 bytes, so that databases insert near the end of
// their index, and a hash of what identifies the event: user, placement, sequence, campaign,
// kind and time of the show. The time of a click is not part of it: a click that is sent
// again is the same event. The time of the show is, because a store that lost states
// assigns a sequence twice.
func eventID(key Key, kind Kind, s State) [16]byte {
	var room [256]byte
	b := append(room[:0], byte(kind), byte(len(key.Placement)))
	b = append(b, key.Placement...)
	b = binary.BigEndian.AppendUint64(b, s.Version)
	b = binary.BigEndian.AppendUint32(b, uint32(s.Campaign))
	b = binary.BigEndian.AppendUint64(b, uint64(s.Shown))
	b = append(b, key.User...)
	sum := sha256.Sum256(b)
	id := [16]byte(sum[:16])
	var shown [8]byte
	binary.BigEndian.PutUint64(shown[:], uint64(s.Shown))
	copy(id[:6], shown[2:])
	return id
}

// eventFormat is the first byte of an encoded event.
const eventFormat = 1

// EventBytesMax is the maximum size of an encoded event.
const EventBytesMax = 2 + 16 + 1 + PlacementBytesMax + 1 + UserBytesMax + StateBytesMax

// errEvent is the error of DecodeEvent.
var errEvent = errors.New("not an encoded popup event")

// AppendEvent appends the encoding of e: a format byte, the kind, the id, placement and user
// behind their lengths, and the state, from which the other fields follow. It returns an
// error unless e is as Show, Click and Dismiss return it.
func AppendEvent(dst []byte, e Event) ([]byte, error) {
	if again := e.State.event(e.Key, e.Kind, e.At.UnixMilli()); !e.valid() || again.ID != e.ID || again.Sequence != e.Sequence {
		return dst, fmt.Errorf("encode %s %d: the event does not fit its state", e.Kind, e.Sequence)
	}
	dst = append(dst, eventFormat, byte(e.Kind))
	dst = append(dst, e.ID[:]...)
	dst = append(append(dst, byte(len(e.Key.Placement))), e.Key.Placement...)
	dst = append(append(dst, byte(len(e.Key.User))), e.Key.User...)
	return AppendState(dst, e.State), nil
}

// valid reports whether the key is valid and the kind fits the state.
func (e *Event) valid() bool {
	return e.Kind >= KindShow && e.Kind <= KindDismiss && e.State.Phase == Phase(e.Kind) && e.Key.check() == nil
}

// DecodeEvent decodes an event and refuses any other data. It does not check the id, which
// another version may have made in another way.
func DecodeEvent(src []byte) (Event, error) {
	const head = 2 + 16
	if len(src) < head || len(src) > EventBytesMax || src[0] != eventFormat {
		return Event{}, errEvent
	}
	kind, id, rest := Kind(src[1]), [16]byte(src[2:head]), src[head:]
	placement, rest, ok := cutText(rest)
	user, rest, also := cutText(rest)
	if !ok || !also {
		return Event{}, errEvent
	}
	state, err := DecodeState(rest)
	if err != nil {
		return Event{}, errEvent
	}
	at := state.Shown
	if kind != KindShow {
		at = state.Answered
	}
	e := state.event(Key{User: string(user), Placement: string(placement)}, kind, at)
	e.ID = id
	if !e.valid() {
		return Event{}, errEvent
	}
	return e, nil
}

// cutText splits a text behind its length in one byte from src.
func cutText(src []byte) (text, rest []byte, ok bool) {
	if len(src) == 0 || len(src) < 1+int(src[0]) {
		return nil, nil, false
	}
	end := 1 + int(src[0])
	return src[1:end], src[end:], true
}
