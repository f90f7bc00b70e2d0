package live

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is a recorder of a step with so many seconds of 100 requests, one of which gets no answer within 2 s.
func recorded(t *testing.T, seconds int) *result.Recorder {
	t.Helper()
	r, err := result.NewRecorder("", result.Header{}, nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	r.Follow()
	known, beyond := histogram.NewSlice(), histogram.NewSlice()
	known.RecordN(4*time.Millisecond, 99)
	beyond.Record(2 * time.Second)
	answered, err := known.Encode()
	if err != nil {
		t.Fatal(err)
	}
	unanswered, err := beyond.Encode()
	if err != nil {
		t.Fatal(err)
	}
	slice := result.Slice{
		Length: 1, Counters: result.Counters{Due: 100, Sent: 100, Done: 99, Completed: 99}, InFlight: 3, Backlog: 2, Connections: 5,
		Latency: result.Latency{Response: result.HDR(answered), ResponseUnanswered: result.HDR(unanswered)},
	}
	slice.Errors[result.Timeout] = 1
	if err := r.Step(&result.Step{Loop: result.LoopOpen, OfferedHz: 100, Duration: 10}); err != nil {
		t.Fatal(err)
	}
	for i := range seconds {
		slice.Second = i
		if err := r.Slice(&slice); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestMetrics(t *testing.T) {
	r := recorded(t, 2)
	c := prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) { sendMetrics(r.Snapshot(), metrics) })
	want := `
# HELP spillway_load_requests_total Requests that ended: answered, failed or never sent.
# TYPE spillway_load_requests_total counter
spillway_load_requests_total 200
# HELP spillway_load_good_answers_total Answers with an expected status that passed every check, within the steps.
# TYPE spillway_load_good_answers_total counter
spillway_load_good_answers_total 198
# HELP spillway_load_in_flight Requests sent and not answered.
# TYPE spillway_load_in_flight gauge
spillway_load_in_flight 3
# HELP spillway_load_backlog Requests due and not sent.
# TYPE spillway_load_backlog gauge
spillway_load_backlog 2
# HELP spillway_load_offered_requests_per_second Arrival rate of the current step, 0 in a closed loop.
# TYPE spillway_load_offered_requests_per_second gauge
spillway_load_offered_requests_per_second 100
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "spillway_load_requests_total", "spillway_load_good_answers_total",
		"spillway_load_in_flight", "spillway_load_backlog", "spillway_load_offered_requests_per_second"); err != nil {
		t.Error(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "spillway_load_response_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		for _, b := range h.GetBucket() {
			want := uint64(0)
			if b.GetUpperBound() >= 0.005 { // 4 ms; the unanswered requests are above every bound
				want = 198
			}
			if b.GetCumulativeCount() != want {
				t.Errorf("%g s: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
			}
		}
		if h.GetSampleCount() != 200 || h.GetSampleSum() < 4.7 || h.GetSampleSum() > 4.9 {
			t.Errorf("count %d, sum %g", h.GetSampleCount(), h.GetSampleSum())
		}
		return
	}
	t.Error("no response times")
}

// TestPageIsMadeRarely: at most once per second, and at most a fiftieth of the time.
func TestPageIsMadeRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recorded(t, 1)
		made, takes := 0, time.Millisecond
		p := &page{snapshot: r.Snapshot, render: func(w io.Writer, _ *result.Run) error {
			made++
			<-time.After(takes)
			_, err := fmt.Fprint(w, made)
			return err
		}}
		f := func(after time.Duration, want int) {
			t.Helper()
			<-time.After(after)
			if html, _, err := p.current(time.Now()); err != nil || string(html) != fmt.Sprint(want) {
				t.Errorf("%q, %v, want page %d", html, err, want)
			}
		}
		f(0, 1)
		f(900*time.Millisecond, 1)
		takes = 100 * time.Millisecond
		f(200*time.Millisecond, 2)
		f(4*time.Second, 2)
		f(2*time.Second, 3)
		if _, err := r.Close(result.End{Reason: result.Finished}); err != nil {
			t.Fatal(err)
		}
		f(0, 4) // the end is shown at once
		f(time.Hour, 5)
	})
}

// TestFinishWaitsForReaders: the end is kept until a reader of the page has seen it, and not kept without one.
func TestFinishWaitsForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &page{}
		start := time.Now()
		p.finish(t.Context())
		if time.Since(start) != 0 {
			t.Error("waited without a reader")
		}
		p.answered(false)
		p.finish(t.Context())
		if got := time.Since(start); got != farewell {
			t.Errorf("waited %s for a reader who is gone", got)
		}
		p.answered(false)
		go func() {
			<-time.After(time.Second)
			p.answered(true)
		}()
		start = time.Now()
		p.finish(t.Context())
		if got := time.Since(start); got != time.Second {
			t.Errorf("waited %s for the next request", got)
		}
	})
}

func TestServer(t *testing.T) {
	var notices []string
	render := func(w io.Writer, run *result.Run) error {
		_, err := fmt.Fprintf(w, "%d steps", len(run.Steps))
		return err
	}
	s, err := Open(Options{Page: Address, Metrics: "127.0.0.1:0"}, render, func(text string) { notices = append(notices, text) })
	if err != nil {
		t.Fatal(err)
	}
	if len(notices) != 2 {
		t.Fatalf("%q", notices)
	}
	getAs := func(host, notice string) (int, string) {
		t.Helper()
		_, url, _ := strings.Cut(notice, ": ")
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	get := func(notice string) (int, string) { return getAs("", notice) }
	if code, _ := get(notices[0]); code != http.StatusServiceUnavailable {
		t.Errorf("before the run: %d", code)
	}
	s.Follow(recorded(t, 1))
	if code, body := get(notices[0]); code != http.StatusOK || body != "1 steps" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := get(notices[1]); code != http.StatusOK || !strings.Contains(body, `spillway_load_errors_total{class="timeout"} 1`) {
		t.Errorf("%d %q", code, body)
	}
	for host, want := range map[string]int{"localhost:7": 200, "127.0.0.1": 200, "[::1]:7": 200, "[::1]": 200, "rebound.example": 421, "localhost.example:80": 421} {
		if code, _ := getAs(host, notices[0]); code != want {
			t.Errorf("the page of %s: %d, want %d", host, code, want)
		}
	}
	if code, _ := getAs("load-1:9090", notices[1]); code != http.StatusOK {
		t.Errorf("the metrics by a name: %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, o := range []Options{{Page: "0.0.0.0:0"}, {Metrics: "127.0.0.1:99999"}} {
		if _, err := Open(o, render, func(string) {}); exit.Code(err) != exit.Usage {
			t.Errorf("%+v: %v", o, err)
		}
	}
	broken := &page{snapshot: recorded(t, 1).Snapshot, render: func(io.Writer, *result.Run) error { return errors.New("no") }}
	if _, _, err := broken.current(time.Now()); err == nil {
		t.Error("an error was not returned")
	}
}
