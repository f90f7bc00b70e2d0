package report

import (
	"html/template"
	"math"
	"strconv"
	"strings"

	"spillway/internal/lab/experiment"
)

// levelRate is the rate of a level that gives one, else its number of connections; NaN when it is a template.
func levelRate(l experiment.LevelFacts) float64 {
	text := l.Flags["rate"]
	if text == "" {
		text = l.Flags["connections"]
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(strings.ReplaceAll(text, ",", ""), "/s"), 64)
	if err != nil || v <= 0 {
		return math.NaN()
	}
	return v
}

// levelsRise says whether the levels are at least three different loads of one kind, so that lines over them mean
// something.
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

// linesOverLevels draws a metric of every variant over the load. "" when there is nothing to join.
func linesOverLevels(s *experiment.Study, metric *experiment.Metric, size sizing) template.HTML {
	p := plot{
		description: metric.Title + " over the load", width: size.width, height: size.height,
		yTitle: metric.Title, xTitle: "offered rate, requests/s",
	}
	if s.Manifest.Levels[0].Flags["rate"] == "" {
		p.xTitle = "connections"
	}
	left, right, top, bottom := inner(p.width, p.height, false, true)
	lowest, highest, most := math.Inf(1), 0.0, 0.0
	var ticks []float64
	for _, l := range s.Manifest.Levels {
		ticks = append(ticks, levelRate(l))
		lowest, highest = min(lowest, levelRate(l)), max(highest, levelRate(l))
	}
	p.x = loadAxis(lowest, highest, left, right, size.ticks)
	for _, v := range s.Manifest.Variants {
		line := series{name: v.Name, class: variantHue(s, v.Name), dots: true}
		for i, l := range s.Manifest.Levels {
			pt := point{x: ticks[i], y: math.NaN()}
			if f := s.Figure(metric.Name, v.Name, l.Name); f != nil {
				pt.y, pt.hollow = f.Median, s.Cell(v.Name, l.Name).NotValid() > 0
				most = max(most, f.Median)
			}
			line.points = append(line.points, pt)
		}
		if !v.Again && !empty(&line) {
			p.series = append(p.series, line)
		}
	}
	p.y = axis{write: func(v float64) string { return studyValue(v, metric.Unit) }}
	p.y.scale, p.y.ticks = linearScale(most, bottom, top, 6)
	p.hits = levelHits(s, metric, p.x.scale, ticks)
	if len(p.series) == 0 {
		return ""
	}
	return p.draw()
}

// levelHits tell about each level; each reaches halfway to its neighbours.
func levelHits(s *experiment.Study, metric *experiment.Metric, x scale, at []float64) []hit {
	var hits []hit
	for i, l := range s.Manifest.Levels {
		lines := []string{l.Name}
		for _, v := range s.Manifest.Variants {
			if f := s.Figure(metric.Name, v.Name, l.Name); f != nil {
				lines = append(lines, v.Name+": "+studyRange(f, metric.Unit))
			}
		}
		h := hit{x0: x.min, x1: x.max, text: strings.Join(lines, "\n")}
		if i > 0 {
			h.x0 = x.middle(at[i-1], at[i])
		}
		if i+1 < len(at) {
			h.x1 = x.middle(at[i], at[i+1])
		}
		hits = append(hits, h)
	}
	return hits
}

// variantLegend names the colours of the variants.
func variantLegend(s *experiment.Study) []legend {
	var all []legend
	for _, v := range s.Manifest.Variants {
		if !v.Again {
			all = append(all, legend{v.Name, variantHue(s, v.Name)})
		}
	}
	return all
}
