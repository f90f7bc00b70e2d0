package load

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// nullTarget starts a null server and opens it.
func nullTarget(t testing.TB, c target.Config) (*nullServer, *target.Target, target.Clock) {
	t.Helper()
	clock := target.NewClock()
	server, err := startNullServer(clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.close(); err != nil {
			t.Error(err)
		}
	})
	c.URL = "http://" + server.address.String() + "/"
	return server, openTarget(t, c, clock), clock
}

func openTarget(t testing.TB, c target.Config, clock target.Clock) *target.Target {
	t.Helper()
	c.Clock = clock
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	tg, err := target.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return tg
}

// records holds the records of a run.
type records struct {
	steps       []result.Step
	slices      map[int][]result.Slice
	totals      []result.Total
	interrupted bool
	delays      time.Duration // of this process during the run
}

// runLoad runs a load. It calls began when a step begins.
func runLoad(t testing.TB, ctx context.Context, c Config, began ...func()) records {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	r := records{slices: map[int][]result.Slice{}}
	delays := measureDelays()
	interrupted, err := Run(ctx, c, Listener{
		Step: func(s *result.Step) error {
			r.steps = append(r.steps, *s)
			for _, f := range began {
				f()
			}
			return nil
		},
		Second: func(s *Second) error { r.slices[s.Slice.Step] = append(r.slices[s.Slice.Step], s.Slice); return nil },
		Total:  func(s *result.Total) error { r.totals = append(r.totals, *s); return nil },
	})
	r.delays = delays()
	if err != nil {
		t.Fatal(err)
	}
	r.interrupted = interrupted
	for i := range r.totals {
		r.checkCounts(t, i)
	}
	return r
}

// checkCounts checks what must hold for every run.
func (r *records) checkCounts(t testing.TB, step int) {
	t.Helper()
	total := &r.totals[step]
	var sum result.Counters
	length := 0.0
	for i, s := range r.slices[step] {
		if s.Second != i {
			t.Errorf("second %d is at index %d", s.Second, i)
		}
		sum.Add(&s.Counters)
		length += s.Length
	}
	sum.Connects, sum.Reconnects = total.Connects, total.Reconnects // counted by step
	if diff := cmp.Diff(total.Counters, sum); diff != "" {
		t.Errorf("the seconds do not add up to the total: %s", diff)
	}
	if total.Due != total.Requests() {
		t.Errorf("%d were due and %d came to an end", total.Due, total.Requests())
	}
	if n := decode(t, total.Latency.Response).Count(); n != total.Done {
		t.Errorf("%d response times of %d answers", n, total.Done)
	}
	kinds := total.Done // of statements and commands; HTTP has statuses
	if total.Statuses != nil {
		kinds = 0
	}
	if total.Reads+total.Writes+total.Others != kinds {
		t.Errorf("r/w/o %d/%d/%d of %d answers", total.Reads, total.Writes, total.Others, total.Done)
	}
	if total.Requests() > 0 && (length < total.Elapsed-0.2 || !r.inTime(total, length <= total.Elapsed+0.2)) {
		t.Errorf("the seconds are %g s long, the step %g s", length, total.Elapsed)
	}
}

func decode(t testing.TB, payload result.HDR) *histogram.Histogram {
	t.Helper()
	h, err := histogram.Decode(string(payload))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestClosedLoop(t *testing.T) {
	for _, workers := range []int{1, 3} {
		_, tg, clock := nullTarget(t, target.Config{})
		r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Workers: workers, Steps: []Step{{Connections: 4, Requests: 5000}, {Connections: 7, Requests: 500}}})
		for i, want := range []int64{5000, 500} {
			total := &r.totals[i]
			if total.Done != want || total.Errors.Total() != 0 || total.Statuses[200] != want {
				t.Errorf("%d workers: %+v, want %d answers", workers, total.Counters, want)
			}
			if total.Connects > int64(r.steps[i].Connections) || want == 5000 && !r.inTime(total, math.Abs(total.Little.Ratio-1) <= 0.2) {
				t.Errorf("%d workers: %d connections, N/(XR) = %g", workers, total.Connects, total.Little.Ratio)
			}
			if decode(t, total.Latency.Lag).Count() != 0 {
				t.Error("a closed loop has no pacer lag")
			}
		}
	}
}

func TestOpenLoop(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 3} {
		for _, poisson := range []bool{false, true} {
			_, tg, clock := nullTarget(t, target.Config{})
			const rate, length = 400, 1200 * time.Millisecond
			r := runLoad(t, t.Context(), Config{
				Target: tg, Clock: clock, Workers: workers, Poisson: poisson, Seed: 5,
				Steps: []Step{{Rate: rate, Connections: 500, Duration: length}},
			})
			total := &r.totals[0]
			want := int64(rate * length.Seconds())
			if poisson {
				want = countArrivals(&stepRun{config: &Config{Poisson: true, Seed: 5}, step: &Step{Rate: rate}}, length)
			}
			unsent := total.Errors[result.Unsent] // on a busy machine, the last arrivals may never be sent
			if total.Due != want || total.Done+unsent != want || !r.inTime(total, unsent == 0) {
				t.Errorf("%d workers, poisson %v: %d due, %d answered, %s, want %d", workers, poisson, total.Due, total.Done, total.Errors.String(), want)
			}
			if n := decode(t, total.Latency.Lag).Count(); n != total.Due {
				t.Errorf("%d lags of %d arrivals", n, total.Due)
			}
			if len(r.slices[0]) != 2 || math.Abs(r.slices[0][1].Length-0.2) > 1e-9 || math.Abs(total.Elapsed-length.Seconds()) > 1e-9 {
				t.Errorf("%d seconds in a step of %g s", len(r.slices[0]), total.Elapsed)
			}
		}
	}
}

func countArrivals(s *stepRun, length time.Duration) (n int64) {
	for a := s.arrivals(); a.Next() < length; n++ {
	}
	return n
}

// TestStall stops the server for a fifth of the step. The computed p99: evenly
// spaced arrivals wait from nothing to the whole stall, 1 % of all for longer
// than 95 % of it.
func TestStall(t *testing.T) {
	t.Parallel()
	const rate, length, stall = 400, 3 * time.Second, 600 * time.Millisecond
	server, tg, clock := nullTarget(t, target.Config{})
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{{Rate: rate, Connections: 1000, Duration: length}}},
		func() { server.stallLater(800*time.Millisecond, stall) })
	want := 0.95 * stall.Seconds()
	if got := decode(t, r.totals[0].Latency.Response).Quantile(0.99).Seconds(); !r.inTime(&r.totals[0], got > 0.95*want && got < 1.05*want) {
		t.Errorf("p99 %.3f s, computed %.3f s", got, want)
	}
}

// TestStallWithFewConnections does the same when nearly every arrival of the stall has to
// wait for a connection: the response time shows it, the service time cannot.
func TestStallWithFewConnections(t *testing.T) {
	t.Parallel()
	const rate, length, stall = 400, 3 * time.Second, 600 * time.Millisecond
	server, tg, clock := nullTarget(t, target.Config{})
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{{Rate: rate, Connections: 4, Duration: length}}},
		func() { server.stallLater(800*time.Millisecond, stall) })
	want := 0.95 * stall.Seconds()
	if got := decode(t, r.totals[0].Latency.Response).Quantile(0.99).Seconds(); !r.inTime(&r.totals[0], got > 0.95*want && got < 1.05*want) {
		t.Errorf("p99 of the response time %.3f s, computed %.3f s", got, want)
	}
	if got := decode(t, r.totals[0].Latency.Service).Quantile(0.99).Seconds(); !r.inTime(&r.totals[0], got <= stall.Seconds()/2) {
		t.Errorf("p99 of the service time %.3f s: only 4 requests can have met the stall", got)
	}
}

func TestUnsent(t *testing.T) {
	t.Parallel()
	server, tg, clock := nullTarget(t, target.Config{})
	const rate, length = 2000, time.Second
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Backlog: 100, Steps: []Step{{Rate: rate, Connections: 4, Duration: length}}},
		func() { server.stallLater(100*time.Millisecond, 600*time.Millisecond) })
	total := &r.totals[0]
	unsent := total.Errors[result.Unsent]
	if !r.inTime(total, unsent >= 800 && unsent <= 1300) || total.Errors.Total() != unsent || r.steps[0].BacklogLimit != 100 {
		t.Errorf("errors %s, want unsent about 1100", total.Errors.String())
	}
	if text := strings.Join(total.Sentences(), "\n"); !r.inTime(total, strings.Contains(text, "the target did not keep up")) {
		t.Errorf("reasons: %s", text)
	}
}

// TestLastAnswersCount has the server stall over the end of the step: the
// requests in flight are waited for.
func TestLastAnswersCount(t *testing.T) {
	t.Parallel()
	server, tg, clock := nullTarget(t, target.Config{})
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{{Connections: 3, Duration: 700 * time.Millisecond}}},
		func() { server.stallLater(500*time.Millisecond, time.Second) })
	total := &r.totals[0]
	if longest := decode(t, total.Latency.Response).Max(); !r.inTime(total, longest >= 900*time.Millisecond) || total.Errors.Total() != 0 {
		t.Errorf("longest response %s with errors %q, want about 1 s", longest, total.Errors.String())
	}
	if len(r.slices[0]) != 1 || math.Abs(total.Elapsed-0.7) > 1e-9 {
		t.Errorf("%d seconds, %g s", len(r.slices[0]), total.Elapsed)
	}
}

func TestWarmup(t *testing.T) {
	t.Parallel()
	server, tg, clock := nullTarget(t, target.Config{})
	const rate, length, warmup = 1000, 500 * time.Millisecond, 300 * time.Millisecond
	r := runLoad(t, t.Context(), Config{
		Target: tg, Clock: clock,
		Steps: []Step{{Rate: rate, Connections: 50, Duration: length, Warmup: warmup}, {Connections: 2, Requests: 1000, Warmup: warmup}},
	})
	if r.totals[0].Due != 500 || r.totals[1].Done != 1000 {
		t.Errorf("%d due in the open loop, %d answered in the closed one, want 500 and 1000", r.totals[0].Due, r.totals[1].Done)
	}
	if n := len(server.seen()); !r.inTime(&r.totals[0], n >= 500+300+1000+50) {
		t.Errorf("the server saw %d requests: there was no warm-up", n)
	}
	if r.steps[0].Start < warmup.Seconds() {
		t.Errorf("the step began %g s after the run did", r.steps[0].Start)
	}
}

func TestOpenLoopRequests(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Workers: 2, Steps: []Step{{Rate: 2000, Connections: 1, Requests: 600}}})
	if total := &r.totals[0]; total.Done != 600 || total.Elapsed < 0.29 || !r.inTime(total, total.Elapsed <= 1) {
		t.Errorf("%d answered in %g s, want 600 in 0.3 s", total.Done, total.Elapsed)
	}
}

// runInterrupted interrupts a run after a time, which is longer on a busy machine, so that
// enough requests are answered. It returns the time too.
func runInterrupted(t *testing.T, enough int64, c Config) (r records, after time.Duration) {
	t.Helper()
	for after = 300 * time.Millisecond; ; after *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		r = runLoad(t, ctx, c)
		cancel()
		if r.totals[0].Done >= enough || after > 20*time.Second {
			return r, after
		}
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	for _, rate := range []float64{0, 500} {
		r, after := runInterrupted(t, 50, Config{Target: tg, Clock: clock, Steps: []Step{{Rate: rate, Connections: 3, Duration: time.Hour}, {Connections: 1, Requests: 1}}})
		first, limit := &r.totals[0], after.Seconds()
		if !r.interrupted || len(r.totals) != 1 || first.Done < 50 || !r.inTime(first, first.Elapsed >= limit/2 && first.Elapsed <= 1.5*limit) {
			t.Errorf("interrupted %v after %s, %d totals, first %+v", r.interrupted, after, len(r.totals), first.Counters)
		}
	}
}

// TestDeadTarget checks that a dead target is not flooded with connections.
func TestDeadTarget(t *testing.T) {
	t.Parallel()
	server, tg, clock := nullTarget(t, target.Config{})
	dead := openTarget(t, target.Config{URL: "http://127.0.0.1:1/"}, clock)
	_, _ = server, tg
	r := runLoad(t, t.Context(), Config{Target: dead, Clock: clock, Steps: []Step{{Connections: 2, Duration: 300 * time.Millisecond}}})
	total := &r.totals[0]
	if n := total.Errors[result.Refused]; n < 1 || !r.inTime(total, n >= 10) || n > 100 || total.Done != 0 || total.Sent != 0 {
		t.Errorf("%+v, want about 60 refused", total.Counters)
	}
	if text := strings.Join(total.Sentences(), "\n"); !strings.Contains(text, "first refused error: connect: connection refused") {
		t.Errorf("reasons: %s", text)
	}
}

func TestListenerError(t *testing.T) {
	_, tg, clock := nullTarget(t, target.Config{})
	full := fmt.Errorf("disk full")
	_, err := Run(t.Context(), Config{Target: tg, Clock: clock, Timeout: time.Second, Steps: []Step{{Connections: 1, Requests: 10}}},
		Listener{Second: func(*Second) error { return full }})
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("%v, want the listener's error", err)
	}
}

func TestBlockingHTTPS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	startTLS(t, server)
	defer server.Close()
	clock := target.NewClock()
	tg := openTarget(t, target.Config{URL: server.URL, Insecure: true}, clock)
	testBlocking(t, tg, clock)
}

// testBlocking runs every kind of step over sessions.
func testBlocking(t *testing.T, tg *target.Target, clock target.Clock) {
	const rate, length, warmup = 400, 600 * time.Millisecond, 100 * time.Millisecond
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{
		{Connections: 4, Requests: 500, Warmup: warmup},
		{Rate: rate, Connections: 20, Duration: length, Warmup: warmup},
		{Rate: rate, Connections: 2, Requests: 100, Warmup: warmup},
		{Connections: 3, Duration: 200 * time.Millisecond, Warmup: warmup},
	}})
	for i, want := range []int64{500, 240, 100} {
		if n := r.totals[i].Requests(); n != want {
			t.Errorf("step %d: %d requests, want %d", i, n, want)
		}
	}
	if total := r.totals[1]; decode(t, total.Latency.Lag).Count() != total.Due {
		t.Errorf("%d lags of %d arrivals", decode(t, total.Latency.Lag).Count(), total.Due)
	}
	if last := &r.totals[3]; !r.inTime(last, last.Done > 0 && last.Elapsed <= 0.25) || last.Elapsed < 0.15 {
		t.Errorf("the last step: %d answered in %g s", last.Done, last.Elapsed)
	}
	for i := range r.totals {
		errors, unsent := r.totals[i].Errors, int64(0)
		if r.steps[i].Loop == result.LoopOpen {
			unsent = errors[result.Unsent] // on a busy machine, the last arrivals may never be sent
		}
		if errors.Total() != unsent {
			t.Errorf("step %d: errors %s", i, errors.String())
		}
	}
	stopped, _ := runInterrupted(t, 5, Config{Target: tg, Clock: clock, Steps: []Step{{Rate: 100, Connections: 2, Duration: time.Hour}}})
	if !stopped.interrupted || stopped.totals[0].Done < 5 {
		t.Errorf("interrupted %v with %d answered", stopped.interrupted, stopped.totals[0].Done)
	}
}

func TestSharesOf(t *testing.T) {
	for threads := 1; threads <= 64; threads++ {
		for n := range 200 {
			sum, shares := 0, sharesOf(n, threads)
			for i, share := range shares {
				sum += share
				if share < n/threads || share > shares[0] || i > 0 && share > shares[i-1] || shares[0]-share > 1 {
					t.Fatalf("%d over %d threads: %v", n, threads, shares)
				}
			}
			if sum != n || n >= threads && shares[threads-1] < 1 {
				t.Fatalf("%d over %d threads: %v", n, threads, shares)
			}
		}
	}
}
