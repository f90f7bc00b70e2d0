package report

import (
	"math"
	"strconv"
	"strings"

	"spillway/internal/lab/experiment"
)

// The A/A control shows how much the same variant differs from itself. It limits what a ratio can say:
//
// A ratio is written up to the place of the first digit of ratio × reach, and with at most three digits. reach is the distance
// of the far end of the control's interval from 1, as a factor. With an interval of 0.99 to 1.03, a ratio has two decimals; with
// one of 0.8 to 1.3, it has one. A ratio within the control's interval is marked with withinControl.

// withinControl marks a ratio that the A/A control has as well.
const withinControl = " ~"

// controlNote explains the column of the A/A control.
const controlNote = "A/A: the same comparison of the baseline with itself; ratios have no more digits than it allows. " +
	"~: within the difference of the A/A control."

// controlReach returns by which factor, less 1, the same variant may differ from itself, 0 if nothing shows it.
func controlReach(s *experiment.Study, metric, level string) float64 {
	control := s.Control(metric, level)
	if control == nil {
		return 0
	}
	low, high, ok := control.Span()
	if !ok || low <= 0 {
		return 0
	}
	return max(high-1, 1/low-1, 0)
}

// ratioNumber writes a ratio with the digits that the reach of the control allows; 0 is no limit.
func ratioNumber(v, reach float64) string {
	if !(v > 0) || math.IsInf(v, 1) {
		return "-"
	}
	decimals := 2 - place(v)
	if v >= 0.995 && v < 1.995 {
		decimals = 2
	}
	if reach > 0 {
		decimals = max(min(decimals, -place(v*reach)), -place(v))
	}
	if decimals <= 0 {
		scale := math.Pow(10, float64(-decimals))
		return strconv.FormatFloat(math.Round(v/scale)*scale, 'f', 0, 64)
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if reach == 0 && !(v >= 0.995 && v < 1.995) {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// place is the place of the first digit: 0 for 1 to 9, -1 for 0.1 to 0.9.
func place(v float64) int { return int(math.Floor(math.Log10(v) + 1e-9)) }

// ratioText writes the ratio of a comparison: "1.52 x", "1.02 x ~"; "-" if it has none.
func ratioText(s *experiment.Study, c *experiment.Comparison) string {
	if c.Pairs == 0 {
		return "-"
	}
	text := ratioNumber(c.Ratio, controlReach(s, c.Metric, c.Level)) + " x"
	if s.WithinControl(c) {
		text += withinControl
	}
	return text
}

// spanText writes the interval of a comparison, or the range of its blocks if it has none.
func spanText(s *experiment.Study, c *experiment.Comparison) string {
	low, high, ok := c.Span()
	if !ok {
		return "-"
	}
	reach := controlReach(s, c.Metric, c.Level)
	return ratioNumber(low, reach) + " to " + ratioNumber(high, reach)
}

// controlText writes the ratio of the A/A control beside a comparison: "1.01 [0.99, 1.03]".
func controlText(s *experiment.Study, c *experiment.Comparison) string {
	control := s.Control(c.Metric, c.Level)
	if control == nil || c.Again {
		return "-"
	}
	reach := controlReach(s, c.Metric, c.Level)
	text := ratioNumber(control.Ratio, reach)
	if low, high, ok := control.Span(); ok {
		text += " [" + ratioNumber(low, reach) + ", " + ratioNumber(high, reach) + "]"
	}
	return text
}
