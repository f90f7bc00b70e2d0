package report

import (
	"fmt"
	"slices"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/stats"
)

// keyComparisons are those that sentences and forest plots are about: at each key level the leading metric, and the p99
// besides.
func keyComparisons(s *experiment.Study) []experiment.Comparison {
	var key []experiment.Comparison
	for _, level := range keyLevels(s) {
		leading := s.Leading(level)
		for _, metric := range []string{leading, experiment.MetricP99} {
			if metric == experiment.MetricP99 && leading == experiment.MetricP99 && len(key) > 0 && key[len(key)-1].Level == level {
				continue
			}
			for _, c := range s.Comparisons {
				if c.Level == level && c.Metric == metric {
					key = append(key, c)
				}
			}
		}
	}
	return key
}

// comparisonNote explains the table of comparisons.
func comparisonNote() string {
	return fmt.Sprintf("ratio: variant over baseline, geometric mean of the blocks that have both; interval: %d %% t interval of its logarithm, of this "+
		"comparison alone, or the range of the blocks where nothing is claimed. p: by Holm's correction over the comparisons of the metric "+
		"(over all of the A/A pair); below %g is a difference. could have seen: the smallest effect found with %d %% power at that strictness. "+
		"doubtful: a side was no valid measurement; where the generator was the limit, the pair is left out.",
		int(stats.Level*100), stats.Alpha, int(stats.Power*100))
}

func comparisonSection(s *experiment.Study, comparisons []experiment.Comparison, title string) studySection {
	section := studySection{
		title: title, left: 0, words: true, note: comparisonNote(),
		rows: [][]string{{"variant", "against", "metric", "level", "ratio", "interval", "p", "could have seen", "pairs", "verdict"}},
	}
	for i := range comparisons {
		c := &comparisons[i]
		metric := c.Metric
		if m := s.Metric(c.Metric); m != nil {
			metric = m.Title
		}
		name := c.Variant
		if c.Again {
			name = "A/A: " + name
		}
		pairs := integer(int64(c.Pairs))
		if c.Doubtful > 0 {
			pairs += fmt.Sprintf(" (%d doubtful)", c.Doubtful)
		}
		section.add([]string{
			name, c.Baseline, metric, orNone(c.Level), times(c.Ratio), comparisonSpan(c), pvalue(c.P), effect(c.MinimumEffect), pairs, verdictWords(s, c),
		}, c.Doubtful > 0)
	}
	return section
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// publishedNote defines what agrees.
const publishedNote = "Ratios are to the baseline named, there and here. direction: both ratios are on the same side of 1; - where theirs is within 5 % of 1. " +
	"ratio: one is at most twice the other. Absolute figures come of different machines and need not agree."

func publishedSection(s *experiment.Study) studySection {
	section := studySection{
		title: "Beside published figures", left: 0, words: true, note: publishedNote,
		rows: [][]string{{"variant", "metric", "level", "published", "measured", "against", "ratio there", "ratio here", "direction", "ratio", "note"}},
	}
	unmeasured := 0
	for _, p := range s.Published {
		if p.Measured == nil {
			unmeasured++
			continue
		}
		unit, title := "", p.Metric
		if m := s.Metric(p.Metric); m != nil {
			unit, title = m.Unit, m.Title
		}
		section.add([]string{
			p.Variant, title, orNone(p.Level), studyValue(p.Value, unit), studyValue(*p.Measured, unit), orNone(p.Baseline),
			ratioOf(p.TheirRatio), ratioOf(p.OurRatio), agreement(p.SameDirection), agreement(p.RatioAgrees), orNone(p.Note),
		}, false)
	}
	if unmeasured > 0 {
		section.note += fmt.Sprintf(" %d published figures of levels that were not run are left out.", unmeasured)
	}
	return section
}

func ratioOf(v *float64) string {
	if v == nil {
		return "-"
	}
	return times(*v)
}

func agreement(agrees *bool) string {
	switch {
	case agrees == nil:
		return "-"
	case *agrees:
		return "agrees"
	}
	return "differs"
}

// differenceSection is the factors and the settings that are not the same in all variants.
func differenceSection(s *experiment.Study) studySection {
	section := studySection{
		title: "What differs", left: 0, words: true, note: "Marked with * where a variant differs from its baseline. Everything else is the same in all variants.",
	}
	factors, settings := varying(s, func(v experiment.VariantFacts) map[string]string { return v.Values }),
		varying(s, func(v experiment.VariantFacts) map[string]string { return v.Settings })
	heads := append([]string{"variant", "baseline"}, factors...)
	for _, name := range settings {
		heads = append(heads, "setting "+name)
	}
	section.rows = [][]string{append(heads, "services")}
	for _, v := range s.Manifest.Variants {
		base := s.Variant(v.Baseline)
		if base == nil {
			base = &v
		}
		row := []string{v.Name, orNone(v.Baseline)}
		for _, name := range factors {
			row = append(row, marked(v.Values[name], base.Values[name]))
		}
		for _, name := range settings {
			row = append(row, marked(v.Settings[name], base.Settings[name]))
		}
		row = append(row, marked(strings.Join(v.Services, " "), strings.Join(base.Services, " ")))
		section.add(row, false)
	}
	return section
}

func marked(value, base string) string {
	if value != base {
		return orNone(value) + " *"
	}
	return orNone(value)
}

// varying are the names whose values are not the same in all variants.
func varying(s *experiment.Study, of func(experiment.VariantFacts) map[string]string) []string {
	var names []string
	for _, v := range s.Manifest.Variants {
		for name, value := range of(v) {
			if first := of(s.Manifest.Variants[0])[name]; first != value && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}
