package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

// command returns the command of `spillway peak` before the arguments that it shares with load.
func (p *Peak) command() []string {
	return []string{
		"peak", fmt.Sprintf("--start=%g", p.Start), fmt.Sprintf("--max=%g", p.Max), fmt.Sprintf("--precision=%g", p.Step),
		"--max-time=" + p.MaxTime.String(),
	}
}

// peakLoad returns the flags of load that a search takes. It chooses rates and lengths itself.
func (f *File) peakLoad() Load {
	load := f.Load.with(f.Peak.Load)
	load.Rate, load.Duration, load.Requests, load.Abort = "", "", "", ""
	return load
}

// searchPeak runs the peak search of a trial.
func (e *engine) searchPeak(ctx context.Context, t *trial) (*PeakRun, error) {
	run, err := e.level(ctx, t, PeakName, e.file.Peak.command(), e.file.peakLoad())
	if err != nil {
		return nil, err
	}
	found := &PeakRun{LevelRun: *run}
	if run.Error != "" {
		return found, errors.New("peak: " + run.Error)
	}
	return found, found.read(t.path(run.File))
}

// read sets what the result file of the search proves.
func (p *PeakRun) read(path string) error {
	run, err := result.ReadFile(path)
	if err != nil {
		return err
	}
	outcome, err := peak.OutcomeOf(run)
	if err == nil && outcome == nil {
		err = errors.New("it has no probe")
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	p.conclude(&outcome.Answer, outcome.Headline())
	return nil
}

// conclude sets what a search proves. Only one that came to its end proves a peak.
func (p *PeakRun) conclude(a *peak.Answer, headline string) {
	p.Feasible, p.Infeasible, p.Validity = a.Feasible, a.Infeasible, result.Valid
	switch a.Stopped {
	case peak.StoppedPrecision, peak.StoppedNothingMet:
	case peak.StoppedMaximum:
		p.Note = fmt.Sprintf("%g/s, the limit of the search, met the SLO", a.Feasible)
	default:
		p.Validity = result.Unjudged
		if n := len(a.Path); n > 0 && a.Path[n-1].Observation.Validity != result.Valid {
			p.Validity = a.Path[n-1].Observation.Validity
		}
		p.Note = fmt.Sprintf("not proved, because the search ended for the reason %q. %s", a.Stopped, headline)
	}
}

// peakFacts describes the peak search, nil without one.
func (f *File) peakFacts() *PeakFacts {
	if f.Peak == nil {
		return nil
	}
	load := f.peakLoad()
	return &PeakFacts{
		SLO: load.SLO, Start: f.Peak.Start, Max: f.Peak.Max, Step: f.Peak.Step, MaxTime: f.Peak.MaxTime.Seconds(), Flags: load.flags(),
	}
}

// checkPeak checks a search, or what the quick block changes of it.
func (f *File) checkPeak(path string, peak *Peak, wrong reporter) {
	if peak == nil {
		return
	}
	f.checkLoad(path, peak.Load, wrong)
	inherits := path != "peak"
	if !inherits && peak.SLO == "" && f.Load.SLO == "" {
		wrong(path, "needs an slo, here or in load")
	}
	switch {
	case peak.Start < 0 || peak.Start > 1e7, peak.Max < 0 || peak.Max > 1e7:
		wrong(path, "start and max must be from 1 to 10000000 a second")
	case !inherits && peak.Max < peak.Start:
		wrong(path, "max is below start")
	case peak.Step < 0 || peak.Step > 1, !inherits && peak.Step < 0.005:
		wrong(path+".step", "must be from 0.005 to 1, a share of the rate")
	case peak.MaxTime < 0 || peak.MaxTime > 24*time.Hour:
		wrong(path+".max_time", "must be from 1s to 24h")
	}
	if peak.Rate != "" || peak.Duration != "" || peak.Requests != "" || peak.Abort != "" {
		wrong(path, "remove rate, duration, requests and abort: the search chooses rates and lengths; max_time limits it")
	}
}
