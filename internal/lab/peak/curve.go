package peak

import (
	"math"
	"slices"
)

// A curve describes how the margin of one criterion depends on the rate.
type curve struct {
	criterion string
	rates     []float64 // ascending
	speeds    []float64 // limit/observed, not increasing: 1 at the edge
}

// isotonic returns the non-decreasing sequence that is closest to the values by weighted least squares (pool adjacent
// violators: Ayer et al., "An Empirical Distribution Function for Sampling with Incomplete Information", 1955).
func isotonic(values, weights []float64) []float64 {
	type block struct {
		mean, weight float64
		n            int
	}
	var blocks []block
	for i, v := range values {
		blocks = append(blocks, block{v, weights[i], 1})
		for n := len(blocks); n > 1 && blocks[n-2].mean >= blocks[n-1].mean; n-- {
			a, b := blocks[n-2], blocks[n-1]
			weight := a.weight + b.weight
			blocks = append(blocks[:n-2], block{(a.mean*a.weight + b.mean*b.weight) / weight, weight, a.n + b.n})
		}
	}
	fitted := make([]float64, 0, len(values))
	for _, b := range blocks {
		fitted = append(fitted, slices.Repeat([]float64{b.mean}, b.n)...)
	}
	return fitted
}

// curveOf fits a curve to the levels. It interpolates the reciprocal of the latency, which falls linearly with the rate of a
// single queue, so that two distant rates suffice to predict its edge.
func curveOf(levels []*level, criterion string) curve {
	c := curve{criterion: criterion}
	var values, weights []float64
	for _, l := range levels {
		if mean, sigma, ok := l.margin(criterion); ok {
			c.rates = append(c.rates, l.rate)
			values, weights = append(values, mean), append(weights, 1/(sigma*sigma))
		}
	}
	for _, v := range isotonic(values, weights) {
		c.speeds = append(c.speeds, math.Exp(-v))
	}
	return c
}

// margin is the predicted ln(observed/limit) at a rate within the curve, at its nearest end outside, and that of no load without a curve.
func (c curve) margin(rate float64) float64 {
	i, found := slices.BinarySearch(c.rates, rate)
	switch {
	case len(c.rates) == 0:
		return -logMax
	case found:
	case i == 0:
	case i == len(c.rates):
		i--
	default:
		part := (rate - c.rates[i-1]) / (c.rates[i] - c.rates[i-1])
		return -math.Log(c.speeds[i-1] + part*(c.speeds[i]-c.speeds[i-1]))
	}
	return -math.Log(c.speeds[i])
}

// root is the rate at which the margin becomes 0. ok is false if it does not between the ends of the curve.
func (c curve) root() (rate float64, ok bool) {
	for i := 1; i < len(c.rates); i++ {
		if before, after := c.speeds[i-1], c.speeds[i]; before >= 1 && after < 1 {
			return c.rates[i-1] + (c.rates[i]-c.rates[i-1])*(before-1)/(before-after), true
		}
	}
	return 0, false
}

// near returns the levels that tell about the edge: those above a rate that was missed although higher ones passed, which may be
// slow for lack of load.
func (m *proof) near() []*level {
	levels := m.levels
	for i, l := range m.levels {
		if m.feasible == nil || l.rate >= m.feasible.rate {
			break
		}
		if v, _ := l.verdict(); v == missed {
			levels = m.levels[i+1:]
		}
	}
	return slices.DeleteFunc(slices.Clone(levels), func(l *level) bool { return len(l.visits) == 0 })
}

// curves fits a curve to each criterion.
func (m *proof) curves() []curve {
	levels := m.near()
	var names []string
	for _, l := range levels {
		for _, name := range l.criteria() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	curves := make([]curve, len(names))
	for i, name := range names {
		curves[i] = curveOf(levels, name)
	}
	return curves
}

// root is the rate at which the first criterion is missed, as far as the curves tell.
func (m *proof) root() (rate float64, ok bool) {
	for _, c := range m.curves() {
		if r, found := c.root(); found && (!ok || r < rate) {
			rate, ok = r, true
		}
	}
	return rate, ok && m.feasible != nil && m.feasible.rate < rate && rate < m.top()
}

// predict returns the predicted margin of the criterion at the rate.
func (m *proof) predict(criterion string, rate float64) float64 {
	for _, c := range m.curves() {
		if c.criterion == criterion {
			return c.margin(rate)
		}
	}
	return -logMax
}

// Limits of a smooth curve.
const (
	surpriseSigmas = 3
	surpriseMin    = 0.3 // deviation of a margin from the curve that is always accepted
	cliffSlope     = 30  // d ln(latency) / d ln(rate); that of a single queue is 19 at 95 % of its capacity
	cliffJump      = 0.5 // least jump of the margin, with which a latency is 1.6 times as long
)

// judgeCurve compares the margin at the rate with what the curve predicted before, between two bounds.
func (s *Search) judgeCurve(before *proof, rate float64) {
	s.surprise = false
	if before.feasible == nil || before.infeasible == nil || rate <= before.feasible.rate || rate >= before.infeasible.rate {
		return
	}
	criterion, mean, sigma := s.proof().at(rate).worst()
	s.surprise = math.Abs(mean-before.predict(criterion, rate)) > max(surpriseSigmas*sigma, surpriseMin)
}

// slope is d margin / d ln(rate) between the bounds, for a criterion, the jump of its margin, and the standard error of the slope.
func (m *proof) slope(criterion string) (slope, jump, sigma float64) {
	high, above, _ := m.infeasible.margin(criterion)
	low, below, ok := m.feasible.margin(criterion)
	if !ok {
		low = -logMax
	}
	jump = high - low
	distance := math.Log(m.infeasible.rate / m.feasible.rate)
	return jump / distance, jump, math.Hypot(above, below) / distance
}
