package peak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// knobRun searches for the peak again with every other value of every knob.
type knobRun struct {
	settings Settings // of the search with the original values; its Deadline is that of everything
	original Answer
	knobs    []knob

	set     func(ctx context.Context, command, value string) error
	measure func(ctx context.Context, settings Settings) (Answer, error) // a search that Ctrl-C ends without an error
	elapsed func() time.Duration                                         // since the begin of everything
	say     func(text string)
}

// A search for a knob begins above the peak of the original value: if its first rate meets the SLO, the peak has moved up.
const (
	knobStart     = 1.1  // over the upper end of the original interval
	knobFar       = 1.65 // over the lowest rate that missed, at most
	knobPrecision = 0.1
)

// originalShare is the part of the time that the search with the original values gets, if there are so many others.
func originalShare(others int) float64 { return 2 / float64(2+others) }

// othersOf is the number of other values.
func othersOf(knobs []knob) int {
	n := 0
	for _, k := range knobs {
		n += len(k.others)
	}
	return n
}

// run turns every knob and sets it back. The results are complete also after an error, which names what went wrong first, and
// what could not be set back. Signals that end this process end the searches only, so that a knob is always set back.
func (r *knobRun) run(ctx context.Context) (results []KnobResult, err error) {
	ending := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as by nohup
		ending = append(ending, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, ending...)
	defer stop()
	pipe := make(chan os.Signal, 1) // or else a write to a closed standard error ends this process
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	left := othersOf(r.knobs)
	for i := range r.knobs {
		k := &r.knobs[i]
		touched := false
		for _, value := range k.others {
			one := KnobResult{Name: k.name, Original: k.original, Value: value, Moved: NotMeasured}
			settings, reason := r.plan(left)
			switch {
			case err != nil:
				one.Reason = "another value had failed"
			case ctx.Err() != nil:
				one.Reason = "interrupted"
			case reason != "":
				one.Reason = reason
			default:
				touched = true
				err = r.turn(ctx, k, settings, &one)
			}
			results = append(results, one)
			left--
		}
		if touched {
			err = errors.Join(err, r.restore(ctx, k))
		}
	}
	return results, err
}

// plan returns the settings of the next search, if so many are left, or why there is none.
func (r *knobRun) plan(left int) (s Settings, reason string) {
	s = r.settings
	s.Precision, s.Start, s.Deadline = max(knobPrecision, s.Precision), 0, 0
	switch a := r.original; {
	case a.High > 0:
		s.Start = knobStart * min(a.High, knobFar*a.Infeasible)
	case a.Low > 0:
		s.Start = a.Low
	default:
		return s, "there is no peak to compare with"
	}
	if s.Max > 0 {
		s.Start = min(s.Start, s.Max)
	}
	s.Start = roundRate(s.Start, 3)
	if r.settings.Deadline > 0 {
		s.Deadline = max((r.settings.Deadline-r.elapsed())/time.Duration(left), time.Nanosecond) // 0 is no limit
		if _, ok := NewSearch(s).Next(0); !ok {
			return s, "no time was left; raise --max-time"
		}
	}
	return s, ""
}

// turn sets a knob to a value and searches. An interrupt is no error.
func (r *knobRun) turn(ctx context.Context, k *knob, settings Settings, to *KnobResult) error {
	title := fmt.Sprintf("knob %s=%s instead of %s", k.name, to.Value, k.original)
	r.say(title)
	began := r.elapsed()
	if err := r.set(ctx, k.command, to.Value); err != nil {
		if ctx.Err() != nil {
			to.Reason = "interrupted"
			return nil
		}
		to.Reason = "the command failed"
		return fmt.Errorf("%s: %s: %w", title, to.Reason, err)
	}
	if settings.Deadline > 0 {
		settings.Deadline = max(settings.Deadline-(r.elapsed()-began), time.Nanosecond)
	}
	answer, err := r.measure(ctx, settings)
	if err != nil {
		if ctx.Err() != nil {
			to.Reason = "interrupted"
			return nil
		}
		to.Reason = "the load failed"
		return fmt.Errorf("%s: %v", title, err) // the options were right before the knob was turned: no usage error
	}
	to.Answer = answer
	to.judge(r.original)
	r.say(fmt.Sprintf("knob %s=%s: %s", k.name, to.Value, to.movedText()))
	return nil
}

// restore sets the service back to the original value, also if ctx has ended.
func (r *knobRun) restore(ctx context.Context, k *knob) error {
	r.say(fmt.Sprintf("knob %s=%s: restoring", k.name, k.original))
	if err := r.set(context.WithoutCancel(ctx), k.command, k.original); err != nil {
		return fmt.Errorf("KNOB NOT RESTORED: the command of %s=%s failed: %w. Restore the service by hand: VALUE=%s sh -c %s", k.name,
			k.original, err, quoted(k.original), quoted(k.command))
	}
	r.say(fmt.Sprintf("knob %s=%s: restored", k.name, k.original))
	return nil
}
