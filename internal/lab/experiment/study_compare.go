package experiment

import (
	"fmt"
	"math"

	"spillway/internal/lab/result"
	"spillway/internal/stats"
)

// A Verdict is the result of comparing a variant with its baseline.
type Verdict string

// The verdicts. The metric decides what is better: a higher rate, a lower p99.
const (
	VerdictBetter   Verdict = "better"
	VerdictWorse    Verdict = "worse"
	VerdictHigher   Verdict = "higher" // of a metric without a better direction
	VerdictLower    Verdict = "lower"
	VerdictNoneSeen Verdict = "no difference seen" // there may be one smaller than MinimumEffect
	NoVerdict       Verdict = "no verdict"         // too few blocks
)

// A Comparison compares one metric of a variant with its baseline at one level, over the blocks that have both.
type Comparison struct {
	Metric   string `json:"metric"`
	Level    string `json:"level,omitempty"`
	Variant  string `json:"variant"`
	Baseline string `json:"baseline"`
	Again    bool   `json:"again,omitempty"` // A/A: any difference is a false one

	Pairs         int      `json:"pairs"`                    // blocks used
	Doubtful      int      `json:"pairs_doubtful,omitempty"` // of these, blocks with a side that was not VALID
	LeftOut       int      `json:"pairs_left_out,omitempty"` // blocks with a side that was generator-limited or not judged
	Dropped       int      `json:"pairs_dropped,omitempty"`  // blocks with a side that has no figure above 0
	Ratio         float64  `json:"ratio"`                    // variant / baseline, geometric mean
	Min           float64  `json:"min"`                      // of the blocks
	Max           float64  `json:"max"`
	Low           *float64 `json:"low"` // 95 % t interval; null with fewer than ten pairs
	High          *float64 `json:"high"`
	P             *float64 `json:"p_adjusted"`     // by Holm's method over the family; null without a verdict
	MinimumEffect *float64 `json:"minimum_effect"` // smallest ratio above 1 detectable with 80 % power; null without a verdict
	Family        int      `json:"family"`         // number of comparisons that P is adjusted for
	Verdict       Verdict  `json:"verdict"`
}

// setCells summarizes the runs by level and variant.
func (s *Study) setCells(runs map[cellKey][]levelFigures) {
	m := &s.Manifest
	var levels []string
	if m.Peak != nil {
		levels = append(levels, "")
	}
	for _, level := range m.Levels {
		levels = append(levels, level.Name)
	}
	all := append(metricsOf(m.Watched), hostMetrics(m.Hosts)...)
	seen := make(map[string]bool)
	for _, level := range levels {
		for _, v := range m.Variants {
			cell := newCell(v.Name, level, runs[cellKey{v.Name, level}], all)
			if cell.Runs == 0 {
				continue
			}
			for name := range cell.Figures {
				seen[name] = true
			}
			s.Cells = append(s.Cells, cell)
		}
	}
	for _, metric := range all {
		if seen[metric.Name] {
			s.Metrics = append(s.Metrics, metric)
		}
	}
}

func newCell(variant, level string, runs []levelFigures, metrics []Metric) Cell {
	c := Cell{
		Variant: variant, Level: level, Validity: make(map[result.Validity]int), Errors: make(map[string]int64),
		Statuses: make(map[int]int64), Figures: make(map[string]Figure),
	}
	for i := range runs {
		r := &runs[i]
		if !r.read {
			continue
		}
		c.Runs++
		c.Validity[r.validity]++
		for class, n := range r.errors {
			if n > 0 {
				c.Errors[result.ErrorClass(class).String()] += n
			}
		}
		for status, n := range r.statuses {
			c.Statuses[status] += n
		}
	}
	for _, metric := range metrics {
		if f, ok := figureOf(valuesOf(runs, metric.Name)); ok {
			c.Figures[metric.Name] = f
		}
	}
	return c
}

func valuesOf(runs []levelFigures, metric string) []float64 {
	values := make([]float64, len(runs))
	for i := range runs {
		values[i] = runs[i].of(metric)
	}
	return values
}

// compare compares every variant with its baseline. All A/A comparisons form one family. The other comparisons of one metric,
// at all levels and of all variants, form another: each metric is a separate question.
func (s *Study) compare(runs map[cellKey][]levelFigures) {
	var again []pairing
	var families [][]pairing
	for _, metric := range s.Metrics {
		if !metric.Compared {
			continue
		}
		var family []pairing
		for _, level := range s.Levels() {
			for _, v := range s.Manifest.Variants {
				p, ok := pairUp(metric, level, v, runs)
				switch {
				case !ok:
				case v.Again:
					again = append(again, p)
				default:
					family = append(family, p)
				}
			}
		}
		families = append(families, family)
	}
	s.Comparisons = append(s.Comparisons, verdictsOf(again, s.Manifest.Quick)...)
	for _, family := range families {
		s.Comparisons = append(s.Comparisons, verdictsOf(family, s.Manifest.Quick)...)
	}
}

// A pairing is a comparison before its verdict.
type pairing struct {
	comparison Comparison
	better     Better
	ratio      stats.Ratio
}

// pairUp collects the blocks that have both sides; false if there are none. It leaves out blocks in which the generator was
// the limit. Blocks with a contended host or drifting figures count as doubtful: both sides share the host, and the interval
// includes the noise.
func pairUp(metric Metric, level string, v VariantFacts, runs map[cellKey][]levelFigures) (pairing, bool) {
	ours, theirs := runs[cellKey{v.Name, level}], runs[cellKey{v.Baseline, level}]
	if v.Baseline == "" || ours == nil || theirs == nil {
		return pairing{}, false
	}
	p := pairing{better: metric.Better}
	c := &p.comparison
	c.Metric, c.Level, c.Variant, c.Baseline, c.Again = metric.Name, level, v.Name, v.Baseline, v.Again
	var baseline, variant []float64
	for i := range ours {
		if !ours[i].read || !theirs[i].read {
			continue
		}
		if !ours[i].measured() || !theirs[i].measured() {
			c.LeftOut++
			continue
		}
		b, o := theirs[i].of(metric.Name), ours[i].of(metric.Name)
		if b > 0 && o > 0 && (ours[i].doubtful(metric) || theirs[i].doubtful(metric)) {
			c.Doubtful++
		}
		baseline, variant = append(baseline, b), append(variant, o)
	}
	p.ratio = stats.PairedRatio(baseline, variant, stats.Level)
	return p, p.ratio.N > 0
}

// measured reports whether the run measured the target and not the generator.
func (l *levelFigures) measured() bool {
	return l.validity != result.GeneratorLimited && l.validity != result.Unjudged
}

// doubtful reports whether the figure is doubtful. Too few samples make a percentile doubtful, but not a rate.
func (l *levelFigures) doubtful(metric Metric) bool {
	percentile := metric.Name == MetricP50 || metric.Name == MetricP99
	return l.validity != result.Valid && (percentile || l.validity != result.TooFewSamples)
}

// verdictsOf gives the comparisons of a family their verdicts. A quick run has none.
func verdictsOf(family []pairing, quick bool) []Comparison {
	ratios := make([]stats.Ratio, len(family))
	for i := range family {
		ratios[i] = family[i].ratio
		if quick {
			ratios[i].N = min(ratios[i].N, stats.MinPairs-1)
		}
	}
	var judged []Comparison
	for i, c := range stats.Judge(ratios) {
		out := family[i].comparison
		out.Pairs, out.Dropped, out.Family = family[i].ratio.N, c.Dropped, c.Family
		out.Ratio, out.Min, out.Max = round(c.Ratio.Ratio), round(c.Min), round(c.Max)
		out.Verdict = verdictOf(c.Verdict, family[i].better)
		if out.Verdict != NoVerdict {
			out.Low, out.High, out.P, out.MinimumEffect = finite(c.Low), finite(c.High), finite(c.AdjustedP), finite(c.MinimumEffect)
		}
		judged = append(judged, out)
	}
	return judged
}

func verdictOf(v stats.Verdict, better Better) Verdict {
	switch {
	case v == stats.NoVerdict:
		return NoVerdict
	case v == stats.NoDifference:
		return VerdictNoneSeen
	case better == BetterNone && v == stats.Higher:
		return VerdictHigher
	case better == BetterNone:
		return VerdictLower
	case (v == stats.Higher) == (better == BetterHigher):
		return VerdictBetter
	}
	return VerdictWorse
}

func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	v = round(v)
	return &v
}

// Compared returns the comparison of a metric, level and variant, nil if there is none.
func (s *Study) Compared(metric, level, variant string) *Comparison {
	return find(s.Comparisons, func(c *Comparison) bool {
		return c.Metric == metric && c.Level == level && c.Variant == variant
	})
}

// WhyNoVerdict explains in a few words why a comparison has no verdict, "" if it has one.
func (s *Study) WhyNoVerdict(c *Comparison) string {
	switch {
	case c.Verdict != NoVerdict:
		return ""
	case s.Manifest.Quick:
		return "a quick run claims nothing"
	case c.LeftOut > 0:
		return fmt.Sprintf("%d pairs, %d are needed; in %d more the generator was the limit", c.Pairs, stats.MinPairs, c.LeftOut)
	}
	return fmt.Sprintf("%d pairs, %d are needed", c.Pairs, stats.MinPairs)
}
