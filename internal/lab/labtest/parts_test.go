package labtest

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// startSoon is a time at which all parts of a test are ready, also on a busy machine.
func startSoon(t *testing.T) string {
	t.Helper()
	program.Path(t) // builds it
	return time.Now().Add(6 * time.Second).UTC().Format(time.RFC3339Nano)
}

// loadParts is a load in parts, each made by a process of its own.
type loadParts struct {
	processes []*process
	files     []string // by part
}

// startParts starts the parts of a load with the arguments. Part k runs as an argument of the words of inside(k).
func startParts(t *testing.T, parts int, inside func(k int) []string, args ...string) loadParts {
	t.Helper()
	var l loadParts
	dir, start := t.TempDir(), startSoon(t)
	for k := range parts {
		file := filepath.Join(dir, fmt.Sprintf("part-%d.ndjson", k+1))
		words := append(inside(k), program.Path(t), "load", "--part", fmt.Sprintf("%d/%d", k+1, parts), "--start-at", start, "-o", file, "--timeout", "10m")
		p := command(t)
		p.Path, p.Args = words[0], append(words, args...)
		if p.Path, _ = exec.LookPath(words[0]); p.Path == "" {
			t.Fatalf("%s is not installed", words[0])
		}
		p.start(t)
		l.processes, l.files = append(l.processes, p), append(l.files, file)
	}
	return l
}

func onThisHost(int) []string { return nil }

// wait waits until all parts have ended well, and returns their files.
func (l *loadParts) wait(t *testing.T) (parts []*result.Run) {
	t.Helper()
	for k, p := range l.processes {
		code := p.wait(t)
		part, err := result.ReadFile(l.files[k])
		if code != exit.OK || err != nil || part.CutOff != "" {
			t.Fatalf("part %d: exit %d, %v\n%s%s", k+1, code, err, &p.stdout, &p.stderr)
		}
		parts = append(parts, part)
	}
	return parts
}

// merge puts files of parts together with the program.
func merge(t *testing.T, files []string, flags ...string) (stdout, stderr string, code int) {
	t.Helper()
	return spillway(t, append(append([]string{"report", "--merge"}, flags...), files...)...)
}

// TestParts makes a load in three parts. They send each number of the sequence once, and their sum is exact: counters, and
// histograms bucket by bucket. Only the merge judges the SLO.
func TestParts(t *testing.T) {
	t.Parallel()
	const requests = 400
	seen := make(map[string]int)
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.URL.Path]++
		mu.Unlock()
	}))
	defer server.Close()
	l := startParts(t, 3, onThisHost, server.URL+"/{sequence}", "--rate", "200", "-n", fmt.Sprint(requests), "-c", "100", "--slo", "p99<1h rate>=1e9")
	parts := l.wait(t)
	mu.Lock()
	defer mu.Unlock()
	for n := range requests {
		if path := fmt.Sprintf("/%d", n+1); seen[path] != 1 {
			t.Errorf("number %d was sent %d times", n+1, seen[path])
		}
	}
	sum, counters := histogram.New(), result.Counters{}
	for k, part := range parts {
		step := &part.Steps[0]
		h, err := histogram.Decode(string(step.Total.Latency.Response))
		if err != nil {
			t.Fatal(err)
		}
		sum.Merge(h)
		counters.Add(&step.Total.Counters)
		if h := part.Header; h.Part.Number != k+1 || h.Part.Of != 3 || h.Seed != parts[0].Header.Seed {
			t.Errorf("part %d: %+v, seed %d", k+1, h.Part, h.Seed)
		}
		if step.Name != "200/s" || math.Abs(step.OfferedHz-200./3) > 1e-9 || step.Connections != []int{34, 33, 33}[k] {
			t.Errorf("part %d: %+v", k+1, step.Step)
		}
	}
	stdout, stderr, code := merge(t, l.files, "-f", "json")
	merged := document(t, stdout, stderr).Steps[0]
	if merged.Due != requests || merged.Done != counters.Done || merged.Connections != 100 || merged.Name != "200/s" || math.Abs(merged.OfferedHz-200) > 1e-9 {
		t.Errorf("merged %+v, the parts have %+v", merged, counters)
	}
	if p50 := sum.Quantile(0.5).Seconds(); merged.Response.P50 == nil || *merged.Response.P50 != p50 || merged.Response.Count != sum.Count() {
		t.Errorf("merged %+v, want p50 %g of %d", merged.Response, p50, sum.Count())
	}
	few := func(reason string) bool { return strings.HasPrefix(reason, "400 answers are too few for p99") }
	if code != exit.NothingValid || len(merged.SLO) != 3 || !slices.ContainsFunc(merged.Reasons, few) {
		t.Errorf("exit %d, SLO %+v, %s %q", code, merged.SLO, merged.Validity, merged.Reasons)
	}
	for format, want := range map[string][]string{
		"text": {"200/s", "400 answers are too few", "by the clocks of their hosts: that of part 1 ("}, "html": {"part 3 of 3", "that of part 1 ("},
	} {
		stdout, _, _ := merge(t, l.files, "-f", format)
		for _, text := range want {
			if !strings.Contains(stdout, text) {
				t.Errorf("no %q in %s:\n%.3000s", text, format, stdout)
			}
		}
	}
	writeWhole(t, &l, stdout, code)
	refuseMerges(t, &l, parts)
}

// writeWhole writes the result file of the whole, which says what the merge says. plan and diagnose refuse a part.
func writeWhole(t *testing.T, l *loadParts, merged string, code int) {
	t.Helper()
	whole := filepath.Join(t.TempDir(), "whole.ndjson.gz")
	if _, stderr, again := merge(t, l.files, "-o", whole); again != code {
		t.Errorf("exit %d, want %d\n%s", again, code, stderr)
	}
	if shown, _, _ := spillway(t, "report", whole, "-f", "json"); shown != merged {
		t.Errorf("the file of the whole is not the merge:\n%.2000s", shown)
	}
	for _, args := range [][]string{{"diagnose", l.files[0]}, {"plan", "--rate", "5", "--from", l.files[0]}} {
		if _, stderr, code := spillway(t, args...); code != exit.Usage || !strings.Contains(stderr, "is part 1 of 3 of a load: put the parts together first") {
			t.Errorf("%q: exit %d, %s", args, code, stderr)
		}
	}
}

// refuseMerges gives merge what are not the parts of one load.
func refuseMerges(t *testing.T, l *loadParts, parts []*result.Run) {
	t.Helper()
	dir := t.TempDir()
	changed := func(name string, change func(*result.Run)) string {
		run, err := result.ReadFile(l.files[2])
		if err != nil {
			t.Fatal(err)
		}
		change(run)
		path := filepath.Join(dir, name)
		if err := result.WriteFile(path, run); err != nil {
			t.Fatal(err)
		}
		return path
	}
	host := parts[0].Header.Machine.Host
	for _, c := range []struct {
		files []string
		want  string
	}{
		{l.files[:2], "merge: of the 3 parts of the load, these are missing: 3; nothing is summed without them"},
		{[]string{l.files[0], l.files[1], l.files[1]}, "merge: part 2 of 3 is given twice: of " + host + " and of " + host},
		{[]string{l.files[0], l.files[1], changed("other", func(r *result.Run) { r.Header.Target += "?" })}, "is of another load than part 1 (" + host + "): the target is"},
		{[]string{l.files[0], l.files[1], changed("later", func(r *result.Run) { r.Header.StartedAt = r.Header.StartedAt.Add(time.Minute) })}, "by their own clocks: parts of one load overlap"},
		{[]string{l.files[0], l.files[1], changed("whole", func(r *result.Run) { r.Header.Part = nil })}, "is no part of a load: make parts with load --part K/N --start-at TIME"},
	} {
		stdout, stderr, code := merge(t, c.files)
		if code != exit.Usage || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit %d, want %q\n%s%s", code, c.want, stdout, stderr)
		}
	}
}

// covers reports whether the answers and errors of steps account for the requests that a server has seen.
func covers(steps []report.DocumentStep, seen int64) bool {
	var done, errs int64
	for i := range steps {
		done, errs = done+steps[i].Done, errs+steps[i].Errors.Total()
	}
	return done <= seen && seen <= done+errs
}

// TestPartsOfSteps makes two steps in two parts, as the pods of a Job. Each step begins together.
func TestPartsOfSteps(t *testing.T) {
	t.Parallel()
	url, seen := pages(t)
	var l loadParts
	dir, start := t.TempDir(), startSoon(t)
	for k := range 2 {
		file := filepath.Join(dir, fmt.Sprintf("part-%d.ndjson.gz", k))
		p := command(t, "load", url+"/ok", "--part", "job", "--start-at", start, "-o", file, "--rate", "100,200", "--arrival", "poisson", "-d", "2s",
			"--timeout", "1s", "--seed", "7")
		p.Env = append(os.Environ(), fmt.Sprintf("JOB_COMPLETION_INDEX=%d", k), "SPILLWAY_PARTS=2")
		p.start(t)
		l.processes, l.files = append(l.processes, p), append(l.files, file)
	}
	parts := l.wait(t)
	stdout, stderr, code := merge(t, l.files, "-f", "json")
	d := document(t, stdout, stderr)
	if code != exit.OK || len(d.Steps) != 2 || d.Header.Seed != 7 || !covers(d.Steps, seen.Load()) {
		t.Fatalf("exit %d, %d requests\n%s%s", code, seen.Load(), stdout, stderr)
	}
	for i, hz := range []float64{100, 200} {
		if s := &d.Steps[i]; s.OfferedHz != hz || math.Abs(float64(s.Due)-2*hz) > 6*math.Sqrt(2*hz) {
			t.Errorf("step %d: %d arrivals at %g/s", i, s.Due, s.OfferedHz)
		}
		for k, part := range parts {
			s := &part.Steps[i]
			began := part.Header.StartedAt.Add(time.Duration((s.Start - s.Late) * float64(time.Second)))
			if off := began.Sub(part.Header.Part.StartAt.Add(time.Duration(i) * 5 * time.Second)); off.Abs() > 200*time.Millisecond {
				t.Errorf("step %d of part %d begins %s off", i, k+1, off)
			}
		}
	}
	if parts[0].Steps[0].Total.Due == parts[1].Steps[0].Total.Due && parts[0].Steps[1].Total.Due == parts[1].Steps[1].Total.Due {
		t.Errorf("both parts have %d and %d arrivals: they have the same random numbers", parts[0].Steps[0].Total.Due, parts[0].Steps[1].Total.Due)
	}
}

// TestKilledPart kills one of three parts in its step. The merge names it, and judges nothing.
func TestKilledPart(t *testing.T) {
	t.Parallel()
	url, seen := pages(t)
	var l loadParts
	for seconds, killed := 6, false; !killed; seconds *= 2 { // a part may have ended before it is killed
		before := seen.Load()
		l = startParts(t, 3, onThisHost, url+"/ok", "--rate", "200", "-d", fmt.Sprint(seconds, "s"), "--slo", "errors<50%")
		apptest.Await(t, "the parts make load", func() bool { return seen.Load() > before+400 })
		if err := l.processes[1].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for k, p := range l.processes {
			code := p.wait(t)
			killed = killed || k == 1 && code == -1
		}
	}
	stdout, stderr, code := merge(t, l.files, "-f", "json")
	d := document(t, stdout, stderr)
	if code != exit.NothingValid || d.End != nil || !strings.HasPrefix(d.CutOff, "part 2 (") || d.Steps[0].Validity != result.Unjudged || len(d.Steps[0].SLO) != 0 {
		t.Errorf("exit %d, cut off %q, step %+v\n%s", code, d.CutOff, d.Steps[0], stderr)
	}
	ended := func(reason string) bool {
		return strings.HasPrefix(reason, "part 2 (") && strings.Contains(reason, "ended after")
	}
	if !slices.ContainsFunc(d.Steps[0].Reasons, ended) {
		t.Errorf("reasons %q", d.Steps[0].Reasons)
	}
}

// TestPartMistakes: each mistake is one line that says what to write instead.
func TestPartMistakes(t *testing.T) {
	t.Parallel()
	const url = "http://127.0.0.1:1/"
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--part", "2/3"}, "add --start-at, as in --start-at 2"},
		{[]string{"--start-at", soon}, "add --part K/N"},
		{[]string{"--part", "3/2", "--start-at", soon}, `--part "3/2": write K/N, as in 2/3`},
		{[]string{"--part", "", "--start-at", soon}, "--part: the value is empty"},
		{[]string{"--part", "job", "--start-at", soon}, "set SPILLWAY_PARTS to the completions of an Indexed Job"},
		{[]string{"--part", "1/2", "--start-at", "2026-03-01T12:00:00Z"}, "ago by this host's clock; choose a time"},
		{[]string{"--part", "1/2", "--start-at", "12:00"}, `--start-at "12:00": write a time as in 2`},
		{[]string{"--part", "1/2", "--start-at", soon, "-c", "1"}, "1 connections for 2 parts: each needs at least one; raise --connections"},
		{[]string{"--part", "1/2", "--start-at", soon, "-n", "1", "-c", "4"}, "1 requests for 2 parts: each needs at least one; raise --requests"},
		{[]string{"--part", "1/2", "--start-at", soon, "--rate", "5", "--backlog", "1"}, "--backlog 1 for 2 parts: each needs at least one; raise --backlog"},
		{[]string{"--part", "1/2", "--start-at", soon, "-n", "9", "-c", "2,4"}, "add --duration, or make one step"},
	} {
		stdout, stderr, code := spillway(t, append([]string{"load", url}, c.args...)...)
		if code != exit.Usage || !strings.Contains(stderr, c.want) || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", c.args, code, exit.Usage, c.want, stdout, stderr)
		}
	}
}

// networks are three network namespaces, each connected to this one by a wire of its own.
type networks struct {
	names     []string
	here      string   // an address of this namespace that all reach
	addresses []string // of the three
}

// newNetworks makes namespaces with addresses of a network that is reserved for benchmarks, others than in another run of the tests.
func newNetworks(t *testing.T) networks {
	t.Helper()
	apptest.NeedRoot(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatal("ip is not installed: apt-get install iproute2")
	}
	ip := func(words ...string) {
		t.Helper()
		if output, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(words, " "), err, output)
		}
	}
	var n networks
	prefix := fmt.Sprintf("198.19.%d.", os.Getpid()%256)
	for k := range 3 {
		name := fmt.Sprintf("spillway-part-%d-%d", os.Getpid(), k+1)
		wire := fmt.Sprintf("spp%d%c", os.Getpid()%1_000_000, 'a'+k)
		gateway, address := fmt.Sprint(prefix, 4*k+1), fmt.Sprint(prefix, 4*k+2)
		ip("netns", "add", name)
		t.Cleanup(func() { ip("netns", "delete", name) })
		ip("link", "add", wire+"h", "type", "veth", "peer", "name", wire+"t", "netns", name)
		t.Cleanup(func() { ip("link", "delete", wire+"h") })
		ip("address", "add", gateway+"/30", "dev", wire+"h")
		ip("link", "set", wire+"h", "up")
		ip("-n", name, "address", "add", address+"/30", "dev", wire+"t")
		ip("-n", name, "link", "set", wire+"t", "up")
		ip("-n", name, "link", "set", "lo", "up")
		ip("-n", name, "route", "add", "default", "via", gateway)
		n.names, n.addresses = append(n.names, name), append(n.addresses, address)
	}
	n.here = prefix + "1"
	return n
}

// measured serves /NUMBER: of forty requests, one takes from 1 s to 2 s. It measures how long each took.
type measured struct {
	mu   sync.Mutex
	took []time.Duration
	from map[string]int // requests by the address that they came from
}

func (m *measured) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	began := time.Now()
	if number, _ := strconv.Atoi(strings.Trim(r.URL.Path, "/")); number%40 == 0 {
		<-time.After(time.Second + time.Duration(number%1000)*time.Millisecond)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	m.from[host]++
	m.took = append(m.took, time.Since(began))
}

// p99 is the exact percentile of the times.
func (m *measured) p99() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.took)
	return m.took[int(math.Ceil(0.99*float64(len(m.took))))-1].Seconds()
}

// TestPartsInNamespaces makes a load in three parts, each in a network namespace of its own. p99 of their sum is that of all
// requests, as the server has measured them, within 2 %. What else runs on the machine can spoil an attempt, which is hardly ever
// VALID then.
func TestPartsInNamespaces(t *testing.T) {
	t.Parallel()
	n := newNetworks(t)
	var wrong string
	for range 5 {
		off, validity := n.comparePercentile(t)
		if off == "" || t.Failed() {
			return
		}
		if validity == result.Valid {
			wrong = off
		}
	}
	if wrong != "" {
		t.Error(wrong)
	}
}

// comparePercentile says what is wrong with p99 of the sum. It is never lower than that of the server.
func (n *networks) comparePercentile(t *testing.T) (wrong string, validity result.Validity) {
	t.Helper()
	const requests = 1500
	listener, err := net.Listen("tcp", n.here+":0")
	if err != nil {
		t.Fatal(err)
	}
	m := &measured{from: map[string]int{}}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: m}}
	server.Start()
	defer server.Close()
	l := startParts(t, 3, func(k int) []string { return []string{"ip", "netns", "exec", n.names[k]} },
		server.URL+"/{sequence}", "--rate", "300", "-n", fmt.Sprint(requests), "-c", "300", "--allow", n.here)
	l.wait(t)
	for _, address := range n.addresses {
		if m.from[address] != requests/3 {
			t.Errorf("%d requests came from %s, want %d", m.from[address], address, requests/3)
		}
	}
	stdout, stderr, code := merge(t, l.files, "-f", "json")
	step := document(t, stdout, stderr).Steps[0]
	if code != exit.OK || step.Done != requests || step.Response.P99 == nil {
		t.Fatalf("exit %d: %+v\n%s", code, step, stderr)
	}
	want, got := m.p99(), *step.Response.P99
	if wrong = fmt.Sprintf("p99 of the merge is %.4f s, of all requests %.4f s; %s %q", got, want, step.Validity, step.Reasons); got < 0.98*want {
		t.Error(wrong)
	}
	if math.Abs(got-want) <= 0.02*want {
		wrong = ""
	}
	return wrong, step.Validity
}
