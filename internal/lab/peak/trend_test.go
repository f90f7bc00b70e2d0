package peak

import (
	"math"
	"math/rand/v2"
	"testing"

	"spillway/internal/lab/result"
)

// levelOf is a level with one visit per margin.
func levelOf(rate float64, margins ...float64) *level {
	l := &level{rate: rate}
	for _, m := range margins {
		l.visits = append(l.visits, visitOf(rate, m))
	}
	return l
}

func visitOf(rate, margin float64) *Visit {
	return &Visit{Probe{Rate: rate}, Observation{Validity: result.Valid, Margins: []Margin{{Criterion: "p99<limit", Log: margin, Sigma: 0.05, Met: margin <= 0}}}}
}

// TestTrend checks the line, and that its interval is honest: 95 % of them hold the true margin.
func TestTrend(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	holds := 0
	const runs = 2000
	for range runs {
		m := &proof{}
		for _, rate := range []float64{870, 900, 930, 960, 1000, 1050} {
			m.levels = append(m.levels, levelOf(rate, 4*math.Log(rate/950)+0.05*random.NormFloat64()))
		}
		line, ok := m.trendAt("p99<limit", 950)
		if !ok {
			t.Fatal("no trend")
		}
		margin, sigma := line.at(940)
		if math.Abs(margin-4*math.Log(940.0/950)) <= z95*sigma {
			holds++
		}
	}
	if holds < runs*94/100 {
		t.Errorf("%d of %d intervals hold the margin", holds, runs)
	}
	if _, ok := (&proof{levels: []*level{levelOf(900, -0.1), levelOf(950, 0.1)}}).trendAt("p99<limit", 925); ok {
		t.Error("trend of two levels")
	}
	if _, ok := (&proof{levels: []*level{levelOf(900, 0.1), levelOf(920, 0), levelOf(950, -0.1)}}).trendAt("p99<limit", 925); ok {
		t.Error("trend of falling margins")
	}
}

func TestBoundaryKinds(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{{-0.2, 0.2, BoundarySmooth}, {-1.5, 4, BoundaryCliff}, {-0.02, 0.02, BoundarySmooth}, {-5, 2, BoundaryCliff}} {
		s := NewSearch(Settings{Start: 1000})
		for _, v := range []*Visit{visitOf(1000, c.low), visitOf(1045, c.high)} {
			s.Observe(v.Probe, v.Observation)
		}
		if a := s.Answer(); a.Boundary != c.want || a.Feasible != 1000 || a.Infeasible != 1045 {
			t.Errorf("margins %g and %g: %s between %g and %g/s, want %s", c.low, c.high, a.Boundary, a.Feasible, a.Infeasible, c.want)
		}
	}
}
