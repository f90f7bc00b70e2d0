package searchtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/plan"
	"spillway/internal/lab/result"
)

// peakVerb runs `spillway peak --json` and returns its document, without one after a usage error.
func peakVerb(t *testing.T, args ...string) (d *peak.Document, stderr string, code int) {
	t.Helper()
	p := command(t, append([]string{"peak", "--json"}, args...)...)
	p.start(t)
	return p.peak(t)
}

// peak waits for the end of `spillway peak --json` and returns what it printed.
func (p *process) peak(t *testing.T) (d *peak.Document, stderr string, code int) {
	t.Helper()
	code = p.wait(t)
	if stdout := p.stdout.String(); stdout != "" {
		if err := json.Unmarshal([]byte(stdout), &d); err != nil {
			t.Fatalf("%v in\n%s", err, stdout)
		}
	}
	return d, p.stderr.String(), code
}

// bucket answers capacity requests per second, and 503 to the others. It saves up those of a tenth of a second.
func bucket(t *testing.T, capacity float64) (url string) {
	t.Helper()
	var mu sync.Mutex
	full := capacity / 10
	tokens, last := full, time.Now()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		tokens, last = min(tokens+capacity*now.Sub(last).Seconds(), full), now
		if tokens < 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		tokens--
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// sleepers answers with k workers, each of which takes the time for a request.
func sleepers(t *testing.T, k int, each time.Duration) (url string) {
	t.Helper()
	free := make(chan *time.Timer, k)
	for range k {
		free <- time.NewTimer(time.Hour)
	}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		timer := <-free
		timer.Reset(each)
		<-timer.C
		free <- timer
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// checkSearch checks that a document agrees with itself and with the exit code. On a machine with other work any probe may be
// invalid, so that only what VALID probes prove is certain: none at a rate above the capacity met the SLO.
func checkSearch(t *testing.T, d *peak.Document, stderr string, code int, capacity float64) {
	t.Helper()
	if d == nil {
		t.Fatalf("exit %d without a document: %s", code, stderr)
	}
	want := exit.NothingValid
	seconds, requests := 0.0, int64(0)
	for i, p := range d.Probes {
		seconds += p.Seconds
		requests += p.Requests
		if p.Step != i || (p.Rate == 0) != (p.Purpose == peak.Closed) || p.Requests > 0 && len(p.Margins) == 0 {
			t.Errorf("probe %d: %+v", i, p)
		}
		if p.Validity == result.Valid && p.Rate > 1.1*capacity && p.Met {
			t.Errorf("%g/s is above the capacity and met the SLO: %+v", p.Rate, p)
		}
		for _, m := range p.Margins {
			if m.Met != (m.Log <= 0) {
				t.Errorf("probe %d: %+v", i, m)
			}
		}
	}
	if d.InfeasibleMin != nil {
		want = exit.Failed
		if d.FeasibleMax != nil && *d.InfeasibleMin <= *d.FeasibleMax {
			t.Errorf("met at %g/s, missed at %g/s", *d.FeasibleMax, *d.InfeasibleMin)
		}
		if d.Binding == nil {
			t.Error("no criterion is binding")
		}
	}
	if d.FeasibleMax != nil {
		want = exit.OK
	}
	if code != want || d.Seconds-seconds > 1e-6 || seconds-d.Seconds > 1e-6 || d.Requests != requests || d.Stopped == "" {
		t.Errorf("exit %d, want %d; %+v\n%s", code, want, d, stderr)
	}
	for _, rate := range []*float64{d.FeasibleMax, d.InfeasibleMin} {
		if rate == nil {
			continue
		}
		proved := false
		for _, p := range d.Probes {
			proved = proved || p.Rate == *rate && p.Validity == result.Valid && p.Met == (rate == d.FeasibleMax)
		}
		if !proved {
			t.Errorf("no VALID probe proves %g/s: %+v", *rate, d.Probes)
		}
	}
}

// TestPeak searches on servers of known capacity until a deadline, over short and kept connections.
func TestPeak(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		url      string
		capacity float64
		args     []string
	}{
		{"bucket", bucket(t, 400), 400, []string{"--slo", "p90<5s errors<1%", "--start", "300", "--max-time", "12s"}},
		{"sleepers", sleepers(t, 4, 20*time.Millisecond), 200, []string{"--slo", "p90<100ms", "--max-time", "8s", "--per-connection", "1", "--precision", "0.2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "peak.ndjson")
			d, stderr, code := peakVerb(t, append(c.args, c.url, "-o", file, "-H", "Authorization: Bearer hush")...)
			checkSearch(t, d, stderr, code, c.capacity)
			kept, err := result.ReadFile(file)
			if err != nil || kept.CutOff != "" || kept.End.Reason != result.Finished || len(kept.Steps) != len(d.Probes) || len(kept.Steps) == 0 {
				t.Fatalf("file: %v, %d steps for %d probes, %+v", err, len(kept.Steps), len(d.Probes), kept.End)
			}
			for i := range kept.Steps {
				s, p := &kept.Steps[i], &d.Probes[i]
				if s.OfferedHz != p.Rate || s.Total.Validity != p.Validity || !strings.HasPrefix(s.Name, string(p.Purpose)+" ") || s.Total.Requests() != p.Requests {
					t.Errorf("step %d: %+v is not %+v", i, s.Step, p)
				}
			}
			if strings.Contains(strings.Join(kept.Header.Command, " "), "hush") || d.File != file || d.SLO != kept.Header.SLO {
				t.Errorf("header %+v, document %+v", kept.Header, d)
			}
			if !strings.Contains(stderr, "probe 1, ") {
				t.Errorf("progress:\n%s", stderr)
			}
			read, err := peak.OutcomeOf(kept)
			if err != nil || read == nil {
				t.Fatalf("the search of the file: %v, %v", read, err)
			}
			plan.Beside(read)
			same := read.Document(d.File)
			for i := range same.Probes { // the steps tell it without the pauses between them
				same.Probes[i].Seconds = d.Probes[i].Seconds
			}
			if diff := cmp.Diff(d, same, cmpopts.EquateApprox(0, 1e-6), cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(diagnose.Verdict{})); diff != "" {
				t.Errorf("the search of the file differs (-printed +read):\n%s", diff)
			}
			reported, problem, code := spillway(t, "report", file)
			if code != exit.OK || !strings.Contains(reported, c.url) || !strings.Contains(reported, read.Headline()) {
				t.Errorf("report: exit %d\n%s%s", code, reported, problem)
			}
		})
	}
}

// TestPeakNothingMet searches on a server that fails every request. The text says so.
func TestPeakNothingMet(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	text, stderr, code := spillway(t, "peak", url+"/fail", "--slo", "p90<5s", "--start", "100", "--max-time", "6s")
	switch code {
	case exit.Failed:
		if !strings.Contains(text, "Peak: below 100/s. No rate that was tried met the SLO.") || !strings.Contains(stderr, "no rate that was tried met the SLO: the lowest was 100/s") {
			t.Errorf("%s%s", text, stderr)
		}
	case exit.NothingValid:
		if !strings.Contains(text, "Peak: unknown.") || !strings.Contains(stderr, "nothing valid was measured: bracket 100/s is ") {
			t.Errorf("%s%s", text, stderr)
		}
	default:
		t.Errorf("exit %d\n%s%s", code, text, stderr)
	}
}

// TestPeakInterrupted ends a search after its first probe, and one during it.
func TestPeakInterrupted(t *testing.T) {
	t.Parallel()
	args := []string{"peak", "--json", "--slo", "p50<5s", "--start", "300", "--max-time", "1h"}
	probeLine := regexp.MustCompile(`(?m)^probe [0-9]+, `)
	for _, during := range []bool{false, true} {
		url, seen := pages(t)
		p := command(t, append(args, url+"/ok")...)
		p.start(t)
		apptest.AwaitState(t, "a probe runs or is over", func() (string, bool) {
			progress := p.stderr.String()
			return progress, during && seen.Load() > 0 || strings.Contains(progress, "probe 1, ")
		})
		p.interrupt(t)
		d, stderr, code := p.peak(t)
		checkSearch(t, d, stderr, code, 1e9)
		if shown := len(probeLine.FindAllString(stderr, -1)); d.Stopped != peak.StoppedInterrupted || d.Confirmed || len(d.Probes) != shown || !during && shown == 0 {
			t.Errorf("interrupted during a probe: %v: %+v, want the %d probes that were shown\n%s", during, d, shown, stderr)
		}
	}
}

// TestPeakDoesNotWait searches on a server that never answers: the search ends soon after --max-time, long before the requests do.
func TestPeakDoesNotWait(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	defer server.Close()
	defer close(ended)
	d, stderr, code := peakVerb(t, "--slo", "p50<5s", "--start", "50", "--max-time", "8s", "--timeout", "10h", server.URL)
	if code != exit.NothingValid && code != exit.Failed || d == nil || d.Stopped != peak.StoppedDeadline {
		t.Errorf("exit %d, want %d or %d at the deadline: %+v\n%s", code, exit.NothingValid, exit.Failed, d, stderr)
	}
}

// TestPeakRefuses checks that mistakes end with one line that has the fix.
func TestPeakRefuses(t *testing.T) {
	t.Parallel()
	const url = "http://127.0.0.1:1/"
	for want, args := range map[string][]string{
		"peak: name a target":                                 {"--slo", "p99<70ms"},
		"peak: say what the target has to meet, as in --slo":  {url},
		"remove the criterion on it":                          {url, "--slo", "rate>5"},
		"--precision \"5\": write a share":                    {url, "--slo", "p99<1s", "--precision", "5"},
		"peak: --start 9 is above --max 8":                    {url, "--slo", "p99<1s", "--start", "9", "--max", "8"},
		"must not be negative":                                {url, "--slo", "p99<1s", "--max-time=-1s"},
		"must be at most":                                     {url, "--slo", "p99<1s", "--max", "1e9"},
		"peak: remove --rate: peak chooses the rates":         {url, "--slo", "p99<1s", "--rate", "5"},
		"peak: remove --duration":                             {url, "--slo", "p99<1s", "-d", "5s"},
		"peak: remove --requests":                             {url, "--slo", "p99<1s", "-n", "5"},
		"peak: remove --part: peak makes the load on this":    {url, "--slo", "p99<1s", "--part", "1/2"},
		"--connections 1,2: write one number":                 {url, "--slo", "p99<1s", "-c", "1,2"},
		"--slo: the value is empty":                           {url, "--slo", ""},
		"no request has the name \"login\"":                   {url, "--slo", "p99{login}<1s"},
		"add --allow 1.1.1.1":                                 {"http://1.1.1.1/", "--slo", "p99<1s"},
		"SLO \"p99\": write it without blanks, as in 'p99<70": {url, "--slo", "p99"},
	} {
		d, stderr, code := peakVerb(t, args...)
		if code != exit.Usage || d != nil || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, %q, want %q", args, code, stderr, want)
		}
	}
	if _, stderr, code := peakVerb(t, url, "--slo", "p99<1s"); code != exit.Error || !strings.Contains(stderr, "connection refused") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}
