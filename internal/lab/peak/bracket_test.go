package peak

import (
	"math"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// never is a server whose latency without load already misses the SLO.
func never() *simulated {
	s := singleQueue(1000, 0.9)
	s.latency = func(rate, capacity float64) float64 { return 3*s.limit + queue(rate, capacity) }
	return s
}

// always is a server that is faster than the generator.
func always(generator float64) *simulated {
	s := singleQueue(1e7, 0.9)
	s.generator = generator
	return s
}

func TestNothingMeetsTheSLO(t *testing.T) {
	for _, noise := range allNoise {
		for seed := range uint64(100) {
			server := never()
			server.noise = noise
			a, at := run(server, Settings{}, seed, nil)
			if a.Feasible != 0 || a.Low != 0 || a.Infeasible == 0 || a.Stopped != StoppedNothingMet || a.Confirmed {
				t.Errorf("seed %d: %g to %g/s, stopped %q", seed, a.Feasible, a.Infeasible, a.Stopped)
			}
			if a.Binding != "p99<limit" {
				t.Errorf("seed %d: %q binds", seed, a.Binding)
			}
			if a.Probes > 25 || at > 6*time.Minute {
				t.Errorf("seed %d: %d probes in %s", seed, a.Probes, at)
			}
		}
	}
}

func TestGeneratorIsTheLimit(t *testing.T) {
	for _, noise := range allNoise {
		for seed := range uint64(100) {
			server := always(20000)
			server.noise = noise
			a, at := run(server, Settings{}, seed, nil)
			if a.Stopped != StoppedGenerator || a.Infeasible != 0 || a.High != 0 || a.Confirmed || a.Boundary != "" {
				t.Errorf("seed %d: infeasible %g/s, high %g/s, stopped %q, boundary %q", seed, a.Infeasible, a.High, a.Stopped, a.Boundary)
			}
			if a.Feasible > 20000 || a.Feasible < 19000 {
				t.Errorf("seed %d: %g/s is feasible, the generator reaches 20,000/s", seed, a.Feasible)
			}
			if at > 4*time.Minute {
				t.Errorf("seed %d took %s", seed, at)
			}
		}
	}
}

func TestMaximumIsMet(t *testing.T) {
	server := singleQueue(1000, 0.9)
	a, _ := run(server, Settings{Max: 500}, 1, nil)
	if a.Feasible != 500 || a.Infeasible != 0 || a.Stopped != StoppedMaximum {
		t.Errorf("%g to %g/s, stopped %q", a.Feasible, a.Infeasible, a.Stopped)
	}
	for _, v := range a.Path {
		if v.Rate > 500 {
			t.Errorf("%g/s was tried", v.Rate)
		}
	}
}

// TestMaximumNearThePeak checks that no probe exceeds the maximum, not even to confirm.
func TestMaximumNearThePeak(t *testing.T) {
	for _, most := range []float64{880, 900, 905, 920, 940, 1000} {
		server := singleQueue(1000, 0.9)
		server.noise = 0.02
		a, _ := run(server, Settings{Max: most}, 7, nil)
		if math.Abs(a.Feasible/min(most, 900)-1) > 0.05 {
			t.Errorf("maximum %g: %g/s is feasible, stopped %q", most, a.Feasible, a.Stopped)
		}
		for _, v := range a.Path {
			if v.Rate > most {
				t.Errorf("maximum %g: %g/s was tried", most, v.Rate)
			}
		}
	}
}

// TestStartIsGiven checks that a search finds the peak from anywhere, without closed-loop probes.
func TestStartIsGiven(t *testing.T) {
	for _, start := range []float64{10, 200, 850, 899, 901, 950, 2000, 20000} {
		server := singleQueue(1000, 0.9)
		server.noise = 0.05
		a, _ := run(server, Settings{Start: start}, 3, nil)
		if math.Abs(a.Feasible/900-1) > 0.05 || !a.Confirmed {
			t.Errorf("start %g: %g/s is feasible, confirmed %t, stopped %q", start, a.Feasible, a.Confirmed, a.Stopped)
		}
		if a.Path[0].Rate != start || a.Path[0].Purpose != Bracket {
			t.Errorf("start %g: the first probe is %+v", start, a.Path[0].Probe)
		}
	}
}

func TestNothingIsValid(t *testing.T) {
	for _, kind := range []result.Validity{result.GeneratorLimited, result.HostContended, result.NotStationary, result.TooFewSamples, result.Unjudged} {
		search, at := NewSearch(Settings{Quantile: 0.99}), time.Duration(0)
		for {
			p, ok := search.Next(at)
			if !ok {
				break
			}
			at += p.cost()
			search.Observe(p, Observation{Validity: kind, Rate: 100, Took: p.cost(), Margins: []Margin{{Criterion: "p99<limit", Log: -1, Sigma: 0.1, Met: true}}})
		}
		a := search.Answer()
		if a.Feasible != 0 || a.Infeasible != 0 || a.Low != 0 || a.High != 0 || a.Stopped != StoppedInvalid {
			t.Errorf("%s: %g to %g/s, stopped %q", kind, a.Feasible, a.Infeasible, a.Stopped)
		}
		if a.Probes > 20 {
			t.Errorf("%s: %d probes", kind, a.Probes)
		}
	}
}

// TestSomeRatesAreNeverValid checks that a search gets past a rate at which no probe is VALID.
func TestSomeRatesAreNeverValid(t *testing.T) {
	for seed := range uint64(50) {
		server := singleQueue(1000, 0.9)
		server.noise, server.disturbed = 0.03, [2]float64{860, 890}
		a, _ := run(server, Settings{}, seed, nil)
		if a.Feasible > 945 || a.Feasible < 800 || a.Infeasible < 890 || a.Infeasible > 1000 {
			t.Errorf("seed %d: %g to %g/s, stopped %q", seed, a.Feasible, a.Infeasible, a.Stopped)
		}
	}
}

// TestBacklogGrows checks a generous limit, with which a short probe above the capacity is not VALID because its backlog grows.
func TestBacklogGrows(t *testing.T) {
	for seed := range uint64(100) {
		server := singleQueue(1000, 0.9)
		server.limit, server.noise = 0.5, 0.05 // the latency that is reached at 0.99 of the capacity
		a, at := run(server, Settings{}, seed, nil)
		if peak := server.peak(at); a.Feasible > 1.05*peak || a.Feasible < 0.9*peak {
			t.Errorf("seed %d: %g to %g/s, stopped %q; the peak is %g/s", seed, a.Feasible, a.Infeasible, a.Stopped, peak)
		}
	}
}

// TestDipIsToldApart checks the warning about rates that miss the SLO below others that meet it.
func TestDipIsToldApart(t *testing.T) {
	server := dipping(1000, 0.9)
	server.noise = 0.02
	a, at := run(server, Settings{Start: 50}, 1, nil)
	if peak := server.peak(at); math.Abs(a.Feasible/peak-1) > 0.05 {
		t.Errorf("%g/s is feasible, the peak is %g/s", a.Feasible, peak)
	}
	if !warned(&a, "not monotonic") {
		t.Errorf("warnings: %q", a.Warnings)
	}
}

func warned(a *Answer, part string) bool {
	return strings.Contains(strings.Join(a.Warnings, "\n"), part)
}

// TestClosedLoopStopsGrowing checks that the closed loop ends with the rate that no longer grows.
func TestClosedLoopStopsGrowing(t *testing.T) {
	server := sleepers(8, 0.02)
	var connections []int
	a, _ := run(server, Settings{}, 1, nil)
	for _, v := range a.Path {
		if v.Purpose == Closed {
			connections = append(connections, v.Connections)
		}
	}
	want := []int{1, 2, 4, 8, 16}
	if len(connections) != len(want) || connections[4] != 16 {
		t.Errorf("closed loops with %v connections, want %v", connections, want)
	}
}
