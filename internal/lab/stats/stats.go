// Package stats judges measurements that were taken in blocks: each block measures the baseline and every variant once,
// under the same conditions, so that what disturbs a block disturbs both sides of a pair.
//
// It has the t interval of the paired ratio, the smallest effect that a comparison could have seen, Holm's correction
// for a family of comparisons, the median with its order-statistic interval, and the rules by which a comparison ends
// in a verdict, of which "no verdict" is one. Functions are pure. Distributions come from go-moremath, the median's
// interval from golang.org/x/perf/benchmath. The package knows nothing of requests: whether a higher figure is the
// better one is for the caller to say. It does not remove outliers and repeats nothing until it is significant.
package stats

import (
	"fmt"
	"math"
	"slices"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"
)

// A Ratio is how a variant compares with the baseline over paired blocks: the geometric mean of the ratios, with its
// interval.
type Ratio struct {
	N       int     // pairs that count
	Dropped int     // pairs left out: a side is missing, 0, negative or not finite, so that it has no logarithm
	Ratio   float64 // variant / baseline; NaN without a pair
	Low     float64 // of the interval; 0 with fewer than two pairs
	High    float64 // of the interval; +Inf with fewer than two pairs
	Level   float64 // of the interval, 0.95
	Min     float64 // the least ratio of a pair
	Max     float64 // the greatest
	Spread  float64 // standard deviation of the logarithms; NaN with fewer than two pairs
	P       float64 // two-sided, that ratios as far from 1 come of no difference; 1 with fewer than two pairs
}

// rounding is the difference of logarithms below which two figures are the same but for the arithmetic.
const rounding = 1e-12

// PairedRatio compares variant[i] with baseline[i], each pair from one block. It is the t interval and the t test of the
// mean of log(variant/baseline): the logarithm makes "twice" and "half" equally far from 1, and pairing takes out what
// moves a whole block (Student, "The probable error of a mean", 1908; NIST/SEMATECH e-Handbook of Statistical Methods,
// 1.3.5.2; for ratios of benchmark times Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013).
//
// When all pairs have the very same ratio there is no spread to judge by: the interval is that ratio, and P is 1 when it
// is 1 and 0 otherwise. It panics when the lengths differ or level is not inside 0 to 1.
func PairedRatio(baseline, variant []float64, level float64) Ratio {
	if len(baseline) != len(variant) {
		panic(fmt.Sprintf("stats: %d baseline figures and %d of the variant", len(baseline), len(variant)))
	}
	checkLevel(level)
	var logs []float64
	for i := range baseline {
		log := math.Log(variant[i] / baseline[i])
		if usable(baseline[i]) && usable(variant[i]) && !math.IsInf(log, 0) {
			logs = append(logs, log)
		}
	}
	r := Ratio{N: len(logs), Dropped: len(baseline) - len(logs), Level: level, High: math.Inf(1), P: 1}
	if r.N == 0 {
		r.Ratio, r.Min, r.Max, r.Spread = math.NaN(), math.NaN(), math.NaN(), math.NaN()
		return r
	}
	low, high := stats.Bounds(logs)
	mean := stats.Mean(logs)
	r.Ratio, r.Min, r.Max, r.Spread = math.Exp(mean), math.Exp(low), math.Exp(high), math.NaN()
	if r.N < 2 {
		return r
	}
	r.Spread = stats.StdDev(logs)
	r.judge(mean)
	return r
}

// judge sets the interval and P from the mean of the logarithms and the spread.
func (r *Ratio) judge(mean float64) {
	if r.Spread < rounding {
		r.Low, r.High = r.Ratio, r.Ratio
		if math.Abs(mean) > rounding {
			r.P = 0
		}
		return
	}
	degrees := float64(r.N - 1)
	failure := r.Spread / math.Sqrt(float64(r.N)) // standard error of the mean
	reach := quantile((1+r.Level)/2, degrees) * failure
	r.Low, r.High = math.Exp(mean-reach), math.Exp(mean+reach)
	r.P = 2 * stats.TDist{V: degrees}.CDF(-math.Abs(mean)/failure)
}

// usable says whether a figure has a logarithm.
func usable(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// quantile is that of Student's t distribution.
func quantile(p, degrees float64) float64 { return stats.InvCDF(stats.TDist{V: degrees})(p) }

func checkLevel(level float64) {
	if !(level > 0 && level < 1) {
		panic(fmt.Sprintf("stats: level %g is not between 0 and 1", level))
	}
}

// MinimumEffect is the smallest effect that a comparison of n pairs with that spread of logarithms would have seen with
// the power given, at a two-sided significance of alpha: a ratio above 1, so that 1.05 stands for 5 % more or 1/1.05 of
// it. It is exp((t(1-alpha/2) + t(power)) s / sqrt(n)) with n-1 degrees of freedom (Bloom, "Minimum detectable effects",
// Evaluation Review 19, 1995; Snedecor and Cochran, "Statistical Methods", 6.14). In a family of m comparisons alpha/m
// is the level at which an effect is seen whatever the others show.
//
// It is +Inf with fewer than two pairs or an unknown spread, and 1 without any spread.
func MinimumEffect(n int, spread, alpha, power float64) float64 {
	checkLevel(alpha)
	checkLevel(power)
	switch {
	case n < 2 || math.IsNaN(spread) || spread < 0:
		return math.Inf(1)
	case spread < rounding:
		return 1
	}
	degrees := float64(n - 1)
	return math.Exp((quantile(1-alpha/2, degrees) + quantile(power, degrees)) * spread / math.Sqrt(float64(n)))
}

// A Sample sums up one figure over the blocks.
type Sample struct {
	N          int     // figures; NaN and infinite ones are left out
	Median     float64 // NaN without a figure, as are Min and Max
	Min        float64
	Max        float64
	Low        float64 // of the median's interval; -Inf where N is too small for the level
	High       float64 // of the median's interval; +Inf where N is too small for the level
	Confidence float64 // that the interval has, at least the level asked for; 1 where it is infinite
}

// Summarize gives the median of figures with its order-statistic interval, which assumes no distribution (David and
// Nagaraja, "Order Statistics", 7.1; computed by benchmath.AssumeNothing). At 95 % six figures are the fewest that have
// one.
func Summarize(figures []float64, level float64) Sample {
	checkLevel(level)
	finite := slices.DeleteFunc(slices.Clone(figures), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(finite) == 0 {
		nan := math.NaN()
		return Sample{Median: nan, Min: nan, Max: nan, Low: math.Inf(-1), High: math.Inf(1), Confidence: 1}
	}
	sample := benchmath.NewSample(finite, &benchmath.DefaultThresholds)
	s := benchmath.AssumeNothing.Summary(sample, level)
	return Sample{
		N: len(finite), Median: s.Center, Min: sample.Values[0], Max: sample.Values[len(finite)-1],
		Low: s.Lo, High: s.Hi, Confidence: s.Confidence,
	}
}
