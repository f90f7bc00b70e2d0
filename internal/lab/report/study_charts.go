package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
)

// studyPanels are the charts that the experiment names, metrics over the load, and the comparisons.
func studyPanels(s *experiment.Study) []panel {
	var panels []panel
	for _, chart := range s.Charts {
		if f, ok := metricPanel(s, chart); ok {
			panels = append(panels, f)
		}
	}
	return append(append(panels, levelPanels(s)...), comparisonPanels(s)...)
}

// metricPanel shows one metric of every variant at one level: median and range of the blocks. It returns false if no variant has
// the metric.
func metricPanel(s *experiment.Study, of experiment.Chart) (panel, bool) {
	metric := s.Metric(of.Metric)
	if metric == nil {
		return panel{}, false
	}
	c := chart{X: axis{Unit: unitNumber}, Y: axis{Unit: studyUnit(metric.Unit)}}
	for _, name := range shownVariants(s, of.Level) {
		f := s.Figure(metric.Name, name, of.Level)
		if f == nil {
			continue
		}
		row := barRow{Name: name, Value: f.Median, Text: sheet.Text(f.Median, metric.Unit)}
		row.Color, row.Pale = variantColor(s, name)
		if f.N > 1 {
			row.Low, row.High = &f.Min, &f.Max
		}
		row.Note = fmt.Sprintf("%s: %s, median of %s", name, studyRange(f, metric.Unit), sheet.Plural(f.N, "block"))
		row.Hollow = f.Unproved
		if cell := s.Cell(name, of.Level); cell.NotValid() > 0 {
			row.Note += " · not valid: " + invalidRuns(cell)
		}
		if s.Cell(name, of.Level).Fails() {
			row.Hollow = true
			row.Text += " fails"
			row.Note += " · fails: " + failure(s, name, of.Level)
		}
		c.Rows = append(c.Rows, row)
	}
	title := cmp.Or(of.Title, metricAt(s, metric, of.Level))
	c.Title = title + " by variant"
	return panel{Title: title, Caption: "median and range of the blocks", Half: len(s.Charts) > 1, Charts: []chart{c}}, len(c.Rows) > 0
}

// variantColor is the same in every panel. The A/A control has a paler shade of its baseline's color.
func variantColor(s *experiment.Study, name string) (color string, pale bool) {
	i := slices.IndexFunc(s.Manifest.Variants, func(v experiment.VariantFacts) bool { return v.Name == name })
	if i >= 0 && s.Manifest.Variants[i].Again {
		color, _ = variantColor(s, s.Manifest.Variants[i].Baseline)
		return color, true
	}
	n := 0
	for k := range max(0, i) {
		if !s.Manifest.Variants[k].Again {
			n++
		}
	}
	return hue(n), false
}

// studyUnit returns the unit of an axis for a metric.
func studyUnit(unit string) string {
	return cmp.Or(map[string]string{
		sheet.UnitRate: unitRate, sheet.UnitSeconds: unitSeconds, sheet.UnitShare: unitShare, sheet.UnitPercent: unitPercent,
	}[unit], unitNumber)
}

// levelPanels show the metrics of the experiment's charts, the rate and the p99 over the load, if levelsRise.
func levelPanels(s *experiment.Study) []panel {
	if !levelsRise(s) {
		return nil
	}
	var names []string
	for _, chart := range s.Charts {
		if chart.Level != "" {
			names = append(names, chart.Metric)
		}
	}
	var panels []panel
	shown := make(map[string]bool)
	for _, name := range append(names, experiment.MetricRate, experiment.MetricP99) {
		metric := s.Metric(name)
		if metric == nil || shown[name] {
			continue
		}
		shown[name] = true
		if c := levelChart(s, metric); len(c.Tables[0].Series) > 0 {
			panels = append(panels, panel{
				Title: metric.Title + " by load", Caption: "medians; hollow: a run was not valid, or the variant fails", Half: true, Charts: []chart{c},
			})
		}
	}
	return panels
}

// levelRate is the rate of a level, or its number of connections; NaN if that is a template.
func levelRate(l experiment.LevelFacts) float64 {
	text := cmp.Or(l.Flags["rate"], l.Flags["connections"])
	v, err := strconv.ParseFloat(strings.TrimSuffix(strings.ReplaceAll(text, ",", ""), "/s"), 64)
	if err != nil || v <= 0 {
		return math.NaN()
	}
	return v
}

// levelsRise reports whether the levels are at least three different loads of one kind.
func levelsRise(s *experiment.Study) bool {
	seen := make(map[float64]bool)
	open := 0
	for _, l := range s.Manifest.Levels {
		v := levelRate(l)
		if math.IsNaN(v) || seen[v] {
			return false
		}
		seen[v] = true
		if l.Flags["rate"] != "" {
			open++
		}
	}
	return len(seen) >= 3 && (open == 0 || open == len(s.Manifest.Levels))
}

// levelChart shows a metric of every variant over the load.
func levelChart(s *experiment.Study, metric *experiment.Metric) chart {
	levels := slices.Clone(s.Manifest.Levels)
	slices.SortFunc(levels, func(a, b experiment.LevelFacts) int { return cmp.Compare(levelRate(a), levelRate(b)) })
	var t table
	for _, l := range levels {
		t.X = append(t.X, levelRate(l))
	}
	for _, v := range s.Manifest.Variants {
		l := line{Name: v.Name, Dots: true}
		l.Color, _ = variantColor(s, v.Name)
		for _, level := range levels {
			y, hollow := math.NaN(), false
			if f := s.Figure(metric.Name, v.Name, level.Name); f != nil {
				y, hollow = f.Median, f.Unproved || s.Cell(v.Name, level.Name).Fails()
			}
			l.Y, l.Hollow = append(l.Y, y), append(l.Hollow, hollow)
		}
		if !v.Again && !math.IsNaN(l.Y.highest()) {
			t.Series = append(t.Series, l)
		}
	}
	return chart{
		Title: metric.Title + " over the load", Height: chartHeight, X: loadAxis(levelLoop(s, levels[0].Name), t.X),
		Y: axis{Title: metric.Title, Unit: studyUnit(metric.Unit)}, Tables: []table{t},
	}
}

// comparisonPanels are one panel per metric and key level.
func comparisonPanels(s *experiment.Study) []panel {
	var panels []panel
	key := keyComparisons(s)
	for len(key) > 0 {
		first := key[0]
		end := slices.IndexFunc(key, func(c experiment.Comparison) bool { return c.Metric != first.Metric || c.Level != first.Level })
		if end < 0 {
			end = len(key)
		}
		c := chart{X: axis{Unit: unitNumber}, Y: axis{Unit: unitRatio, Log: true}}
		for i := range key[:end] {
			if key[i].Pairs > 0 {
				c.Rows = append(c.Rows, comparisonRow(s, &key[i]))
			}
		}
		key = key[end:]
		if len(c.Rows) == 0 {
			continue
		}
		title := MetricTitle(s, first.Metric, first.Level) + atLevelOf(s, first.Level)
		c.Title = title + ": ratio to the baseline"
		caption := "square: geometric mean; line: 95 % interval"
		if first.Low == nil {
			caption = "square: geometric mean; line: range of the blocks, nothing is claimed"
		}
		panels = append(panels, panel{Title: "Against the baseline: " + title, Caption: caption, Charts: []chart{c}})
	}
	return panels
}

// comparisonRow shows a ratio with its interval, or with the range of its blocks if nothing is claimed.
func comparisonRow(s *experiment.Study, c *experiment.Comparison) barRow {
	row := barRow{
		Name: c.Variant + " / " + c.Baseline, Color: verdictColor(c), Value: c.Ratio, Low: &c.Min, High: &c.Max,
		Text: ratioText(s, c) + " " + shortVerdict(s, c, "none seen"),
	}
	if c.Again {
		row.Name = "A/A " + c.Baseline
	}
	if c.Low != nil && c.High != nil {
		row.Low, row.High, row.Interval = c.Low, c.High, true
	}
	row.Note = fmt.Sprintf("%s against %s: %s (%s), %s · %s",
		c.Variant, c.Baseline, ratioText(s, c), spanText(s, c), verdictWords(s, c), sheet.Plural(c.Pairs, "pair"))
	if c.P != nil {
		row.Note += " · p " + pvalue(c.P) + " of " + sheet.Integer(c.Family) + " · could have seen " + effect(c.MinimumEffect)
	}
	return row
}

func verdictColor(c *experiment.Comparison) string {
	switch {
	case c.Again && c.Verdict != experiment.VerdictNoneSeen && c.Verdict != experiment.NoVerdict, c.Verdict == experiment.VerdictWorse:
		return "bad"
	case c.Verdict == experiment.VerdictBetter:
		return "good"
	}
	return "soft"
}
