package peak

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// total is a step of a second with n answers after the given time each, and as many failures.
func total(t *testing.T, slo result.SLO, n, failures int, took time.Duration) *result.Total {
	t.Helper()
	h := histogram.New()
	h.RecordN(took, int64(n))
	text, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	total := &result.Total{Elapsed: 1, Validity: result.Valid, Latency: result.Latency{Response: result.HDR(text)}, Little: result.Little{ServiceMean: took.Seconds()}}
	total.Due, total.Sent, total.Done, total.Completed = int64(n), int64(n), int64(n), int64(n-failures)
	total.Errors[result.StatusError] = int64(failures)
	if total.SLO, err = slo.Judge(total); err != nil {
		t.Fatal(err)
	}
	return total
}

func parse(t *testing.T, text string) result.SLO {
	t.Helper()
	slo, err := result.ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	return slo
}

func TestStepOfProbe(t *testing.T) {
	opened := Probe{Purpose: Refine, Rate: 1500, Duration: 5 * time.Second, Warmup: time.Second}
	if s := opened.step(); s.Rate != 1500 || s.Duration != 5*time.Second || s.Warmup != time.Second || s.Connections != 0 || s.Name != "refine 1,500/s" {
		t.Errorf("an open loop: %+v", s)
	}
	closed := Probe{Purpose: Closed, Connections: 4, Duration: time.Second, Warmup: 300 * time.Millisecond}
	if s := closed.step(); s.Open() || s.Connections != 4 || s.Warmup != 300*time.Millisecond || s.Name != "closed 4 connections" {
		t.Errorf("a closed loop: %+v", s)
	}
	for _, start := range []float64{0, 100} { // a closed loop, and an open one
		if p, _ := NewSearch(Settings{Start: start, Warmup: 2 * time.Second}).Next(0); p.Warmup != 2*time.Second {
			t.Errorf("%+v with --warmup 2s", p)
		}
	}
}

func TestObservationOf(t *testing.T) {
	slo := parse(t, "p50<20ms errors<1%")
	step := total(t, slo, 1000, 20, 10*time.Millisecond)
	step.Overloaded, step.Reasons = true, []result.Reason{{Text: "the backlog grew"}, {Text: "more"}}
	o, err := ObservationOf(slo, step, 7*time.Second)
	if err != nil || o.Validity != result.Valid || o.Reason != "the backlog grew" || o.Rate != 980 || o.Service != 10*time.Millisecond || !o.Overloaded ||
		o.Took != 7*time.Second || o.Requests != 1000 || len(o.Margins) != 2 {
		t.Fatalf("%+v, %v", o, err)
	}
	if m := o.Margins[0]; !m.Met || m.Criterion != "p50<20ms" || math.Abs(m.Log+math.Ln2) > 0.01 {
		t.Errorf("margin %+v", m)
	}
	if m := o.Margins[1]; m.Met || math.Abs(m.Log-math.Ln2) > 0.01 || m.Sigma == 0 {
		t.Errorf("margin %+v", m)
	}
	step.Iterations = &result.Iterations{Completed: 300} // of a flow, whose rates count iterations
	if o, err := ObservationOf(slo, step, 0); err != nil || o.Rate != 300 {
		t.Errorf("%+v, %v", o, err)
	}
}

// searched runs a search against a target that answers up to capacity, with the clock of the probes, and stops after some of them.
func searched(t *testing.T, capacity float64, settings Settings, steps int, change func(*result.Total)) *Outcome {
	t.Helper()
	slo, now := parse(t, "p90<20ms"), time.Unix(0, 0)
	e := &execution{slo: slo, search: NewSearch(settings), display: newDisplay(io.Discard, 0, false), now: func() time.Time { return now }}
	run := &result.Run{Header: result.Header{Target: "http://127.0.0.1/", SLO: "p90<20ms"}, End: result.End{Reason: result.Finished}}
	var previous *result.Total
	for i := range steps {
		step, more, err := e.next(t.Context(), previous)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		rate := step.Rate
		took := 5 * time.Millisecond
		if rate > capacity {
			took = 500 * time.Millisecond
		}
		previous = total(t, slo, int(max(rate, 100)), 0, took)
		if previous.Step = i; change != nil {
			change(previous)
		}
		loop := result.LoopOpen
		if rate == 0 {
			loop = result.LoopClosed
		}
		run.Steps = append(run.Steps, result.StepRun{Step: result.Step{
			Index: i, Name: step.Name, Loop: loop, OfferedHz: rate, Connections: step.Connections, Duration: step.Duration.Seconds(), Warmup: step.Warmup.Seconds(),
			Start: now.Add(step.Warmup).Sub(time.Unix(0, 0)).Seconds(),
		}, Total: *previous})
		now = now.Add(step.Warmup + step.Duration)
	}
	e.ended(&run.End)
	o := &Outcome{Answer: e.search.Answer(), Run: run}
	o.diagnose()
	return o
}

// TestOutcomeOf reads searches back from their steps: the answer and the text are those of the search itself, for any target.
func TestOutcomeOf(t *testing.T) {
	invalid := func(t *result.Total) {
		if t.Step%3 == 1 {
			t.Validity, t.Reasons = result.HostContended, []result.Reason{{Text: "other programs"}}
		}
	}
	for _, capacity := range []float64{80, 400, 1000, 5000} {
		for _, steps := range []int{1, 4, 7, ProbesMax} {
			for name, change := range map[string]func(*result.Total){"valid": nil, "some not VALID": invalid} {
				o := searched(t, capacity, Settings{Start: 100, Quantile: 0.9}, steps, change)
				read, err := OutcomeOf(o.Run)
				if err != nil || read == nil {
					t.Fatalf("%g/s, %d steps, %s: %v, %v", capacity, steps, name, read, err)
				}
				var was, is bytes.Buffer
				if err := errors.Join(o.WriteText(&was), read.WriteText(&is)); err != nil {
					t.Fatal(err)
				}
				if was.String() != is.String() || len(read.Bounds) != len(o.Answer.Path) {
					t.Errorf("%g/s, %d steps, %s:\n%s\nread back, with %d bounds:\n%s", capacity, steps, name, was.String(), len(read.Bounds), is.String())
				}
				for i, v := range read.Answer.Path {
					before := Bound{}
					if i > 0 {
						before = read.Bounds[i-1]
					}
					if v.Observation.Validity != result.Valid && read.Bounds[i] != before {
						t.Errorf("%g/s, %d steps: probe %d is not VALID and moves a bound: %+v, %+v", capacity, steps, i, before, read.Bounds[i])
					}
				}
			}
		}
	}
	for _, names := range [][]string{{}, {"100/s"}, {"refine 100/s", "home"}} {
		run := &result.Run{}
		for _, name := range names {
			run.Steps = append(run.Steps, result.StepRun{Step: result.Step{Name: name, Loop: result.LoopOpen}})
		}
		if o, err := OutcomeOf(run); o != nil || err != nil {
			t.Errorf("%q: %+v, %v", names, o, err)
		}
	}
}

// TestExecution runs whole searches, and ones that end early, and checks the answer, its exit code and the text.
func TestExecution(t *testing.T) {
	invalid := func(t *result.Total) {
		t.Validity, t.Reasons = result.HostContended, []result.Reason{{Text: "other programs"}}
	}
	for _, c := range []struct {
		name     string
		settings Settings
		steps    int
		change   func(*result.Total)
		code     int
		want     []string
	}{
		{"to the end", Settings{Start: 100, Quantile: 0.9}, ProbesMax, nil, exit.OK, []string{"met the SLO, ", "peak at 95 %", "limited by", "p90<20ms, which jumps", "as narrow as asked for\n"}},
		{"interrupted", Settings{Start: 100, Quantile: 0.9}, 3, nil, exit.OK, []string{"Peak: at least ", "interrupted; not proved: that a higher rate misses the SLO", "interrupted  400/s"}},
		{"only misses", Settings{Start: 5000, Quantile: 0.9}, 2, nil, exit.Failed, []string{"Peak: below 5,000/s. No rate that was tried met the SLO."}},
		{"nothing", Settings{Start: 100, Quantile: 0.9}, 1, nil, exit.NothingValid, []string{"Peak: unknown. Nothing valid was measured."}},
		{"invalid", Settings{Start: 100, Quantile: 0.9}, ProbesMax, invalid, exit.NothingValid, []string{"Peak: unknown.", "HOST_CONTENDED"}},
		{"invalid up to the deadline", Settings{Start: 100, Quantile: 0.9, Deadline: 20 * time.Second}, ProbesMax, invalid, exit.NothingValid, []string{"no time was left for another probe, and none was VALID", "HOST_CONTENDED"}},
		{"maximum", Settings{Start: 100, Max: 200, Quantile: 0.9}, ProbesMax, nil, exit.OK, []string{"Peak: at least 200/s", "the highest rate of the search met the SLO; raise --max"}},
	} {
		o := searched(t, 1000, c.settings, c.steps, c.change)
		var text, document bytes.Buffer
		if err := o.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, text.String())
			}
		}
		if code := exit.Code(o.Judge()); code != c.code {
			t.Errorf("%s: exit code %d (%v), want %d", c.name, code, o.Judge(), c.code)
		}
		if o.Answer.Feasible > 1000 || o.Answer.Infeasible > 0 && o.Answer.Infeasible <= 1000 {
			t.Errorf("%s: met at %g/s, missed at %g/s", c.name, o.Answer.Feasible, o.Answer.Infeasible)
		}
		d := o.Document("f")
		if (d.Bottleneck != nil) != (d.InfeasibleMin != nil) || len(d.Probes) != len(o.Answer.Path) {
			t.Errorf("%s: %+v", c.name, d)
		}
		if err := o.WriteJSON(&document, ""); err != nil || !strings.Contains(document.String(), `"slo": "p90<20ms"`) {
			t.Errorf("%s: %v\n%s", c.name, err, document.String())
		}
	}
}

func TestParsePrecision(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "0.05": 0.05, "100%": 1, "0.5%": 0.005} {
		if got, err := parsePrecision(text); err != nil || math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: %g, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "0", "-1%", "101%", "NaN", "x%"} {
		if _, err := parsePrecision(text); err == nil || !strings.Contains(err.Error(), "as in 5%") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestWarmupCounts: the warm-up of --warmup is a part of --max-time.
func TestWarmupCounts(t *testing.T) {
	o := Options{Flags: Flags{Precision: "5%", MaxTime: 10 * time.Second, Start: 100}}
	o.Target, o.SLO, o.Warmup = "http://127.0.0.1/", "p90<1s", time.Hour
	if _, _, err := o.settings(); exit.Code(err) != exit.Usage {
		t.Errorf("a warm-up of an hour: %v", err)
	}
	o.Warmup = 9 * time.Second
	settings, slo, err := o.settings()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	e := &execution{slo: slo, search: NewSearch(settings), display: newDisplay(io.Discard, 0, false), now: func() time.Time { return now }}
	step, more, err := e.next(t.Context(), nil)
	if err != nil || more && step.Warmup+step.Duration > o.MaxTime {
		t.Errorf("--max-time %s: the first probe takes %s", o.MaxTime, step.Warmup+step.Duration)
	}
}

// TestNotANumber: --start nan and --max nan are no rates.
func TestNotANumber(t *testing.T) {
	for _, o := range []Options{{Flags: Flags{Start: math.NaN()}}, {Flags: Flags{Max: math.NaN()}}} {
		o.Precision, o.Target, o.SLO = "5%", "http://127.0.0.1/", "p90<1s"
		if _, _, err := o.settings(); err == nil {
			t.Errorf("start %g, max %g: accepted", o.Start, o.Max)
		}
	}
}

// TestHeadlineTellsBoundsApart: --precision 0.5% finds bounds that the text rounds to the same number, and above the one proved.
func TestHeadlineTellsBoundsApart(t *testing.T) {
	o := &Outcome{Answer: Answer{Feasible: 100.6, Infeasible: 101.1}, Run: &result.Run{}}
	if got := o.Headline(); got != "Peak: 100.6 met the SLO, 101.1 requests per second missed it." {
		t.Error(got)
	}
}

// TestObservationDecides wants a backlog that grew to miss the SLO in a step that is too short for it, a pass with too few requests for
// the limit on errors to prove nothing, and a target that refuses connections to be down.
func TestObservationDecides(t *testing.T) {
	slo := parse(t, "p50<20ms errors<0.5%")
	for _, c := range []struct {
		n, failures int
		change      func(*result.Total)
		want        result.Validity
		passes      bool
		down        bool
	}{
		{600, 0, nil, result.Valid, true, false},
		{599, 0, nil, result.TooFewSamples, true, false},
		{500, 50, nil, result.Valid, false, false},
		{1000, 0, func(t *result.Total) { t.Validity, t.Overloaded = result.NotStationary, true }, result.Valid, false, false},
		{1000, 0, func(t *result.Total) { t.Validity = result.NotStationary }, result.NotStationary, true, false},
		{100, 0, func(t *result.Total) { t.Errors[result.Refused] = 10000 }, result.Valid, false, true},
		{200, 0, func(t *result.Total) { t.Errors[result.Refused] = 10000 }, result.Valid, false, false},
	} {
		step := total(t, slo, c.n, c.failures, 10*time.Millisecond)
		if c.change != nil {
			c.change(step)
		}
		o, err := ObservationOf(slo, step, 0)
		if err != nil || o.Validity != c.want || o.passes() != c.passes || o.Down != c.down {
			t.Errorf("%d requests, %d failures: %+v, %v", c.n, c.failures, o, err)
		}
	}
}

// TestRowsUsedUp counts the last step of a flow whose rows are used up, and ends the search for that reason.
func TestRowsUsedUp(t *testing.T) {
	slo, now := parse(t, "p50<20ms"), time.Unix(0, 0)
	e := &execution{
		slo: slo, search: NewSearch(Settings{Start: 100}), display: newDisplay(io.Discard, 0, false),
		now: func() time.Time { return now },
	}
	if _, more, err := e.next(t.Context(), nil); !more || err != nil {
		t.Fatal(more, err)
	}
	last := total(t, slo, 500, 0, time.Millisecond)
	last.Reasons = []result.Reason{{Code: result.DataUsedUp}}
	_, more, err := e.next(t.Context(), last)
	if a := e.search.Answer(); more || err != nil || a.Stopped != StoppedUsedUp || a.Feasible != 100 {
		t.Errorf("more %t, %v: %+v", more, err, a)
	}
}

func TestDisturbed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*result.Total)
		want   bool
	}{
		"valid":         {func(t *result.Total) { t.Validity = result.Valid }, false},
		"idle":          {func(*result.Total) {}, true},
		"contended":     {func(t *result.Total) { t.Validity = result.HostContended }, true},
		"busy":          {func(t *result.Total) { t.Cost.ThreadBusyMax = 0.95 }, false},
		"waited":        {func(t *result.Total) { t.Cost.RunQueueWait = 0.8 * t.Elapsed }, false},
		"without ports": {func(t *result.Total) { t.Errors[result.NoLocalPort] = 20 }, false},
		"few users":     {func(t *result.Total) { t.Iterations = &result.Iterations{Completed: 300} }, false},
		"few answers":   {func(t *result.Total) { t.Validity = result.TooFewSamples }, false},
	} {
		slo := parse(t, "p50<20ms")
		step := total(t, slo, 1000, 0, 10*time.Millisecond)
		step.Validity = result.GeneratorLimited
		c.change(step)
		if o, err := ObservationOf(slo, step, 0); err != nil || o.Disturbed != c.want {
			t.Errorf("%s: disturbed %t, %v", name, o.Disturbed, err)
		}
	}
}
