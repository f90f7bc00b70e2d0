package peak

import (
	"math"
	"slices"
	"time"

	"spillway/internal/lab/result"
)

// Parts of the peak at which it is confirmed.
const (
	confirmLow  = 0.95
	confirmHigh = 1.05
	nearLow     = 0.90 // lowest part of the lower bound at which a rate that passed confirms it
	besideEdge  = 0.45 // distance from the expected edge of a refined rate, as a part of the precision
	nearHigh    = 1.10 // highest part of the upper bound at which a rate that was missed confirms it
)

// planAgain returns the last probe again if it was not VALID, or if it contradicts what was proved. It repeats a rate that passed once
// above one that was missed.
func (s *Search) planAgain(m *proof, left time.Duration) (Probe, bool) {
	if len(s.path) == 0 || s.path[len(s.path)-1].Rate == 0 {
		return Probe{}, false
	}
	last := &s.path[len(s.path)-1]
	l := m.at(last.Rate)
	_, firm := l.verdict()
	switch {
	case last.Observation.Validity != result.Valid && !l.exhausted(), contradicts(m, last) && !firm:
		return s.shorten(s.probe(last.Purpose, last.Rate, m), left), true
	case m.lone != nil:
		return s.shorten(s.probe(Repeat, m.lone.rate, m), left), true
	}
	return Probe{}, false
}

// contradicts reports whether a confirmation gave the opposite of what other rates proved.
func contradicts(m *proof, v *Visit) bool {
	if v.Observation.Validity != result.Valid || v.Purpose != ConfirmBelow && v.Purpose != ConfirmAbove {
		return false
	}
	for _, l := range m.levels {
		switch verdict, _ := l.verdict(); {
		case v.Purpose == ConfirmBelow && !v.Observation.passes() && l.rate > v.Rate && verdict == passed,
			v.Purpose == ConfirmAbove && v.Observation.passes() && l.rate < v.Rate && verdict == missed && l.rate > nearLow*v.Rate:
			return true
		}
	}
	return false
}

// A doubt discards visits that a later confirmation contradicts.
type doubt struct {
	before int     // index of the first visit of the confirmation
	rate   float64 // of the confirmation
	passed bool    // it discards passes at this rate or higher ones, not misses at this rate or lower ones
}

// discards reports whether the visit with that index does not prove anything any more.
func (d doubt) discards(i int, v *Visit) bool {
	return i < d.before && v.Observation.Validity == result.Valid && v.Observation.passes() == d.passed &&
		(d.passed && v.Rate >= d.rate || !d.passed && v.Rate <= d.rate)
}

// Limits of a contradiction that leaves the rest of what was proved.
const (
	slightMargin = 0.3
	slightSigmas = 3
)

// judgeContradiction discards what was proved before if a confirmation certainly contradicts it: the contradicted visits if it does so
// by little, everything if the target has changed.
func (s *Search) judgeContradiction(p Probe) {
	m := s.proof()
	l := m.at(p.Rate)
	if _, firm := l.verdict(); !firm || !contradicts(m, &s.path[len(s.path)-1]) {
		return
	}
	first := s.firstOfLast(p.Rate, min(2, len(l.visits)))
	if _, margin, sigma := l.worst(); math.Abs(margin) > max(slightMargin, slightSigmas*sigma) {
		s.since = first
	}
	if p.Purpose == ConfirmBelow {
		s.falls++
	} else {
		s.rises++
	}
	s.doubts = append(s.doubts, doubt{first, p.Rate, p.Purpose == ConfirmBelow})
}

// firstOfLast is the index of the first of the last n VALID visits to the rate.
func (s *Search) firstOfLast(rate float64, n int) int {
	for i, v := range slices.Backward(s.path) {
		if v.Rate == rate && v.Observation.Validity == result.Valid {
			if n--; n == 0 {
				return i
			}
		}
	}
	return s.since
}

// planEdge returns the next probe once there are both ends of an interval: it narrows it, repeats its ends, and confirms.
func (s *Search) planEdge(m *proof, left time.Duration) (Probe, string) {
	below, above := s.confirmations(m)
	reserve := s.reserve(below) + s.reserve(above)
	wide := math.Log(m.top()/m.feasible.rate) > math.Log1p(s.settings.Precision)*(1+1e-9)
	stop := StoppedPrecision
	if wide {
		rate, ok := s.refineRate(m)
		p := Probe{}
		if ok {
			p = s.probe(Refine, rate, m)
		}
		switch {
		case !ok:
			stop = StoppedInvalid
		case p.cost() <= left-reserve:
			return p, ""
		default:
			s.unfit, stop = p.cost()+reserve, StoppedDeadline
		}
	}
	for _, l := range []*level{m.infeasible, m.feasible} {
		if l == nil || m.limited() && l == m.infeasible {
			continue
		}
		if _, firm := l.verdict(); !firm {
			if p := s.probe(Repeat, l.rate, m); p.cost() <= left-reserve {
				return p, ""
			}
		}
	}
	if above.Rate > 0 {
		if p := s.shorten(above, left-s.reserve(below)); p.cost() <= left-s.reserve(below) {
			return p, ""
		}
		s.unfit, stop = s.reserve(above)+s.reserve(below), StoppedDeadline
	}
	if below.Rate > 0 { // last, so that a target that became slower is found out
		if p := s.shorten(below, left); p.cost() <= left {
			return p, ""
		}
		s.unfit, stop = s.reserve(below), StoppedDeadline
	}
	if m.limited() && stop == StoppedPrecision {
		stop = StoppedGenerator
	}
	return Probe{}, stop
}

// reserve is the least time that the confirmation needs.
func (s *Search) reserve(p Probe) time.Duration {
	if p.Rate == 0 {
		return 0
	}
	return s.shortest(p.Rate, bracketDuration) + p.Warmup + overhead
}

// confirmations returns the probes that still have to confirm the bounds, without a rate if there is nothing to confirm.
func (s *Search) confirmations(m *proof) (below, above Probe) {
	if m.limited() {
		return Probe{}, Probe{}
	}
	hasBelow, hasAbove := s.confirmed(m)
	peak := math.Sqrt(m.feasible.rate * m.infeasible.rate)
	if rate := roundRate(confirmLow*peak, 4); !hasBelow && !unvisitable(m.at(rate)) {
		below = s.probe(ConfirmBelow, rate, m)
	}
	if rate := s.limit(roundRate(confirmHigh*peak, 4)); !hasAbove && !unvisitable(m.at(rate)) {
		above = s.probe(ConfirmAbove, rate, m)
	}
	return below, above
}

// unvisitable reports whether more visits to the level are of no use.
func unvisitable(l *level) bool {
	return l != nil && (len(l.visits) >= visitsMax || l.exhausted())
}

// confirmed reports whether a confirmation below passed and one above was missed, both near the bounds.
func (s *Search) confirmed(m *proof) (below, above bool) {
	if m.feasible == nil || m.infeasible == nil {
		return false, false
	}
	for i := s.since; i < len(s.path); i++ {
		v := &s.path[i]
		if v.Rate == 0 || v.Observation.Validity != result.Valid {
			continue
		}
		l := m.at(v.Rate)
		if l == nil {
			continue
		}
		verdict, _ := l.verdict()
		low, high := v.Rate/m.feasible.rate, v.Rate/m.infeasible.rate
		below = below || v.Purpose == ConfirmBelow && verdict == passed && low <= 1 && low >= nearLow
		above = above || v.Purpose == ConfirmAbove && verdict == missed && high >= 1 && high <= nearHigh
	}
	return below, above
}

// refineRate returns a rate within the interval: beside the expected edge, because a rate at the edge takes many visits, and every
// third time the middle, because the expectation may be wrong. ok is false if no rate is left that could be VALID.
func (s *Search) refineRate(m *proof) (rate float64, ok bool) {
	precision := math.Log1p(s.settings.Precision)
	low, high, walls := m.widest()
	if walls && math.Log(high/low) <= precision {
		return 0, false
	}
	if root, ok := m.root(); ok && !walls && s.refined()%3 < 2 {
		distance := besideEdge * precision
		for _, near := range []float64{roundRate(root*math.Exp(-distance), 4), roundRate(root*math.Exp(distance), 4)} {
			if near > low*math.Exp(distance/2) && near < high*math.Exp(-distance/2) && m.at(near) == nil {
				return near, true
			}
		}
	}
	rate = roundRate(math.Sqrt(low*high), 4)
	return rate, rate > low && rate < high && m.at(rate) == nil
}

// refined is the number of probes that narrowed the interval.
func (s *Search) refined() int {
	n := 0
	for _, v := range s.path[s.since:] {
		if v.Purpose == Refine {
			n++
		}
	}
	return n
}

// root is the rate between the bounds at which the first criterion is expected to be missed. The reciprocal of the latency of a single
// queue falls linearly with the rate, to 0 at the rate that it answers in a backlog.
func (m *proof) root() (rate float64, ok bool) {
	if m.infeasible == nil || m.limited() {
		return 0, false
	}
	for _, name := range m.infeasible.criteria() {
		below, _, _ := m.feasible.margin(name)
		above, _, _ := m.infeasible.margin(name)
		end, slow := m.infeasible.rate, math.Exp(-above)
		if answered, backlog := m.infeasible.answered(); backlog {
			end, slow = answered, 0
		}
		fast := math.Exp(-below)
		if below <= -logMax || fast < 1 || slow >= 1 {
			continue // it does not tell
		}
		if r := m.feasible.rate + (fast-1)/(fast-slow)*(end-m.feasible.rate); !ok || r < rate {
			rate, ok = r, true
		}
	}
	return rate, ok
}

// widest returns the widest part of the interval without a rate that was tried in vain; walls: there are such rates, at which the target
// settled.
func (m *proof) widest() (low, high float64, walls bool) {
	low, high = m.feasible.rate, m.feasible.rate
	from := m.feasible.rate
	for _, l := range m.levels {
		if l.rate <= m.feasible.rate || l.rate > m.top() {
			continue
		}
		if l.rate/from > high/low {
			low, high = from, l.rate
		}
		walls = walls || l.rate < m.top() && !l.all(result.NotStationary)
		from = l.rate
	}
	return low, high, walls
}
