package main

import (
	"bytes"
	"context"
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
	h := histogram.New()
	h.RecordN(5*time.Millisecond, 100)
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
			Total:  result.Total{Elapsed: 1, Counters: counters, Latency: latency, Validity: result.Valid},
		}},
		End: result.End{Reason: result.Finished, Elapsed: 1},
	}
	w, err := result.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteRun(run); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// reportVerb runs `spillway report` in a directory with two result files.
func reportVerb(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Chdir(t.TempDir())
	writeResult(t, "a.ndjson", "host-a")
	writeResult(t, "b.ndjson.gz", "host-b")
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"report"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

func TestReportShowsFiles(t *testing.T) {
	f := func(args []string, want ...string) {
		t.Helper()
		stdout, stderr, code := reportVerb(t, args...)
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
	f([]string{"a.ndjson", "b.ndjson.gz"}, "\na\n"[1:], "\nb\n", "p50 a  p50 b")
	f([]string{"before=a.ndjson", "after=b.ndjson.gz"}, "before\n", "p50 before  p50 after")
	f([]string{"--merge", "a.ndjson", "b.ndjson.gz"}, "Holds 200/s: 200/s answered")
	f([]string{"a.ndjson", "-f", "json"}, `"format": "spillway-load"`, `"rate_hz": 100`)
	f([]string{"a.ndjson", "--format", "bench"}, "BenchmarkLoad/loop=open/rate=100/connections=4 100 100 req/s")
}

func TestReportWritesFile(t *testing.T) {
	stdout, stderr, code := reportVerb(t, "a.ndjson", "-o", "page.html")
	if code != exit.OK || stdout+stderr != "" {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	page, err := os.ReadFile("page.html")
	if err != nil || !bytes.HasPrefix(page, []byte("<!DOCTYPE html>")) {
		t.Errorf("%v: %.60s", err, page)
	}
	if rest, err := filepath.Glob(".report-*"); err != nil || rest != nil {
		t.Errorf("left behind: %v, %v", rest, err)
	}
}

func TestReportMistakes(t *testing.T) {
	f := func(want string, wantCode int, args ...string) {
		t.Helper()
		stdout, stderr, code := reportVerb(t, args...)
		if code != wantCode || stdout != "" || !strings.Contains(stderr, want) || strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
			t.Errorf("%v: exit %d\n%s%s", args, code, stdout, stderr)
		}
	}
	f("the run that host-a began at 2026-03-01T12:00:00Z is given twice", exit.Usage, "--merge", "a.ndjson", "./a.ndjson")
	f("name such a directory alone, or result files", exit.Usage, ".")
	f("open missing.ndjson: no such file or directory", exit.Usage, "missing.ndjson")
	if err := os.WriteFile("x.txt", []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f("no such file or directory", exit.Error, "a.ndjson", "-o", "nowhere/page.html")
}
