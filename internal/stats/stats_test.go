package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// pairs draws n blocks of two figures with a shared disturbance, individual noise, and the effect. spread is the standard
// deviation of the logarithms of their ratios.
func pairs(random *rand.Rand, n int, effect, spread float64) (baseline, variant []float64) {
	for range n {
		block := 100 * math.Exp(random.NormFloat64()) // what moves the whole block, far more than the noise
		noise := spread / math.Sqrt2
		baseline = append(baseline, block*math.Exp(noise*random.NormFloat64()))
		variant = append(variant, block*effect*math.Exp(noise*random.NormFloat64()))
	}
	return baseline, variant
}

// trialsOf is how many trials a simulation has: a quarter with -short. The tolerance follows them.
func trialsOf(full int) int {
	if testing.Short() {
		return full / 4
	}
	return full
}

func seeded() *rand.Rand { return rand.New(rand.NewPCG(20160101, 5)) }

// within fails if a share of trials is more than five standard errors from the promised share.
func within(t *testing.T, what string, count, trials int, promise float64) {
	t.Helper()
	got := float64(count) / float64(trials)
	tolerance := 5 * math.Sqrt(promise*(1-promise)/float64(trials))
	t.Logf("%s: %.4f, promised %.4f", what, got, promise)
	if math.Abs(got-promise) > tolerance {
		t.Errorf("%s: %.4f of %d trials, promised %.4f +- %.4f", what, got, trials, promise, tolerance)
	}
}

func TestIntervalCoversTheEffect(t *testing.T) {
	t.Parallel()
	random := seeded()
	for _, n := range []int{2, 5, 10, 30} {
		for _, level := range []float64{0.8, 0.95} {
			covered, trials := 0, trialsOf(5000)
			for range trials {
				baseline, variant := pairs(random, n, 1.2, 0.1)
				if r := PairedRatio(baseline, variant, level); r.Low <= 1.2 && 1.2 <= r.High {
					covered++
				}
			}
			within(t, "coverage", covered, trials, level)
		}
	}
}

func TestNoEffectIsRarelySeen(t *testing.T) {
	t.Parallel()
	random := seeded()
	for _, size := range []int{1, 6} {
		wrong, trials := 0, trialsOf(4000)
		for range trials {
			family := make([]Ratio, size)
			for i := range family {
				baseline, variant := pairs(random, MinPairs, 1, 0.1)
				family[i] = PairedRatio(baseline, variant, Level)
			}
			for _, c := range Judge(family) {
				if c.Verdict != NoDifference {
					wrong++
					break
				}
			}
		}
		share := float64(wrong) / float64(trials)
		t.Logf("family of %d: %.4f have a false difference", size, share)
		if limit := Alpha + 5*math.Sqrt(Alpha*(1-Alpha)/float64(trials)); share > limit {
			t.Errorf("family of %d: a false difference in %.4f, the level allows %.4f", size, share, Alpha)
		}
	}
}

func TestPlantedEffectIsSeenAsPromised(t *testing.T) {
	t.Parallel()
	random := seeded()
	for _, n := range []int{MinPairs, 20, 40} {
		for _, effect := range []float64{1.1, 1 / 1.1} {
			// The spread at which the formula calls 10 % the smallest effect to be seen.
			spread := 0.1
			for range 50 {
				spread *= math.Log(1.1) / math.Log(MinimumEffect(n, spread, Alpha, Power))
			}
			seen, trials := 0, trialsOf(5000)
			for range trials {
				baseline, variant := pairs(random, n, effect, spread)
				if c := Judge([]Ratio{PairedRatio(baseline, variant, Level)})[0]; c.Verdict == direction(effect) {
					seen++
				}
			}
			within(t, "seen", seen, trials, Power)
		}
	}
}

func direction(effect float64) Verdict {
	if effect > 1 {
		return Higher
	}
	return Lower
}

func TestPairedRatioKnown(t *testing.T) {
	// By hand: logs 0, ln 2, ln 4; mean ln 2, standard deviation ln 2, t(0.975; 2) = 4.302653.
	r := PairedRatio([]float64{1, 1, 1}, []float64{1, 2, 4}, 0.95)
	reach := 4.302652729911275 * math.Ln2 / math.Sqrt(3)
	want := Ratio{
		N: 3, Ratio: 2, Low: math.Exp(math.Ln2 - reach), High: math.Exp(math.Ln2 + reach), Level: 0.95,
		Min: 1, Max: 4, Spread: math.Ln2, P: 0.22540333075851662,
	}
	if diff := cmp.Diff(want, r, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
		t.Errorf("ratio (-want +got):\n%s", diff)
	}
}

func TestPairedRatioEdges(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, test := range []struct {
		name              string
		baseline, variant []float64
		want              Ratio
	}{
		{"nothing", nil, nil, Ratio{Ratio: nan, High: inf, Min: nan, Max: nan, Spread: nan, P: 1}},
		{"one", []float64{2}, []float64{4}, Ratio{N: 1, Ratio: 2, High: inf, Min: 2, Max: 2, Spread: nan, P: 1}},
		{"the same twice", []float64{3, 7}, []float64{3, 7}, Ratio{N: 2, Ratio: 1, Low: 1, High: 1, Min: 1, Max: 1, P: 1}},
		{"double without spread", []float64{1, 2}, []float64{2, 4}, Ratio{N: 2, Ratio: 2, Low: 2, High: 2, Min: 2, Max: 2, P: 0}},
		{
			"zeros, NaN and infinity",
			[]float64{0, 1, nan, 1, 1, inf, -1, 1, 1e-320},
			[]float64{1, 0, 1, nan, inf, 1, -1, 2, 1e308},
			Ratio{N: 1, Dropped: 8, Ratio: 2, High: inf, Min: 2, Max: 2, Spread: nan, P: 1},
		},
	} {
		test.want.Level = Level
		got := PairedRatio(test.baseline, test.variant, Level)
		if diff := cmp.Diff(test.want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(1e-12, 0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// Swapping the sides turns the ratio over and changes nothing else.
func TestPairedRatioIsSymmetric(t *testing.T) {
	t.Parallel()
	figures := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e6), 2, 20)
	rapid.Check(t, func(t *rapid.T) {
		baseline := figures.Draw(t, "baseline")
		variant := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e6), len(baseline), len(baseline)).Draw(t, "variant")
		there, back := PairedRatio(baseline, variant, Level), PairedRatio(variant, baseline, Level)
		turned := Ratio{
			N: back.N, Ratio: 1 / back.Ratio, Low: 1 / back.High, High: 1 / back.Low, Level: Level,
			Min: 1 / back.Max, Max: 1 / back.Min, Spread: back.Spread, P: back.P,
		}
		if diff := cmp.Diff(turned, there, cmpopts.EquateApprox(1e-6, 1e-12)); diff != "" {
			t.Fatalf("(-turned +there):\n%s", diff)
		}
		if !(there.Low <= there.Ratio && there.Ratio <= there.High && there.P >= 0 && there.P <= 1) {
			t.Fatalf("out of order: %+v", there)
		}
	})
}

func TestMinimumEffect(t *testing.T) {
	// (t(0.975; 9) + t(0.8; 9)) 0.05 / sqrt(10), by tables.
	if want, got := math.Exp((2.2621571628+0.8834038597)*0.05/math.Sqrt(10)), MinimumEffect(10, 0.05, 0.05, 0.8); math.Abs(got-want) > 1e-8 {
		t.Errorf("effect %v, want %v", got, want)
	}
	for _, test := range []struct {
		n      int
		spread float64
		want   float64
	}{{0, 0.1, math.Inf(1)}, {1, 0.1, math.Inf(1)}, {10, math.NaN(), math.Inf(1)}, {10, 0, 1}} {
		if got := MinimumEffect(test.n, test.spread, Alpha, Power); got != test.want {
			t.Errorf("MinimumEffect(%d, %v) = %v, want %v", test.n, test.spread, got, test.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, test := range []struct {
		name    string
		figures []float64
		want    Sample
	}{
		{"nothing", []float64{nan}, Sample{Median: nan, Min: nan, Max: nan, Low: -inf, High: inf, Confidence: 1}},
		{"one", []float64{3}, Sample{N: 1, Median: 3, Min: 3, Max: 3, Low: -inf, High: inf, Confidence: 1}},
		{"two, out of order, and a hole", []float64{4, nan, 2, inf}, Sample{N: 2, Median: 3, Min: 2, Max: 4, Low: -inf, High: inf, Confidence: 1}},
		// The interval of six at 95 % is the whole range: 1 - 2/2^6 = 0.969.
		{"six", []float64{6, 5, 4, 3, 2, 1}, Sample{N: 6, Median: 3.5, Min: 1, Max: 6, Low: 1, High: 6, Confidence: 0.96875}},
	} {
		if diff := cmp.Diff(test.want, Summarize(test.figures, Level), cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestMedianIntervalCovers(t *testing.T) {
	t.Parallel()
	random := seeded()
	covered, trials := 0, trialsOf(5000)
	promise := 0.0
	for range trials {
		figures := make([]float64, MinPairs)
		for i := range figures {
			figures[i] = random.ExpFloat64() // far from normal; its median is ln 2
		}
		s := Summarize(figures, Level)
		promise = s.Confidence
		if s.Low <= math.Ln2 && math.Ln2 <= s.High {
			covered++
		}
	}
	within(t, "median", covered, trials, promise)
}

// TestMeanInterval compares with R: t.test(c(1, 2, 3, 4)).
func TestMeanInterval(t *testing.T) {
	mean, low, high := MeanInterval([]float64{1, 2, 3, 4}, 0.95)
	if mean != 2.5 || math.Abs(low-0.4457397) > 1e-6 || math.Abs(high-4.5542603) > 1e-6 {
		t.Errorf("%g [%g, %g]", mean, low, high)
	}
	if mean, low, high = MeanInterval([]float64{7}, 0.95); mean != 7 || !math.IsInf(low, -1) || !math.IsInf(high, 1) {
		t.Errorf("one figure: %g [%g, %g]", mean, low, high)
	}
}
