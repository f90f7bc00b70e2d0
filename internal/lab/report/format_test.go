package report

import (
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(escapeFormula("=1+1"), "'=1+1")
	f(tag("a b,c\nd"), "a_b_c_d")
}

func TestHeadline(t *testing.T) {
	t.Parallel()
	steady := synthetic{capacity: 900, base: time.Millisecond, seconds: 12, seed: 1}
	withSLO := steady
	withSLO.slo = true
	invalid := func(run *result.Run, steps ...int) *result.Run {
		for _, i := range steps {
			run.Steps[i].Total.Validity = result.HostContended
		}
		return run
	}
	interrupted := steady.open(t, 200)
	interrupted.End.Reason = result.Interrupted

	f := func(r *result.Run, mood mood, text, caveat string) {
		t.Helper()
		shown, err := decode([]*result.Run{r})
		if err != nil {
			t.Fatal(err)
		}
		if got := shown[0].headline(); got != (headline{mood, text, caveat}) {
			t.Errorf("got  %+v\nwant %+v", got, headline{mood, text, caveat})
		}
	}
	f(steady.open(t, 200), good, "Holds 200/s: 200/s answered, p99 3.04 ms, no errors.", "")
	f(steady.open(t, 200, 500), good, "Holds 500/s: 500/s answered, p99 4.98 ms, no errors.", "")
	f(withSLO.open(t, 500, 200), good, "Holds 500/s within p99<70ms errors<0.5%: 500/s answered, p99 4.89 ms, no errors.", "")
	f(withSLO.open(t, 200, 1000), bad, "Holds 200/s within p99<70ms errors<0.5%, but not 1,000/s: p99 1.02 s and errors 2.5 %.", "")
	f(withSLO.open(t, 1000), bad, "Does not hold 1,000/s within p99<70ms errors<0.5%: p99 1.02 s and errors 2.5 %.", "")
	f(steady.open(t, 1000), bad, "Does not hold 1,000/s: 975/s answered, p99 1.02 s, 2.5 % errors (status 300).", "")
	f(invalid(steady.open(t, 200, 500), 1), doubt, "Holds 200/s: 200/s answered, p99 3.04 ms, no errors.", "1 of 2 steps is not valid: HOST_CONTENDED.")
	f(invalid(steady.open(t, 200), 0), doubt, "Seen, not proved: 200/s answered of 200/s, p99 3.04 ms, no errors.", "Not valid: HOST_CONTENDED.")
	search := withSLO.open(t, 900, 200, 1000) // of spillway peak, which begins with closed loops
	search.Steps[0].Loop, search.Steps[0].OfferedHz = result.LoopClosed, 0
	f(search, bad, "Holds 200/s within p99<70ms errors<0.5%, but not 1,000/s: p99 1.02 s and errors 2.5 %.", "")
	f(interrupted, good, "Holds 200/s: 200/s answered, p99 3.04 ms, no errors.", "The run was interrupted.")
	short := invalid(withSLO.open(t, 200), 0)
	short.Steps[0].Total.Reasons = []result.Reason{{Code: result.TooFewAnswers, Text: "p99 needs 1,000 requests: -d 50s"}, {Code: result.FirstError, Class: "status", Text: "x"}}
	f(short, doubt, "Seen, not proved: 200/s answered of 200/s, p99 3.04 ms, no errors.",
		"Not valid: HOST_CONTENDED (p99 needs 1,000 requests: -d 50s); so the SLO is neither met nor missed.")
	dead := hangingRun(t)
	dead.Steps = dead.Steps[1:]
	dead.Steps[0].Total.Reasons = []result.Reason{{Code: result.FirstError, Class: "timeout", Text: "no answer within 2s"}}
	f(dead, bad, "Every request failed: timeout 7,200 (no answer within 2s).", "")
	refused := steady.open(t, 200)
	total := &refused.Steps[0].Total
	total.Completed, total.Statuses, total.Errors = 0, map[int]int64{415: 2400}, result.Errors{result.StatusError: 2400}
	total.Reasons = []result.Reason{{Code: result.FirstError, Class: "status", Text: "status 415: unsupported media type: send Content-Type: application/json"}}
	f(invalid(refused, 0), bad, "Every answer was status 415: unsupported media type: send Content-Type: application/json.", "Not valid: HOST_CONTENDED.")
	underWay := steady.open(t, 200, 500)
	underWay.End.Reason, underWay.Steps[1].Total.Validity = result.UnderWay, result.Unjudged
	f(underWay, doubt, "Holds 200/s: 200/s answered, p99 3.04 ms, no errors.", "The run is under way.")
	if page := written(t, HTML, underWay); !strings.Contains(page, `<html lang="en" data-live>`) || !strings.Contains(page, "connect-src 'self'") {
		t.Error("the page of a run under way is not fetched again")
	}
	f(&result.Run{CutOff: "x"}, doubt, "Nothing was measured.", "The file is incomplete: x.")
	f(steady.closed(t, 4, 16), good, "Answers at most 800/s with 16 connections: p99 12.3 ms at saturation, no errors.", "")
	f(steady.closed(t, 4), good, "Answers 600/s with 4 connections: p99 6.03 ms at saturation, no errors.", "")
}

// TestKeptUp: a target that answers a smaller part of the arrivals falls behind, however long the step. One that answers all
// keeps up, however long its response time within a quarter of the step.
func TestKeptUp(t *testing.T) {
	t.Parallel()
	const elapsed, due = 10.0, 10_000
	f := func(loop string, completed, median float64) bool {
		s := step{StepRun: &result.StepRun{Step: result.Step{Loop: loop}, Total: result.Total{Elapsed: elapsed}}, figures: Figures{P50: &median}}
		s.Total.Due, s.Total.Completed = due, int64(completed)
		return s.keptUp()
	}
	for missing := 0.03; missing < 0.95; missing += 0.01 {
		if f(result.LoopOpen, due*(1-missing), elapsed/2*missing/(1-missing)) {
			t.Errorf("a target that answers %.0f %% keeps up", 100*(1-missing))
		}
	}
	for share := 0.0; share <= 0.25; share += 0.01 {
		if !f(result.LoopOpen, due*(1-share), elapsed*share) {
			t.Errorf("a target with a response time of %.0f %% of the step falls behind", 100*share)
		}
	}
	if !f(result.LoopClosed, due/2, elapsed/2) {
		t.Error("a closed loop falls behind")
	}
}
