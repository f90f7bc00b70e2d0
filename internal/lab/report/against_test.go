package report

import (
	"bytes"
	"encoding/xml"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// againstRun is a run of two steps whose target answers within base when idle.
func againstRun(t testing.TB, label string, base time.Duration, seed uint64) *result.Run {
	t.Helper()
	return synthetic{label: label, capacity: 900, base: base, seconds: 12, seed: seed}.open(t, 200, 500)
}

// compared returns what WriteAgainst wrote, and its error.
func compared(t testing.TB, format Format, base, now *result.Run, limits string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := WriteAgainst(&out, format, base, now, limits)
	return out.String(), err
}

func TestAgainst(t *testing.T) {
	t.Parallel()
	base := againstRun(t, "base", 2*time.Millisecond, 1)
	f := func(now *result.Run, limits string, code int, want ...string) {
		t.Helper()
		text, err := compared(t, Text, base, now, limits)
		if got := exit.Code(err); got != code {
			t.Errorf("%s: exit %d (%v), want %d", limits, got, err, code)
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in\n%s", limits, part, text)
			}
		}
	}
	again := againstRun(t, "again", 2*time.Millisecond, 2)
	f(again, "p50>+3%,p99>+10%,rate<-5%,errors>+1%pt,mean>+5%", exit.OK, "No change exceeds its limit: again against base.\n", "within the limit")
	f(again, "", exit.OK, "again against base.\n")

	slower := againstRun(t, "slower", 2400*time.Microsecond, 3)
	f(slower, "p99>+10%", exit.Failed, "p99 at 200/s changed by +", "(p99>+10%); p99 at 500/s changed by", "FAILED")
	f(slower, "p50>+10%,mean>+10%", exit.Failed, "p50 at 200/s changed by +", "mean at 500/s changed by +")
	f(slower, "p99>+40%", exit.OK, "within the limit")
	f(base, "p99>+0%", exit.OK, "within the limit")

	// Few samples: the difference exceeds the limit, and the intervals overlap.
	noisy := synthetic{label: "noisy", capacity: 900, base: 2060 * time.Microsecond, seconds: 12, seed: 9}.open(t, 200)
	f(noisy, "p99>+0.1%", exit.OK, "above the limit, but the intervals overlap", "500/s is not in noisy")

	hanging := synthetic{label: "hanging", capacity: 900, base: 2 * time.Millisecond, seconds: 12, hangs: 10, seed: 1}.open(t, 200, 500)
	f(hanging, "p99>+1000%", exit.Failed, "p99 at 200/s changed by >= +", ">= 2 s (from 2 s)")
	f(hanging, "errors>+1%pt", exit.Failed, "errors at 200/s changed by +10 %pt")
	f(hanging, "rate<-5%", exit.Failed, "rate at 200/s changed by -10 %")
	if _, err := compared(t, Text, hanging, hanging, "p99>+10%"); exit.Code(err) != exit.NothingValid {
		t.Errorf("two lower bounds were compared: %v", err)
	}
	if _, err := compared(t, Text, hanging, base, "p99>+10%"); err != nil {
		t.Errorf("the base had no answers: %v", err)
	}

	contended := againstRun(t, "contended", 2*time.Millisecond, 1)
	contended.Steps[1].Total.Validity = result.HostContended
	f(contended, "p99>+10%", exit.NothingValid, "Not judged, because only valid measurements can be compared: 500/s of contended is HOST_CONTENDED.", "not judged")
	f(contended, "", exit.OK, "500/s of contended is HOST_CONTENDED")
	f(again, "p99.99>+10%", exit.NothingValid, "Not judged: p99.99 at 200/s (base: 2,400 requests are too few for p99.99)")
	f(synthetic{label: "other", capacity: 900, base: time.Millisecond, seconds: 2}.open(t, 300), "", exit.Usage)

	mixed := mixedRun(t)
	mixed.Header.Label = "mixed"
	text, err := compared(t, Text, mixed, mixed, "p99{login}>+10%,errors{GET /list}>+1%pt")
	if err != nil || !strings.Contains(text, "p99{login}>+10%") {
		t.Errorf("%v\n%s", err, text)
	}
	f(againstRun(t, "unnamed", 2*time.Millisecond, 1), "p99{login}>+10%", exit.NothingValid, `no request has the name "login"`)
}

// TestAgainstMoreThanItsLimits: a target that fails at once has a good p50, and a run that was stopped lacks what came after.
func TestAgainstMoreThanItsLimits(t *testing.T) {
	t.Parallel()
	base := againstRun(t, "base", 2*time.Millisecond, 1)
	f := func(now *result.Run, limits string, code int, want ...string) {
		t.Helper()
		text, err := compared(t, Text, base, now, limits)
		for _, part := range want {
			if exit.Code(err) != code || !strings.Contains(text, part) {
				t.Errorf("%s: exit %d (%v), want %d and %q in\n%s", limits, exit.Code(err), err, code, part, text)
			}
		}
	}
	failing := synthetic{label: "failing", capacity: 900, base: 2 * time.Millisecond, seconds: 12, seed: 4}.open(t, 200, 500)
	failing.Steps[1].Total.Errors[result.StatusError] = 3000
	f(failing, "p50>+50%", exit.Failed, "errors at 500/s changed by +")
	stopped := synthetic{label: "stopped", capacity: 900, base: 2 * time.Millisecond, seconds: 12, seed: 5}.open(t, 200)
	for _, reason := range []string{result.Interrupted, "aborted: errors>20% for 3s (100 % in the last second)"} {
		stopped.End.Reason = reason
		f(stopped, "p99>+50%", exit.NothingValid, "Not judged", "stopped was "+reason)
		f(stopped, "", exit.OK, "stopped was "+reason)
		var out bytes.Buffer
		if err := Write(&out, JUnit, []*result.Run{stopped}); err != nil || !strings.Contains(out.String(), `failures="1"`) {
			t.Errorf("%s: %v\n%s", reason, err, out.String())
		}
	}
	stopped.End, stopped.CutOff = result.End{}, "it ends in the middle of a record"
	f(stopped, "p99>+50%", exit.NothingValid, "Not judged", "stopped is incomplete")
}

func TestAgainstGolden(t *testing.T) {
	t.Parallel()
	base, slower := againstRun(t, "base", 2*time.Millisecond, 1), againstRun(t, "slower", 2400*time.Microsecond, 3)
	for name, format := range map[string]Format{"against.txt": Text, "against.md": Markdown, "against.xml": JUnit} {
		text, _ := compared(t, format, base, slower, "p99>+10%,rate<-5%")
		golden(t, name, text)
	}
}

// TestJUnitIsXML parses what is written of runs with markup in every text.
func TestJUnitIsXML(t *testing.T) {
	t.Parallel()
	evil := hostile(t)
	against, _ := compared(t, JUnit, evil, evil, "p50>+1%")
	for _, text := range []string{written(t, JUnit, evil, hangingRun(t)), against} {
		var all junitSuites
		if err := xml.Unmarshal([]byte(text), &all); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for _, s := range all.Suites {
			failures := 0
			for _, c := range s.Cases {
				if c.Failure != nil {
					failures++
				}
			}
			if s.Tests != len(s.Cases) || s.Failures != failures || s.Tests == 0 {
				t.Errorf("suite %q: %d tests, %d failures", s.Name, s.Tests, s.Failures)
			}
		}
	}
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	limits, err := parseLimits("p99>+10%, rate<-5% errors>+1%pt p99.9{GET /a, b}>+0.5%")
	if err != nil || len(limits) != 4 {
		t.Fatalf("%v, %v", limits, err)
	}
	if l := limits[3]; l.label != "GET /a, b" || l.figure != "p99.9" || l.max != 0.005 || !l.grows {
		t.Errorf("%+v", l)
	}
	for text, want := range map[string]string{
		"p99":             "write a figure and its change",
		"p99>10%":         "write the change as +10%",
		"p99>+10":         "write the change as +10%",
		"p99>-10%":        "write the change as +10%",
		"p99<-10%":        "wrong direction",
		"rate>+5%":        "wrong direction",
		"rate<+5%":        "write the change as -10%",
		"errors>+1%":      "write the change as +10%pt",
		"p100>+1%":        "unknown figure",
		"speed>+1%":       "unknown figure",
		"p99{}>+1%":       "name of a request in braces",
		"rate{login}<-5%": "no figures by second",
		"p99>+NaN%":       "write the change",
	} {
		if _, err := parseLimits(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseLimits: what is accepted has a figure and a finite limit, and is accepted again as written.
func FuzzParseLimits(f *testing.F) {
	f.Add("p99>+10%,rate<-5% errors{a b}>+1%pt")
	f.Fuzz(func(t *testing.T, text string) {
		limits, err := parseLimits(text)
		if err != nil {
			return
		}
		for _, l := range limits {
			again, err := parseLimit(l.text)
			if err != nil || again != l || l.figure == "" || !(l.max >= 0 && l.max < 1e308) {
				t.Errorf("%+v, again %+v, %v", l, again, err)
			}
		}
	})
}
