package watch

import (
	"slices"
	"time"
)

// markQuiet is the time before a mark in which a sampler is not read, so that it is free when the mark comes.
const markQuiet = 100 * time.Millisecond

// farOff is how long to wait without a mark.
const farOff = time.Hour

// A schedule holds the marks of one sampler that are still to come, in order of time.
type schedule struct{ times []time.Time }

// add adds a mark. Over marksMax of them, the last one is dropped.
func (s *schedule) add(at time.Time) {
	i, _ := slices.BinarySearchFunc(s.times, at, time.Time.Compare)
	s.times = slices.Insert(s.times, i, at)
	s.times = s.times[:min(len(s.times), marksMax)]
}

// receive adds the marks that were announced and not yet added.
func (s *schedule) receive(marks <-chan time.Time) *schedule {
	for {
		select {
		case at := <-marks:
			s.add(at)
		default:
			return s
		}
	}
}

// wait is how long it is until the next mark, at least 0.
func (s *schedule) wait(now time.Time) time.Duration {
	if len(s.times) == 0 {
		return farOff
	}
	return max(0, s.times[0].Sub(now))
}

// take removes the marks that are due and reports whether there were any. One reading serves all of them.
func (s *schedule) take(now time.Time) bool {
	due := 0
	for due < len(s.times) && !s.times[due].After(now) {
		due++
	}
	s.times = slices.Delete(s.times, 0, due)
	return due > 0
}
