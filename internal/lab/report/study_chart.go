package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"

	"spillway/internal/lab/experiment"
)

// Measures of the charts with a row for each variant, in pixels.
const (
	barHeight     = 22
	barStep       = 38
	barTop        = 10
	barRight      = 126 // for the value behind the longest bar
	nameMax       = 260 // for names at the left
	forestStep    = 24
	forestRight   = 190
	characterSize = 6.9
)

// variantHue is the colour class of a variant: the same in every chart. The A/A twin has that of its baseline.
func variantHue(s *experiment.Study, name string) string {
	i := slices.IndexFunc(s.Manifest.Variants, func(v experiment.VariantFacts) bool { return v.Name == name })
	if i >= 0 && s.Manifest.Variants[i].Again {
		return variantHue(s, s.Manifest.Variants[i].Baseline) + " again"
	}
	n := 0
	for k := range max(0, i) {
		if !s.Manifest.Variants[k].Again {
			n++
		}
	}
	return hue(n)
}

// nameWidth is what names at the left of a chart need; on a phone they stand above the bars.
func nameWidth(names []string) float64 {
	widest := 0.0
	for _, name := range names {
		widest = max(widest, characterSize*float64(len([]rune(name))))
	}
	return min(nameMax, widest+14)
}

// barChart draws one metric of every variant at one level: a bar for the median, a whisker for the range of the blocks,
// a diamond for what others published. "" when no variant has it.
func barChart(s *experiment.Study, chart experiment.Chart, size sizing) template.HTML {
	metric := s.Metric(chart.Metric)
	if metric == nil {
		return ""
	}
	names := slices.DeleteFunc(shownVariants(s, chart.Level), func(name string) bool { return s.Figure(metric.Name, name, chart.Level) == nil })
	if len(names) == 0 {
		return ""
	}
	phone := size.width == narrow.width
	left, step := nameWidth(names), float64(barStep)
	if phone {
		left, step = 14, barStep+16
	}
	highest := 0.0
	for _, name := range names {
		highest = max(highest, s.Figure(metric.Name, name, chart.Level).Max, publishedValue(s, metric.Name, name, chart.Level))
	}
	height := barTop + step*float64(len(names)) + marginBottom
	right := size.width - barRight
	if phone {
		right = size.width - 96
	}
	x := axis{write: func(v float64) string { return studyValue(v, metric.Unit) }}
	x.scale, x.ticks = linearScale(highest, left, right, min(size.ticks, 6))
	svg := newSVG(size.width, height, chartTitle(s, chart)+" by variant")
	drawBarAxis(svg, x, height)
	for i, name := range names {
		top := barTop + step*float64(i)
		if phone {
			svg.text(left, top+12, "name", "start", name)
			top += 16
		} else {
			svg.text(left-8, top+barHeight/2+4, "name", "end", cut(name, left))
		}
		b := barRow{metric: metric, level: chart.Level, name: name, top: top, index: i}
		b.draw(svg, s, x, size.width)
	}
	return svg.done()
}

// cut shortens a name to the width there is.
func cut(name string, width float64) string {
	runes := []rune(name)
	if most := int((width - 12) / characterSize); len(runes) > most && most > 1 {
		return string(runes[:most-1]) + "…"
	}
	return name
}

func drawBarAxis(svg *svg, x axis, height float64) {
	bottom := height - marginBottom
	free := math.Inf(-1)
	for _, v := range x.ticks {
		at, label := x.at(v), x.write(v)
		svg.line(at, barTop-4, at, bottom, "grid")
		if half := textWidth(label) / 2; at-half > free {
			svg.text(at, bottom+16, "tick", "middle", label)
			free = at + half + 6
		}
	}
}

// A barRow is one variant of a bar chart.
type barRow struct {
	metric      *experiment.Metric
	level, name string
	top         float64
	index       int
}

func (b *barRow) draw(svg *svg, s *experiment.Study, x axis, width float64) {
	f := s.Figure(b.metric.Name, b.name, b.level)
	cell := s.Cell(b.name, b.level)
	class := "hbar " + variantHue(s, b.name)
	if cell.NotValid() > 0 {
		class += " hollow"
	}
	middle := b.top + barHeight/2
	svg.leaf("rect", "x", px(x.from), "y", px(b.top), "width", px(max(1, x.at(f.Median)-x.from)), "height", px(barHeight), "rx", "2", "class", class)
	end := x.at(max(f.Median, f.Max))
	if f.N > 1 {
		svg.line(x.at(f.Min), middle, x.at(f.Max), middle, "whisker")
		svg.line(x.at(f.Min), middle-5, x.at(f.Min), middle+5, "whisker")
		svg.line(x.at(f.Max), middle-5, x.at(f.Max), middle+5, "whisker")
	}
	text := fmt.Sprintf("%s: %s, median of %s", b.name, studyRange(f, b.metric.Unit), plural(int64(f.N), "block"))
	if theirs := publishedValue(s, b.metric.Name, b.name, b.level); theirs > 0 {
		at, label := x.at(theirs), textWidth(studyValue(f.Median, b.metric.Unit))
		diamond(svg, at, middle)
		if at > end-8 && at-8 < end+8+label { // it would stand in the figure's way
			end = at + 6
		}
		text += " · published " + studyValue(theirs, b.metric.Unit)
	}
	if n := cell.NotValid(); n > 0 {
		text += " · not valid: " + doubts(cell)
	}
	svg.text(end+8, middle+4, "value", "start", studyValue(f.Median, b.metric.Unit))
	svg.hit(0, b.top-4, width, barHeight+8, b.index, text)
}

func diamond(svg *svg, x, y float64) {
	svg.leaf("path", "d", "M"+px(x)+" "+px(y-6)+"l6 6l-6 6l-6 -6z", "class", "published")
}

// publishedValue is what others published of it, 0 for nothing.
func publishedValue(s *experiment.Study, metric, variant, level string) float64 {
	for _, p := range s.Published {
		if p.Metric == metric && p.Variant == variant && p.Level == level {
			return p.Value
		}
	}
	return 0
}

func chartTitle(s *experiment.Study, chart experiment.Chart) string {
	if chart.Title != "" {
		return chart.Title
	}
	metric := s.Metric(chart.Metric)
	if metric == nil {
		return chart.Metric
	}
	return metricAt(s, metric, chart.Level)
}

// forestChart draws the ratios of comparisons on a logarithmic axis: a square with its interval, or with the range of
// the blocks, thin, where nothing is claimed.
func forestChart(s *experiment.Study, comparisons []experiment.Comparison, size sizing) template.HTML {
	var names []string
	lowest, highest := 0.9, 1.1
	for i := range comparisons {
		c := &comparisons[i]
		names = append(names, forestName(c))
		low, high := ends(c)
		lowest, highest = min(lowest, low), max(highest, high)
	}
	phone := size.width == narrow.width
	left, right, step := nameWidth(names)+16, size.width-forestRight, float64(forestStep)
	if phone {
		left, right, step = 14, size.width-14, forestStep+18
	}
	height := 26 + step*float64(len(comparisons)) + marginBottom
	x := axis{write: times}
	x.scale, x.ticks = ratioScale(lowest, highest, left, right, min(size.ticks, 7))
	svg := newSVG(size.width, height, "Ratios to the baseline with their intervals")
	bottom := height - marginBottom
	for _, v := range x.ticks {
		svg.line(x.at(v), 20, x.at(v), bottom, "grid")
		svg.text(x.at(v), bottom+16, "tick", "middle", times(v))
	}
	svg.line(x.at(1), 14, x.at(1), bottom, "axis")
	for i := range comparisons {
		r := forestRow{comparison: &comparisons[i], top: 24 + step*float64(i), index: i, left: left, right: right, phone: phone}
		r.draw(svg, s, x, size.width)
	}
	return svg.done()
}

// ratioScale is a logarithmic scale around 1. A narrow one has even ticks, for powers of ten would leave it empty.
func ratioScale(lowest, highest, from, to float64, ticks int) (scale, []float64) {
	if highest/lowest > 4 {
		return logScale(lowest, highest, from, to, ticks)
	}
	unit := niceStep((highest - lowest) / float64(ticks))
	first, last := math.Floor(lowest/unit), math.Ceil(highest/unit)
	for first <= 0 {
		first++
	}
	var at []float64
	for k := first; k <= last; k++ {
		at = append(at, k*unit)
	}
	return scale{min: min(lowest, at[0]), max: at[len(at)-1], from: from, to: to, logarithms: true}, at
}

// ends are the interval of a comparison, or the range of its blocks.
func ends(c *experiment.Comparison) (low, high float64) {
	if c.Low != nil && c.High != nil {
		return *c.Low, *c.High
	}
	return c.Min, c.Max
}

func forestName(c *experiment.Comparison) string {
	if c.Again {
		return "A/A " + c.Baseline
	}
	return c.Variant + " / " + c.Baseline
}

// A forestRow is one comparison of a forest plot.
type forestRow struct {
	comparison  *experiment.Comparison
	top         float64
	index       int
	left, right float64
	phone       bool
}

func (r *forestRow) draw(svg *svg, s *experiment.Study, x axis, width float64) {
	c := r.comparison
	class := forestClass(c)
	low, high := ends(c)
	words := times(c.Ratio) + " " + forestVerdict(s, c)
	middle := r.top + forestStep/2
	switch {
	case r.phone:
		svg.text(r.left, r.top+12, "name", "start", forestName(c)+": "+words)
		middle += 16
	default:
		svg.text(8, middle+4, "name", "start", cut(forestName(c), r.left))
		svg.text(r.right+12, middle+4, "end "+class, "start", words)
	}
	svg.line(x.at(low), middle, x.at(high), middle, "interval "+class)
	if c.Low != nil {
		svg.line(x.at(low), middle-4, x.at(low), middle+4, "interval "+class)
		svg.line(x.at(high), middle-4, x.at(high), middle+4, "interval "+class)
	}
	at := x.at(c.Ratio)
	svg.leaf("rect", "x", px(at-4), "y", px(middle-4), "width", "8", "height", "8", "class", "square "+class)
	text := fmt.Sprintf("%s against %s: %s (%s), %s · %s", c.Variant, c.Baseline, times(c.Ratio), comparisonSpan(c), verdictWords(s, c), plural(int64(c.Pairs), "pair"))
	if c.P != nil {
		text += " · p " + pvalue(c.P) + " of " + integer(int64(c.Family)) + " · could have seen " + effect(c.MinimumEffect)
	}
	svg.hit(0, r.top, width, forestStep, r.index, text)
}

func forestClass(c *experiment.Comparison) string {
	switch {
	case c.Again && c.Verdict != experiment.VerdictNoneSeen && c.Verdict != experiment.NoVerdict:
		return "worse"
	case c.Verdict == experiment.VerdictBetter:
		return "better"
	case c.Verdict == experiment.VerdictWorse:
		return "worse"
	}
	return "none"
}

// forestVerdict is the verdict as it fits beside a row.
func forestVerdict(s *experiment.Study, c *experiment.Comparison) string {
	switch c.Verdict {
	case experiment.NoVerdict:
		return "no verdict"
	case experiment.VerdictNoneSeen:
		return "none seen"
	}
	return verdictWords(s, c)
}
