package popup

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Kind says what happened.
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
	ID       [16]byte // equal for the same event only, whoever records it how often
	Kind     Kind
	Key      Key
	Sequence uint64 // events of a Key have 1, 2, 3...: the version of the state after it
	Campaign CampaignID
	Order    int32     // the campaign's, when it was shown
	ShownAt  time.Time // when it was shown, in milliseconds
	At       time.Time // when the event happened; ShownAt for a show
	NextAt   time.Time // nothing is shown to the user before; zero: not again
	State    State     // of the user after the event, for stores that keep it
}

// event returns the event that led to s.
func (s State) event(key Key, kind Kind, at int64) Event {
	return Event{
		ID: eventID(key, kind, s), Kind: kind, Key: key, Sequence: s.Version, Campaign: s.Campaign, Order: s.Order,
		ShownAt: instant(s.Shown), At: instant(at), NextAt: instant(s.Until), State: s,
	}
}

// eventID hashes what makes an event the same: the user and the placement, its
// sequence, its campaign and kind, and when the campaign was shown. When it was
// clicked is not part of it: a click that is sent again, because nobody knows
// whether it was recorded, is the same click. The time of the show is, because a
// store that lost its newest states gives a sequence number again. An id begins with
// that time: what a database inserts comes close to the end of its index.
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
