package experiment

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

func readStudy(t *testing.T, dir string) *Study {
	t.Helper()
	study, err := ReadStudy(dir)
	if err != nil {
		t.Fatal(err)
	}
	return study
}

func TestStudyOfAWholeRun(t *testing.T) {
	t.Parallel()
	dir := newStudyModel(10).write(t)
	study := readStudy(t, dir)
	t.Run("missing", func(t *testing.T) { testStudyNamesWhatIsMissing(t, dir) })
	t.Run("golden", func(t *testing.T) { testStudyGolden(t, study) })
	if study.Blocks != 10 || study.Whole != 10 || study.Ended != "finished" || len(study.Problems) != 0 || !study.Claims() {
		t.Errorf("blocks %d, whole %d, ended %q, problems %v", study.Blocks, study.Whole, study.Ended, study.Problems)
	}
	if got := len(study.Cells); got != 4*4 {
		t.Errorf("%d cells, want 16", got)
	}
	cell := study.Cell("php", "rate-300")
	for metric, want := range map[string]float64{
		MetricRate: 300, "cpu_percent.db": 300 * 2400e-6 * 100, "cpu_seconds_per_request.db": 2400e-6, "cpu_user_percent.db": 300 * 2400e-6 * 70,
		MetricGenerator: 42e-6, MetricTimeWait: 750, MetricPorts: 762, MetricLoad: 300 * 3300e-6,
	} {
		f, ok := cell.Figures[metric]
		if !ok || f.N != 10 || f.Median < want*0.7 || f.Median > want*1.4 || f.Min > f.Median || f.Max < f.Median {
			t.Errorf("%s: %+v, want about %v over 10 blocks", metric, f, want)
		}
	}
	if _, ok := cell.Figures[MetricP99]; ok {
		t.Error("600 requests carry a p99")
	}
	wantAA := 0
	for i, c := range study.Comparisons {
		if c.Again && i == wantAA {
			wantAA++
		}
		if c.Again && c.Verdict != VerdictNoneSeen {
			t.Errorf("A/A sees a difference: %+v", c)
		}
	}
	if wantAA == 0 || slices.ContainsFunc(study.Comparisons[wantAA:], func(c Comparison) bool { return c.Again }) {
		t.Errorf("%d A/A comparisons in front", wantAA)
	}
	pooled := study.Compared("cpu_seconds_per_request.db", "rate-300", "pooled")
	if pooled.Verdict != VerdictBetter || math.Abs(pooled.Ratio-400.0/2400) > 0.02 || *pooled.Low > 400.0/2400 || *pooled.High < 400.0/2400 {
		t.Errorf("the planted saving: %+v", pooled)
	}
	if peak := study.Compared(MetricPeak, "", "go"); peak.Verdict != VerdictBetter || peak.Baseline != "pooled" || peak.Family != 2 {
		t.Errorf("the peak: %+v", peak)
	}
}

// testStudyNamesWhatIsMissing breaks the directory of a run: what is missing or broken is named, and the rest is still there.
func testStudyNamesWhatIsMissing(t *testing.T, dir string) {
	trial := func(block, variant string) string { return filepath.Join(dir, BlocksDir, block, variant) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.RemoveAll(trial("010", "go")))
	must(os.Remove(filepath.Join(trial("009", "php"), "rate-100"+ResultSuffix)))
	must(os.WriteFile(filepath.Join(trial("008", "php"), "rate-100"+ResultSuffix), []byte("no gzip"), 0o644))
	must(os.WriteFile(filepath.Join(trial("007", "pooled"), TrialFile), []byte("{"), 0o644))
	var broken Trial
	must(readJSON(filepath.Join(trial("006", "go"), TrialFile), &broken))
	broken.Complete, broken.Error = false, "nginx was not ready in 30s"
	broken.Levels[1].Error, broken.Levels[2].Cooldown.Reached = "connection refused", false
	broken.Services = []ServiceRun{{Name: "nginx", Ended: "killed after 10s"}}
	broken.Peak = nil
	writeJSON(t, filepath.Join(trial("006", "go"), TrialFile), broken)

	study := readStudy(t, dir)
	if study.Whole != 7 {
		t.Errorf("%d blocks are whole, want 7", study.Whole)
	}
	var got []string
	for _, p := range study.Problems {
		text, _, _ := strings.Cut(p.Text, ":")
		got = append(got, strings.TrimSpace(strings.Join([]string{string(rune('0' + p.Block%10)), p.Variant, p.Level, text}, " ")))
	}
	slices.Sort(got)
	want := []string{
		"0 go  the trial was not run, or was cut off", "6 go  nginx was not ready in 30s", "6 go  service nginx", "6 go  the peak was not searched",
		"6 go rate-200 connection refused", "6 go rate-300 the cool-down ended by its limit", "7 pooled  read blocks/007/pooled/block.json",
		"8 php rate-100 read blocks/008/php/rate-100.ndjson.gz", "9 php rate-100 open result file",
	}
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if c := study.Cell("php", "rate-100"); c.Runs != 8 || c.Figures[MetricRate].N != 8 {
		t.Errorf("php at 100/s: %d runs", c.Runs)
	}
	short := study.Compared(MetricP50, "rate-100", "pooled")
	if short.Verdict != NoVerdict || short.Pairs != 7 || short.Low != nil || study.WhyNoVerdict(short) != "7 pairs of VALID runs, 10 are needed" {
		t.Errorf("seven pairs: %+v", short)
	}
}

// A variant that fails its requests loses in every metric, whatever its figures are.
func TestAVariantThatFailsLoses(t *testing.T) {
	t.Parallel()
	for _, class := range []result.ErrorClass{result.StatusError, result.Reset, result.Timeout} {
		t.Run(class.String(), func(t *testing.T) {
			if class == result.Reset { // without an answer, as a timeout is
				apptest.Long(t)
			}
			testVariantThatFails(t, class)
		})
	}
}

func testVariantThatFails(t *testing.T, class result.ErrorClass) {
	model := newStudyModel(10)
	model.only("rate-300")
	model.broken = map[string]result.ErrorClass{"pooled": class}
	study := readStudy(t, model.write(t))
	cell := study.Cell("pooled", "rate-300")
	if f := cell.Figures[MetricRate]; cell.Runs != 10 || cell.Failing != 10 || !cell.Fails() || f.N != 10 || f.Max != 0 || cell.Errors[class.String()] != 6000 {
		t.Errorf("%s: the cell: %+v", class, cell)
	}
	for _, c := range study.Comparisons {
		switch c.Variant {
		case "pooled":
			if c.Verdict != VerdictFails || c.Pairs != 0 || c.Ratio != 0 || c.Low != nil || c.Failing != 10 {
				t.Errorf("%s: %s: %+v", class, c.Metric, c)
			}
		case "go": // its baseline is pooled
			if c.Verdict != VerdictBaselineFails || c.Pairs != 0 || c.Ratio != 0 || c.BaselineFailing != 10 {
				t.Errorf("%s: %s: %+v", class, c.Metric, c)
			}
		}
	}
	for _, metric := range []string{MetricRate, MetricP50, MetricPeak} {
		if level := map[bool]string{false: "rate-300"}[metric == MetricPeak]; study.Compared(metric, level, "pooled") == nil {
			t.Errorf("%s: %s is not compared", class, metric)
		}
	}
	if study.Figure(MetricCPU+".db", "pooled", "rate-300") != nil {
		t.Errorf("%s: a failed request has CPU time", class)
	}
}

// A load that its own condition ended is no reason to leave out a variant that fails. What else it measured supports no verdict.
func TestAbortedLoads(t *testing.T) {
	t.Parallel()
	model := newStudyModel(10)
	model.only("rate-300")
	model.ended = map[string]string{"pooled": "aborted: errors>20% for 3s", "go": "aborted: p99>1ms for 3s"}
	model.broken = map[string]result.ErrorClass{"pooled": result.StatusError}
	study := readStudy(t, model.write(t))
	if c := study.Compared(MetricRate, "rate-300", "pooled"); c == nil || c.Verdict != VerdictFails {
		t.Errorf("the failing variant: %+v", c)
	}
	if cell := study.Cell("go", "rate-300"); cell == nil || cell.Runs != 10 || cell.NotValid() != 10 || cell.Fails() {
		t.Errorf("the slow variant: %+v", cell)
	}
	if !slices.ContainsFunc(study.Problems, func(p Problem) bool { return strings.Contains(p.Text, "aborted: p99>1ms") && !p.Missing }) {
		t.Errorf("problems: %+v", study.Problems)
	}
}

// A search that proved nothing has no peak, and one that ended before it found a rate that meets the SLO does not say that there
// is none.
func TestUnprovedPeaks(t *testing.T) {
	t.Parallel()
	for _, validity := range []result.Validity{result.HostContended, result.TooFewSamples, result.NotStationary} {
		for _, peak := range []PeakRun{{Validity: validity}, {Infeasible: 500, Validity: validity}} {
			model := newStudyModel(10)
			model.only()
			model.peak = map[string]PeakRun{"pooled": peak}
			study := readStudy(t, model.write(t))
			cell := study.Cell("pooled", "")
			if _, has := cell.Figures[MetricPeak]; has || cell.Fails() || cell.Runs != 10 || cell.Validity[validity] != 10 {
				t.Errorf("%s, %g: the cell: %+v", validity, peak.Infeasible, cell)
			}
			if c := study.Compared(MetricPeak, "", "pooled"); c != nil && c.Verdict != NoVerdict {
				t.Errorf("%s, %g: %+v", validity, peak.Infeasible, c)
			}
		}
	}
}

func TestBothSidesFail(t *testing.T) {
	t.Parallel()
	model := newStudyModel(10)
	model.only("rate-300")
	model.broken = map[string]result.ErrorClass{"php": result.StatusError, "pooled": result.StatusError}
	study := readStudy(t, model.write(t))
	c := study.Compared(MetricRate, "rate-300", "pooled")
	if c.Verdict != NoVerdict || study.WhyNoVerdict(c) != "both fail more than 1 % of their requests" {
		t.Errorf("%+v", c)
	}
	if c := study.Compared(MetricRate, "rate-300", "php-again"); c.Verdict != VerdictBaselineFails {
		t.Errorf("the control: %+v", c)
	}
}

// Only VALID runs support a verdict. Too few samples for a percentile are enough for a rate.
func TestOnlyValidRunsCount(t *testing.T) {
	rate, p99 := Metric{Name: MetricRate, Better: BetterHigher}, Metric{Name: MetricP99, Better: BetterLower}
	v := VariantFacts{Name: "b", Baseline: "a"}
	runs := map[cellKey][]levelFigures{}
	add := func(variant string, v float64, validity result.Validity) {
		key := cellKey{variant, "x"}
		runs[key] = append(runs[key], levelFigures{read: true, validity: validity, figures: map[string]float64{MetricRate: v, MetricP99: v}})
	}
	for block, validity := range []result.Validity{
		result.GeneratorLimited, result.Unjudged, result.HostContended, result.NotStationary, result.TooFewSamples,
		result.Valid, result.Valid, result.Valid, result.Valid, result.Valid, result.Valid, result.Valid, result.Valid, result.Valid, result.Valid,
	} {
		add("a", 100+float64(block), result.Valid)
		add("b", 200+float64(block%5), validity)
	}
	judged := func(m Metric) Comparison {
		p, _ := pairUp(m, "x", v, runs)
		return verdictsOf([]pairing{p}, false)[0]
	}
	if c := judged(rate); c.Pairs != 11 || c.LeftOut != 4 || c.Verdict != VerdictBetter {
		t.Errorf("rate: %+v", c)
	}
	if c := judged(p99); c.Pairs != 10 || c.LeftOut != 5 || c.Verdict != VerdictWorse {
		t.Errorf("p99: %+v", c)
	}
	runs[cellKey{"b", "x"}][3].overloaded, runs[cellKey{"b", "x"}][14].overloaded = true, true // NOT_STATIONARY and VALID
	if c := judged(rate); c.Pairs != 12 || c.LeftOut != 3 {
		t.Errorf("overloaded, rate: %+v", c)
	}
	if c := judged(p99); c.Pairs != 9 || c.LeftOut != 6 {
		t.Errorf("overloaded, p99: %+v", c)
	}
	runs[cellKey{"b", "x"}][14].overloaded = false
	runs[cellKey{"a", "x"}][14].validity = result.HostContended
	c := judged(p99)
	if c.Pairs != 9 || c.Verdict != NoVerdict || c.Low != nil {
		t.Errorf("nine pairs: %+v", c)
	}
	if why := (&Study{}).WhyNoVerdict(&c); why != "9 pairs of VALID runs, 10 are needed; 6 pairs are left out" {
		t.Error(why)
	}
	runs[cellKey{"a", "x"}][13].atLeast = map[string]bool{MetricP99: true}
	if c := judged(p99); c.Pairs != 8 || c.Dropped != 1 {
		t.Errorf("a lower bound gives no ratio: %+v", c)
	}
}

// The figure of a cell is that of its VALID runs. Where there is none it is of all runs, and says so.
func TestFiguresOfValidRuns(t *testing.T) {
	run := func(rate float64, validity result.Validity) levelFigures {
		return levelFigures{read: true, validity: validity, figures: map[string]float64{MetricRate: rate}}
	}
	metrics := []Metric{{Name: MetricRate}}
	cell := newCell("a", "x", []levelFigures{run(100, result.Valid), run(9000, result.HostContended), run(110, result.Valid), run(120, result.Valid)}, metrics)
	if got, want := cell.Figures[MetricRate], (Figure{N: 3, Median: 110, Min: 100, Max: 120}); got != want || cell.Runs != 4 {
		t.Errorf("%+v of %d runs, want %+v of 4", got, cell.Runs, want)
	}
	failing := levelFigures{read: true, validity: result.NotStationary, figures: map[string]float64{MetricErrors: 0.5}}
	clean := levelFigures{read: true, validity: result.Valid, figures: map[string]float64{MetricErrors: 0}}
	cell = newCell("a", "x", []levelFigures{failing, clean, failing}, []Metric{{Name: MetricErrors}})
	if got, want := cell.Figures[MetricErrors], (Figure{N: 3, Median: 0.5, Max: 0.5}); got != want {
		t.Errorf("errors: %+v, want %+v", got, want)
	}
	cell = newCell("a", "x", []levelFigures{run(100, result.HostContended), run(300, result.GeneratorLimited)}, metrics)
	if got, want := cell.Figures[MetricRate], (Figure{N: 2, Median: 200, Min: 100, Max: 300, Unproved: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestQuickClaimsNothing(t *testing.T) {
	t.Parallel()
	model := newStudyModel(10)
	model.manifest.Quick = true
	model.only()
	study := readStudy(t, model.write(t))
	if study.Claims() {
		t.Error("a quick run claims something")
	}
	c := study.Compared(MetricPeak, "", "go")
	if c.Pairs != 10 || c.Min <= 1 || c.Max <= c.Min || study.WhyNoVerdict(c) != "a quick run claims nothing" {
		t.Errorf("ranges: %+v", c)
	}
}

func TestSummaryRoundTrip(t *testing.T) {
	t.Parallel()
	study := readStudy(t, newStudyModel(3).write(t))
	var out bytes.Buffer
	if err := study.WriteSummary(&out); err != nil {
		t.Fatal(err)
	}
	again, err := ReadSummary(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	study.Manifest.Plan = nil
	if diff := cmp.Diff(study, again, cmpopts.IgnoreUnexported(Figure{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines < 30 {
		t.Errorf("%d lines: lists are not one element a line", lines)
	}
	for _, text := range []string{"", "{}", `{"format":"spillway-load"}`, `[1]`} {
		if _, err := ReadSummary(strings.NewReader(text)); !errors.Is(err, ErrNotSummary) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ReadSummary(strings.NewReader(`{"format":"spillway-study","version":"2.0"}`)); err == nil {
		t.Error("another major version is read")
	}
}

// testStudyGolden compares with the file of which the golden files of the report are made: UPDATE=1 go test -run TestStudyOfAWholeRun.
func testStudyGolden(t *testing.T, study *Study) {
	var out bytes.Buffer
	if err := study.WriteSummary(&out); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "study.json")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("study.json (-want +got); UPDATE=1 writes it anew:\n%s", diff)
	}
}

func TestNotAnExperiment(t *testing.T) {
	dir := t.TempDir()
	if IsStudy(dir) {
		t.Error("an empty directory is an experiment")
	}
	if _, err := ReadStudy(dir); !errors.Is(err, ErrNotExperiment) {
		t.Errorf("empty: %v", err)
	}
	writeJSON(t, filepath.Join(dir, ManifestFile), map[string]string{"format": "other"})
	if _, err := ReadStudy(dir); !errors.Is(err, ErrNotExperiment) {
		t.Errorf("another manifest: %v", err)
	}
	writeJSON(t, filepath.Join(dir, ManifestFile), map[string]string{"format": Format, "version": "9.0"})
	if _, err := ReadStudy(dir); err == nil || errors.Is(err, ErrNotExperiment) {
		t.Errorf("another version: %v", err)
	}
}

func TestKnownMetric(t *testing.T) {
	for name, want := range map[string]bool{MetricPeak: true, "cpu_percent.db": true, "cpu_percent.web": false, "cpu_percent": false, "": false} {
		if got := KnownMetric(name, []string{"db"}); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
