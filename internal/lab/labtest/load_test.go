package labtest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

// pages serves /ok, /fail (503) and /echo, and counts the requests of /ok.
func pages(t *testing.T) (url string, seen *atomic.Int64) {
	t.Helper()
	seen = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) {
		seen.Add(1)
		io.WriteString(w, "SUCCESS")
	})
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "[%s] %s", body, r.Header.Get("X-Key"))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, seen
}

func TestLoadTable(t *testing.T) {
	t.Parallel()
	url, seen := pages(t)
	stdout, stderr, code := spillway(t, "load", url+"/ok", "-c", "2,4", "-n", "300")
	if code != exit.OK || seen.Load() != 600 {
		t.Errorf("exit %d with %d requests\n%s%s", code, seen.Load(), stdout, stderr)
	}
	for _, want := range []string{"conns", "p50", "\n      2  ", "\n      4  "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if !strings.Contains(stderr, "step 2 of 2: 4 connections, 300 requests\n") {
		t.Errorf("progress:\n%s", stderr)
	}
}

func TestLoadJSONAndFile(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	out := filepath.Join(t.TempDir(), "run.ndjson.gz")
	stdout, stderr, code := spillway(t, "load", url+"/ok", "--rate", "200,400", "-d", "500ms", "--timeout", "10m", "--json", "-o", out, "--seed", "7",
		"-H", "Authorization: Bearer hush", "--slo", "errors<50%", "--label", "mine", "--run", "r1", "--check", "body~=SUCCESS")
	d := document(t, stdout, stderr)
	if len(d.Steps) != 2 || d.Steps[0].Due != 100 || d.Steps[1].Due != 200 || d.Steps[1].OfferedHz != 400 || d.Header.Seed != 7 {
		t.Errorf("document %+v", d)
	}
	kept, err := result.ReadFile(out)
	if err != nil || kept.CutOff != "" || kept.Header.Run != "r1" || kept.Header.Label != "mine" || len(kept.Steps) != 2 {
		t.Fatalf("file: %v, %+v", err, kept)
	}
	if want := exit.Code(load.Judge(kept)); code != want {
		t.Errorf("exit %d, want %d\n%s", code, want, stderr)
	}
	for i := range kept.Steps {
		got, inSlices := &kept.Steps[i], int64(0)
		for _, slice := range got.Slices {
			inSlices += slice.Done
		}
		if got.Total.Done != d.Steps[i].Done || inSlices != got.Total.Done {
			t.Errorf("step %d of the file: %d answered in seconds, %d in all, the document says %d", i, inSlices, got.Total.Done, d.Steps[i].Done)
		}
	}
	if strings.Contains(stdout+stderr, "hush") || strings.Contains(strings.Join(kept.Header.Command, " "), "hush") {
		t.Error("a secret header is shown")
	}
	reported, _, code := spillway(t, "report", out, "--format", "json")
	if code != exit.OK || reported != stdout {
		t.Errorf("exit %d: report on the file differs from load --json:\n%s", code, reported)
	}
}

func TestLoadSLO(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	run, _ := judged(t, url+"/fail", "-c", "1", "--rate", "400", "-n", "200", "--slo", "errors<0.5% p50<1h")
	if got := missed(&run.Steps[0]); !slices.Equal(got, []string{"errors<0.5%"}) || run.Steps[0].Name != "400/s" {
		t.Errorf("%s missed %q, want errors<0.5%% at 400/s", run.Steps[0].Name, got)
	}
}

// troubled serves /hang, which leaves every tenth request without an answer, /queue,
// which answers one request at a time after 20 ms, and /close, which closes the
// connection without an answer.
func troubled(t *testing.T) (url string) {
	t.Helper()
	var (
		requests atomic.Int64
		serving  sync.Mutex
	)
	mux := http.NewServeMux()
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) {
		if requests.Add(1)%10 == 0 {
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("/queue", func(http.ResponseWriter, *http.Request) {
		serving.Lock()
		defer serving.Unlock()
		<-time.After(20 * time.Millisecond)
	})
	mux.HandleFunc("/close", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// TestLoadOfTroubledServers checks the verdicts on servers that do not answer, do not keep up or fail: the SLO is missed.
func TestLoadOfTroubledServers(t *testing.T) {
	t.Parallel()
	url := troubled(t)
	for _, test := range []struct {
		args []string
		want []string // missed
	}{
		{[]string{url + "/hang", "--rate", "600", "-d", "2s", "--timeout", "500ms", "--slo", "p99<400ms errors<=100%"}, []string{"p99<400ms"}},
		{[]string{url + "/queue", "--rate", "80", "-d", "3s", "--slo", "rate>=75 errors<=100%"}, []string{"rate>=75"}},
		{[]string{url + "/close", "--rate", "300", "-d", "1s", "--slo", "p50<10s"}, []string{"p50<10s", "errors<=1%"}},
	} {
		t.Run(strings.TrimPrefix(test.args[0], url+"/"), func(t *testing.T) {
			t.Parallel()
			run, last := judged(t, test.args...)
			step := &run.Steps[0]
			if got := missed(step); !slices.Equal(got, test.want) {
				t.Errorf("missed %q, want %q", got, test.want)
			}
			if valid := step.Total.Validity == result.Valid; valid && !strings.HasPrefix(last, "spillway: SLO missed: "+test.want[0]+" at ") {
				t.Errorf("the last line is %q, want that %q was missed", last, test.want)
			}
			if rate := float64(step.Total.Completed) / step.Total.Elapsed; strings.HasSuffix(test.args[0], "/queue") && rate > 51 {
				t.Errorf("answered %g/s of at most 50/s", rate)
			}
		})
	}
}

// TestLoadNothingValid has too few requests for the SLO: the last line says so, unless the machine was too busy as well.
func TestLoadNothingValid(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	run, last := judged(t, url+"/ok", "--rate", "400", "-n", "120", "--timeout", "10m", "--slo", "p99<10m")
	const reason = "120 answers are too few for p99: 10 of them must lie beyond it; use --requests 1000"
	total := &run.Steps[0].Total
	if total.Validity == result.Valid || !slices.Contains(total.Sentences(), reason) {
		t.Errorf("the step is %s because of %q, want the reason %q", total.Validity, total.Reasons, reason)
	}
	want := "spillway: nothing valid was measured: 400/s is " + string(total.Validity) + " ("
	if total.Validity == result.TooFewSamples {
		want += reason + ")\n"
	}
	if !strings.HasPrefix(last, want) {
		t.Errorf("the last line is %q, want %q", last, want)
	}
}

// TestLoadAbort ends a run whose requests fail.
func TestLoadAbort(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	out := filepath.Join(t.TempDir(), "run")
	_, stderr, code := spillway(t, "load", url+"/fail", "--rate", "100,200", "-d", "1h", "--abort", "errors>20% for 2s", "-o", out)
	if code != exit.Failed || !strings.HasSuffix(stderr, "spillway: aborted: errors>20% for 2s (100 % in the last second)\n") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	kept, err := result.ReadFile(out)
	if err != nil || len(kept.Steps) != 1 || !strings.HasPrefix(kept.End.Reason, "aborted: ") || kept.Steps[0].Total.Elapsed < 2 {
		t.Errorf("file: %v, %d steps, end %q", err, len(kept.Steps), kept.End.Reason)
	}
}

// TestLoadManyCores has the workers of a machine with 14 cores for 10 connections.
func TestLoadManyCores(t *testing.T) {
	t.Parallel()
	url, seen := pages(t)
	if stdout, stderr, code := spillway(t, "load", url+"/ok", "--workers", "7", "-n", "200"); code != exit.OK || seen.Load() != 200 {
		t.Errorf("exit %d with %d requests\n%s%s", code, seen.Load(), stdout, stderr)
	}
}

func TestLoadBodies(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"body": "{sequence}", "requests": "2 POST /echo a-{random(1,1)}\nPOST " + url + "/echo @body\nGET /ok\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{url + "/echo", "--body", "n={random(5,5)}", "-H", "X-Key: k", "--check", "body~=[n=5] k"},
		{url + "/echo", "--body-file", filepath.Join(dir, "body"), "--check", "body~=[{sequence}]"},
		{url, "--requests-file", filepath.Join(dir, "requests"), "--check", "status=200"},
	} {
		run, _ := judged(t, append(args, "-c", "2", "--rate", "400", "-n", "100", "--slo", "errors<=0")...)
		if total := &run.Steps[0].Total; total.Done != 100 || total.Errors.Total() != 0 || missed(&run.Steps[0]) != nil {
			t.Errorf("%q: %d answered, want 100 without an error: %+v", args, total.Done, total.Errors)
		}
	}
}

// TestLoadSecrets sends headers from the environment and a file. Only their names
// may appear in the results.
func TestLoadSecrets(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	dir := t.TempDir()
	headers, out := filepath.Join(dir, "headers"), filepath.Join(dir, "run.ndjson")
	if err := os.WriteFile(headers, []byte("Cookie: hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"load", url + "/echo", "-X", "POST", "-c", "1", "-n", "20", "-o", out, "-H", "X-Key: a ${SPILLWAY_TEST_KEY}", "--header-file", headers}
	p := command(t, append(args, "--check", "body~=[] a hush{1}")...)
	p.Env = append(os.Environ(), "SPILLWAY_TEST_KEY=hush{1}")
	p.start(t)
	code := p.wait(t)
	stdout, stderr := p.stdout.String(), p.stderr.String()
	file, err := os.ReadFile(out)
	if code != exit.OK || err != nil {
		t.Fatalf("exit %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if run, err := result.ReadFile(out); err != nil || run.Steps[0].Total.Errors.Total() != 0 {
		t.Errorf("requests failed, %v\n%s", err, stdout)
	}
	shown := strings.ReplaceAll(stdout+stderr+string(file), "body~=[] a hush{1}", "")
	if strings.Contains(shown, "hush") || !strings.Contains(shown, "X-Key: ") {
		t.Errorf("a secret is shown, or no header:\n%s", shown)
	}
	if _, stderr, code := spillway(t, "load", url, "-H", "X-Key: ${SPILLWAY_TEST_NONE}"); code != exit.Usage || !strings.Contains(stderr, "SPILLWAY_TEST_NONE is not set") {
		t.Errorf("a variable that is not set: exit %d\n%s", code, stderr)
	}
}

// TestLoadFailedAnswers loads pages that reject every request, and reads why.
func TestLoadFailedAnswers(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/login?token=hush", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnsupportedMediaType)
		io.WriteString(w, `{"title":"unsupported media type","detail":"send Content-Type: application/json"}`)
	}))
	defer server.Close()
	for path, want := range map[string]string{
		"/moved": "first redirect error: status 302: redirects to /login?token=xxxxx; load that URL, or accept the answer with --check status=3xx",
		"/json":  "first status error: status 415: unsupported media type: send Content-Type: application/json",
	} {
		stdout, stderr, _ := spillway(t, "load", server.URL+path, "-c", "1", "-n", "200")
		if !strings.Contains(stdout, want) || strings.Contains(stdout+stderr, "hush") {
			t.Errorf("%s: no %q in\n%s", path, want, stdout)
		}
	}
}

// TestLoadInterrupt interrupts a run, which reports the measurements so far.
func TestLoadInterrupt(t *testing.T) {
	t.Parallel()
	url, seen := pages(t)
	out := filepath.Join(t.TempDir(), "run")
	p := command(t, "load", url+"/ok", "--rate", "300,400", "-c", "10", "-d", "1h", "-o", out)
	p.start(t)
	apptest.Await(t, "300 requests have come", func() bool { return seen.Load() >= 300 })
	if code := p.interrupt(t); code != exit.OK || !strings.Contains(p.stdout.String(), "300/s") {
		t.Errorf("exit %d, want 0 and the step of 300/s\n%s%s", code, &p.stdout, &p.stderr)
	}
	kept, err := result.ReadFile(out)
	if err != nil || kept.End.Reason != result.Interrupted || len(kept.Steps) != 1 {
		t.Fatalf("file: %v, end %+v, %d steps, want one, interrupted", err, kept.End, len(kept.Steps))
	}
	// A connection sends a request only when the one before is answered. Those in flight have a second, and are given up then.
	if total := &kept.Steps[0].Total; total.Done < 290 || total.Done > seen.Load() || total.Due < seen.Load() || total.Done+total.Errors.Total() < seen.Load() {
		t.Errorf("%d due, %d answered and %d not, but the server saw %d requests", total.Due, total.Done, total.Errors.Total(), seen.Load())
	}
}

func TestLoadMistakes(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exit.Usage, "name a target"},
		{[]string{"http://1.1.1.1/"}, exit.Usage, "neither this machine nor a private address"},
		{[]string{url, "--rate", "x"}, exit.Usage, "--rate"},
		{[]string{url, "-c", "0"}, exit.Usage, "--connections"},
		{[]string{url, "--slo", "p99"}, exit.Usage, "SLO"},
		{[]string{url, "--abort", "errors<20%"}, exit.Usage, "--abort"},
		{[]string{url, "--slo", "p99{login}<1s"}, exit.Usage, "no request has the name \"login\""},
		{[]string{url, "--slo", "errors<1"}, exit.Usage, "SLO"},
		{[]string{url, "--slo", ""}, exit.Usage, "--slo: the value is empty"},
		{[]string{url, "--rate", "", "-c", "1"}, exit.Usage, "--rate: the value is empty"},
		{[]string{url, "-d", "0s"}, exit.Usage, "--duration: the value is empty or 0"},
		{[]string{url, "--arrival", "poisson", "-n", "1"}, exit.Usage, "add --rate"},
		{[]string{url, "--backlog", "5", "-n", "1"}, exit.Usage, "add --rate"},
		{[]string{url, "--check", "x"}, exit.Usage, "check"},
		{[]string{url, "-H", "x"}, exit.Usage, "header"},
		{[]string{url, "--param", "x"}, exit.Usage, "NAME=VALUE"},
		{[]string{url, "--source", "x"}, exit.Usage, "--source"},
		{[]string{url, "--body", "a", "--body-file", "b"}, exit.Usage, "one of them"},
		{[]string{url, "--body-file", "/no/such"}, exit.Usage, "no such file"},
		{[]string{url, "--per-connection=-1"}, exit.Usage, "must not be negative"},
		{[]string{url, "--report-interval", "1ms"}, exit.Usage, "--report-interval"},
		{[]string{url, "--timeout", "0s"}, exit.Usage, "timeout"},
		{[]string{url, "-n", "1", "-o", "/no/such/dir/file"}, exit.Usage, "result file"},
		{[]string{"http://127.0.0.1:1"}, exit.Error, "connection refused"},
	} {
		stdout, stderr, code := spillway(t, append([]string{"load"}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", test.args, code, test.code, test.want, stdout, stderr)
		}
	}
}

// TestLoadLive reads the page and the metrics of a run while it is under way.
func TestLoadLive(t *testing.T) {
	t.Parallel()
	url, _ := pages(t)
	p := command(t, "load", url+"/ok", "--rate", "50", "-d", "10h", "--live", "--metrics", "127.0.0.1:0")
	p.start(t)
	get := func(what string) string {
		_, rest, found := strings.Cut(p.stderr.String(), what+": ")
		if !found {
			return ""
		}
		address, _, _ := strings.Cut(rest, "\n")
		answer, err := http.Get(address)
		if err != nil {
			return ""
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		return string(body)
	}
	apptest.Await(t, "the page shows the run", func() bool { return strings.Contains(get("live report"), "The run is under way.") })
	apptest.Await(t, "the metrics count requests", func() bool {
		return regexp.MustCompile(`\nspillway_load_requests_total [1-9]`).MatchString(get("metrics"))
	})
	http.DefaultClient.CloseIdleConnections()
	if code := p.interrupt(t); code != exit.OK {
		t.Errorf("exit %d, want 0: %s", code, &p.stderr)
	}
}
