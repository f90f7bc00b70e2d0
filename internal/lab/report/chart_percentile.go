package report

import (
	"fmt"
	"html/template"
	"math"

	"spillway/internal/histogram"
)

// A curve is a histogram to be drawn over its percentiles.
type curve struct {
	name, class string
	h           *histogram.Histogram
}

// rampClasses is the number of shades in which the steps of one run are drawn.
const rampClasses = 8

// curves chooses what the percentile chart shows. One step: its response and service time. Several steps: the response
// time of up to rampClasses of them. Several runs: the response time of each at the highest load that all have.
func curves(runs []run) (all []curve, title string) {
	if len(runs) > 1 {
		return compareCurves(runs)
	}
	steps := runs[0].steps
	if len(steps) == 1 {
		all = []curve{{"response", "h0", steps[0].response}, {"service", "h1", steps[0].service}}
		return all, "response: from the intended start; service: from the moment of sending"
	}
	n := min(len(steps), rampClasses)
	for i := range n {
		s := &steps[i*(len(steps)-1)/max(1, n-1)]
		all = append(all, curve{s.tag(), fmt.Sprintf("r%d", i*(rampClasses-1)/max(1, n-1)), s.response})
	}
	return all, "response time of each step"
}

func compareCurves(runs []run) (all []curve, title string) {
	chosen := commonLoad(runs)
	for i := range runs {
		if len(runs[i].steps) == 0 {
			continue
		}
		s := &runs[i].steps[len(runs[i].steps)-1]
		name := short(runs[i].label) + " " + s.tag()
		title = "response time of the last step of each run: they have no load level in common"
		if chosen != "" {
			s, name = runs[i].withLoad(chosen), short(runs[i].label)
			title = "response time at " + chosen + ", the highest load that all runs have"
		}
		all = append(all, curve{name, hue(i), s.response})
	}
	return all, title
}

// commonLoad is the highest load level that every run has; "" when there is none.
func commonLoad(runs []run) string {
	best, level := "", -1.0
	for i := range runs[0].steps {
		s := &runs[0].steps[i]
		common := true
		for k := range runs {
			common = common && runs[k].withLoad(s.load()) != nil
		}
		if common && s.level() > level {
			best, level = s.load(), s.level()
		}
	}
	return best
}

func (r *run) withLoad(load string) *step {
	for i := range r.steps {
		if r.steps[i].load() == load {
			return &r.steps[i]
		}
	}
	return nil
}

// percentileTicks are the quantiles written on the axis.
func percentileTicks() []float64 {
	return []float64{0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999}
}

func percentileChart(all []curve, slo []mark, size sizing) template.HTML {
	p := plot{
		description: "Response time by percentile", width: size.width, height: size.height,
		yTitle: "latency", xTitle: "percentile of requests", labelEnds: true,
	}
	left, right, top, bottom := inner(p.width, p.height, true, true)
	furthest := 1.0
	for _, c := range all {
		line := series{name: c.name, class: c.class}
		for _, pt := range c.h.Curve() {
			if pt.Value > 0 {
				line.points = append(line.points, point{x: rest(pt.Quantile), y: pt.Value.Seconds()})
				furthest = max(furthest, rest(pt.Quantile))
			}
		}
		if len(line.points) > 0 {
			p.series = append(p.series, line)
		}
	}
	p.x = axis{scale: scale{min: 0, max: furthest, from: left, to: right}, write: writePercentile}
	for _, q := range percentileTicks() {
		if rest(q) <= furthest+1e-9 {
			p.x.ticks = append(p.x.ticks, rest(q))
		}
	}
	p.y = latencyAxis(p.series, slo, bottom, top)
	p.levels = slo
	p.hits = percentileHits(all, furthest)
	return p.draw()
}

// writePercentile writes a place on the axis as its percentage, "99.9 %".
func writePercentile(place float64) string {
	decimals := max(0, int(math.Round(place))-2)
	return fmt.Sprintf("%.*f %%", decimals, 100*(1-math.Pow(10, -place)))
}

// percentileHits tell the latencies at a percentile; there are ten to each nine.
func percentileHits(all []curve, furthest float64) []hit {
	var hits []hit
	const width = 0.1
	for place := 0.0; place < furthest; place += width {
		middle := place + width/2
		q := 1 - math.Pow(10, -middle)
		text := fmt.Sprintf("%.*f %%", max(1, int(middle)), q*100)
		for _, c := range all {
			if c.h.Carries(q) {
				text += fmt.Sprintf(" · %s %s", c.name, duration(c.h.Quantile(q)))
			}
		}
		hits = append(hits, hit{place, min(place+width, furthest), text})
	}
	return hits
}
