package experiment

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/stats"
)

// A Verdict is what the comparison of a variant with its baseline ends in.
type Verdict string

// The verdicts. What is better is for the metric to say: a higher rate, a lower p99.
const (
	VerdictBetter   Verdict = "better"
	VerdictWorse    Verdict = "worse"
	VerdictHigher   Verdict = "higher" // of a metric that is better neither way
	VerdictLower    Verdict = "lower"
	VerdictNoneSeen Verdict = "no difference seen" // one smaller than MinimumEffect may be there
	NoVerdict       Verdict = "no verdict"         // too few blocks to claim anything
)

// A Comparison is one metric of a variant against its baseline at one level, over the blocks that have both.
type Comparison struct {
	Metric   string `json:"metric"`
	Level    string `json:"level,omitempty"`
	Variant  string `json:"variant"`
	Baseline string `json:"baseline"`
	Again    bool   `json:"again,omitempty"` // A/A: the same twice, so that a difference is a false one

	Pairs         int      `json:"pairs"`                    // blocks that count
	Doubtful      int      `json:"pairs_doubtful,omitempty"` // of these, blocks in which a side was not VALID
	LeftOut       int      `json:"pairs_left_out,omitempty"` // blocks left out, because on a side the generator was the limit, or nobody judged
	Dropped       int      `json:"pairs_dropped,omitempty"`  // blocks left out, because a side has no figure above 0
	Ratio         float64  `json:"ratio"`                    // variant / baseline, geometric mean
	Min           float64  `json:"min"`                      // of the blocks
	Max           float64  `json:"max"`
	Low           *float64 `json:"low"` // 95 % t interval; null with fewer than ten pairs
	High          *float64 `json:"high"`
	P             *float64 `json:"p_adjusted"`     // by Holm over the family; null without a verdict
	MinimumEffect *float64 `json:"minimum_effect"` // ratio above 1 that would have been seen with 80 % power; null without a verdict
	Family        int      `json:"family"`         // comparisons that P is adjusted for
	Verdict       Verdict  `json:"verdict"`
}

// setCells sums up the runs by level and variant.
func (s *Study) setCells(runs map[cellKey][]levelFigures) {
	m := &s.Manifest
	var levels []string
	if m.Peak != nil {
		levels = append(levels, "")
	}
	for _, level := range m.Levels {
		levels = append(levels, level.Name)
	}
	all := metricsOf(m.Watched)
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

// compare compares every compared metric of every variant with its baseline. All A/A comparisons are one family; of the
// others those of one metric are, at all levels and of all variants: each metric is a question of its own.
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

// pairUp takes the blocks that have both sides; false when there is none, or nothing to compare with. A block in which
// the generator was the limit says nothing about the variant and is left out. One whose host was contended or whose
// figures drifted counts, for both sides of a block share the host, and the interval has the noise; it is marked.
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

// measured says whether it was the target that was measured.
func (l *levelFigures) measured() bool {
	return l.validity != result.GeneratorLimited && l.validity != result.Unjudged
}

// doubtful says whether the figure is to be marked: too few samples for a percentile are no doubt about a rate.
func (l *levelFigures) doubtful(metric Metric) bool {
	percentile := metric.Name == MetricP50 || metric.Name == MetricP99
	return l.validity != result.Valid && (percentile || l.validity != result.TooFewSamples)
}

// verdictsOf gives the comparisons of a family their verdicts; quick ones claim nothing.
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
		out.Verdict = inWords(c.Verdict, family[i].better)
		if out.Verdict != NoVerdict {
			out.Low, out.High, out.P, out.MinimumEffect = known(c.Low), known(c.High), known(c.AdjustedP), known(c.MinimumEffect)
		}
		judged = append(judged, out)
	}
	return judged
}

func inWords(v stats.Verdict, better Better) Verdict {
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

func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	v = round(v)
	return &v
}

// Compared is the comparison of that metric, level and variant, nil when there is none.
func (s *Study) Compared(metric, level, variant string) *Comparison {
	i := slices.IndexFunc(s.Comparisons, func(c Comparison) bool {
		return c.Metric == metric && c.Level == level && c.Variant == variant
	})
	if i < 0 {
		return nil
	}
	return &s.Comparisons[i]
}

// WhyNoVerdict says in a few words why a comparison claims nothing, "" when it claims something.
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
