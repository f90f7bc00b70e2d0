package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// figure formats a number with three significant digits, or as an integer from
// 100 up.
func figure(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return trimZeros(fmt.Sprintf("%.1f", x))
	case x >= 1:
		return trimZeros(fmt.Sprintf("%.2f", x))
	}
	return fmt.Sprintf("%.3g", x)
}

func trimZeros(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// powerOfTwo is the smallest power of two that is at least n.
func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func limitText(n int64) string {
	switch {
	case n < 0:
		return "unknown"
	case n == math.MaxInt64:
		return "no limit"
	}
	return digits(n)
}

// size formats bytes with a binary unit.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for x >= 1024 && i < len(units)-1 {
		x /= 1024
		i++
	}
	return figure(x) + " " + units[i]
}

// duration formats seconds with a suitable unit.
func duration(seconds float64) string {
	switch {
	case seconds >= 1:
		return figure(seconds) + " s"
	case seconds >= 1e-3:
		return figure(seconds*1e3) + " ms"
	}
	return figure(seconds*1e6) + " us"
}

// digits formats an integer.
func digits(n int64) string { return strconv.FormatInt(n, 10) }
