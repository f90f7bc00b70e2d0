package experiment

import (
	"context"
	"fmt"
	"math"
	"strings"

	"spillway/internal/lab/result"
)

// search finds the highest rate that attempt meets. It doubles from start until a rate is missed or maximum is met, then
// halves the interval until it is within step of its lower end. If start itself is missed, it halves downwards at most six
// times. It returns the highest rate met and the lowest rate missed above it; 0 means that there was none.
func search(start, maximum, step float64, attempt func(rate float64) (met bool, err error)) (feasible, infeasible float64, err error) {
	const down = 6
	for rate := start; ; rate = min(2*rate, maximum) {
		met, err := attempt(rate)
		if err != nil {
			return feasible, infeasible, err
		}
		if !met {
			infeasible = rate
			break
		}
		feasible = rate
		if rate >= maximum {
			return feasible, 0, nil
		}
	}
	for tries := 0; feasible == 0 || infeasible-feasible > step*feasible; tries++ {
		rate := math.Round((feasible + infeasible) / 2)
		if rate <= feasible || rate >= infeasible || feasible == 0 && tries == down {
			break
		}
		met, err := attempt(rate)
		if err != nil {
			return feasible, infeasible, err
		}
		if met {
			feasible = rate
		} else {
			infeasible = rate
		}
	}
	return feasible, infeasible, nil
}

// peakTries is the number of attempts at a rate that missed the SLO in a step that was not VALID, because the generator or
// another program may have caused the miss.
const peakTries = 2

// searchPeak runs the peak search of a trial.
func (e *engine) searchPeak(ctx context.Context, t *trial) (*PeakRun, error) {
	peak := e.file.Peak
	found := &PeakRun{}
	try := func(rate float64, name string) (*PeakAttempt, error) {
		load := e.file.Load.with(peak.Load)
		load.Rate = fmt.Sprint(rate)
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
	attempt := func(rate float64) (bool, error) {
		name := fmt.Sprintf("%s%g", PeakPrefix, rate)
		for tries := 1; ; tries++ {
			a, err := try(rate, name)
			if err != nil || a.Met || a.Validity == result.Valid || tries == peakTries {
				return err == nil && a.Met, err
			}
			name = fmt.Sprintf("%s%g-again%d", PeakPrefix, rate, tries)
		}
	}
	var err error
	found.Feasible, found.Infeasible, err = search(peak.Start, peak.Max, peak.Step, attempt)
	switch {
	case err != nil:
		return found, err
	case found.Infeasible == 0:
		found.Note = fmt.Sprintf("%g/s, the limit of the search, met the SLO", peak.Max)
	case found.Feasible == 0:
		found.Note = "no rate that was tried met the SLO"
	}
	return found, nil
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

// peakFacts describes the peak search, nil without one.
func (f *File) peakFacts() *PeakFacts {
	if f.Peak == nil {
		return nil
	}
	load := f.Load.with(f.Peak.Load)
	return &PeakFacts{SLO: load.SLO, Start: f.Peak.Start, Max: f.Peak.Max, Step: f.Peak.Step, Flags: load.flags()}
}
