package standby

import (
	"maps"
	"slices"
)

// Position says which changes a database has. It must not be changed.
type Position struct {
	// Logs has the end of each log, by its name. After a failover, another history can use
	// the same numbers.
	Logs map[string]uint64
	// Sets has the numbers of transactions, by a name that no other history uses.
	Sets map[string][]Span
}

// Span is a run of numbers. Spans of one set ascend and do not touch.
type Span struct{ First, Last uint64 }

// Covers reports whether p has every change of q.
func (p Position) Covers(q Position) bool {
	for name, end := range q.Logs {
		if has, ok := p.Logs[name]; !ok || has < end {
			return false
		}
	}
	for name, spans := range q.Sets {
		has := p.Sets[name]
		for _, want := range spans {
			for len(has) > 0 && has[0].Last < want.Last {
				has = has[1:]
			}
			if len(has) == 0 || has[0].First > want.First {
				return false
			}
		}
	}
	return true
}

// Beyond reports whether p continues a log of q after its end.
func (p Position) Beyond(q Position) bool {
	for name, end := range p.Logs {
		if other, ok := q.Logs[name]; ok && end > other {
			return true
		}
	}
	return false
}

func (p Position) equal(q Position) bool {
	return maps.Equal(p.Logs, q.Logs) && maps.EqualFunc(p.Sets, q.Sets, slices.Equal[[]Span])
}
