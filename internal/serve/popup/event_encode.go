package popup

import (
	"errors"
	"fmt"
)

// eventFormat is the first byte of an encoded event.
const eventFormat = 1

// EventBytesMax is the most bytes of an encoded event.
const EventBytesMax = 2 + 16 + 1 + PlacementBytesMax + 1 + UserBytesMax + StateBytesMax

// errEvent is the error of DecodeEvent.
var errEvent = errors.New("not an encoded popup event")

// AppendEvent appends e for a queue: a format byte, the kind, the id, the placement
// and the user behind their lengths, and the state. The other fields follow from the
// state, so e must be as Show, Click and Dismiss return it; an error says that it is
// not.
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

// valid reports whether an event may be kept: its key is one, and its kind is what the
// state says was done last.
func (e *Event) valid() bool {
	return e.Kind >= KindShow && e.Kind <= KindDismiss && e.State.Phase == Phase(e.Kind) && e.Key.check() == nil
}

// DecodeEvent reads what AppendEvent wrote. It refuses anything else, but takes the
// id as it stands: a later version may make ids in another way, and an event that was
// queued before keeps its own.
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

// cutText takes a text behind its length in one byte off src.
func cutText(src []byte) (text, rest []byte, ok bool) {
	if len(src) == 0 || len(src) < 1+int(src[0]) {
		return nil, nil, false
	}
	end := 1 + int(src[0])
	return src[1:end], src[end:], true
}
