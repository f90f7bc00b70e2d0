package postgres

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"spillway/internal/serve/stream"
)

// pair is a stream.Pair of base types: names of pg_type, or enum for each enumeration. An array on a
// column of arrays is a pair if their elements are.
type pair struct {
	stream.Pair
	bases string                               // separated by spaces
	fits  func(t *target) bool                 // whether the column holds some values; nil: yes
	holds func(t *target, v stream.Value) bool // whether it holds a value; nil: each
}

// Words of the pairs.
const (
	roundsDigits = "rounds to the column's digits"
	roundsDouble = "rounds to the nearest floating-point number"
	asPrinted    = "spelled as PostgreSQL does"
)

// pairs are all pairs that are exact. The documents have them too.
var pairs = []pair{
	{of(stream.Decimal, "numeric(p,s)", "that has these digits", true, roundsDigits), "numeric", nil, fitsDigits},
	{of(stream.Decimal, "text, varchar(n)", "up to n digits and signs", true, ""), "text varchar", nil, fitsLength},
	{of(stream.Integer, "bigint", "", true, ""), "int8", nil, between(math.MinInt64, math.MaxInt64)},
	{of(stream.Integer, "integer", "-2147483648 to 2147483647", true, ""), "int4", nil, between(math.MinInt32, math.MaxInt32)},
	{of(stream.Integer, "smallint", "-32768 to 32767", true, ""), "int2", nil, between(math.MinInt16, math.MaxInt16)},
	{of(stream.Integer, "oid", "0 to 4294967295", true, ""), "oid", nil, between(0, math.MaxUint32)},
	{of(stream.Integer, "double precision", "up to 2^53, also below zero", true, roundsDouble), "float8", nil, between(-1<<53, 1<<53)},
	{of(stream.Integer, "real", "up to 2^24, also below zero", true, roundsDouble), "float4", nil, between(-1<<24, 1<<24)},
	{of(stream.Integer, "numeric(p,s)", "that has these digits", true, roundsDigits), "numeric", nil, fitsDigits},
	{of(stream.Integer, "text, varchar(n)", "up to n digits and signs", true, ""), "text varchar", nil, fitsLength},
	{of(stream.Real, "double precision", "", true, ""), "float8", nil, nil},
	{of(stream.Real, "real", "whose shortest decimal form it keeps, such as 0.1", true, roundsDouble), "float4", nil, isFloat4},
	{of(stream.Real, "numeric(p,s), p up to 15", "that has these digits", true, roundsDigits), "numeric", isNarrow, fitsDigits},
	{of(stream.Text, "text, varchar(n), citext", "up to n characters", true, ""), "text varchar citext", nil, fitsLength},
	{of(stream.Text, "char(n)", "n characters", true, "fills up with spaces"), "bpchar", isLimited, fitsLength},
	{of(stream.Text, "name", "up to 63 bytes", true, ""), "name", nil, isName},
	{of(stream.Text, "enumerations", "a label", true, ""), "enum", nil, nil},
	{of(stream.Text, "inet, cidr", asPrinted, true, ""), "inet cidr", nil, isAddress},
	{of(stream.Text, "macaddr, macaddr8", asPrinted, true, ""), "macaddr macaddr8", nil, isMAC},
	{of(stream.Text, "bit(n), bit varying(n)", "n, or up to n, of 0 and 1", true, ""), "bit varbit", nil, isBits},
	{of(stream.Text, "interval, interval(p)", asPrinted+", such as 1 day 02:03:04", false, ""), "interval", isWhole, isInterval},
	{of(stream.Text, "date", asPrinted+", such as 2016-12-01", true, ""), "date", nil, isPrinted(stream.Date)},
	{of(stream.Text, "time(p)", asPrinted+", such as 12:00:00.5", true, ""), "time", nil, isPrinted(stream.Time)},
	{of(stream.Text, "xml", "without a declaration (<?xml)", false, ""), "xml", nil, isUndeclared},
	{of(stream.Boolean, "boolean", "", true, ""), "bool", nil, nil},
	{of(stream.UUID, "uuid", "", true, ""), "uuid", nil, nil},
	{of(stream.UUID, "text, varchar(n), char(36)", "n of at least 36", true, ""), "text varchar bpchar", hasRoom, fitsLength},
	{of(stream.Timestamp, "timestamptz(p)", "with up to p digits of a second", true, roundsDigits), "timestamptz", nil, fitsSeconds},
	{of(stream.Timestamp, "timestamp(p)", "with up to p digits of a second, in UTC", true, roundsDigits), "timestamp", nil, fitsSeconds},
	{of(stream.Date, "date", "", true, ""), "date", nil, nil},
	{of(stream.Time, "time(p)", "00:00:00 to 24:00:00, with up to p digits of a second", true, roundsDigits), "time", nil, isTime},
	{of(stream.Bytes, "bytea", "", true, ""), "bytea", nil, nil},
	{of(stream.JSON, "json", "", false, ""), "json", nil, nil},
	{of(stream.JSON, "jsonb", "the same value in another spelling", false, ""), "jsonb", nil, nil},
	{of(stream.JSON, "text, varchar(n)", "up to n characters", true, ""), "text varchar", nil, fitsLength},
}

func of(t stream.Type, column, when string, key bool, round string) stream.Pair {
	return stream.Pair{Type: t, Column: column, When: when, Key: key, Round: round}
}

func between(least, most int64) func(*target, stream.Value) bool {
	return func(t *target, v stream.Value) bool {
		return t.column.Round && t.pair.Round != "" || v.N >= least && v.N <= most
	}
}

// text returns the text of a value as a column of texts has it.
func (t *target) text(v stream.Value) []byte { return t.element.AppendText(nil, v) }

// fitsDigits reports whether a numeric column holds a number.
func fitsDigits(t *target, v stream.Value) bool {
	if t.column.Round || t.modifier < 0 || string(t.text(v)) == "NaN" {
		return true
	}
	text := v.Bytes
	switch t.element {
	case stream.Integer:
		text = t.text(v)
	case stream.Real:
		text = strconv.AppendFloat(nil, v.Real(), 'f', -1, 64)
	}
	return !t.element.Special(v) && stream.DecimalFits(text, t.precision(), t.scale())
}

// precision returns the digits of a numeric column, and scale those behind the point. The server
// encodes both in the modifier.
func (t *target) precision() int { return (t.modifier - 4) >> 16 & 65535 }

func (t *target) scale() int { return (t.modifier-4)&2047 ^ 1024 - 1024 }

// fitsLength reports whether a column has as many characters as a value, and a char(n) no more.
func fitsLength(t *target, v stream.Value) bool {
	if t.element.Special(v) || !isLimited(t) {
		return !t.element.Special(v)
	}
	n := utf8.RuneCount(t.text(v))
	return n == t.modifier-4 || n < t.modifier-4 && (t.base != "bpchar" || t.column.Round)
}

// fitsSeconds reports whether a column has the digits of a second that a value has.
func fitsSeconds(t *target, v stream.Value) bool {
	return t.column.Round || t.isInfinite(v) || v.N%[]int64{1e6, 1e5, 1e4, 1e3, 1e2, 10, 1}[t.secondDigits()] == 0
}

// isInfinite reports whether a timestamp or a date is infinite.
func (t *target) isInfinite(v stream.Value) bool {
	return t.element != stream.Time && (v.N == stream.Infinity || v.N == stream.MinusInfinity)
}

// secondDigits returns the digits of a second.
func (t *target) secondDigits() int {
	const most = 6
	if digits := t.modifier & 65535; t.modifier >= 0 && digits <= most {
		return digits
	}
	return most
}

func isNarrow(t *target) bool {
	return t.column.Round || t.modifier >= 0 && t.precision() <= stream.RealDigits
}

func isLimited(t *target) bool { return t.modifier >= 4 }

// hasRoom reports whether a column holds UUIDs.
func hasRoom(t *target) bool {
	const length = 36
	n := t.modifier - 4
	return n == length || t.base != "bpchar" && (n > length || !isLimited(t))
}

// isWhole reports whether an interval column holds all fields, from years to seconds.
func isWhole(t *target) bool { return t.modifier < 0 || t.modifier>>16&0x7fff == 0x7fff }

// isFloat4 reports whether PostgreSQL writes a float of 4 bytes as the number that was sent. It writes
// no number in the middle of two floats, although such a number is read as one of them.
func isFloat4(t *target, v stream.Value) bool {
	const digits = -1 // as few as stand for the number
	x, near := v.Real(), float32(v.Real())
	middle := func(towards float64) bool {
		return x == (float64(near)+float64(math.Nextafter32(near, float32(towards))))/2
	}
	short := strconv.FormatFloat(float64(near), 'e', digits, 32)
	return t.column.Round || t.element.Special(v) ||
		short == strconv.FormatFloat(x, 'e', digits, 64) && !middle(math.Inf(1)) && !middle(math.Inf(-1))
}

func isName(_ *target, v stream.Value) bool {
	const most = 63
	return len(v.Bytes) <= most
}

func isUndeclared(_ *target, v stream.Value) bool {
	return !strings.HasPrefix(string(v.Bytes), "<?xml")
}

func isTime(t *target, v stream.Value) bool {
	const day = 24 * 3600 * 1e6
	return v.N >= 0 && v.N <= day && fitsSeconds(t, v)
}

// isPrinted reports whether a text is a date or a time as the server spells it.
func isPrinted(kind stream.Type) func(*target, stream.Value) bool {
	return func(t *target, v stream.Value) bool {
		read, ok := kind.ParseValue(v.Bytes)
		return ok && string(kind.AppendText(nil, read)) == string(v.Bytes) && (kind == stream.Date || isTime(t, read))
	}
}

func isBits(t *target, v stream.Value) bool {
	n := len(v.Bytes)
	return strings.Trim(string(v.Bytes), "01") == "" && (t.modifier < 0 || n == t.modifier || t.base == "varbit" && n < t.modifier)
}

// isMAC and isAddress report whether a value is an address of the column's type, as the server spells
// it.
func isMAC(t *target, v stream.Value) bool {
	mac, err := net.ParseMAC(string(v.Bytes))
	return err == nil && len(mac) == map[string]int{"macaddr": 6, "macaddr8": 8}[t.base] && mac.String() == string(v.Bytes)
}

func isAddress(t *target, v stream.Value) bool {
	text := string(v.Bytes)
	return text != "" && text == spellAddress(text, t.base == "cidr")
}

// spellAddress returns an address as the server spells it; "" if it is none.
func spellAddress(text string, network bool) string {
	prefix, err := netip.ParsePrefix(text)
	if addr, single := netip.ParseAddr(text); single == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil || network && prefix.Masked() != prefix {
		return ""
	}
	spelled := prefix.Addr().String()
	if b := prefix.Addr().As16(); prefix.Addr().Is6() && slices.Max(b[:12]) == 0 && (b[12] > 0 || b[13] > 0) {
		spelled = "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	}
	if network || !prefix.IsSingleIP() {
		spelled += "/" + strconv.Itoa(prefix.Bits())
	}
	return spelled
}

var intervalForm = regexp.MustCompile(`^(?:(-?\d{1,9}) years?)?(?: ?([+-]?\d{1,9}) mons?)?(?: ?([+-]?\d{1,9}) days?)?` +
	`(?: ?([+-]?)(\d{2,9}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?)?$`)

// isInterval reports whether a value is an interval as the server spells it.
func isInterval(t *target, v stream.Value) bool {
	text := string(v.Bytes)
	found := intervalForm.FindStringSubmatch(text)
	if found == nil {
		return text == "infinity" || text == "-infinity" // since PostgreSQL 17
	}
	number := func(group int) int64 {
		n, _ := strconv.ParseInt(found[group], 10, 64) // 0 if it is missing
		return n
	}
	var parts []string
	before, months := int64(0), 12*number(1)+number(2)
	add := func(n int64, part string) {
		if n > 0 && before < 0 {
			part = "+" + part
		}
		parts, before = append(parts, part), n
	}
	for i, n := range []int64{months / 12, months % 12, number(3)} {
		unit := []string{"year", "mon", "day"}[i]
		if n != 1 {
			unit += "s"
		}
		if n != 0 {
			add(n, fmt.Sprint(n, " ", unit))
		}
	}
	fraction, _ := strconv.ParseInt((found[8] + "000000")[:6], 10, 64)
	micro := ((number(5)*60+number(6))*60+number(7))*1e6 + fraction
	if found[4] == "-" {
		micro = -micro
	}
	if micro != 0 || len(parts) == 0 {
		add(micro, string(stream.Time.AppendText(nil, stream.Value{N: micro})))
	}
	return strings.Join(parts, " ") == text && len(found[8]) <= t.secondDigits()
}
