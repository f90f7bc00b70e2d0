package report

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// studyOf is the golden study of internal/lab/experiment.
func studyOf(t testing.TB) *experiment.Study {
	t.Helper()
	file, err := os.Open("../experiment/testdata/study.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	study, err := experiment.ReadSummary(file)
	if err != nil {
		t.Fatal(err)
	}
	return study
}

// quickStudyOf is the same study as a quick, incomplete run: no claims, invalid runs, problems.
func quickStudyOf(t testing.TB) *experiment.Study {
	t.Helper()
	study := studyOf(t)
	study.Manifest.Quick, study.Blocks, study.Whole, study.Ended = true, 3, 2, "interrupted"
	study.Manifest.Title, study.Manifest.Question = "Stacks <quick> & *dirty*", ""
	study.Charts = nil
	study.Manifest.Levels = study.Manifest.Levels[2:]
	study.Manifest.Peak = nil
	for i := range study.Comparisons {
		c := &study.Comparisons[i]
		c.Verdict, c.Low, c.High, c.P, c.MinimumEffect, c.Pairs = experiment.NoVerdict, nil, nil, nil, nil, 3
	}
	kept := study.Cells[:0]
	for _, c := range study.Cells {
		if c.Level == "rate-300" {
			kept = append(kept, c)
		}
	}
	study.Cells = kept
	kept[0].Validity = map[result.Validity]int{result.Valid: 2, result.NotStationary: 1}
	study.Problems = []experiment.Problem{
		{Block: 3, Variant: "go", Text: "the turn was not run, or was cut off", Missing: true},
		{Block: 3, Variant: "php", Text: "the turn was not run, or was cut off", Missing: true},
		{Block: 1, Variant: "php", Level: "rate-300", Text: "a <b>bad</b> sentence"},
	}
	return study
}

func writtenStudy(t testing.TB, format Format, study *experiment.Study) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteStudy(&out, format, study); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStudyGolden(t *testing.T) {
	t.Parallel()
	study, quick := studyOf(t), quickStudyOf(t)
	golden(t, "study.txt", writtenStudy(t, Text, study))
	golden(t, "study.md", writtenStudy(t, Markdown, study))
	golden(t, "study-quick.txt", writtenStudy(t, Text, quick))
	golden(t, "study-quick.md", writtenStudy(t, Markdown, quick))
}

func TestStudyJSONIsItsSummary(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../experiment/testdata/study.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), writtenStudy(t, JSON, studyOf(t))); diff != "" {
		t.Errorf("(-summary +json):\n%s", diff)
	}
	if err := WriteStudy(&bytes.Buffer{}, CSV, studyOf(t)); err == nil || !strings.Contains(err.Error(), "not as csv") {
		t.Errorf("csv: %v", err)
	}
}

func TestStudyPageIsSafeAndOffline(t *testing.T) {
	t.Parallel()
	study := quickStudyOf(t)
	study.Manifest.Variants[0].Title = "x"
	study.Problems = append(study.Problems, experiment.Problem{Text: "</script><script>alert(1)</script>"})
	page := writtenStudy(t, HTML, study)
	for _, bad := range []string{"<script>alert", "<b>bad</b>", "http-equiv=\"refresh\"", "src=", "@import", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
}

func TestStudyWithoutAnything(t *testing.T) {
	t.Parallel()
	empty := &experiment.Study{Manifest: experiment.Manifest{Name: "none"}}
	for _, format := range []Format{Text, Markdown, JSON, HTML} {
		if out := writtenStudy(t, format, empty); format != JSON && !strings.Contains(out, "Nothing was measured.") {
			t.Errorf("%s: %s", format, out)
		}
	}
}

func TestStudyValues(t *testing.T) {
	t.Parallel()
	f := func(median, low, high float64) *experiment.Figure {
		return &experiment.Figure{N: 3, Median: median, Min: low, Max: high}
	}
	for _, test := range []struct {
		f    *experiment.Figure
		unit string
		want string
	}{
		{nil, sheet.UnitRate, "-"},
		{f(310, 290, 1333), sheet.UnitRate, "310 (290–1,333)/s"},
		{f(0.0023, 0.0019, 0.0126), sheet.UnitSeconds, "2.3 (1.9–12.6) ms"},
		{f(0.0023, 0.0023, 0.0023), sheet.UnitSeconds, "2.3 ms"},
		{f(219, 200, 240.4), sheet.UnitPercent, "219 (200–240) %"},
		{f(0.17, 0, 0.1711), sheet.UnitShare, "17 (0–17.1) %"},
		{f(0, 0, 0), sheet.UnitShare, "0 %"},
		{f(1.25, 0.5, 2), sheet.UnitCount, "1.25 (0.5–2)"},
	} {
		if got := studyRange(test.f, test.unit); got != test.want {
			t.Errorf("%+v %s: %q, want %q", test.f, test.unit, got, test.want)
		}
	}
	if got := studyRange(&experiment.Figure{N: 3, Median: 2, Min: 2, Max: 2, AtLeast: true}, sheet.UnitSeconds); got != ">= 2 s" {
		t.Errorf("a lower bound: %q", got)
	}
}

func TestRatioDigits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v, reach float64
		want     string
	}{
		{0.1666, 0, "0.167"},
		{1, 0, "1.00"},
		{1.0549, 0, "1.05"},
		{9.41, 0, "9.41"},
		{9.4, 0, "9.4"},
		{123, 0, "123"},
		{1.523, 0.03, "1.52"},
		{1.523, 0.009, "1.52"},
		{1.523, 0.1, "1.5"},
		{1.523, 0.3, "1.5"},
		{1.523, 1.2, "2"},
		{8.801, 0.03, "8.8"},
		{0.1666, 0.03, "0.167"},
		{0.1666, 0.1, "0.17"},
		{148, 0.03, "148"},
		{148, 0.3, "150"},
		{148, 5, "100"},
		{0.004, 20, "0.004"},
		{0, 0.03, "-"},
	} {
		if got := ratioNumber(c.v, c.reach); got != c.want {
			t.Errorf("%v with a control of %v: %s, want %s", c.v, c.reach, got, c.want)
		}
	}
}

// The headline claims what has a verdict, and names what fails.
func TestStudyHeadlineFollowsTheVerdicts(t *testing.T) {
	t.Parallel()
	peaks := func(study *experiment.Study, change func(*experiment.Comparison)) {
		for i := range study.Comparisons {
			if c := &study.Comparisons[i]; c.Metric == experiment.MetricPeak && !c.Again {
				change(c)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*experiment.Study)
		mood   mood
		want   string
	}{
		"verdicts": {func(*experiment.Study) {}, good, "Verdicts on peak: pooled 1.06 x that of php, faster; go 8.8 x that of pooled, faster."},
		"none seen": {func(s *experiment.Study) {
			peaks(s, func(c *experiment.Comparison) { c.Verdict = experiment.VerdictNoneSeen })
		}, good, "No difference seen in peak: pooled and php; go and pooled."},
		"within the control": {func(s *experiment.Study) {
			peaks(s, func(c *experiment.Comparison) { c.Ratio = 1.02 })
		}, good, "No difference seen in peak: pooled and php; go and pooled."},
		"no verdict": {func(s *experiment.Study) {
			peaks(s, func(c *experiment.Comparison) { c.Verdict = experiment.NoVerdict })
		}, doubt, "Nothing is claimed; highest peak seen: go, 3,082 (2,472–3,541)/s."},
		"fails": {func(s *experiment.Study) {
			cell := s.Cell("pooled", "rate-300")
			cell.Failing, cell.Errors, cell.Statuses = 10, map[string]int64{"status": 6000}, map[int]int64{500: 6000}
			cell.Figures[experiment.MetricErrors] = experiment.Figure{N: 10, Median: 1, Min: 1, Max: 1}
			peaks(s, func(c *experiment.Comparison) { c.Verdict, c.Pairs = experiment.VerdictFails, 0 })
		}, bad, "pooled fails: 100 % of its requests at rate-300 (status 6,000, HTTP 500: 6,000). Nothing is claimed; highest peak seen: go, 3,082 (2,472–3,541)/s."},
		"fails on a busy host": {func(s *experiment.Study) {
			cell := s.Cell("go", "rate-300")
			cell.Failing, cell.Validity = 10, map[result.Validity]int{result.HostContended: 10}
			cell.Figures[experiment.MetricErrors] = experiment.Figure{N: 10, Median: 0.02, Min: 0.02, Max: 0.02}
		}, bad, "go fails in runs that are not VALID: 2 % of its requests at rate-300 (-). Verdicts on peak: pooled 1.06 x that of php, faster; go 8.8 x that of pooled, faster."},
		"no rate met the SLO": {func(s *experiment.Study) {
			s.Cell("go", "").Failing = 10
			s.Comparisons = nil
		}, bad, "go fails: no rate met p99<70ms errors<0.5%. Nothing is claimed; highest peak seen: pooled, 354 (288–402)/s."},
	} {
		study := studyOf(t)
		test.change(study)
		if h := newStudyHeadline(study); h.Mood != test.mood || h.Text != test.want {
			t.Errorf("%s:\n got %s %s\nwant %s %s", name, h.Mood, h.Text, test.mood, test.want)
		}
	}
}

func TestClosedLoopPercentilesAreLabelled(t *testing.T) {
	t.Parallel()
	study := studyOf(t)
	study.Manifest.Levels[0].Flags = map[string]string{"connections": "8"}
	text := writtenStudy(t, Text, study)
	_, level, found := strings.Cut(text, "At rate-100 (connections 8): answers")
	level, _, _ = strings.Cut(level, "At rate-200")
	for _, want := range []string{" p50 (closed loop) ", "Closed loop: latency at saturation, not what users see."} {
		if !found || !strings.Contains(level, want) {
			t.Errorf("no %q in %s", want, level)
		}
	}
	if strings.Count(text, "(closed loop)") != 1 {
		t.Error("the percentiles of open loops are labelled")
	}
}
