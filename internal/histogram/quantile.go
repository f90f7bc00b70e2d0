package histogram

import (
	"math"
	"time"
)

// TailSamples is the ten-beyond rule: a percentile is stated only when at least this many samples lie beyond it, so p99
// wants 1,000 samples and p99.9 wants 10,000. With fewer, the figure would be the luck of a handful of requests.
const TailSamples = 10

// z95 is the normal quantile of a two-sided 95 % interval.
const z95 = 1.96

// Quantile is the duration that a fraction q of the samples do not exceed (q from 0 to 1), within the precision; 0 when
// nothing was recorded. It answers for every q: ask Carries whether the figure may be shown.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return min(time.Duration(h.hdr.ValueAtPercentile(q*100)), Highest)
}

// Carries says whether the sample is large enough for the quantile q: the ten-beyond rule.
func (h *Histogram) Carries(q float64) bool { return Carries(h.Count(), q) }

// Carries says whether n samples are enough for the quantile q: the ten-beyond rule.
func Carries(n int64, q float64) bool {
	const rounding = 1e-6 // 1-q is not exact in binary: 100 samples carry 0.9
	return q > 0 && q < 1 && (1-q)*float64(n) > TailSamples-rounding
}

// Interval is the 95 % confidence interval of the quantile q by order statistics: the samples of rank
// floor(nq-1.96 s) and ceil(nq+1.96 s)+1 with s = sqrt(nq(1-q)). It assumes nothing about the distribution but that the
// samples are independent; latencies of neighbouring requests are not quite, so read it as the least width. ok is false
// when the sample does not carry q or a rank falls outside it.
func (h *Histogram) Interval(q float64) (low, high time.Duration, ok bool) {
	n := h.Count()
	if !Carries(n, q) {
		return 0, 0, false
	}
	centre, spread := float64(n)*q, z95*math.Sqrt(float64(n)*q*(1-q))
	first, last := int64(math.Floor(centre-spread)), int64(math.Ceil(centre+spread))+1
	if first < 1 || last > n {
		return 0, 0, false
	}
	return h.rank(first), h.rank(last), true
}

// rank is the k-th shortest sample, k from 1.
func (h *Histogram) rank(k int64) time.Duration {
	return h.Quantile(float64(k) / float64(h.Count()))
}

// A Point is one step of the cumulative distribution.
type Point struct {
	Quantile float64       // fraction of the samples at or below Value, 0 to 1
	Value    time.Duration // the longest duration of this step
	Count    int64         // samples at or below Value
}

// Curve is the cumulative distribution for a chart over log(1/(1-q)): a few points in each halving of the rest, up to
// the last quantile that the sample carries, and never beyond.
func (h *Histogram) Curve() []Point {
	var points []Point
	for _, b := range h.hdr.CumulativeDistributionWithTicks(4) {
		q := b.Quantile / 100
		if q > 0 && !h.Carries(q) {
			break
		}
		points = append(points, Point{Quantile: q, Value: min(time.Duration(b.ValueAt), Highest), Count: b.Count})
	}
	return points
}
