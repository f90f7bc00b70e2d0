package report

import (
	"fmt"
	"math"
	"slices"

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

// A timeline is the seconds of a run in bins of one width.
type timeline struct {
	run   *run
	bins  []bin
	width float64 // seconds in a bin
	end   float64 // of the last bin, in seconds
}

// newTimeline groups the seconds of the run into at most columns bins. Histograms within a bin are added, so a bin's p99
// is the p99 of all its requests.
func newTimeline(r *run, columns int) (*timeline, error) {
	t := &timeline{run: r}
	for _, s := range r.steps {
		if n := len(s.Slices); n > 0 {
			t.end = max(t.end, s.Start+float64(s.Slices[n-1].Second)+s.Slices[n-1].Length)
		}
	}
	if r.usage != nil {
		t.end = max(t.end, r.usage.To)
	}
	t.width = binWidth(t.end, columns)
	for _, s := range r.steps {
		bins, err := binsOf(s, t.width)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.label, err)
		}
		t.bins = append(t.bins, bins...)
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

// table has lines over the bins, with a gap between steps.
func (t *timeline) table(lines []binLine) table {
	all := table{Series: make([]line, len(lines))}
	for n, l := range lines {
		all.Series[n] = line{Name: l.name, Color: l.color, Style: l.style}
	}
	for k := range t.bins {
		b := &t.bins[k]
		if k > 0 && t.bins[k-1].step != b.step {
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

func (t *timeline) chart(title, unit string, height int, lines ...binLine) chart {
	return chart{Title: title, Height: height, X: t.axis(), Y: axis{Title: title, Unit: unit}, Tables: []table{t.table(lines)}}
}

func (t *timeline) axis() axis { return axis{Unit: unitTime, Max: t.end} }

// timelineCharts are charts over time: rate, latency, errors if there are any, requests in flight, and what was watched.
func timelineCharts(r *run, limits []mark) ([]chart, error) {
	t, err := newTimeline(r, binsMax)
	if err != nil || t.end == 0 {
		return nil, err
	}
	charts := append(t.loadCharts(limits), t.watchCharts()...)
	for i := range charts {
		charts[i].Starts = t.starts(i == 0)
		charts[i].Spans = searchSpans(r, i == 0)
	}
	return charts, nil
}

// loadCharts are rate, latency, errors and requests in flight. There are none without load.
func (t *timeline) loadCharts(limits []mark) []chart {
	if len(t.bins) == 0 {
		return nil
	}
	due := func(b *bin) point { return point{value: b.perSecond(b.Due)} }
	answered := func(b *bin) point { return point{value: b.perSecond(b.Completed)} }
	failed := func(b *bin) point { return point{value: b.perSecond(b.Errors.Total())} }
	p50, p99 := func(b *bin) point { return valueAt(b.response, 0.5) }, func(b *bin) point { return valueAt(b.response, 0.99) }
	open := func(b *bin) point { return point{value: float64(b.connections)} }
	inFlight := func(b *bin) point { return point{value: float64(b.inFlight)} }

	latency := t.chart("response time", unitSeconds, latencyHeight,
		binLine{"max", "qmax", styleThin, (*bin).slowest}, binLine{"p99", "q99", "", p99}, binLine{"p50", "q50", "", p50})
	latency.Y.Log, latency.Limits = true, limits
	charts := []chart{
		t.chart("requests/s", unitNumber, rateHeight, binLine{"due", "ideal", styleDashed, due}, binLine{"answered", "h0", "", answered}),
		latency,
	}
	if slices.ContainsFunc(t.bins, func(b bin) bool { return b.Errors.Total() > 0 }) {
		charts = append(charts, t.chart("errors/s", unitNumber, smallHeight, binLine{"errors", "bad", styleBars, failed}))
	}
	return append(charts, t.chart("requests in flight, connections open", unitNumber, smallHeight,
		binLine{"open", "ideal", styleDashed, open}, binLine{"in flight", "h0", "", inFlight}))
}

// starts marks where the steps begin. A single step is not marked.
func (t *timeline) starts(named bool) []mark {
	steps := t.run.steps
	if len(steps) < 2 {
		return nil
	}
	var marks []mark
	for _, s := range steps {
		m := mark{At: s.Start}
		if named {
			m.Label = s.Load()
		}
		marks = append(marks, m)
	}
	return marks
}
