package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
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

// gcPercent makes the garbage collector run less often during a load. The heap is
// small and steady, so this costs a few megabytes and disturbs the pacer less.
const gcPercent = 400

// Execute runs the load that the options describe, shows the progress on w and
// returns the results. It adds the options to the header. open opens the watcher
// after the target has answered; it returns nil for none.
func Execute(ctx context.Context, o Options, header result.Header, w io.Writer, open func() (Watcher, error)) (_ *result.Run, err error) {
	config, err := o.prepare(ctx)
	if err != nil {
		return nil, err
	}
	abort, err := parseAbort(o.Abort)
	if err != nil {
		return nil, err
	}
	release, err := o.divide(config, &header)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	watcher, err := open()
	if err != nil {
		return nil, err
	}
	header.StartedAt, config.Zero = time.Now().UTC(), config.Clock.Now() // steps and samples count from here
	header.Run, header.Label, header.Seed, header.Target, header.SLO = o.RunID, o.Label, o.RandomSeed, result.RedactURL(o.Target), o.SLO
	header.Notes = append(header.Notes, config.Target.Notes()...)
	var watches []result.Watch
	if watcher != nil {
		watches = watcher.Watches()
	}
	display := newProgressDisplay(w, o.ReportInterval, len(config.Steps))
	if config.Flow != nil {
		display.unit = "iterations"
	}
	recorder, err := result.NewRecorder(o.Out, header, watches, display.message)
	if err != nil {
		return nil, err
	}
	for _, note := range config.Target.Notes() {
		display.message("load: " + note)
	}
	stopRefreshing := refresh(ctx, config.Target, display)
	defer stopRefreshing()
	if o.Follow != nil {
		o.Follow(recorder)
	}
	stop := func() error { return nil }
	if watcher != nil {
		stop = watcher.Run(ctx, header.StartedAt, recorder.Sample)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	end := result.End{Reason: result.Finished}
	listener := listener(recorder, display, &end.Elapsed)
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	abort.follow(&listener, cancel)
	if watcher != nil {
		listener.Border = watcher.Mark
	}
	interrupted, err := Run(loading, *config, listener)
	if interrupted {
		end.Reason = cmp.Or(abort.reason(), result.Interrupted)
	}
	stopErr := stop()
	display.end()
	run, closeErr := recorder.Close(end)
	return run, errors.Join(err, stopErr, closeErr)
}

// refresh keeps the addresses of the target up to date until stop is called.
func refresh(ctx context.Context, t *target.Target, display *progressDisplay) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var refreshing sync.WaitGroup
	refreshing.Go(func() { t.Refresh(ctx, func(text string) { display.message("load: " + text) }) })
	return func() {
		cancel()
		refreshing.Wait()
	}
}

// listener records a run and shows it. elapsed is set to the end of the last step.
func listener(recorder *result.Recorder, display *progressDisplay, elapsed *float64) Listener {
	start := 0.0
	return Listener{
		Step: func(s *result.Step) error {
			start = s.Start
			display.step(s)
			return recorder.Step(s)
		},
		Second: func(s *Second) error {
			display.second(s)
			return recorder.Slice(&s.Slice)
		},
		Total: func(t *result.Total) error {
			*elapsed = start + t.Elapsed
			display.total(t)
			return recorder.Total(t)
		},
	}
}

// Judge returns an error with the code exit.Failed if a VALID step missed the SLO,
// and one with the code exit.NothingValid if none did, but a step that is not VALID
// missed it or no step is VALID. Without an SLO it returns nil, unless the run was
// aborted, which is exit.Failed.
func Judge(run *result.Run) error {
	switch {
	case strings.HasPrefix(run.End.Reason, abortPrefix):
		return exit.FailedError(errors.New(run.End.Reason))
	case run.Header.SLO == "":
		return nil
	}
	var misses, doubts, missedInDoubt []string
	for i := range run.Steps {
		step := &run.Steps[i]
		missed := missedBy(step)
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

// missedBy names the criteria that a step missed.
func missedBy(step *result.StepRun) (missed []string) {
	for _, criterion := range step.Total.SLO {
		if !criterion.Met {
			missed = append(missed, fmt.Sprintf("%s at %s", criterion.Text, step.Name))
		}
	}
	return missed
}

// doubt says why a step is not VALID, and what to do.
func doubt(step *result.StepRun) string {
	text := fmt.Sprintf("%s is %s", step.Name, step.Total.Validity)
	if len(step.Total.Reasons) > 0 {
		text += " (" + step.Total.Reasons[0] + ")"
	}
	return text
}
