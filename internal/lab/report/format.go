package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"spillway/internal/lab/experiment"
)

// seconds writes a duration given in seconds with three significant digits: "812 µs".
func seconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s >= 120:
		return time.Duration(s * float64(time.Second)).Round(time.Second).String()
	}
	scale, unit := secondsUnit(s)
	return significant(s*scale) + unit
}

// atLeast writes a lower bound given in seconds with three digits, rounded down: ">= 2.00 s".
func atLeast(s float64) string {
	if s >= 120 {
		return ">= " + time.Duration(s*float64(time.Second)).Truncate(time.Second).String()
	}
	scale, unit := secondsUnit(s * 0.9995) // it rounds up to the next unit, which a lower bound must not
	v := s * scale * (1 + 1e-9)            // so that 2 does not become 1.99
	if v <= 0 {
		return ">= 0"
	}
	decimals := min(max(2-int(math.Floor(math.Log10(v))), 0), 2)
	step := math.Pow(10, float64(decimals))
	return ">= " + strconv.FormatFloat(math.Floor(v*step)/step, 'f', decimals, 64) + unit
}

// secondsUnit returns the factor and unit for writing a duration given in seconds.
func secondsUnit(s float64) (scale float64, unit string) {
	switch {
	case s < 0.9995e-6:
		return 1e9, " ns"
	case s < 0.9995e-3:
		return 1e6, " µs"
	case s < 0.9995:
		return 1e3, " ms"
	}
	return 1, " s"
}

// significant writes v with three significant digits, without an exponent.
func significant(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	if digits <= 0 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// rate writes a number per second: "1,234/s", "2.5/s".
func rate(hz float64) string { return number(hz) + "/s" }

// number writes v with thousands separators, and with decimals only below 100.
func number(v float64) string {
	if math.Abs(v) < 99.95 && v != math.Trunc(v) {
		return significant(v)
	}
	return integer(int64(math.Round(v)))
}

// integer writes n with thousands separators.
func integer(n int64) string {
	text := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// share writes a fraction as a percentage. Only 0 reads as zero.
func share(fraction float64) string {
	percent := fraction * 100
	switch {
	case percent == 0:
		return "0"
	case percent < 0.01:
		return "<0.01 %"
	case percent > 99.9 && percent < 100:
		return ">99.9 %"
	case percent < 10:
		return significant(math.Round(percent*100)/100) + " %"
	}
	return strconv.FormatFloat(percent, 'f', 1, 64) + " %"
}

// size writes bytes: "1.5 MiB".
func size(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for bytes >= 1024 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return significant(bytes) + " " + units[i]
}

// plural writes a count and its noun: "1 connection", "1,000 connections".
func plural(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%s %s", integer(n), noun)
}

// elapsed writes a time since the start of a run: "45 s", "5 min", "2 h".
func elapsed(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 7200:
		return significant(v/3600) + " h"
	case v >= 180:
		return significant(v/60) + " min"
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + " s"
}

// FormatValue writes a figure of a study in its metric's unit: "3,082/s", "10.6 %".
func FormatValue(v float64, unit string) string {
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

// studyRange writes the median of a figure and the range of its blocks: "310 (290–333)/s". The range is left out if it
// rounds to the median. A lower bound begins with ">= ". A figure that no run supports ends with "*".
func studyRange(f *experiment.Figure, unit string) string {
	if f == nil {
		return "-"
	}
	scale, name := unitOf(f.Median, unit)
	middle := number3(f.Median*scale, unit)
	low, high := number3(f.Min*scale, unit), number3(f.Max*scale, unit)
	prefix := ""
	if f.AtLeast {
		prefix = ">= "
	}
	suffix := ""
	if f.Unproved {
		suffix = "*"
	}
	if low == middle && high == middle {
		return prefix + FormatValue(f.Median, unit) + suffix
	}
	return prefix + middle + " (" + low + "–" + high + ")" + name + suffix
}

// unitOf returns the factor and suffix for writing a value of a unit.
func unitOf(v float64, unit string) (scale float64, name string) {
	switch unit {
	case experiment.UnitRate:
		return 1, "/s"
	case experiment.UnitShare:
		return 100, " %"
	case experiment.UnitPercent:
		return 1, " %"
	case experiment.UnitSeconds:
		return secondsUnit(v)
	}
	return 1, ""
}

// number3 writes a scaled value: counts and rates with thousands separators, other units with three digits.
func number3(v float64, unit string) string {
	switch unit {
	case experiment.UnitSeconds, experiment.UnitPercent:
		return significant(v)
	case experiment.UnitShare:
		return significant(math.Round(v*100) / 100)
	}
	return number(v)
}

// effect writes a ratio above 1 as a percentage: 1.056 is "5.6 %".
func effect(v *float64) string {
	if v == nil {
		return "-"
	}
	return significant(math.Round((*v-1)*1000)/10) + " %"
}

// pvalue writes a p value with four decimals.
func pvalue(p *float64) string {
	switch {
	case p == nil:
		return "-"
	case *p < 0.0001:
		return "<0.0001"
	}
	return strconv.FormatFloat(*p, 'f', 4, 64)
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
