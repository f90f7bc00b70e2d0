package standby

import (
	"maps"
	"math"
	"slices"
	"time"
)

// samplesMax bounds the samples of a history. When there are more, samples are joined: the
// times become coarser, but rows are never taken for younger than they are.
const samplesMax = 64

// history says how far a replica is behind its primary, from positions of both. All times
// are of this process. The zero value is ready to use.
//
// A replica that has changes which the primary lacks follows another history, for example
// that of a primary before a failover. Its positions then say nothing.
type history struct {
	// samples are of the primary, oldest first. Only the first can be replayed.
	samples  []sample
	replayed bool // the first is replayed
	// confirmed means that the primary had every change of an earlier position of the replica.
	confirmed bool
	replica   *Position // the replica's latest position; nil: not known
	foreign   *Position // one of another history; nil: none
}

// sample is a position of the primary, and when the primary was first and last asked and
// had it.
type sample struct {
	position    Position
	first, last time.Time
}

// written records the primary's position, which it was asked for at that time.
func (h *history) written(at time.Time, p Position) {
	n := len(h.samples)
	if n > 0 && !p.Covers(h.samples[n-1].position) {
		h.reset() // another primary, or one that was restored
		n = 0
	}
	switch {
	case h.replica == nil:
	case h.replica.Beyond(p):
		h.foreign = h.replica
		h.reset()
		n = 0
	default:
		h.confirmed = true
	}
	if n > 0 && h.samples[n-1].position.equal(p) {
		h.samples[n-1].last = at
		return
	}
	if n >= samplesMax {
		h.join()
	}
	h.samples = append(h.samples, sample{p, at, at})
	h.advance()
}

// reset forgets what the two had in common.
func (h *history) reset() {
	h.samples, h.replayed, h.confirmed, h.replica = nil, false, false, nil
}

// join joins the two neighbours after the first sample that are closest in time.
func (h *history) join() {
	best, least := 1, time.Duration(math.MaxInt64)
	for i := 1; i+1 < len(h.samples); i++ {
		if width := h.samples[i+1].last.Sub(h.samples[i].first); width < least {
			best, least = i, width
		}
	}
	h.samples[best+1].first = h.samples[best].first
	h.samples = slices.Delete(h.samples, best, best+1)
}

// replayedTo records the replica's position.
func (h *history) replayedTo(p Position) {
	if h.foreign != nil && h.foreign.equal(p) {
		return
	}
	h.foreign, h.replica = nil, &p
	h.advance()
}

// forget forgets the replica's position: after a restart it can be an older one.
func (h *history) forget() { h.replica, h.replayed, h.confirmed = nil, false, false }

// advance removes the samples before the newest one that is replayed.
func (h *history) advance() {
	h.replayed = false
	if h.replica == nil {
		return
	}
	for i, s := range slices.Backward(h.samples) {
		if h.replica.Covers(s.position) {
			h.samples, h.replayed = slices.Delete(h.samples, 0, i), true
			return
		}
	}
}

// readAt returns a time at which the primary had nothing that the replica lacks: the
// replica's rows are no older. It is zero if none is known.
func (h *history) readAt() time.Time {
	if !h.confirmed || !h.replayed {
		return time.Time{}
	}
	return h.samples[0].last
}

// lag returns the age of the oldest position of the primary that is not replayed, 0 if there
// is none. It reports false if that is not known. Both must have been asked just before.
func (h *history) lag(now time.Time) (time.Duration, bool) {
	switch {
	case !h.confirmed || !h.replayed:
		return 0, false
	case len(h.samples) == 1:
		return 0, true
	}
	return now.Sub(h.samples[1].first), true
}

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
