package result

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/histogram"
)

// partsOf makes the runs the parts of one load, in their order.
func partsOf(runs ...*Run) []*Run {
	for i, run := range runs {
		run.Header.Part = &Part{Number: i + 1, Of: len(runs), StartAt: sampleStart, Clock: Clock{Synchronized: true, Error: 0.001}}
	}
	return runs
}

func TestMergeAddsParts(t *testing.T) {
	a, b := sampleRun(t, "a", sampleStart.Add(1500*time.Millisecond)), sampleRun(t, "bb", sampleStart)
	b.Steps[1].Total.Validity = HostContended
	b.Steps[1].Total.Reasons = []Reason{{Text: "the host was busy"}}
	b.Steps[0].Slices = b.Steps[0].Slices[:2] // b stopped a second early
	a.Header.Notes = []string{"a note"}
	a.Steps[0].BacklogLimit, b.Steps[0].BacklogLimit, a.Steps[0].Late, b.Steps[0].Late = 3, 2, 0.001, 0.01
	run, err := Merge(partsOf(b, a))
	if err != nil {
		t.Fatal(err)
	}
	if got := run.Header.Parts; len(got) != 2 || got[0].Machine.Host != "bb" || got[1].Part.Clock.Error != 0.001 || run.Header.Part != nil {
		t.Fatalf("parts %+v", got)
	}
	if run.Header.Machine.Host != "bb, a" || !slices.Equal(run.Header.Notes, []string{"part 2 (a): a note"}) {
		t.Fatalf("host %q, notes %q", run.Header.Machine.Host, run.Header.Notes)
	}
	first := run.Steps[0]
	if first.BacklogLimit != 5 || first.Late != 0.01 {
		t.Fatalf("step %+v", first.Step)
	}
	if first.OfferedHz != 20 || first.Step.Connections != 8 || first.Total.Done != 60 || first.Total.Errors[Unsent] != 6 {
		t.Fatalf("step %+v, done %d, errors %s", first.Step, first.Total.Done, first.Total.Errors.String())
	}
	if first.Total.Statuses[502] != 6 {
		t.Fatalf("statuses %v", first.Total.Statuses)
	}
	if len(first.Slices) != 3 || first.Slices[0].Done != 20 || first.Slices[2].Done != 10 {
		t.Fatalf("slices %+v", first.Slices)
	}
	if n := count(t, first.Total.Latency.Response); n != 60 {
		t.Fatalf("%d latencies, want 60", n)
	}
	if got := run.Steps[1].Total; got.Validity != HostContended || got.Reasons[0].String() != "part 1 (bb): the host was busy" {
		t.Fatalf("validity %v %q", got.Validity, got.Reasons)
	}
	if got := first.Total.Little; math.Abs(got.Ratio-1) > 1e-9 || got.Rate != 20 {
		t.Fatalf("little %+v", got)
	}
	if got := first.Total.Connections; got.Slots != 8 || got.RequestsMin != 7 {
		t.Fatalf("connections %+v", got)
	}
}

// TestMergeOrderDoesNotMatter also checks that Merge does not change its arguments.
func TestMergeOrderDoesNotMatter(t *testing.T) {
	a, b := sampleRun(t, "a", sampleStart), sampleRun(t, "bb", sampleStart.Add(time.Second))
	one, err := Merge(partsOf(a, b))
	if err != nil {
		t.Fatal(err)
	}
	two, err := Merge([]*Run{b, a})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(one, two); diff != "" {
		t.Fatal(diff)
	}
	a.Header.Part = nil
	if diff := cmp.Diff(a, sampleRun(t, "a", sampleStart)); diff != "" {
		t.Fatal(diff)
	}
}

func TestMergeRefuses(t *testing.T) {
	f := func(want string, change func(*Run)) {
		t.Helper()
		runs := partsOf(sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart))
		change(runs[1])
		_, err := Merge(runs)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	const other = "merge: part 2 (b) is of another load than part 1 (a): the "
	f(other+`name is "other" instead of "r1"`, func(r *Run) { r.Header.Run = "other" })
	f(other+`start is "2026-03-01T12:01:00Z" instead of "2026-03-01T12:00:00Z"`, func(r *Run) { r.Header.Part.StartAt = sampleStart.Add(time.Minute) })
	f(other+`number of parts is "3" instead of "2"`, func(r *Run) { r.Header.Part.Of = 3 })
	f(other+`target is "http://127.0.0.2/"`, func(r *Run) { r.Header.Target = "http://127.0.0.2/" })
	f(other+`SLO is "p99<1s" instead of ""`, func(r *Run) { r.Header.SLO = "p99<1s" })
	f(other+`seed is "8" instead of "7"`, func(r *Run) { r.Header.Seed = 8 })
	f(other+`version of spillway is "v2" instead of "v1"`, func(r *Run) { r.Header.Tool = "v2" })
	f("merge: part 1 of 2 is given twice: of a and of b", func(r *Run) { r.Header.Part.Number = 1 })
	f("merge: the run that b began at 2026-03-01T12:00:00Z is no part of a load: make parts with load --part K/N", func(r *Run) { r.Header.Part = nil })
	f("merge step 1: part 2 (b) ran another kind of step than part 1 (a)", func(r *Run) { r.Steps[1].PerConnection = 1 })
	f("merge step 1: part 2 (b) ran another kind of step", func(r *Run) { r.Steps[1].Name = "50/s" })
	f("merge step 1: part 2 (b) ran another kind of step", func(r *Run) { r.Steps[1].Warmup = 5 })
	f("merge step 1: part 2 (b) ran another kind of step", func(r *Run) { r.Steps[1].TimeoutLimit = 1 })
	f("merge step 0: part 2 (b) ran another kind of step", func(r *Run) { r.Steps[0].Duration, r.Steps[0].Step.Requests = 0, 100 })
	f("merge step 0: part 1 (a) ran it from 12:00:00.0 to 12:00:03.0 and part 2 (b) from 12:00:01.6 to 12:00:04.6 by their own clocks: "+
		"parts of one load overlap by at least half of the step, so one was late, or a clock is off",
		func(r *Run) { r.Header.StartedAt = sampleStart.Add(1600 * time.Millisecond) })
	f("merge step 1: part 1 (a) ran it", func(r *Run) { r.Steps[1].Start += 2 })
	f("merge step 0: second 1: decode histogram", func(r *Run) { r.Steps[0].Slices[1].Latency.Response = "!" })
	if _, err := Merge(nil); err == nil {
		t.Error("merged nothing")
	}
	four := partsOf(sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart), sampleRun(t, "c", sampleStart), sampleRun(t, "d", sampleStart))
	const missing = "merge: of the 4 parts of the load, these are missing: 1, 3; nothing is summed without them"
	if _, err := Merge([]*Run{four[1], four[3]}); err == nil || err.Error() != missing {
		t.Errorf("%v, want %q", err, missing)
	}
}

// TestMergeOfAPartThatWasKilled: its last step is not judged, and the run is not complete.
func TestMergeOfAPartThatWasKilled(t *testing.T) {
	runs := partsOf(sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart))
	for _, run := range runs {
		run.Header.SLO = "p50<1s"
	}
	lines := bytes.SplitAfter(encoded(t, runs[1]), []byte("\n"))
	cut, err := Read(bytes.NewReader(bytes.Join(lines[:4], nil))) // header, step, two seconds
	if err != nil {
		t.Fatal(err)
	}
	merged, err := Merge([]*Run{runs[0], cut})
	if err != nil {
		t.Fatal(err)
	}
	total := &merged.Steps[0].Total
	if len(merged.Steps) != 1 || total.Validity != Unjudged || len(total.SLO) > 0 || !strings.HasPrefix(merged.CutOff, "part 2 (b): ") {
		t.Errorf("%d steps, %q, SLO %+v, cut off %q", len(merged.Steps), total.Validity, total.SLO, merged.CutOff)
	}
	if reasons := strings.Join(total.Sentences(), "\n"); !strings.Contains(reasons, "part 2 (b): ended after 2 s of 3 s") {
		t.Errorf("reasons %q", reasons)
	}
}

func TestMergeLeavesOutMissingSteps(t *testing.T) {
	b := sampleRun(t, "b", sampleStart)
	b.Steps, b.End.Reason = b.Steps[:1], Interrupted
	run, err := Merge(partsOf(sampleRun(t, "a", sampleStart), b))
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Steps) != 1 || run.End.Reason != Interrupted || len(run.Header.Notes) != 1 {
		t.Fatalf("%d steps, %s, notes %q", len(run.Steps), run.End.Reason, run.Header.Notes)
	}
}

// TestMergeAddsLabels adds the named requests of a mix by name, whatever their order.
func TestMergeAddsLabels(t *testing.T) {
	a, b := sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart)
	label := func(name string, done int64, d time.Duration) LabelTotal {
		return LabelTotal{Name: name, Counters: Counters{Done: done, Completed: done}, Latency: Latency{Response: hdr(t, 3, d)}}
	}
	a.Steps[0].Total.Labels = []LabelTotal{label("login", 3, time.Millisecond), label("list", 5, time.Millisecond)}
	b.Steps[0].Total.Labels = []LabelTotal{label("list", 7, time.Second), label("detail", 2, time.Millisecond)}
	a.Header.SLO, b.Header.SLO = "max{list}<10ms", "max{list}<10ms"
	a.Steps, b.Steps = a.Steps[:1], b.Steps[:1]
	run, err := Merge(partsOf(a, b))
	if err != nil {
		t.Fatal(err)
	}
	got := run.Steps[0].Total
	if len(got.Labels) != 3 || got.Labels[0].Name != "login" || got.Labels[0].Done != 3 || got.Labels[1].Done != 12 || got.Labels[2].Name != "detail" {
		t.Fatalf("labels %+v", got.Labels)
	}
	if n := count(t, got.Labels[1].Latency.Response); n != 2 {
		t.Errorf("%d response times of list, want 2", n)
	}
	if c := got.SLO[0]; c.Met || c.Observed < 1 {
		t.Errorf("the slower host is not in max{list}: %+v", c)
	}
	if len(a.Steps[0].Total.Labels) != 2 || a.Steps[0].Total.Labels[1].Done != 5 {
		t.Error("Merge changed its argument")
	}
}

// TestMergeNamesShortParts: a part that stopped early offered less than the step says.
func TestMergeNamesShortParts(t *testing.T) {
	a, b := sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart)
	b.Steps[1].Total.Elapsed = 2
	a.Steps[1].Name, b.Steps[1].Name = "20/s", "20/s" // that of the whole
	b.Steps[0].Total.Elapsed, b.Steps[0].Total.Reasons = 2, []Reason{{Code: DataUsedUp, Text: "the rows of d.csv are used up"}}
	run, err := Merge(partsOf(a, b))
	if err != nil {
		t.Fatal(err)
	}
	if first := &run.Steps[0].Total; first.Validity != Valid {
		t.Errorf("a part that has used up its data: %s %q", first.Validity, first.Reasons)
	}
	step := run.Steps[1]
	if step.Total.Validity != GeneratorLimited || len(step.Total.Reasons) != 1 || step.Total.Reasons[0].String() != "part 2 (b): ended after 2 s of 3 s" {
		t.Errorf("%s, reasons %q", step.Total.Validity, step.Total.Reasons)
	}
	if step.Name != "20/s" {
		t.Errorf("the sum has the name %q", step.Name)
	}
}

// TestMergeNamesOffsets: parts that began at different times offered the sum of their rates only while all of them ran.
func TestMergeNamesOffsets(t *testing.T) {
	for late, want := range map[time.Duration]Validity{200 * time.Millisecond: Valid, 1200 * time.Millisecond: NotStationary} {
		run, err := Merge(partsOf(sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart.Add(late))))
		if err != nil {
			t.Fatal(err)
		}
		total := run.Steps[0].Total
		if total.Validity != want || (want != Valid) != strings.Contains(strings.Join(total.Sentences(), ""), "at the same time for 60 % of it") {
			t.Errorf("%s late: %s, reasons %q", late, total.Validity, total.Reasons)
		}
	}
}

// TestMergePartsOfRequests merges steps that end with their requests, which they may do before the planned time. In a closed
// loop all parts end together, because otherwise some connections of the sum are idle.
func TestMergePartsOfRequests(t *testing.T) {
	for _, c := range []struct {
		loop         string
		elapsed      float64 // of a; b takes 3 s
		aDone, bDone int64
		longest      time.Duration
		want         Validity
	}{
		{LoopOpen, 3, 100, 100, 0, Valid},
		{LoopClosed, 2.9, 100, 100, 0, Valid},
		{LoopClosed, 2, 100, 100, 500 * time.Millisecond, GeneratorLimited},
		{LoopClosed, 2, 100, 100, 2 * time.Second, Valid},
		{LoopOpen, 2, 100, 100, 0, Valid},
		{LoopOpen, 2, 99, 100, 0, GeneratorLimited},
	} {
		service := histogram.New()
		service.Record(c.longest)
		payload, err := service.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var runs []*Run
		for host, done := range map[string]int64{"a": c.aDone, "b": c.bDone} {
			elapsed := 3.0
			if host == "a" {
				elapsed = c.elapsed
			}
			run := &Run{Header: Header{Machine: Machine{Host: host}}, Steps: []StepRun{{Step: Step{Loop: c.loop, Connections: 1, Requests: 100, Duration: 60}}}, End: End{Reason: Finished}}
			run.Steps[0].Total = Total{Elapsed: elapsed, Validity: Valid, Latency: Latency{Service: HDR(payload)}}
			run.Steps[0].Total.Due, run.Steps[0].Total.Done, run.Steps[0].Total.Completed = done, done, done
			runs = append(runs, run)
		}
		merged, err := Merge(partsOf(runs...))
		if err != nil {
			t.Fatal(err)
		}
		if total := &merged.Steps[0].Total; total.Validity != c.want {
			t.Errorf("%+v: %s %q", c, total.Validity, total.Reasons)
		}
	}
}

func TestMergeJudgesCriteriaAgain(t *testing.T) {
	a, b := sampleRun(t, "a", sampleStart), sampleRun(t, "b", sampleStart)
	a.Header.SLO, b.Header.SLO = "errors<5% p99<1s rate>=17", "errors<5% p99<1s rate>=17"
	run, err := Merge(partsOf(a, b))
	if err != nil {
		t.Fatal(err)
	}
	got := run.Steps[0].Total.SLO
	// 60 answered, 6 of them with a bad status, 6 unsent, in 3 s.
	if got[0].Met || math.Abs(got[0].Observed-12.0/66) > 1e-9 {
		t.Errorf("errors: %+v", got[0])
	}
	if !got[1].Met || got[1].Observed <= 0 {
		t.Errorf("p99: %+v", got[1])
	}
	if !got[2].Met || got[2].Observed != 18 {
		t.Errorf("rate: %+v", got[2])
	}
}
