package report

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// Heights of charts in pixels.
const (
	chartHeight   = 320
	rateHeight    = 150
	latencyHeight = 230
	smallHeight   = 120
)

// loadPanels are the panels of a load report.
func loadPanels(r *run) ([]panel, error) {
	var panels []panel
	loops := []string{result.LoopOpen, result.LoopClosed}
	if r.search != nil {
		panels, loops = searchPanels(r), nil
	}
	for _, loop := range loops {
		if levels := r.loadLevels(loop); len(levels) > 1 {
			panels = append(panels, latencyByLevel(r, loop, levels), goodByLevel(r, loop, levels))
		}
	}
	limits := r.latencyLimits()
	if curves, caption := selectCurves(r); len(curves) > 0 {
		if slices.ContainsFunc(r.steps, (*step).saturates) && r.search == nil {
			caption = closedLoopNote + "; " + caption
		}
		panels = append(panels, panel{Title: "Latency by percentile", Caption: caption, Charts: []chart{percentileChart(curves, limits)}})
	}
	charts, err := timelineCharts(r, limits)
	if err != nil {
		return nil, err
	}
	if len(charts) > 0 {
		caption := "a point per second, or per several in a long run; p99 where a point has 1,000 requests; triangle: at least"
		if r.usage != nil {
			caption = "a point per second, or per several in a long run"
		}
		panels = append(panels, panel{Title: "Timeline", Caption: caption, Charts: charts})
	}
	return panels, nil
}

// sweep returns the steps of a loop that have a load level, in ascending order.
func (r *run) sweep(loop string) []*step {
	steps := slices.DeleteFunc(slices.Clone(r.steps), func(s *step) bool { return s.Loop != loop || !(s.level() > 0) })
	slices.SortStableFunc(steps, func(a, b *step) int { return cmp.Compare(a.level(), b.level()) })
	return steps
}

// loadLevels returns the distinct load levels of a loop in ascending order.
func (r *run) loadLevels(loop string) []float64 {
	var levels []float64
	for _, s := range r.sweep(loop) {
		levels = append(levels, s.level())
	}
	return slices.Compact(levels)
}

// loadAxis is the x axis of charts over the load level.
func loadAxis(loop string, levels []float64) axis {
	x := axis{Title: "connections", Unit: unitNumber, Log: isWide(levels[0], levels[len(levels)-1])}
	if loop == result.LoopOpen {
		x.Title = "offered rate, requests/s"
	}
	return x
}

// isWide reports whether a range needs a logarithmic axis.
func isWide(lowest, highest float64) bool { return lowest*20 < highest }

// levelTable has lines over the load levels of one run.
func levelTable(r *run, loop string, figures ...levelFigure) table {
	t := table{Series: []line{}}
	steps := r.sweep(loop)
	for _, s := range steps {
		t.X = append(t.X, s.level())
	}
	for _, f := range figures {
		l := line{Name: f.name, Color: f.color, Style: f.style, Dots: true}
		for _, s := range steps {
			l.add(s.level(), f.value(s))
			l.Hollow = append(l.Hollow, !s.valid())
		}
		if !math.IsNaN(l.Y.highest()) {
			t.Series = append(t.Series, l)
		}
	}
	return t
}

// A levelFigure is a line with one value per step.
type levelFigure struct {
	name, color, style string
	value              func(*step) point
}

// latencyFigure reads one figure of a step's response time.
func latencyFigure(name, color, style, figure string) levelFigure {
	return levelFigure{name, color, style, func(s *step) point { return s.figures.point(figure) }}
}

func latencyByLevel(r *run, loop string, levels []float64) panel {
	x := loadAxis(loop, levels)
	c := chart{
		Title: "response time over " + x.Title, Height: chartHeight, X: x, Y: axis{Title: "response time", Unit: unitSeconds, Log: true},
		Limits: r.latencyLimits(),
	}
	c.Tables = []table{levelTable(r, loop,
		latencyFigure("p50", "q50", "", figureP50), latencyFigure("p90", "q90", "", figureP90),
		latencyFigure("p99", "q99", "", figureP99), latencyFigure("max", "qmax", styleThin, figureMax))}
	caption := "hollow: not a valid measurement; triangle: at least, among requests without an answer"
	if loop == result.LoopClosed && slices.ContainsFunc(r.steps, (*step).saturates) {
		caption = closedLoopNote + "; " + caption
	}
	return panel{Title: "Latency against " + loadNoun(loop), Caption: caption, Half: true, Charts: []chart{c}}
}

// goodByLevel shows the rate of good answers, and in an open loop the offered rate.
func goodByLevel(r *run, loop string, levels []float64) panel {
	x := loadAxis(loop, levels)
	c := chart{
		Title: "good answers per second over " + x.Title, Height: chartHeight, X: x,
		Y: axis{Title: "good answers/s", Unit: unitNumber, Log: x.Log && loop == result.LoopOpen}, // equal axes keep "offered" straight
	}
	if loop == result.LoopOpen {
		c.Tables = []table{{X: levels, Series: []line{{Name: "offered", Color: "ideal", Style: styleDashed, Y: levels}}}}
	}
	good := levelFigure{name: "good", color: hue(0), value: func(s *step) point { return point{value: s.Total.Rate()} }}
	c.Tables = append(c.Tables, levelTable(r, loop, good))
	return panel{Title: "Good answers against " + loadNoun(loop), Caption: "no bad status, no failed check", Half: true, Charts: []chart{c}}
}

func loadNoun(loop string) string {
	if loop == result.LoopOpen {
		return "offered rate"
	}
	return "connections"
}

// latencyLimits are the distinct latency limits of the steps' SLOs.
func (r *run) latencyLimits() []mark {
	var limits []mark
	for _, s := range r.steps {
		for _, c := range s.Total.SLO {
			m := mark{c.Limit, c.Text}
			if strings.HasPrefix(c.Metric, "response_") && c.Limit > 0 && !slices.Contains(limits, m) {
				limits = append(limits, m)
			}
		}
	}
	return limits
}

// A curve is a histogram to show by percentile.
type curve struct {
	name, color string
	times       histogram.Censored
}

// curvesMax is how many steps of one run the percentile chart shows at most.
const curvesMax = 8

// selectCurves selects the curves of the percentile chart. A single step shows response and service time. Several steps
// show the response time of up to curvesMax of them.
func selectCurves(r *run) (curves []curve, caption string) {
	steps := r.steps
	if r.search != nil {
		return searchCurves(r)
	}
	if len(steps) == 1 {
		curves = []curve{{"response", "h0", steps[0].response}, {"service", "h1", steps[0].service}}
		return curves, "response: from the intended start; service: from the moment of sending"
	}
	n := min(len(steps), curvesMax)
	for i := range n {
		s := steps[i*(len(steps)-1)/max(1, n-1)]
		curves = append(curves, curve{s.Load(), shade(i, n), s.response})
	}
	return curves, "response time of each step"
}

// percentileStep is the distance between points of the percentile chart. Each nine has 20 points.
const percentileStep = 0.05

// percentileChart shows each curve up to the highest percentile that its sample is large enough for.
func percentileChart(curves []curve, limits []mark) chart {
	c := chart{
		Title: "response time by percentile", Height: chartHeight, Limits: limits,
		X: axis{Title: "percentile of requests", Unit: unitPercentile}, Y: axis{Title: "latency", Unit: unitSeconds, Log: true},
	}
	t := table{Series: make([]line, len(curves))}
	for i := range curves {
		t.Series[i] = line{Name: curves[i].name, Color: curves[i].color}
	}
	for k := 0; ; k++ {
		place := float64(k) * percentileStep
		row, any := make([]point, len(curves)), k == 0
		for i := range curves {
			row[i] = valueAt(curves[i].times, 1-math.Pow(10, -place))
			any = any || !math.IsNaN(row[i].value)
		}
		if !any {
			break
		}
		t.add(place, func(n int) point { return row[n] })
	}
	c.Tables = []table{t}
	return c
}

// valueAt is a quantile in seconds. It is NaN if the sample is too small, or if the value is 0 and has no place on a
// logarithmic axis.
func valueAt(times histogram.Censored, q float64) point {
	if times.Count() == 0 || q > 0 && !times.Carries(q) {
		return point{value: math.NaN()}
	}
	d, atLeast := times.Quantile(q)
	if d <= 0 {
		return point{value: math.NaN()}
	}
	return point{d.Seconds(), atLeast}
}
