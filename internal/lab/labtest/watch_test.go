package labtest

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// watchedDocument runs load --json with further arguments and parses the output. It loads again, at most five times, while the watch
// had no CPU to read the processes and databases in each step.
func watchedDocument(t *testing.T, args ...string) (d report.Document, stderr string) {
	t.Helper()
	for range 5 {
		stdout, text, code := spillway(t, append([]string{"load", "--json"}, args...)...)
		if code != exit.OK {
			t.Fatalf("exit %d\n%s%s", code, stdout, text)
		}
		if d, stderr = document(t, stdout, text), text; !slices.ContainsFunc(d.Steps, hardlyRead) {
			break
		}
	}
	return d, stderr
}

// hardlyRead says whether a step has a process without CPU figures, although other programs disturbed it, or a database without commits.
func hardlyRead(step report.DocumentStep) bool {
	unread := func(p *result.SubjectUsage) bool {
		return math.IsNaN(p.Value(result.CPUPerRequest) + p.Value(result.BorderError))
	}
	uncounted := func(d *result.SubjectUsage) bool { return math.IsNaN(d.Value(result.CommitsPerRequest)) }
	return step.Watch != nil && slices.ContainsFunc(step.Watch.Of(result.SamplerPostgres), uncounted) ||
		step.Validity == result.HostContended && (step.Watch == nil || slices.ContainsFunc(step.Watch.Of(result.SamplerProcess), unread))
}

// atLeast checks that there is a figure and that it is at least low. What a machine with other work makes larger has no other bound.
func atLeast(t *testing.T, u *result.SubjectUsage, f result.Figure, low float64) {
	t.Helper()
	if got := u.Value(f); !(got >= low) {
		t.Errorf("%s of %s %s: %g, want at least %g", f, u.Sampler, u.Name, got, low)
	}
}

// TestLoadWatch loads the built server on PostgreSQL and checks the watched numbers of both.
// report must print the file as load did.
func TestLoadWatch(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	if _, stderr, code := spillway(t, "seed", "freight", "--database", database, "--users", "100", "--days", "30", "--per-day", "20"); code != exit.OK {
		t.Fatal(stderr)
	}
	app := apptest.Serve(t, program.Path(t), "--database", database)
	app.WaitReady(t)
	out := filepath.Join(t.TempDir(), "run.ndjson")
	d, stderr := watchedDocument(t, app.URL("goodslist?offset=300"), "--rate", "100,200", "-d", "4s", "--per-connection", "1", "-o", out,
		"--watch", "app="+app.Addr(), "--watch", "db="+postgres.Get(t).Addr(), "--watch-db", "pg="+database)
	if len(d.Steps) != 2 || d.Steps[1].Watch == nil {
		t.Fatalf("document %+v\n%s", d, stderr)
	}
	for i := range d.Steps {
		u := d.Steps[i].Watch
		if len(u.Of(result.SamplerProcess)) != 2 || len(u.Of(result.SamplerListener)) == 0 {
			t.Fatalf("step %d: %+v\n%s", i, u, stderr)
		}
		for _, p := range u.Of(result.SamplerProcess) {
			atLeast(t, p, result.CPUPerRequest, 1e-6)
			atLeast(t, p, result.CPUCores, 1e-6)
			atLeast(t, p, result.RSSMax, 1<<20)
			atLeast(t, p, result.FDsMax, 4)
			atLeast(t, p, result.BorderError, 0)
			atLeast(t, p, result.CPUResolution, 1e-9)
		}
		tcp, db := u.Find(result.SamplerTCP, "", ""), u.Find(result.SamplerPostgres, "", "pg")
		atLeast(t, tcp, result.PassiveOpensPerRequest, 0.1) // other programs on this host open connections too
		atLeast(t, tcp, result.TimeWaitMax, 10)
		atLeast(t, db, result.Commits, 0.1)
		atLeast(t, db, result.ConnectionsMax, 1)
		atLeast(t, u.Find(result.SamplerHost, "", ""), result.Cores, 1)
		atLeast(t, u.Find(result.SamplerWatch, "", ""), result.CPUCores, 1e-9)
	}
	reported, _, code := spillway(t, "report", out, "--format", "json")
	if again := document(t, reported, ""); code != exit.OK || cmp.Diff(d.Steps, again.Steps) != "" {
		t.Errorf("exit %d: report on the file differs (-load +report):\n%s", code, cmp.Diff(d.Steps, again.Steps))
	}
	text, _, _ := spillway(t, "report", out)
	for _, want := range []string{"\n  app  ", "s/request", " fds", "\n  pg (postgres)  ", "\nUsed in each step\n", "app CPU, user + sys"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestLoadWatchCommits counts the commits of statements that commit once each. The figures are those of the whole server, so it does
// not run beside other tests.
func TestLoadWatchCommits(t *testing.T) {
	database := postgres.Get(t).CreateDatabase(t)
	if _, stderr, code := spillway(t, "load", database, "--sql", "CREATE TABLE entries (n integer)", "-n", "1", "-c", "1"); code != exit.OK {
		t.Fatal(stderr)
	}
	d, stderr := watchedDocument(t, database, "--sql", "INSERT INTO entries VALUES (1)", "--rate", "200", "-c", "2", "-d", "4s",
		"--watch", "db="+postgres.Get(t).Addr(), "--watch-db", database)
	step := &d.Steps[0]
	databases := step.Watch.Of(result.SamplerPostgres)
	if len(databases) != 1 || databases[0].Name != "postgres" {
		t.Fatalf("databases %+v\n%s", databases, stderr)
	}
	// The server's counters can be a second late and are read when there is a CPU for it. The watch and the server itself commit too.
	atLeast(t, databases[0], result.CommitsPerRequest, 0.1)
	perRequest := databases[0].Value(result.CommitsPerRequest)
	if most := float64(2*step.Due+200) / float64(step.Done); perRequest > most {
		t.Errorf("%g commits per request, want at most %g", perRequest, most)
	}
	atLeast(t, databases[0], result.ConnectionsMax, 2)
	atLeast(t, step.Watch.Find(result.SamplerProcess, "", "db"), result.CPUPerRequest, 1e-6)
}

func TestWatchMistakes(t *testing.T) {
	t.Parallel()
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
		stdout, stderr, code := spillway(t, c.args...)
		if code != exit.Usage || !strings.Contains(stderr, c.want) || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", c.args, code, exit.Usage, c.want, stdout, stderr)
		}
		if strings.Contains(stderr, "s3cr3t") {
			t.Errorf("%q: the password is printed", c.args)
		}
	}
}

// TestWatchRecords records a process until SIGINT. The file must be complete, and report must print it.
func TestWatchRecords(t *testing.T) {
	t.Parallel()
	app := apptest.Redis(t)
	out := filepath.Join(t.TempDir(), "watch.ndjson.gz")
	p := command(t, "watch", "--watch", "app="+app.Addr(), "-o", out, "--report-interval", "1s")
	p.start(t)
	apptest.AwaitState(t, "watch shows three seconds and the process", func() (state string, ok bool) {
		shown := p.stdout.String()
		return shown, strings.Count(shown, "\n") >= 3 && strings.Contains(shown, "app 0.")
	})
	code, shown := p.interrupt(t), p.stdout.String()
	for _, want := range []string{"TIME_WAIT", "Watched for ", "\n  app  "} {
		if code != exit.OK || !strings.Contains(shown, want) {
			t.Errorf("exit %d, want 0 and %q in\n%s%s", code, want, shown, &p.stderr)
		}
	}
	kept, err := result.ReadFile(out)
	if err != nil || kept.CutOff != "" || kept.End.Reason != result.Interrupted || len(kept.Watches) != 1 {
		t.Fatalf("file: %v, %+v", err, kept.End)
	}
	samples := map[string]int{}
	for _, s := range kept.Samples {
		samples[s.Sampler]++
	}
	for _, sampler := range []string{result.SamplerHost, result.SamplerTCP, result.SamplerProcess} {
		if samples[sampler] < 2 {
			t.Errorf("samples %v, want at least two of %s", samples, sampler)
		}
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
	t.Parallel()
	url, _ := pages(t)
	const token = "0123456789abcdef"
	address, stop := listenWatch(t, token)
	defer stop()
	d, stderr := watchedDocument(t, url+"/ok", "--rate", "50", "-d", "4s", "--watch-from", "http://"+address, "--watch-token", token)
	if len(d.Watches) != 2 || d.Watches[1].Host == "" || len(d.Steps[0].Watch.Of(result.SamplerHost)) != 2 {
		t.Fatalf("watches %+v\n%s", d.Watches, stderr)
	}
	atLeast(t, d.Steps[0].Watch.Of(result.SamplerHost)[1], result.Cores, 1)
	if strings.Contains(strings.Join(d.Header.Command, " "), token) {
		t.Error("the token is in the result")
	}
}

// listenWatch starts watch --listen on a free port and returns the address that it prints.
func listenWatch(t *testing.T, token string) (address string, stop func()) {
	t.Helper()
	p := command(t, "watch", "--listen", "127.0.0.1:0", "--token", token)
	p.start(t)
	apptest.Await(t, "watch prints its address", func() bool {
		_, rest, _ := strings.Cut(p.stderr.String(), "address=")
		var printed bool
		address, _, printed = strings.Cut(rest, " ")
		return printed
	})
	return address, func() {
		if code := p.interrupt(t); code != exit.OK {
			t.Errorf("watch --listen: exit %d, want 0\n%s", code, &p.stderr)
		}
	}
}
