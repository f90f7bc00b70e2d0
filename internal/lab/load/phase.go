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
	until int64 // planned end; math.MaxInt64: the step ends by requests

	end     atomic.Int64 // no request begins later: until, or the time of an interrupt
	stopped atomic.Bool  // the run was interrupted
	budget  atomic.Int64 // requests that may still begin; with a flow, iterations
	reserve func() int64 // reserves data for an iteration and returns for how many more there is data; nil: none is needed
	spent   atomic.Int64 // when a request was refused because the budget was used up; 0: never
	running atomic.Int64 // threads whose last request has not ended
	last    atomic.Int64 // when the last request ended
}

// interruptGrace is how long requests in flight are awaited after an interrupt.
const interruptGrace = time.Second

// newPhase returns the phase of a step that begins now, with that many threads.
func newPhase(now int64, step *Step, warmup time.Duration, threads int) *phase {
	p := &phase{begin: now, from: now + int64(warmup), until: math.MaxInt64}
	if step.Duration > 0 {
		p.until = p.from + int64(step.Duration)
	}
	p.end.Store(p.until)
	p.budget.Store(math.MaxInt64)
	if step.Requests > 0 {
		p.budget.Store(step.Requests)
	}
	p.running.Store(int64(threads))
	p.last.Store(p.from)
	return p
}

// stop ends the step early.
func (p *phase) stop(now int64) {
	p.end.Store(max(min(p.end.Load(), now), p.begin))
	p.stopped.Store(true)
}

// at is the time on the run's clock at which an arrival of the step is due. An arrival
// that never comes is due after every end.
func (p *phase) at(arrival time.Duration) int64 {
	return p.begin + min(int64(arrival), math.MaxInt64-p.begin)
}

// take reserves one request due at intended and reports whether it may begin.
// Requests of the warm-up do not use the budget.
func (p *phase) take(intended int64) bool {
	if intended >= p.end.Load() {
		return false
	}
	if intended >= p.from && p.budget.Add(-1) < 0 {
		p.spent.CompareAndSwap(0, intended)
		return false
	}
	if p.reserve == nil {
		return true
	}
	left := p.reserve()
	if left <= 0 {
		p.budget.Store(0) // the step ends as one that is limited by requests
	}
	return left >= 0
}

// exhausted reports whether the budget of requests is used up.
func (p *phase) exhausted() bool { return p.budget.Load() <= 0 }

// over reports whether the time is over or the run interrupted.
func (p *phase) over(now int64) bool { return now >= p.end.Load() }

// finish tells when the last request of a thread ended.
func (p *phase) finish(last int64) {
	for known := p.last.Load(); known < last && !p.last.CompareAndSwap(known, last); known = p.last.Load() {
	}
	p.running.Add(-1)
}

// elapsed is the length of the step: its duration, the time until the interrupt, or
// the time until the last answer if it ended by requests. It is math.MaxInt64 as long
// as that is unknown.
func (p *phase) elapsed() int64 {
	end := p.end.Load()
	if p.exhausted() && p.running.Load() == 0 {
		end = min(end, p.last.Load())
	}
	if end == math.MaxInt64 {
		return end
	}
	return max(end-p.from, 0)
}

// lastSecond is the number of the step's last second, as far as it is known.
func (p *phase) lastSecond() int {
	end := p.end.Load()
	if end == math.MaxInt64 {
		return math.MaxInt32 - 1
	}
	return int(max(end-p.from-1, 0) / second)
}
