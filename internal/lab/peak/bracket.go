package peak

import (
	"time"
)

// Limits of the closed-loop probes.
const (
	connectionsMax = 256  // connections
	growthMin      = 1.1  // rate over that with half the connections, with which more connections are tried
	closedShare    = 0.15 // of the deadline
	closedAttempts = 3    // with the same number of connections
)

// First rate of an open loop, as a part of the closed loop's. A low rate takes long to give enough answers.
const (
	startFar     = 0.25
	startNear    = 0.50
	startNearest = 0.70
	startLong    = 10 * time.Second // length of a first probe from which a higher rate is better
	startDefault = 10.0             // per second, if the closed loop tells nothing
)

// Steps from one rate to the next, as factors.
const (
	stepFar        = 2.0
	stepNear       = 1.25        // near the edge
	stepContradict = 1.1         // the first one away from a rate that contradicts what was proved
	marginFar      = -0.7        // margin below which the edge is far: the latency is half of its limit
	marginNear     = 0.25        // margin above 0 up to which it is near
	fullShare      = 0.9         // of the closed loop's rate, below which no step goes beyond that rate
	hurry          = time.Minute // time left, below which all steps are long
)

// Limits of the bracket.
const (
	missesMax    = 8               // rates that were missed without one that passed
	dipsMax      = 2               // of them, those above the first
	dipTolerance = 0.1             // decrease of the margin at half of the rate that is none
	blockedMax   = 3               // rates that are hopeless
	downDuration = 2 * time.Minute // longest probe below a rate that was missed
)

// closedRate is the highest rate of the closed-loop probes. They only tell where to begin, for which few answers are enough.
func (s *Search) closedRate() float64 {
	highest := 0.0
	for _, v := range s.path {
		if v.Rate == 0 && usable(&v.Observation) {
			highest = max(highest, v.Observation.Rate)
		}
	}
	return highest
}

// usable reports whether a closed-loop probe tells where to begin. It need not be VALID, because it proves nothing: on a machine that
// generator and target share, a closed loop uses all of it.
func usable(o *Observation) bool { return o.Rate >= rateMin && o.Rate <= RateMax }

// planClosed returns the next closed-loop probe: with twice the connections, until the rate stops growing.
func (s *Search) planClosed(left time.Duration) (Probe, bool) {
	d := s.settings.Deadline
	if s.settings.Start > 0 || d > 0 && float64(d-left) > closedShare*float64(d) {
		return Probe{}, false
	}
	p := Probe{Purpose: Closed, Connections: 1, Duration: closedDuration, Warmup: max(closedWarmup, s.settings.Warmup)}
	attempts, before := 0, 0.0
	for _, v := range s.path {
		switch {
		case v.Rate > 0:
			return Probe{}, false
		case !usable(&v.Observation):
			attempts++
			p.Duration = min(4*p.Duration, closedMax)
		case v.Observation.Rate < growthMin*before || v.Connections >= connectionsMax:
			return Probe{}, false
		default:
			attempts, before = 0, max(before, v.Observation.Rate)
			p.Connections = 2 * v.Connections
			p.Duration = max(closedDuration, min(closedAnswers*v.Observation.Service, closedMax))
		}
	}
	return p, attempts < closedAttempts
}

// start is the first rate of an open loop. Low rates take long to give enough answers, so that it is higher then.
func (s *Search) start() float64 {
	rate, full := s.settings.Start, s.closedRate()
	switch {
	case rate > 0:
		return rate
	case full == 0:
		rate = startDefault
	case s.shortest(startFar*full, 0) <= startLong:
		rate = startFar * full
	case s.shortest(startNear*full, 0) <= startLong:
		rate = startNear * full
	default:
		rate = startNearest * full
	}
	return s.limit(roundRate(rate, 3))
}

// limit returns the rate, at most the highest allowed.
func (s *Search) limit(rate float64) float64 { return min(rate, s.settings.Max) }

// planBracket returns the next probe while there is no rate that passed or none that was missed above it.
func (s *Search) planBracket(m *proof, left time.Duration) (Probe, string) {
	rate, stop := 0.0, ""
	switch {
	case len(m.levels) == 0:
		rate = s.start()
	case m.feasible == nil:
		rate, stop = s.down(m, left)
	case m.feasible.rate >= s.settings.Max:
		if _, firm := m.feasible.verdict(); firm {
			return Probe{}, StoppedMaximum
		}
		p := s.shorten(s.probe(Repeat, m.feasible.rate, m), left)
		if p.cost() > left {
			return Probe{}, StoppedMaximum
		}
		return p, ""
	default:
		rate, stop = s.up(m)
	}
	if stop != "" {
		return Probe{}, stop
	}
	return s.shorten(s.probe(Bracket, rate, m), left), ""
}

// up returns the rate above the highest that passed.
func (s *Search) up(m *proof) (rate float64, stop string) {
	from, blocked := m.feasible.rate, 0
	hopeless, far := 0, true
	for _, l := range m.levels {
		if l.rate > from && l.blocked() {
			from = l.rate
			blocked++
			far = blocked < 2 && l.disturbed()
			if l.hopeless() {
				hopeless++
			}
		}
	}
	factor := stepNear
	if _, margin, _ := m.feasible.worst(); margin < marginFar && far {
		factor = stepFar
	}
	if s.rises > 0 && len(m.levels) == 1 {
		factor = stepContradict
	}
	rate = from * factor
	if full := s.closedRate(); s.since == 0 && from < fullShare*full {
		rate = min(rate, max(full, from*stepContradict))
	}
	rate = s.limit(roundRate(rate, 3))
	if hopeless >= blockedMax || rate <= from || m.at(rate) != nil {
		return 0, StoppedInvalid
	}
	return rate, ""
}

// down returns the rate below the lowest that was missed, or above all of them if the target may be slow for lack of load.
func (s *Search) down(m *proof, left time.Duration) (rate float64, stop string) {
	lowest, misses, hopeless := m.levels[0], 0, 0
	for _, l := range m.levels {
		switch {
		case l.hopeless():
			hopeless++
		case !l.blocked():
			misses++
		}
	}
	switch {
	case hopeless >= blockedMax:
		return 0, StoppedInvalid
	case s.dips(m):
		if rate = s.limit(roundRate(stepFar*m.levels[len(m.levels)-1].rate, 3)); m.at(rate) == nil {
			return rate, ""
		}
	}
	if misses > missesMax {
		return 0, StoppedNothingMet
	}
	factor := stepFar
	_, margin, _ := lowest.worst()
	switch {
	case s.falls > 0 && left < hurry:
	case s.falls > 0 && len(m.levels) == 1:
		factor = stepContradict
	case s.falls > 0 && len(m.levels) == 2, margin < marginNear && !lowest.blocked() && !lowest.onlyOverloaded():
		factor = stepNear
	}
	rate = roundRate(lowest.rate/factor, 3)
	switch {
	case s.shortest(rate, 0) <= downDuration:
		return rate, ""
	case misses == 0:
		return 0, StoppedInvalid
	}
	return 0, StoppedNothingMet
}

// dips reports whether a higher rate may pass although all rates so far were missed: half of the load did not help.
func (s *Search) dips(m *proof) bool {
	if s.since > 0 || len(m.levels) < 2 {
		return false
	}
	start := s.start()
	low, next, ups := m.levels[0], m.levels[1], 0
	for _, l := range m.levels {
		if l.rate > start {
			ups++
		}
		for _, v := range l.visits {
			if v.Observation.Overloaded {
				return false
			}
		}
	}
	_, margin, sigma := low.worst()
	_, above, _ := next.worst()
	return ups < dipsMax && len(low.visits) > 0 && len(next.visits) > 0 && margin > above-max(dipTolerance, clearSigmas*sigma)
}
