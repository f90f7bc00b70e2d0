package result

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/histogram"
)

// hdrOf encodes n durations from 0 in steps.
func hdrOf(t testing.TB, n int, step time.Duration) HDR {
	t.Helper()
	h := histogram.New()
	for i := range n {
		h.Record(time.Duration(i) * step)
	}
	text, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return HDR(text)
}

// sloTotal has answers of 0 to 100 ms and as many requests without an answer that waited 2 s or a little longer.
func sloTotal(t testing.TB, unanswered int) *Total {
	t.Helper()
	total := &Total{Elapsed: 10}
	total.Done, total.Completed = 10000, 9900
	total.Errors[StatusError] = 100
	total.Latency.Response, total.Latency.Service = hdrOf(t, 10000, 10*time.Microsecond), hdrOf(t, 10000, time.Microsecond)
	if unanswered == 0 {
		return total
	}
	total.Errors[Timeout] = int64(unanswered)
	late := histogram.New()
	for range unanswered {
		late.Record(2 * time.Second)
	}
	text, err := late.Encode()
	if err != nil {
		t.Fatal(err)
	}
	total.Latency.ResponseUnanswered = HDR(text)
	return total
}

func verdicts(t testing.TB, text string, total *Total) []bool {
	t.Helper()
	slo, err := ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	judged, err := slo.Judge(total)
	if err != nil {
		t.Fatal(err)
	}
	var got []bool
	for _, c := range judged {
		if !c.Default {
			got = append(got, c.Met)
		}
	}
	return got
}

func TestSLO(t *testing.T) {
	total := sloTotal(t, 0)
	f := func(text string, want ...bool) {
		t.Helper()
		if diff := cmp.Diff(want, verdicts(t, text, total)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	f("")
	f("p99<70ms errors<0.5%", false, false)
	f("p50<60ms, p99<100ms and p99.9<101ms", true, true, true)
	f("service.p99<10ms service.max<=11ms", true, true)
	f("mean<60ms max<1s", true, true)
	f("errors<=1% errors<0.01 errors<1.1%", true, false, true)
	f("rate>=990 rate>990/s rate>5", true, false, true)

	for _, text := range []string{
		"p99", "p99<", "p99<70", "p100<1s", "p5<1s", "errors<x", "errors<1", "errors<=1", "errors<200%", "rate<5", "p99>5ms", "foo<1s", "service.errors<1%", "p99<-1s", "rate>=inf",
		"p99{<1s", "p99{}<1s", "{a}<1s", "p99}<1s", "p99<0ms", "p99<=0s", "errors<0", "mean<0s",
	} {
		if _, err := ParseSLO(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	if verdicts(t, "p99<1s", &Total{})[0] {
		t.Error("a latency was met though nothing was answered")
	}
}

// TestSLOUnanswered has requests without an answer: they rank above every answer and never meet a limit.
func TestSLOUnanswered(t *testing.T) {
	total := sloTotal(t, 1000) // 1 of 11
	if diff := cmp.Diff([]bool{true, false, false, false, false}, verdicts(t, "p50<60ms p99<70ms p99<10s max<1m mean<1m", total)); diff != "" {
		t.Error(diff)
	}
	slo, err := ParseSLO("p50<60ms p99<10s")
	if err != nil {
		t.Fatal(err)
	}
	judged, err := slo.Judge(total)
	if err != nil {
		t.Fatal(err)
	}
	if c := judged[0]; c.AtLeast || math.Abs(c.Observed-0.055) > 0.001 { // rank 5,500 of 11,000
		t.Errorf("p50: %+v", c)
	}
	if c := judged[1]; !c.AtLeast || math.Abs(c.Observed-2) > 0.01 {
		t.Errorf("p99: %+v", c)
	}
	if c := judged[2]; !c.Default || c.Met || c.Text != "errors<=1%" {
		t.Errorf("the default limit on errors: %+v", c)
	}
}

func TestSLOLabels(t *testing.T) {
	total := sloTotal(t, 0)
	total.Labels = []LabelTotal{
		{Name: "login", Counters: Counters{Done: 10, Completed: 10}, Latency: Latency{Response: hdrOf(t, 10, time.Millisecond)}},
		{Name: "GET /list, all", Counters: Counters{Done: 990, Completed: 990}, Latency: Latency{Response: hdrOf(t, 990, time.Second)}},
	}
	text := "p50{login}<50ms p50{GET /list, all}<50ms, rate{login}>=1 and errors{login}<=0"
	if diff := cmp.Diff([]bool{true, false, true, true}, verdicts(t, text, total)); diff != "" {
		t.Error(diff)
	}
	slo, err := ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"login", "GET /list, all"}, slo.Labels()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Percentile{{"login", 0.5}, {"GET /list, all", 0.5}}, slo.Percentiles()); diff != "" {
		t.Error(diff)
	}
	total.Labels = total.Labels[:1]
	if _, err := slo.Judge(total); err == nil {
		t.Error("an unknown name was judged")
	}
}

func FuzzSLO(f *testing.F) {
	f.Add("p99<70ms errors<0.5% and rate>=5")
	f.Add("p99{GET /a}<1s")
	f.Fuzz(func(t *testing.T, text string) {
		slo, err := ParseSLO(text)
		if err != nil {
			return
		}
		total := &Total{}
		for _, name := range slo.Labels() {
			total.Labels = append(total.Labels, LabelTotal{Name: name})
		}
		judged, err := slo.Judge(total)
		if err != nil || len(judged) != len(slo.criteria) {
			t.Fatalf("%d judged of %d: %v", len(judged), len(slo.criteria), err)
		}
		for _, c := range judged {
			if _, err := parseCriterion(c.Text); err != nil {
				t.Fatalf("%q cannot be read again: %v", c.Text, err)
			}
		}
	})
}

// TestNoRequestsOfAName: no request with the name list was made, so that nothing is known about its errors.
func TestNoRequestsOfAName(t *testing.T) {
	total := sloTotal(t, 0)
	total.Labels = []LabelTotal{{Name: "list"}}
	for _, m := range marginsOf(t, "errors{list}<1% p90{list}<1s errors<2%", total)[:2] {
		if m.Met {
			t.Errorf("%s is met without one request: %+v", m.Criterion, m)
		}
	}
}
