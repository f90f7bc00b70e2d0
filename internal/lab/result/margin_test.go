package result

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/histogram"
)

func marginsOf(t testing.TB, text string, total *Total) []Margin {
	t.Helper()
	slo, err := ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	margins, err := slo.Margins(total)
	if err != nil {
		t.Fatal(err)
	}
	return margins
}

// withLabel adds requests of the name list, none of which failed.
func withLabel(total *Total) *Total {
	list := LabelTotal{Name: "list", Latency: total.Latency}
	list.Done, list.Completed = 100, 100
	total.Labels = []LabelTotal{list}
	return total
}

func TestMargins(t *testing.T) {
	const half = 0.693 // ln 2
	for _, c := range []struct {
		slo        string
		unanswered int
		log        float64
		met        bool
		sigma      bool
	}{
		{"p50<100ms", 0, -half, true, true},
		{"p50<25ms", 0, half, false, true},
		{"mean<25ms", 0, half, false, true},
		{"max<50ms", 0, half, false, false},
		{"service.p50<10ms", 0, -half, true, true},
		{"rate>495", 0, -half, true, true},
		{"rate>1980", 0, half, false, true},
		{"errors<2%", 0, -half, true, true},
		{"errors<=0", 0, logMax, false, false},
		{"errors{list}<1%", 0, -logMax, true, false}, // no failure
		{"p99<1s", 1000, half, false, false},         // among requests without an answer, after 2 s
		{"p99<10s", 1000, logAtLeast, false, false},  // the bound proves nothing, but the limit is missed
	} {
		m := marginsOf(t, c.slo, withLabel(sloTotal(t, c.unanswered)))[0]
		if c.slo == "p99<1s" {
			c.log = max(c.log, logAtLeast)
		}
		if m.Criterion != c.slo || m.Met != c.met || math.Abs(m.Log-c.log) > 0.01 || (m.Sigma > 0) != c.sigma {
			t.Errorf("%s with %d unanswered: %+v, want %g", c.slo, c.unanswered, m, c.log)
		}
	}
	none := &Total{Elapsed: 1}
	for _, m := range marginsOf(t, "p99<1s errors<1% mean<1s max<1s", none) {
		if !(m.Log <= 0) == m.Met || math.IsInf(m.Log, 0) || math.IsNaN(m.Sigma) {
			t.Errorf("without requests: %+v", m)
		}
	}
}

// The sign of a margin says whether the criterion is met, and both are finite.
func TestMarginsAgreeWithJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known, beyond := histogram.New(), histogram.New()
		total := &Total{Elapsed: 1}
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		for range rapid.IntRange(0, 2000).Draw(t, "answers") {
			known.Record(time.Duration(random.Int64N(int64(time.Second))))
		}
		for range rapid.IntRange(0, 30).Draw(t, "unanswered") {
			beyond.Record(time.Duration(random.Int64N(int64(time.Second))))
		}
		total.Done, total.Completed = known.Count(), known.Count()
		total.Errors[Timeout] = beyond.Count()
		for _, part := range []struct {
			h  *histogram.Histogram
			to *HDR
		}{{known, &total.Latency.Response}, {beyond, &total.Latency.ResponseUnanswered}} {
			text, err := part.h.Encode()
			if err != nil {
				t.Fatal(err)
			}
			*part.to = HDR(text)
		}
		slo, err := ParseSLO("p50<300ms p99<=900ms mean<400ms max<1s errors<1% rate>500")
		if err != nil {
			t.Fatal(err)
		}
		judged, err := slo.Judge(total)
		if err != nil {
			t.Fatal(err)
		}
		margins, err := slo.Margins(total)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range margins {
			if m.Met != judged[i].Met || (m.Log <= 0) != m.Met || math.Abs(m.Log) > logMax || m.Sigma < 0 || math.IsNaN(m.Sigma) || math.IsInf(m.Sigma, 0) {
				t.Fatalf("%+v of %+v", m, judged[i])
			}
		}
	})
}

// The standard errors are those of many repetitions.
func TestMarginSigma(t *testing.T) {
	t.Parallel()
	const runs, n = 150, 3000
	random := rand.New(rand.NewPCG(1, 2))
	logs := make([][]float64, 3)
	sigmas := make([]float64, len(logs))
	for range runs {
		h := histogram.New()
		total := &Total{Elapsed: 1}
		for range n {
			h.Record(time.Duration(random.ExpFloat64() * float64(10*time.Millisecond)))
			if random.Float64() < 0.02 {
				total.Errors[StatusError]++
			}
		}
		text, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		total.Done, total.Latency.Response = n, HDR(text)
		for i, m := range marginsOf(t, "p99<20ms mean<5ms errors<1%", total) {
			logs[i] = append(logs[i], m.Log)
			sigmas[i] += m.Sigma / runs
		}
	}
	for i, values := range logs {
		mean, squares := 0.0, 0.0
		for _, v := range values {
			mean += v / runs
		}
		for _, v := range values {
			squares += (v - mean) * (v - mean) / (runs - 1)
		}
		if ratio := sigmas[i] / math.Sqrt(squares); ratio < 0.8 || ratio > 1.25 {
			t.Errorf("criterion %d: mean sigma %g, %g over %d runs", i, sigmas[i], math.Sqrt(squares), runs)
		}
	}
}
