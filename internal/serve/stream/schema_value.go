package stream

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"

	"spillway/internal/serve/param"
)

// value is one field. n is as Value.N, or a span of the records' arena.
type value struct {
	n   uint64
	set bool // false: NULL
	big bool // as Value.Big

	loose bool // as Value.Loose
}

// inArena reports whether the values of a type are spans of the records' arena.
func (t Type) inArena() bool {
	switch t {
	case Integer, Real, Boolean, Timestamp, Date, Time:
		return false
	}
	return true
}

func span(start, length int) value { return value{n: uint64(start)<<32 | uint64(length), set: true} }

// descriptions say what the JSON value of each type must be.
var descriptions = map[Type]string{
	Integer:   "a whole number of at most 64 bits",
	Real:      "a number within the range of a double",
	Decimal:   "a number, or a string that is one, of at most 1000 digits",
	Text:      "a string",
	Boolean:   "true or false",
	Timestamp: "a time like 2016-12-01T23:59:57Z",
	JSON:      "a JSON value",
	UUID:      "a UUID like 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
	Date:      "a date like 2016-12-01",
	Time:      "a time like 23:59:57",
	Bytes:     "a string of base64",
}

func (t Type) describe() string {
	if element, ok := t.Element(); ok {
		return "an array, of which each element is null or " + element.describe() + ", and arrays inside it have one length"
	}
	return descriptions[t]
}

// parseScalar parses a value that needs no arena.
func parseScalar(t Type, text []byte) (value, bool) {
	switch t {
	case Integer:
		if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
			return value{n: n, set: true, big: n > math.MaxInt64}, true
		}
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil && bytes.ContainsAny(text, ".eE") { // 1.00 and 1e3 are whole, too
			plain, ok := appendDecimal(nil, text)
			if plain = TrimDecimal(plain); ok && isDigits(bytes.TrimPrefix(plain, []byte("-"))) {
				return parseScalar(t, plain)
			}
		}
		return value{n: uint64(n), set: true}, err == nil
	case Real:
		x, err := strconv.ParseFloat(string(text), 64)
		finite := !math.IsNaN(x) && !math.IsInf(x, 0)
		return value{n: math.Float64bits(x), set: true}, err == nil && (finite || isSpecialNumber(text)) && !underflows(text, x)
	case Timestamp, Time:
		v, exact, ok := parseMoment(t, text)
		return v, ok && exact
	case Date:
		days, ok := parseDate(text)
		if !ok {
			days, _, ok = parseSpecial(Date, text)
		}
		return value{n: uint64(days), set: true}, ok
	case Boolean:
		yes := string(text) == "true"
		v := value{set: true}
		if yes {
			v.n = 1
		}
		return v, yes || string(text) == "false"
	}
	return value{}, false
}

// parseMoment parses a timestamp or a time, and rounds it to microseconds. exact is false if it had
// more digits.
func parseMoment(t Type, text []byte) (v value, exact, ok bool) {
	parse := parseTime
	if t == Time {
		parse = parseClock
	}
	micro, exact, ok := parse(text)
	if !ok && t == Timestamp {
		micro, exact, ok = parseSpecial(t, text)
	}
	return value{n: uint64(micro), set: true}, exact, ok
}

// outOfBounds returns why a value is refused; "" if it is not. text is the value of texts,
// json and decimals.
func (c *column) outOfBounds(v value, text []byte) string {
	below, above := c.min.set, c.max.set
	if c.Type == Decimal {
		below = below && compareDecimals(text, c.minText) < 0
		above = above && compareDecimals(text, c.maxText) > 0
	} else {
		below = below && less(c.Type, v, c.min)
		above = above && less(c.Type, c.max, v)
	}
	if c.Type == Real && math.IsNaN(math.Float64frombits(v.n)) || c.Type == Decimal && text[0] == 'N' { // NaN is in no range
		below, above = c.min.set, c.max.set
	}
	switch {
	case below:
		return c.belowMin
	case above:
		return c.aboveMax
	}
	if c.MaxLength == 0 || len(text) <= c.MaxLength {
		return ""
	}
	if c.Type == JSON || utf8.RuneCount(text) > c.MaxLength {
		return c.tooLong
	}
	return ""
}

func less(t Type, a, b value) bool {
	if t == Real {
		return math.Float64frombits(a.n) < math.Float64frombits(b.n)
	}
	if a.big || b.big {
		return b.big && (!a.big || a.n < b.n)
	}
	return int64(a.n) < int64(b.n)
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// Numbers of timestamps are milliseconds from March 1973 to the end of the year 9999. What is
// below would rather be seconds, and what is above microseconds.
const (
	MillisecondsMin = 100_000_000_000
	MillisecondsMax = 253_402_300_799_999
)

// parseTime parses an RFC 3339 time of the years 1 to 9999 and returns microseconds since
// 1970. exact is false if it has more digits than these. With a space between date and time, as
// databases write it, the zone may be missing: it is UTC then. Leap seconds are refused, because
// no database stores them.
func parseTime(b []byte) (micro int64, exact, ok bool) {
	t, fraction, zone, ok := param.CutTime(b)
	if !ok || len(zone) == 3 || len(zone) > 6 || len(zone) == 0 && b[10] != ' ' || t.Year() < 1 || t.Year() > 9999 {
		return 0, false, false
	}
	micro, exact = microseconds(fraction)
	return t.Unix()*1e6 + micro, exact, true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
