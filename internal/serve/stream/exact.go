package stream

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Pair is a type of a stream's column and a type of a table's column that holds its values exactly:
// what is read back equals what was sent. A stream with any other pair does not start.
type Pair struct {
	Type   Type
	Column string // as documents name it, such as numeric(p,s)
	When   string // the values that the column holds, in words; "": each. Others are refused
	Key    bool   // different values stay different in a unique index
	Round  string // what Column.Round makes of the other values, in words; "": they are refused
}

// Value is one value that is not NULL.
type Value struct {
	// N is an integer, 1 for true, the bits of a real, a date in days since 1970, and a timestamp since
	// 1970 or a time in microseconds.
	N     int64
	Big   bool   // uint64(N) is an integer above the range of int64, for columns without sign
	Loose bool   // an integer that was sent as true or false, or a boolean as 1 or 0: some feeds write so
	Bytes []byte // of other types, as Records.Bytes returns it
}

// Real returns the value of a Real.
func (v Value) Real() float64 { return math.Float64frombits(uint64(v.N)) }

// Value returns a value that is not NULL. It must not be changed.
func (r *Records) Value(row, column int) Value {
	v := r.at(row, column)
	if r.columns[column].kind.inArena() {
		return Value{Bytes: r.Bytes(row, column)}
	}
	return Value{N: int64(v.n), Big: v.big, Loose: v.loose}
}

// AppendText appends the text of a value: the shortest one of a real, a timestamp in UTC like
// 2016-12-01 23:59:57.5, and bytes in base64.
func (t Type) AppendText(dst []byte, v Value) []byte {
	if (t == Timestamp || t == Date) && t.Special(v) {
		return appendSpecial(dst, t, v.N)
	}
	switch t {
	case Integer:
		if v.Big {
			return strconv.AppendUint(dst, uint64(v.N), 10)
		}
		return strconv.AppendInt(dst, v.N, 10)
	case Real:
		return appendReal(dst, v.Real())
	case Boolean:
		return strconv.AppendBool(dst, v.N == 1)
	case Timestamp:
		return time.UnixMicro(v.N).UTC().AppendFormat(dst, "2006-01-02 15:04:05.999999")
	case Date:
		return time.Unix(v.N*secondsPerDay, 0).UTC().AppendFormat(dst, time.DateOnly)
	case Time:
		return appendClock(dst, v.N)
	case UUID:
		for i, digits := range []int{4, 2, 2, 2, 6} {
			if i > 0 {
				dst = append(dst, '-')
			}
			dst = hex.AppendEncode(dst, v.Bytes[:digits])
			v.Bytes = v.Bytes[digits:]
		}
		return dst
	case Bytes:
		return base64.StdEncoding.AppendEncode(dst, v.Bytes)
	}
	return append(dst, v.Bytes...)
}

const secondsPerDay = 24 * 60 * 60

// appendClock appends microseconds as 23:59:57.123456, without a fraction if it is zero.
func appendClock(dst []byte, micro int64) []byte {
	if micro < 0 {
		dst, micro = append(dst, '-'), -micro
	}
	seconds := micro / 1e6
	dst = fmt.Appendf(dst, "%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
	if fraction := micro % 1e6; fraction > 0 {
		dst = append(dst, bytes.TrimRight(fmt.Appendf(nil, ".%06d", fraction), "0")...)
	}
	return dst
}

// parseDate parses a date of the years 1 to 9999 and returns the days since 1970.
func parseDate(b []byte) (int64, bool) {
	t, err := time.Parse(time.DateOnly, string(b))
	return t.Unix() / secondsPerDay, err == nil && t.Year() >= 1
}

// parseClock parses a time of a day, or a longer one such as -838:59:59 with up to three digits of
// hours, and returns microseconds. exact is false if it has more digits than these.
func parseClock(b []byte) (micro int64, exact, ok bool) {
	clock, negative := bytes.CutPrefix(b, []byte("-"))
	clock, fraction, pointed := bytes.Cut(clock, []byte("."))
	n := len(clock) - len(":00:00")
	if n < 2 || n > 3 || clock[n] != ':' || clock[n+3] != ':' || !isDigits(fraction) || pointed && len(fraction) == 0 || len(fraction) > 9 {
		return 0, false, false
	}
	for i, part := range [][]byte{clock[:n], clock[n+1 : n+3], clock[n+4:]} {
		value, err := strconv.Atoi(string(part))
		if err != nil || !isDigits(part) || i > 0 && value > 59 {
			return 0, false, false
		}
		micro = micro*60 + int64(value)
	}
	fractional, exact := microseconds(fraction)
	micro = micro*1e6 + fractional
	if negative {
		micro = -micro
	}
	return micro, exact, true
}

// microseconds returns the digits behind the point of a second, rounded to six. exact is false if
// others are lost.
func microseconds(fraction []byte) (micro int64, exact bool) {
	const digits = 6
	unit := int64(100_000)
	for _, digit := range fraction[:min(len(fraction), digits)] {
		micro += int64(digit-'0') * unit
		unit /= 10
	}
	if len(fraction) <= digits {
		return micro, true
	}
	if fraction[digits] >= '5' {
		micro++
	}
	return micro, isZero(fraction[digits:])
}

// underflows reports whether a number is not zero, and its nearest double is.
func underflows(text []byte, x float64) bool {
	mantissa, _, _ := bytes.Cut(bytes.ToLower(text), []byte("e"))
	return x == 0 && bytes.ContainsAny(mantissa, "123456789")
}

// Element returns the type of an array's elements; false for other types.
func (t Type) Element() (Type, bool) {
	name, ok := strings.CutSuffix(string(t), "[]")
	return Type(name), ok && slices.Contains(elementTypes, Type(name))
}

var elementTypes = []Type{Integer, Real, Decimal, Text, Boolean, Timestamp, UUID, Date, Time, Bytes}

// ParseValue parses the text of a value that is not of a JSON or an array type.
func (t Type) ParseValue(text []byte) (Value, bool) {
	v, stored, ok := t.parse(string(text))
	if t.inArena() {
		return Value{Bytes: stored}, ok
	}
	return Value{N: int64(v.n), Big: v.big}, ok
}

// Array is the value of an array. It has at least one element in each dimension, or no dimension.
type Array struct {
	Dimensions []int
	Values     []*Value // nil: NULL; the last dimension varies first
}

// ParseArray parses the JSON of an array with elements of a type. ok is false if there are others, or
// if the arrays inside each other do not have the same length.
func ParseArray(element Type, text []byte) (a Array, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var tree []any
	if decoder.Decode(&tree) != nil || tree == nil {
		return a, false
	}
	if len(tree) == 0 {
		return a, true
	}
	for level := any(tree); ; {
		inner, nested := level.([]any)
		if !nested {
			break
		}
		if len(inner) == 0 {
			return a, false
		}
		a.Dimensions, level = append(a.Dimensions, len(inner)), inner[0]
	}
	return a, a.add(element, tree, a.Dimensions)
}

// add adds the elements of a part of an array that has these dimensions.
func (a *Array) add(element Type, part any, dimensions []int) bool {
	if list, nested := part.([]any); nested {
		return len(dimensions) > 0 && len(list) == dimensions[0] &&
			!slices.ContainsFunc(list, func(item any) bool { return !a.add(element, item, dimensions[1:]) })
	}
	var text []byte
	switch item := part.(type) {
	case nil:
		a.Values = append(a.Values, nil)
		return len(dimensions) == 0
	case string:
		text = []byte(item)
		if element == Boolean || (element == Integer || element == Real && !isSpecialNumber(text)) && !json.Valid(text) {
			return false
		}
	case json.Number:
		text = []byte(item)
		if element != Integer && element != Real && element != Decimal {
			return false
		}
	case bool:
		text = strconv.AppendBool(nil, item)
		if element != Boolean {
			return false
		}
	default:
		return false
	}
	v, ok := element.ParseValue(text)
	a.Values = append(a.Values, &v)
	return ok && len(dimensions) == 0
}

// Unfit returns why a column of the table does not take a stream's column. pairs are those of the
// table's column, whose type is kind.
func Unfit(c Column, kind string, pairs []Pair) string {
	reason := fmt.Sprintf("column %s is %s, which does not hold values of type %s exactly: ", c.Name, kind, c.Type)
	var fits []string
	rounds := ""
	for _, p := range pairs {
		if p.Type == c.Type {
			rounds = "set round: true in the stream's columns, which " + p.Round
		} else if !slices.Contains(fits, string(p.Type)) {
			fits = append(fits, string(p.Type))
		}
	}
	switch {
	case len(fits) == 0 && rounds == "":
		return reason + "no type of a stream's column does, so change the table or leave the column out"
	case len(fits) == 0:
		return reason + rounds
	case rounds != "":
		rounds = ", or " + rounds
	}
	return reason + "declare it as " + strings.Join(fits, " or ") + " in the stream's columns" + rounds
}

// CheckSeconds checks a column of timestamps whose column of the table has that type and digits of a second.
// It warns that milliseconds, which browsers send, are refused, and returns why the default now would
// be; "" if it is not.
func (c Column) CheckSeconds(log *slog.Logger, stream, kind string, digits int) string {
	const most, browser = 6, 3
	switch {
	case c.Round || strings.TrimSuffix(string(c.Type), "[]") != string(Timestamp):
	case c.Default != nil && *c.Default == Now && digits < most:
		return fmt.Sprintf("column %s is %s, and its default now has microseconds: set round: true in the stream's columns", c.Name, kind)
	case digits < browser:
		log.Warn("times with milliseconds, such as those of browsers, are rejected; set round: true in the stream's columns to round them",
			"stream", stream, "column", c.Name, "type", kind)
	}
	return ""
}

// WholeMax is 2^53: doubles hold all whole numbers up to it.
const WholeMax = 1 << 53

// Inexact says that a column does not hold a value.
func Inexact(name string, value []byte, kind string) string {
	const most = 50
	if len(value) > most {
		value = append(slices.Clone(value[:most]), "..."...)
	}
	return fmt.Sprintf("%s: %s cannot be stored exactly in a column of type %s", name, bytes.ToValidUTF8(value, nil), kind)
}
