package report

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// panelsOf reads the panels back from a page's data.
func panelsOf(t testing.TB, page string) []panel {
	t.Helper()
	_, rest, _ := strings.Cut(page, `id="data">`)
	data, _, ok := strings.Cut(rest, "</script>")
	var read struct{ Panels []panel }
	if err := json.Unmarshal([]byte(data), &read); !ok || err != nil {
		t.Fatalf("page data: %v", err)
	}
	return read.Panels
}

// UnmarshalJSON reads null as NaN.
func (n *numbers) UnmarshalJSON(data []byte) error {
	var values []*float64
	if err := json.Unmarshal(data, &values); err != nil {
		return err
	}
	*n = nil
	for _, v := range values {
		if v == nil {
			*n = append(*n, math.NaN())
			continue
		}
		*n = append(*n, *v)
	}
	return nil
}

// outline is a page without style and scripts, and a line for each series of its panels.
func outline(t testing.TB, page string) string {
	t.Helper()
	var out strings.Builder
	out.WriteString(regexp.MustCompile(`(?s)<(style|script)[ >].*?</(style|script)>`).ReplaceAllString(page, "<$1/>"))
	for i, f := range panelsOf(t, page) {
		fmt.Fprintf(&out, "panel %d: %s (%s)\n", i, f.Title, f.Caption)
		for _, c := range f.Charts {
			fmt.Fprintf(&out, "  %s: x %+v, y %+v, %d starts %+v\n", c.Title, c.X, c.Y, len(c.Starts), c.Limits)
			for _, table := range c.Tables {
				for _, l := range table.Series {
					middle := len(table.X) / 2
					fmt.Fprintf(&out, "    %s, %s %s: %d from %g, %g at %g to %g, highest %g",
						l.Name, l.Color, l.Style, len(l.Y), table.X[0], l.Y[middle], table.X[middle], table.X[len(table.X)-1], l.Y.highest())
					if n := len(l.AtLeast); n > 0 {
						fmt.Fprintf(&out, ", %d lower bounds from %g", n, l.AtLeast[0])
					}
					out.WriteString("\n")
				}
			}
			for _, r := range c.Rows {
				fmt.Fprintf(&out, "    %s, %s: %s | %s\n", r.Name, r.Color, r.Text, r.Note)
			}
		}
	}
	return out.String()
}

func TestPageGolden(t *testing.T) {
	t.Parallel()
	golden(t, "staged.page.txt", outline(t, written(t, HTML, stagedRun(t))))
	golden(t, "sweep.page.txt", outline(t, written(t, HTML, sweepRun(t))))
	golden(t, "single.page.txt", outline(t, written(t, HTML, singleRun(t))))
	golden(t, "hanging.page.txt", outline(t, written(t, HTML, hangingRun(t))))
	golden(t, "watch.page.txt", outline(t, written(t, HTML, watchedRun(t))))
	golden(t, "watch-pair.page.txt", outline(t, written(t, HTML, watchedPair(t))))
	golden(t, "watch-alone.page.txt", outline(t, written(t, HTML, watchedAlone(t))))
	golden(t, "study.page.txt", outline(t, writtenStudy(t, HTML, studyOf(t))))
	golden(t, "study-quick.page.txt", outline(t, writtenStudy(t, HTML, quickStudyOf(t))))
}

// TestPanelsCanBeDrawn checks what uPlot expects of every panel's data.
func TestPanelsCanBeDrawn(t *testing.T) {
	t.Parallel()
	pages := []string{writtenStudy(t, HTML, studyOf(t)), writtenStudy(t, HTML, quickStudyOf(t))}
	for _, runs := range [][]*result.Run{{stagedRun(t)}, {hangingRun(t)}, {mixedRun(t)}, {sweepRun(t)}, {singleRun(t)}, {hostile(t)}, {watchedRun(t)}, {watchedPair(t)}, {watchedAlone(t)}, {searchRun(t)}, {shortSearchRun(t)}} {
		pages = append(pages, written(t, HTML, runs...))
	}
	for i, page := range pages {
		panels := panelsOf(t, page)
		if len(panels) == 0 || strings.Count(page, "data-panel=") != len(panels) {
			t.Errorf("page %d: %d panels, %d places for them", i, len(panels), strings.Count(page, "data-panel="))
		}
		for _, f := range panels {
			for _, c := range f.Charts {
				for _, problem := range chartProblems(&c) {
					t.Errorf("page %d: %s: %s: %s", i, f.Title, c.Title, problem)
				}
			}
		}
	}
}

func chartProblems(c *chart) []string {
	var problems []string
	if len(c.Tables) == 0 && len(c.Rows) == 0 || c.Title == "" || c.Y.Unit == "" {
		problems = append(problems, "empty")
	}
	for _, table := range c.Tables {
		if !slices.IsSorted(table.X) || len(slices.Compact(slices.Clone(table.X))) != len(table.X) {
			problems = append(problems, "x does not ascend")
		}
		if n := len(table.X); n > 0 && c.X.Max > 0 && (table.X[0] < 0 || table.X[n-1] > c.X.Max) {
			problems = append(problems, "x leaves the axis")
		}
		for _, l := range table.Series {
			if len(l.Y) != len(table.X) || l.Dots && len(l.Hollow) != len(table.X) || math.IsNaN(l.Y.highest()) || l.Name == "" || l.Color == "" {
				problems = append(problems, "series "+l.Name)
			}
		}
	}
	for _, r := range c.Rows {
		if r.Low != nil && (*r.Low > r.Value || *r.High < r.Value) || r.Name == "" || r.Text == "" || r.Color == "" {
			problems = append(problems, "row "+r.Name)
		}
	}
	return problems
}

// TestPercentileCurve: a curve rises and ends where the sample is too small for the next percentile.
func TestPercentileCurve(t *testing.T) {
	t.Parallel()
	large, small, empty := histogram.New(), histogram.New(), histogram.New()
	for i := range 10000 {
		large.Record(time.Duration(i+1) * time.Microsecond)
		if i < 1000 {
			small.Record(time.Duration(i+1) * time.Microsecond)
		}
	}
	c := percentileChart([]curve{{"large", "h0", exact(large)}, {"small", "h1", exact(small)}, {"empty", "h2", exact(empty)}}, nil)
	last := func(n int) float64 {
		place := math.NaN()
		for i, v := range c.Tables[0].Series[n].Y {
			if i > 0 && v < c.Tables[0].Series[n].Y[i-1] {
				t.Errorf("curve %d falls at %g", n, c.Tables[0].X[i])
			}
			if !math.IsNaN(v) {
				place = c.Tables[0].X[i]
			}
		}
		return place
	}
	if got := last(0); math.Abs(got-3) > 1e-9 {
		t.Errorf("10,000 samples end at %g, want 3: p99.9", got)
	}
	if got := last(1); math.Abs(got-2) > 1e-9 {
		t.Errorf("1,000 samples end at %g, want 2: p99", got)
	}
	if got := last(2); !math.IsNaN(got) {
		t.Errorf("no samples end at %g", got)
	}
}
