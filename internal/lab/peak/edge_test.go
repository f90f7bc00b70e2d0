package peak

import (
	"math"
	"testing"
	"time"
)

// TestContradictionsWarn checks that a target whose capacity changes is found out, and that nothing from before is claimed.
func TestContradictionsWarn(t *testing.T) {
	slower, faster := 0, 0
	for seed := range uint64(100) {
		halved := changing(1000, 0.9, 0.5, 55*time.Second)
		halved.noise = 0.02
		a, at := run(halved, Settings{}, seed, nil)
		if warned(&a, "became slower") {
			slower++
		}
		if peak := halved.peak(at); a.Feasible > 1.05*peak || !a.Confirmed {
			t.Errorf("seed %d: %g/s is feasible, confirmed %t, the peak is %g/s", seed, a.Feasible, a.Confirmed, peak)
		}
		doubled := changing(1000, 0.9, 2, 42*time.Second)
		doubled.noise = 0.02
		a, at = run(doubled, Settings{}, seed, nil)
		if warned(&a, "became faster") {
			faster++
		}
		if peak := doubled.peak(at); math.Abs(a.Feasible/peak-1) > 0.05 || !a.Confirmed {
			t.Errorf("seed %d: %g/s is feasible, confirmed %t, the peak is %g/s", seed, a.Feasible, a.Confirmed, peak)
		}
	}
	if slower < 80 {
		t.Errorf("%d of 100 runs warned that the target became slower", slower)
	}
	if faster < 80 {
		t.Errorf("%d of 100 runs warned that the target became faster", faster)
	}
}

// TestContradictedRateIsNotClaimed stops right after the confirmation contradicts the bounds.
func TestContradictedRateIsNotClaimed(t *testing.T) {
	contradicted := 0
	for seed := range uint64(100) {
		server := changing(1000, 0.9, 0.5, 55*time.Second)
		server.noise = 0.02
		run(server, Settings{}, seed, func(s *Search) {
			a := s.Answer()
			if s.falls == 0 {
				return
			}
			contradicted++
			if a.Feasible > 1.05*450 {
				t.Errorf("seed %d: %g/s is feasible after the capacity was found to be 500/s", seed, a.Feasible)
			}
		})
	}
	if contradicted == 0 {
		t.Error("no run was contradicted")
	}
}

// TestUnstableTargetEnds checks a target that changes all the time.
func TestUnstableTargetEnds(t *testing.T) {
	for seed := range uint64(50) {
		server := singleQueue(1000, 0.9)
		server.capacity = func(at time.Duration) float64 { return 1000 * (1 + 0.6*math.Sin(at.Seconds()/23)) }
		a, _ := run(server, Settings{}, seed, nil)
		if a.Stopped == StoppedInterrupted {
			t.Errorf("seed %d: stopped %q", seed, a.Stopped)
		}
		if a.Feasible > 1.05*1600 {
			t.Errorf("seed %d: %g/s is feasible, the capacity is at most 1,600/s", seed, a.Feasible)
		}
	}
}

// TestConfirmedBounds checks what an answer with the wanted precision rests on.
func TestConfirmedBounds(t *testing.T) {
	for seed := range uint64(100) {
		server := singleQueue(1000, 0.9)
		server.noise = 0.05
		a, _ := run(server, Settings{}, seed, nil)
		if a.Stopped != StoppedPrecision || !a.Confirmed || a.Infeasible > 1.0501*a.Feasible {
			t.Errorf("seed %d: %g to %g/s, stopped %q, confirmed %t", seed, a.Feasible, a.Infeasible, a.Stopped, a.Confirmed)
		}
		visits := map[float64]int{}
		purposes := map[Purpose]time.Duration{}
		for _, v := range a.Path {
			visits[v.Rate]++
			purposes[v.Purpose] = max(purposes[v.Purpose], v.Duration)
		}
		if visits[a.Feasible] < 2 || visits[a.Infeasible] < 2 {
			t.Errorf("seed %d: %d and %d visits to the bounds", seed, visits[a.Feasible], visits[a.Infeasible])
		}
		for rate, n := range visits {
			if rate > 0 && n > visitsMax {
				t.Errorf("seed %d: %d visits to %g/s", seed, n, rate)
			}
		}
		if purposes[ConfirmBelow] <= purposes[Refine] || purposes[ConfirmAbove] <= purposes[Refine] {
			t.Errorf("seed %d: confirmations are not longer: %v", seed, purposes)
		}
		if a.Binding != "p99<limit" {
			t.Errorf("seed %d: %q binds", seed, a.Binding)
		}
	}
}

// TestFarRatesAreNotRepeated checks that repetitions are spent near the edge only.
func TestFarRatesAreNotRepeated(t *testing.T) {
	for seed := range uint64(100) {
		server := singleQueue(1000, 0.9)
		server.noise = 0.05
		a, _ := run(server, Settings{}, seed, nil)
		for _, v := range a.Path {
			if v.Purpose == Repeat && math.Abs(math.Log(v.Rate/900)) > 0.15 {
				t.Errorf("seed %d: %g/s was repeated", seed, v.Rate)
			}
		}
	}
}

// TestPrecision checks that a smaller precision costs more and gives more.
func TestPrecision(t *testing.T) {
	probes := 0
	for _, precision := range []float64{0.20, 0.05, 0.02} {
		total := 0
		for seed := range uint64(50) {
			server := singleQueue(1000, 0.9)
			server.noise = 0.01
			a, _ := run(server, Settings{Precision: precision}, seed, nil)
			if a.Infeasible > (1+precision)*a.Feasible*1.001 {
				t.Errorf("precision %g, seed %d: %g to %g/s", precision, seed, a.Feasible, a.Infeasible)
			}
			total += a.Probes
		}
		if total < probes {
			t.Errorf("precision %g: %d probes, fewer than for the one before", precision, total)
		}
		probes = total
	}
}

// TestRoot: two bounds tell the edge of a single queue, also if one of them is above its capacity. The first criterion that is missed
// decides, and one without a latency tells nothing.
func TestRoot(t *testing.T) {
	for _, share := range []float64{0.3, 0.5, 0.8, 0.9, 0.97} {
		limit := queue(1000*share, 1000)
		margin := func(rate float64) float64 { return math.Log(queue(rate, 1000) / limit) }
		m := &proof{feasible: levelOf(100, margin(100)), infeasible: levelOf(990, margin(990))}
		if rate, ok := m.root(); !ok || math.Abs(rate-1000*share) > 1 {
			t.Errorf("root at %g/s, %t; the edge is %g/s", rate, ok, 1000*share)
		}
		m.infeasible = levelOf(1200, 3)
		m.infeasible.visits[0].Observation.Rate, m.infeasible.visits[0].Observation.Overloaded = 1000, true
		if rate, ok := m.root(); !ok || math.Abs(rate-1000*share) > 1 {
			t.Errorf("root at %g/s below a backlog, %t; the edge is %g/s", rate, ok, 1000*share)
		}
	}
	m := &proof{feasible: levelOf(100, -1), infeasible: levelOf(200, 1)}
	first, _ := m.root()
	for _, l := range []*level{m.feasible, m.infeasible} {
		o := &l.visits[0].Observation
		o.Margins = append(o.Margins, Margin{Criterion: "errors<1%", Log: o.Margins[0].Log - 0.5, Sigma: 0.05, Met: o.Margins[0].Log < 0.5}, Margin{Criterion: "errors<9%", Log: -9, Sigma: 0.05, Met: true})
	}
	if rate, ok := m.root(); !ok || rate != first || first <= 100 || first >= 200 {
		t.Errorf("root at %g/s with a later criterion, at %g/s without", rate, first)
	}
	if _, ok := (&proof{feasible: levelOf(100, -9), infeasible: levelOf(200, 1)}).root(); ok {
		t.Error("root without a latency at the lower bound")
	}
}
