package histogram

import (
	"math"
	"time"
)

// Censored are durations of which some are only known to be longer than a bound: those of requests that were never
// answered. In terms of survival analysis they are right-censored. They rank above every known duration, because a
// request without an answer has no response time, however soon it failed.
type Censored struct {
	Known  *Histogram // durations
	Beyond *Histogram // bounds: each stands for an unknown duration that is at least as long
}

// Count is the number of durations, known and unknown.
func (c Censored) Count() int64 { return c.Known.Count() + c.Beyond.Count() }

// Quantile is the duration that a fraction q (0 to 1) do not exceed. If it falls among the unknown durations, atLeast is
// true and the duration is a lower bound. It is 0 without durations.
func (c Censored) Quantile(q float64) (d time.Duration, atLeast bool) {
	if c.Beyond.Count() == 0 {
		return c.Known.Quantile(q), false
	}
	return c.rank(min(max(int64(q*float64(c.Count())+0.5), 1), c.Count()))
}

// rank is the k-th shortest duration, k from 1. That of an unknown duration is at least the k-th shortest of all
// durations and bounds.
func (c Censored) rank(k int64) (d time.Duration, atLeast bool) {
	if k <= c.Known.Count() {
		return c.Known.rank(k), false
	}
	return c.merged().rank(k), true
}

func (c Censored) merged() *Histogram {
	all := New()
	all.Merge(c.Known)
	all.Merge(c.Beyond)
	return all
}

// Max is the longest duration, a lower bound if any is unknown.
func (c Censored) Max() (d time.Duration, atLeast bool) {
	return max(c.Known.Max(), c.Beyond.Max()), c.Beyond.Count() > 0
}

// Mean is the arithmetic mean, a lower bound if any duration is unknown.
func (c Censored) Mean() (d time.Duration, atLeast bool) {
	if c.Beyond.Count() == 0 {
		return c.Known.Mean(), false
	}
	return c.merged().Mean(), true
}

// Carries reports whether at least TailSamples durations lie beyond the quantile q.
func (c Censored) Carries(q float64) bool { return Carries(c.Count(), q) }

// z95 is the normal quantile of a two-sided 95 % interval.
const z95 = 1.96

// Interval is the 95 % confidence interval of the quantile q by order statistics: the samples of rank
// floor(nq-1.96 s) and ceil(nq+1.96 s)+1 with s = sqrt(nq(1-q)). It assumes that samples are independent, which latencies
// of neighboring requests are not quite, so the true interval may be wider. If its upper end falls among the unknown
// durations, atLeast is true. ok is false if the sample is too small for q or for a rank.
func (c Censored) Interval(q float64) (low, high time.Duration, atLeast, ok bool) {
	n := c.Count()
	centre, spread := float64(n)*q, z95*math.Sqrt(float64(n)*q*(1-q))
	first, last := int64(math.Floor(centre-spread)), int64(math.Ceil(centre+spread))+1
	if !c.Carries(q) || first < 1 || last > n {
		return 0, 0, false, false
	}
	low, _ = c.rank(first)
	high, atLeast = c.rank(last)
	return low, high, atLeast, true
}
