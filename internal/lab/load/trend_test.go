package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// trendOf has one point per quarter of a second.
func trendOf(seconds int, at func(i int) point) trend {
	t := trend{period: pointsPeriod}
	for i := range 4 * seconds {
		t.points = append(t.points, at(i))
	}
	return t
}

// noisy are points of 100 requests whose mean is that, with noise that remembers the last point: rho is its correlation.
func noisy(random *rand.Rand, spread, rho float64, mean func(i int) time.Duration) func(int) point {
	noise := 0.0
	return func(i int) point {
		noise = rho*noise + math.Sqrt(1-rho*rho)*random.NormFloat64()
		return point{ended: 100, waited: int64(100 * float64(mean(i)) * math.Exp(spread*noise))}
	}
}

// TestDriftOfSteadySteps counts how many steady steps are called drifting.
func TestDriftOfSteadySteps(t *testing.T) {
	steady := func(int) time.Duration { return 10 * time.Millisecond }
	for _, seconds := range []int{4, 5, 10, 60} {
		for _, spread := range []float64{0, 0.02, 0.2, 0.5} {
			for _, rho := range []float64{0, 0.5} {
				random, wrong := rand.New(rand.NewPCG(uint64(seconds), uint64(100*spread))), 0
				for range 1000 {
					tr := trendOf(seconds, noisy(random, spread, rho, steady))
					if _, _, changed := tr.drift(); changed {
						wrong++
					}
				}
				if most := 3 + int(34*rho); wrong > most {
					t.Errorf("%d s, noise %g, correlation %g: %d of 1000 steady steps drift", seconds, spread, rho, wrong)
				}
			}
		}
	}
}

// TestDrift counts how many steps with a real change are found, in both directions.
func TestDrift(t *testing.T) {
	for name, mean := range map[string]func(x float64) float64{
		"rises by two thirds":  func(x float64) float64 { return 1 + 2*x/3 },
		"falls by half":        func(x float64) float64 { return 1 - x/2 },
		"a cold start":         func(x float64) float64 { return 1 + 3*math.Exp(-4*x) },
		"twice as slow midway": func(x float64) float64 { return 1 + math.Round(x) },
	} {
		for _, seconds := range []int{4, 5, 10, 60} {
			random, found := rand.New(rand.NewPCG(7, uint64(seconds))), 0
			for range 100 {
				tr := trendOf(seconds, noisy(random, 0.05, 0.3, func(i int) time.Duration {
					return time.Duration(mean(float64(i)/float64(4*seconds)) * 10 * float64(time.Millisecond))
				}))
				if _, _, changed := tr.drift(); changed {
					found++
				}
			}
			if found < 90 {
				t.Errorf("%s within %d s: found in %d of 100", name, seconds, found)
			}
		}
	}
	short := trendOf(3, func(i int) point { return point{ended: 1, waited: int64(i)} })
	if _, _, changed := short.drift(); changed {
		t.Error("a step of 3 s was judged")
	}
	linear := trendOf(4, func(i int) point { return point{ended: 1, waited: int64(1 + i)} })
	if first, last, changed := linear.drift(); !changed || first != 3 || last != 14 {
		t.Errorf("a change without noise: %d to %d, %v", first, last, changed)
	}
}

// queue simulates arrivals of a Poisson process at a server with exponential service times, for a while before the step and
// then during it.
func queue(random *rand.Rand, arrivals, capacity float64, seconds int) trend {
	const steps = 50 // per point
	length, waiting := pointsPeriod/steps, 0
	step := func() {
		waiting += poisson(random, arrivals*time.Duration(length).Seconds())
		waiting -= min(waiting, poisson(random, capacity*time.Duration(length).Seconds()))
	}
	if arrivals < capacity {
		for range 4 * 20 * steps {
			step()
		}
	}
	before := waiting
	t := trendOf(seconds, func(int) point {
		for range steps {
			step()
		}
		return point{ended: 1, owed: int64(waiting)}
	})
	t.before = int64(before)
	return t
}

func poisson(random *rand.Rand, mean float64) (n int) {
	for left := mean - random.ExpFloat64(); left > 0; left -= random.ExpFloat64() {
		n++
	}
	return n
}

// TestGrowth counts how many queues are called growing: hardly any if the server is faster than the arrivals, nearly all if
// it is clearly slower.
func TestGrowth(t *testing.T) {
	const runs = 200
	for _, test := range []struct {
		arrivals, capacity float64
		seconds            int
		least, most        int
	}{
		{80, 48.8, 4, 180, runs},
		{80, 48.8, 10, runs, runs},
		{1000, 900, 10, 180, runs},
		{1000, 900, 30, runs, runs},
		{10000, 9000, 4, 190, runs},
		{1000, 1000, 10, 0, 1}, // critical: a random walk
		{1000, 1020, 4, 0, 1},
		{1000, 1020, 30, 0, 1},
		{1000, 1200, 10, 0, 1},
		{100, 110, 60, 0, 1},
	} {
		if testing.Short() && test.seconds > 10 {
			continue
		}
		random, growing := rand.New(rand.NewPCG(1, uint64(test.capacity))), 0
		for range runs {
			tr := queue(random, test.arrivals, test.capacity, test.seconds)
			if _, clear := tr.growth(test.arrivals); clear {
				growing++
			}
		}
		if growing < test.least || growing > test.most {
			t.Errorf("%g/s at a server of %g/s for %d s: %d of %d grow, want %d to %d", test.arrivals, test.capacity, test.seconds, growing, runs, test.least, test.most)
		}
	}
	even := trendOf(4, func(i int) point { return point{owed: int64(i+1) * 8} }) // 32/s without noise
	if perSecond, clear := even.growth(80); !clear || perSecond != 32 {
		t.Errorf("even growth: %g/s, %v", perSecond, clear)
	}
}

// TestTrendIsBounded rolls for an hour: sums and borders stay exact when points are joined.
func TestTrendIsBounded(t *testing.T) {
	tr := newTrend()
	tr.owed = 5
	tr.begin(second)
	for at := second; at < 3601*second; at += second / 10 {
		if tr.roll(at) <= at {
			t.Fatalf("at %d the next border has passed", at)
		}
		tr.owed++
		tr.add(3, true)
	}
	tr.roll(3601 * second)
	if len(tr.points) >= pointsMax || len(tr.points) < pointsMax/2-1 || tr.before != 5 {
		t.Errorf("%d points, %d owed before", len(tr.points), tr.before)
	}
	for i, p := range tr.points {
		if n := tr.period * 10 / second; p.ended != n || p.waited != 3*n || p.owed != 5+int64(i+1)*n {
			t.Fatalf("point %d: %+v in %d ns", i, p, tr.period)
		}
	}
	other := newTrend()
	other.begin(second)
	other.roll(11 * second)
	if sum := sumOf([]*trend{&tr, &other}); sum.period != tr.period || len(sum.points) != int(10*second/tr.period) || sum.points[0].ended != tr.points[0].ended {
		t.Errorf("a sum with %d points of %d ns", len(sum.points), sum.period)
	}
}

// TestSilence checks that a time without answers is found wherever it is, and that answers which are rare are none.
func TestSilence(t *testing.T) {
	for name, test := range map[string]struct {
		seconds      int
		good         func(i int) bool
		from, length time.Duration
		clear        bool
	}{
		"never":                 {10, func(int) bool { return true }, 0, 0, false},
		"always":                {10, func(int) bool { return false }, 0, 10 * time.Second, false},
		"at the end":            {6, func(i int) bool { return i < 10 }, 2500 * time.Millisecond, 3500 * time.Millisecond, true},
		"in the middle":         {10, func(i int) bool { return i < 20 || i >= 24 }, 5 * time.Second, time.Second, true},
		"at the start":          {10, func(i int) bool { return i >= 8 }, 0, 2 * time.Second, true},
		"short":                 {10, func(i int) bool { return i < 20 || i >= 23 }, 5 * time.Second, 750 * time.Millisecond, false},
		"little of a long step": {60, func(i int) bool { return i < 20 || i >= 40 }, 5 * time.Second, 5 * time.Second, false},
		"of a short step":       {3, func(i int) bool { return i < 4 }, time.Second, 2 * time.Second, false},
		"between slow answers":  {20, func(i int) bool { return i%12 == 11 }, 0, 2750 * time.Millisecond, false},
	} {
		tr := trendOf(test.seconds, func(i int) point {
			if test.good(i) {
				return point{ended: 7, good: 7}
			}
			return point{ended: 3}
		})
		from, length, clear := tr.silence()
		if from != test.from || length != test.length || clear != test.clear {
			t.Errorf("%s: from %s for %s, clear %v; want %s, %s, %v", name, from, length, clear, test.from, test.length, test.clear)
		}
	}
}
