package experiment

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// An outcome says what an attempt at a rate proves.
type outcome int

const (
	met      outcome = iota // the rate meets the SLO
	missed                  // it does not
	unproved                // no attempt was VALID
)

// bounds are what a search proves; 0 means that there is none.
type bounds struct {
	feasible   float64 // highest rate met
	infeasible float64 // lowest rate missed above it
	unproved   float64 // rate at which the search ended because nothing could be proved
}

// search finds the highest rate that attempt meets. It doubles from start until a rate is missed or maximum is met, then
// halves the interval until it is within step of its lower end. If start itself is missed, it halves downwards at most six
// times. It ends with what it has at the first rate that proves nothing.
func search(start, maximum, step float64, attempt func(rate float64) (outcome, error)) (b bounds, err error) {
	const down = 6
	try := func(rate float64) (more bool) {
		var o outcome
		o, err = attempt(rate)
		switch {
		case err != nil:
		case o == met:
			b.feasible = rate
		case o == missed:
			b.infeasible = rate
		default:
			b.unproved = rate
		}
		return err == nil && o != unproved
	}
	for rate := start; b.infeasible == 0; rate = min(2*rate, maximum) {
		if !try(rate) || b.feasible >= maximum {
			return b, err
		}
	}
	for tries := 0; b.feasible == 0 || b.infeasible-b.feasible > step*b.feasible; tries++ {
		rate := math.Round((b.feasible + b.infeasible) / 2)
		if rate <= b.feasible || rate >= b.infeasible || b.feasible == 0 && tries == down {
			break
		}
		if !try(rate) {
			break
		}
	}
	return b, err
}

// Limits of the attempts at one rate.
const (
	peakTries       = 3                // attempts, until one is VALID
	peakDurationMax = 10 * time.Minute // of an attempt that is longer because the previous one was too short
	peakSamplesMin  = 100              // answers, also without a percentile in the SLO
)

// searchPeak runs the peak search of a trial.
func (e *engine) searchPeak(ctx context.Context, t *trial) (*PeakRun, error) {
	peak := e.file.Peak
	found := &PeakRun{}
	attempt := func(rate float64) (outcome, error) {
		load := e.file.Load.with(peak.Load)
		load.Rate = fmt.Sprint(rate)
		name := fmt.Sprintf("%s%g", PeakPrefix, rate)
		for tries := 1; ; tries++ {
			a, err := e.attempt(ctx, t, found, name, rate, load)
			switch {
			case err != nil:
				return unproved, err
			case a.Validity == result.Valid && a.Met:
				return met, nil
			case a.Validity == result.Valid:
				return missed, nil
			case tries == peakTries:
				return unproved, nil
			}
			if a.Validity == result.TooFewSamples || a.Validity == result.NotStationary { // a backlog that grows misses the SLO later
				if load.Duration, err = t.data.longer(load, rate); err != nil {
					return unproved, err
				}
			}
			name = fmt.Sprintf("%s%g-again%d", PeakPrefix, rate, tries)
		}
	}
	b, err := search(peak.Start, peak.Max, peak.Step, attempt)
	found.Feasible, found.Infeasible, found.Unproved = b.feasible, b.infeasible, b.unproved
	switch {
	case err != nil:
		return found, err
	case b.unproved > 0:
	case b.infeasible == 0:
		found.Note = fmt.Sprintf("%g/s, the limit of the search, met the SLO", peak.Max)
	case b.feasible == 0:
		found.Note = "no rate that was tried met the SLO"
	}
	return found, nil
}

// attempt runs one attempt of a search and records it.
func (e *engine) attempt(ctx context.Context, t *trial, found *PeakRun, name string, rate float64, load Load) (*PeakAttempt, error) {
	t.onLevel(name)
	level, err := e.level(ctx, t, name, load)
	if err != nil {
		return nil, err
	}
	if level.Error == "" {
		level.Peak, err = judge(t.path(level.File), rate)
		if err != nil {
			level.Error = err.Error()
		}
	}
	found.Attempts = append(found.Attempts, *level)
	if level.Error != "" {
		return nil, fmt.Errorf("%s: %s", name, level.Error)
	}
	return level.Peak, nil
}

// longer returns a duration in which the percentiles of the SLO have enough answers at the rate, at least twice that of load.
func (s *templateData) longer(load Load, rate float64) (string, error) {
	texts, err := s.texts("peak", []string{load.Duration, load.SLO}, s.values)
	if err != nil {
		return "", err
	}
	before, err := time.ParseDuration(cmp.Or(texts[0], loadDuration.String()))
	if err != nil {
		return "", fmt.Errorf("read duration: %w", err)
	}
	slo, err := result.ParseSLO(texts[1])
	if err != nil {
		return "", err
	}
	answers := float64(peakSamplesMin)
	for _, p := range slo.Percentiles() {
		answers = max(answers, histogram.TailSamples/(1-p.Q))
	}
	const margin = 1.2
	need := time.Duration(margin*answers/rate*float64(time.Second)).Truncate(time.Second) + time.Second
	return min(max(need, 2*before), peakDurationMax).String(), nil
}

// judge reads the outcome of an attempt from its result file.
func judge(path string, rate float64) (*PeakAttempt, error) {
	run, err := result.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(run.Steps) != 1 || run.CutOff != "" {
		return nil, fmt.Errorf("read %s: the file is incomplete", path)
	}
	total := &run.Steps[0].Total
	attempt := &PeakAttempt{Rate: rate, Validity: total.Validity}
	var missed []string
	for _, criterion := range total.SLO {
		if !criterion.Met {
			missed = append(missed, criterion.Text)
		}
	}
	attempt.Met, attempt.Missed = len(missed) == 0 && len(total.SLO) > 0, strings.Join(missed, " ")
	return attempt, nil
}

// proof returns VALID if VALID attempts prove the peak, and otherwise the validity of an attempt at a bound and what is not
// proved. maximum is the limit of the search.
func (p *PeakRun) proof(maximum float64) (result.Validity, string) {
	for _, rate := range []float64{p.Unproved, p.Feasible, p.Infeasible} {
		if v := p.validityAt(rate); rate > 0 && v != result.Valid {
			return v, fmt.Sprintf("not proved: no attempt at %g/s was VALID, the last was %s; proved are %s", rate, cmp.Or(v, "not judged"), p.proved())
		}
	}
	if p.Infeasible == 0 && p.Feasible < maximum {
		return result.Unjudged, "not proved: the search did not end; proved are " + p.proved()
	}
	return result.Valid, ""
}

// proved lists the bounds that VALID attempts prove.
func (p *PeakRun) proved() string {
	var parts []string
	if p.Feasible > 0 && p.validityAt(p.Feasible) == result.Valid {
		parts = append(parts, fmt.Sprintf("%g/s as met", p.Feasible))
	}
	if p.Infeasible > 0 && p.validityAt(p.Infeasible) == result.Valid {
		parts = append(parts, fmt.Sprintf("%g/s as missed", p.Infeasible))
	}
	return cmp.Or(strings.Join(parts, " and "), "no bounds")
}

// validityAt returns VALID if an attempt at the rate was, and otherwise the validity of the last one.
func (p *PeakRun) validityAt(rate float64) result.Validity {
	last := result.Unjudged
	for i := range p.Attempts {
		if a := p.Attempts[i].Peak; a != nil && a.Rate == rate {
			if last = a.Validity; last == result.Valid {
				break
			}
		}
	}
	return last
}

// peakFacts describes the peak search, nil without one.
func (f *File) peakFacts() *PeakFacts {
	if f.Peak == nil {
		return nil
	}
	load := f.Load.with(f.Peak.Load)
	return &PeakFacts{SLO: load.SLO, Start: f.Peak.Start, Max: f.Peak.Max, Step: f.Peak.Step, Flags: load.flags()}
}
