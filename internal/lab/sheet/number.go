package sheet

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"spillway/internal/progress"
)

// Units of figures, as JSON documents name them. Every other unit is a noun in the plural, as "hosts".
const (
	UnitSeconds   = "s"
	UnitRate      = "1/s"
	UnitShare     = "share" // 0 to 1, written in percent
	UnitPercent   = "%"
	UnitBytes     = "B"
	UnitBytesRate = "B/s"
	UnitCount     = "count"
	UnitCores     = "cores"
)

// A rounding rounds to a number of decimals: to the nearest, or for a bound down or up.
type rounding func(v float64, decimals int) float64

func nearest(v float64, decimals int) float64 {
	if decimals == 0 {
		return math.Round(v)
	}
	n, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'f', decimals, 64), 64) // it is a number
	return n
}

func down(v float64, decimals int) float64 { return toward(math.Floor, v, decimals) }
func up(v float64, decimals int) float64   { return toward(math.Ceil, v, decimals) }

// toward does not take 70.3 for 702.9999 tenths.
func toward(side func(float64) float64, v float64, decimals int) float64 {
	step := math.Pow(10, float64(decimals))
	exact := v * step
	if near := math.Round(exact); math.Abs(exact-near) < 1e-9*math.Abs(near) {
		return near / step
	}
	return side(exact) / step
}

// A scale is one unit of a quantity: its name, how many of it a base unit is, and the number from which the next unit is used.
type scale struct {
	name      string
	per, next float64
}

func timeScales() []scale {
	return []scale{
		{"ns", 1e9, 1000},
		{"µs", 1e6, 1000},
		{"ms", 1e3, 1000},
		{"s", 1, 180},
		{"min", 1.0 / 60, 120},
		{"h", 1.0 / 3600, math.Inf(1)},
	}
}

func sizeScales() []scale {
	return []scale{
		{"B", 1, 1024},
		{"KiB", 1.0 / (1 << 10), 1024},
		{"MiB", 1.0 / (1 << 20), 1024},
		{"GiB", 1.0 / (1 << 30), 1024},
		{"TiB", 1.0 / (1 << 40), 1024},
		{"PiB", 1.0 / (1 << 50), math.Inf(1)},
	}
}

// Number writes v with three significant digits, and from 100 on as a whole number with thousands separators: "0.0123", "12.3", "1,234".
// What is not a number is "unknown".
func Number(v float64) string { return text(v, UnitCount, nearest) }

// Integer writes a count: "1,234".
func Integer[N int | int32 | int64 | uint64](n N) string { return Number(float64(n)) }

// Plural writes a number and its noun: "1 core", "0.5 cores", "2 addresses".
func Plural[N int | int64 | float64](n N, noun string) string {
	text := Number(float64(n))
	switch {
	case text == "1":
		return text + " " + noun
	case strings.HasSuffix(noun, "ss"):
		return text + " " + noun + "es"
	}
	return text + " " + noun + "s"
}

// Duration writes a time in seconds: "812 µs", "1.5 s", "20 min".
func Duration(seconds float64) string { return text(seconds, UnitSeconds, nearest) }

// At writes a time since the start of a run, which has to tell seconds apart after hours: "3,610 s".
func At(seconds float64) string { return Number(max(seconds, 0)) + " s" }

// Rate writes a number per second: "1,234/s".
func Rate(hz float64) string { return text(hz, UnitRate, nearest) }

// Share writes a fraction in percent: "12.3 %". What is not quite the whole is "> 99.9 %", and what is hardly anything "< 0.001 %".
func Share(fraction float64) string {
	text := text(100*fraction, UnitPercent, nearest)
	switch {
	case text == "100 %" && fraction < 1-1e-9:
		return "> 99.9 %"
	case fraction > 0 && fraction < shareLeast:
		return "< 0.001 %"
	}
	return text
}

// shareLeast is the least share that is written as a number.
const shareLeast = 1e-5

// Size writes bytes: "1.5 MiB".
func Size[N int64 | uint64 | float64](bytes N) string {
	return text(float64(bytes), UnitBytes, nearest)
}

// Text writes a figure in its unit.
func Text(v float64, unit string) string {
	if unit == UnitShare {
		return Share(v)
	}
	return text(v, unit, nearest)
}

// Bare writes a figure without the noun that is its unit: "16" of "hosts".
func Bare(v float64, unit string) string {
	if noun(unit) {
		return Number(v)
	}
	return Text(v, unit)
}

// AtLeast writes a lower bound, rounded down: ">= 2.01 s".
func AtLeast(v float64, unit string) string { return ">= " + text(v, unit, down) }

// AtMost writes an upper bound, rounded up: "< 244 ns".
func AtMost(v float64, unit string) string { return "< " + text(v, unit, up) }

// Together writes values in the unit that suits the first that is not 0: "1.87", "1.8", "2.08" and " ms".
func Together(unit string, values ...float64) (numbers []string, suffix string) {
	lead := cmp.Or(values...)
	per := 1.0
	switch unit {
	case UnitSeconds:
		_, one := fit(lead, timeScales(), nearest)
		per, suffix = one.per, " "+one.name
	case UnitRate:
		suffix = "/s"
	case UnitShare:
		per, suffix = 100, " %"
	case UnitPercent:
		suffix = " %"
	}
	for _, v := range values {
		numbers = append(numbers, Number(v*per))
	}
	return numbers, suffix
}

func text(v float64, unit string, to rounding) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "unknown"
	}
	switch unit {
	case UnitSeconds:
		return scaled(v, timeScales(), to)
	case UnitRate:
		return number(v, to) + "/s"
	case UnitShare:
		return number(100*v, to) + " %"
	case UnitPercent:
		return number(v, to) + " %"
	case UnitBytes:
		return scaled(v, sizeScales(), to)
	case UnitBytesRate:
		return scaled(v, sizeScales(), to) + "/s"
	case UnitCount, "":
		return number(v, to)
	}
	return Plural(rounded(v, to), strings.TrimSuffix(unit, "s"))
}

// noun reports whether a unit is a noun.
func noun(unit string) bool {
	switch unit {
	case UnitSeconds, UnitRate, UnitShare, UnitPercent, UnitBytes, UnitBytesRate, UnitCount, "":
		return false
	}
	return true
}

func scaled(v float64, scales []scale, to rounding) string {
	n, s := fit(v, scales, to)
	return number(n, to) + " " + s.name
}

// fit returns v as a number of one of the scales: of the first in which it is below the next. 0 is in base units.
func fit(v float64, scales []scale, to rounding) (n float64, s scale) {
	for _, s = range scales {
		n = rounded(v*s.per, to)
		if v == 0 && s.per == 1 || v != 0 && math.Abs(n) < s.next {
			break
		}
		if math.Abs(v*s.per) < s.next { // 179.6 s is 180 s, and so 3 min, not 2.99 min
			v = n / s.per
		}
	}
	return n, s
}

// rounded rounds v to three significant digits, or to a whole number from 100 on.
func rounded(v float64, to rounding) float64 {
	if v == 0 {
		return 0
	}
	return to(v, decimals(v))
}

// decimalsMax keeps the powers of ten within what a float64 holds exactly.
const decimalsMax = 18

// decimals is how many decimals the first three digits of v have.
func decimals(v float64) int {
	return min(max(2-int(math.Floor(math.Log10(math.Abs(v)))), 0), decimalsMax)
}

func number(v float64, to rounding) string {
	v = rounded(v, to)
	if v == 0 {
		return "0"
	}
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(v, 'f', decimals(v), 64), ".")
	whole = progress.Group(whole)
	if fraction = strings.TrimRight(fraction, "0"); fraction != "" {
		return whole + "." + fraction
	}
	return whole
}
