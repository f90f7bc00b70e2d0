package diagnose

import (
	"math"

	"spillway/internal/lab/result"
)

// Intervals of a watch without load.
const (
	intervalMin = 5.0 // seconds, so that each has several readings of every sampler
	intervals   = 20  // at most
)

// An Interval is a part of a watch, in seconds since its start.
type Interval struct {
	From float64 `json:"from_seconds"`
	To   float64 `json:"to_seconds"`
}

// Watched returns what the service is closest to being stopped by, in a run without load steps: it compares the interval in which
// the watched processes used the most CPU with the one in which they used the least. Without processes, the busiest is the one with
// the least idle host. ok is false if the run is too short for two intervals.
func Watched(run *result.Run) (verdicts []Verdict, quietest, busiest Interval, ok bool) {
	series := run.Series()
	end := run.End.Elapsed
	for _, s := range series {
		if n := len(s.At); n > 0 {
			end = max(end, s.At[n-1])
		}
	}
	length := max(intervalMin, end/intervals)
	var steps []*step
	var spans []Interval
	for from := 0.0; from+length <= end+0.5; from += length {
		spans = append(spans, Interval{from, min(from+length, end)})
		steps = append(steps, newInterval(run, series, from, min(from+length, end), 0))
	}
	least, most := -1, -1
	for i, s := range steps {
		a := s.activity()
		if math.IsNaN(a) {
			continue
		}
		if least < 0 || a < steps[least].activity() {
			least = i
		}
		if most < 0 || a > steps[most].activity() {
			most = i
		}
	}
	if least < 0 || least == most {
		return nil, Interval{}, Interval{}, false
	}
	c := comparison{passing: steps[least], failing: steps[most], connect: math.NaN()}
	return c.verdicts(), spans[least], spans[most], true
}

// activity orders intervals: the cores that the watched processes used, or else that the host did.
func (s *step) activity() float64 {
	sum := math.NaN()
	for i := range s.processes {
		if cores := s.processes[i].cores; cores >= 0 {
			sum = highest(sum, 0) + cores
		}
	}
	if math.IsNaN(sum) {
		u := s.hostUsage("")
		return value(u.Cores) * (1 - value(u.Idle))
	}
	return sum
}
