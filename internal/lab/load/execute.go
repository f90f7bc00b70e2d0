package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// Watcher samples other processes and databases during a run.
type Watcher interface {
	// Watches returns the records that precede the samples.
	Watches() []result.Watch
	// Run passes every sample to emit until stop is called. Times count from zero.
	Run(ctx context.Context, zero time.Time, emit func(*result.Sample) error) (stop func() error)
	// Mark announces the border of a step, which may be in the future: every counter is read at that time. It returns at once.
	Mark(border time.Time)
}

// Hooks are what the caller of Execute adds to a run. Fields may be nil.
type Hooks struct {
	// Watch opens the watcher after the target has answered. It returns nil for none.
	Watch func() (Watcher, error)
	// Follow receives the recorder before the run begins, to show the run while it is under way.
	Follow func(*result.Recorder)
	// Next decides the steps instead of Options.Amount.
	Next Next
	// Ended completes the last record of the result.
	Ended func(*result.End)
	// Progress shows the run, instead of lines per step.
	Progress *Progress
	// Find parses NAME=SPEC of a process. Options.Pin requires it.
	Find func(spec string) (Process, error)
	// Keeper is the command that restores the cores of a pinned target, see cores.Start.
	Keeper []string
}

// Execute runs the load that the options describe, shows the progress on w and returns the results. It adds the options
// to the header.
func Execute(ctx context.Context, o Options, hooks Hooks, header result.Header, w io.Writer) (_ *result.Run, err error) {
	config, err := o.prepare(ctx, hooks.Next)
	if err != nil {
		return nil, err
	}
	warning := o.describe(config, &header)
	release, err := o.take(config, hooks, &header)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	var watcher Watcher
	if hooks.Watch != nil {
		if watcher, err = hooks.Watch(); err != nil {
			return nil, err
		}
	}
	header.StartedAt = time.Now().UTC() // steps and samples count from here
	var watches []result.Watch
	if watcher != nil {
		watches = watcher.Watches()
	}
	display := hooks.Progress
	if display == nil {
		display = newProgress(w, o.ReportInterval, len(config.Steps), o.Flow != "")
	}
	recorder, err := result.NewRecorder(o.Out, header, watches, display.Message)
	if err != nil {
		return nil, err
	}
	if hooks.Follow != nil {
		hooks.Follow(recorder)
	}
	stop := func() error { return nil }
	if watcher != nil {
		stop = watcher.Run(ctx, header.StartedAt, recorder.Sample)
	}
	var end result.End
	listener := listener(recorder, display, &end.Elapsed)
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	config.abort.follow(&listener, cancel)
	if watcher != nil {
		listener.Border = watcher.Mark
	}
	for _, note := range config.Target.Notes() {
		listener.message(note)
	}
	if warning != "" {
		listener.message(warning)
	}
	config.Zero = config.Clock.At(header.StartedAt)
	interrupted, err := Run(loading, *config, listener)
	end.Reason, end.Aborted = config.abort.end(interrupted)
	stopErr := stop()
	if hooks.Ended != nil {
		hooks.Ended(&end)
	}
	display.End()
	run, closeErr := recorder.Close(end)
	return run, errors.Join(err, stopErr, closeErr)
}

// describe completes the header, and returns a warning to show before the load begins, or "".
func (o *Options) describe(config *Config, header *result.Header) (warning string) {
	header.Run, header.Label, header.Target, header.SLO = o.RunID, o.Label, result.RedactURL(o.Target), o.SLO
	header.Seed = o.RandomSeed
	header.Notes = append(header.Notes, config.Target.Notes()...)
	header.Part, warning = config.describePart(readClock())
	return warning
}

// listener records a run and shows it. elapsed is set to the end of the last step.
func listener(recorder *result.Recorder, display *Progress, elapsed *float64) Listener {
	start := 0.0
	return Listener{
		Step: func(s *result.Step) error {
			start = s.Start
			display.Step(s)
			return recorder.Step(s)
		},
		Second: func(s *Second) error {
			display.Second(s)
			return nil
		},
		Slice:   recorder.Slice,
		Message: func(text string) { display.Message("load: " + text) },
		Total: func(t *result.Total) error {
			*elapsed = start + t.Elapsed
			err := recorder.Total(t) // without secrets from here on
			display.Total(t)
			return err
		},
	}
}

// Broken returns an error if the run ended for another reason than that it was
// finished or interrupted, or nil.
func Broken(run *result.Run) error {
	if run.CutOff != "" {
		return fmt.Errorf("load: the run is incomplete: %s", run.CutOff)
	}
	if run.End.Reason == result.Finished || run.End.Reason == result.Interrupted {
		return nil
	}
	return fmt.Errorf("load: the run ended early: %s", run.End.Reason)
}

// Judge returns an error with the code exit.Failed if a VALID step missed the SLO.
// If none did, but a step that is not VALID missed it or no step is VALID, the code
// is exit.NothingValid. Without an SLO it returns nil, unless the run was
// aborted, which is exit.Failed. So it does of a part of a load, because the SLO is
// about the whole.
func Judge(run *result.Run) error {
	switch {
	case run.End.Aborted:
		return exit.FailedError(errors.New(run.End.Reason))
	case run.Header.SLO == "" || run.Header.Part != nil:
		return nil
	}
	var misses, doubts, missedInDoubt []string
	for i := range run.Steps {
		step := &run.Steps[i]
		var missed []string
		for _, criterion := range step.Total.Missed() {
			missed = append(missed, fmt.Sprintf("%s at %s", criterion.Text, step.Name))
		}
		if step.Total.Validity == result.Valid {
			misses = append(misses, missed...)
			continue
		}
		doubts = append(doubts, doubt(step))
		if len(missed) > 0 {
			missedInDoubt = append(missedInDoubt, doubt(step))
		}
	}
	switch {
	case len(misses) > 0:
		return exit.FailedError(fmt.Errorf("SLO missed: %s", strings.Join(misses, ", ")))
	case len(run.Steps) == 0:
		return exit.NothingValidError(errors.New("nothing valid was measured: no step was run"))
	case len(missedInDoubt) > 0:
		doubts = missedInDoubt
	case len(doubts) < len(run.Steps):
		return nil
	}
	return exit.NothingValidError(fmt.Errorf("nothing valid was measured: %s", strings.Join(doubts, "; ")))
}

// doubt says why a step is not VALID, and what to do.
func doubt(step *result.StepRun) string {
	text := fmt.Sprintf("%s is %s", step.Name, step.Total.Validity.Word())
	if len(step.Total.Reasons) > 0 {
		text += " (" + step.Total.Reasons[0].String() + ")"
	}
	return text
}
