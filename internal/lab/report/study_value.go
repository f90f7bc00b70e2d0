package report

import (
	"math"
	"strconv"

	"spillway/internal/lab/experiment"
)

// studyValue writes a figure in its metric's unit.
func studyValue(v float64, unit string) string {
	switch unit {
	case experiment.UnitRate:
		return rate(v)
	case experiment.UnitSeconds:
		return seconds(v)
	case experiment.UnitShare:
		return share(v)
	case experiment.UnitPercent:
		return significant(v) + " %"
	}
	return number(v)
}

// studyRange writes a figure's median, and the range of its blocks behind it where they differ: "310 (290–333)/s".
func studyRange(f *experiment.Figure, unit string) string {
	if f == nil {
		return "-"
	}
	scale, name := unitOf(f.Median, unit)
	middle := number3(f.Median*scale, unit)
	low, high := number3(f.Min*scale, unit), number3(f.Max*scale, unit)
	if low == middle && high == middle {
		return studyValue(f.Median, unit)
	}
	return middle + " (" + low + "–" + high + ")" + name
}

// unitOf is the factor and the name with which a value of that size is written.
func unitOf(v float64, unit string) (scale float64, name string) {
	switch unit {
	case experiment.UnitRate:
		return 1, "/s"
	case experiment.UnitShare:
		return 100, " %"
	case experiment.UnitPercent:
		return 1, " %"
	case experiment.UnitSeconds:
	default:
		return 1, ""
	}
	switch {
	case v < 0.9995e-6:
		return 1e9, " ns"
	case v < 0.9995e-3:
		return 1e6, " µs"
	case v < 0.9995:
		return 1e3, " ms"
	}
	return 1, " s"
}

// number3 writes a scaled value: counts and rates with separated thousands, all else with three digits.
func number3(v float64, unit string) string {
	switch unit {
	case experiment.UnitSeconds, experiment.UnitPercent:
		return significant(v)
	case experiment.UnitShare:
		return significant(math.Round(v*100) / 100)
	}
	return number(v)
}

// times writes a ratio: "0.167 x", "9.4 x".
func times(v float64) string {
	if v >= 0.995 && v < 1.995 {
		return strconv.FormatFloat(v, 'f', 2, 64) + " x" // 1.00 and not 1: what was looked for is the second digit
	}
	return significant(v) + " x"
}

// comparisonSpan writes the interval of a comparison, or the range of its blocks where it has none.
func comparisonSpan(c *experiment.Comparison) string {
	if c.Low != nil && c.High != nil {
		return span(*c.Low, *c.High)
	}
	if c.Pairs < 2 {
		return "-"
	}
	return span(c.Min, c.Max)
}

func span(low, high float64) string { return ratioNumber(low) + " to " + ratioNumber(high) }

func ratioNumber(v float64) string { text := times(v); return text[:len(text)-len(" x")] }

// effect writes a smallest effect as a percentage: 1.056 is "5.6 %".
func effect(v *float64) string {
	if v == nil {
		return "-"
	}
	return significant(math.Round((*v-1)*1000)/10) + " %"
}

// pvalue writes a p value; below 0.0001 its digits mean nothing.
func pvalue(p *float64) string {
	switch {
	case p == nil:
		return "-"
	case *p < 0.0001:
		return "<0.0001"
	}
	return strconv.FormatFloat(*p, 'f', 4, 64)
}

// verdictWords are the words of a metric for a verdict.
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
