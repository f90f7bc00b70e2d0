package stats

import "math"

// MeanInterval returns the mean of independent figures with Student's t interval. With fewer than two figures the
// interval is infinite. It panics if level is not between 0 and 1.
func MeanInterval(figures []float64, level float64) (mean, low, high float64) {
	checkLevel(level)
	n := float64(len(figures))
	for _, v := range figures {
		mean += v / n
	}
	if n < 2 {
		return mean, math.Inf(-1), math.Inf(1)
	}
	squares := 0.0
	for _, v := range figures {
		squares += (v - mean) * (v - mean)
	}
	reach := quantile((1+level)/2, n-1) * math.Sqrt(squares/(n-1)/n)
	return mean, mean - reach, mean + reach
}
