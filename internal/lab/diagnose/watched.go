package diagnose

import (
	"cmp"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Intervals of a watch without load.
const (
	intervalMin = 5.0 // seconds, so that each has several readings of every sampler
	intervals   = 20  // at most
)

// watched returns what the service is closest to being stopped by, in a run without load steps: it compares the interval in which
// the watched processes used the most CPU with the one in which they used the least. Without processes, the busiest is the one with
// the least idle host. ok is false if the run is too short for two intervals.
func watched(run *result.Run) (verdicts []Verdict, quietest, busiest *step, ok bool) {
	series := run.Series()
	end := run.End.Elapsed
	for _, s := range series {
		if n := len(s.At); n > 0 {
			end = max(end, s.At[n-1])
		}
	}
	length := max(intervalMin, end/intervals)
	var steps []*step
	for from := 0.0; from+length <= end+0.5; from += length {
		if s := newInterval(run, series, from, min(from+length, end), 0); !math.IsNaN(s.activity()) {
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 {
		return nil, nil, nil, false
	}
	byActivity := func(a, b *step) int { return cmp.Compare(a.activity(), b.activity()) }
	quietest, busiest = slices.MinFunc(steps, byActivity), slices.MaxFunc(steps, byActivity)
	c := comparison{passing: quietest, failing: busiest, connect: math.NaN()}
	return c.verdicts(), quietest, busiest, quietest != busiest
}

// span is the time of an interval in seconds.
func (s *step) span() string { return sheet.At(s.usage.From) + " to " + sheet.At(s.usage.To) }

// activity orders intervals: the cores that the watched processes used, or else that the host did.
func (s *step) activity() float64 {
	sum := math.NaN()
	for _, p := range s.processes {
		if p.cores >= 0 {
			sum = highest(sum, 0) + p.cores
		}
	}
	if math.IsNaN(sum) {
		u := s.host("")
		return u.Value(result.Cores) * (1 - u.Value(result.IdleShare))
	}
	return sum
}
