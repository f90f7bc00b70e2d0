package load

import (
	"math"
	"sync/atomic"
	"time"
)

// phase holds the time limits and the request budget of one step. Its threads
// share it.
type phase struct {
	begin int64 // the first request, on the run's clock
	from  int64 // end of the warm-up: counting begins
	until int64 // no request begins later
	drain int64 // nanoseconds to wait for requests in flight at the end

	budget  atomic.Int64 // requests that may still begin; with a flow, iterations
	reserve func() bool  // reserves data for an iteration; nil: none is needed
	stopped atomic.Bool  // the user has interrupted the run
	ended   atomic.Int64 // length of the step; 0: not yet known
}

// interruptGrace is how long requests in flight are awaited after an interrupt.
const interruptGrace = time.Second

func newPhase(now int64, step *Step, warmup, timeout time.Duration) *phase {
	p := &phase{begin: now, from: now + int64(warmup), until: math.MaxInt64, drain: int64(timeout)}
	if step.Duration > 0 {
		p.until = p.from + int64(step.Duration)
	}
	p.budget.Store(math.MaxInt64)
	if step.Requests > 0 {
		p.budget.Store(step.Requests)
	}
	return p
}

// lastSecond is the number of the step's last second. It is unlimited if the
// step ends by requests.
func (p *phase) lastSecond() int {
	if p.until == math.MaxInt64 {
		return math.MaxInt32 - 1
	}
	return int((p.until - p.from - 1) / second)
}

// take reserves one request due at intended and reports whether it may begin.
// Requests of the warm-up do not use the budget.
func (p *phase) take(intended int64) bool {
	if intended >= p.until {
		return false
	}
	if intended >= p.from && p.budget.Add(-1) < 0 {
		return false
	}
	if p.reserve != nil && !p.reserve() {
		p.budget.Store(0) // the run ends as if all were sent
		return false
	}
	return true
}

// exhausted reports whether the budget of requests is used up.
func (p *phase) exhausted() bool { return p.budget.Load() <= 0 }

// over reports whether the time is over or the run interrupted.
func (p *phase) over(now int64) bool { return now >= p.until || p.stopped.Load() }

// elapsed stores and returns the length of the step: its duration if it ran that
// long, the time until the last answer if it ended by requests, otherwise the
// time until sending stopped.
func (p *phase) elapsed(sendingEnded, now int64) int64 {
	length := max(sendingEnded-p.from, 0)
	switch {
	case sendingEnded >= p.until:
		length = p.until - p.from
	case p.exhausted():
		length = max(now-p.from, 0)
	}
	for known := p.ended.Load(); known < length && !p.ended.CompareAndSwap(known, length); known = p.ended.Load() {
	}
	return length
}
