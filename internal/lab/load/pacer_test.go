package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/lab/target"
)

// TestEvenArrivals checks order, number and spacing of evenly spaced arrivals.
func TestEvenArrivals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0.01, 50000).Draw(t, "rate")
		a := Even(rate)
		last := time.Duration(-1)
		for i := range 2000 {
			at := a.Next()
			if at < last {
				t.Fatalf("arrival %d at %s is before %s", i, at, last)
			}
			if due := at.Seconds() * rate; math.Abs(due-float64(i)) > 1e-3*max(float64(i), 1) {
				t.Fatalf("arrival %d at %s, where %g are due", i, at, due)
			}
			last = at
		}
	})
}

// TestArrivalsAfterTheEndOfTime checks that a tiny rate has one arrival at the start, and no other.
func TestArrivalsAfterTheEndOfTime(t *testing.T) {
	for _, rate := range []float64{math.SmallestNonzeroFloat64, 1e-300, 1e-12} {
		a := Even(rate)
		if first, second := a.Next(), a.Next(); first != 0 || second != math.MaxInt64 {
			t.Errorf("%g/s: arrivals at %s and %s", rate, first, second)
		}
	}
}

func TestEvenArrivalsDoNotDrift(t *testing.T) {
	a := Even(3)
	var at time.Duration
	for range 3*3600 + 1 {
		at = a.Next()
	}
	if at != time.Hour {
		t.Errorf("arrival 10800 of 3/s at %s, want 1h", at)
	}
}

// TestPoissonArrivals checks the gaps against the exponential distribution.
func TestPoissonArrivals(t *testing.T) {
	const rate = 1000
	a := Poisson(rate, rand.New(rand.NewPCG(1, 2)))
	var times []int64
	for range 20000 {
		times = append(times, int64(a.Next()))
	}
	gaps := gapsOf(times)
	if d := exponentialDistance(gaps, rate); d > ksCritical/math.Sqrt(float64(len(gaps))) {
		t.Errorf("distance to the exponential distribution %g", d)
	}
}

// TestArrivalsDependOnTheirSeedOnly draws the same arrivals twice.
func TestArrivalsDependOnTheirSeedOnly(t *testing.T) {
	first, second := Poisson(10, rand.New(rand.NewPCG(7, 8))), Poisson(10, rand.New(rand.NewPCG(7, 8)))
	for range 1000 {
		if first.Next() != second.Next() {
			t.Fatal("one seed gave two runs")
		}
	}
}

// TestBacklog compares with a slice.
func TestBacklog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 3000).Draw(t, "limit")
		b := newBacklog(limit)
		var model []int64
		for i := range rapid.IntRange(0, 10000).Draw(t, "operations") {
			if rapid.IntRange(0, 9).Draw(t, "operation") < 7 {
				took := b.push(int64(i))
				if took != (len(model) < limit) {
					t.Fatalf("push with %d of %d: %v", len(model), limit, took)
				}
				if took {
					model = append(model, int64(i))
				}
				continue
			}
			got, ok := b.pop()
			if ok != (len(model) > 0) || ok && got != model[0] {
				t.Fatalf("pop: %d, %v of %v", got, ok, model)
			}
			if ok {
				model = model[1:]
			}
		}
		if b.count != len(model) || len(b.times) > limit {
			t.Fatalf("%d waiting in %d places, want %d in at most %d", b.count, len(b.times), len(model), limit)
		}
	})
}

// TestArrivalsPart checks that parts together make the arrivals of one, and that their Poisson arrivals have the
// whole rate.
func TestArrivalsPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "generators")
		rate := rapid.Float64Range(1, 5000).Draw(t, "rate")
		whole := Even(rate)
		shares := make([]*Arrivals, n)
		for i := range shares {
			shares[i] = Even(rate).Part(target.Part{Number: i, Of: n})
		}
		for i := range 50 * n {
			if want, got := whole.Next(), shares[i%n].Next(); got != want {
				t.Fatalf("arrival %d is due at %v, that of generator %d at %v", i, want, i%n, got)
			}
		}
	})
	const hz, seconds, n = 3000, 100, 3
	count := 0
	for i := range n {
		a := Poisson(hz, rand.New(rand.NewPCG(7, uint64(i)))).Part(target.Part{Number: i, Of: n})
		for a.Next() < seconds*time.Second {
			count++
		}
	}
	if off := math.Abs(float64(count) - hz*seconds); off > 5*math.Sqrt(hz*seconds) {
		t.Errorf("%d Poisson arrivals, want about %d", count, hz*seconds)
	}
}
