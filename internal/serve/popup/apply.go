package popup

import (
	"bytes"
	"cmp"
	"slices"
)

// Mark says how far the database has applied a spool. Sequences of one spool ascend.
type Mark struct {
	Queue    [16]byte // random id of the spool
	Sequence uint64   // 0: no mark
}

// Counts are a campaign's events in the database, by kind.
type Counts struct {
	Shows, Clicks, Dismissals uint64
}

// Add adds n events of a kind.
func (c *Counts) Add(kind Kind, n uint64) {
	switch kind {
	case KindShow:
		c.Shows += n
	case KindClick:
		c.Clicks += n
	case KindDismiss:
		c.Dismissals += n
	}
}

// ApplyMax is the maximum of events in one transaction.
const ApplyMax = 1000

// Distinct returns the events without duplicates, by ascending id. Databases insert them in
// this order, so that two processes with the same events do not deadlock.
func Distinct(events []Event) []*Event {
	out := pointers(events)
	slices.SortStableFunc(out, func(a, b *Event) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return slices.CompactFunc(out, func(a, b *Event) bool { return a.ID == b.ID })
}

// Newest returns the newest event of each user and placement, by ascending user and
// placement. Its state is stored unless the database has a newer one.
func Newest(events []Event) []*Event {
	out := pointers(events)
	slices.SortFunc(out, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(a.Key.User, b.Key.User), cmp.Compare(a.Key.Placement, b.Key.Placement), compareAge(a, b))
	})
	last := 0
	for i, e := range out {
		if i+1 == len(out) || out[i+1].Key != e.Key {
			out[last] = e
			last++
		}
	}
	return out[:last]
}

// pointers returns pointers to events, which are cheaper to sort.
func pointers(events []Event) []*Event {
	out := make([]*Event, len(events))
	for i := range events {
		out[i] = &events[i]
	}
	return out
}

// CompareAge orders the events of one user and placement, the newest last: by sequence, then
// by time, then by id. Two events have the same sequence if a recorder kept an event and
// returned an error, or if a store lost its newest states. The later one is what the user
// saw.
func CompareAge(a, b Event) int { return compareAge(&a, &b) }

func compareAge(a, b *Event) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), a.At.Compare(b.At), bytes.Compare(a.ID[:], b.ID[:]))
}
