// Package stats compares measurements that were taken in blocks. Each block measures the baseline and every variant once
// under the same conditions, so that a disturbance affects both sides of a pair. It also compares shares of users.
//
// It provides the t interval of a paired ratio, the smallest detectable effect, and Holm's correction for a family of
// comparisons. The rules for a verdict, which can be "no verdict", use them. For other figures there are the median with
// its order-statistic interval, and the intervals of a share and of the difference of two.
// Functions are pure. Distributions come from go-moremath, the interval of the median from golang.org/x/perf/benchmath.
// The caller decides whether a higher figure is better. The package does not remove outliers and does not repeat a
// comparison until it is significant.
package stats

import (
	"fmt"
	"math"
	"slices"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"
)

// A Ratio compares a variant with the baseline over paired blocks: the geometric mean of the ratios with its interval.
type Ratio struct {
	N       int     // pairs that count
	Dropped int     // pairs left out because a side is missing, not above 0 or not finite
	Ratio   float64 // variant / baseline; NaN without a pair
	Low     float64 // lower end of the interval; 0 with fewer than two pairs
	High    float64 // upper end of the interval; +Inf with fewer than two pairs
	Level   float64 // of the interval, 0.95
	Min     float64 // lowest ratio of a pair
	Max     float64 // highest ratio of a pair
	Spread  float64 // standard deviation of the logarithms; NaN with fewer than two pairs
	P       float64 // two-sided p value of "no difference"; 1 with fewer than two pairs
}

// rounding is the difference of logarithms below which two figures count as equal.
const rounding = 1e-12

// PairedRatio compares variant[i] with baseline[i], each pair from one block. It computes the t interval and the t test
// of the mean of log(variant/baseline). The logarithm makes "twice" and "half" equally far from 1, and pairing removes
// the effect of the block (Student, "The probable error of a mean", 1908; NIST/SEMATECH e-Handbook of Statistical
// Methods, 1.3.5.2; for ratios of benchmark times Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013).
//
// If all pairs have the same ratio, the interval is that ratio, and P is 1 if the ratio is 1 and 0 otherwise. PairedRatio
// panics if the lengths differ or level is not between 0 and 1.
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
	standardError := r.Spread / math.Sqrt(float64(r.N))
	reach := quantile((1+r.Level)/2, degrees) * standardError
	r.Low, r.High = math.Exp(mean-reach), math.Exp(mean+reach)
	r.P = 2 * stats.TDist{V: degrees}.CDF(-math.Abs(mean)/standardError)
}

// usable reports whether a figure has a logarithm.
func usable(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// quantile is a quantile of Student's t distribution.
func quantile(p, degrees float64) float64 { return stats.InvCDF(stats.TDist{V: degrees})(p) }

func checkLevel(level float64) {
	if !(level > 0 && level < 1) {
		panic(fmt.Sprintf("stats: level %g is not between 0 and 1", level))
	}
}

// MinimumEffect is the smallest effect that a comparison of n pairs with a spread of logarithms detects with a power, at a
// two-sided significance of alpha. It is a ratio above 1: 1.05 stands for 5 % more or for 1/1.05. The formula is
// exp((t(1-alpha/2) + t(power)) s / sqrt(n)) with n-1 degrees of freedom (Bloom, "Minimum detectable effects", Evaluation
// Review 19, 1995; Snedecor and Cochran, "Statistical Methods", 6.14). In a family of m comparisons, pass alpha/m: an
// effect is detected at that level whatever the other comparisons show.
//
// It is +Inf with fewer than two pairs or an unknown spread, and 1 if the spread is 0.
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

// MeanInterval returns the mean of independent figures with Student's t interval. With fewer than two figures the interval is
// infinite, and the mean of none is NaN. It panics if level is not between 0 and 1.
func MeanInterval(figures []float64, level float64) (mean, low, high float64) {
	checkLevel(level)
	return stats.MeanCI(figures, level)
}

// A Sample summarizes one figure over the blocks.
type Sample struct {
	N          int     // number of figures, without NaN and infinities
	Median     float64 // NaN without a figure, as are Min and Max
	Min        float64
	Max        float64
	Low        float64 // lower end of the median's interval; -Inf if N is too small for the level
	High       float64 // upper end of the median's interval; +Inf if N is too small for the level
	Confidence float64 // of the interval, at least the requested level; 1 if it is infinite
}

// Summarize returns the median of figures with its order-statistic interval, which assumes no distribution (David and
// Nagaraja, "Order Statistics", 7.1; computed by benchmath.AssumeNothing). At 95 % it needs at least six figures.
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
