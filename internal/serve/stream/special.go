package stream

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"

	"spillway/internal/serve/param"
)

// Value.N of the timestamps and dates infinity and -infinity.
const (
	Infinity      = math.MaxInt64
	MinusInfinity = math.MinInt64
)

// Special reports whether a value is NaN, infinite, or a time outside of the years 1 to 9999. Few databases have
// such values, so an adapter must accept or refuse them.
func (t Type) Special(v Value) bool {
	switch t {
	case Real:
		return math.IsNaN(v.Real()) || math.IsInf(v.Real(), 0)
	case Decimal:
		return isSpecialNumber(v.Bytes)
	case Timestamp:
		return v.N < firstDay*microsPerDay || v.N >= (lastDay+1)*microsPerDay
	case Date:
		return v.N < firstDay || v.N > lastDay
	}
	return false
}

// Days since 1970, and how long the calendar takes to repeat itself.
const (
	firstDay     = -719162 // of the year 1
	lastDay      = 2932896 // of the year 9999
	cycleYears   = 400
	cycleDays    = 146097
	microsPerDay = secondsPerDay * 1e6
)

// isSpecialNumber reports whether a text, which is how feeds write them, is no number but a real or a decimal.
func isSpecialNumber(text []byte) bool {
	switch string(text) {
	case "NaN", "Infinity", "-Infinity":
		return true
	}
	return false
}

// parseSpecial parses a special timestamp or date as PostgreSQL writes it, such as 0044-03-15 12:00:00+00 BC.
func parseSpecial(t Type, text []byte) (n int64, exact, ok bool) {
	switch string(text) {
	case "infinity":
		return Infinity, true, true
	case "-infinity":
		return MinusInfinity, true, true
	}
	yearMax := map[Type]int{Timestamp: 294_246, Date: 5_874_897}[t]
	text, before := bytes.CutSuffix(text, []byte(" BC"))
	if before {
		yearMax = 4714
	}
	digits, rest, _ := bytes.Cut(text, []byte("-"))
	year, err := strconv.Atoi(string(digits))
	if err != nil || !isDigits(digits) || len(digits) < 4 || year < 1 || year > yearMax {
		return 0, false, false
	}
	if before {
		year = 1 - year
	}
	same := 5*cycleYears + (year%cycleYears+cycleYears)%cycleYears // a year with the same days
	near := fmt.Appendf(nil, "%d-%s", same, rest)
	if t == Date {
		near = append(near, " 00:00:00"...)
	}
	at, fraction, zone, ok := param.CutTime(near)
	seconds := at.Unix() + int64((year-same)/cycleYears*cycleDays)*secondsPerDay
	if t == Date {
		n = seconds / secondsPerDay
		return n, true, ok && len(zone) == 0 && t.Special(Value{N: n})
	}
	micro, exact := microseconds(fraction)
	n = seconds*1e6 + micro
	return n, exact, ok && (len(zone) > 0 || rest[len("01-02")] == ' ') && t.Special(Value{N: n})
}

// appendSpecial appends a special timestamp or date.
func appendSpecial(dst []byte, t Type, n int64) []byte {
	switch n {
	case Infinity:
		return append(dst, "infinity"...)
	case MinusInfinity:
		return append(dst, "-infinity"...)
	}
	at, layout := time.UnixMicro(n).UTC(), "-01-02 15:04:05.999999"
	if t == Date {
		at, layout = time.Unix(n*secondsPerDay, 0).UTC(), "-01-02"
	}
	if at.Year() < 1 {
		return append(at.AppendFormat(fmt.Appendf(dst, "%04d", 1-at.Year()), layout), " BC"...)
	}
	return at.AppendFormat(fmt.Appendf(dst, "%04d", at.Year()), layout)
}

// appendReal appends the shortest text of a real.
func appendReal(dst []byte, x float64) []byte {
	if math.IsInf(x, 1) {
		return append(dst, "Infinity"...)
	}
	if math.IsInf(x, -1) {
		return append(dst, "-Infinity"...)
	}
	return strconv.AppendFloat(dst, x, 'g', -1, 64)
}
