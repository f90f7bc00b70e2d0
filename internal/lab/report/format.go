package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// seconds writes a duration given in seconds with three significant digits and the unit that suits it: "812 µs".
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
	case s < 120:
		return significant(s) + " s"
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func duration(d time.Duration) string { return seconds(d.Seconds()) }

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

// rate writes a number a second: "1,234/s", "2.5/s".
func rate(hz float64) string { return number(hz) + "/s" }

// number writes v with separated thousands, and with decimals only below 100.
func number(v float64) string {
	if math.Abs(v) < 99.95 && v != math.Trunc(v) {
		return significant(v)
	}
	return integer(int64(math.Round(v)))
}

// integer writes n with separated thousands.
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

// share writes a fraction as a percentage; what is not zero never reads "0 %".
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
