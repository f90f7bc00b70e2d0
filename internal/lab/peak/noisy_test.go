package peak

import (
	"math"
	"testing"
	"time"
)

// TestNoisyHost searches on hosts where something holds up the generator most of the time.
func TestNoisyHost(t *testing.T) {
	for _, test := range []struct {
		name     string
		noisy    func(time.Duration) float64
		deadline time.Duration
		both     int // least number of searches that find both bounds
		close    int // and of those that end within 10 % of the peak
	}{
		{"half", func(time.Duration) float64 { return 0.5 }, time.Minute, 280, 155},
		{"most", func(time.Duration) float64 { return 0.7 }, 2 * time.Minute, 270, 190},
		{"bursts", func(at time.Duration) float64 {
			if int(at/(25*time.Second))%2 == 0 {
				return 0.9
			}
			return 0.2
		}, 2 * time.Minute, 295, 280},
	} {
		both, close, above := 0, 0, 0
		const seeds = 300
		for seed := range uint64(seeds) {
			server := singleQueue(1000, 0.9)
			server.noise, server.noisy = 0.03, test.noisy
			a, at := run(server, Settings{Deadline: test.deadline}, seed, nil)
			peak := server.peak(at)
			if a.Feasible > 0 && a.Infeasible > 0 {
				both++
			}
			if math.Abs(a.Feasible/peak-1) <= 0.1 {
				close++
			}
			if a.Feasible > 1.05*peak {
				above++
			}
		}
		if both < test.both || close < test.close || above > 0 {
			t.Errorf("%s: both bounds in %d of %d, within 10 %% in %d, above in %d", test.name, both, seeds, close, above)
		}
	}
}

// TestSearchPassesUnsettledRates has probes that are not VALID at the rate of the closed loop, where a backlog grows slowly: the search
// goes on with other rates, and has both ends of the interval within a minute.
func TestSearchPassesUnsettledRates(t *testing.T) {
	found := 0
	for seed := range uint64(100) {
		server := singleQueue(1000, 0.9)
		server.noise, server.unsettled = 0.05, [2]float64{960, 1040}
		a, at := run(server, Settings{Deadline: time.Minute}, seed, nil)
		if peak := server.peak(at); a.Feasible > 0.75*peak && a.Infeasible > 0 && a.Infeasible < 1.4*peak {
			found++
		}
		if a.Feasible > 1.05*server.peak(at) {
			t.Errorf("seed %d: %g/s", seed, a.Feasible)
		}
	}
	if found < 90 {
		t.Errorf("%d of 100 searches found both ends", found)
	}
	for seed := range uint64(100) { // several steps of the bracket end there
		server := singleQueue(1000, 0.9)
		server.noise, server.unsettled = 0.05, [2]float64{960, 1900}
		if a, _ := run(server, Settings{Deadline: 90 * time.Second}, seed, nil); a.Feasible == 0 || a.Infeasible == 0 {
			t.Errorf("seed %d: %g/s met, %g/s missed, stopped for %s", seed, a.Feasible, a.Infeasible, a.Stopped)
		}
	}
}
