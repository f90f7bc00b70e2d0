package load

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// namedTarget has a slow login, a list, and a page that fails.
func namedTarget(t *testing.T, secure bool) (*target.Target, target.Clock) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/login", func(w http.ResponseWriter, _ *http.Request) {
		<-time.After(60 * time.Millisecond)
		io.WriteString(w, "ok")
	})
	mux.HandleFunc("/list", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	server := httptest.NewUnstartedServer(mux)
	if secure {
		startTLS(t, server)
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "requests")
	if err := os.WriteFile(path, []byte("name=login GET /login\nname=list 3 GET /list\nname=list 5 GET /list?all\nname=broken GET /broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	requests, err := target.ReadRequests(path, target.Authority(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	clock := target.NewClock()
	return openTarget(t, target.Config{URL: server.URL, Insecure: secure, Requests: requests, Seed: 3}, clock), clock
}

// TestLabels counts by name: the sums are those of the step, and each name has its own times, errors and SLO.
func TestLabels(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		tg, clock := namedTarget(t, secure)
		slo, err := result.ParseSLO("p50{login}<30ms p50{list}<50ms errors{broken}<1% errors{list}<=0 errors<50%")
		if err != nil {
			t.Fatal(err)
		}
		r := runLoad(t, t.Context(), Config{
			Target: tg, Clock: clock, SLO: slo, Workers: 3, Seed: 9,
			Steps: []Step{{Rate: 500, Connections: 50, Duration: 2 * time.Second, Warmup: 200 * time.Millisecond}},
		})
		total := &r.totals[0]
		var sum result.Counters
		for _, l := range total.Labels {
			sum.Add(&l.Counters)
			if times, err := l.Latency.Responses(); err != nil || times.Count() != l.Requests() || l.Due != l.Requests() {
				t.Errorf("%s: %d response times of %d requests, %d due (%v)", l.Name, times.Count(), l.Requests(), l.Due, err)
			}
		}
		if len(total.Labels) != 3 || sum.Due != total.Due || sum.Done != total.Done || sum.Completed != total.Completed || sum.Errors != total.Errors || sum.BytesIn != total.BytesIn {
			t.Errorf("%d names with %+v in all, want %+v", len(total.Labels), sum, total.Counters)
		}
		if list := total.Labels[1]; list.Name != "list" || (list.Due < 700 || list.Due > 900) && total.Errors[result.Unsent] == 0 {
			t.Errorf("label %+v, want about 800 of 1000", list.Counters)
		}
		var met []bool
		for _, c := range total.SLO {
			met = append(met, c.Met)
		}
		if met[0] || !r.inTime(total, met[1] && met[4]) || met[2] || !met[3] && total.Errors[result.Unsent] == 0 {
			t.Errorf("SLO %+v", total.SLO)
		}
	}
}

// TestLabelsOfUnsent gives arrivals that were never sent a name, by the shares of the others.
func TestLabelsOfUnsent(t *testing.T) {
	l := newLabels(3, 1)
	for i := range 1000 {
		l.observe(&target.Outcome{Request: min(i%4, 1), Sent: 1, Done: 2}, 0, true, true)
	}
	for range 4000 {
		l.unsent(time.Second)
	}
	for i, want := range []int64{1250, 3750, 0} {
		if n := l.byName[i].counters.Due; n < want-150 || n > want+150 || l.byName[i].latency.responseUnanswered.Count() != l.byName[i].counters.Errors[result.Unsent] {
			t.Errorf("name %d: %d due, want about %d", i, n, want)
		}
	}
	if newLabels(1, 1) != nil {
		t.Error("a single name has histograms of its own")
	}
}

func TestCheckLabels(t *testing.T) {
	slo, err := result.ParseSLO("p99{login}<1s errors{list}<1%")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkLabels(slo, []string{"list", "login"}); err != nil {
		t.Error(err)
	}
	if err := checkLabels(slo, []string{"list", "detail"}); err == nil || !strings.Contains(err.Error(), `no request has the name "login"; the names are ["list" "detail"]`) {
		t.Error(err)
	}
	if err := checkLabels(slo, nil); err == nil || !strings.Contains(err.Error(), "--requests-file") {
		t.Error(err)
	}
}
