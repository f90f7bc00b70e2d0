package labtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// writeResult writes a result file with one second of load at 100/s on a host.
func writeResult(t *testing.T, path, host string) {
	t.Helper()
	writeResultOf(t, path, host, 5*time.Millisecond, result.Valid)
}

// writeResultOf writes one in which every answer took so long, with a verdict.
func writeResultOf(t *testing.T, path, host string, took time.Duration, validity result.Validity) {
	t.Helper()
	h := histogram.New()
	h.RecordN(took, 100)
	payload, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	latency := result.Latency{Response: result.HDR(payload), Service: result.HDR(payload)}
	counters := result.Counters{Due: 100, Sent: 100, Done: 100, Completed: 100}
	run := &result.Run{
		Header: result.Header{
			StartedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Target: "http://127.0.0.1/", Command: []string{"spillway"},
			Machine: result.Machine{Host: host, TCPTWReuse: -1},
		},
		Steps: []result.StepRun{{
			Step:   result.Step{Loop: result.LoopOpen, Arrival: "constant", OfferedHz: 100, Connections: 4, Duration: 1},
			Slices: []result.Slice{{Length: 1, Counters: counters, Latency: latency}},
			Total:  result.Total{Elapsed: 1, Counters: counters, Latency: latency, Validity: validity},
		}},
		End: result.End{Reason: result.Finished, Elapsed: 1},
	}
	if err := result.WriteFile(path, run); err != nil {
		t.Fatal(err)
	}
}

// twoResults returns a directory with two result files, and the same as parts of a load.
func twoResults(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeResult(t, filepath.Join(dir, "a.ndjson"), "host-a")
	writeResult(t, filepath.Join(dir, "b.ndjson.gz"), "host-b")
	for i, name := range []string{"a.ndjson", "b.ndjson.gz"} {
		run, err := result.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		run.Header.Part = &result.Part{Number: i + 1, Of: 2}
		if err := result.WriteFile(filepath.Join(dir, "part-"+name), run); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReportShowsFiles(t *testing.T) {
	t.Parallel()
	dir := twoResults(t)
	f := func(args []string, want ...string) {
		t.Helper()
		stdout, stderr, code := spillwayIn(t, dir, append([]string{"report"}, args...)...)
		if code != exit.OK || stderr != "" {
			t.Errorf("%v: exit %d, %s", args, code, stderr)
		}
		for _, text := range want {
			if !strings.Contains(stdout, text) {
				t.Errorf("%v: no %q in\n%s", args, text, stdout)
			}
		}
	}
	f([]string{"a.ndjson"}, "Holds 100/s: 100/s answered, p90 5", "VALID")
	f([]string{"a.ndjson", "b.ndjson.gz", "-f", "csv"}, "\na,0,", "\nb,0,")
	f([]string{"before=a.ndjson", "after=b.ndjson.gz", "-f", "csv"}, "\nbefore,0,", "\nafter,0,")
	f([]string{"--merge", "part-a.ndjson", "part-b.ndjson.gz"}, "Holds 200/s: 200/s answered")
	f([]string{"a.ndjson", "-f", "json"}, `"format": "spillway-load"`, `"rate_hz": 100`)
	f([]string{"a.ndjson", "-f", "junit"}, `<testsuite name="http://127.0.0.1/" tests="1" failures="0"`, `<testcase classname="100/s" name="is a valid measurement"`)
	f([]string{"a.ndjson", "-f", "summary"}, "| 100/s | 100 | 100/s | 5")
	f([]string{"a.ndjson", "--against", "before=b.ndjson.gz", "--fail-if", "p50>+10%"}, "No change exceeds its limit: this run against before.", "p50>+10%  within the limit")
	f([]string{"a.ndjson", "--format", "bench"}, "BenchmarkLoad/loop=open/rate=100/connections=4 100 100 req/s")
}

func TestReportWritesFile(t *testing.T) {
	t.Parallel()
	dir := twoResults(t)
	stdout, stderr, code := spillwayIn(t, dir, "report", "a.ndjson", "-o", "page.html")
	if code != exit.OK || stdout+stderr != "" {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	page, err := os.ReadFile(filepath.Join(dir, "page.html"))
	if err != nil || !bytes.HasPrefix(page, []byte("<!DOCTYPE html>")) {
		t.Errorf("%v: %.60s", err, page)
	}
	if rest, err := filepath.Glob(filepath.Join(dir, ".report-*")); err != nil || rest != nil {
		t.Errorf("left behind: %v, %v", rest, err)
	}
}

// TestReportAgainst: the comparison is on standard output, and the exit code and one line on standard error say how it ended.
func TestReportAgainst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeResult(t, filepath.Join(dir, "base.ndjson"), "host-a")
	writeResultOf(t, filepath.Join(dir, "slow.ndjson"), "host-a", 8*time.Millisecond, result.Valid)
	writeResultOf(t, filepath.Join(dir, "contended.ndjson"), "host-a", 5*time.Millisecond, result.HostContended)
	f := func(file string, code int, stdoutHas, stderrHas string) {
		t.Helper()
		stdout, stderr, got := spillwayIn(t, dir, "report", file, "--against", "base.ndjson", "--fail-if", "p50>+10%")
		if got != code || !strings.Contains(stdout, stdoutHas) || !strings.Contains(stderr, stderrHas) || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%s: exit %d, want %d with %q and %q\n%s%s", file, got, code, stdoutHas, stderrHas, stdout, stderr)
		}
	}
	f("base.ndjson", exit.OK, "within the limit", "")
	f("slow.ndjson", exit.Failed, "FAILED", "spillway: p50 at 100/s changed by +60 % (p50>+10%)\n")
	f("contended.ndjson", exit.NothingValid, "not judged", "only valid measurements can be compared: 100/s of this run is HOST_CONTENDED\n")
}

func TestReportMistakes(t *testing.T) {
	t.Parallel()
	dir := twoResults(t)
	f := func(want string, wantCode int, args ...string) {
		t.Helper()
		stdout, stderr, code := spillwayIn(t, dir, append([]string{"report"}, args...)...)
		if code != wantCode || stdout != "" || !strings.Contains(stderr, want) || strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
			t.Errorf("%v: exit %d, want %d with %q\n%s%s", args, code, wantCode, want, stdout, stderr)
		}
	}
	f("merge: part 1 of 2 is given twice: of host-a and of host-a", exit.Usage, "--merge", "part-a.ndjson", "./part-a.ndjson")
	f("--fail-if needs --against BASE", exit.Usage, "a.ndjson", "--fail-if", "p99>+10%")
	f("--fail-if: the value is empty", exit.Usage, "a.ndjson", "--against", "b.ndjson.gz", "--fail-if", "")
	f("write the change as +10%", exit.Usage, "a.ndjson", "--against", "b.ndjson.gz", "--fail-if", "p99>10%")
	f("text shows one run, not 2 files: compare a run with another by --against BASE", exit.Usage, "a.ndjson", "b.ndjson.gz")
	f("--against compares one run", exit.Usage, "a.ndjson", "b.ndjson.gz", "--against", "b.ndjson.gz")
	f("a comparison has the formats text, markdown, summary and junit, not html", exit.Usage, "a.ndjson", "--against", "b.ndjson.gz", "-f", "html")
	f("name such a directory, alone in a report, or result files", exit.Usage, ".")
	f("open missing.ndjson: no such file or directory", exit.Usage, "missing.ndjson")
	f("-o ./a.ndjson would replace a file that the report reads", exit.Usage, "b.ndjson.gz", "x=a.ndjson", "-o", "./a.ndjson")
	f("-o b.ndjson.gz would replace", exit.Usage, "a.ndjson", "--against", "b.ndjson.gz", "-o", "b.ndjson.gz")
	f("no such file or directory", exit.Error, "a.ndjson", "-o", "nowhere/page.html")
}
