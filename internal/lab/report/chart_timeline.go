package report

import (
	"html/template"
	"math"
)

// Heights of the panels of a timeline in pixels.
const (
	rateHeight    = 150
	latencyHeight = 230
	smallHeight   = 120
)

// timelineCharts draws the panels of a timeline, one below the other on the same time axis: rate, latency, errors (when
// there are any), requests in flight, and what was watched.
func timelineCharts(runs []run, slo []mark, size sizing) ([]template.HTML, error) {
	t, err := newTimeline(runs, size.columns)
	if err != nil {
		return nil, err
	}
	if t.end == 0 {
		return nil, nil
	}
	hits := t.hits()
	panels := t.loadPanels(slo, size)
	panels = append(panels, t.watchPanels(size)...)
	var drawn []template.HTML
	for i := range panels {
		p := &panels[i]
		p.hits = hits
		p.starts = t.starts()
		if i > 0 || len(p.starts) > size.ticks*2 { // the first panel names the steps, where there is room
			p.starts = unnamed(p.starts)
		}
		drawn = append(drawn, p.draw())
	}
	return drawn, nil
}

// loadPanels are rate, latency, errors and requests in flight; none without steps.
func (t *timeline) loadPanels(slo []mark, size sizing) []plot {
	if !t.loaded() {
		return nil
	}
	panels := []plot{t.ratePanel(size), t.latencyPanel(slo, size)}
	if t.errors() {
		panels = append(panels, t.errorPanel(size))
	}
	return append(panels, t.flightPanel(size))
}

func unnamed(marks []mark) []mark {
	var bare []mark
	for _, m := range marks {
		bare = append(bare, mark{at: m.at})
	}
	return bare
}

// panel is an empty plot over the time axis, and the pixels of its y axis.
func (t *timeline) panel(title string, height float64, size sizing) (p plot, bottom, top float64) {
	p = plot{description: title + " over time", width: size.width, height: height, yTitle: title, labelEnds: true}
	left, right, top, bottom := inner(p.width, p.height, true, false)
	p.x = axis{scale: scale{min: 0, max: t.end, from: left, to: right}, ticks: timeTicks(t.end, size.ticks), write: secondsLabel}
	return p, bottom, top
}

// timeTicks are round times from 0 to end.
func timeTicks(end float64, limit int) []float64 {
	step := niceTime(end / float64(limit))
	var at []float64
	for i := 0; float64(i)*step <= end*(1+1e-9); i++ {
		at = append(at, float64(i)*step)
	}
	return at
}

// niceTime is the least round length of time that is at least v seconds.
func niceTime(v float64) float64 {
	for _, step := range []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400} {
		if step >= v*(1-1e-9) {
			return step
		}
	}
	return math.Ceil(v/86400) * 86400
}

func (t *timeline) ratePanel(size sizing) plot {
	p, bottom, top := t.panel("requests/s", rateHeight, size)
	answered := func(b *bin) float64 { return b.perSecond(b.Done) }
	if len(t.runs) == 1 {
		due := func(b *bin) float64 { return b.perSecond(b.Due) }
		p.series = append(p.series, t.line(0, "due", "ideal", due), t.line(0, "answered", "h0", answered))
	} else {
		for i := range t.runs {
			p.series = append(p.series, t.line(i, short(t.runs[i].label), hue(i), answered))
		}
	}
	p.y = countAxis(p.series, bottom, top, 4)
	return p
}

func (t *timeline) latencyPanel(slo []mark, size sizing) plot {
	p, bottom, top := t.panel("response time", latencyHeight, size)
	p99 := func(b *bin) float64 { return b.latency(0.99) }
	if len(t.runs) == 1 {
		p.series = append(
			p.series,
			t.line(0, "max", "qmax", (*bin).slowest),
			t.line(0, "p99", "q99", p99),
			t.line(0, "p50", "q50", func(b *bin) float64 { return b.latency(0.5) }),
		)
	} else {
		for i := range t.runs {
			p.series = append(p.series, t.line(i, "max", hue(i)+" thin", (*bin).slowest), t.line(i, "p99", hue(i), p99))
		}
	}
	kept := p.series[:0]
	for _, line := range p.series {
		if !empty(&line) {
			kept = append(kept, line)
		}
	}
	p.series = kept
	p.y = latencyAxis(p.series, slo, bottom, top)
	p.levels = slo
	return p
}

// empty says whether a series has no point at all.
func empty(s *series) bool {
	for _, p := range s.points {
		if !math.IsNaN(p.y) {
			return false
		}
	}
	return true
}

func (t *timeline) errorPanel(size sizing) plot {
	p, bottom, top := t.panel("errors/s", smallHeight, size)
	failed := func(b *bin) float64 { return b.perSecond(b.Errors.Total()) }
	var lines []series
	for i := range t.runs {
		lines = append(lines, t.line(i, short(t.runs[i].label), hue(i), failed))
	}
	p.y = countAxis(lines, bottom, top, 3)
	if len(t.runs) > 1 {
		p.series = lines
		return p
	}
	for k := range t.bins[0] {
		b := &t.bins[0][k]
		if b.Errors.Total() > 0 {
			p.bars = append(p.bars, bar{b.start, b.length, failed(b), "bad"})
		}
	}
	return p
}

func (t *timeline) flightPanel(size sizing) plot {
	p, bottom, top := t.panel("in flight", smallHeight, size)
	for i := range t.runs {
		name, class := "in flight", "h0"
		if len(t.runs) > 1 {
			name, class = short(t.runs[i].label), hue(i)
		} else {
			p.series = append(p.series, t.line(i, "open", "ideal", func(b *bin) float64 { return float64(b.connections) }))
		}
		p.series = append(p.series, t.line(i, name, class, func(b *bin) float64 { return float64(b.inFlight) }))
	}
	if len(t.runs) == 1 {
		p.yTitle = "requests in flight, connections open"
	}
	p.y = countAxis(p.series, bottom, top, 3)
	return p
}

// countAxis is a linear axis from 0 that holds all the points.
func countAxis(lines []series, from, to float64, ticks int) axis {
	a := axis{write: number}
	a.scale, a.ticks = linearScale(highestOf(lines), from, to, ticks)
	return a
}
