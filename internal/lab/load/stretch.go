package load

import (
	"math"
	"sync/atomic"
	"time"
)

// stretch is the time and the number of requests of one step, shared by its
// threads.
type stretch struct {
	begin int64 // the first request, on the run's clock
	from  int64 // end of the warm-up: counting begins
	until int64 // no request begins later
	drain int64 // nanoseconds that requests in flight are waited for at the end

	budget  atomic.Int64 // requests that may still begin
	stopped atomic.Bool  // the user wants no more
	ended   atomic.Int64 // length of the step once it is known; 0 before
}

// impatience is how long requests in flight are waited for when the user stops
// a run.
const impatience = time.Second

func newStretch(now int64, step *Step, warmup, timeout time.Duration) *stretch {
	s := &stretch{begin: now, from: now + int64(warmup), until: math.MaxInt64, drain: int64(timeout)}
	if step.Duration > 0 {
		s.until = s.from + int64(step.Duration)
	}
	s.budget.Store(math.MaxInt64)
	if step.Requests > 0 {
		s.budget.Store(step.Requests)
	}
	return s
}

// lastSecond is the number of the step's last second; those of a step that ends
// by requests go on.
func (s *stretch) lastSecond() int {
	if s.until == math.MaxInt64 {
		return math.MaxInt32 - 1
	}
	return int((s.until - s.from - 1) / second)
}

// take asks for one more request that is due at intended. Requests of the
// warm-up are free.
func (s *stretch) take(intended int64) bool {
	if intended >= s.until {
		return false
	}
	return intended < s.from || s.budget.Add(-1) >= 0
}

// spent says whether no request is left to begin.
func (s *stretch) spent() bool { return s.budget.Load() <= 0 }

// over says whether no request may begin at now, whatever is left.
func (s *stretch) over(now int64) bool { return now >= s.until || s.stopped.Load() }

// elapsed notes and returns the length of the step: its duration when it ran that long,
// else the time until sending stopped, or until the last answer when it ended by
// requests.
func (s *stretch) elapsed(sendingEnded, now int64) int64 {
	length := max(sendingEnded-s.from, 0)
	switch {
	case sendingEnded >= s.until:
		length = s.until - s.from
	case s.spent():
		length = now - s.from
	}
	for known := s.ended.Load(); known < length && !s.ended.CompareAndSwap(known, length); known = s.ended.Load() {
	}
	return length
}
