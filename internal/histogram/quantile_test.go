package histogram

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestCarries(t *testing.T) {
	f := func(n int64, q float64, want bool) {
		t.Helper()
		if got := Carries(n, q); got != want {
			t.Errorf("Carries(%d, %v) = %v", n, q, got)
		}
	}
	f(19, 0.5, false)
	f(20, 0.5, true)
	f(99, 0.9, false)
	f(100, 0.9, true)
	f(999, 0.99, false)
	f(1000, 0.99, true)
	f(9999, 0.999, false)
	f(10000, 0.999, true)
	f(100000, 0.9999, true)
	f(1<<40, 1, false)
	f(1<<40, 0, false)
	f(0, 0.5, false)
}

func TestIntervalRanks(t *testing.T) {
	h := New()
	for i := 1; i <= 1000; i++ {
		h.Record(time.Duration(i) * time.Second / 10)
	}
	// n q = 990, 1.96 sqrt(n q (1-q)) = 6.17: ranks 983 and 998.
	low, high, ok := h.Interval(0.99)
	if !ok || !near(low, 98300*time.Millisecond, 0.001) || !near(high, 99800*time.Millisecond, 0.001) {
		t.Fatalf("p99 in [%v, %v] %v", low, high, ok)
	}
	if _, _, ok := h.Interval(0.999); ok {
		t.Fatal("an interval for a percentile that the sample does not carry")
	}
}

// TestIntervalCovers draws many samples of a known distribution: about 95 % of the intervals must hold the true value.
func TestIntervalCovers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const trials, n = 400, 2000
	trueP99 := time.Duration(4.60517 * float64(time.Millisecond)) // of an exponential with mean 1 ms
	covered := 0
	h := New()
	for range trials {
		h.Reset()
		for range n {
			h.Record(time.Duration(rnd.ExpFloat64() * float64(time.Millisecond)))
		}
		low, high, ok := h.Interval(0.99)
		if !ok {
			t.Fatal("no interval")
		}
		if low <= trueP99 && trueP99 <= high {
			covered++
		}
	}
	if share := float64(covered) / trials; share < 0.92 || share > 0.99 {
		t.Fatalf("%.3f of the intervals hold the true p99, want about 0.95", share)
	}
}

func TestCurveRisesAndStopsWhereTheSampleEnds(t *testing.T) {
	h := New()
	for i := range 5000 {
		h.Record(time.Duration(i) * time.Microsecond)
	}
	curve := h.Curve()
	if len(curve) < 20 {
		t.Fatalf("%d points", len(curve))
	}
	last := Point{Quantile: -1, Value: -1}
	for _, p := range curve {
		if p.Quantile < last.Quantile || p.Value < last.Value || p.Count < last.Count {
			t.Fatalf("%v after %v", p, last)
		}
		last = p
	}
	if last.Quantile < 0.99 || !h.Carries(last.Quantile) {
		t.Fatalf("the curve ends at %v", last.Quantile)
	}
	if len(New().Curve()) > 1 {
		t.Fatalf("the curve of nothing: %v", New().Curve())
	}
}
