package report

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// pathHeight is the height of the chart of the search path in pixels.
const pathHeight = 280

// searchPanels are the panels of a search: its path, and latency against rate, over all rates and near the peak.
func searchPanels(r *run) []panel {
	panels := []panel{searchPath(r)}
	steps := r.openSteps()
	if len(steps) == 0 {
		return panels
	}
	low, high := r.searchRange(steps)
	all := searchLatency(r, steps)
	if len(all.Tables) == 0 {
		return panels
	}
	all.Title = "response time over rate"
	all.X = axis{Title: "offered rate, per second", Unit: unitNumber, Log: isWide(steps[0].OfferedHz, steps[len(steps)-1].OfferedHz)}
	caption := "hollow: not VALID, proves nothing; triangle: at least"
	if len(all.Spans) > 0 {
		caption = "stripe: the peak at 95 %; " + caption
	}
	panels = append(panels, panel{Title: "Latency against rate", Caption: caption, Half: true, Charts: []chart{all}})
	near := slices.DeleteFunc(slices.Clone(steps), func(s searchStep) bool { return s.OfferedHz < low || s.OfferedHz > high })
	if close := searchLatency(r, near); len(near) >= nearLeast && len(near) < len(steps) && len(close.Tables) > 0 {
		close.Title = "response time over rate near the peak"
		close.X = axis{Title: "offered rate, per second", Unit: unitNumber, Min: low, Max: high}
		panels = append(panels, panel{
			Title: "Near the peak", Half: true, Caption: "the same around the interval, on a linear axis",
			Charts: []chart{close},
		})
	} else {
		panels[len(panels)-1].Half = false
	}
	return panels
}

// Range of the chart near the peak.
const (
	nearBelow = 0.8
	nearAbove = 1.25
	nearLeast = 3 // probes
)

// searchRange is the rates near the peak; high is below low without a bound.
func (r *run) searchRange(steps []searchStep) (low, high float64) {
	a := &r.search.Answer
	low, high = cmp.Or(a.Low, a.Infeasible), cmp.Or(a.High, a.Feasible)
	return low * nearBelow, math.Min(high*nearAbove, steps[len(steps)-1].OfferedHz*1.02)
}

// dotLines are the three lines that tell what a probe proves.
func dotLines(name string) (met, missed, neither line) {
	if name != "" {
		name += ", "
	}
	met = line{Name: name + "met", Color: "good", Style: styleDots, Dots: true}
	missed = line{Name: name + "missed", Color: "bad", Style: styleDots, Dots: true, Shape: shapeDiamond}
	return met, missed, line{Name: name + "not VALID", Color: "idle", Style: styleDots, Dots: true}
}

// searchPath shows the rate of each probe and the bounds after it.
func searchPath(r *run) panel {
	met, missed, neither := dotLines("")
	closed := line{Name: "closed loop, answered", Color: "h0", Style: styleDots, Dots: true}
	lower := line{Name: "highest met", Color: "good", Style: styleSteps}
	upper := line{Name: "lowest missed", Color: "bad", Style: styleSteps, Band: true}
	dots := []*line{&met, &missed, &neither, &closed}
	var xs, rates numbers
	known := func(rate float64) float64 {
		if rate == 0 {
			return math.NaN()
		}
		return rate
	}
	add := func(x float64, on *line, rate float64, valid bool, after int) {
		xs = append(xs, x)
		for _, l := range dots {
			y := math.NaN()
			if l == on {
				y = known(rate)
			}
			l.Y, l.Hollow = append(l.Y, y), append(l.Hollow, !valid)
		}
		low, high := math.NaN(), math.NaN()
		if n := len(r.search.Bounds); n > 0 {
			low, high = known(r.search.Bounds[min(after, n-1)].Feasible), known(r.search.Bounds[min(after, n-1)].Infeasible)
		}
		lower.Y, upper.Y = append(lower.Y, low), append(upper.Y, high)
	}
	for k, s := range r.steps {
		on, rate := &neither, s.OfferedHz
		switch passes, misses := r.search.Met(k); {
		case s.Loop == result.LoopClosed:
			on, rate = &closed, s.Total.Rate()
			if k < len(r.search.Answer.Path) {
				rate = r.search.Answer.Path[k].Observation.Rate // of a flow, iterations
			}
		case passes:
			on = &met
		case misses:
			on = &missed
		}
		rates = append(rates, rate)
		add(float64(k+1), on, rate, s.valid() && on != &neither, k)
	}
	add(float64(len(r.steps))+0.5, nil, 0, true, len(r.steps)) // the last bounds
	t := table{X: xs}
	for _, l := range []line{lower, upper, met, missed, neither, closed} {
		if !math.IsNaN(l.Y.highest()) {
			l.Band = l.Band && len(t.Series) > 0
			t.Series = append(t.Series, l)
		}
	}
	positive := slices.DeleteFunc(rates, func(v float64) bool { return !(v > 0) })
	c := chart{
		Title: "rate of each probe", Height: pathHeight, X: axis{Title: "probe", Unit: unitCount, Max: xs[len(xs)-1]},
		Y: axis{Title: "rate per second", Unit: unitNumber, Log: len(positive) > 0 &&
			isWide(slices.Min(positive), slices.Max(positive))}, Tables: []table{t},
	}
	return panel{
		Title: "Search path", Caption: "the shaded interval between the bounds closes in; hollow: not VALID, moves no bound",
		Charts: []chart{c},
	}
}

// searchLatency has a dot for each probe: the percentile that the SLO limits, by what it proved, and the median of VALID ones.
func searchLatency(r *run, steps []searchStep) chart {
	c := chart{Height: chartHeight, Y: axis{Title: "response time", Unit: unitSeconds, Log: true}}
	criterion := r.latencyCriterion()
	name := "p99"
	if criterion != nil {
		name, _, _ = strings.Cut(criterion.Text, "<")
		c.Limits = []mark{{criterion.Limit, criterion.Text}}
	}
	met, missed, neither := dotLines(name)
	for _, l := range []*line{&met, &missed, &neither} {
		t := table{}
		for _, s := range steps {
			if mine := l == &met && s.met || l == &missed && s.missed || l == &neither && !s.met && !s.missed; !mine {
				continue
			}
			if p := s.limited(criterion); p.value > 0 {
				x := t.after(s.OfferedHz)
				t.X = append(t.X, x)
				l.add(x, p)
				l.Hollow = append(l.Hollow, l == &neither)
			}
		}
		if len(t.X) > 0 {
			t.Series = []line{*l}
			c.Tables = append(c.Tables, t)
		}
	}
	median := table{Series: []line{{Name: "p50", Color: "q50", Style: styleThin}}}
	for _, s := range steps {
		if p := s.figures.point(figureP50); p.value >= 0 && (s.met || s.missed) && name != "p50" {
			x := median.after(s.OfferedHz)
			median.X = append(median.X, x)
			median.Series[0].add(x, p)
		}
	}
	if len(median.X) > 0 {
		c.Tables = append(c.Tables, median)
	}
	if a := &r.search.Answer; a.Low > 0 && a.High > 0 {
		c.Spans = []span{{From: a.Low, To: a.High, Color: "h4"}}
	}
	return c
}

// after returns x, or a little more if the table has it: probes at one rate are drawn beside each other.
func (t *table) after(x float64) float64 {
	if n := len(t.X); n > 0 && x <= t.X[n-1] {
		return t.X[n-1] * (1 + 1e-5)
	}
	return x
}

// latencyCriterion is the criterion on the response time that binds, or the first one; nil without any.
func (r *run) latencyCriterion() *result.Criterion {
	var first *result.Criterion
	for _, s := range r.steps {
		for i := range s.Total.SLO {
			c := &s.Total.SLO[i]
			if !strings.HasPrefix(c.Metric, "response_") || !(c.Limit > 0) {
				continue
			}
			if c.Text == r.search.Answer.Binding {
				return c
			}
			if first == nil {
				first = c
			}
		}
	}
	return first
}

// limited is the figure that the criterion limits, or p99 without one; NaN if it is not known.
func (s *searchStep) limited(criterion *result.Criterion) point {
	if criterion == nil {
		return s.figures.point(figureP99)
	}
	for _, c := range s.Total.SLO {
		if c.Text == criterion.Text && c.Label == criterion.Label {
			return point{c.Observed, c.AtLeast}
		}
	}
	return point{value: math.NaN()}
}

// searchCurves are the steps that say most about a search: the lowest rate, the highest that met the SLO and the lowest that missed it.
func searchCurves(r *run) (curves []curve, caption string) {
	valid := slices.DeleteFunc(r.openSteps(), func(s searchStep) bool { return !s.valid() })
	if passing := r.search.Passing; len(valid) > 0 && (passing < 0 || valid[0].OfferedHz < r.steps[passing].OfferedHz) {
		curves = append(curves, curve{"lowest rate, " + valid[0].Load(), "h0", valid[0].response})
	}
	if i := r.search.Passing; i >= 0 {
		curves = append(curves, curve{"highest met, " + r.steps[i].Load(), "good", r.steps[i].response})
	}
	if i := r.search.Failing; i >= 0 {
		name, color := "lowest missed, ", "bad"
		if r.failing() != "missed" {
			name, color = "not VALID, ", "idle"
		}
		curves = append(curves, curve{name + r.steps[i].Load(), color, r.steps[i].response})
	}
	return curves, "response time at the rates that the answer rests on"
}

// searchSpans are the steps of a timeline that the answer rests on.
func searchSpans(r *run, named bool) []span {
	if r.search == nil {
		return nil
	}
	var spans []span
	failing, color := "missed ", "bad"
	if r.search.Failing >= 0 && r.failing() != "missed" {
		failing, color = "not VALID ", "idle"
	}
	for _, s := range []struct {
		step         int
		label, color string
	}{{r.search.Passing, "met ", "good"}, {r.search.Failing, failing, color}} {
		if s.step < 0 {
			continue
		}
		step := r.steps[s.step]
		one := span{From: step.Start, To: step.Start + step.Total.Elapsed, Color: s.color}
		if named {
			one.Label = s.label + step.Load()
		}
		spans = append(spans, one)
	}
	return spans
}
