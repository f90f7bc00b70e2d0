package diagnose

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// number writes a figure in its unit with three significant digits: "812 µs", "1,050/s", "72 %", "0.97 cores".
func number(v float64, unit string) string {
	if math.IsNaN(v) {
		return "unknown"
	}
	switch unit {
	case "seconds":
		scale, name := 1.0, " s"
		switch {
		case v < 0.9995e-3:
			scale, name = 1e6, " µs"
		case v < 0.9995:
			scale, name = 1e3, " ms"
		}
		return digits(v*scale) + name
	case "hz":
		return digits(v) + "/s"
	case "share":
		return digits(math.Round(v*1000)/10) + " %"
	case "bytes":
		names, i := []string{" B", " KiB", " MiB", " GiB", " TiB"}, 0
		for v >= 1024 && i < len(names)-1 {
			v, i = v/1024, i+1
		}
		return digits(v) + names[i]
	case "bytes per second":
		return number(v, "bytes") + "/s"
	case "cores":
		if text := digits(math.Round(v*100) / 100); text == "1" {
			return "1 core"
		} else {
			return text + " cores"
		}
	}
	return digits(v)
}

// digits writes v with three significant digits, and thousands separators.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	decimals := max(2-int(math.Floor(math.Log10(math.Abs(v)))), 0)
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if decimals > 0 {
		return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// at says at which load the failing step ran: "at 1,050/s", "with 64 connections".
func (c *comparison) at() string {
	switch s := c.failing; {
	case s.load == nil:
		return "in the busiest interval"
	case s.offered > 0:
		return "at " + number(s.offered, "hz")
	default:
		return fmt.Sprintf("with %d connections", s.load.Connections)
	}
}
