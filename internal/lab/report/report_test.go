package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// hostile has markup in every text that comes from a result file or a command line.
func hostile(t testing.TB) *result.Run {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>'` + "\x1b[31m\n| a | b |"
	run := synthetic{capacity: 200, base: time.Millisecond, seconds: 3, slo: true}.open(t, 100, 300)
	run.Header.Target, run.Header.Label, run.Header.SLO, run.Header.Tool, run.Header.Go = evil, evil, evil, evil, evil
	run.Header.Command, run.Header.Notes = []string{evil}, []string{evil}
	run.Header.Machine.Host, run.Header.Machine.CPU, run.Header.Machine.OS, run.Header.Machine.Kernel = evil, evil, evil, evil
	run.CutOff, run.End.Reason = evil, evil
	for i := range run.Steps {
		s := &run.Steps[i]
		s.Name, s.Arrival, s.Total.Reasons = evil, evil, []result.Reason{{Text: evil}}
		s.Total.Validity = result.Validity(evil)
		s.Total.SLO[0].Text, s.Total.SLO[0].Met = evil, false
	}
	run.Steps[0].Loop = evil
	return run
}

func TestHTMLEscapesEverything(t *testing.T) {
	t.Parallel()
	page := written(t, HTML, hostile(t))
	for _, sign := range []string{"<script>alert", "<img", "onerror=alert(2)>'\x1b", "</script><img"} {
		if strings.Contains(page, sign) {
			t.Errorf("the page holds %q", sign)
		}
	}
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d scripts, want our 2", n)
	}
}

func TestHTMLFetchesNothing(t *testing.T) {
	t.Parallel()
	page := written(t, HTML, stagedRun(t))
	if found := regexp.MustCompile(`(?i)\s(src|href|srcset|action|poster)=|url\(|@import|<link|<iframe|<object`).FindString(page); found != "" {
		t.Errorf("the page holds %q", found)
	}
	if strings.Contains(page, "connect-src") || strings.Contains(page, "<html lang=\"en\" data-live") {
		t.Error("the page of a run that ended may fetch itself")
	}
	if !strings.Contains(page, `content="default-src 'none';`) {
		t.Error("no policy that forbids fetching")
	}
}

func TestHTMLDataIsTheDocument(t *testing.T) {
	t.Parallel()
	page := written(t, HTML, stagedRun(t))
	_, rest, _ := strings.Cut(page, `id="data">`)
	data, _, ok := strings.Cut(rest, "</script>")
	var d Document
	if err := json.Unmarshal([]byte(data), &d); !ok || err != nil || len(d.Steps) != 4 {
		t.Fatalf("%v: %d steps", err, len(d.Steps))
	}
}

func TestTextAndMarkdownAreEscaped(t *testing.T) {
	t.Parallel()
	text := written(t, Text, hostile(t))
	if strings.Contains(text, "\x1b") {
		t.Error("the terminal gets a control character")
	}
	md := written(t, Markdown, hostile(t))
	if strings.Contains(md, "<script") || strings.Contains(md, "\n| a | b |") {
		t.Errorf("markup in Markdown:\n%s", md)
	}
}

// TestOddRuns writes runs without data.
func TestOddRuns(t *testing.T) {
	t.Parallel()
	empty := &result.Run{Header: synthetic{}.header("rate"), CutOff: "there is no end record"}
	noAnswer := synthetic{capacity: 10, base: time.Millisecond, seconds: 2}.open(t, 5)
	noAnswer.Steps[0].Slices = nil
	noAnswer.Steps[0].Total = result.Total{Elapsed: 2, Validity: result.TooFewSamples}
	noAnswer.Steps[0].Total.Errors[result.Refused] = 10
	noAnswer.Steps[0].Total.Due = 10
	for _, runs := range [][]*result.Run{{}, {empty}, {noAnswer}, {empty, noAnswer}, {noAnswer, noAnswer}} {
		for _, format := range Formats() {
			if len(runs) == 1 || !slices.Contains(OneRunFormats(), format) {
				written(t, format, runs...)
			}
		}
	}
	if text := written(t, Text, noAnswer); !strings.Contains(text, "Every request failed: refused 10.") || !strings.Contains(text, "refused 10") {
		t.Errorf("no answer:\n%s", text)
	}
	broken := synthetic{capacity: 10, base: time.Millisecond, seconds: 2}.open(t, 5)
	broken.Steps[0].Total.Latency.Response = "!"
	if err := Write(&strings.Builder{}, Text, []*result.Run{broken}); err == nil || !strings.Contains(err.Error(), "step 0: decode histogram") {
		t.Errorf("a broken histogram: %v", err)
	}
	if err := Write(&strings.Builder{}, "poem", nil); err == nil {
		t.Error("an unknown format")
	}
}

func TestBenchLines(t *testing.T) {
	t.Parallel()
	bench := written(t, Bench, stagedRun(t))
	line := regexp.MustCompile(`^Benchmark\S+ \d+( [0-9.e+-]+ \S+)+$`)
	perName := make(map[string]int)
	for text := range strings.Lines(bench) {
		text = strings.TrimSuffix(text, "\n")
		if !strings.HasPrefix(text, "Benchmark") {
			continue
		}
		if !line.MatchString(text) {
			t.Errorf("not a benchmark line: %s", text)
		}
		perName[strings.Fields(text)[0]]++
	}
	if len(perName) != 4 || perName["BenchmarkLoad/loop=open/rate=100/connections=100"] != benchGroups || perName["BenchmarkLoad/loop=open/rate=500/connections=100"] != 6 {
		t.Errorf("lines by name: %v", perName)
	}
}

func TestCSVIsRectangular(t *testing.T) {
	t.Parallel()
	for format, want := range map[Format]int{CSV: 1 + 2 + 3, CSVSeconds: 1 + 20 + 30} {
		rows, err := csv.NewReader(strings.NewReader(written(t, format, compareRuns(t)...))).ReadAll()
		if err != nil || len(rows) != want {
			t.Errorf("%s: %d rows, want %d, %v", format, len(rows), want, err)
		}
	}
}

func TestJSONStableFields(t *testing.T) {
	t.Parallel()
	var d map[string]any
	if err := json.Unmarshal([]byte(written(t, JSON, stagedRun(t))), &d); err != nil {
		t.Fatal(err)
	}
	steps, ok := d["steps"].([]any)
	if !ok || len(steps) != 4 {
		t.Fatalf("steps %v", d["steps"])
	}
	for _, s := range steps {
		step := s.(map[string]any)
		for _, name := range []string{"requests", "rate_hz", "errors", "validity"} {
			if _, ok := step[name]; !ok {
				t.Errorf("no %s", name)
			}
		}
		for _, name := range []string{"response", "service", "lag"} {
			figures := step[name].(map[string]any)
			for _, p := range []string{"p50_seconds", "p90_seconds", "p99_seconds"} {
				if _, ok := figures[p].(float64); !ok {
					t.Errorf("%s of step %v: %s is %v", name, step["step"], p, figures[p])
				}
			}
		}
	}
	// 1,200 samples carry no p99.9.
	if first := steps[0].(map[string]any)["response"].(map[string]any); first["p999_seconds"] != nil {
		t.Errorf("p999 of 1,200 samples: %v", first["p999_seconds"])
	}
}

// TestJSONOfSeveralRuns wants each run's own document in a list.
func TestJSONOfSeveralRuns(t *testing.T) {
	t.Parallel()
	runs := compareRuns(t)
	var all struct{ Runs []Document }
	if err := json.Unmarshal([]byte(written(t, JSON, runs...)), &all); err != nil || len(all.Runs) != 2 {
		t.Fatalf("%d runs, %v", len(all.Runs), err)
	}
	for i, run := range runs {
		var want Document
		if err := json.Unmarshal([]byte(written(t, JSON, run)), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, all.Runs[i]); diff != "" {
			t.Errorf("run %d (-alone +in the list):\n%s", i, diff)
		}
	}
}

// TestOneRunFormats refuses several runs where a reader would compare them.
func TestOneRunFormats(t *testing.T) {
	t.Parallel()
	for _, format := range OneRunFormats() {
		var out bytes.Buffer
		if err := Write(&out, format, compareRuns(t)); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), "shows one run, not 2") {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestLabelsAreToldApart(t *testing.T) {
	t.Parallel()
	runs := []*result.Run{{}, {}, {}, {}}
	for i, label := range []string{"a", "", "a", "b"} {
		runs[i].Header.Label = label
	}
	shown, err := decode(runs)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"a", "2", "a 3", "b"} {
		if shown[i].label != want {
			t.Errorf("run %d is called %q, want %q", i, shown[i].label, want)
		}
	}
}

// updateGolden reports whether go test ./internal/lab/report -update rewrites the golden files.
func updateGolden() bool { return flag.Lookup("update").Value.String() == "true" }

var _ = flag.Bool("update", false, "write the golden files anew")

func written(t testing.TB, format Format, runs ...*result.Run) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, format, runs); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if updateGolden() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestGolden(t *testing.T) {
	t.Parallel()
	staged, sweep, single := stagedRun(t), sweepRun(t), singleRun(t)
	golden(t, "staged.txt", written(t, Text, staged))
	golden(t, "staged.md", written(t, Markdown, staged))
	golden(t, "staged.json", written(t, JSON, staged))
	golden(t, "staged.csv", written(t, CSV, staged))
	golden(t, "staged.seconds.csv", written(t, CSVSeconds, staged))
	golden(t, "staged.bench", written(t, Bench, staged))
	golden(t, "sweep.txt", written(t, Text, sweep))
	golden(t, "single.txt", written(t, Text, single))
	hanging := hangingRun(t)
	golden(t, "mixed.txt", written(t, Text, mixedRun(t)))
	golden(t, "staged.xml", written(t, JUnit, staged))
	golden(t, "staged.summary.md", written(t, Summary, staged))
	golden(t, "hanging.txt", written(t, Text, hanging))
	golden(t, "hanging.md", written(t, Markdown, hanging))
	golden(t, "hanging.csv", written(t, CSV, hanging))
	golden(t, "hanging.bench", written(t, Bench, hanging))
}

// TestNamedRequests has a row for each named request of a mix in every form that has rows.
func TestNamedRequests(t *testing.T) {
	t.Parallel()
	run := mixedRun(t)
	for format, want := range map[Format][]string{
		Text: {
			"     load  request    requests  answered      p50", "  1,000/s  login         4,000     400/s  2.93 ms",
			"p99{login}<5ms missed (7.69 ms)", "SLO missed: p99{login} 7.69 ms (p99{login}<5ms)",
		},
		Markdown: {"|--:|---|--:|", "| 1,000/s | GET /list | 6,000 |"},
		HTML:     {"<h2>Named requests</h2>", "<td>login</td><td>4,000</td>", "<td>-</td><td>errors{GET /list}&lt;1% met (0 %)</td>"},
		CSV:      {"run,step,request,", ",0,,open,", ",0,login,open,", ",0,GET /list,open,"},
	} {
		text := written(t, format, run)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %q in\n%.3000s", format, part, text)
			}
		}
	}
	var d Document
	if err := json.Unmarshal([]byte(written(t, JSON, run)), &d); err != nil {
		t.Fatal(err)
	}
	labels := d.Steps[0].Labels
	if len(labels) != 2 || labels[0].Name != "login" || labels[0].Requests != 4000 || labels[0].Rate != 400 || labels[0].Response.P99 == nil {
		t.Fatalf("labels %+v", labels)
	}
	if slo := labels[0].SLO; len(slo) != 1 || slo[0].Text != "p99{login}<5ms" || slo[0].Met {
		t.Errorf("SLO of login: %+v", slo)
	}
}

// TestIterations has the iterations of a flow in every form with sentences, and in JSON. Two hosts are merged.
func TestIterations(t *testing.T) {
	t.Parallel()
	host := func(seed uint64, took time.Duration) *result.Run {
		run := synthetic{capacity: 900, base: 2 * time.Millisecond, seconds: 10, seed: seed}.open(t, 400)
		duration := histogram.New()
		duration.RecordN(took, 600)
		encoded, err := duration.Encode()
		if err != nil {
			t.Fatal(err)
		}
		run.Steps[0].Total.Iterations = &result.Iterations{Completed: 600, Failed: 2, Unfinished: 5, Duration: result.HDR(encoded)}
		return run
	}
	run := mergedRun(t, host(6, time.Second), host(7, 3*time.Second))
	const want = "iterations of the flow: 1,200 completed (120/s), 4 failed, 10 in progress at the end; mean duration 2 s, p50 1 s, p99 3 s"
	if text := written(t, Text, run); !strings.Contains(text, ": 120/s iterations completed, ") {
		t.Errorf("the headline is not in iterations, as the rate is:\n%.300s", text)
	}
	for _, format := range []Format{Text, Markdown, HTML} {
		if text := written(t, format, run); !strings.Contains(text, want) {
			t.Errorf("%s has no %q in\n%.3000s", format, want, text)
		}
	}
	var d Document
	if err := json.Unmarshal([]byte(written(t, JSON, run)), &d); err != nil {
		t.Fatal(err)
	}
	if i := d.Steps[0].Iterations; i == nil || i.Completed != 1200 || i.Failed != 4 || i.Unfinished != 10 || i.Rate != 120 || i.Duration.Count != 1200 {
		t.Errorf("iterations %+v", i)
	}
}

// TestUnansweredRequestsAreInThePercentiles: 10 % of the requests got no answer within 2 s, so p99 is at least 2 s in every
// form.
func TestUnansweredRequestsAreInThePercentiles(t *testing.T) {
	t.Parallel()
	run := hangingRun(t)
	for format, want := range map[Format][]string{
		Text:       {"Does not hold 500/s within p99<70ms errors<0.5%: p99 >= 2 s and errors 10 %.", "  >= 2 s   >= 2 s  >= 2 s  "},
		Markdown:   {"| \\>= 2 s | \\>= 2 s | \\>= 2 s |"},
		HTML:       {"<td>&gt;= 2 s</td>"},
		CSV:        {",mean p95 p99 max p99_interval,", "response_lower_bounds"},
		CSVSeconds: {",mean p95 max,", ",mean p50 p90 p95 max p50_interval,", "response_lower_bounds"},
		Bench:      {" p99-at-least-sec", "Unit p99-at-least-sec better=lower", " 1200 0 req/s "},
	} {
		text := written(t, format, run)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %q in\n%.2000s", format, part, text)
			}
		}
	}
	var d Document
	if err := json.Unmarshal([]byte(written(t, JSON, run)), &d); err != nil {
		t.Fatal(err)
	}
	first, dead := d.Steps[0].Response, d.Steps[1].Response
	if first.Count != 6000 || first.P90 == nil || *first.P90 > 0.1 || first.P99 == nil || *first.P99 < 2 || *first.P99 > 2.01 {
		t.Errorf("response %+v", first)
	}
	if !slices.Equal(first.LowerBounds, []string{"mean", "p95", "p99", "max", "p99_interval"}) || !slices.Equal(dead.LowerBounds, []string{"mean", "p50", "p90", "p95", "p99", "max", "p50_interval", "p99_interval"}) {
		t.Errorf("lower bounds %q, of the dead target %q", first.LowerBounds, dead.LowerBounds)
	}
	if d.Steps[0].Rate != 450 || d.Steps[1].Rate != 0 || d.Steps[1].Requests != 7200 {
		t.Errorf("rates %g and %g of %d requests", d.Steps[0].Rate, d.Steps[1].Rate, d.Steps[1].Requests)
	}
}

// TestDocumentation requires every field of the JSON document in docs/reference/json.md.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/reference/json.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Document](), reflect.TypeFor[DocumentStep](), reflect.TypeFor[DocumentLabel](), reflect.TypeFor[Figures](), reflect.TypeFor[WatchError]()} {
		for _, field := range reflect.VisibleFields(of) {
			if field.Anonymous {
				continue // JSON has its fields, not itself
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !strings.Contains(string(doc), "`"+name+"`") {
				t.Errorf("docs/reference/json.md does not name the field %s", name)
			}
		}
	}
}
