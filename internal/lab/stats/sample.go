package stats

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

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
