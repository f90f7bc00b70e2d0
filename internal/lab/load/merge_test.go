package load

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// partsOf returns the files of a load in parts, each with n answers at 10/s.
func partsOf(t *testing.T, slo string, n int64, change func(parts []*result.Run)) []*result.Run {
	t.Helper()
	var parts []*result.Run
	for i := range 3 {
		response, lag := histogram.New(), histogram.New()
		response.RecordN(20*time.Millisecond, n)
		lag.RecordN(30*time.Microsecond, n)
		step := result.StepRun{
			Step:  result.Step{Name: "30/s", Loop: result.LoopOpen, OfferedHz: 10, Connections: 4, Duration: float64(n) / 10},
			Total: result.Total{Elapsed: float64(n) / 10, Validity: result.Valid, Latency: result.Latency{Response: payload(t, response), Lag: payload(t, lag)}},
		}
		step.Total.Due, step.Total.Sent, step.Total.Done, step.Total.Completed = n, n, n, n
		parts = append(parts, &result.Run{
			Header: result.Header{SLO: slo, Machine: result.Machine{Host: fmt.Sprintf("h%d", i+1)}, Part: &result.Part{Number: i + 1, Of: 3}},
			Steps:  []result.StepRun{step}, End: result.End{Reason: result.Finished},
		})
	}
	change(parts)
	return parts
}

// TestMerge judges on the sum what no part judges alone: the number of answers, a backlog that grew, and the SLO.
func TestMerge(t *testing.T) {
	backlog := result.Reason{Code: result.Backlog, Verdict: result.Valid, Text: "the backlog grew by 3/s"}
	for name, c := range map[string]struct {
		slo    string
		n      int64
		change func([]*result.Run)
		want   result.Validity
		codes  []result.ReasonCode
		code   int // of Judge
	}{
		"enough together":    {"p99<1s", 400, func([]*result.Run) {}, result.Valid, nil, exit.OK},
		"too few together":   {"p99<1s", 300, func([]*result.Run) {}, result.TooFewSamples, []result.ReasonCode{result.TooFewAnswers}, exit.NothingValid},
		"missed together":    {"p99<10ms", 400, func([]*result.Run) {}, result.Valid, nil, exit.Failed},
		"the rate of all":    {"rate>=29", 400, func([]*result.Run) {}, result.Valid, nil, exit.OK},
		"the rate of all, 2": {"rate>=31", 400, func([]*result.Run) {}, result.Valid, nil, exit.Failed},
		"a backlog in one": {"p99<1s", 400, func(parts []*result.Run) {
			parts[1].Steps[0].Total.Overloaded, parts[1].Steps[0].Total.Reasons = true, []result.Reason{backlog}
		}, result.NotStationary, []result.ReasonCode{result.Backlog, result.Backlog}, exit.NothingValid},
		"a backlog, and missed": {"p99<10ms", 400, func(parts []*result.Run) {
			parts[1].Steps[0].Total.Overloaded = true
		}, result.Valid, nil, exit.Failed},
		"late in one": {"p99<1s", 400, func(parts []*result.Run) {
			parts[0].Steps[0].Total.Reasons = []result.Reason{{Code: result.FirstError, Text: "x"}}
			parts[2].Steps[0].Total.Validity = result.GeneratorLimited
			parts[2].Steps[0].Total.Reasons = []result.Reason{{Code: result.NotTogether, Verdict: result.GeneratorLimited, Text: "this part began 1s after"}}
		}, result.GeneratorLimited, []result.ReasonCode{result.NotTogether, result.FirstError}, exit.NothingValid},
		"killed": {"p99<1s", 300, func(parts []*result.Run) {
			parts[2].Steps[0].Total.Validity = result.Unjudged
		}, result.Unjudged, nil, exit.NothingValid},
		"aborted": {"p99<1s", 400, func(parts []*result.Run) {
			parts[2].End = result.End{Reason: "aborted: errors>5%", Aborted: true}
		}, result.Valid, nil, exit.Failed},
	} {
		parts := partsOf(t, c.slo, c.n, c.change)
		merged, err := Merge(parts)
		if err != nil {
			t.Fatal(err)
		}
		total := &merged.Steps[0].Total
		if total.Validity != c.want || !slices.Equal(total.Codes(), c.codes) {
			t.Errorf("%s: %q %q, want %q %q", name, total.Validity, total.Reasons, c.want, c.codes)
		}
		if code := exit.Code(Judge(merged)); code != c.code {
			t.Errorf("%s: exit %d, want %d", name, code, c.code)
		}
		if err := Judge(parts[0]); err != nil {
			t.Errorf("%s: the SLO of a part was judged: %v", name, err)
		}
	}
	parts := partsOf(t, "p99<1s", 400, func(parts []*result.Run) {
		parts[0].Header.Part.Clock = result.Clock{Synchronized: true, Error: 0.0003}
		parts[1].Header.Part.Clock = result.Clock{Unknown: "function not implemented"}
		parts[1].Steps[0].Late = 0.002
	})
	const clocks = "The parts of the load began by the clocks of their hosts: that of part 1 (h1) is synchronized to within 300 µs, that of part 2 (h2) " +
		"is synchronized or not (function not implemented), that of part 3 (h3) is not synchronized. No step began more than 2 ms after its planned time."
	if merged, err := Merge(parts); err != nil || merged.Header.Notes[0] != clocks {
		t.Errorf("%v: notes %q, want %q", err, merged.Header.Notes, clocks)
	}
	if _, err := Merge(parts[:2]); err == nil || !strings.Contains(err.Error(), "missing: 3") {
		t.Errorf("a missing part: %v", err)
	}
	parts[0].CutOff = "there is no end record"
	if merged, err := Merge(parts); err != nil || !strings.Contains(fmt.Sprint(Broken(merged)), "part 1 (h1): there is no end record") {
		t.Errorf("a part without an end: %v, %+v", err, merged)
	}
}
