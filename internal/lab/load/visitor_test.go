package load

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/flow"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// scriptedUser answers the steps of a flow after known times. Every tenth request of the
// last step hangs until the timeout.
type scriptedUser struct {
	clock target.Clock
	mu    *sync.Mutex
	sent  *[]target.Outcome // by all users
	last  int64             // when the user's last request ended
	early *int              // requests that did not wait for the think time
}

var delays = []time.Duration{20 * time.Millisecond, 60 * time.Millisecond, 35 * time.Millisecond}

const (
	thinkTime     = 30 * time.Millisecond
	scriptTimeout = 700 * time.Millisecond
)

func (s *scriptedUser) Call(_ context.Context, intended int64, call *target.Call) target.Outcome {
	o := target.Outcome{Intended: intended, Begin: s.clock.Now(), Sent: s.clock.Now(), Request: call.Number, Status: 200}
	s.mu.Lock()
	if wait := intended - s.last; s.last > 0 && wait != int64(thinkTime) {
		*s.early++
	}
	hangs := call.Number == 2 && len(*s.sent)%10 == 0
	s.mu.Unlock()
	if <-time.After(delays[call.Number]); hangs {
		<-time.After(scriptTimeout - delays[call.Number])
		o.Err = os.ErrDeadlineExceeded
	}
	o.First, o.Done = s.clock.Now(), s.clock.Now()
	s.last = o.Done
	s.mu.Lock()
	*s.sent = append(*s.sent, o)
	s.mu.Unlock()
	return o
}

// TestFlowFigures compares the figures of a flow with those of a script, in virtual
// time: percentiles of all steps that were due, per step, think times and iterations.
func TestFlowFigures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flow.yaml")
	text := "think: 30ms\nsteps: [{name: a, path: /a}, {name: b, path: /b}, {name: c, path: /c}]"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := flow.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		clock := target.NewClock()
		<-time.After(time.Second) // at 0, a time would count as unknown
		tg, err := target.Open(t.Context(), target.Config{URL: "http://127.0.0.1:1", Timeout: scriptTimeout, Clock: clock, Calls: f.Names()})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var sent []target.Outcome
		early := 0
		slo, err := result.ParseSLO("p95{c}<50ms p80{c}<36ms p99{b}<61ms")
		if err != nil {
			t.Fatal(err)
		}
		config := Config{
			Target: tg, Clock: clock, Steps: []Step{{Connections: 7, Duration: time.Minute}}, Timeout: scriptTimeout, Flow: f, SLO: slo,
			simulate: func() (caller, func(time.Duration) bool) {
				wait := func(d time.Duration) bool {
					<-time.After(d)
					return true
				}
				return &scriptedUser{clock: clock, mu: &mu, sent: &sent, early: &early}, wait
			},
		}
		var total *result.Total
		if _, err := Run(t.Context(), config, Listener{Total: func(one *result.Total) error { total = one; return nil }}); err != nil {
			t.Fatal(err)
		}
		if early > 0 {
			t.Errorf("%d requests were not due a think time after the last answer", early)
		}
		checkFigures(t, "all", &total.Counters, &total.Latency, sent)
		for i := range total.Labels {
			l := &total.Labels[i]
			own := slices.DeleteFunc(slices.Clone(sent), func(o target.Outcome) bool { return o.Request != i })
			checkFigures(t, l.Name, &l.Counters, &l.Latency, own)
		}
		checkIterations(t, total.Iterations, sent, int64(time.Second+time.Minute))
		for i, met := range []bool{false, true, true} {
			if c := total.SLO[i]; c.Met != met || c.AtLeast == met {
				t.Errorf("SLO %+v, want met %v", c, met)
			}
		}
	})
}

// checkFigures compares counters and percentiles with all requests.
func checkFigures(t *testing.T, name string, c *result.Counters, l *result.Latency, sent []target.Outcome) {
	t.Helper()
	failed := int64(0)
	var times []time.Duration
	for _, o := range sent {
		if o.Err != nil {
			failed++
		}
		times = append(times, time.Duration(o.Done-o.Intended))
	}
	slices.Sort(times)
	n := int64(len(sent))
	if c.Due != n || c.Sent != n || c.Done != n-failed || c.Errors[result.Timeout] != failed {
		t.Errorf("%s: %d due, %d answered, %d timeouts; want %d, %d, %d", name, c.Due, c.Done, c.Errors[result.Timeout], n, n-failed, failed)
	}
	got, err := l.Responses()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []float64{0.1, 0.5, 0.8, 0.95, 0.99} {
		d, atLeast := got.Quantile(q)
		want := times[int(q*float64(len(times)))]
		if d < want*98/100 || d > want*102/100 || atLeast != (want == scriptTimeout) {
			t.Errorf("%s: p%g is %s (at least: %v), want %s", name, 100*q, d, atLeast, want)
		}
	}
}

// checkIterations compares the iterations that ended until end with the last steps.
func checkIterations(t *testing.T, i *result.Iterations, sent []target.Outcome, end int64) {
	t.Helper()
	completed, failed := int64(0), int64(0)
	for _, o := range sent {
		switch inTime := o.Done <= end; {
		case inTime && o.Err != nil:
			failed++
		case inTime && o.Request == len(delays)-1:
			completed++
		}
	}
	duration, err := histogram.Decode(string(i.Duration))
	if err != nil {
		t.Fatal(err)
	}
	want := 2 * thinkTime
	for _, d := range delays {
		want += d
	}
	if i.Completed != completed || i.Failed != failed || i.Unfinished > 7 || duration.Count() != completed {
		t.Errorf("iterations %+v, want %d completed and %d failed", *i, completed, failed)
	}
	if low, high := duration.Min(), duration.Max(); low < want*98/100 || high > want*102/100 {
		t.Errorf("an iteration took %s to %s, want %s", low, high, want)
	}
}
