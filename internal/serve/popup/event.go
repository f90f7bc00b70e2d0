package popup

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"spillway/internal/serve/queue"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds of events. Their numbers are stored.
const (
	KindShow     Kind = 1
	KindClick    Kind = 2
	KindDismiss  Kind = 3
	KindWithhold Kind = 4 // would have been shown, but the user is in the campaign's holdout
	KindConvert  Kind = 5 // did what the campaign is for
)

// VariantWithheld stands for the variant in events of what was withheld, and of conversions
// after it.
const VariantWithheld uint8 = math.MaxUint8

// String returns the kind as a word.
func (k Kind) String() string {
	names := [...]string{"none", "show", "click", "dismiss", "withhold", "convert"}
	if int(k) < len(names) {
		return names[k]
	}
	return "none"
}

// Event is what happened to one user and campaign.
type Event struct {
	ID       [16]byte // the same whenever the same event is recorded again
	Kind     Kind
	Key      Key
	Sequence uint64 // 1, 2, 3… per Key: the version of the state after it; of a conversion: that of the show
	Campaign CampaignID
	Variant  uint8     // of the campaign, from 1; 0: none; VariantWithheld: the holdout's
	First    bool      // the first time that this user was shown the campaign, or would have been
	ShownAt  time.Time // when it was shown, in milliseconds
	At       time.Time // when the event happened; ShownAt for a show
	NextAt   time.Time // nothing is shown to the user before; zero: never again, or a conversion, which decides nothing
	State    State     // of the user after the event; zero for a conversion, which changes no state
}

// event returns the event that led to s, for a campaign that was shown or withheld at some time.
func (s State) event(key Key, kind Kind, campaign CampaignID, shown, at int64) Event {
	e := Event{
		Kind: kind, Key: key, Sequence: s.Version, Campaign: campaign,
		ShownAt: instant(shown), At: instant(at), NextAt: instant(s.Until), State: s,
	}
	if e.Variant = s.Variant; kind == KindWithhold {
		e.Variant = VariantWithheld
	}
	e.ID = e.id()
	return e
}

// converted returns the event of a conversion after the show of a token.
func converted(t Token, at int64) Event {
	e := Event{
		Kind: KindConvert, Key: t.Key, Sequence: t.Version, Campaign: t.Campaign, Variant: t.Variant,
		ShownAt: t.At, At: instant(at),
	}
	e.ID = e.id()
	return e
}

// token returns the token of the show that e is, or of what e withholds.
func (e *Event) token() Token {
	return Token{Key: e.Key, Campaign: e.Campaign, Variant: e.Variant, Version: e.Sequence, At: e.ShownAt}
}

// id returns the time of the show in 6 bytes, so that databases insert near the end of
// their index, and a hash of what identifies the event: user, placement, sequence, campaign,
// kind and time of the show. The time of a click is not part of it: a click that is sent
// again is the same event. The time of the show is, because a store that lost states
// assigns a sequence twice.
func (e *Event) id() [16]byte {
	var room [256]byte
	shown := uint64(e.ShownAt.UnixMilli())
	b := append(room[:0], byte(e.Kind), byte(len(e.Key.Placement)))
	b = append(b, e.Key.Placement...)
	b = binary.BigEndian.AppendUint64(b, e.Sequence)
	b = binary.BigEndian.AppendUint32(b, uint32(e.Campaign))
	b = binary.BigEndian.AppendUint64(b, shown)
	b = append(b, e.Key.User...)
	sum := sha256.Sum256(b)
	id := [16]byte(sum[:16])
	var first [8]byte
	binary.BigEndian.PutUint64(first[:], shown)
	copy(id[:6], first[2:])
	return id
}

// eventFormat is the first byte of an encoded event.
const eventFormat = 1

// EventBytesMax is the maximum size of an encoded event.
const EventBytesMax = 64 + PlacementBytesMax + UserBytesMax + StateBytesMax

// errEvent is the error of DecodeEvent, but for an event of another format.
var errEvent = errors.New("not an encoded popup event")

// AppendEvent appends the encoding of e: a format byte, the kind, placement and user behind
// their lengths, the other fields, and the state unless it is a conversion. It returns an error
// unless e fits its state and has the id that such an event gets.
func AppendEvent(dst []byte, e Event) ([]byte, error) {
	if !e.valid() || e.ID != e.id() {
		return dst, fmt.Errorf("encode %s %d: the event does not fit its state", e.Kind, e.Sequence)
	}
	dst = append(dst, eventFormat, byte(e.Kind))
	dst = append(append(dst, byte(len(e.Key.Placement))), e.Key.Placement...)
	dst = append(append(dst, byte(len(e.Key.User))), e.Key.User...)
	first := byte(0)
	if e.First {
		first = 1
	}
	dst = append(dst, e.Variant, first)
	dst = binary.AppendUvarint(dst, e.Sequence)
	dst = binary.AppendUvarint(dst, uint64(e.Campaign))
	dst = binary.AppendVarint(dst, e.ShownAt.UnixMilli())
	dst = binary.AppendVarint(dst, e.At.UnixMilli())
	if e.Kind == KindConvert {
		return dst, nil
	}
	return AppendState(dst, e.State), nil
}

// valid reports whether the key is valid and the event fits its state.
func (e *Event) valid() bool {
	if e.Key.check() != nil || e.Campaign == 0 || e.Sequence == 0 || e.Kind < KindShow || e.Kind > KindConvert {
		return false
	}
	if e.Kind == KindConvert {
		return e.State == State{}
	}
	return e.Sequence == e.State.Version
}

// DecodeEvent decodes an event and refuses any other data.
func DecodeEvent(src []byte) (Event, error) {
	switch {
	case len(src) > 0 && src[0] != eventFormat:
		return Event{}, otherFormat("event", src[0], eventFormat)
	case len(src) < 2 || len(src) > EventBytesMax:
		return Event{}, errEvent
	}
	r := varints{queue.Decoder{Rest: src[2:]}}
	placement := string(r.Take(int(r.byte(math.MaxUint8))))
	user := string(r.Take(int(r.byte(math.MaxUint8))))
	e := Event{
		Kind: Kind(src[1]), Key: Key{User: user, Placement: placement}, Variant: r.byte(math.MaxUint8), First: r.byte(1) == 1,
		Sequence: r.unsigned(math.MaxUint64), Campaign: CampaignID(r.unsigned(math.MaxInt32)),
		ShownAt: instant(r.signed(math.MinInt64, never-1)), At: instant(r.signed(math.MinInt64, never-1)),
	}
	switch {
	case r.Bad || e.Kind == KindConvert && len(r.Rest) > 0:
		return Event{}, errEvent
	case e.Kind != KindConvert:
		var err error
		if e.State, err = DecodeState(r.Rest); err != nil {
			return Event{}, err
		}
		e.NextAt = instant(e.State.Until)
	}
	if !e.valid() {
		return Event{}, errEvent
	}
	e.ID = e.id()
	return e, nil
}
