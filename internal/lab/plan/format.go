package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// seconds writes a duration given in seconds with three digits: "812 µs".
func seconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.9995e-6:
		return significant(s*1e9) + " ns"
	case s < 0.9995e-3:
		return significant(s*1e6) + " µs"
	case s < 0.9995:
		return significant(s*1e3) + " ms"
	}
	return significant(s) + " s"
}

// significant writes v with three significant digits, without an exponent, and with thousands separators.
func significant(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	if digits <= 0 {
		return number(v)
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// number writes v with thousands separators, and with decimals only below 100.
func number(v float64) string {
	if math.Abs(v) < 99.95 && v != math.Trunc(v) {
		return significant(v)
	}
	text := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// whole writes a need, rounded up to a whole number and to three digits.
func whole(v float64) string { return number(roundUp(math.Ceil(v - 1e-9))) }

func rate(hz float64) string { return number(hz) + "/s" }

func cores(n float64) string { return plural(n, "core") }

// plural writes a number and its noun: "1 core", "0.5 cores", "2 hosts".
func plural(n float64, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "ss"):
		return number(n) + " " + noun + "es"
	}
	return number(n) + " " + noun + "s"
}

// roundUp rounds to three digits, for a need.
func roundUp(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return math.Ceil(v/unit-1e-9) * unit
}

// share writes a fraction as a percentage.
func share(fraction float64) string {
	if fraction != 0 && math.Abs(fraction) < 0.001 {
		return "< 0.1 %"
	}
	return significant(math.Round(fraction*1000)/10) + " %"
}

// size writes bytes: "1.5 MiB".
func size(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for bytes >= 1024 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return significant(bytes) + " " + units[i]
}

// within writes an interval: "1.47 ms to 1.58 ms"; "" if both ends read alike.
func within(low, high float64, write func(float64) string) string {
	if write(low) == write(high) {
		return ""
	}
	return fmt.Sprintf("%s to %s", write(low), write(high))
}
