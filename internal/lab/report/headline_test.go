package report

import (
	"testing"
	"time"

	"spillway/internal/lab/result"
)

func TestHeadline(t *testing.T) {
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
	f(steady.open(t, 1000), bad, "Does not hold 1,000/s: 1,000/s answered, p99 1.02 s, 2.5 % errors (status 300).", "")
	f(invalid(steady.open(t, 200, 500), 1), doubt, "Holds 200/s: 200/s answered, p99 3.04 ms, no errors.", "1 of 2 steps not valid (HOST_CONTENDED).")
	f(invalid(steady.open(t, 200), 0), doubt, "No step is a valid measurement of the target.", "1 of 1 step not valid (HOST_CONTENDED).")
	f(interrupted, good, "Holds 200/s: 200/s answered, p99 3.04 ms, no errors.", "The run was interrupted.")
	f(&result.Run{CutOff: "x"}, doubt, "Nothing was measured.", "The file is incomplete: x.")
	f(steady.closed(t, 4, 16), good, "Answers at most 800/s with 16 connections: p99 12.3 ms, no errors.", "")
	f(steady.closed(t, 4), good, "Answers 600/s with 4 connections: p99 6.03 ms, no errors.", "")
}
