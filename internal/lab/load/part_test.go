package load

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// TestParseParts parses parts and their start. Every mistake is one line that says what to write.
func TestParseParts(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const at, example = "2026-03-01T12:01:00Z", "2026-03-01T12:00:20Z"
	for _, c := range []struct {
		parts        Parts
		index, count string // of a Job
		want         target.Part
		wantErr      string
	}{
		{Parts{}, "", "", target.Part{}, ""},
		{Parts{"1/1", at}, "", "", target.Part{Number: 0, Of: 1}, ""},
		{Parts{"2/3", at}, "", "", target.Part{Number: 1, Of: 3}, ""},
		{Parts{"3/3", "2026-03-01T13:01:00+01:00"}, "", "", target.Part{Number: 2, Of: 3}, ""},
		{Parts{"job", at}, "0", "3", target.Part{Number: 0, Of: 3}, ""},
		{Parts{"job", at}, "2", "3", target.Part{Number: 2, Of: 3}, ""},
		{Parts{"", at}, "", "", target.Part{}, "--start-at is for the parts of a load; add --part K/N"},
		{Parts{"1/3", ""}, "", "", target.Part{}, "add --start-at, as in --start-at " + example},
		{Parts{"0/3", at}, "", "", target.Part{}, `--part "0/3": write K/N, as in 2/3`},
		{Parts{"4/3", at}, "", "", target.Part{}, `--part "4/3": write K/N`},
		{Parts{"1", at}, "", "", target.Part{}, `--part "1": write K/N`},
		{Parts{"a/b", at}, "", "", target.Part{}, `--part "a/b": write K/N`},
		{Parts{"-1/3", at}, "", "", target.Part{}, `--part "-1/3": write K/N`},
		{Parts{"1/1001", at}, "", "", target.Part{}, "(at most 1000)"},
		{Parts{"job", at}, "", "", target.Part{}, "--part job with JOB_COMPLETION_INDEX= and SPILLWAY_PARTS=: set SPILLWAY_PARTS to the completions"},
		{Parts{"job", at}, "3", "3", target.Part{}, "JOB_COMPLETION_INDEX=3 and SPILLWAY_PARTS=3: set SPILLWAY_PARTS"},
		{Parts{"1/3", "soon"}, "", "", target.Part{}, `--start-at "soon": write a time as in ` + example},
		{Parts{"1/3", "2026-03-01T11:59:57Z"}, "", "", target.Part{}, "--start-at 2026-03-01T11:59:57Z was 3 s ago by this host's clock; choose a time at which every host is ready, as in " + example},
		{Parts{"1/3", "2026-03-01T12:00:00Z"}, "", "", target.Part{}, "was 0 s ago"},
		{Parts{"1/3", "2027-03-01T12:00:00Z"}, "", "", target.Part{}, "is more than 24 h ahead"},
	} {
		t.Setenv("JOB_COMPLETION_INDEX", c.index)
		t.Setenv("SPILLWAY_PARTS", c.count)
		part, start, err := c.parts.parse(now)
		switch {
		case c.wantErr != "":
			if err == nil || !strings.Contains(err.Error(), c.wantErr) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: %v, want %q", c.parts, err, c.wantErr)
			}
		case err != nil || part != c.want || !part.Whole() && !start.Equal(now.Add(time.Minute)):
			t.Errorf("%+v: %+v at %s, %v", c.parts, part, start, err)
		}
	}
}

// TestSeedsOfParts: with one seed for all parts, or none, their arrivals and random values differ, and they know the same seed.
func TestSeedsOfParts(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	one, two := wholeSeed(start), wholeSeed(start.In(time.FixedZone("east", 3600)))
	if one != two || one == wholeSeed(start.Add(time.Second)) {
		t.Error("the parts of a load do not find the same seed")
	}
	if partSeed(7, target.Part{}) != 7 {
		t.Error("the seed of a whole load is changed")
	}
	template, err := target.ParseTemplate("{random(0,1000000000000)}")
	if err != nil {
		t.Fatal(err)
	}
	arrivals, values := map[time.Duration]bool{}, map[string]bool{}
	const parts = 50
	for i := range parts {
		part := target.Part{Number: i, Of: parts}
		s := &stepRun{config: &Config{Poisson: true, Seed: partSeed(7, part), Part: part}, step: &Step{Rate: 100}}
		arrivals[s.arrivals().Next()] = true
		values[string(template.Append(nil, target.NewSource(s.config.Seed, 0, new(atomic.Int64))))] = true
	}
	if len(arrivals) != parts || len(values) != parts {
		t.Errorf("%d parts have %d first arrivals and %d random values", parts, len(arrivals), len(values))
	}
}

// TestPlannedBegin: between two steps there is time for the answers to the last requests.
func TestPlannedBegin(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	steps := []Step{{Duration: 10 * time.Second, Warmup: 2 * time.Second}, {Duration: 20 * time.Second, Warmup: 2 * time.Second}, {Duration: time.Second}}
	c := Config{StartAt: start, Timeout: 5 * time.Second, Steps: steps, Part: target.Part{Of: 2}}
	for i, want := range []time.Duration{0, 19 * time.Second, 48 * time.Second} {
		if got := c.plannedBegin(i).Sub(start); got != want {
			t.Errorf("step %d begins after %s, want %s", i, got, want)
		}
	}
	steps[0].Duration = 0
	if err := c.checkLengths(); err == nil || !strings.Contains(err.Error(), "add --duration, or make one step") {
		t.Error(err)
	}
	c.Steps = c.Steps[:1]
	if err := c.checkLengths(); err != nil {
		t.Errorf("one step may end by its requests: %v", err)
	}
}

// TestPartsBeginAsPlanned runs a part. Its steps begin when they should by this host's clock, or say how late they were.
func TestPartsBeginAsPlanned(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	c := Config{
		Target: tg, Clock: clock, Timeout: time.Second, Part: target.Part{Number: 1, Of: 2}, StartAt: time.Now().Add(300 * time.Millisecond),
		Steps: []Step{{Connections: 2, Duration: 200 * time.Millisecond, Warmup: 100 * time.Millisecond}, {Rate: 100, Connections: 2, Duration: 200 * time.Millisecond}},
	}
	c.Zero = clock.Now()
	zero := time.Now()
	r := runLoad(t, t.Context(), c)
	if len(r.totals) != 2 || r.steps[1].OfferedHz != 50 {
		t.Fatalf("steps %+v", r.steps)
	}
	for i := range r.steps {
		s := &r.steps[i]
		planned := c.plannedBegin(i).Add(c.Steps[i].Warmup).Sub(zero).Seconds()
		began := s.Start - planned
		if s.Late > lateMax.Seconds() {
			began -= s.Late
		}
		if math.Abs(began) > 0.1 || s.Late < 0 { // the two clocks are read at different times
			t.Errorf("step %d begins %g s after its time, and says %g s", i, s.Start-planned, s.Late)
		}
		if late := slices.Contains(r.totals[i].Codes(), result.NotTogether); late != (s.Late > lateMax.Seconds()) {
			t.Errorf("step %d, %g s late: %q", i, s.Late, r.totals[i].Reasons)
		}
	}
}

// TestLatePart has a part that is ready after its time. It begins at once, and the step is GENERATOR_LIMITED.
func TestLatePart(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	r := runLoad(t, t.Context(), Config{
		Target: tg, Clock: clock, Part: target.Part{Of: 2}, StartAt: time.Now().Add(-time.Hour), Steps: []Step{{Rate: 200, Connections: 5, Requests: 50}},
	})
	total := &r.totals[0]
	if total.Validity != result.GeneratorLimited || total.Done != 50 || r.steps[0].Late < 3600 || r.steps[0].Start > 3600 {
		t.Errorf("%s, %d answered, %+v", total.Validity, total.Done, r.steps[0])
	}
	if reason := total.Reasons[0].String(); !strings.HasPrefix(reason, "this part began 60 min after the time") {
		t.Errorf("reason %q", reason)
	}
}

// TestInterruptedPart is interrupted while it waits for its time. That is no error, and no step was run.
func TestInterruptedPart(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said []string
	interrupted, err := Run(ctx, Config{
		Target: tg, Clock: clock, Part: target.Part{Of: 2}, StartAt: time.Now().Add(time.Hour), Steps: []Step{{Connections: 2, Requests: 50}},
	}, Listener{Message: func(text string) {
		said = append(said, text)
		cancel()
	}, Step: func(*result.Step) error {
		t.Error("a step has begun")
		return nil
	}})
	if !interrupted || err != nil || len(said) != 1 || !strings.HasPrefix(said[0], "part 1 of 2: step 1 begins at ") {
		t.Errorf("interrupted %v, %v, said %q", interrupted, err, said)
	}
}

// TestDescribePart: a part names its place, and a clock that may be wrong is a warning.
func TestDescribePart(t *testing.T) {
	c := Config{Part: target.Part{Number: 1, Of: 3}, StartAt: time.Now()}
	part, note := c.describePart(result.Clock{Synchronized: true, Error: 0.02})
	if part.Number != 2 || part.Of != 3 || part.Clock.Error != 0.02 || note != "" {
		t.Errorf("%+v: note %q", part, note)
	}
	for want, clock := range map[string]result.Clock{
		"is not synchronized: this part may begin at another time": {},
		"is synchronized to within 120 ms: ":                       {Synchronized: true, Error: 0.12},
		"is synchronized or not (function not implemented): ":      {Unknown: "function not implemented"},
	} {
		if _, note := c.describePart(clock); !strings.Contains(note, want) {
			t.Errorf("%+v: note %q, want %q", clock, note, want)
		}
	}
	if clock := readClock(); clock.Synchronized && clock.Error <= 0 || clock.Unknown != "" && clock.Synchronized {
		t.Errorf("the clock of this host is %+v", clock)
	}
	if part, note := new(Config).describePart(result.Clock{}); part != nil || note != "" {
		t.Errorf("a whole load is %+v, %q", part, note)
	}
}
