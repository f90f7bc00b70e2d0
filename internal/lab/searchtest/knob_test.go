package searchtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/result"
)

// adjustable answers as many requests per second as the file says, and 503 to the others. It saves up those of a second. seen is
// called for every request, one at a time.
func adjustable(t *testing.T, file string, seen func(capacity float64)) (url string) {
	t.Helper()
	var mu sync.Mutex
	tokens, last := 0.0, time.Now()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		text, err := os.ReadFile(file)
		capacity, errParse := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil || errParse != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		seen(capacity)
		now := time.Now()
		tokens, last = min(tokens+capacity*now.Sub(last).Seconds(), capacity), now
		if tokens < 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		tokens--
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// setting is a file that the command of a knob writes, with a value in it.
func setting(t *testing.T, value string) (file, command string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "setting")
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
	return file, fmt.Sprintf("echo $VALUE > '%s.new' && mv '%s.new' '%s'", file, file, file)
}

// checkSetting checks the value that a file has.
func checkSetting(t *testing.T, file, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(text)) != want {
		t.Errorf("the setting is %q, %v, want %q", text, err, want)
	}
}

// notTurned reports whether the machine was too busy for a knob: no probe was valid, or no time was left.
func notTurned(d *peak.Document, k *peak.DocumentKnob) bool {
	return d.FeasibleMax == nil && d.InfeasibleMin == nil && k.Reason == "there is no peak to compare with" ||
		k.Reason == "no time was left; raise --max-time" && k.Stopped == ""
}

// TestPeakKnob turns a knob that sets the capacity, and one that does not matter. On a machine with other work probes
// may be invalid or miss the SLO, so that only what VALID probes met is certain.
func TestPeakKnob(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	for _, want := range []struct {
		name, original, value, maxTime string
		capacity                       float64 // with the value
	}{{"capacity", "100", "1000", "24s", 1000}, {"colour", "red", "blue", "36s", 100}} {
		t.Run(want.name, func(t *testing.T) {
			t.Parallel()
			file, command := setting(t, "100")
			if want.name == "colour" {
				command = "true"
			}
			knob := want.name + "=" + want.original + "," + want.value + ": " + command
			kept := filepath.Join(t.TempDir(), "peak.ndjson")
			d, stderr, code := peakVerb(t, adjustable(t, file, func(float64) {}), "--slo", "p50<5s errors<1%", "--start", "80", "--precision", "1",
				"--max-time", want.maxTime, "-o", kept, "--knob", knob)
			checkSearch(t, d, stderr, code, 100)
			checkSetting(t, file, "100")
			if run, err := result.ReadFile(kept); err != nil || len(run.Steps) != len(d.Probes) {
				t.Errorf("the file has other steps than those of the original value: %v", err)
			}
			if len(d.Knobs) != 1 {
				t.Fatalf("%+v", d.Knobs)
			}
			k := &d.Knobs[0]
			if k.Name != want.name || k.Original != want.original || k.Value != want.value || (k.Moved == peak.NotMeasured) != (k.Reason != "") {
				t.Errorf("%+v, want %+v", k, want)
			}
			for _, p := range k.Probes {
				if p.Met && p.Validity == result.Valid && p.Rate > 1.4*want.capacity {
					t.Errorf("%g/s is above the capacity and met the SLO", p.Rate)
				}
			}
			switch up := d.IntervalHigh != nil && k.IntervalLow != nil && *k.IntervalLow > *d.IntervalHigh; {
			case k.Moved == peak.MovedUp && !up || up && k.Moved != peak.MovedUp && k.Moved != peak.NotMeasured:
				t.Errorf("%+v against the original %+v", k, d)
			case k.Moved == peak.NotMeasured:
				t.Logf("not measured: %s", k.Reason)
			case !strings.Contains(stderr, fmt.Sprintf("knob %s=%s: ", k.Name, k.Value)):
				t.Errorf("progress:\n%s", stderr)
			}
		})
	}
}

// TestPeakKnobInterrupted interrupts the process while another value is in force and loaded, and with more signals while the command
// sets the original one back: it is in force afterwards.
func TestPeakKnobInterrupted(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	file, command := setting(t, "1000")
	var process atomic.Pointer[os.Process]
	answers := 0
	url := adjustable(t, file, func(capacity float64) {
		if capacity != 2000 {
			return
		}
		if answers++; answers == 20 {
			_ = process.Load().Signal(os.Interrupt)
		}
	})
	knob := "capacity=1000,2000,3000: if [ $VALUE = 1000 ]; then for s in INT HUP TERM; do kill -$s $PPID; done; fi; " + command
	cmd := exec.Command(program.Path(t), "peak", url, "--json", "--slo", "p50<5s", "--start", "300", "--max", "300", "--max-time", "1m", "--knob", knob)
	var stdout, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	process.Store(cmd.Process)
	_ = cmd.Wait() // the exit code is checked below
	stderr := errs.String()
	var d *peak.Document
	if err := json.Unmarshal(stdout.Bytes(), &d); err != nil {
		t.Fatalf("%v: %s\n%s", err, cmd.ProcessState, stderr)
	}
	checkSearch(t, d, stderr, cmd.ProcessState.ExitCode(), 1e9)
	checkSetting(t, file, "1000")
	if len(d.Knobs) != 2 || d.Knobs[0].Moved != peak.NotMeasured || d.Knobs[1].Moved != peak.NotMeasured {
		t.Fatalf("%+v", d.Knobs)
	}
	if notTurned(d, &d.Knobs[0]) {
		t.Logf("not turned: %s", d.Knobs[0].Reason)
		return
	}
	if d.Knobs[0].Stopped != peak.StoppedInterrupted || d.Knobs[1].Reason != "interrupted" || !strings.Contains(stderr, "knob capacity=1000: restored\n") {
		t.Errorf("%+v\n%s", d.Knobs, stderr)
	}
}

// TestPeakKnobClosedPipe has nobody who reads the progress any more while another value is in force, as after Ctrl-C in a pipeline: the
// original value is set back.
func TestPeakKnobClosedPipe(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	file, command := setting(t, "1000")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	url := adjustable(t, file, func(capacity float64) {
		if capacity == 2000 {
			reader.Close()
		}
	})
	cmd := exec.Command(program.Path(t), "peak", url, "--slo", "p50<5s", "--start", "300", "--max", "300", "--max-time", "1m", "--knob", "capacity=1000,2000: "+command)
	cmd.Stderr = writer
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		t.Errorf("it ended with %v", err)
	}
	checkSetting(t, file, "1000")
}

// TestPeakKnobFails has a command that changes the setting and fails: the original value is in force afterwards, and the peak that
// was found is printed.
func TestPeakKnobFails(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	file, command := setting(t, "1000")
	d, stderr, code := peakVerb(t, adjustable(t, file, func(float64) {}), "--slo", "p50<5s", "--start", "100", "--max", "100", "--max-time", "30s",
		"--knob", "capacity=1000,2000: "+command+"; if [ $VALUE = 2000 ]; then echo no such capacity; exit 5; fi")
	checkSetting(t, file, "1000")
	if d == nil || len(d.Knobs) != 1 || d.Knobs[0].Moved != peak.NotMeasured {
		t.Fatalf("exit %d, %+v\n%s", code, d, stderr)
	}
	if notTurned(d, &d.Knobs[0]) {
		t.Logf("not turned: %s", d.Knobs[0].Reason)
		checkSearch(t, d, stderr, code, 1e9)
		return
	}
	if code != exit.Error || d.Knobs[0].Reason != "the command failed" ||
		!strings.HasSuffix(stderr, "spillway: knob capacity=2000 instead of 1000: the command failed: exit status 5: no such capacity\n") {
		t.Errorf("exit %d, %+v\n%s", code, d.Knobs, stderr)
	}
}

// TestPeakKnobRefuses checks that a mistake in a knob ends with one line that has the fix, before anything is run.
func TestPeakKnobRefuses(t *testing.T) {
	t.Parallel()
	for want, knob := range map[string]string{
		"write NAME=ORIGINAL,VALUE: COMMAND, as in 'pool=8,16: ./set-pool $VALUE'": "pool=8,16",
		"and one to try, as in 'pool=8,16: ":                                       "pool=8: true",
		"a value is empty":                                                         "pool=8,: true",
		"the value 8 is there twice; remove one":                                   "pool=8,8: true",
	} {
		d, stderr, code := peakVerb(t, "http://127.0.0.1:1/", "--slo", "p99<1s", "--knob", knob)
		if code != exit.Usage || d != nil || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %q, want %q", knob, code, stderr, want)
		}
	}
}
