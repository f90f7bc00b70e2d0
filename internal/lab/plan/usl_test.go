package plan

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spillway/internal/lab/result"
)

// A law is a Universal Scalability Law with known coefficients.
type law struct{ lambda, sigma, kappa float64 }

func (l law) at(n float64) float64 { return l.lambda * n / (1 + l.sigma*(n-1) + l.kappa*n*(n-1)) }

// sweep measures the law with relative errors.
func (l law) sweep(noise float64, rnd *rand.Rand, connections ...float64) []Point {
	var points []Point
	for _, n := range connections {
		points = append(points, Point{n, l.at(n) * math.Exp(noise*rnd.NormFloat64())})
	}
	return points
}

func doublings() []float64 { return []float64{1, 2, 4, 8, 16, 32, 64, 128} }

func TestUSLRecoversItsCoefficients(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := law{
			lambda: rapid.Float64Range(1, 1e5).Draw(t, "lambda"),
			sigma:  rapid.Float64Range(0, 0.5).Draw(t, "sigma"),
			kappa:  rapid.Float64Range(0.0002, 0.02).Draw(t, "kappa"),
		}
		u, err := FitUSL(l.sweep(0, rand.New(rand.NewPCG(1, 1)), doublings()...), 1)
		if err != nil {
			t.Fatal(err)
		}
		if near := func(got, want float64) bool { return math.Abs(got-want) <= 1e-6*want+1e-8 }; !near(u.Lambda.Value, l.lambda) || !near(u.Sigma.Value, l.sigma) || !near(u.Kappa.Value, l.kappa) {
			t.Errorf("%+v gives %v, %v, %v", l, u.Lambda, u.Sigma, u.Kappa)
		}
		best, ok := u.Best()
		if want := math.Sqrt((1 - l.sigma) / l.kappa); !ok || math.Abs(best-want) > 1 {
			t.Errorf("%+v is best at %g, want %g", l, best, want)
		}
		if at, err := u.At(256); err != nil || math.Abs(at.Value/l.at(256)-1) > 1e-6 {
			t.Errorf("%+v at 256: %+v, %v", l, at, err)
		}
	})
}

// TestUSLIsTheLeastSquares: no other coefficients that are allowed fit better, also at the border of what is allowed.
func TestUSLIsTheLeastSquares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var points []Point
		l := law{100, rapid.SampledFrom([]float64{0, 0.01, 0.3}).Draw(t, "sigma"), rapid.SampledFrom([]float64{0, 1e-4, 0.01}).Draw(t, "kappa")}
		for _, n := range doublings() {
			points = append(points, Point{n, l.at(n) * rapid.Float64Range(0.7, 1.4).Draw(t, "error")})
		}
		squares := func(c curve) float64 {
			sum := 0.0
			for _, p := range points {
				e := p.RateHz/c.at(p.Connections) - 1
				sum += e * e
			}
			return sum
		}
		best, determined := fitCurve(points)
		if !determined || !(best.a > 0) || best.b < 0 || best.c < 0 {
			t.Fatalf("%+v, %v", best, determined)
		}
		least := squares(best)
		for range 50 {
			scale := rapid.SampledFrom([]float64{1e-3, 0.1, 1}).Draw(t, "scale")
			other := curve{
				a: best.a * (1 + scale*rapid.Float64Range(-0.9, 2).Draw(t, "a")),
				b: max(0, best.b+scale*best.a*rapid.Float64Range(-1, 1).Draw(t, "b")),
				c: max(0, best.c+scale*best.a*rapid.Float64Range(-0.1, 0.1).Draw(t, "c")),
			}
			if squares(other) < least*(1-1e-9) {
				t.Errorf("%+v fits better (%g) than %+v (%g)", other, squares(other), best, least)
			}
		}
	})
}

// TestUSLBandCovers: the bands of 95 % have the truth in at least 92 % of sweeps, and beyond the measured range in 87 %, as at the
// border of the coefficients.
func TestUSLBandCovers(t *testing.T) {
	t.Parallel()
	sweeps := 300
	if testing.Short() {
		sweeps = 100
	}
	for _, l := range []law{{100, 0.05, 0.0005}, {2500, 0.1, 0}, {100, 0, 0.001}, {100, 0.3, 0.002}} {
		rnd := rand.New(rand.NewPCG(7, 11))
		covered := map[string]int{}
		for k := range sweeps {
			u, err := FitUSL(l.sweep(0.03, rnd, 1, 4, 16, 48, 96, 128), uint64(k))
			if err != nil {
				t.Fatal(err)
			}
			check := func(name string, e Estimate, want float64) {
				if e.Low <= want && want <= e.High {
					covered[name]++
				}
			}
			check("lambda", u.Lambda, l.lambda)
			check("sigma", u.Sigma, l.sigma)
			check("kappa", u.Kappa, l.kappa)
			for name, n := range map[string]float64{"8": 8, "60": 60, "beyond": 256} {
				e, err := u.At(n)
				if err != nil {
					t.Fatal(err)
				}
				check(name, e, l.at(n))
			}
		}
		for name, n := range covered {
			least := 0.92
			if name == "beyond" {
				least = 0.87
			}
			if share := float64(n) / float64(sweeps); share < least {
				t.Errorf("%+v: the band of %s has the truth in %.1f %% of sweeps", l, name, 100*share)
			}
		}
		if len(covered) != 6 {
			t.Errorf("%+v: %v", l, covered)
		}
	}
}

// TestUSLOfAPublishedSweep: SPEC SDM91 on a Sun SPARCcenter 2000 (Gunther, "Guerrilla Capacity Planning", chapter 5). The package usl
// of R minimizes absolute errors: lambda 90, sigma 0.0277, kappa 0.000104, and a maximum at 96 users.
func TestUSLOfAPublishedSweep(t *testing.T) {
	t.Parallel()
	points := []Point{{1, 64.9}, {18, 995.9}, {36, 1652.4}, {72, 1853.2}, {108, 1828.9}, {144, 1775}, {216, 1702.2}}
	u, err := FitUSL(points, 1)
	if err != nil {
		t.Fatal(err)
	}
	if k := u.Kappa; k.Low > 0.000104 || k.High < 0.000104 {
		t.Errorf("kappa %+v", k)
	}
	if best, ok := u.Best(); !ok || best < 86 || best > 106 || u.Knee != 36 {
		t.Errorf("best at %g, knee at %g", best, u.Knee)
	}
	ours, theirs := 0.0, 0.0
	for _, p := range points {
		e, f := p.RateHz/u.fit.at(p.Connections)-1, p.RateHz/(law{90, 0.0277, 0.000104}).at(p.Connections)-1
		ours, theirs = ours+e*e, theirs+f*f
	}
	if ours >= theirs {
		t.Errorf("squared relative errors of %g, %g with the coefficients of R", ours, theirs)
	}
}

func TestUSLRefuses(t *testing.T) {
	t.Parallel()
	l, rnd := law{100, 0.05, 0.001}, rand.New(rand.NewPCG(1, 1))
	f := func(want string, points []Point) {
		t.Helper()
		if _, err := FitUSL(points, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("0 VALID concurrencies", nil)
	f("5 VALID concurrencies", l.sweep(0, rnd, 1, 2, 2, 4, 8, 16, 16))
	f("add a step of 12 connections", law{100, 0.001, 0}.sweep(0, rnd, 1, 2, 3, 4, 5, 6))
	f("not a measurement", append(l.sweep(0, rnd, doublings()...), Point{3, 0}))
	f("not a measurement", append(l.sweep(0, rnd, doublings()...), Point{3, math.NaN()}))
	f("repeat these steps", []Point{{1, 1}, {2, 4.75}, {4, 1}, {8, 1}, {16, 1}, {32, 1}, {64, 1}, {128, 1}})
	u, err := FitUSL(l.sweep(0.01, rnd, doublings()...), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []float64{0, 257, math.NaN(), math.Inf(1)} {
		if e, err := u.At(n); err == nil || !strings.Contains(err.Error(), "measured up to 128") {
			t.Errorf("at %g: %+v, %v", n, e, err)
		}
	}
	straight, err := FitUSL(law{100, 0.2, 0}.sweep(0, rnd, doublings()...), 1)
	if err != nil {
		t.Fatal(err)
	}
	if best, ok := straight.Best(); ok {
		t.Errorf("a law without a maximum is best at %g", best)
	}
}

// TestSweepTakesValidClosedSteps leaves out steps of an open loop, with think times, with errors, and not VALID.
func TestSweepTakesValidClosedSteps(t *testing.T) {
	t.Parallel()
	step := func(change func(*result.StepRun)) result.StepRun {
		s := result.StepRun{Step: result.Step{Loop: result.LoopClosed, Connections: 4}}
		s.Total = result.Total{Elapsed: 2, Validity: result.Valid, Counters: result.Counters{Done: 200, Completed: 200}}
		change(&s)
		return s
	}
	run := &result.Run{Steps: []result.StepRun{
		step(func(*result.StepRun) {}),
		step(func(s *result.StepRun) { s.Loop = result.LoopOpen }),
		step(func(s *result.StepRun) { s.ThinkTimes = true }),
		step(func(s *result.StepRun) { s.Total.Validity = result.NotStationary }),
		step(func(s *result.StepRun) { s.Total.Errors[result.StatusError] = 3 }),
	}}
	if got := Sweep(run); len(got) != 1 || got[0] != (Point{4, 100}) {
		t.Errorf("%+v", got)
	}
}

// TestScatteredRates: whatever the rates are, there is a fit of finite figures or an error.
func TestScatteredRates(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	errs := 0
	for range 20 {
		var points []Point
		for n := 1.0; n <= 64; n *= 2 {
			points = append(points, Point{n, math.Exp(r.NormFloat64() * 6)})
		}
		u, err := FitUSL(points, 1)
		if err != nil {
			errs++
			continue
		}
		for _, v := range []float64{u.Lambda.Value, u.Lambda.Low, u.Lambda.High, u.Sigma.Value, u.Sigma.High, u.Kappa.Value, u.Kappa.High} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("%v: %+v", points, u)
			}
		}
	}
	if errs == 0 {
		t.Error("rates at random follow the law")
	}
}

// TestProbesAreNoSweep: a search for a peak names its closed-loop probes.
func TestProbesAreNoSweep(t *testing.T) {
	t.Parallel()
	run := queue.run(t, 500, 600)
	for i := range run.Steps {
		run.Steps[i].Loop, run.Steps[i].Connections = result.LoopClosed, 4
	}
	run.Steps[0].Name = "closed 4"
	if points := Sweep(run); len(points) != 1 || points[0].RateHz != 600 {
		t.Errorf("%+v", points)
	}
}
