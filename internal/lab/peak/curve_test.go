package peak

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"spillway/internal/lab/result"
)

// naiveIsotonic is the max-min formula: the value at i is the largest over all j up to i of the smallest mean from j to any k from i.
func naiveIsotonic(values, weights []float64) []float64 {
	mean := func(from, to int) float64 {
		sum, weight := 0.0, 0.0
		for i := from; i <= to; i++ {
			sum += values[i] * weights[i]
			weight += weights[i]
		}
		return sum / weight
	}
	fitted := make([]float64, len(values))
	for i := range values {
		fitted[i] = math.Inf(-1)
		for j := 0; j <= i; j++ {
			least := math.Inf(1)
			for k := i; k < len(values); k++ {
				least = min(least, mean(j, k))
			}
			fitted[i] = max(fitted[i], least)
		}
	}
	return fitted
}

func TestIsotonicAgainstNaive(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n := random.IntN(12)
		values, weights := make([]float64, n), make([]float64, n)
		for i := range values {
			values[i], weights[i] = math.Round(4*random.NormFloat64())/4, random.ExpFloat64()+0.01
		}
		fitted, want := isotonic(values, weights), naiveIsotonic(values, weights)
		for i := range values {
			if math.Abs(fitted[i]-want[i]) > 1e-9 {
				t.Fatalf("isotonic(%v, %v) = %v, want %v", values, weights, fitted, want)
			}
		}
		if !slices.IsSorted(fitted) && !slices.IsSortedFunc(fitted, func(a, b float64) int {
			if a < b-1e-12 {
				return -1
			}
			return 0
		}) {
			t.Fatalf("isotonic(%v, %v) = %v is not sorted", values, weights, fitted)
		}
	}
}

// levelOf is a level with one visit per margin.
func levelOf(rate float64, margins ...float64) *level {
	l := &level{rate: rate}
	for _, m := range margins {
		l.visits = append(l.visits, visitOf(rate, m))
	}
	return l
}

func visitOf(rate, margin float64) *Visit {
	return &Visit{Probe{Rate: rate}, Observation{Validity: result.Valid, Margins: []Margin{{"p99<limit", margin, 0.05, margin <= 0}}}}
}

// TestCurveFindsTheEdgeOfAQueue checks that two distant rates suffice for a single queue, as the reciprocal of its latency is linear.
func TestCurveFindsTheEdgeOfAQueue(t *testing.T) {
	for _, share := range []float64{0.3, 0.5, 0.8, 0.9, 0.97} {
		limit := queue(1000*share, 1000)
		margin := func(rate float64) float64 { return math.Log(queue(rate, 1000) / limit) }
		c := curveOf([]*level{levelOf(100, margin(100)), levelOf(990, margin(990))}, "p99<limit")
		if rate, ok := c.root(); !ok || math.Abs(rate-1000*share) > 1 {
			t.Errorf("root at %g/s, %t; the edge is %g/s", rate, ok, 1000*share)
		}
	}
}

func TestCurve(t *testing.T) {
	// Two criteria cross 0 at different rates: the first that does decides.
	m := &proof{levels: []*level{levelOf(100, -1), levelOf(200, 1)}}
	for _, l := range m.levels {
		o := &l.visits[0].Observation
		o.Margins = append(o.Margins, Margin{"errors<1%", o.Margins[0].Log - 0.5, 0.05, o.Margins[0].Log < 0.5})
	}
	m.feasible, m.infeasible = m.levels[0], m.levels[1]
	first, _ := curveOf(m.levels, "p99<limit").root()
	second, _ := curveOf(m.levels, "errors<1%").root()
	if rate, ok := m.root(); !ok || rate != first || first >= second {
		t.Errorf("root at %g/s, those of the criteria at %g and %g/s", rate, first, second)
	}
	// The margin is that of the levels at the levels, and between those between them.
	c := curveOf(m.levels, "p99<limit")
	if a, b, outside := c.margin(100), c.margin(200), c.margin(300); math.Abs(a+1) > 1e-9 || math.Abs(b-1) > 1e-9 || outside != b {
		t.Errorf("margins %g, %g and %g", a, b, outside)
	}
	if between := c.margin(150); between <= -1 || between >= 1 {
		t.Errorf("margin %g between -1 and 1", between)
	}
	// Without a crossing there is no root.
	if _, ok := curveOf([]*level{levelOf(100, -2), levelOf(200, -1)}, "p99<limit").root(); ok {
		t.Error("root of a curve below 0")
	}
	if _, ok := curveOf(nil, "p99<limit").root(); ok {
		t.Error("root of no curve")
	}
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
