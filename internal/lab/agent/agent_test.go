package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "0123456789abcdef"

// startAgent serves until the test ends, or until stop is called.
func startAgent(t *testing.T, config Config) (address string, stop func()) {
	t.Helper()
	config.Header.Tool = "test"
	if config.Log == nil {
		config.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	listener, err := Listen(t.Context(), "127.0.0.1:0", config.Token)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, config) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// options returns the options of a load; change may be nil.
func options(url string, change func(*load.Options)) load.Options {
	o := load.Options{
		Target: url, Policy: load.Policy{Arrival: "constant", Timeout: 30 * time.Second}, Output: load.Output{ReportInterval: time.Second},
	}
	if change != nil {
		change(&o)
	}
	return o
}

// outcome is what a load reported.
type outcome struct {
	run   *result.Run
	group *Group
	err   error

	borders []time.Time
}

// loadAgents makes a load with agents. began is called when a step begins; it may be nil.
func loadAgents(t *testing.T, ctx context.Context, agents Agents, o load.Options, began func()) outcome {
	t.Helper()
	group, err := NewGroup(agents, o)
	if err != nil {
		return outcome{err: err}
	}
	defer group.Close()
	return outcome{group: group}.record(ctx, began)
}

func (out outcome) record(ctx context.Context, began func()) outcome {
	header := result.Header{Tool: "test"}
	if _, out.err = out.group.Prepare(ctx, &header); out.err != nil {
		return out
	}
	out.run = &result.Run{Header: header}
	out.run.End.Reason, out.err = out.group.Run(ctx, time.Now(), load.Listener{
		Step: func(s *result.Step) error {
			out.run.Steps = append(out.run.Steps, result.StepRun{Step: *s})
			if began != nil {
				began()
			}
			return nil
		},
		Slice: func(s *result.Slice) error {
			step := &out.run.Steps[s.Step]
			step.Slices = append(step.Slices, *s)
			return nil
		},
		Total: func(total *result.Total) error {
			out.run.Steps[total.Step].Total = *total
			return nil
		},
		Border: func(border time.Time) { out.borders = append(out.borders, border) },
	})
	return out
}

// scripted serves /NUMBER and stalls every slow-th number. It remembers the numbers.
type scripted struct {
	*httptest.Server
	mu     sync.Mutex
	seen   map[int]int
	loaded chan struct{} // closed when it has seen 50 numbers
}

func newScripted(t *testing.T, slow int, stall time.Duration) *scripted {
	s := &scripted{seen: map[int]int{}, loaded: make(chan struct{})}
	isLoaded := sync.OnceFunc(func() { close(s.loaded) })
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		number, _ := strconv.Atoi(strings.Trim(r.URL.Path, "/"))
		s.mu.Lock()
		s.seen[number]++
		if len(s.seen) >= 50 {
			isLoaded()
		}
		s.mu.Unlock()
		if number%slow == 0 {
			timer := time.NewTimer(stall)
			defer timer.Stop()
			<-timer.C
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// awaitLoad may be called from any goroutine.
func (s *scripted) awaitLoad(t *testing.T) {
	select {
	case <-s.loaded:
	case <-time.After(time.Minute):
		t.Errorf("waited a minute until the server had 50 numbers, but it has %d", s.numbers())
	}
}

func (s *scripted) numbers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// TestShares loads a scripted server with three agents and with one. Together, three make the requests of one, and the
// histogram of the sum is the sum of theirs, bucket by bucket.
func TestShares(t *testing.T) {
	t.Parallel()
	const requests, slow, stall = 400, 40, 300 * time.Millisecond
	for _, n := range []int{3, 1} {
		server := newScripted(t, slow, stall)
		var agents Agents
		for range n {
			address, _ := startAgent(t, Config{})
			agents.Addresses = append(agents.Addresses, address)
		}
		out := loadAgents(t, t.Context(), agents, options(server.URL+"/{sequence}", func(o *load.Options) {
			o.Rate, o.Requests, o.Connections, o.SLO = "400", requests, "100", "p99<1h"
		}), nil)
		if out.err != nil {
			t.Fatal(out.err)
		}
		step := out.run.Steps[0]
		if step.Total.Due != requests || step.Total.Done != requests || step.OfferedHz != 400 || step.Connections != 100 || out.run.End.Reason != result.Finished {
			t.Errorf("%d agents: %+v, %+v, end %q", n, step.Step, step.Total.Counters, out.run.End.Reason)
		}
		server.mu.Lock()
		for number := range requests {
			if server.seen[number+1] != 1 {
				t.Errorf("%d agents: number %d was sent %d times", n, number+1, server.seen[number+1])
			}
		}
		server.mu.Unlock()
		checkSum(t, out.group, &step)
		response, err := step.Total.Latency.Responses()
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := response.Quantile(1 - 0.5/slow); p < stall*99/100 {
			t.Errorf("%d agents: one of %d requests takes %v, and their percentile is %v", n, slow, stall, p)
		}
		if len(step.Total.SLO) != 2 || step.Total.Validity == result.Valid || !strings.Contains(strings.Join(step.Total.Sentences(), "\n"), "400 answers are too few for p99") {
			t.Errorf("%d agents: judged %+v, %s %q", n, step.Total.SLO, step.Total.Validity, step.Total.Reasons)
		}
	}
}

// checkSum checks that a step is the exact sum of the agents' shares.
func checkSum(t *testing.T, g *Group, step *result.StepRun) {
	t.Helper()
	sum, seconds := histogram.New(), result.Counters{}
	counters := result.Counters{}
	for _, r := range g.remotes {
		share := r.step(step.Index)
		h, err := histogram.Decode(string(share.Total.Latency.Response))
		if err != nil {
			t.Fatal(err)
		}
		sum.Merge(h)
		counters.Add(&share.Total.Counters)
	}
	for i := range step.Slices {
		seconds.Add(&step.Slices[i].Counters)
	}
	want, err := sum.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := &step.Total; string(got.Latency.Response) != want || got.Done != counters.Done || got.Completed != counters.Completed || seconds.Done != got.Done || seconds.Completed != got.Completed {
		t.Errorf("%d answered, %d in the seconds, %d by the agents; or another histogram", got.Done, seconds.Done, counters.Done)
	}
}

// TestSteps runs closed loops, SQL-like lists of steps and files over agents.
func TestSteps(t *testing.T) {
	var bodies sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies.Store(r.URL.Path+" "+string(body)+r.Header.Get("X-Key")+r.Header.Get("X-File"), true)
	}))
	defer server.Close()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"users.csv": "id\nann\nbob\n", "body": "hello", "headers": "X-File: filed\n", "requests": "POST /{file:" + filepath.Join(dir, "users.csv") + ":id} @body\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SPILLWAY_TEST_KEY", "{key}")
	one, _ := startAgent(t, Config{})
	two, _ := startAgent(t, Config{})
	out := loadAgents(t, t.Context(), Agents{Addresses: []string{one, two}}, options(server.URL, func(o *load.Options) {
		o.Header, o.HeaderFile = []string{"X-Key: ${SPILLWAY_TEST_KEY}"}, filepath.Join(dir, "headers")
		o.Connections, o.Requests, o.RequestsFile = "2,5", 101, filepath.Join(dir, "requests")
	}), nil)
	if out.err != nil || len(out.run.Steps) != 2 {
		t.Fatalf("%v, %+v", out.err, out.run)
	}
	for i, connections := range []int{2, 5} {
		s := &out.run.Steps[i]
		if s.Connections != connections || s.Total.Done != 101 || s.Total.Errors.Total() != 0 || s.Name != fmt.Sprintf("%d connections", connections) {
			t.Errorf("step %d: %+v, %+v", i, s.Step, s.Total.Counters)
		}
	}
	for _, want := range []string{"/ann hello{key}filed", "/bob hello{key}filed"} {
		if _, ok := bodies.Load(want); !ok {
			t.Errorf("%q was not sent", want)
		}
	}
	if len(out.borders) != 4 || !slices.IsSortedFunc(out.borders, time.Time.Compare) {
		t.Errorf("borders %v, want the begin and the end of two steps", out.borders)
	}
	if out.run.Steps[1].Start <= out.run.Steps[0].Start {
		t.Errorf("step 1 begins at %g s, step 0 at %g s", out.run.Steps[1].Start, out.run.Steps[0].Start)
	}
}

// TestClock loads with an agent whose clock is ahead. The result states by how much, and the step begins nevertheless.
func TestClock(t *testing.T) {
	t.Parallel()
	const shift = 90 * time.Second
	server := newScripted(t, 1_000_000, 0)
	ahead, _ := startAgent(t, Config{Clock: func() time.Time { return time.Now().Add(shift) }})
	right, _ := startAgent(t, Config{})
	out := loadAgents(t, t.Context(), Agents{Addresses: []string{ahead, right}}, options(server.URL+"/{sequence}", func(o *load.Options) {
		o.Connections, o.Requests = "4", 100
	}), nil)
	if out.err != nil || out.run.Steps[0].Total.Done != 100 {
		t.Fatalf("%v, %+v", out.err, out.run)
	}
	for i, want := range []time.Duration{shift, 0} {
		part := out.run.Header.Parts[i]
		if off := part.ClockOffset - want.Seconds(); part.ClockError <= 0 || max(off, -off) > part.ClockError || part.Agent != []string{ahead, right}[i] {
			t.Errorf("%s is %g ± %g s ahead, want %v", part.Agent, part.ClockOffset, part.ClockError, want)
		}
		began := part.Header.StartedAt.Add(-out.group.remotes[i].ahead()).Sub(out.group.start)
		if began.Abs() > shift/2 {
			t.Errorf("%s began %v after the coordinator", part.Agent, began)
		}
	}
	if note := strings.Join(out.run.Header.Notes, "\n"); !strings.Contains(note, ahead+" by 1m") {
		t.Errorf("notes %q, want %q", note, ahead+" by 1m…")
	}
}

// ahead is how far the clock of the agent is ahead.
func (r *remote) ahead() time.Duration {
	d, _ := r.offsets.Best()
	return d
}

func TestRefused(t *testing.T) {
	t.Parallel()
	server := newScripted(t, 1_000_000, 0)
	guarded, _ := startAgent(t, Config{Token: testToken})
	open, _ := startAgent(t, Config{})
	other, _ := startAgent(t, Config{})
	unix := "http+unix://%2Frun%2Fx.sock/"
	for _, c := range []struct {
		agents Agents
		url    string
		change func(*load.Options)
		code   int
		want   string
	}{
		{Agents{Addresses: []string{guarded}}, server.URL, nil, exit.Usage, "requires the token"},
		{Agents{Addresses: []string{open, guarded}, Token: "fedcba9876543210"}, server.URL, nil, exit.Usage, "rejects the token"},
		{Agents{Addresses: []string{"127.0.0.1:1"}}, server.URL, nil, exit.Error, "connection refused"},
		{Agents{Addresses: []string{open, open}}, server.URL, nil, exit.Usage, "twice"},
		{Agents{Addresses: []string{"http://u:" + testToken + "@h:1"}}, server.URL, nil, exit.Usage, "write HOST:PORT"},
		{Agents{Addresses: []string{open}, CA: "/no/such"}, server.URL, nil, exit.Usage, "no such file"},
		{Agents{Addresses: []string{"https://" + open}}, server.URL, nil, exit.Error, "HTTP"},
		{Agents{Addresses: []string{open, other}}, server.URL, func(o *load.Options) { o.Connections = "1" }, exit.Usage, "each needs at least one; raise --connections"},
		{Agents{Addresses: []string{open, other}}, server.URL, func(o *load.Options) { o.Requests = 1 }, exit.Usage, "each needs at least one; raise --requests"},
		{Agents{Addresses: []string{open}}, server.URL, func(o *load.Options) { o.Duration = 1000 * time.Hour }, exit.Usage, "too long"},
		{Agents{Addresses: []string{open}}, server.URL, func(o *load.Options) { o.Source = []string{"127.0.0.1"} }, exit.Usage, "--source"},
		{Agents{Addresses: []string{open}}, unix, nil, exit.Usage, "on the network only"},
		{Agents{Addresses: []string{open}}, "http://1.1.1.1/", func(o *load.Options) { o.Allow = []string{"1.1.1.1"} }, exit.Usage, "add --allow 1.1.1.1"},
		{Agents{Addresses: []string{open}}, "http://127.0.0.1:1/", nil, exit.Error, "agent " + open + " failed: load: connect to the target"},
		{Agents{Addresses: []string{open}}, server.URL, func(o *load.Options) { o.SLO = "p99" }, exit.Usage, "SLO"},
	} {
		out := loadAgents(t, t.Context(), c.agents, options(c.url, c.change), nil)
		if out.err == nil || exit.Code(out.err) != c.code || !strings.Contains(out.err.Error(), c.want) || strings.Contains(out.err.Error(), testToken) {
			t.Errorf("%v %s: %v (%d), want %q (%d)", c.agents.Addresses, c.url, out.err, exit.Code(out.err), c.want, c.code)
		}
	}
	if n := server.numbers(); n > 0 {
		t.Errorf("the target was sent %d numbers", n)
	}
	for _, url := range []string{"postgres://a@127.0.0.1:1/d?sslrootcert=/etc/hostname", "postgres://a@127.0.0.1:1/d?p%61ssfile=/etc/hostname", "mysql://a@127.0.0.1:1/d?allowAllFiles=true"} {
		o := options(url, func(o *load.Options) { o.SQL = "SELECT 1" })
		if _, err := o.Parse(new(order).inputs()); exit.Code(err) != exit.Usage || !strings.Contains(err.Error(), "on the host of an agent") {
			t.Errorf("%s: %v", url, err)
		}
	}
	o := options(server.URL, func(o *load.Options) { o.BodyFile = "/etc/hostname" })
	if _, err := o.Parse(new(order).inputs()); err == nil || !strings.Contains(err.Error(), "did not send this file") {
		t.Errorf("a file of the agent's host: %v", err)
	}
	o = options(server.URL, func(o *load.Options) { o.Header = []string{"X-Key: ${PATH}"} })
	if _, err := o.Parse(new(order).inputs()); err == nil || !strings.Contains(err.Error(), "PATH") {
		t.Errorf("a variable of the agent's host: %v", err)
	}
	tooLarge := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(tooLarge, make([]byte, filesMax+1), 0o600); err != nil {
		t.Fatal(err)
	}
	out := loadAgents(t, t.Context(), Agents{Addresses: []string{open}}, options(server.URL, func(o *load.Options) { o.BodyFile = tooLarge }), nil)
	if exit.Code(out.err) != exit.Usage || !strings.Contains(out.err.Error(), "larger than 16 MiB") {
		t.Errorf("a large file: %v", out.err)
	}
}

// TestStrangers sends requests of those who may not use an agent: of a page in the browser of its host, and one without the
// token that never ends.
func TestStrangers(t *testing.T) {
	t.Parallel()
	open, _ := startAgent(t, Config{})
	guarded, _ := startAgent(t, Config{Token: testToken})
	for _, c := range []struct{ address, headers, want string }{
		{open, "Origin: https://page.example\r\nContent-Type: text/plain\r\n", "403"},
		{open, "Sec-Fetch-Site: cross-site\r\n", "403"},
		{guarded, "", "401"},
	} {
		conn, err := net.Dial("tcp", c.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST /run HTTP/1.1\r\nHost: %s\r\n%sTransfer-Encoding: chunked\r\n\r\nb\r\n{\"ping\":1}\n\r\n", c.address, c.headers); err != nil {
			t.Fatal(err)
		}
		// The request goes on: an agent that waits for its end, or for silence, does not answer before the deadline.
		answered := make(chan struct{})
		var sending sync.WaitGroup
		sending.Go(func() {
			again := time.NewTicker(silenceMax / 2)
			defer again.Stop()
			for {
				select {
				case <-answered:
					return
				case <-again.C:
					fmt.Fprint(conn, "b\r\n{\"ping\":1}\n\r\n")
				}
			}
		})
		answer, err := io.ReadAll(conn)
		close(answered)
		sending.Wait()
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+c.want) {
			t.Errorf("%q: %v, %.80q, want %s and the end of the connection", c.headers, err, answer, c.want)
		}
	}
}

// TestBusy gives an agent a second run. The agent is free again after its coordinator has gone away, and makes no load then.
func TestBusy(t *testing.T) {
	t.Parallel()
	server := newScripted(t, 1_000_000, 0)
	address, _ := startAgent(t, Config{})
	agents := Agents{Addresses: []string{address}}
	long := options(server.URL+"/{sequence}", func(o *load.Options) { o.Rate, o.Duration = "200", time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	group, err := NewGroup(agents, long)
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}), make(chan outcome, 1)
	go func() { ended <- outcome{group: group}.record(ctx, func() { close(began) }) }()
	apptest.Receive(t, "the begin of the step", began)
	short := options(server.URL+"/{sequence}", func(o *load.Options) { o.Requests = 20 })
	if out := loadAgents(t, t.Context(), agents, short, nil); exit.Code(out.err) != exit.Error || !strings.Contains(out.err.Error(), "it is busy") {
		t.Errorf("a second run: %v", out.err)
	}
	group.remotes[0].close() // as if the process had died
	out := apptest.Receive(t, "the end of the run", ended)
	group.Close()
	if want := "agent " + address + " did not hear from the coordinator any more"; out.run.End.Reason != want || !hasReason(&out.run.Steps[0].Total, want) {
		t.Errorf("end %q, reasons %q", out.run.End.Reason, out.run.Steps[0].Total.Reasons)
	}
	apptest.Await(t, "the agent is free", func() bool { return loadAgents(t, t.Context(), agents, short, nil).err == nil })
}

// hasReason reports whether a reason begins so. On a busy machine, others may come first.
func hasReason(total *result.Total, prefix string) bool {
	return slices.ContainsFunc(total.Sentences(), func(reason string) bool { return strings.HasPrefix(reason, prefix) })
}

// TestInterrupt ends a run early. The data so far is complete.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	server := newScripted(t, 1_000_000, 0)
	one, _ := startAgent(t, Config{})
	two, _ := startAgent(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		server.awaitLoad(t)
		cancel()
	})
	out := loadAgents(t, ctx, Agents{Addresses: []string{one, two}}, options(server.URL+"/{sequence}", func(o *load.Options) {
		o.Rate, o.Duration = "100,200", time.Hour
	}), nil)
	if out.err != nil || out.run.End.Reason != result.Interrupted || len(out.run.Steps) != 1 {
		t.Fatalf("%v, %+v", out.err, out.run)
	}
	step := &out.run.Steps[0]
	checkSum(t, out.group, step)
	saw, unfinished := int64(server.numbers()), step.Total.Errors[result.Unfinished]
	if step.Total.Done > saw || step.Total.Done+unfinished < saw {
		t.Errorf("%d answered and %d unfinished, the server saw %d", step.Total.Done, unfinished, saw)
	}
}

// TestLost stops one of two agents in the step. The step names it and does not contain its share, and is the last one.
func TestLost(t *testing.T) {
	t.Parallel()
	server := newScripted(t, 1_000_000, 0)
	one, _ := startAgent(t, Config{})
	two, stop := startAgent(t, Config{})
	var watching sync.WaitGroup
	defer watching.Wait()
	out := loadAgents(t, t.Context(), Agents{Addresses: []string{one, two}}, options(server.URL+"/{sequence}", func(o *load.Options) {
		o.Rate, o.Duration, o.SLO = "100,200", time.Hour, "p50<1h"
	}), func() {
		watching.Go(func() {
			server.awaitLoad(t)
			stop()
		})
	})
	if out.err != nil || out.run.End.Reason != "agent "+two+" was stopped" || len(out.run.Steps) != 1 {
		t.Fatalf("%v, %+v", out.err, out.run)
	}
	total := &out.run.Steps[0].Total
	if total.Validity != result.GeneratorLimited || !hasReason(total, "agent "+two+" was stopped ") {
		t.Errorf("%s %q", total.Validity, total.Reasons)
	}
	share := out.group.remotes[0].step(0).Total
	if total.Done != share.Done || total.Due != share.Due || total.Done >= int64(server.numbers()) {
		t.Errorf("%d answered, by the other agent %d, the server saw %d", total.Done, share.Done, server.numbers())
	}
	if err := load.Broken(out.run); exit.Code(err) != exit.Error || !strings.Contains(err.Error(), two) {
		t.Errorf("the run ends with %v", err)
	}
}

// TestLate has an agent that begins a step too late, and one that is lost after its share.
func TestLate(t *testing.T) {
	t.Parallel()
	g := &Group{config: &load.Config{Steps: make([]load.Step, 1)}, began: time.Now()}
	for i, late := range []time.Duration{lateMax, lateMax + time.Millisecond, 0} {
		r := &remote{name: fmt.Sprintf("h%d:1", i), late: late, finished: 1, records: result.NewAssembler()}
		if late == 0 {
			r.lose("was stopped", false, g.began.Add(12*time.Second))
		}
		for _, line := range []string{
			`{"record":"header","header":{"format":"spillway-result","version":"1.2","started_at":"2026-01-01T00:00:00Z"}}`,
			`{"record":"step","step":{"step":0,"loop":"open","connections":1,"duration_seconds":1}}`,
			`{"record":"total","total":{"step":0,"elapsed_seconds":1,"done":1,"completed":1,"validity":"VALID"}}`,
		} {
			if err := r.records.Add([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
		g.remotes = append(g.remotes, r)
	}
	merged, err := g.merge(0, &result.Step{Loop: result.LoopOpen})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"agent h1:1 began 51ms late: its host or its network is too slow", "agent h2:1 was stopped 12 s into the step; the others were stopped"}
	if merged.Total.Validity != result.GeneratorLimited || len(merged.Total.Reasons) < 2 || !slices.Equal(merged.Total.Sentences()[:2], want) || merged.Total.Done != 3 {
		t.Errorf("%s %q, want %q", merged.Total.Validity, merged.Total.Reasons, want)
	}
}

// TestTLS joins an agent over TLS and checks that its certificate counts.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := newScripted(t, 1_000_000, 0)
	issuer := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	defer issuer.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pemOf(issuer), 0o600); err != nil {
		t.Fatal(err)
	}
	address, _ := startAgent(t, Config{Token: testToken, TLS: &tls.Config{Certificates: issuer.TLS.Certificates}})
	o := options(server.URL+"/{sequence}", func(o *load.Options) { o.Requests = 20 })
	if out := loadAgents(t, t.Context(), Agents{Addresses: []string{address}, Token: testToken, CA: ca}, o, nil); out.err != nil || out.run.Steps[0].Total.Done != 20 {
		t.Errorf("%v, %+v", out.err, out.run)
	}
	out := loadAgents(t, t.Context(), Agents{Addresses: []string{"https://" + address}, Token: testToken}, o, nil)
	if out.err == nil || !strings.Contains(out.err.Error(), "certificate") {
		t.Errorf("with an unknown issuer: %v", out.err)
	}
}

// TestSilence has agents that are not ours.
func TestSilence(t *testing.T) {
	t.Parallel()
	stranger := httptest.NewServer(duplex(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello\n")
	})))
	defer stranger.Close()
	older := httptest.NewServer(duplex(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"record":"hello","hello":{"tool":"older"}}`+"\n")
	})))
	defer older.Close()
	for url, want := range map[string]string{stranger.URL: "sent an invalid line", older.URL: "is spillway older, and this is test: install the same version"} {
		out := loadAgents(t, t.Context(), Agents{Addresses: []string{url}}, options("http://127.0.0.1:1/", nil), nil)
		if out.err == nil || !strings.Contains(out.err.Error(), want) {
			t.Errorf("%v, want %q", out.err, want)
		}
	}
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), listener, Config{}); err == nil || !strings.Contains(err.Error(), "set a token") {
		t.Errorf("Serve on %v without a token: %v", listener.Addr(), err)
	}
}

// pemOf returns the certificate of a server in PEM form.
func pemOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// FuzzReplies takes the lines of an agent that may be anything, and merges what came.
func FuzzReplies(f *testing.F) {
	f.Add([]byte(`{"record":"header","header":{"format":"spillway-result","version":"1.2"}}
{"record":"pong","pong":{"ping":5,"now":"2026-01-01T00:00:00Z"}}
{"record":"ready","ready":{"step":0}}
{"record":"begun","begun":{"step":0,"late_seconds":1e300}}
{"record":"step","step":{"step":0,"loop":"open","connections":1,"duration_seconds":1}}
{"record":"slice","slice":{"step":0,"second":0,"done":1,"length_seconds":1,"latency":{"response":"HISTFAAAAB"}}}
{"record":"total","total":{"step":0,"elapsed_seconds":1,"done":1,"completed":1,"slo":[{"text":"p99<1s"}],"validity":"VALID"}}
{"record":"failed","failed":{"text":"was stopped"}}
{"record":"end","end":{"reason":"finished"}}`))
	f.Add([]byte("{}\nnull\n{\"record\":\"hello\",\"hello\":{\"tool\":\"x\"}}"))
	f.Fuzz(func(t *testing.T, lines []byte) {
		c := newClock(nil)
		r, err := newRemote("h:1", false)
		if err != nil {
			t.Fatal(err)
		}
		g := &Group{config: &load.Config{Steps: make([]load.Step, 1)}, clock: c, remotes: []*remote{r}}
		for line := range bytes.Lines(lines) {
			r.take(event{from: r, line: line, at: c.now()}, c, "test")
			if err := g.show(0, load.Listener{}); err != nil {
				return
			}
		}
		if merged, err := g.merge(0, &result.Step{Loop: result.LoopOpen}); err == nil && merged.Total.Validity == result.Valid && r.finished == 0 {
			t.Errorf("nothing is VALID: %+v", merged.Total)
		}
	})
}

// TestOptionsTravel checks that every field of the options reaches an agent.
func TestOptionsTravel(t *testing.T) {
	t.Parallel()
	var o load.Options
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).Tag.Get("json") != "-" { // it belongs to this process
					fill(v.Field(i))
				}
			}
		case reflect.String:
			v.SetString("text")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(7)
		case reflect.Uint64:
			v.SetUint(1<<52 | 1)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		default:
			t.Fatalf("a field is a %v: see that it survives JSON", v.Type())
		}
	}
	fill(reflect.ValueOf(&o).Elem())
	line, err := encode(command{Order: &order{Options: o}})
	if err != nil {
		t.Fatal(err)
	}
	var arrived command
	if err := json.Unmarshal(line, &arrived); err != nil || !reflect.DeepEqual(arrived.Order.Options, o) {
		t.Errorf("%v: sent %+v, arrived %+v", err, o, arrived.Order.Options)
	}
}
