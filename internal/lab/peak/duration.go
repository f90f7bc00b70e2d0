package peak

import (
	"cmp"
	"math"
	"slices"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// Lengths of probes. Package load judges drift and a growing backlog from four seconds on.
const (
	closedDuration  = time.Second
	closedWarmup    = 300 * time.Millisecond
	closedAnswers   = 10 // answers per connection of a closed loop
	closedMax       = 10 * time.Second
	bracketDuration = 4500 * time.Millisecond
	edgeDuration    = 5 * time.Second
	confirmDuration = 10 * time.Second
	openWarmup      = time.Second
	warmupMax       = 5 * time.Second
	warmupArrivals  = 20
	preciseAnswers  = 4                // answers near the edge over those that a percentile needs
	longDefault     = 10 * time.Second // length that they may cost without a deadline
	longShare       = 1.0 / 30         // the same as a part of the deadline
	answersMin      = 100              // without a percentile in the SLO
	errorAnswers    = 3                // answers times a limit on errors: with fewer, such a share of errors may show none
	answersMargin   = 1.2              // arrivals over the answers that a percentile needs
	confirmMargin   = 1.5              // length of a confirmation over that of another probe at the same rate
	againMax        = 4                // length of a probe over that of the first at the same rate
	overhead        = 300 * time.Millisecond
)

// cost is about what the probe takes on the clock.
func (p *Probe) cost() time.Duration { return p.Warmup + p.Duration + overhead }

// shortest is the shortest useful length of a probe at the rate: that with enough answers for the highest
// percentile and the smallest limit on errors.
func (s *Search) shortest(rate float64, least time.Duration) time.Duration {
	answers := float64(answersMin)
	if q := s.settings.Quantile; q > 0 && q < 1 {
		answers = max(answers, histogram.TailSamples/(1-q))
	}
	if share := s.settings.Errors; share > 0 {
		answers = max(answers, errorAnswers/share)
	}
	seconds := answersMargin * answers * s.sparse() / rate
	return max(least, time.Duration(min(seconds, DurationMax.Seconds())*float64(time.Second)).Round(100*time.Millisecond))
}

// sparse is how many times more answers than expected the percentiles need, because they are of a part of the requests only. It
// grows when a rate had too few twice in a row.
func (s *Search) sparse() float64 {
	factor, row := 1.0, 0
	for i, v := range s.path {
		switch {
		case v.Rate == 0 || v.Observation.Validity != result.TooFewSamples:
			row = 0
		case row > 0 && s.path[i-1].Rate == v.Rate:
			factor, row = min(2*factor, sparseMax), row+1
		default:
			row = 1
		}
	}
	return factor
}

const sparseMax = 16

// probe returns an open-loop probe. A rate that had too few answers, or changed meanwhile, gets twice the time at each attempt.
func (s *Search) probe(purpose Purpose, rate float64, m *proof) Probe {
	p := Probe{Purpose: purpose, Rate: rate, Duration: s.shortest(rate, bracketDuration), Warmup: max(warmup(rate), s.settle())}
	if purpose != Bracket {
		p.Duration = max(s.shortest(rate, edgeDuration), min(preciseAnswers*s.shortest(rate, 0), s.long()))
	}
	if purpose == ConfirmBelow || purpose == ConfirmAbove {
		p.Duration = max(confirmDuration, time.Duration(confirmMargin*float64(p.Duration)))
	}
	if l := m.at(rate); l != nil {
		again := 1.0
		for _, v := range l.invalid {
			validity := v.Observation.Validity
			if validity == result.TooFewSamples || validity == result.NotStationary {
				again = min(2*again, againMax)
			}
			if validity == result.NotStationary {
				p.Warmup = max(p.Warmup, min(2*p.Warmup, settleMax))
			}
		}
		p.Duration = time.Duration(float64(p.Duration) * max(1, again/s.sparse()))
	}
	p.Duration, p.Warmup = min(p.Duration, DurationMax), max(p.Warmup, s.settings.Warmup)
	return p
}

// long is the length of a probe near the edge that more answers than necessary may take, for the sake of precision.
func (s *Search) long() time.Duration {
	if s.settings.Deadline > 0 {
		return time.Duration(longShare * float64(s.settings.Deadline))
	}
	return longDefault
}

// warmup is the time in which a queue fills: longer at low rates.
func warmup(rate float64) time.Duration {
	seconds := clamp(warmupArrivals/rate, openWarmup.Seconds(), warmupMax.Seconds())
	return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond)
}

// settle is the time after which as many requests are in flight as will be: longer than an answer takes, or else those that begin to
// wait for slow answers look like a backlog. How long answers take in a backlog tells little: the shortest such time counts if there is
// no other.
func (s *Search) settle() time.Duration {
	var longest, queued time.Duration
	for i := range s.path {
		v := &s.path[i]
		took := v.Observation.Service
		switch {
		case v.Rate == 0 && v.Connections == 1, v.Rate > 0 && v.Observation.Validity == result.Valid && v.Observation.passes():
			longest = max(longest, took)
		case v.Rate > 0 && v.Observation.Validity == result.Valid && v.onlyOverloaded() && (queued == 0 || took < queued):
			queued = took
		}
	}
	return min(time.Duration(settleAnswers*float64(cmp.Or(longest, queued))), settleMax).Round(100 * time.Millisecond)
}

// onlyOverloaded reports whether every criterion was met and the backlog grew.
func (v *Visit) onlyOverloaded() bool {
	return v.Observation.Overloaded && !slices.ContainsFunc(v.Observation.Margins, func(m Margin) bool { return !m.Met })
}

// Limits of the warm-up of slow answers.
const (
	settleAnswers = 1.5
	settleMax     = 30 * time.Second
)

// shorten returns the probe, shorter if there is not enough time, down to the shortest useful length.
func (s *Search) shorten(p Probe, left time.Duration) Probe {
	if p.cost() > left {
		p.Duration = max(left-overhead-p.Warmup, s.shortest(p.Rate, bracketDuration))
	}
	return p
}

// roundRate rounds a rate to that many digits, so that reports show the rate that was run.
func roundRate(rate float64, digits int) float64 {
	scale := math.Pow(10, math.Floor(math.Log10(rate))-float64(digits-1))
	if scale < 1 {
		inverse := math.Round(1 / scale)
		return math.Round(rate*inverse) / inverse
	}
	return math.Round(rate/scale) * scale
}
