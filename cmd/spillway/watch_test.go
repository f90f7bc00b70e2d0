package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// watchedDocument runs load --json with further arguments and parses the output.
func watchedDocument(t *testing.T, args ...string) (d report.Document, stderr string) {
	t.Helper()
	stdout, stderr, code := spillway(t, append([]string{"load", "--json"}, args...)...)
	if code != exit.OK {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &d); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	return d, stderr
}

// within checks that a number is between two bounds.
func within(t *testing.T, name string, got *float64, low, high float64) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s: no figure", name)
	case *got < low || *got > high:
		t.Errorf("%s: %g, want %g to %g", name, *got, low, high)
	}
}

// TestLoadWatch loads the built server on PostgreSQL and checks the watched numbers of both.
// report must print the file as load did.
func TestLoadWatch(t *testing.T) {
	database := shared.postgres.CreateDatabase(t)
	if _, stderr, code := spillway(t, "seed", "freight", "--database", database, "--users", "100", "--days", "30", "--per-day", "20"); code != exit.OK {
		t.Fatal(stderr)
	}
	app := apptest.Serve(t, shared.binary, "--database", database)
	app.WaitReady(t)
	out := filepath.Join(t.TempDir(), "run.ndjson")
	d, stderr := watchedDocument(t, app.URL("goodslist?offset=300"), "--rate", "400,800", "-d", "4s", "--per-connection", "1", "-o", out,
		"--watch", "app="+app.Addr(), "--watch", "db="+shared.postgres.Addr(), "--watch-db", "pg="+database)
	if len(d.Steps) != 2 || d.Steps[1].Watch == nil {
		t.Fatalf("document %+v\n%s", d, stderr)
	}
	for i := range d.Steps {
		u := d.Steps[i].Watch
		if len(u.Processes) != 2 || len(u.Hosts) != 1 || len(u.TCP) != 1 || len(u.Databases) != 1 || len(u.Listeners) == 0 {
			t.Fatalf("step %d: %+v\n%s", i, u, stderr)
		}
		for _, p := range u.Processes {
			within(t, p.Name+" CPU per request", p.CPUPerRequest, 1e-6, 0.1)
			within(t, p.Name+" cores", p.CPUCores, 1e-4, 64)
			within(t, p.Name+" memory", p.RSSMax, 1<<20, 8<<30)
			within(t, p.Name+" files", p.FDsMax, 4, 1e5)
		}
		within(t, "accepted per request", u.TCP[0].PassivePerRequest, 0.9, 100) // other programs on this host open connections too
		within(t, "TIME_WAIT", u.TCP[0].TimeWaitMax, 10, 1e6)
		within(t, "commits/s", u.Databases[0].Commits, 1, 1e4)
		within(t, "connections", u.Databases[0].ConnectionsMax, 1, 100)
		within(t, "cores", u.Hosts[0].Cores, 1, 4096)
		within(t, "the watch", u.Watch[0].CPUCores, 1e-6, 0.2)
	}
	// The cost per commit and per request does not depend on the rate. The bounds are wide for a busy machine.
	one, two := d.Steps[0].Watch.Processes[0].CPUCores, d.Steps[1].Watch.Processes[0].CPUCores
	within(t, "app at 800/s over 400/s", ratioOf(two, one), 0.5, 8)
	for i := range d.Steps {
		for _, p := range d.Steps[i].Watch.Processes {
			within(t, p.Name+" CPU was read this far from the borders", p.BorderError, 0, 1)
			within(t, "the resolution of its CPU", p.CPUResolution, 1e-9, 0.01)
		}
	}
	reported, _, code := spillway(t, "report", out, "--format", "json")
	var again report.Document
	if err := json.Unmarshal([]byte(reported), &again); code != exit.OK || err != nil || *again.Steps[1].Watch.Processes[0].CPUUser != *d.Steps[1].Watch.Processes[0].CPUUser {
		t.Errorf("exit %d, %v: report on the file differs", code, err)
	}
	text, _, _ := spillway(t, "report", out)
	for _, want := range []string{"\n  app  ", "µs user + ", " fds", "\n  pg (postgres)  ", "\nUsed in each step\n", "app CPU, user + sys"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func ratioOf(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	ratio := *a / *b
	return &ratio
}

// TestLoadWatchCommits counts the commits of statements that commit once each.
func TestLoadWatchCommits(t *testing.T) {
	database := shared.postgres.CreateDatabase(t)
	if _, stderr, code := spillway(t, "load", database, "--sql", "CREATE TABLE entries (n integer)", "-n", "1", "-c", "1"); code != exit.OK {
		t.Fatal(stderr)
	}
	d, stderr := watchedDocument(t, database, "--sql", "INSERT INTO entries VALUES (1)", "--rate", "200", "-c", "2", "-d", "8s",
		"--watch", "db="+shared.postgres.Addr(), "--watch-db", database)
	u := d.Steps[0].Watch
	if len(u.Databases) != 1 || u.Databases[0].Name != "postgres" {
		t.Fatalf("databases %+v\n%s", u.Databases, stderr)
	}
	// The server's counters can be a second late.
	within(t, "commits per request", u.Databases[0].CommitsPerRequest, 0.8, 1.1)
	within(t, "connections", u.Databases[0].ConnectionsMax, 2, 3)
	within(t, "CPU per request", u.Processes[0].CPUPerRequest, 1e-6, 0.05)
}

func TestWatchMistakes(t *testing.T) {
	url, _ := pages(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"load", url, "--watch", "app"}, "write NAME=SPEC"},
		{[]string{"load", url, "--watch", "app=:1"}, "nothing listens on port 1"},
		{[]string{"load", url, "--watch", "a=1", "--watch", "a=1"}, "its own name"},
		{[]string{"load", url, "--watch-db", "db=oracle://u:s3cr3t@h/d"}, "unknown kind of database"},
		{[]string{"load", url, "--watch-from", "http://u:s3cr3t@127.0.0.1:1"}, "--watch-from"},
		{[]string{"watch", "--report-interval", "1ms"}, "--report-interval"},
		{[]string{"watch", "--listen", ":0", "-o", "x"}, "records nothing"},
		{[]string{"watch", "--listen", "0.0.0.0:0"}, "token"},
		{[]string{"watch", "-d", "1s", "-o", "/no/such/dir/file"}, "result file"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), c.args, &out, &errs)
		if code != exit.Usage || !strings.Contains(errs.String(), c.want) || out.Len() > 0 || strings.Count(strings.TrimSpace(errs.String()), "\n") > 0 {
			t.Errorf("%q: exit %d, want %q\n%s%s", c.args, code, c.want, out.String(), errs.String())
		}
		if strings.Contains(errs.String(), "s3cr3t") {
			t.Errorf("%q: the password is printed", c.args)
		}
	}
}

// watchLines watches until there are that many lines, interrupts, and returns the output.
func watchLines(t *testing.T, lines int, args ...string) string {
	t.Helper()
	args = append([]string{"watch"}, args...)
	cmd := exec.CommandContext(t.Context(), shared.binary, append(args, "--report-interval", "1s")...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	buffer := make([]byte, 4096)
	interrupted := false
	for {
		n, err := stdout.Read(buffer)
		seen.Write(buffer[:n])
		if strings.Count(seen.String(), "\n") >= lines && !interrupted {
			interrupted = true
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s%s", err, seen.String(), errs.String())
	}
	return seen.String()
}

// TestWatchRecords records a process until SIGINT. The file must be complete, and report must print it.
func TestWatchRecords(t *testing.T) {
	t.Parallel()
	app := apptest.Serve(t, shared.binary)
	app.WaitReady(t)
	out := filepath.Join(t.TempDir(), "watch.ndjson.gz")
	// Ports are counted less often if there are many sockets; then it watches longer.
	seen := watchLines(t, 3, "--watch", "app="+app.Addr(), "-o", out)
	for lines := 10; lines <= 90 && !strings.Contains(seen, "ports"); lines *= 3 {
		seen = watchLines(t, lines, "--watch", "app="+app.Addr(), "-o", out)
	}
	for _, want := range []string{"app 0.", "TIME_WAIT", "ports", "Watched for ", "\n  app  "} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %q in\n%s", want, seen)
		}
	}
	kept, err := result.ReadFile(out)
	if err != nil || kept.CutOff != "" || kept.End.Reason != result.Interrupted || len(kept.Watches) != 1 || len(kept.Samples) < 20 {
		t.Fatalf("file: %v, %+v", err, kept.End)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	if stdout, stderr, code := spillway(t, "report", out, "-o", page); code != exit.OK || stdout+stderr != "" {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "CPU by process") {
		t.Errorf("%v: no timeline", err)
	}
}

// TestLoadWatchFrom merges the samples of a remote watch.
func TestLoadWatchFrom(t *testing.T) {
	url, _ := pages(t)
	const token = "0123456789abcdef"
	address, stop := listenWatch(t, token)
	defer stop()
	d, stderr := watchedDocument(t, url+"/ok", "--rate", "50", "-d", "4s", "--watch-from", "http://"+address, "--watch-token", token)
	if len(d.Watches) != 2 || d.Watches[1].Host == "" || len(d.Steps[0].Watch.Hosts) != 2 {
		t.Fatalf("watches %+v\n%s", d.Watches, stderr)
	}
	within(t, "cores there", d.Steps[0].Watch.Hosts[1].Cores, 1, 4096)
	if strings.Contains(strings.Join(d.Header.Command, " "), token) {
		t.Error("the token is in the result")
	}
}

// listenWatch starts watch --listen on a free port and returns the address that it prints.
func listenWatch(t *testing.T, token string) (address string, stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shared.binary, "watch", "--listen", "127.0.0.1:0", "--token", token)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, err := log.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(buffer[:n]), "address=")
	address, _, _ = strings.Cut(rest, " ")
	return address, func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGINT), cmd.Wait()); err != nil {
			t.Errorf("watch --listen: %v", err)
		}
	}
}

// TestWatchInterrupted cancels a watch before its first sample.
func TestWatchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"watch"}, &out, &errs); code != exit.OK || !strings.Contains(out.String(), "Watched for 0s") {
		t.Errorf("exit %d\n%s%s", code, out.String(), errs.String())
	}
}
