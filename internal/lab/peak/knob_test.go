package peak

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/exit"
	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/result"
)

func TestParseKnobs(t *testing.T) {
	knobs, err := parseKnobs([]string{"pool=8, 16,x: set: $VALUE ", "cpus=1,2: c"})
	if err != nil {
		t.Fatal(err)
	}
	want := []knob{
		{name: "pool", original: "8", command: "set: $VALUE", others: []string{"16", "x"}},
		{name: "cpus", original: "1", command: "c", others: []string{"2"}},
	}
	if !reflect.DeepEqual(knobs, want) {
		t.Errorf("%+v\nwant\n%+v", knobs, want)
	}
	for text, want := range map[string]string{
		"pool":                         "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"pool=8,16":                    "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"pool=8,16:x":                  "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"pool=8,16: ":                  "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"=8,16: x":                     "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"pool=8: x":                    "and one to try",
		"pool=8,: x":                   "a value is empty",
		"pool=8,8: x":                  "the value 8 is there twice",
		"keep-alive":                   "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"cpus=0.5":                     "write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ",
		"pool=1,2,3,4,5,6,7,8,9,10: x": "9 values to search with; the limit is 8",
	} {
		if _, err := parseKnobs([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := parseKnobs([]string{"a=1,2: x", "a=3,4: x"}); err == nil || !strings.Contains(err.Error(), "a is given twice") {
		t.Errorf("twice: %v", err)
	}
}

// turned is a run of knobs whose searches find the peaks and whose commands are recorded.
type turned struct {
	knobRun
	calls  []string // commands, and searches with what they were given
	now    time.Duration
	peaks  map[string]Answer // by the value in force
	fails  string            // value at which the command fails
	broken string            // value at which the load fails
	value  string
	stop   func(value string) // called at a search
	starts []float64
	spans  []time.Duration
}

// answer proves each of its bounds twice; 0 is none.
func answer(feasible, infeasible float64) Answer {
	a := Answer{Feasible: feasible, Infeasible: infeasible, Low: feasible, High: infeasible}
	for _, bound := range []struct {
		rate float64
		met  bool
	}{{feasible, true}, {infeasible, false}, {feasible, true}, {infeasible, false}} {
		if bound.rate > 0 {
			a.Path = append(a.Path, Visit{Probe{Rate: bound.rate}, Observation{Validity: result.Valid, Margins: []Margin{{Criterion: "p90<1s", Met: bound.met}}}})
		}
	}
	return a
}

// once is an answer in which the probe with that index and all later ones are missing.
func once(a Answer, from int) Answer {
	a.Path = a.Path[:from]
	return a
}

func newTurned(t *testing.T, original Answer, deadline time.Duration, texts ...string) *turned {
	t.Helper()
	knobs, err := parseKnobs(texts)
	if err != nil {
		t.Fatal(err)
	}
	r := &turned{}
	r.knobRun = knobRun{
		settings: Settings{Deadline: deadline, Quantile: 0.9}, original: original, knobs: knobs,
		set: func(ctx context.Context, command, value string) error {
			r.calls = append(r.calls, command+" "+value)
			r.now += time.Second
			if r.value = value; value == r.fails {
				return errors.New("exit status 1")
			}
			return ctx.Err()
		},
		measure: func(_ context.Context, s Settings) (Answer, error) {
			r.calls, r.starts, r.spans = append(r.calls, "search"), append(r.starts, s.Start), append(r.spans, s.Deadline)
			r.now += s.Deadline
			if r.stop != nil {
				r.stop(r.value)
			}
			if r.value == r.broken {
				return Answer{}, errors.New("connection refused")
			}
			return r.peaks[r.value], nil
		},
		elapsed: func() time.Duration { return r.now },
		say:     func(string) {},
	}
	return r
}

func (r *turned) moved(results []KnobResult) (moved []string) {
	for _, k := range results {
		text := string(k.Moved)
		if k.Reason != "" {
			text += " (" + k.Reason + ")"
		}
		moved = append(moved, k.Name+"="+k.Value+" "+text)
	}
	return moved
}

// TestKnobRun turns knobs and checks what was run in which order, and that the original value is in force at the end.
func TestKnobRun(t *testing.T) {
	peaks := map[string]Answer{"16": answer(390, 410), "4": answer(90, 100), "8": answer(195, 206), "b": answer(190, 210)}
	for _, c := range []struct {
		name          string
		original      Answer
		fails, broken string
		interrupt     string // during the search with this value
		texts         []string
		calls, moved  []string
		err           string
	}{
		{
			name: "up, down, and not", original: answer(198, 204), texts: []string{"pool=8,16,4: set", "colour=a,b: paint"},
			calls: []string{"set 16", "search", "set 4", "search", "set 8", "paint b", "search", "paint a"},
			moved: []string{"pool=16 up", "pool=4 down", "colour=b no"},
		},
		{
			name: "a command fails", original: answer(198, 204), fails: "16", texts: []string{"pool=8,16,4: set", "colour=a,b: paint"},
			calls: []string{"set 16", "set 8"},
			moved: []string{"pool=16 not-measured (the command failed)", "pool=4 not-measured (another value had failed)", "colour=b not-measured (another value had failed)"},
			err:   "knob pool=16 instead of 8: the command failed: exit status 1",
		},
		{
			name: "the service does not come back", original: answer(198, 204), broken: "16", texts: []string{"pool=8,16: set"},
			calls: []string{"set 16", "search", "set 8"}, moved: []string{"pool=16 not-measured (the load failed)"}, err: "connection refused",
		},
		{
			name: "not restored", original: answer(198, 204), fails: "it's", texts: []string{"pool=it's,16: set 'x'"},
			calls: []string{"set 'x' 16", "search", "set 'x' it's"}, moved: []string{"pool=16 up"},
			err: `KNOB NOT RESTORED: the command of pool=it's failed: exit status 1. Restore the service by hand: VALUE='it'\''s' sh -c 'set '\''x'\'''`,
		},
		{
			name: "interrupted", original: answer(198, 204), interrupt: "16", texts: []string{"pool=8,16,4: set", "colour=a,b: paint"},
			calls: []string{"set 16", "search", "set 8"}, moved: []string{"pool=16 up", "pool=4 not-measured (interrupted)", "colour=b not-measured (interrupted)"},
		},
		{name: "nothing to compare with", texts: []string{"pool=8,16: set"}, moved: []string{"pool=16 not-measured (there is no peak to compare with)"}},
	} {
		r := newTurned(t, c.original, time.Hour, c.texts...)
		ctx, cancel := context.WithCancel(t.Context())
		r.peaks, r.fails, r.broken = peaks, c.fails, c.broken
		r.stop = func(value string) {
			if value == c.interrupt {
				cancel()
			}
		}
		results, err := r.run(ctx)
		cancel()
		if !slices.Equal(r.calls, c.calls) || !slices.Equal(r.moved(results), c.moved) {
			t.Errorf("%s: %q\n%q\nwant\n%q\n%q", c.name, r.calls, r.moved(results), c.calls, c.moved)
		}
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		o := &Outcome{Answer: c.original, Problem: err}
		if code := exit.Code(o.Judge()); err != nil && code != exit.Error {
			t.Errorf("%s: exit code %d", c.name, code)
		}
	}
}

// TestKnobTime shares the time that is left among the values that are left, and turns no knob without time for a probe.
func TestKnobTime(t *testing.T) {
	r := newTurned(t, answer(198, 204), 100*time.Second, "pool=8,16: set", "colour=a,b: paint")
	r.now = 40 * time.Second
	results, err := r.run(t.Context())
	if err != nil || len(results) != 2 || !slices.Equal(r.starts, []float64{224, 224}) {
		t.Errorf("%+v, %v, starts %v", results, err, r.starts)
	}
	// 30 s for the first with its command of 1 s; 1 s more is gone for restoring it.
	if !slices.Equal(r.spans, []time.Duration{29 * time.Second, 28 * time.Second}) {
		t.Errorf("%v", r.spans)
	}
	r = newTurned(t, answer(198, 204), 100*time.Second, "pool=8,16: set")
	r.now = 98 * time.Second
	if results, err := r.run(t.Context()); err != nil || len(r.calls) > 0 || results[0].Reason != "no time was left; raise --max-time" {
		t.Errorf("%+v, %v, %q", results, err, r.calls)
	}
	r = newTurned(t, answer(198, 204), 100*time.Second, "pool=8,16: set", "colour=a,b: paint")
	r.now = 40 * time.Second
	r.set = func(context.Context, string, string) error { r.now += 55 * time.Second; return nil }
	r.measure = func(_ context.Context, s Settings) (Answer, error) {
		if s.Deadline <= 0 {
			t.Error("a search without a limit")
		}
		return Answer{}, nil
	}
	if results, err := r.run(t.Context()); err != nil || results[1].Reason != "no time was left; raise --max-time" {
		t.Errorf("%+v, %v", results, err)
	}
	for turns, want := range map[int]float64{0: 1, 1: 2. / 3, 2: 0.5, 8: 0.2} {
		if got := originalShare(turns); got != want {
			t.Errorf("%d: %g, want %g", turns, got, want)
		}
	}
}

// TestMoved compares intervals: only those that are apart show a movement.
func TestMoved(t *testing.T) {
	open, flat := answer(300, 0), answer(200, 220)
	open.Stopped, flat.Flat = StoppedMaximum, true
	for _, c := range []struct {
		name            string
		original, other Answer
		want            Moved
		ratio           bool
		text            string
	}{
		{"above", answer(100, 110), answer(200, 220), MovedUp, true, "moved up, 2 times the original"},
		{"above, without an end", answer(100, 110), open, MovedUp, false, "moved up"},
		{"below", answer(100, 110), answer(50, 55), MovedDown, true, "moved down, 0.5 times the original"},
		{"below everything that was tried", answer(100, 110), answer(0, 60), MovedDown, false, "moved down"},
		{"touching", answer(100, 110), answer(110, 120), NotMoved, true, "not shown to move"},
		{"around", answer(100, 110), answer(80, 160), NotMoved, true, "not shown to move"},
		{"without an end within", answer(100, 110), Answer{Feasible: 90, Low: 90, Stopped: StoppedDeadline}, NotMeasured, false, "not measured: no time was left; raise --max-time"},
		{"nothing", answer(100, 110), Answer{Stopped: StoppedInvalid}, NotMeasured, false, "not measured: nothing VALID"},
		{"the original without an end", open, answer(400, 420), NotMeasured, false, "not measured: no rate was proved to miss the SLO with 8"},
		{"below the original without an end", open, answer(200, 220), MovedDown, false, "moved down"},
		{"the original without a beginning", answer(0, 100), answer(50, 60), NotMeasured, false, "not measured: no rate was proved to meet the SLO with 8"},
		{"above the original without a beginning", answer(0, 100), answer(150, 160), MovedUp, false, "moved up"},
		{"above by one probe", answer(100, 110), once(answer(200, 220), 2), NotMeasured, true, "not measured: only one probe shows a movement; raise --max-time"},
		{"above one probe", once(answer(100, 110), 3), answer(200, 220), NotMeasured, true, "not measured: only one probe shows a movement; raise --max-time"},
		{"below by one probe", answer(100, 110), once(answer(50, 55), 3), NotMeasured, true, "not measured: only one probe shows a movement; raise --max-time"},
		{"flat", answer(100, 110), flat, NotMeasured, true, "not measured: the latency hardly depends on the rate"},
		{"flat, around", answer(100, 110), func() Answer { a := answer(90, 120); a.Flat = true; return a }(), NotMeasured, true, "not measured: the latency hardly depends on the rate"},
		{"no time for a probe", answer(100, 110), Answer{Stopped: StoppedDeadline}, NotMeasured, false, "not measured: no time was left; raise --max-time"},
	} {
		k := KnobResult{Name: "pool", Original: "8", Value: "16", Answer: c.other}
		k.judge(c.original)
		if k.Moved != c.want || (k.Ratio > 0) != c.ratio || k.movedText() != c.text {
			t.Errorf("%s: %+v, %q", c.name, k, k.movedText())
		}
	}
}

// TestWeigh adds what knobs show to the sentence of the likeliest verdict, and to the text and the document.
func TestWeigh(t *testing.T) {
	for _, c := range []struct {
		verdict, name, original, value string
		other                          Answer
		want                           string
	}{
		{diagnose.WorkerPool, "pool", "8", "16", answer(200, 220), "It waits. A test confirms it: with pool=16 instead of 8, the peak moved up, 2 times the original (200/s to 220/s)."},
		{diagnose.WorkerPool, "workers", "8", "4", answer(50, 55), "It waits. A test confirms it: with workers=4 instead of 8, the peak moved down, 0.5 times the original (50/s to 55/s)."},
		{diagnose.WorkerPool, "workers", "8", "2", answer(50, 55), "It waits. With workers=2 instead of 8, the peak moved down, 0.5 times the original (50/s to 55/s)."},
		{diagnose.UserCPU, "cpus", "2", "1", answer(50, 55), "It waits. A test confirms it: with cpus=1 instead of 2, the peak moved down, 0.5 times the original (50/s to 55/s)."},
		{diagnose.UserCPU, "cpus", "2", "0.3", answer(50, 55), "It waits. With cpus=0.3 instead of 2, the peak moved down, 0.5 times the original (50/s to 55/s)."},
		{diagnose.WorkerPool, "pool", "8", "16", answer(99, 111), "It waits. This speaks against it: with pool=16 instead of 8, the peak was not shown to move."},
		{diagnose.WorkerPool, "pool", "8", "16", answer(50, 55), "It waits. With pool=16 instead of 8, the peak moved down, 0.5 times the original (50/s to 55/s)."},
		{diagnose.WorkerPool, "colour", "red", "blue", answer(99, 111), "It waits."},
		{diagnose.SystemCPU, "keep-alive", "off", "on", answer(200, 220), "It waits. A test confirms it: with keep-alive=on instead of off, the peak moved up, 2 times the original (200/s to 220/s)."},
		{diagnose.UserCPU, "pool", "8", "16", answer(200, 220), "It waits. With pool=16 instead of 8, the peak moved up, 2 times the original (200/s to 220/s)."},
	} {
		before := []diagnose.Verdict{{Name: c.verdict, Sentence: "It waits."}, {Name: diagnose.Lock, Sentence: "Other."}}
		o := &Outcome{Answer: answer(100, 110), Run: &result.Run{Steps: make([]result.StepRun, 4)}, Passing: -1, Verdicts: before, Knobs: []KnobResult{{Name: c.name, Original: c.original, Value: c.value, Answer: c.other}}}
		o.Knobs[0].judge(o.Answer)
		o.weigh()
		if o.Verdicts[0].Sentence != c.want || o.Verdicts[1].Sentence != "Other." || before[0].Sentence != "It waits." {
			t.Errorf("%s, %s: %q, want %q", c.verdict, c.name, o.Verdicts[0].Sentence, c.want)
		}
		var text bytes.Buffer
		if err := o.WriteText(&text); err != nil || !strings.Contains(text.String(), o.Knobs[0].movedText()) || !strings.Contains(text.String(), "100/s to 110/s  original") {
			t.Errorf("%v\n%s", err, text.String())
		}
		d := o.Document("").Knobs
		if len(d) != 1 || d[0].Name != c.name || d[0].Moved != o.Knobs[0].Moved || *d[0].FeasibleMax != c.other.Feasible || *d[0].Ratio != o.Knobs[0].Ratio || d[0].Probes == nil {
			t.Errorf("%+v", d)
		}
	}
}

// TestSet runs real commands: they get the value, a failure has their last words, what they leave running is left alone, and an
// interrupt ends them.
func TestSet(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "value")
	if err := set(t.Context(), "echo $VALUE > "+file+"; sleep 60 & echo $! >> "+file, "a b"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	value, pid, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if err != nil || value != "a b" {
		t.Errorf("%v, %q", err, text)
	}
	if err := set(t.Context(), "kill $VALUE", pid); err != nil {
		t.Errorf("the program that was left running is gone: %v", err)
	}
	if err := set(t.Context(), "echo no; echo such pool >&2; exit 7", ""); err == nil || err.Error() != "exit status 7: no such pool" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- set(ctx, "echo > "+fifo+"; sleep 600", "") }()
	if _, err := os.ReadFile(fifo); err != nil { // it waits for the command
		t.Error(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
