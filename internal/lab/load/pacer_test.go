package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/lab/target"
)

func drawProfile(t *rapid.T) Profile {
	p := Profile{
		From: rapid.Float64Range(0, 50000).Draw(t, "from"),
		To:   rapid.Float64Range(0, 50000).Draw(t, "to"),
		Over: time.Duration(rapid.Int64Range(1, 600_000).Draw(t, "over ms")) * time.Millisecond,
		Lead: time.Duration(rapid.Int64Range(0, 60_000).Draw(t, "lead ms")) * time.Millisecond,
	}
	if rapid.Bool().Draw(t, "constant") {
		p.To = p.From
	}
	if p.From+p.To < 1 {
		p.To = 1
	}
	return p
}

// Rate returns the arrivals per second at t.
func (p Profile) Rate(t time.Duration) float64 {
	return p.From + p.slope()*max(t-p.Lead, 0).Seconds()
}

// Hits returns the arrivals expected in [0, t): the integral of the rate.
func (p Profile) Hits(t time.Duration) float64 {
	ramped := max(t-p.Lead, 0).Seconds()
	return p.From*t.Seconds() + p.slope()*ramped*ramped/2
}

// TestProfileHits compares the closed form with the rate summed up in small
// steps, those of the warm-up and those of the ramp apart: no step has a bend.
func TestProfileHits(t *testing.T) {
	sumUp := func(p Profile, from, to time.Duration) (sum float64) {
		const steps = 10000
		for i := range steps {
			middle := from + time.Duration((float64(i)+0.5)/steps*float64(to-from))
			sum += p.Rate(middle) * (to - from).Seconds() / steps
		}
		return sum
	}
	rapid.Check(t, func(t *rapid.T) {
		p := drawProfile(t)
		end := time.Duration(rapid.Float64Range(0, 1).Draw(t, "part") * float64(p.Lead+p.Over))
		lead := min(p.Lead, end)
		sum := sumUp(p, 0, lead) + sumUp(p, lead, end)
		if got := p.Hits(end); math.Abs(got-sum) > 1e-3*max(sum, 1) {
			t.Fatalf("%+v at %s: %g hits, summed up %g", p, end, got, sum)
		}
	})
}

// TestProfileTime checks that Time is the inverse of Hits.
func TestProfileTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProfile(t)
		at := time.Duration(rapid.Float64Range(0.001, 0.999).Draw(t, "part") * float64(p.Lead+p.Over))
		hits := p.Hits(at)
		if rate := p.Rate(at); rate < 0.01 {
			return // hits hardly change: the inverse is not sharp
		}
		got := p.Time(hits)
		if math.Abs(p.Hits(got)-hits) > 1e-6*max(hits, 1) {
			t.Fatalf("%+v: %g hits at %s, but Time says %s with %g", p, hits, at, got, p.Hits(got))
		}
	})
}

// TestEvenArrivals checks order, number and spacing of evenly spaced arrivals.
func TestEvenArrivals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProfile(t)
		a := Even(p)
		last := time.Duration(-1)
		for i := range 2000 {
			at := a.Next()
			if at < last {
				t.Fatalf("arrival %d at %s is before %s", i, at, last)
			}
			if at == math.MaxInt64 {
				if p.To >= p.From {
					t.Fatalf("arrival %d never comes, though the rate does not fall", i)
				}
				return
			}
			if got := p.Hits(at); math.Abs(got-float64(i)) > 1e-3*max(float64(i), 1) {
				t.Fatalf("arrival %d at %s, where %g are due", i, at, got)
			}
			last = at
		}
	})
}

func TestEvenArrivalsDoNotDrift(t *testing.T) {
	a := Even(Constant(3, time.Hour))
	var at time.Duration
	for range 3*3600 + 1 {
		at = a.Next()
	}
	if at != time.Hour {
		t.Errorf("arrival 10800 of 3/s at %s, want 1h", at)
	}
}

// TestPoissonArrivals checks the gaps of a constant rate against the exponential
// distribution, and the count of a ramp against its integral.
func TestPoissonArrivals(t *testing.T) {
	const rate = 1000
	a := Poisson(Constant(rate, time.Minute), rand.New(rand.NewPCG(1, 2)))
	var times []int64
	for range 20000 {
		times = append(times, int64(a.Next()))
	}
	gaps := gapsOf(times)
	if d := exponentialDistance(gaps, rate); d > ksCritical/math.Sqrt(float64(len(gaps))) {
		t.Errorf("distance to the exponential distribution %g", d)
	}

	ramp := Profile{From: 100, To: 3000, Over: 30 * time.Second}
	a = Poisson(ramp, rand.New(rand.NewPCG(3, 4)))
	n := 0.0
	for a.Next() < ramp.Over {
		n++
	}
	want := ramp.Hits(ramp.Over)
	if math.Abs(n-want) > 4*math.Sqrt(want) {
		t.Errorf("%g arrivals of %g due", n, want)
	}
}

// TestArrivalsDependOnTheirSeedOnly draws the same arrivals twice.
func TestArrivalsDependOnTheirSeedOnly(t *testing.T) {
	p := Profile{From: 10, To: 1000, Over: time.Second, Lead: time.Second}
	first, second := Poisson(p, rand.New(rand.NewPCG(7, 8))), Poisson(p, rand.New(rand.NewPCG(7, 8)))
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

// TestArrivalsShare checks that generators together make the arrivals of one, also in ramps, and that their Poisson arrivals
// have the whole rate.
func TestArrivalsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "generators")
		p := Profile{
			From: rapid.Float64Range(1, 5000).Draw(t, "from"), To: rapid.Float64Range(1, 5000).Draw(t, "to"),
			Over: time.Second, Lead: time.Duration(rapid.IntRange(0, 2).Draw(t, "lead")) * time.Second,
		}
		whole := Even(p)
		shares := make([]*Arrivals, n)
		for i := range shares {
			shares[i] = Even(p).Share(target.Share{Number: i, Of: n})
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
		a := Poisson(Constant(hz, seconds*time.Second), rand.New(rand.NewPCG(7, uint64(i)))).Share(target.Share{Number: i, Of: n})
		for a.Next() < seconds*time.Second {
			count++
		}
	}
	if off := math.Abs(float64(count) - hz*seconds); off > 5*math.Sqrt(hz*seconds) {
		t.Errorf("%d Poisson arrivals, want about %d", count, hz*seconds)
	}
}
