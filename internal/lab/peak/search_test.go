package peak

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// A scenario is a server whose peak a search has to find, and what the search may cost.
type scenario struct {
	name     string
	server   func() *simulated
	settings Settings
	noises   []float64     // of ln(latency) in each probe, however long it is
	took     time.Duration // longest time on the clock
	probes   int           // largest number of probes
	boundary string        // in most runs; empty: any
}

func (c *scenario) build(noise float64) *simulated {
	s := c.server()
	s.noise = noise
	return s
}

// invalidAtRandom makes a fifth of the probes of the server invalid.
func invalidAtRandom(server func() *simulated) func() *simulated {
	return func() *simulated {
		s := server()
		s.invalid = 0.2
		return s
	}
}

// p90 limits the p90 of a single queue.
func p90(capacity, share float64) *simulated {
	s := singleQueue(capacity, share)
	s.quantile = 0.9
	return s
}

var (
	lightNoise = []float64{0.01, 0.05}
	allNoise   = []float64{0.01, 0.05, 0.15}
)

func scenarios() []scenario {
	minutes := Settings{Deadline: 2 * time.Minute}
	slow := Settings{Deadline: 10 * time.Minute}
	queueOf := func(capacity, share float64) func() *simulated {
		return func() *simulated { return singleQueue(capacity, share) }
	}
	halves := func(seconds int) func() *simulated {
		return func() *simulated { return changing(1000, 0.9, 0.5, time.Duration(seconds)*time.Second) }
	}
	return []scenario{
		{"queue of 110/s", queueOf(110, 0.9), minutes, allNoise, 0, 15, ""},
		{"queue of 1,000/s", queueOf(1000, 0.9), minutes, allNoise, 0, 25, ""},
		{"queue of 1,000/s, far from its capacity", queueOf(1000, 0.8), minutes, allNoise, 0, 25, BoundarySmooth},
		{"queue of 1,000/s, near its capacity", queueOf(1000, 0.97), minutes, allNoise, 0, 25, ""},
		{"queue of 50,000/s", queueOf(50000, 0.9), minutes, allNoise, 0, 25, ""},
		{"queue of 5/s, p90", func() *simulated { return p90(5.5, 0.9) }, slow, allNoise, 0, 35, ""},
		{"queue of 20/s, p90", func() *simulated { return p90(22, 0.9) }, slow, allNoise, 0, 35, ""},
		{"queue of 100/s, p90", func() *simulated { return p90(110, 0.9) }, slow, allNoise, 0, 35, ""},
		{"token bucket of 100/s", func() *simulated { return tokenBucket(100) }, minutes, allNoise, 0, 20, BoundaryCliff},
		{"token bucket of 50,000/s", func() *simulated { return tokenBucket(50000) }, minutes, allNoise, 0, 30, BoundaryCliff},
		{"8 sleepers", func() *simulated { return sleepers(8, 0.02) }, minutes, allNoise, 0, 30, ""},
		{"64 sleepers", func() *simulated { return sleepers(64, 0.02) }, minutes, allNoise, 0, 30, ""},
		{"dip at low rates", func() *simulated { return dipping(1000, 0.9) }, minutes, allNoise, 0, 30, ""},
		{"slow drift", func() *simulated { return drifting(1000, 0.9, 0.01) }, minutes, allNoise, 0, 30, ""},
		{"fast drift", func() *simulated { return drifting(1000, 0.9, 0.03) }, Settings{}, allNoise, 4 * time.Minute, 40, ""},
		{"halves after 20 s", halves(20), Settings{}, allNoise, 9 * time.Minute, 60, ""},
		{"halves after 40 s", halves(40), Settings{}, allNoise, 9 * time.Minute, 60, ""},
		{"halves after 60 s", halves(60), Settings{}, allNoise, 9 * time.Minute, 60, ""},
		{"doubles after 30 s", func() *simulated { return changing(1000, 0.9, 2, 30*time.Second) }, Settings{}, allNoise, 6 * time.Minute, 60, ""},
		{"invalid probes, queue", invalidAtRandom(queueOf(1000, 0.9)), Settings{}, allNoise, 8 * time.Minute, 45, ""},
		{"invalid probes, sleepers", invalidAtRandom(func() *simulated { return sleepers(8, 0.02) }), Settings{}, lightNoise, 20 * time.Minute, 50, ""},
		{"invalid probes, halves after 30 s", invalidAtRandom(halves(30)), Settings{}, allNoise, 12 * time.Minute, 75, ""},
		{"flat curve, invalid probes", invalidAtRandom(queueOf(1000, 0.7)), Settings{}, lightNoise, 16 * time.Minute, 60, ""},
	}
}

// TestSearchFindsThePeak runs each scenario with 200 seeds, with 20 in the short tests. No run may end more than 5 % above the peak, and 19 of 20 must end
// within 5 % of it, 10 % if a latency varies by 15 % from probe to probe.
func TestSearchFindsThePeak(t *testing.T) {
	for _, c := range scenarios() {
		for _, noise := range c.noises {
			t.Run(fmt.Sprintf("%s/noise %g %%", c.name, 100*noise), func(t *testing.T) {
				t.Parallel()
				checkScenario(t, &c, noise)
			})
		}
	}
}

func checkScenario(t *testing.T, c *scenario, noise float64) {
	runs := seedsOf(20, 200)
	within, tolerance := 0, 0.05
	if noise > 0.1 {
		tolerance = 0.10
	}
	boundaries := map[string]int{}
	for seed := range uint64(runs) {
		server := c.build(noise)
		a, at := run(server, c.settings, seed, nil)
		peak := server.peak(at)
		if a.Feasible > 1.05*peak {
			t.Errorf("seed %d: %g/s is feasible, the peak is %g/s; stopped: %s, warnings: %q", seed, a.Feasible, peak, a.Stopped, a.Warnings)
		}
		if math.Abs(a.Feasible/peak-1) <= tolerance {
			within++
		}
		boundaries[a.Boundary]++
		if longest := max(c.took, c.settings.Deadline); at > longest+time.Second {
			t.Errorf("seed %d took %s, more than %s", seed, at, longest)
		}
		if a.Probes > c.probes {
			t.Errorf("seed %d took %d probes, more than %d", seed, a.Probes, c.probes)
		}
	}
	if within*20 < runs*19 {
		t.Errorf("%d of %d runs ended within %g %% of the peak", within, runs, 100*tolerance)
	}
	if c.boundary != "" && boundaries[c.boundary]*2 < runs {
		t.Errorf("boundaries: %v, most of them must be %s", boundaries, c.boundary)
	}
}

// TestIntervalHoldsThePeak checks the promise of the interval, 95 %, on servers that do not change.
func TestIntervalHoldsThePeak(t *testing.T) {
	t.Parallel()
	for _, noise := range allNoise {
		runs, holds := 0, 0
		for _, share := range []float64{0.7, 0.8, 0.9} {
			for seed := range uint64(seedsOf(50, 200)) {
				server := singleQueue(1000, share)
				server.noise = noise
				a, at := run(server, Settings{}, seed, nil)
				runs++
				if peak := server.peak(at); a.Low <= peak*1.001 && peak <= a.High*1.001 {
					holds++
				}
			}
		}
		if float64(holds) < 0.93*float64(runs) { // 0.95 less two standard errors
			t.Errorf("noise %g: %d of %d intervals hold the peak", noise, holds, runs)
		}
	}
}

// TestIntervalOfFlatCurves checks the same on servers whose latency hardly depends on the rate, and that a warning says so.
func TestIntervalOfFlatCurves(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		exponent, noise float64
		least, most     float64 // share of the searches that are warned of
	}{{0.1, 0.01, 0.9, 1}, {0.3, 0.01, 0, 1}, {0.3, 0.03, 0, 1}, {1, 0.03, 0, 0.1}} {
		holds, warned := 0, 0
		runs := seedsOf(100, 300)
		for seed := range uint64(runs) {
			server := flatCurve(c.exponent)
			server.noise = c.noise
			a, _ := run(server, Settings{}, seed, nil)
			if a.Low <= 801 && (a.High >= 799 || a.High == 0) {
				holds++
			}
			if slices.ContainsFunc(a.Warnings, func(w string) bool { return strings.Contains(w, "hardly depends on the rate") }) {
				warned++
			}
		}
		if n := float64(runs); float64(holds) < 0.93*n || float64(warned) < c.least*n || float64(warned) > c.most*n {
			t.Errorf("rate^%g, noise %g: %d of %d intervals hold the peak, %d are warned of", c.exponent, c.noise, holds, runs, warned)
		}
	}
}

// TestDeadline checks that a search ends in time, with the bounds that it had. A target that changes near the deadline can be
// missed, but then the answer is not confirmed.
func TestDeadline(t *testing.T) {
	for _, seconds := range []int{1, 10, 20, 30, 45, 60, 90} {
		for seed := range uint64(50) {
			deadline := time.Duration(seconds) * time.Second
			for _, server := range []*simulated{singleQueue(1000, 0.9), changing(1000, 0.9, 0.5, deadline/2)} {
				server.noise, server.invalid = 0.05, 0.1
				a, at := run(server, Settings{Deadline: deadline}, seed, nil)
				if at > deadline {
					t.Errorf("deadline %s, seed %d: ended after %s", deadline, seed, at)
				}
				if peak := server.peak(at); a.Feasible > 1.05*peak && a.Confirmed {
					t.Errorf("deadline %s, seed %d: %g/s is confirmed, the peak is %g/s", deadline, seed, a.Feasible, peak)
				}
			}
		}
	}
}

// TestUnfit checks that a search without time for another probe says how much it needs, and that this is enough for one.
func TestUnfit(t *testing.T) {
	settings := Settings{Start: 5, Quantile: 0.99, Deadline: time.Minute}
	s := NewSearch(settings)
	p, more := s.Next(0)
	a := s.Answer()
	if more || a.Stopped != StoppedDeadline || a.Unfit <= time.Minute {
		t.Fatalf("more %t: %+v, %+v", more, p, a)
	}
	settings.Deadline = a.Unfit
	s = NewSearch(settings)
	if p, more = s.Next(0); !more || p.cost() != a.Unfit || s.Answer().Unfit != 0 {
		t.Errorf("more %t: %+v takes %s instead of %s", more, p, p.cost(), a.Unfit)
	}
	for seed := range uint64(50) {
		server := singleQueue(1000, 0.9)
		server.noise = 0.05
		if a, _ := run(server, Settings{Deadline: 40 * time.Second}, seed, nil); (a.Stopped == StoppedDeadline) != (a.Unfit > 0) {
			t.Errorf("seed %d: stopped for %s, needs %s", seed, a.Stopped, a.Unfit)
		}
	}
}

// TestDeadlineLeavesTimeToConfirm checks that a search without time for everything confirms rather than refines.
func TestDeadlineLeavesTimeToConfirm(t *testing.T) {
	confirmed := 0
	for seed := range uint64(100) {
		server := singleQueue(1000, 0.9)
		server.noise = 0.05
		a, _ := run(server, Settings{Deadline: 45 * time.Second}, seed, nil)
		if a.Confirmed {
			confirmed++
		}
	}
	if confirmed < 90 {
		t.Errorf("%d of 100 searches within 45 s are confirmed", confirmed)
	}
}

// bisection is the search that experiment had, with a majority of three probes per rate. It returns the highest rate that passed.
func bisection(s *simulated, start float64, each time.Duration) (feasible float64, at time.Duration) {
	passes := func(rate float64) bool {
		votes := 0
		for range 3 {
			p := Probe{Rate: rate, Duration: each, Warmup: time.Second}
			o := s.observe(p, at)
			at += o.Took
			if o.Validity == result.Valid && o.passes() {
				votes++
			}
		}
		return votes > 1
	}
	rate, infeasible := start, 0.0
	for ; passes(rate); rate *= 2 {
		feasible = rate
	}
	infeasible = rate
	for infeasible > 1.05*feasible {
		if middle := (feasible + infeasible) / 2; passes(middle) {
			feasible = middle
		} else {
			infeasible = middle
		}
	}
	return feasible, at
}

// TestSearchBeatsBisection compares the search with bisection by majority, which knows where to begin.
func TestSearchBeatsBisection(t *testing.T) {
	for _, capacity := range []float64{1000, 50000} {
		const runs = 100
		var took, tookNaive time.Duration
		var off, offNaive float64
		for seed := range uint64(runs) {
			server := singleQueue(capacity, 0.9)
			server.noise = 0.05
			a, at := run(server, Settings{}, seed, nil)
			naive, atNaive := bisection(server, capacity/4, edgeDuration)
			peak := server.peak(0)
			took, tookNaive = took+at, tookNaive+atNaive
			off, offNaive = off+math.Abs(a.Feasible/peak-1), offNaive+math.Abs(naive/peak-1)
		}
		if float64(took) > 0.75*float64(tookNaive) {
			t.Errorf("%g/s: the search took %s on average, bisection %s", capacity, took/runs, tookNaive/runs)
		}
		if off > 1.1*offNaive {
			t.Errorf("%g/s: the search was off by %.3f on average, bisection by %.3f", capacity, off/runs, offNaive/runs)
		}
	}
}

// TestSlowAnswers searches on a service whose every answer takes seconds, within a limit that is longer: the requests that begin to wait
// are no backlog.
func TestSlowAnswers(t *testing.T) {
	for _, service := range []float64{3.5, 5.5} {
		server := &simulated{
			latency: func(float64, float64) float64 { return service }, capacity: constant(1000), limit: 10, service: service, parallel: 1000 * service,
			quantile: 0.9, noise: 0.02, fills: true,
		}
		for seed := range uint64(20) {
			a, at := run(server, Settings{Deadline: 15 * time.Minute}, seed, nil)
			if peak := server.peak(at); a.Feasible < 0.9*peak || a.Feasible > 1.05*peak {
				t.Errorf("answers of %g s, seed %d: %g/s to %g/s, stopped for %s, %q", service, seed, a.Feasible, a.Infeasible, a.Stopped, a.Warnings)
			}
		}
	}
}
