package labtest

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// writeWatched writes a result file with one step at 100/s, in which app used 40 % of a core.
func writeWatched(t *testing.T, path string, validity result.Validity) {
	t.Helper()
	h := histogram.New()
	h.RecordN(5*time.Millisecond, 2000)
	payload, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	counters := result.Counters{Due: 2000, Sent: 2000, Done: 2000, Completed: 2000, BytesIn: 2e6}
	run := &result.Run{
		Header:  result.Header{StartedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Target: "http://app-1/", SLO: "p99<70ms"},
		Watches: []result.Watch{{Host: "app-1"}},
		Steps: []result.StepRun{{
			Step: result.Step{Loop: result.LoopOpen, Arrival: "constant", OfferedHz: 100, Connections: 4, Duration: 20},
			Total: result.Total{
				Elapsed: 20, Counters: counters, Validity: validity, Latency: result.Latency{Response: result.HDR(payload), Service: result.HDR(payload)},
			},
		}},
		End: result.End{Reason: result.Finished, Elapsed: 20},
	}
	for _, at := range []float64{0, 10, 20} {
		run.Samples = append(
			run.Samples,
			result.Sample{At: at, Border: at != 10, Host: "app-1", Sampler: result.SamplerProcess, Subject: "app", Values: map[string]float64{
				"cpu_user_seconds_total": at * 0.3, "cpu_system_seconds_total": at * 0.1, "threads": 8,
			}},
			result.Sample{At: at, Host: "app-1", Sampler: result.SamplerHost, Values: map[string]float64{"cores": 1}},
		)
	}
	if err := result.WriteFile(path, run); err != nil {
		t.Fatal(err)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeWatched(t, filepath.Join(dir, "run.ndjson"), result.Valid)
	writeWatched(t, filepath.Join(dir, "again.ndjson.gz"), result.Valid)
	writeWatched(t, filepath.Join(dir, "contended.ndjson"), result.HostContended)
	writeResult(t, filepath.Join(dir, "unwatched.ndjson"), "host-a")
	f := func(code int, want string, args ...string) {
		t.Helper()
		stdout, stderr, got := spillwayIn(t, dir, append([]string{"plan"}, args...)...)
		text := stdout
		if code != exit.OK {
			text = stderr
		}
		if got != code || !strings.Contains(text, want) || code != exit.OK && (stdout != "" || strings.Count(stderr, "\n") != 1) {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", args, got, code, want, stdout, stderr)
		}
	}
	f(exit.OK, "1,000/s x 1.3 x 4 ms CPU / 40 % busy = 13 cores; 13 hosts of 1 core", "--from", "run.ndjson", "--rate", "1000")
	f(exit.OK, "1,000/s x 1 x 4 ms CPU", "--from", "run.ndjson", "again.ndjson.gz", "--rate", "1000", "--headroom", "0%")
	f(exit.OK, "4 hosts: up to 400/s", "--from", "run.ndjson,again.ndjson.gz", "--hosts", "4")
	f(exit.OK, "of 0.5 cores", "--from", "run.ndjson", "--hosts", "4", "--cpus", "app=0.5")
	f(exit.Usage, "--from", "--rate", "1000")
	f(exit.Usage, "--rate R", "--from", "run.ndjson")
	f(exit.Usage, "--rate R", "--from", "run.ndjson", "--rate=-3")
	f(exit.Usage, "--rate: the value is empty or 0", "--from", "run.ndjson", "--rate", "0")
	f(exit.Usage, "--headroom \"lots\"", "--from", "run.ndjson", "--rate", "10", "--headroom", "lots")
	f(exit.Usage, "--cpus web: no run watched a process of that name", "--from", "run.ndjson", "--rate", "10", "--cpus", "web=1")
	f(exit.Usage, "--cpus app=-1", "--from", "run.ndjson", "--rate", "10", "--cpus", "app=-1")
	f(exit.Usage, "--shared cache", "--from", "run.ndjson", "--rate", "10", "--shared", "cache")
	f(exit.Usage, "no such file", "--from", "none.ndjson", "--rate", "10")
	f(exit.Usage, "is not the directory of a run", "--from", ".", "--rate", "10")
	f(exit.Usage, "write it without blanks", "--from", "run.ndjson", "--rate", "10", "--slo", "fast")
	f(exit.NothingValid, "no step is VALID", "--from", "contended.ndjson", "--rate", "10")
	f(exit.NothingValid, "have no samples", "--from", "unwatched.ndjson", "--rate", "10", "--slo", "p50<1s")
	f(exit.Failed, "no VALID step met p99<1ms", "--from", "run.ndjson", "--rate", "10", "--slo", "p99<1ms")
}

func TestPlanJSON(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "run.ndjson")
	writeWatched(t, file, result.Valid)
	stdout, stderr, code := spillway(t, "plan", "--from", file, "--hosts", "2", "--json")
	if code != exit.OK || stderr != "" {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	var document struct {
		Format   string
		Capacity struct {
			Rate struct{ Value float64 } `json:"rate_hz"`
		}
		Lines []struct{ Name, Formula string }
	}
	if err := json.Unmarshal([]byte(stdout), &document); err != nil || document.Format != "spillway-plan" || document.Capacity.Rate.Value != 200 || len(document.Lines) < 2 {
		t.Errorf("%v: %+v\n%s", err, document, stdout)
	}
}
