package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A bin is one or several seconds of a step.
type bin struct {
	start, length float64 // seconds; start counts from the start of the run
	step          *step
	result.Counters
	inFlight, connections int64 // highest value
	cpu                   float64
	response              histogram.Censored
}

// binsMax is the highest number of bins in a timeline.
const binsMax = 360

// A timeline is the seconds of several runs in bins of one width.
type timeline struct {
	runs  []run
	bins  [][]bin // by run
	width float64 // seconds in a bin
	end   float64 // of the last bin, in seconds
}

// newTimeline groups the seconds of the runs into at most columns bins. Histograms within a bin are added, so a bin's p99
// is the p99 of all its requests.
func newTimeline(runs []run, columns int) (*timeline, error) {
	t := &timeline{runs: runs}
	for i := range runs {
		for k := range runs[i].steps {
			s := &runs[i].steps[k]
			if n := len(s.Slices); n > 0 {
				t.end = max(t.end, s.Start+float64(s.Slices[n-1].Second)+s.Slices[n-1].Length)
			}
		}
	}
	for i := range runs {
		if runs[i].usage != nil {
			t.end = max(t.end, runs[i].usage.To)
		}
	}
	t.width = binWidth(t.end, columns)
	for i := range runs {
		var bins []bin
		for k := range runs[i].steps {
			more, err := binsOf(&runs[i].steps[k], t.width)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", runs[i].label, err)
			}
			bins = append(bins, more...)
		}
		t.bins = append(t.bins, bins)
	}
	return t, nil
}

// binWidth is the smallest round number of seconds that needs at most columns bins.
func binWidth(end float64, columns int) float64 {
	for _, width := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600} {
		if end/width <= float64(columns) {
			return width
		}
	}
	return math.Ceil(end / float64(columns))
}

func binsOf(s *step, width float64) ([]bin, error) {
	var bins []bin
	group := -1
	for sec, err := range s.seconds() {
		if err != nil {
			return nil, err
		}
		if g := sec.Second / int(width); g != group {
			group = g
			bins = append(bins, bin{start: sec.start, step: s, response: exact(histogram.NewSlice())})
		}
		bins[len(bins)-1].add(sec)
	}
	return bins, nil
}

func (b *bin) add(sec *second) {
	b.length += sec.Length
	b.Add(&sec.Counters)
	b.inFlight, b.connections = max(b.inFlight, sec.InFlight), max(b.connections, sec.Connections)
	b.cpu += sec.CPUUser + sec.CPUSystem
	b.response.Known.Merge(sec.response.Known)
	b.response.Beyond.Merge(sec.response.Beyond)
}

// perSecond is n per second of the bin.
func (b *bin) perSecond(n int64) float64 {
	if b.length == 0 {
		return 0
	}
	return float64(n) / b.length
}

// A point is a value of a line. NaN is a gap.
type point struct {
	value   float64
	atLeast bool // the value is a lower bound
}

// latency is a percentile in seconds, NaN if the bin has too few samples for it.
func (b *bin) latency(q float64) point {
	if !b.response.Carries(q) {
		return point{value: math.NaN()}
	}
	d, atLeast := b.response.Quantile(q)
	return point{d.Seconds(), atLeast}
}

// slowest is the longest response in seconds, NaN without a request.
func (b *bin) slowest() point {
	if b.response.Count() == 0 {
		return point{value: math.NaN()}
	}
	d, atLeast := b.response.Max()
	return point{d.Seconds(), atLeast}
}

// A binLine is a line with one value per bin.
type binLine struct {
	name, color, style string
	value              func(*bin) point
}

// table has lines over the bins of run i, with a gap between steps.
func (t *timeline) table(i int, lines ...binLine) table {
	all := table{Series: make([]line, len(lines))}
	for n, l := range lines {
		all.Series[n] = line{Name: l.name, Color: l.color, Style: l.style}
	}
	for k := range t.bins[i] {
		b := &t.bins[i][k]
		if k > 0 && t.bins[i][k-1].step != b.step {
			all.add(b.start, func(int) point { return point{value: math.NaN()} })
		}
		all.add(b.start+b.length/2, func(n int) point { return lines[n].value(b) })
	}
	all.Series = slices.DeleteFunc(all.Series, func(l line) bool { return math.IsNaN(l.Y.highest()) })
	return all
}

// add appends a value to each line.
func (t *table) add(x float64, value func(series int) point) {
	t.X = append(t.X, x)
	for n := range t.Series {
		t.Series[n].add(x, value(n))
	}
}

// chart shows the lines alone for a single run, or the lines each for every run, with the name and color of the run.
func (t *timeline) chart(title, unit string, height int, alone, each []binLine) chart {
	c := chart{Title: title, Height: height, X: t.axis(), Y: axis{Title: title, Unit: unit}}
	if len(t.runs) == 1 {
		c.Tables = []table{t.table(0, alone...)}
		return c
	}
	for i := range t.runs {
		lines := slices.Clone(each)
		for n := range lines {
			lines[n].name, lines[n].color = strings.TrimSpace(t.runs[i].label+" "+lines[n].name), hue(i)
		}
		c.Tables = append(c.Tables, t.table(i, lines...))
	}
	return c
}

func (t *timeline) axis() axis { return axis{Unit: unitTime, Max: t.end} }

// timelineCharts are charts over time: rate, latency, errors if there are any, requests in flight, and what was watched.
func timelineCharts(runs []run, limits []mark) ([]chart, error) {
	t, err := newTimeline(runs, binsMax)
	if err != nil || t.end == 0 {
		return nil, err
	}
	charts := append(t.loadCharts(limits), t.watchCharts()...)
	for i := range charts {
		charts[i].Starts = t.starts(i == 0)
		if len(runs) == 1 {
			charts[i].Spans = searchSpans(&runs[0], i == 0)
		}
	}
	return charts, nil
}

// loadCharts are rate, latency, errors and requests in flight. There are none without load.
func (t *timeline) loadCharts(limits []mark) []chart {
	if !t.loaded() {
		return nil
	}
	due := func(b *bin) point { return point{value: b.perSecond(b.Due)} }
	answered := func(b *bin) point { return point{value: b.perSecond(b.Completed)} }
	failed := func(b *bin) point { return point{value: b.perSecond(b.Errors.Total())} }
	p50, p99 := func(b *bin) point { return b.latency(0.5) }, func(b *bin) point { return b.latency(0.99) }
	open := func(b *bin) point { return point{value: float64(b.connections)} }
	inFlight := func(b *bin) point { return point{value: float64(b.inFlight)} }

	latency := t.chart("response time", unitSeconds, latencyHeight,
		[]binLine{{"max", "qmax", styleThin, (*bin).slowest}, {"p99", "q99", "", p99}, {"p50", "q50", "", p50}},
		[]binLine{{"max", "", styleThin, (*bin).slowest}, {"p99", "", "", p99}})
	latency.Y.Log, latency.Limits = true, limits
	charts := []chart{
		t.chart("requests/s", unitNumber, rateHeight,
			[]binLine{{"due", "ideal", styleDashed, due}, {"answered", "h0", "", answered}}, []binLine{{value: answered}}),
		latency,
	}
	if t.errors() {
		charts = append(charts, t.chart("errors/s", unitNumber, smallHeight, []binLine{{"errors", "bad", styleBars, failed}},
			[]binLine{{value: failed}}))
	}
	flight := "in flight"
	if len(t.runs) == 1 {
		flight = "requests in flight, connections open"
	}
	return append(charts, t.chart(flight, unitNumber, smallHeight,
		[]binLine{{"open", "ideal", styleDashed, open}, {"in flight", "h0", "", inFlight}}, []binLine{{value: inFlight}}))
}

// loaded reports whether there is a second of load.
func (t *timeline) loaded() bool {
	return slices.ContainsFunc(t.bins, func(bins []bin) bool { return len(bins) > 0 })
}

// starts marks where the steps of the first run begin. A single step is not marked.
func (t *timeline) starts(named bool) []mark {
	steps := t.runs[0].steps
	if len(steps) < 2 {
		return nil
	}
	var marks []mark
	for i := range steps {
		m := mark{At: steps[i].Start}
		if named {
			m.Label = steps[i].load()
		}
		marks = append(marks, m)
	}
	return marks
}

// errors reports whether any second had an error.
func (t *timeline) errors() bool {
	return slices.ContainsFunc(t.bins, func(bins []bin) bool {
		return slices.ContainsFunc(bins, func(b bin) bool { return b.Errors.Total() > 0 })
	})
}
