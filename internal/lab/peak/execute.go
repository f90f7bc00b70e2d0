package peak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Options are the settings of `spillway peak`, as written on the command line.
type Options struct {
	load.Options // of every probe; SLO is required, and of Amount only Warmup is used: the least warm-up of a probe
	Flags
}

// Flags are about the search, with tags of kong.
type Flags struct {
	MaxTime   time.Duration `group:"Search" default:"10m" help:"End the search after this time, with what is proved by then; 0: no limit."`
	Precision string        `group:"Search" default:"5%" help:"Widest interval of the peak, as a part of its lower end."`
	Start     float64       `filled:"" group:"Search" placeholder:"R" help:"First rate. Default: from what a closed loop reaches."`
	Max       float64       `filled:"" group:"Search" placeholder:"R" help:"Highest rate to try."`
	Knob      []string      `group:"Search" sep:"none" placeholder:"KNOB" help:"Search again with another value, say whether the peak moved, and set the original back: 'pool=8,16: COMMAND' (8 is in force; sh runs COMMAND with $$VALUE). Repeatable."`
}

// settings checks the options. Its errors are usage errors.
func (o *Options) settings() (Settings, result.SLO, error) {
	s := Settings{Start: o.Start, Max: o.Max, Deadline: o.MaxTime, Warmup: o.Warmup}
	slo, err := result.ParseSLO(o.SLO)
	if err == nil {
		s.Precision, err = parsePrecision(o.Precision)
	}
	switch {
	case err != nil:
	case o.Target == "":
		err = errors.New("peak: name a target, as in spillway peak http://127.0.0.1:8080/ --slo 'p99<70ms errors<0.5%'")
	case o.SLO == "":
		err = errors.New("peak: say what the target has to meet, as in --slo 'p99<70ms errors<0.5%'")
	case slo.LimitsRate():
		err = fmt.Errorf("--slo %q: peak finds the rate; remove the criterion on it", o.SLO)
	case o.MaxTime < 0 || !(o.Start >= 0) || !(o.Max >= 0):
		err = errors.New("peak: --max-time, --start and --max must not be negative, and must be numbers")
	case o.MaxTime > 0 && o.Warmup >= o.MaxTime:
		err = fmt.Errorf("peak: --warmup %s of each probe must be shorter than --max-time %s of the whole search", o.Warmup, o.MaxTime)
	case o.Start > load.RateMax || o.Max > load.RateMax:
		err = fmt.Errorf("peak: --start and --max must be at most %.0f", load.RateMax)
	case o.Max > 0 && o.Start > o.Max:
		err = fmt.Errorf("peak: --start %g is above --max %g", o.Start, o.Max)
	}
	s.Limits(slo)
	return s, slo, exit.UsageError(err)
}

// Limits sets what the SLO asks of the number of answers.
func (s *Settings) Limits(slo result.SLO) {
	for _, p := range slo.Percentiles() {
		s.Quantile = max(s.Quantile, p.Q)
	}
	for _, l := range slo.ErrorLimits() {
		if l.Share > 0 && (s.Errors == 0 || l.Share < s.Errors) {
			s.Errors = l.Share
		}
	}
}

// Widest and narrowest precision.
const (
	precisionMin = 0.005
	precisionMax = 1.0
)

// parsePrecision parses 5% or 0.05.
func parsePrecision(text string) (float64, error) {
	digits, percent := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(digits, 64)
	if percent {
		share /= 100
	}
	if err != nil || !(share >= precisionMin && share <= precisionMax) {
		return 0, fmt.Errorf("--precision %q: write a share from %g%% to %g%%, as in 5%%", text, 100*precisionMin, 100*precisionMax)
	}
	return share, nil
}

// Execute searches for the highest rate that meets the SLO and shows the progress on w. It adds the options to the header. Of
// the hooks, it decides Next, Ended and Progress. Afterwards it turns the knobs and sets them back, also if ctx has ended. An
// interrupted search is not an error: the Outcome has what is proved so far.
func Execute(ctx context.Context, o Options, hooks load.Hooks, header result.Header, w io.Writer) (*Outcome, error) {
	o.RandomSeed = cmp.Or(o.RandomSeed, rand.Uint64()>>12|1) // 52 bits are exact in every JSON reader
	settings, slo, err := o.settings()
	if err != nil {
		return nil, err
	}
	knobs, err := parseKnobs(o.Knob)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	began := time.Now()
	original := settings
	if original.Deadline > 0 { // 0 is no limit
		original.Deadline = max(time.Duration(originalShare(othersOf(knobs))*float64(settings.Deadline)), time.Nanosecond)
	}
	answer, run, err := search(ctx, o, hooks, original, slo, header, w)
	if err != nil {
		return nil, err
	}
	outcome := &Outcome{Answer: answer, Run: run, Flow: o.Flow != ""}
	outcome.diagnose()
	if len(knobs) == 0 {
		return outcome, nil
	}
	o.Out = "" // the result file is about the original values only, as is what follows and watches the run
	k := knobRun{
		settings: settings, original: answer, knobs: knobs, set: set,
		measure: func(ctx context.Context, settings Settings) (Answer, error) {
			answer, _, err := search(ctx, o, load.Hooks{Find: hooks.Find, Keeper: hooks.Keeper}, settings, slo, header, w)
			return answer, err
		},
		elapsed: func() time.Duration { return time.Since(began) },
		say:     func(text string) { fmt.Fprintln(w, text) },
	}
	outcome.Knobs, outcome.Problem = k.run(ctx)
	outcome.weigh()
	return outcome, nil
}

// search runs one search. It is not an error if ctx ends while it runs.
func search(ctx context.Context, o Options, hooks load.Hooks, settings Settings, slo result.SLO, header result.Header,
	w io.Writer,
) (Answer, *result.Run, error) {
	e := &execution{
		slo: slo, search: NewSearch(settings), display: newDisplay(w, settings.Deadline, o.Flow != ""), now: time.Now,
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if settings.Deadline > 0 {
		end := time.AfterFunc(math.MaxInt64, func() { cancel(errOverdue) })
		defer end.Stop()
		e.start = func() { end.Reset(min(settings.Deadline, math.MaxInt64-overdueMax) + overdueMax) }
		e.overdue = func() bool { return errors.Is(context.Cause(ctx), errOverdue) }
	}
	hooks.Next, hooks.Progress, hooks.Ended = e.next, e.display.Progress, e.ended
	run, err := load.Execute(ctx, o.Options, hooks, header, w)
	if err == nil {
		err = load.Broken(run)
	}
	if err != nil {
		return Answer{}, nil, err
	}
	return e.search.Answer(), run, nil
}

// overdueMax is how long after its deadline a search may wait for the answers to its last probe.
const overdueMax = 2 * time.Second

var errOverdue = errors.New("no time is left")

// execution runs the probes of a search as the steps of a load.
type execution struct {
	slo     result.SLO
	search  *Search
	display *display
	now     func() time.Time
	start   func()      // called before the first probe; nil: nothing to do
	overdue func() bool // whether the search was ended after its deadline; nil: no deadline

	began   time.Time // of the search
	current *Probe    // under way; nil: none
	from    time.Time // when it began
}

// next is a load.Next.
func (e *execution) next(_ context.Context, previous *result.Total) (load.Step, bool, error) {
	now := e.now()
	if e.began.IsZero() {
		e.began = now
		if e.start != nil {
			e.start()
		}
	}
	if e.current != nil && previous != nil {
		observation, err := ObservationOf(e.slo, previous, now.Sub(e.from))
		if err != nil {
			return load.Step{}, false, err
		}
		e.search.Observe(*e.current, observation)
		e.display.observed(previous, &observation, e.search.Answer())
	}
	if previous != nil && slices.Contains(previous.Codes(), result.DataUsedUp) {
		e.search.Stop(StoppedUsedUp)
	}
	probe, more := e.search.Next(now.Sub(e.began))
	if !more {
		return load.Step{}, false, nil
	}
	e.current, e.from = &probe, now
	e.display.begins(probe)
	return probe.step(), true, nil
}

// ended adds to the last record what the steps do not tell.
func (e *execution) ended(end *result.End) {
	if e.overdue != nil && e.overdue() {
		e.search.Stop(StoppedDeadline)
	}
	a := e.search.Answer()
	end.Search = &result.Search{Stopped: a.Stopped, Probes: a.Probes, Seconds: a.Took.Seconds(), Unfit: a.Unfit.Seconds()}
}

// step is the step of load for the probe.
func (p *Probe) step() load.Step {
	step := load.Step{Duration: p.Duration, Warmup: p.Warmup, Connections: p.Connections}
	if p.Rate > 0 {
		step.Rate = p.Rate
		step.Name = fmt.Sprintf("%s %s", p.Purpose, sheet.Rate(p.Rate))
		step.Connections = 0 // those of the policy
		return step
	}
	step.Name = fmt.Sprintf("%s %d connections", p.Purpose, p.Connections)
	return step
}

// ObservationOf turns the total of a step into an observation. took is the time of the whole probe. With a flow, the rate is that of
// iterations, as in the rate of an open loop.
func ObservationOf(slo result.SLO, t *result.Total, took time.Duration) (Observation, error) {
	o := Observation{
		Validity: t.Validity, Rate: answered(t), Service: time.Duration(t.Little.ServiceMean * float64(time.Second)),
		Overloaded: t.Overloaded, Disturbed: disturbed(t), Down: down(t), Took: took, Requests: t.Requests(),
	}
	if t.Iterations != nil {
		if h, err := histogram.Decode(string(t.Iterations.Duration)); err == nil && h.Count() > 0 {
			o.Service = h.Mean()
		}
	}
	if len(t.Reasons) > 0 {
		o.Reason = t.Reasons[0].String()
	}
	var err error
	if o.Margins, err = slo.Margins(t); err == nil {
		o.judge(slo, t)
	}
	return o, err
}

// judge decides what a step tells a search where that differs from what it measured. A backlog that grew shows that the rate is too
// high, even if the step is too short to miss the SLO. Without enough requests, no failure does not show that few of them fail.
func (o *Observation) judge(slo result.SLO, t *result.Total) {
	if o.Validity == result.NotStationary && o.Overloaded { // the backlog is the reason, because whatever else is worse takes Overloaded back
		o.Validity = result.Valid
	}
	if o.Validity != result.Valid || !o.passes() {
		return
	}
	for _, l := range slo.ErrorLimits() {
		if n := t.RequestsOf(l.Label); n < l.Samples() && !l.Default {
			o.Validity = result.TooFewSamples
			o.Reason = fmt.Sprintf("%d requests are too few for %s: at least %d show that so few fail", n, l.Criterion, l.Samples())
			return
		}
	}
}

// Limits of a target that is down.
const (
	downMin   = 20   // requests
	downShare = 0.99 // of those that were sent
)

// down reports whether nearly every connection was refused or reset.
func down(t *result.Total) bool {
	sent := t.Requests() - t.Errors[result.Unsent]
	return sent >= downMin && float64(t.Errors[result.Refused]+t.Errors[result.Reset]) >= downShare*float64(sent)
}

// idleMax is the share of its time that a generator with CPU to spare uses in its busiest thread, or waits for a CPU in all threads
// together.
const idleMax = 0.75

// disturbed reports whether a step is not VALID although the generator had CPU to spare, and connections: the hypervisor, an
// interrupt or another program held it up.
func disturbed(t *result.Total) bool {
	return (t.Validity == result.GeneratorLimited || t.Validity == result.HostContended) && t.Iterations == nil && t.Errors.Own() == 0 &&
		t.Elapsed > 0 && t.Cost.ThreadBusyMax+t.Cost.RunQueueWait/t.Elapsed < idleMax
}

// answered is the rate of good answers, or of complete iterations of a flow.
func answered(t *result.Total) float64 {
	if t.Iterations != nil && t.Elapsed > 0 {
		return float64(t.Iterations.Completed) / t.Elapsed
	}
	return t.Rate()
}
