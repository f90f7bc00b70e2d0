package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// loadVerb runs `spillway load` and returns its output.
func loadVerb(t *testing.T, ctx context.Context, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"load"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

// loadJudged repeats `spillway load` if other programs took the CPU, so that the
// exit code is that of a step that could be judged.
func loadJudged(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	for range 20 {
		stdout, stderr, code = loadVerb(t, t.Context(), args...)
		if !strings.Contains(stderr, string(result.HostContended)) {
			break
		}
	}
	return stdout, stderr, code
}

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
	url, seen := pages(t)
	stdout, stderr, code := loadVerb(t, t.Context(), url+"/ok", "-c", "2,4", "-n", "300")
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
	url, _ := pages(t)
	out := filepath.Join(t.TempDir(), "run.ndjson.gz")
	stdout, stderr, code := loadJudged(t, url+"/ok", "--rate", "200,400", "-d", "500ms", "--json", "-o", out, "--seed", "7",
		"-H", "Authorization: Bearer hush", "--slo", "errors<50%", "--label", "mine", "--run", "r1", "--check", "body~=SUCCESS")
	if code != exit.OK {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	var d report.Document
	if err := json.Unmarshal([]byte(stdout), &d); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	if len(d.Steps) != 2 || d.Steps[0].Due != 100 || d.Steps[1].Due != 200 || d.Steps[1].OfferedHz != 400 || d.Header.Seed != 7 {
		t.Errorf("document %+v", d)
	}
	kept, err := result.ReadFile(out)
	if err != nil || kept.CutOff != "" || kept.Header.Run != "r1" || kept.Header.Label != "mine" || len(kept.Steps) != 2 {
		t.Fatalf("file: %v, %+v", err, kept)
	}
	for i := range kept.Steps {
		if got := &kept.Steps[i]; len(got.Slices) != 1 || got.Total.Done != d.Steps[i].Done || got.Slices[0].Done != got.Total.Done {
			t.Errorf("step %d of the file: %d seconds, %d answered, the document says %d", i, len(got.Slices), got.Total.Done, d.Steps[i].Done)
		}
	}
	if strings.Contains(stdout+stderr, "hush") || strings.Contains(strings.Join(kept.Header.Command, " "), "hush") {
		t.Error("a secret header is shown")
	}
	reported, _, code := reportOn(t, out, "--format", "json")
	if code != exit.OK || reported != stdout {
		t.Errorf("exit %d: report on the file differs from load --json:\n%s", code, reported)
	}
}

func reportOn(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"report"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

func TestLoadSLO(t *testing.T) {
	url, _ := pages(t)
	_, stderr, code := loadJudged(t, url+"/fail", "-c", "1", "--rate", "400", "-n", "200", "--slo", "errors<0.5% p50<10s")
	if code != exit.Failed || !strings.Contains(stderr, "SLO missed: errors<0.5% at 400/s") {
		t.Errorf("exit %d\n%s", code, stderr)
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

// TestLoadOfTroubledServers checks the verdicts on servers that do not answer, do not
// keep up or fail: the SLO is missed, and the generator is not to blame.
func TestLoadOfTroubledServers(t *testing.T) {
	url := troubled(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{url + "/hang", "--rate", "600", "-d", "2s", "--timeout", "500ms", "--slo", "p99<400ms errors<50%"}, "SLO missed: p99<400ms at 600/s"},
		{[]string{url + "/queue", "--rate", "80", "-d", "4s", "--slo", "rate>=75 errors<=100%"}, "SLO missed: rate>=75 at 80/s"},
		{[]string{url + "/close", "--rate", "300", "-d", "1s", "--slo", "p50<10s"}, "SLO missed: p50<10s at 300/s, errors<=1% at 300/s"},
	} {
		stdout, stderr, code := loadJudged(t, append(test.args, "--json")...)
		var d report.Document
		if err := json.Unmarshal([]byte(stdout), &d); err != nil {
			t.Fatalf("%q: %v in\n%s%s", test.args, err, stdout, stderr)
		}
		if code != exit.Failed || !strings.HasSuffix(stderr, test.want+"\n") || d.Steps[0].Validity != result.Valid {
			t.Errorf("%q: exit %d, %s, want %q\n%s", test.args, code, d.Steps[0].Validity, test.want, stderr)
		}
		if rate := d.Steps[0].Rate; strings.HasSuffix(test.args[0], "/queue") && (rate > 51 || !d.Steps[0].Overloaded) {
			t.Errorf("answered %g/s of 50/s, overloaded %v", rate, d.Steps[0].Overloaded)
		}
	}
}

// TestLoadNothingValid has too few requests for the SLO: the last line says so.
func TestLoadNothingValid(t *testing.T) {
	url, _ := pages(t)
	_, stderr, code := loadJudged(t, url+"/ok", "--rate", "400", "-n", "120", "--slo", "p99<10s")
	want := "spillway: nothing valid was measured: 400/s is TOO_FEW_SAMPLES (120 answers are too few for p99: 10 of them must lie beyond it; use --requests 1000)\n"
	if code != exit.NothingValid || !strings.HasSuffix(stderr, want) {
		t.Errorf("exit %d\n%s", code, stderr)
	}
}

// TestLoadAbort ends a run whose requests fail.
func TestLoadAbort(t *testing.T) {
	url, _ := pages(t)
	out := filepath.Join(t.TempDir(), "run")
	_, stderr, code := loadVerb(t, t.Context(), url+"/fail", "--rate", "100,200", "-d", "1h", "--abort", "errors>20% for 2s", "-o", out)
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
	url, seen := pages(t)
	if stdout, stderr, code := loadVerb(t, t.Context(), url+"/ok", "--workers", "7", "-n", "200"); code != exit.OK || seen.Load() != 200 {
		t.Errorf("exit %d with %d requests\n%s%s", code, seen.Load(), stdout, stderr)
	}
}

func TestLoadBodies(t *testing.T) {
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
		{url + "/echo", "--form", "a=n{random(5,5)}", "--form", "f=@" + filepath.Join(dir, "body"), "--check", "body~=name=\"a\"\r\n\r\nn5\r\n", "--check", "body~={sequence}"},
	} {
		if stdout, stderr, code := loadJudged(t, append(args, "-c", "2", "--rate", "400", "-n", "100", "--slo", "errors<=0")...); code != exit.OK {
			t.Errorf("%q: exit %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// TestLoadSecrets sends headers from the environment and a file. Only their names
// may appear in the results.
func TestLoadSecrets(t *testing.T) {
	url, _ := pages(t)
	dir := t.TempDir()
	headers, out := filepath.Join(dir, "headers"), filepath.Join(dir, "run.ndjson")
	if err := os.WriteFile(headers, []byte("Cookie: hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SPILLWAY_TEST_KEY", "hush{1}")
	args := []string{url + "/echo", "-X", "POST", "-c", "1", "-n", "20", "-o", out, "-H", "X-Key: a ${SPILLWAY_TEST_KEY}", "--header-file", headers}
	stdout, stderr, code := loadVerb(t, t.Context(), append(args, "--check", "body~=[] a hush{1}")...)
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
	if _, stderr, code := loadVerb(t, t.Context(), url, "-H", "X-Key: ${SPILLWAY_TEST_NONE}"); code != exit.Usage || !strings.Contains(stderr, "SPILLWAY_TEST_NONE is not set") {
		t.Errorf("a variable that is not set: exit %d\n%s", code, stderr)
	}
}

// TestLoadFailedAnswers loads pages that reject every request, and reads why.
func TestLoadFailedAnswers(t *testing.T) {
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
		stdout, stderr, _ := loadVerb(t, t.Context(), server.URL+path, "-c", "1", "-n", "200")
		if !strings.Contains(stdout, want) || strings.Contains(stdout+stderr, "hush") {
			t.Errorf("%s: no %q in\n%s", path, want, stdout)
		}
	}
}

// TestLoadInterrupt interrupts a run, which reports the measurements so far.
func TestLoadInterrupt(t *testing.T) {
	url, seen := pages(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		defer cancel()
		for seen.Load() < 30 && ctx.Err() == nil {
			<-time.After(10 * time.Millisecond)
		}
	})
	out := filepath.Join(t.TempDir(), "run")
	stdout, stderr, code := loadVerb(t, ctx, url+"/ok", "--rate", "300,400", "-d", "1h", "-o", out)
	if code != exit.OK || seen.Load() < 30 || !strings.Contains(stdout, "300/s") {
		t.Errorf("exit %d with %d requests\n%s%s", code, seen.Load(), stdout, stderr)
	}
	kept, err := result.ReadFile(out)
	if err != nil || kept.End.Reason != result.Interrupted || len(kept.Steps) != 1 || kept.Steps[0].Total.Done != seen.Load() {
		t.Errorf("file: %v, end %+v, want %d answered in one step", err, kept.End, seen.Load())
	}
}

func TestLoadMistakes(t *testing.T) {
	url, _ := pages(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
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
		{[]string{url, "--self-test"}, exit.Usage, "its own target"},
		{[]string{"http://" + listener.Addr().String()}, exit.Error, "connection refused"},
	} {
		stdout, stderr, code := loadVerb(t, t.Context(), test.args...)
		if code != test.code || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", test.args, code, test.code, test.want, stdout, stderr)
		}
	}
}

// TestLoadLive reads the page and the metrics of a run while it is under way.
func TestLoadLive(t *testing.T) {
	url, _ := pages(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var errs lockedBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"load", url + "/ok", "--rate", "50", "-d", "10m", "--live", "--metrics", "127.0.0.1:0"}, io.Discard, &errs)
	}()
	get := func(what string) string {
		_, rest, found := strings.Cut(errs.String(), what+": ")
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
	eventually(t, "the page shows the run", func() bool { return strings.Contains(get("live report"), "The run is under way.") })
	eventually(t, "the metrics count requests", func() bool {
		return regexp.MustCompile(`\nspillway_load_requests_total [1-9]`).MatchString(get("metrics"))
	})
	stop()
	http.DefaultClient.CloseIdleConnections()
	if code := <-ended; code != exit.OK {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}
