package popup

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Counts are a campaign's events in the database, by kind.
type Counts struct {
	Shows       uint64 `json:"shows"`
	Clicks      uint64 `json:"clicks"`
	Dismissals  uint64 `json:"dismissals"`
	Withheld    uint64 `json:"withheld"`
	Conversions uint64 `json:"conversions"`
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
	case KindWithhold:
		c.Withheld += n
	case KindConvert:
		c.Conversions += n
	}
}

// Hour is what happened with a variant of a campaign in an hour, in events of one kind.
type Hour struct {
	Variant uint8 // 0: the campaign had none
	Kind    Kind
	Hour    time.Time // its begin, in UTC
	Events  uint64
	Users   uint64 // whom the campaign was shown, or withheld from, for the first time
}

// CampaignHour is an Hour of a campaign.
type CampaignHour struct {
	Campaign CampaignID
	Hour
}

// Tally counts events by campaign, hour, variant and kind, and sorts the counts by these.
// Databases add them in this order, so that two processes do not deadlock.
func Tally(events []*Event) []CampaignHour {
	type cell struct {
		campaign CampaignID
		hour     int64
		variant  uint8
		kind     Kind
	}
	places := make(map[cell]int)
	var all []CampaignHour
	for _, e := range events {
		second := e.At.Unix()
		c := cell{e.Campaign, second - (second%3600+3600)%3600, e.Variant, e.Kind}
		i, known := places[c]
		if !known {
			i = len(all)
			places[c] = i
			all = append(all, CampaignHour{e.Campaign, Hour{Variant: e.Variant, Kind: e.Kind, Hour: time.Unix(c.hour, 0).UTC()}})
		}
		all[i].Events++
		if e.First {
			all[i].Users++
		}
	}
	slices.SortFunc(all, func(a, b CampaignHour) int {
		return cmp.Or(cmp.Compare(a.Campaign, b.Campaign), a.Hour.Hour.Compare(b.Hour.Hour), cmp.Compare(a.Variant, b.Variant),
			cmp.Compare(a.Kind, b.Kind))
	})
	return all
}

// CampaignCount is how many events of one kind a campaign had.
type CampaignCount struct {
	Campaign CampaignID
	Kind     Kind
	Events   uint64
}

// Totals adds up the hours of each campaign and kind, by ascending campaign and kind.
func Totals(hours []CampaignHour) []CampaignCount {
	var all []CampaignCount
	for _, h := range hours {
		i, known := slices.BinarySearchFunc(all, h, func(c CampaignCount, h CampaignHour) int {
			return cmp.Or(cmp.Compare(c.Campaign, h.Campaign), cmp.Compare(c.Kind, h.Kind))
		})
		if !known {
			all = slices.Insert(all, i, CampaignCount{h.Campaign, h.Kind, 0})
		}
		all[i].Events += h.Events
	}
	return all
}

// ApplyMax is the maximum of events in one transaction.
const ApplyMax = 1000

// InTransactions calls apply for each transaction that stores events.
func InTransactions(events []Event, apply func(events []Event) error) error {
	for some := range slices.Chunk(events, ApplyMax) {
		if err := apply(some); err != nil {
			return fmt.Errorf("apply %d popup events: %w", len(some), err)
		}
	}
	return nil
}

// Distinct returns the events without duplicates, by ascending id. Databases insert them in
// this order, so that two processes with the same events do not deadlock.
func Distinct(events []Event) []*Event {
	out := pointers(events)
	slices.SortStableFunc(out, func(a, b *Event) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return slices.CompactFunc(out, func(a, b *Event) bool { return a.ID == b.ID })
}

// Newest returns the newest event of each user and placement that changed the state, by
// ascending user and placement. Its state is stored unless the database has a newer one.
func Newest(events []Event) []*Event {
	out := slices.DeleteFunc(pointers(events), func(e *Event) bool { return e.Kind == KindConvert })
	slices.SortFunc(out, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(a.Key.User, b.Key.User), cmp.Compare(a.Key.Placement, b.Key.Placement), CompareAge(a, b))
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
func CompareAge(a, b *Event) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), a.At.Compare(b.At), bytes.Compare(a.ID[:], b.ID[:]))
}
