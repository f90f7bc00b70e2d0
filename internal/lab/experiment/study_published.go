package experiment

import (
	"math"
	"slices"
	"strings"
)

// Tolerances of the check against published figures.
const (
	publishedEqual  = 0.05 // a published ratio within 5 % of 1 shows no direction
	publishedFactor = 2    // ratios agree when they are within this factor of each other
)

// A PublishedCheck compares a published figure with ours. Absolute figures of different machines need not agree, so the ratio of
// a variant to its baseline is checked, there and here.
type PublishedCheck struct {
	Published
	Variant string `json:"variant"`
	// Baseline is the divisor of both ratios: the nearest baseline of the variant that has a published figure too; "" if there
	// is none, and then no ratio is checked.
	Baseline      string   `json:"baseline,omitempty"`
	Measured      *float64 `json:"measured"`       // our median; null if there is none
	TheirRatio    *float64 `json:"their_ratio"`    // their figure over that of their baseline
	OurRatio      *float64 `json:"our_ratio"`      // our median over that of our baseline, of runs that support a claim; null without any
	SameDirection *bool    `json:"same_direction"` // both ratios on the same side of 1; null if theirs is within 5 % of it
	RatioAgrees   *bool    `json:"ratio_agrees"`   // one ratio at most twice the other
}

// checkPublished compares every published figure with ours.
func (s *Study) checkPublished(runs map[cellKey][]levelFigures) {
	for _, v := range s.Manifest.Variants {
		if v.Again {
			continue
		}
		for _, p := range v.Published {
			s.Published = append(s.Published, s.checkOne(&v, p, runs))
		}
	}
}

func (s *Study) checkOne(v *VariantFacts, p Published, runs map[cellKey][]levelFigures) PublishedCheck {
	check := PublishedCheck{Published: p, Variant: v.Name}
	ours := s.Figure(p.Metric, v.Name, p.Level)
	if ours != nil {
		check.Measured = finite(ours.Median)
	}
	base, theirs := s.publishedBaseline(v, p)
	if base == nil {
		return check
	}
	check.Baseline = base.Name
	check.TheirRatio = finite(p.Value / theirs)
	variant, proved := provedFigure(runs[cellKey{v.Name, p.Level}], p.Metric)
	baseline, provedBase := provedFigure(runs[cellKey{base.Name, p.Level}], p.Metric)
	if proved && provedBase && !s.Cell(v.Name, p.Level).Fails() && !s.Cell(base.Name, p.Level).Fails() {
		check.OurRatio = finite(variant / baseline)
	}
	if check.TheirRatio == nil || check.OurRatio == nil {
		return check
	}
	there, here := math.Log(*check.TheirRatio), math.Log(*check.OurRatio)
	agrees := math.Abs(there-here) <= math.Log(publishedFactor)
	check.RatioAgrees = &agrees
	if math.Abs(there) > math.Log(1+publishedEqual) {
		same := there*here > 0
		check.SameDirection = &same
	}
	return check
}

// provedFigure returns the median of a metric over the runs that support a claim about it; false if there are none, or if it is
// a lower bound.
func provedFigure(runs []levelFigures, metric string) (median float64, ok bool) {
	f, ok := figureOf(proved(runs, Metric{Name: metric}), metric)
	return f.Median, ok && !f.AtLeast
}

// publishedBaseline returns the nearest baseline with a published figure of the same metric and level.
func (s *Study) publishedBaseline(v *VariantFacts, p Published) (*VariantFacts, float64) {
	base := s.Variant(v.Baseline)
	for range s.Manifest.Variants { // bounded, because a manifest may contain a circle
		if base == nil {
			return nil, 0
		}
		i := slices.IndexFunc(base.Published, func(o Published) bool { return o.Metric == p.Metric && o.Level == p.Level })
		if i >= 0 {
			return base, base.Published[i].Value
		}
		base = s.Variant(base.Baseline)
	}
	return nil, 0
}

// defaultCharts returns charts of the peak and of each metric that is published for at least two variants, at the level with the
// most published figures. Without any of these it charts the leading metric of the first two levels.
func (s *Study) defaultCharts() []Chart {
	var charts []Chart
	if s.Metric(MetricPeak) != nil {
		charts = append(charts, Chart{Metric: MetricPeak})
	}
	for _, metric := range s.Metrics {
		best, most := "", 1
		for _, level := range s.Levels() {
			if n := s.publishedAt(metric.Name, level); n > most {
				best, most = level, n
			}
		}
		if most > 1 && metric.Name != MetricPeak {
			charts = append(charts, Chart{Metric: metric.Name, Level: best})
		}
	}
	if len(charts) > 0 {
		return charts
	}
	for _, level := range s.Levels() {
		charts = append(charts, Chart{Metric: s.Leading(level), Level: level})
	}
	return charts[:min(len(charts), 2)]
}

func (s *Study) publishedAt(metric, level string) int {
	n := 0
	for _, p := range s.Published {
		if p.Metric == metric && p.Level == level {
			n++
		}
	}
	return n
}

// Leading returns the main metric of a level: the peak; what a chart shows of the level; the rate, if connections set the load;
// or else the CPU per request of the first watched process, or the p99.
func (s *Study) Leading(level string) string {
	if level == "" {
		return MetricPeak
	}
	for _, chart := range s.Charts {
		name, process, _ := strings.Cut(chart.Metric, ".")
		if name == MetricCores && chart.Level == level {
			return MetricCPU + "." + process // proportional at a given rate, and compared
		}
		if m := s.Metric(chart.Metric); m != nil && m.Compared && chart.Level == level {
			return m.Name
		}
	}
	i := slices.IndexFunc(s.Manifest.Levels, func(l LevelFacts) bool { return l.Name == level })
	if i >= 0 && s.Manifest.Levels[i].Flags["rate"] == "" {
		return MetricRate
	}
	for _, m := range s.Metrics {
		if m.Compared && m.Process != "" {
			return m.Name
		}
	}
	return MetricP99
}
