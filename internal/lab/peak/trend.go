package peak

import "math"

// Range of the levels that tell about the margin at a rate.
const (
	trendRange  = 0.20 // of ln(rate), both ways
	trendMargin = 1.0  // margins beyond it are those of another part of the curve
	trendLevels = 3    // least number of levels
)

// A trend is the straight line through the margins of a criterion near a rate, by weighted least squares over ln(rate).
type trend struct {
	center   float64 // ln(rate) of the mean
	mean     float64 // margin there
	slope    float64
	variance float64 // of the mean
	spread   float64 // variance of the slope
}

// trendAt fits a trend to the levels near the rate. ok is false if they are too few or do not rise.
func (m *proof) trendAt(criterion string, rate float64) (t trend, ok bool) {
	t, ok = m.fit(criterion, rate, trendRange)
	return t, ok && t.slope > 0
}

// fit fits a trend to the levels within a distance from the rate, in ln(rate). ok is false if they are too few.
func (m *proof) fit(criterion string, rate, within float64) (t trend, ok bool) {
	type point struct{ x, y, weight float64 }
	var points []point
	var weights float64
	for _, l := range m.levels {
		y, sigma, has := l.margin(criterion)
		x := math.Log(l.rate)
		if !has || math.Abs(x-math.Log(rate)) > within || math.Abs(y) > trendMargin {
			continue
		}
		w := 1 / (sigma * sigma)
		points = append(points, point{x, y, w})
		weights += w
		t.center += w * x
		t.mean += w * y
	}
	if len(points) < trendLevels {
		return trend{}, false
	}
	t.center /= weights
	t.mean /= weights
	var xx, xy float64
	for _, p := range points {
		xx += p.weight * (p.x - t.center) * (p.x - t.center)
		xy += p.weight * (p.x - t.center) * (p.y - t.mean)
	}
	t.slope, t.variance, t.spread = xy/xx, 1/weights, 1/xx
	squares := 0.0
	for _, p := range points {
		d := p.y - t.mean - t.slope*(p.x-t.center)
		squares += p.weight * d * d
	}
	if scale := squares / float64(len(points)-2); scale > 1 { // the margins scatter more than their standard errors say
		t.variance *= scale
		t.spread *= scale
	}
	return t, true
}

// at returns the margin at the rate and its standard error.
func (t trend) at(rate float64) (margin, sigma float64) {
	x := math.Log(rate) - t.center
	return t.mean + t.slope*x, math.Sqrt(t.variance + t.spread*x*x)
}

// expects returns the largest margin, in standard errors, that the trends of the criteria tell at the level.
func (m *proof) expects(l *level) (sigmas float64, ok bool) {
	sigmas = math.Inf(-1)
	for _, name := range l.criteria() {
		if t, has := m.trendAt(name, l.rate); has {
			margin, sigma := t.at(l.rate)
			sigmas, ok = max(sigmas, margin/sigma), true
		}
	}
	return sigmas, ok
}

// Limits of a smooth boundary.
const (
	cliffSlope = 30  // d ln(latency) / d ln(rate); that of a single queue is 19 at 95 % of its capacity
	cliffJump  = 0.5 // least jump of the margin, with which a latency is 1.6 times as long
)

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
