package peak

import (
	"cmp"
	"math"
	"slices"
	"time"

	"spillway/internal/lab/result"
)

// A verdict says what the VALID visits to a rate tell.
type verdict int

const (
	open   verdict = iota // no VALID visit
	passed                // the rate meets the SLO
	missed                // it does not, or its visits disagree
)

// Limits of the visits to one rate.
const (
	visitsMax         = 6   // VALID visits; if the last two disagree, the rate is too close to the edge to pass
	attemptsMax       = 4   // visits in a row that are not VALID
	unsettledAttempts = 2   // the same at a rate without a VALID visit, if all changed meanwhile, as a backlog at the edge does
	unsettledBracket  = 1   // the same in the bracket above a rate that passed, from where a large step tells more
	disturbedAttempts = 6   // the same, if all were disturbed and there is time
	disturbedHasty    = 4   // the same, if there is little time
	disturbedAgain    = 2   // the same, after another rate was given up for it
	generatorAttempts = 3   // the same, if all are GENERATOR_LIMITED
	generatorAgain    = 2   // the same, near a rate that the generator cannot offer
	clearSigmas       = 2   // distance of a margin from 0 that is beyond doubt, in standard errors
	luckySigmas       = 0.0 // margin that the rates around tell, in standard errors, from which a rate that passed was lucky
)

// A level is a rate and all that is proved about it.
type level struct {
	rate    float64
	visits  []*Visit // the VALID ones
	invalid []*Visit // those after the last VALID one
	most    int      // how many there may be, if all were disturbed
	scatter float64  // variance of margins over that of their standard errors, at least 1
	tooHigh bool     // the generator cannot offer a higher one
	above   bool     // a lower rate passed
	lucky   bool     // it passed, but the trend of the rates around it says that it does not
}

// rateOrZero is the rate, 0 without a level.
func (l *level) rateOrZero() float64 {
	if l == nil {
		return 0
	}
	return l.rate
}

// passes reports whether the observation meets every criterion and the target kept up.
func (o *Observation) passes() bool {
	return len(o.Margins) > 0 && !o.Overloaded && !slices.ContainsFunc(o.Margins, func(m Margin) bool { return !m.Met })
}

// shows reports whether the visit proves that its rate meets the SLO, or else that it misses it.
func (v *Visit) shows(met bool) bool {
	return v.Rate > 0 && !v.Observation.Down && v.Observation.Validity == result.Valid && v.Observation.passes() == met
}

// obstacle is why the observation is not VALID. A generator that was held up can offer the rate at another time.
func (o *Observation) obstacle() result.Validity {
	if o.Disturbed && o.Validity == result.GeneratorLimited {
		return result.HostContended
	}
	return o.Validity
}

// onlyOverloaded reports whether the rate was missed only because the backlog grew, so that the margins do not tell how far the edge is.
func (l *level) onlyOverloaded() bool {
	return len(l.visits) > 0 && !slices.ContainsFunc(l.visits, func(v *Visit) bool { return !v.onlyOverloaded() })
}

// answered is the mean rate of good answers, and whether the backlog grew in every visit.
func (l *level) answered() (rate float64, backlog bool) {
	backlog = len(l.visits) > 0
	for _, v := range l.visits {
		rate += v.Observation.Rate / float64(len(l.visits))
		backlog = backlog && v.Observation.Overloaded
	}
	return rate, backlog
}

// agreed reports whether the last two visits say the same.
func (l *level) agreed() bool {
	n := len(l.visits)
	return n > 1 && l.visits[n-2].Observation.passes() == l.visits[n-1].Observation.passes()
}

// verdict is that of the last two visits if they agree, so that a level follows a target that changes. firm means that more visits
// are of no use.
func (l *level) verdict() (v verdict, firm bool) {
	n := len(l.visits)
	if n == 0 {
		return open, false
	}
	firm = l.agreed() || n >= visitsMax || l.exhausted()
	if l.visits[n-1].Observation.passes() && (l.agreed() || n == 1) {
		if l.lucky && n >= visitsMax {
			return missed, true
		}
		return passed, firm && !(l.lucky && !l.exhausted())
	}
	return missed, firm
}

// exhausted reports whether too many visits in a row were not VALID. If the generator cannot offer the rate, or if the target does not
// settle at it, fewer tell.
func (l *level) exhausted() bool {
	n, most, enough := len(l.invalid), attemptsMax, generatorAttempts
	if l.tooHigh {
		enough = generatorAgain
	}
	if l.disturbed() {
		most = l.most
	}
	unsettled := unsettledAttempts
	if n > 0 && l.above && l.invalid[0].Purpose == Bracket {
		unsettled = unsettledBracket
	}
	return n >= most || n >= enough && l.all(result.GeneratorLimited) || len(l.visits) == 0 && n >= unsettled && l.all(result.NotStationary)
}

// disturbed reports whether something held up the generator in all visits that are not VALID.
func (l *level) disturbed() bool {
	return !slices.ContainsFunc(l.invalid, func(v *Visit) bool { return !v.Observation.Disturbed })
}

// all reports whether the visits that are not VALID have the same obstacle.
func (l *level) all(obstacle result.Validity) bool {
	return !slices.ContainsFunc(l.invalid, func(v *Visit) bool { return v.Observation.obstacle() != obstacle })
}

// blocked reports whether nothing can be proved at the rate.
func (l *level) blocked() bool { return len(l.visits) == 0 && l.exhausted() }

// hopeless reports whether nothing can be proved at the rate, nor probably at higher ones. Something that holds up the generator passes,
// and a target that does not settle is near its limit.
func (l *level) hopeless() bool {
	return l.blocked() && !l.disturbed() && !l.all(result.NotStationary)
}

// generatorLimited reports whether the generator cannot offer the rate: for want of CPU, or because every one of many attempts says so.
func (l *level) generatorLimited() bool {
	if !l.blocked() {
		return false
	}
	n := len(l.invalid)
	if n >= disturbedAttempts && !slices.ContainsFunc(l.invalid,
		func(v *Visit) bool { return v.Observation.Validity != result.GeneratorLimited }) {
		return true
	}
	return n > 1 && l.invalid[n-1].Observation.obstacle() == result.GeneratorLimited &&
		l.invalid[n-2].Observation.obstacle() == result.GeneratorLimited
}

// margin returns the mean margin of the criterion and its standard error. ok is false if no visit has it.
func (l *level) margin(criterion string) (mean, sigma float64, ok bool) {
	n, variance := 0.0, 0.0
	for _, v := range l.visits {
		for _, m := range v.Observation.Margins {
			if m.Criterion == criterion && !math.IsNaN(m.Log) {
				mean += clamp(m.Log, -logMax, logMax)
				sigma := sigmaOf(m)
				variance += sigma * sigma
				n++
			}
		}
	}
	if n == 0 {
		return 0, 0, false
	}
	return mean / n, math.Sqrt(variance*max(1, l.scatter)) / n, true
}

// scatter is the variance of the margins of repeated rates over that of their standard errors, which assume independent answers; 1 if it
// is smaller, or if there are too few repetitions.
func (m *proof) scatter() float64 {
	squares, freedom := 0.0, 0.0
	for _, l := range m.levels {
		for _, name := range l.criteria() {
			mean, _, _ := l.margin(name)
			n := 0.0
			for _, v := range l.visits {
				for _, c := range v.Observation.Margins {
					if c.Criterion == name && math.Abs(c.Log) < trendMargin {
						squares += (c.Log - mean) * (c.Log - mean) / sigmaOf(c) / sigmaOf(c)
						n++
					}
				}
			}
			freedom += max(0, n-1)
		}
	}
	if freedom < scatterLeast {
		return 1
	}
	return max(1, squares/freedom)
}

const scatterLeast = 2 // repetitions

// Limits of what a margin tells.
const (
	logMax       = 5.0  // beyond it, a factor of 150, margins are alike
	sigmaMin     = 0.01 // standard errors assume independent answers, which those of a queue are not
	sigmaUnknown = 0.10
)

func sigmaOf(m Margin) float64 {
	if !(m.Sigma > 0) {
		return sigmaUnknown
	}
	return clamp(m.Sigma, sigmaMin, logMax)
}

func clamp(x, low, high float64) float64 { return max(low, min(x, high)) }

// worst returns the margin that is closest to a miss, or misses most, in terms of its standard error.
func (l *level) worst() (criterion string, mean, sigma float64) {
	mean, sigma = -logMax, sigmaUnknown
	for _, name := range l.criteria() {
		if m, s, ok := l.margin(name); ok && (criterion == "" || m/s > mean/sigma) {
			criterion, mean, sigma = name, m, s
		}
	}
	return criterion, mean, sigma
}

// criteria returns the criteria in the order of the SLO.
func (l *level) criteria() []string {
	var names []string
	for _, v := range l.visits {
		for _, m := range v.Observation.Margins {
			if !slices.Contains(names, m.Criterion) {
				names = append(names, m.Criterion)
			}
		}
	}
	return names
}

// proof is what the VALID visits prove since the last contradiction.
type proof struct {
	levels       []*level // by rate
	feasible     *level   // highest that passed; nil: none
	infeasible   *level   // lowest above it that was missed; nil: none
	generatorTop *level   // lowest above it that the generator cannot offer; nil: none
	lone         *level   // highest that passed only once, above one that was missed, which is not proof enough; nil: none
}

// proof sums up the visits.
func (s *Search) proof() *proof {
	m := &proof{}
	for i := s.since; i < len(s.path); i++ {
		v := &s.path[i]
		discarded := slices.ContainsFunc(s.doubts, func(d doubt) bool { return d.discards(i, v) })
		switch l := m.at(v.Rate); {
		case v.Rate == 0 || v.Observation.Down:
		case !discarded:
			m.add(v)
		case l != nil:
			l.invalid = nil // it was VALID after them
		}
	}
	slices.SortFunc(m.levels, func(a, b *level) int { return cmp.Compare(a.rate, b.rate) })
	tooHigh, above := false, false
	for _, l := range m.levels {
		l.most, l.above = s.disturbedMost(l), above
		above = above || slices.ContainsFunc(l.visits, func(v *Visit) bool { return v.Observation.passes() })
	}
	for _, l := range slices.Backward(m.levels) {
		l.tooHigh = tooHigh
		tooHigh = tooHigh || l.generatorLimited()
	}
	scatter := m.scatter()
	for _, l := range m.levels {
		l.scatter = scatter
	}
	gap := false // a lower rate was missed
	for _, l := range m.levels {
		l.lucky = m.lucky(l)
		switch v, firm := l.verdict(); {
		case v == missed:
			gap = true
		case v == passed && gap && !l.agreed():
			if !firm {
				m.lone = l
			}
		case v == passed:
			m.feasible = l
		}
	}
	for _, l := range slices.Backward(m.levels) {
		if m.feasible != nil && l.rate <= m.feasible.rate {
			break
		}
		if v, _ := l.verdict(); v == missed {
			m.infeasible = l
		}
		if l.generatorLimited() {
			m.generatorTop = l
		}
	}
	if m.lone != nil && m.feasible != nil && m.lone.rate < m.feasible.rate {
		m.lone = nil
	}
	return m
}

// disturbedMost is how often a disturbed level is tried. If another one has been given up since the last VALID probe, what disturbs
// the host lasts, and the time is better spent on other rates.
func (s *Search) disturbedMost(l *level) int {
	most, row := disturbedAttempts, 0
	if s.settings.Deadline > 0 && s.settings.Deadline < hasty {
		most = disturbedHasty
	}
	for _, v := range slices.Backward(s.path) {
		if v.Rate == 0 || v.Observation.Validity == result.Valid {
			break
		}
		if v.Rate != l.rate && v.Observation.Disturbed {
			row++
		}
	}
	if row >= disturbedHasty {
		return disturbedAgain
	}
	return most
}

// hasty is the shortest deadline that leaves time for many attempts.
const hasty = 90 * time.Second

func (m *proof) add(v *Visit) {
	l := m.at(v.Rate)
	if l == nil {
		l = &level{rate: v.Rate}
		m.levels = append(m.levels, l)
	}
	if v.Observation.Validity == result.Valid {
		l.visits, l.invalid = append(l.visits, v), nil
	} else {
		l.invalid = append(l.invalid, v)
	}
}

// lucky reports whether a rate passed although the trend of the rates around it says that it does not.
func (m *proof) lucky(l *level) bool {
	if n := len(l.visits); n == 0 || !l.visits[n-1].Observation.passes() {
		return false
	}
	sigmas, ok := m.expects(l)
	return ok && sigmas > luckySigmas
}

// at returns the level of the rate, nil if it was not visited.
func (m *proof) at(rate float64) *level {
	for _, l := range m.levels {
		if l.rate == rate {
			return l
		}
	}
	return nil
}

// top is the upper end of the interval in which probes can tell more, 0 if there is none.
func (m *proof) top() float64 {
	switch {
	case m.infeasible == nil && m.generatorTop == nil:
		return 0
	case m.generatorTop == nil || m.infeasible != nil && m.infeasible.rate < m.generatorTop.rate:
		return m.infeasible.rate
	}
	return m.generatorTop.rate
}

// limited reports whether the generator sets the upper end.
func (m *proof) limited() bool { return m.generatorTop != nil && m.top() == m.generatorTop.rate }
