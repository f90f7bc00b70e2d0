package report

import (
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
)

// studyRange writes the median of a figure and the range of its blocks: "310 (290–333)/s". The range is left out if it
// rounds to the median. A lower bound begins with ">= ". A figure that no run supports ends with "*".
func studyRange(f *experiment.Figure, unit string) string {
	if f == nil {
		return "-"
	}
	numbers, suffix := sheet.Together(unit, f.Median, f.Min, f.Max)
	text := numbers[0] + " (" + numbers[1] + "–" + numbers[2] + ")" + suffix
	if numbers[1] == numbers[0] && numbers[2] == numbers[0] {
		text = sheet.Text(f.Median, unit)
	}
	if f.AtLeast {
		text = ">= " + text
	}
	if f.Unproved {
		text += "*"
	}
	return text
}

// StudyFigure writes a metric of a variant at a level, "-" if no run supports it. Times of a cell that fails end with "!".
func StudyFigure(s *experiment.Study, metric, variant, level string) string {
	m, f := s.Metric(metric), s.Figure(metric, variant, level)
	if m == nil || f == nil || f.Unproved {
		return "-"
	}
	return studyRange(f, m.Unit) + failMark(s.Cell(variant, level), metric)
}

// effect writes a ratio above 1 as a percentage: 1.056 is "5.6 %".
func effect(v *float64) string { return known(func(v float64) string { return sheet.Share(v - 1) }, v) }

// pvalue writes a p value.
func pvalue(p *float64) string {
	switch {
	case p == nil:
		return "-"
	case *p < 0.0001:
		return "< 0.0001"
	}
	return sheet.Number(*p)
}

// verdictWords writes a verdict for its metric: "faster", "less CPU".
func verdictWords(s *experiment.Study, c *experiment.Comparison) string {
	m := s.Metric(c.Metric)
	cpu := m != nil && m.Process != ""
	switch c.Verdict {
	case experiment.VerdictBetter:
		if cpu {
			return "less CPU"
		}
		return "faster"
	case experiment.VerdictWorse:
		if cpu {
			return "more CPU"
		}
		return "slower"
	case experiment.NoVerdict:
		return "no verdict: " + s.WhyNoVerdict(c)
	}
	return string(c.Verdict)
}
