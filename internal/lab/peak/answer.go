package peak

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Answer tells what is proved so far. It may be called at any time, also between Next and Observe.
func (s *Search) Answer() Answer {
	m := s.proof()
	a := Answer{Stopped: cmp.Or(s.stopped, StoppedInterrupted), Path: slices.Clone(s.path), Probes: len(s.path)}
	if s.stopped == StoppedDeadline {
		a.Unfit = s.unfit
	}
	for _, v := range s.path {
		a.Took += v.Observation.Took
		a.Requests += v.Observation.Requests
	}
	a.Warnings = s.warnings(m)
	a.Feasible, a.Infeasible = m.feasible.rateOrZero(), m.infeasible.rateOrZero()
	if l := s.earlier(m); m.feasible == nil && l != nil {
		a.Warnings = append(a.Warnings, fmt.Sprintf("%g/s passed before the target became slower, and was not run again", l.rate))
	}
	below, above := s.confirmed(m)
	a.Confirmed = below && above
	a.Low, a.High = m.interval()
	a.Flat = m.flat()
	a.Binding = m.binding()
	if m.feasible != nil && m.infeasible != nil {
		a.Boundary = BoundarySmooth
		criterion, _, _ := m.infeasible.worst()
		if slope, jump, _ := m.slope(criterion); slope > cliffSlope && jump > cliffJump {
			a.Boundary = BoundaryCliff
		}
	}
	return a
}

// earlier returns the highest rate that passed before the last contradiction, below every rate that was missed since.
func (s *Search) earlier(m *proof) *level {
	before := (&Search{path: s.path[:s.since]}).proof()
	var highest *level
	for _, l := range before.levels {
		if v, _ := l.verdict(); v == passed && (m.infeasible == nil || l.rate < m.infeasible.rate) {
			highest = l
		}
	}
	return highest
}

// warnings lists what makes the answer doubtful.
func (s *Search) warnings(m *proof) []string {
	var w []string
	if s.falls > 0 {
		w = append(w, fmt.Sprintf("the target became slower during the search: rates that had passed were missed later (%d times), and what "+
			"this contradicts was discarded", s.falls))
	}
	if s.rises > 0 {
		w = append(w, fmt.Sprintf("the target became faster during the search: rates that had been missed passed later (%d times), and what "+
			"this contradicts was discarded", s.rises))
	}
	if slices.ContainsFunc(s.path, func(v Visit) bool { return v.Observation.Down }) {
		w = append(w, "the target went down: hardly a connection was not refused or reset, and what is proved is from before")
	}
	if m.feasible != nil {
		for _, l := range m.levels {
			if v, _ := l.verdict(); v == missed && l.rate < m.feasible.rate {
				w = append(w, fmt.Sprintf("not monotonic: %g/s misses the SLO although %g/s meets it", l.rate, m.feasible.rate))
				break
			}
		}
	}
	if criterion := m.binding(); m.flat() {
		w = append(w, fmt.Sprintf("%s hardly depends on the rate, so that noise moves the peak far", criterion))
	}
	for _, l := range m.levels {
		if n := len(l.invalid); len(l.visits) == 0 && n >= warnAttempts {
			w = append(w, fmt.Sprintf("no probe at %g/s was VALID: %s", l.rate, l.invalid[n-1].Observation.Validity))
		}
	}
	return w
}

// warnAttempts is the least number of probes at a rate, none of them VALID, that a warning is about.
const warnAttempts = 2

// z95 is the normal quantile of a two-sided 95 % interval.
const z95 = 1.96

// Slopes of ln(latency) over ln(rate) at the edge, for intervals.
const (
	slopeUsual = 1    // at least, unless the levels show less: that of a latency in proportion to the rate
	slopeFlat  = 0.5  // below it, a warning says that the interval is wide
	slopeLeast = 0.05 // at least
)

// interval returns the bounds of the peak at 95 %: the rates that were proved, or beyond them as far as the noise of the margins reaches.
func (m *proof) interval() (low, high float64) {
	if m.feasible != nil {
		low = m.feasible.rate * math.Exp(-m.beyond(m.feasible, 1))
	}
	if m.infeasible != nil {
		high = m.infeasible.rate * math.Exp(m.beyond(m.infeasible, -1))
	}
	return low, high
}

// beyond is how far in ln(rate) the edge may lie beyond a bound. sign is 1 for the lower bound.
func (m *proof) beyond(l *level, sign float64) float64 {
	if l.onlyOverloaded() {
		return 0
	}
	criterion, mean, sigma := l.worst()
	far := max(0, (sign*mean+z95*sigma)/m.slopeFor(criterion))
	if t, ok := m.trendAt(criterion, l.rate); ok && math.Abs(mean) <= trendMargin { // or else the bound is on another part of the curve
		mean, sigma = t.at(l.rate)
		far = max(far, (sign*mean+z95*sigma)/max(t.slope, slopeLeast))
	}
	return min(far, beyondMax)
}

const beyondMax = 2 // a factor of 7

// flat reports whether the criterion that binds hardly depends on the rate.
func (m *proof) flat() bool {
	return m.feasible != nil && m.infeasible != nil && m.slopeFor(m.binding()) < slopeFlat
}

// slopeFor is a slope for intervals: that between the bounds, as far as it is beyond doubt, and not less than that of all levels.
func (m *proof) slopeFor(criterion string) float64 {
	least := float64(slopeUsual)
	if t, ok := m.fit(criterion, 1, math.Inf(1)); ok {
		least = clamp(t.slope, slopeLeast, slopeUsual)
	}
	if m.feasible == nil || m.infeasible == nil {
		return least
	}
	slope, _, sigma := m.slope(criterion)
	return max(least, slope-sigma)
}

// binding is the criterion that is missed at the upper bound, by most if there are several. Without an upper bound it is the one with
// the least room at the lower bound.
func (m *proof) binding() string {
	if m.infeasible == nil {
		if m.feasible == nil {
			return ""
		}
		criterion, _, _ := m.feasible.worst()
		return criterion
	}
	most, binding := math.Inf(-1), ""
	for _, v := range m.infeasible.visits {
		for _, c := range v.Observation.Margins {
			if mean, _, ok := m.infeasible.margin(c.Criterion); !c.Met && ok && mean > most {
				most, binding = mean, c.Criterion
			}
		}
	}
	if binding == "" && !m.infeasible.onlyOverloaded() { // it passed, against the trend
		binding, _, _ = m.infeasible.worst()
	}
	return binding
}
