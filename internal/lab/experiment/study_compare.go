package experiment

import (
	"fmt"
	"math"
	"slices"

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

	// A side fails if it is Failing in most blocks and the other side is not. Then no metric has a ratio.
	VerdictFails         Verdict = "fails"
	VerdictBaselineFails Verdict = "the baseline fails"
)

// A Comparison compares one metric of a variant with its baseline at one level, over the blocks that have both.
type Comparison struct {
	Metric   string `json:"metric"`
	Level    string `json:"level,omitempty"`
	Variant  string `json:"variant"`
	Baseline string `json:"baseline"`
	Again    bool   `json:"again,omitempty"` // A/A: any difference is a false one

	Pairs           int `json:"pairs"`                            // blocks used
	LeftOut         int `json:"pairs_left_out,omitempty"`         // blocks with a side that does not support the metric, see Study
	Dropped         int `json:"pairs_dropped,omitempty"`          // blocks with a side whose figure is missing, 0 or a lower bound
	Failing         int `json:"pairs_failing,omitempty"`          // blocks in which only the variant was above result.ErrorShareMax
	BaselineFailing int `json:"pairs_baseline_failing,omitempty"` // blocks in which only the baseline was
	BothFailing     int `json:"pairs_both_failing,omitempty"`     // blocks in which both were

	Ratio         float64  `json:"ratio"` // variant / baseline, geometric mean; 0 without a pair
	Min           float64  `json:"min"`   // of the blocks
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
	s.Metrics = slices.DeleteFunc(all, func(m Metric) bool { return !seen[m.Name] })
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
		if r.failing {
			c.Failing++
		}
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
		f, ok := figureOf(proved(runs, metric), metric.Name)
		if !ok {
			f, ok = figureOf(runs, metric.Name)
			f.Unproved = true
		}
		if ok {
			c.Figures[metric.Name] = f
		}
	}
	return c
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

// pairUp collects the blocks that have both sides; false if there are none. Only blocks whose runs support the metric on both
// sides give a ratio, and none in which a side fails.
func pairUp(metric Metric, level string, v VariantFacts, runs map[cellKey][]levelFigures) (pairing, bool) {
	ours, theirs := runs[cellKey{v.Name, level}], runs[cellKey{v.Baseline, level}]
	if v.Baseline == "" || ours == nil || theirs == nil || (metric.Name == MetricPeak) != (level == "") {
		return pairing{}, false
	}
	p := pairing{better: metric.Better}
	c := &p.comparison
	c.Metric, c.Level, c.Variant, c.Baseline, c.Again = metric.Name, level, v.Name, v.Baseline, v.Again
	var baseline, variant []float64
	blocks, has := 0, false
	for i := range ours {
		if !ours[i].read || !theirs[i].read {
			continue
		}
		blocks++
		has = has || ours[i].has(metric) && theirs[i].has(metric) || ours[i].failing || theirs[i].failing
		if !p.failing(&ours[i], &theirs[i]) {
			baseline, variant = p.add(metric, &ours[i], &theirs[i], baseline, variant)
		}
	}
	p.ratio = stats.PairedRatio(baseline, variant, stats.Level)
	return p, blocks > 0 && has
}

// failing counts a block in which a side fails, and reports whether it is one.
func (p *pairing) failing(ours, theirs *levelFigures) bool {
	c := &p.comparison
	switch {
	case !ours.failing && !theirs.failing:
		return false
	case !aboutTarget(ours.validity) || !aboutTarget(theirs.validity):
		c.LeftOut++
	case ours.failing && theirs.failing:
		c.BothFailing++
	case ours.failing:
		c.Failing++
	default:
		c.BaselineFailing++
	}
	return true
}

// add appends the figures of a block in which no side fails.
func (p *pairing) add(metric Metric, ours, theirs *levelFigures, baseline, variant []float64) (_, _ []float64) {
	if !ours.supports(metric) || !theirs.supports(metric) {
		p.comparison.LeftOut++
		return baseline, variant
	}
	b, o := theirs.of(metric.Name), ours.of(metric.Name)
	if ours.atLeast[metric.Name] || theirs.atLeast[metric.Name] {
		o = math.NaN() // dropped
	}
	return append(baseline, b), append(variant, o)
}

func (l *levelFigures) has(metric Metric) bool { return !math.IsNaN(l.of(metric.Name)) }

// supports reports whether the run supports a claim about the metric. Too few samples for a percentile are enough for a rate
// or the CPU time per request. So is a run that overloads the target: its latencies depend on its length, its rate does not.
func (l *levelFigures) supports(metric Metric) bool {
	percentile := metric.Name == MetricP50 || metric.Name == MetricP99
	switch metric.Name {
	case MetricErrors, Metric502:
		return aboutTarget(l.validity)
	case MetricFirstByte, MetricConnect:
		if l.overloaded {
			return false
		}
	}
	switch l.validity {
	case result.Valid:
		return !percentile || !l.overloaded
	case result.TooFewSamples:
		return !percentile && metric.Name != MetricPeak
	case result.NotStationary:
		return !percentile && l.overloaded
	}
	return false
}

// proved returns the runs that support a claim about the metric.
func proved(runs []levelFigures, metric Metric) []levelFigures {
	return slices.DeleteFunc(slices.Clone(runs), func(l levelFigures) bool { return !l.read || !l.supports(metric) })
}

// aboutTarget reports whether the share of failed requests of a run says something about the target: neither the load generator
// nor other programs on the host can be the cause.
func aboutTarget(v result.Validity) bool {
	return v == result.Valid || v == result.TooFewSamples || v == result.NotStationary
}

// verdictsOf gives the comparisons of a family their verdicts. A quick run has none. A comparison in which a side fails is not
// a member of the family.
func verdictsOf(family []pairing, quick bool) []Comparison {
	ratios := make([]stats.Ratio, len(family))
	failures := make([]Verdict, len(family))
	for i := range family {
		ratios[i] = family[i].ratio
		failures[i] = family[i].failure()
		if quick || failures[i] != "" {
			ratios[i].N = min(ratios[i].N, stats.MinPairs-1)
		}
	}
	var judged []Comparison
	for i, c := range stats.Judge(ratios) {
		out := family[i].comparison
		out.Dropped, out.Family, out.Verdict = c.Dropped, c.Family, verdictOf(c.Verdict, family[i].better)
		if failures[i] != "" {
			out.Verdict, out.Dropped, out.Family = failures[i], 0, 0
			if quick {
				out.Verdict = NoVerdict
			}
			judged = append(judged, out)
			continue
		}
		if out.Pairs = family[i].ratio.N; out.Pairs > 0 {
			out.Ratio, out.Min, out.Max = round(c.Ratio.Ratio), round(c.Min), round(c.Max)
		}
		if out.Verdict != NoVerdict {
			out.Low, out.High, out.P, out.MinimumEffect = finite(c.Low), finite(c.High), finite(c.AdjustedP), finite(c.MinimumEffect)
		}
		judged = append(judged, out)
	}
	return judged
}

// failure returns the verdict of a comparison in which a side fails in most blocks, "" if none does. It needs as many blocks
// as any verdict.
func (p *pairing) failure() Verdict {
	c := &p.comparison
	blocks := p.ratio.N + p.ratio.Dropped + c.Failing + c.BaselineFailing + c.BothFailing
	switch {
	case 2*(c.Failing+c.BaselineFailing+c.BothFailing) <= blocks:
		return ""
	case blocks < stats.MinPairs:
		return NoVerdict
	case 2*c.Failing > blocks:
		return VerdictFails
	case 2*c.BaselineFailing > blocks:
		return VerdictBaselineFails
	}
	return NoVerdict
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

// Control returns the A/A comparison of a metric at a level, nil if there is none.
func (s *Study) Control(metric, level string) *Comparison {
	return find(s.Comparisons, func(c *Comparison) bool { return c.Again && c.Metric == metric && c.Level == level && c.Pairs > 0 })
}

// Span returns the interval of the ratio, or the range of the blocks if nothing is claimed; false without two pairs.
func (c *Comparison) Span() (low, high float64, ok bool) {
	if c.Low != nil && c.High != nil {
		return *c.Low, *c.High, true
	}
	return c.Min, c.Max, c.Pairs > 1
}

// WithinControl reports whether the ratio is within the span of the A/A control: the same variant twice differs as much.
func (s *Study) WithinControl(c *Comparison) bool {
	control := s.Control(c.Metric, c.Level)
	if control == nil || c.Again || c.Pairs == 0 {
		return false
	}
	low, high, ok := control.Span()
	return ok && c.Ratio >= low && c.Ratio <= high
}

// WhyNoVerdict explains in a few words why a comparison has no verdict, "" if it has one.
func (s *Study) WhyNoVerdict(c *Comparison) string {
	blocks := c.Pairs + c.Dropped + c.Failing + c.BaselineFailing + c.BothFailing
	limit := fmt.Sprintf("%g %% of", 100*result.ErrorShareMax)
	switch {
	case c.Verdict != NoVerdict:
		return ""
	case 2*c.Failing > blocks:
		return fmt.Sprintf("it fails more than %s its requests in %d of %d blocks", limit, c.Failing, blocks)
	case 2*c.BaselineFailing > blocks:
		return fmt.Sprintf("the baseline fails more than %s its requests in %d of %d blocks", limit, c.BaselineFailing, blocks)
	case 2*(c.Failing+c.BaselineFailing+c.BothFailing) > blocks:
		return fmt.Sprintf("both fail more than %s their requests", limit)
	case s.Manifest.Quick:
		return "a quick run claims nothing"
	case c.Dropped > 0:
		return fmt.Sprintf("%d pairs of VALID runs, %d are needed; in %d more a figure is missing, 0 or a lower bound", c.Pairs, stats.MinPairs,
			c.Dropped)
	case c.LeftOut > 0:
		return fmt.Sprintf("%d pairs of VALID runs, %d are needed; %d pairs are left out", c.Pairs, stats.MinPairs, c.LeftOut)
	}
	return fmt.Sprintf("%d pairs of VALID runs, %d are needed", c.Pairs, stats.MinPairs)
}
