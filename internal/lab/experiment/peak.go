package experiment

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

// Limits of the attempts at one rate.
const (
	peakDurationMax = 10 * time.Minute // of an attempt that is longer because the previous one was too short
	peakSamplesMin  = 100              // answers, also without a percentile in the SLO
)

// searchPeak runs the peak search of a trial: a run of `spillway load` per probe, as long as the file says, or longer if the previous
// attempt at the rate was too short.
func (e *engine) searchPeak(ctx context.Context, t *trial) (*PeakRun, error) {
	facts := e.file.Peak
	load := e.file.Load.with(facts.Load)
	slo, err := t.data.slo(load)
	if err != nil {
		return nil, err
	}
	settings := peak.Settings{Precision: facts.Step, Start: facts.Start, Max: facts.Max}
	settings.Limits(slo)
	found, search := &PeakRun{}, peak.NewSearch(settings)
	tries, began := map[float64]int{}, time.Now()
	durations := map[float64]string{} // of rates with an attempt that was too short
	for {
		probe, more := search.Next(time.Since(began))
		if !more {
			break
		}
		load.Rate, load.Duration = fmt.Sprint(probe.Rate), cmp.Or(durations[probe.Rate], e.file.Load.with(facts.Load).Duration)
		name := fmt.Sprintf("%s%g", PeakPrefix, probe.Rate)
		if tries[probe.Rate]++; tries[probe.Rate] > 1 {
			name = fmt.Sprintf("%s-again%d", name, tries[probe.Rate]-1)
		}
		observation, err := e.attempt(ctx, t, found, name, probe.Rate, load, slo)
		if err != nil {
			return found, err
		}
		if v := observation.Validity; v == result.TooFewSamples || v == result.NotStationary { // a backlog that grows misses the SLO later
			if durations[probe.Rate], err = t.data.longer(load, probe.Rate); err != nil {
				return found, err
			}
		}
		search.Observe(probe, observation)
	}
	found.conclude(search.Answer(), facts.Max)
	return found, nil
}

// attempt runs one attempt of a search and records it.
func (e *engine) attempt(ctx context.Context, t *trial, found *PeakRun, name string, rate float64, load Load,
	slo result.SLO,
) (o peak.Observation, err error) {
	t.onLevel(name)
	began := time.Now()
	level, err := e.level(ctx, t, name, load)
	if err != nil {
		return o, err
	}
	if level.Error == "" {
		if level.Peak, o, err = judge(t.path(level.File), rate, slo, time.Since(began)); err != nil {
			level.Error = err.Error()
		}
	}
	found.Attempts = append(found.Attempts, *level)
	if level.Error != "" {
		return o, fmt.Errorf("%s: %s", name, level.Error)
	}
	return o, nil
}

// conclude sets the bounds that a search has found.
func (p *PeakRun) conclude(a peak.Answer, maximum float64) {
	p.Feasible, p.Infeasible, p.Stopped = a.Feasible, a.Infeasible, a.Stopped
	switch a.Stopped {
	case peak.StoppedPrecision:
	case peak.StoppedMaximum:
		p.Note = fmt.Sprintf("%g/s, the limit of the search, met the SLO", maximum)
	case peak.StoppedNothingMet:
		p.Note = "no rate that was tried met the SLO"
	default:
		p.Note = strings.Join(a.Warnings, "; ")
		for i := range a.Path {
			if rate := a.Path[i].Rate; p.validityAt(rate) != result.Valid {
				p.Unproved = rate
			}
		}
	}
}

// slo returns the SLO of a load, filled in.
func (s *templateData) slo(load Load) (result.SLO, error) {
	texts, err := s.texts("peak", []string{load.SLO}, s.values)
	if err != nil {
		return result.SLO{}, err
	}
	return result.ParseSLO(texts[0])
}

// longer returns a duration in which the percentiles of the SLO have enough answers at the rate, at least twice that of load.
func (s *templateData) longer(load Load, rate float64) (string, error) {
	texts, err := s.texts("peak", []string{load.Duration}, s.values)
	if err != nil {
		return "", err
	}
	before, err := time.ParseDuration(cmp.Or(texts[0], loadDuration.String()))
	if err != nil {
		return "", fmt.Errorf("read duration: %w", err)
	}
	slo, err := s.slo(load)
	if err != nil {
		return "", err
	}
	answers := float64(peakSamplesMin)
	for _, p := range slo.Percentiles() {
		answers = max(answers, histogram.TailSamples/(1-p.Q))
	}
	for _, l := range slo.ErrorLimits() {
		if !l.Default {
			answers = max(answers, float64(l.Samples()))
		}
	}
	const margin = 1.2
	need := time.Duration(margin*answers/rate*float64(time.Second)).Truncate(time.Second) + time.Second
	return min(max(need, 2*before), peakDurationMax).String(), nil
}

// judge reads the outcome of an attempt from its result file. took is the time of the attempt.
func judge(path string, rate float64, slo result.SLO, took time.Duration) (*PeakAttempt, peak.Observation, error) {
	run, err := result.ReadFile(path)
	if err != nil {
		return nil, peak.Observation{}, err
	}
	if len(run.Steps) != 1 || run.CutOff != "" {
		return nil, peak.Observation{}, fmt.Errorf("read %s: the file is incomplete", path)
	}
	total := &run.Steps[0].Total
	observation, err := peak.ObservationOf(slo, total, took)
	if err != nil {
		return nil, observation, fmt.Errorf("read %s: %w", path, err)
	}
	attempt := &PeakAttempt{Rate: rate, Validity: observation.Validity}
	var missed []string
	for _, criterion := range total.SLO {
		if !criterion.Met {
			missed = append(missed, criterion.Text)
		}
	}
	if len(missed) == 0 && observation.Overloaded {
		missed = append(missed, "the backlog grew")
	}
	attempt.Met, attempt.Missed = len(missed) == 0 && len(total.SLO) > 0, strings.Join(missed, " ")
	return attempt, observation, nil
}

// proof returns VALID if VALID attempts prove the peak, and otherwise the validity of an attempt at a bound and what is not
// proved. maximum is the limit of the search.
func (p *PeakRun) proof(maximum float64) (result.Validity, string) {
	for _, rate := range []float64{p.Unproved, p.Feasible, p.Infeasible} {
		if v := p.validityAt(rate); rate > 0 && v != result.Valid {
			return v, fmt.Sprintf("not proved: no attempt at %g/s was VALID, the last was %s; proved are %s", rate, cmp.Or(v, "not judged"),
				p.proved())
		}
	}
	switch p.Stopped {
	case "", peak.StoppedPrecision, peak.StoppedMaximum, peak.StoppedNothingMet: // "": of a run that did not record it
	default:
		return result.Unjudged, fmt.Sprintf("not proved: the search ended for the reason %q; proved are %s", p.Stopped, p.proved())
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
