package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// A sizing is one of the two sizes in which each chart is drawn: for a screen or paper, and for a phone.
type sizing struct {
	width, height float64
	ticks         int // on the x axis, at most
	columns       int // of a timeline, at most
}

var (
	wide   = sizing{width: 1080, height: 340, ticks: 10, columns: 360}
	half   = sizing{width: 530, height: 320, ticks: 6}
	narrow = sizing{width: 360, height: 280, ticks: 4, columns: 110}
)

// sweep are the steps of a run in order of their load, when there is more than one load level of one kind.
func (r *run) sweep(loop string) []*step {
	var steps []*step
	for i := range r.steps {
		if r.steps[i].Loop == loop && r.steps[i].level() > 0 {
			steps = append(steps, &r.steps[i])
		}
	}
	slices.SortStableFunc(steps, func(a, b *step) int { return int(math.Copysign(1, a.level()-b.level())) })
	return steps
}

// levels is the lowest and highest load level of all runs, and how many different ones there are.
func levels(runs []run, loop string) (lowest, highest float64, n int) {
	seen := make(map[float64]bool)
	lowest = math.Inf(1)
	for i := range runs {
		for _, s := range runs[i].sweep(loop) {
			seen[s.level()] = true
			lowest, highest = min(lowest, s.level()), max(highest, s.level())
		}
	}
	return lowest, highest, len(seen)
}

// loadAxis is the x axis of the charts over the load level.
func loadAxis(lowest, highest, left, right float64, ticks int) axis {
	a := axis{write: number}
	if lowest*20 < highest {
		a.scale, a.ticks = logScale(lowest, highest, left, right, ticks)
		return a
	}
	a.scale, a.ticks = linearScale(highest, left, right, ticks)
	return a
}

func loadTitle(loop string) string {
	if loop == result.LoopOpen {
		return "offered rate, requests/s"
	}
	return "connections"
}

// latencyOverLoad draws response time percentiles over the load level.
func latencyOverLoad(runs []run, loop string, size sizing) template.HTML {
	p := plot{
		description: "Response time over " + loadTitle(loop), width: size.width, height: size.height,
		yTitle: "response time", xTitle: loadTitle(loop), labelEnds: true,
	}
	left, right, top, bottom := inner(p.width, p.height, true, true)
	lowest, highest, _ := levels(runs, loop)
	p.x = loadAxis(lowest, highest, left, right, size.ticks)
	for i := range runs {
		p.series = append(p.series, percentileSeries(&runs[i], i, len(runs), loop)...)
	}
	slo := sloLevels(runs)
	p.y = latencyAxis(p.series, slo, bottom, top)
	p.levels = slo
	p.hits = loadHits(runs, loop, p.x)
	return p.draw()
}

// A pick is a percentile and how it is drawn.
type pick struct {
	name, class string
	value       func(Figures) *float64
}

func picks(several bool) []pick {
	p50 := pick{"p50", "q50", func(f Figures) *float64 { return f.P50 }}
	p99 := pick{"p99", "q99", func(f Figures) *float64 { return f.P99 }}
	if several {
		return []pick{p50, p99}
	}
	return []pick{
		p50,
		{"p90", "q90", func(f Figures) *float64 { return f.P90 }},
		p99,
		{"max", "qmax", func(f Figures) *float64 { return f.Max }},
	}
}

func percentileSeries(r *run, i, n int, loop string) []series {
	var all []series
	for _, pick := range picks(n > 1) {
		line := series{name: pick.name, class: pick.class, dots: true}
		if n > 1 {
			line.name, line.class = pick.name, hue(i)+" "+pick.class
		}
		found := false
		for _, s := range r.sweep(loop) {
			pt := point{x: s.level(), y: math.NaN(), hollow: !s.valid()}
			if v := pick.value(figuresOf(s.response)); v != nil {
				pt.y, found = *v, true
			}
			line.points = append(line.points, pt)
		}
		if found {
			all = append(all, line)
		}
	}
	return all
}

// hue is the colour class of run i.
func hue(i int) string { return fmt.Sprintf("h%d", i%6) }

// short cuts a label to what fits beside a chart.
func short(label string) string {
	runes := []rune(label)
	if len(runes) <= 9 {
		return label
	}
	return string(runes[:8]) + "…"
}

// sloLevels are the latency limits of the runs' criteria, each once.
func sloLevels(runs []run) []mark {
	var marks []mark
	for i := range runs {
		for k := range runs[i].steps {
			for _, c := range runs[i].steps[k].Total.SLO {
				m := mark{c.Limit, c.Text}
				if strings.HasPrefix(c.Metric, "response_") && c.Limit > 0 && !slices.Contains(marks, m) {
					marks = append(marks, m)
				}
			}
		}
	}
	return marks
}

// latencyAxis is a logarithmic axis that holds all the points and marks.
func latencyAxis(lines []series, marks []mark, from, to float64) axis {
	lowest, highest := math.Inf(1), math.Inf(-1)
	hold := func(v float64) {
		if v > 0 {
			lowest, highest = min(lowest, v), max(highest, v)
		}
	}
	for _, line := range lines {
		for _, p := range line.points {
			hold(p.y)
		}
	}
	for _, m := range marks {
		hold(m.at)
	}
	if math.IsInf(lowest, 0) {
		lowest, highest = 1e-3, 1
	}
	a := axis{write: seconds}
	a.scale, a.ticks = logScale(lowest, highest, from, to, 9)
	return a
}

// loadHits tell about each load level; each reaches halfway to its neighbours.
func loadHits(runs []run, loop string, x axis) []hit {
	texts := make(map[float64][]string)
	var at []float64
	for i := range runs {
		for _, s := range runs[i].sweep(loop) {
			if _, seen := texts[s.level()]; !seen {
				at = append(at, s.level())
			}
			texts[s.level()] = append(texts[s.level()], runs[i].prefix(len(runs))+s.tip())
		}
	}
	slices.Sort(at)
	var hits []hit
	for i, v := range at {
		h := hit{x0: x.min, x1: x.max, text: strings.Join(texts[v], "\n")}
		if i > 0 {
			h.x0 = x.middle(at[i-1], v)
		}
		if i+1 < len(at) {
			h.x1 = x.middle(v, at[i+1])
		}
		hits = append(hits, h)
	}
	return hits
}

// middle is the value whose pixel lies halfway between those of a and b.
func (s scale) middle(a, b float64) float64 {
	if s.logarithms {
		return math.Sqrt(a * b)
	}
	return (a + b) / 2
}

// prefix names the run where there are several.
func (r *run) prefix(n int) string {
	if n == 1 {
		return ""
	}
	return r.label + ": "
}

// tip is what a hit tells about a step.
func (s *step) tip() string {
	f := figuresOf(s.response)
	text := fmt.Sprintf("%s: %s answered · p50 %s · p90 %s · p99 %s · max %s · errors %s",
		s.load(), rate(s.Total.Rate()), orDash(f.P50), orDash(f.P90), orDash(f.P99), orDash(f.Max), share(s.Total.ErrorShare()))
	if !s.valid() {
		text += " · " + s.validity()
	}
	return text
}

// goodOverLoad draws the rate of good answers over the load level; in an open loop with the line where all are good.
func goodOverLoad(runs []run, loop string, size sizing) template.HTML {
	p := plot{
		description: "Good answers a second over " + loadTitle(loop), width: size.width, height: size.height,
		yTitle: "good answers/s", xTitle: loadTitle(loop), labelEnds: true,
	}
	left, right, top, bottom := inner(p.width, p.height, true, true)
	lowest, highest, _ := levels(runs, loop)
	p.x = loadAxis(lowest, highest, left, right, size.ticks)
	most := 0.0
	if loop == result.LoopOpen {
		most = highest
		p.series = append(p.series, series{name: "offered", class: "ideal", points: []point{{x: lowest, y: lowest}, {x: highest, y: highest}}})
	}
	for i := range runs {
		line := series{name: "good", class: "h0", dots: true}
		if len(runs) > 1 {
			line.name, line.class = short(runs[i].label), hue(i)
		}
		for _, s := range runs[i].sweep(loop) {
			line.points = append(line.points, point{x: s.level(), y: s.goodRate(), hollow: !s.valid()})
			most = max(most, s.goodRate())
		}
		p.series = append(p.series, line)
	}
	p.y = axis{write: number}
	if p.x.logarithms && loop == result.LoopOpen { // the same on both axes, so that "all answered" is a straight line
		p.y.scale, p.y.ticks = logScale(lowestRate(p.series), most, bottom, top, 9)
	} else {
		p.y.scale, p.y.ticks = linearScale(most, bottom, top, 6)
	}
	p.hits = loadHits(runs, loop, p.x)
	return p.draw()
}

// lowestRate is the lowest value above 0 of the series.
func lowestRate(lines []series) float64 {
	lowest := math.Inf(1)
	for _, line := range lines {
		for _, p := range line.points {
			if p.y > 0 {
				lowest = min(lowest, p.y)
			}
		}
	}
	return lowest
}
