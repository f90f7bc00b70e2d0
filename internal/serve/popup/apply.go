package popup

import (
	"bytes"
	"cmp"
	"slices"
)

// Mark is how far a durable queue has been applied. Sequences of one queue go up.
type Mark struct {
	Queue    [16]byte // names the queue for good
	Sequence uint64   // 0: no mark
}

// Counts is how often a campaign was shown, clicked and dismissed, of the events that
// the database has.
type Counts struct {
	Shows, Clicks, Dismissals uint64
}

// Add counts n events of a kind; others than the three are not counted.
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

// ApplyMax is the most events of one transaction of a database.
const ApplyMax = 1000

// Distinct returns the events without repeats, the first of each, by ascending id: the
// order in which databases insert them, so that two that insert the same events do
// not wait for each other in a circle.
func Distinct(events []Event) []*Event {
	out := pointers(events)
	slices.SortStableFunc(out, func(a, b *Event) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return slices.CompactFunc(out, func(a, b *Event) bool { return a.ID == b.ID })
}

// Newest returns the newest event of each user and placement, by ascending user and
// placement. Its state is the one to keep, unless a newer one is kept already.
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

// pointers spares the sorts from moving events about.
func pointers(events []Event) []*Event {
	out := make([]*Event, len(events))
	for i := range events {
		out[i] = &events[i]
	}
	return out
}

// CompareAge orders the events of one user and placement, the newest last: by
// sequence, then by when they happened, then by id. Two events have one sequence
// where a recorder kept an event that it said it had not, or a store lost its newest
// states: the later one is what the user saw.
func CompareAge(a, b Event) int { return compareAge(&a, &b) }

func compareAge(a, b *Event) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), a.At.Compare(b.At), bytes.Compare(a.ID[:], b.ID[:]))
}
