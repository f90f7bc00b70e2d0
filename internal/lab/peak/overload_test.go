package peak

import (
	"math"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// TestLenientLimit: 4 workers of 20 ms, 200/s, and a limit of 2 s on p90. In a probe of seconds a backlog that grows does not reach
// the limit, but shows that the rate is too high.
func TestLenientLimit(t *testing.T) {
	const capacity, limit = 200.0, 2.0
	for _, deadline := range []time.Duration{time.Minute, 2 * time.Minute, 10 * time.Minute} {
		for _, start := range []float64{50, 60, 70, 80, 95} {
			a, at := driven(Settings{Quantile: 0.9, Deadline: deadline, Start: start}, func(p Probe, _ time.Duration) Observation {
				seconds := p.Warmup.Seconds() + 0.9*p.Duration.Seconds()
				p90 := 0.02 + max(0, p.Rate-capacity)*seconds/capacity
				o := Observation{Validity: result.Valid, Rate: min(p.Rate, capacity), Requests: int64(p.Rate * p.Duration.Seconds())}
				log := math.Log(p90 / limit)
				o.Margins = []Margin{{Criterion: "p90<2s", Log: log, Sigma: 0.02, Met: log < 0}, errorsOf("errors<=1%", 0.01, 0, 1000)}
				o.Overloaded = p.Rate > 1.02*capacity
				return o
			})
			if a.Feasible > 1.05*capacity || a.Feasible < 0.95*capacity || a.Infeasible == 0 || a.Infeasible > 1.12*capacity {
				t.Errorf("deadline %s, start %g: %g to %g/s, the capacity is %g/s; stopped %s after %s, %q", deadline, start, a.Feasible, a.Infeasible, capacity, a.Stopped, at, a.Warnings)
			}
		}
	}
}

// TestSlowerWithLenientLimit: the target becomes slower, and shows it by a backlog that grows, but a limit of 5 s is not reached
// within a probe. A pass before the change does not stay proved.
func TestSlowerWithLenientLimit(t *testing.T) {
	const limit = 5.0
	for _, change := range []time.Duration{10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second} {
		for _, start := range []float64{60, 80, 95, 150, 190} {
			capacity := 200.0
			a, at := driven(Settings{Quantile: 0.9, Deadline: 10 * time.Minute, Start: start}, func(p Probe, at time.Duration) Observation {
				if at >= change {
					capacity = 120
				}
				seconds := p.Warmup.Seconds() + 0.9*p.Duration.Seconds()
				p90 := 0.02 + max(0, p.Rate-capacity)*seconds/capacity
				o := Observation{Validity: result.Valid, Rate: min(p.Rate, capacity), Requests: int64(p.Rate * p.Duration.Seconds())}
				log := math.Log(p90 / limit)
				o.Margins = []Margin{{Criterion: "p90<5s", Log: log, Sigma: 0.02, Met: log < 0}, errorsOf("errors<=1%", 0.01, 0, 1000)}
				o.Overloaded = p.Rate > 1.02*capacity
				return o
			})
			if a.Feasible > 1.05*120 {
				t.Errorf("slower from %s on, start %g: %g to %g/s, the capacity is 120/s; confirmed %t, stopped %s after %s, %q", change, start, a.Feasible, a.Infeasible, a.Confirmed, a.Stopped, at, a.Warnings)
			}
		}
	}
}

// TestTargetDown: the target is down after 20 s.
func TestTargetDown(t *testing.T) {
	for _, deadline := range []time.Duration{60 * time.Second, 2 * time.Minute, 10 * time.Minute} {
		for _, from := range []time.Duration{10 * time.Second, 20 * time.Second, 35 * time.Second, 50 * time.Second} {
			a, at := driven(Settings{Quantile: 0.9, Deadline: deadline, Start: 48}, func(p Probe, at time.Duration) Observation {
				n, failed, met := int(p.Rate*p.Duration.Seconds()), 0, p.Rate < 195
				if at > from {
					failed, met = n, false
				}
				log := 2.0
				if met {
					log = -2
				}
				return Observation{Validity: result.Valid, Rate: float64(n-failed) / p.Duration.Seconds(), Requests: int64(n), Down: failed == n, Margins: []Margin{{Criterion: "p90<200ms", Log: log, Sigma: 0.05, Met: met}, errorsOf("errors<1%", 0.01, failed, n)}}
			})
			if a.Stopped != StoppedTargetDown && a.Stopped != StoppedPrecision || a.Stopped == StoppedTargetDown && len(a.Warnings) == 0 ||
				a.Infeasible > 0 && a.Infeasible < 190 {
				t.Errorf("deadline %s, down since %s: %g to %g/s (at 95 %%: %g to %g) without a warning, the peak was 195/s and is 0; stopped %s after %s, %d probes", deadline, from, a.Feasible, a.Infeasible, a.Low, a.High, a.Stopped, at, a.Probes)
			}
		}
	}
}
