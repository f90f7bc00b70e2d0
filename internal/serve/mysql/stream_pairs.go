package mysql

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/serve/stream"
)

// pair is a stream.Pair, the columns that it is about, and how its values are bound.
type pair struct {
	stream.Pair
	kinds string                 // types of columns, as in information_schema.columns
	only  func(tableColumn) bool // of these; nil: all
	bind  binder
}

// binder returns what is bound for a value. exact reports whether the column holds the value. If not,
// stream.Column.Round accepts what is bound.
type binder func(c *heldColumn, v stream.Value) (bound driver.Value, exact bool)

const (
	integers = "tinyint smallint mediumint int bigint"
	texts    = "varchar tinytext text mediumtext longtext"
	allTexts = "char " + texts
	blobs    = "varbinary tinyblob blob mediumblob longblob"

	inRange  = "in the range of the column"
	asText   = "whose text fits the column"
	anyText  = "CHAR(n), VARCHAR(n), TEXT"
	byScale  = "of up to s digits behind the point"
	toScale  = "rounds to s digits behind the point"
	byDigits = inRange + ", of up to p digits behind the point"
	toDigits = "rounds to p digits behind the point"
	noSpaces = "of up to n characters of its character set, without spaces at the end"
	padded   = "that fit, of its character set; in `key` without spaces at the end, unless the collation is NO PAD"
	numbers  = "whose numbers are integers of 64 bits, or have up to 15 digits; it orders the fields anew"
	spelled  = "addresses as the server writes them, such as `2001:db8::1`"
	coarse   = "only with `round: true`"
	toFloat  = "rounds to a float of 4 bytes, where a double keeps the value, and FLOAT(m,d) to d digits behind the point"
	toFixed  = "rounds to d digits behind the point, where DOUBLE keeps the value"
)

// pairs are all pairs of types that are exact.
var pairs = []pair{
	{of(stream.Integer, "TINYINT to BIGINT, also UNSIGNED", inRange, ""), integers, nil, bindNumber},
	{of(stream.Integer, "DECIMAL(p,s)", inRange, ""), "decimal", nil, bindNumber},
	{of(stream.Integer, "DOUBLE, DOUBLE(m,d)", inRange+", up to 2^53", ""), "double", nil, bindWhole},
	{of(stream.Integer, "BIT(n)", "from 0, of up to n bits", ""), "bit", nil, bindBits},
	{of(stream.Integer, "YEAR", "0, or 1901 to 2155", ""), "year", nil, bindYear},
	{of(stream.Integer, anyText, asText, ""), allTexts, nil, bindString},
	{of(stream.Real, "DOUBLE", "", ""), "double", tableColumn.floats, bindReal},
	{of(stream.Real, "DOUBLE(m,d)", coarse, toFixed), "double", nil, bindReal},
	{of(stream.Real, "FLOAT, FLOAT(m,d)", coarse, toFloat), "float", nil, bindFloat},
	{of(stream.Real, "DECIMAL(p,s), p up to 15", byScale, toScale), "decimal", tableColumn.isNarrow, bindRealDecimal},
	{of(stream.Decimal, "DECIMAL(p,s)", byScale, toScale), "decimal", nil, bindDecimal},
	{of(stream.Decimal, "BIGINT UNSIGNED, BIT(n)", "whole, "+inRange, ""), "bigint bit", tableColumn.isUnsigned, bindUnsigned},
	{of(stream.Decimal, anyText, asText, ""), allTexts, nil, bindString},
	{of(stream.Boolean, "TINYINT to BIGINT, BIT(n)", "", ""), integers + " bit", nil, bindNumber},
	{of(stream.Text, "CHAR(n)", noSpaces, ""), "char", tableColumn.keepsCharacters, bindText},
	{of(stream.Text, "VARCHAR(n), TEXT", padded, ""), texts, tableColumn.keepsCharacters, bindText},
	{of(stream.Text, "VARBINARY(n), BLOB", "of up to n bytes", ""), blobs, nil, bindBytes},
	{of(stream.Text, "BINARY(n)", "of n bytes", ""), "binary", nil, bindBytes},
	{of(stream.Text, "ENUM", "labels, as the type lists them", ""), "enum", nil, bindLabel},
	{of(stream.Text, "SET", "labels with commas between them, in the order of the type", ""), "set", nil, bindLabels},
	{of(stream.Text, "INET4, INET6", spelled, ""), "inet4 inet6", nil, bindAddress},
	{of(stream.JSON, "VARCHAR(n), TEXT, JSON of MariaDB", asText, ""), texts, tableColumn.keepsCharacters, bindString},
	{stream.Pair{Type: stream.JSON, Column: "JSON of MySQL", When: numbers}, "json", nil, bindJSON},
	{of(stream.Timestamp, "DATETIME(p), TIMESTAMP(p)", byDigits, toDigits), "datetime timestamp", nil, bindMoment},
	{of(stream.Timestamp, anyText, asText, ""), allTexts, nil, bindString},
	{of(stream.Date, "DATE", "", ""), "date", nil, bindString},
	{of(stream.Date, anyText, asText, ""), allTexts, nil, bindString},
	{of(stream.Time, "TIME(p)", byDigits, toDigits), "time", nil, bindMoment},
	{of(stream.Time, anyText, asText, ""), allTexts, nil, bindString},
	{of(stream.UUID, "UUID of MariaDB, CHAR(36), VARCHAR(n), TEXT", "", ""), "uuid " + allTexts, nil, bindString},
	{of(stream.Bytes, "VARBINARY(n), BLOB", "of up to n bytes", ""), blobs, nil, bindBytes},
	{of(stream.Bytes, "BINARY(n)", "of n bytes", ""), "binary", nil, bindBytes},
}

// of returns a pair that can be in a key, unless values are always rounded.
func of(t stream.Type, column, when, round string) stream.Pair {
	return stream.Pair{Type: t, Column: column, When: when, Key: when != coarse, Round: round}
}

// heldColumn is a column of the stream with that of its table.
type heldColumn struct {
	stream.Column
	tableColumn
	labels []string // of an ENUM or a SET
	isKey  bool
	strict bool // a text of a key that the collation must tell apart
	bind   binder
}

// pair finds how values are bound. It returns an error if the column does not hold them exactly.
func (c *heldColumn) pair() error {
	var fits []stream.Pair
	for _, p := range pairs {
		if !slices.Contains(strings.Fields(p.kinds), c.kind) || p.only != nil && !p.only(c.tableColumn) {
			continue
		}
		fits = append(fits, p.Pair)
		switch {
		case p.Type != c.Type || p.When == coarse && !c.Round:
			continue
		case c.isKey && !p.Key:
			return fmt.Errorf("key column %s is %s, where different values can be equal: use another column as key", c.Name, c.title())
		}
		c.bind, c.Round = p.bind, c.Round && p.Round != ""
		if c.isList() {
			c.labels = labelsOf(c.full)
		}
		return nil
	}
	return errors.New(stream.Unfit(c.Column, c.title(), fits))
}

// title returns the type of a column for messages.
func (c tableColumn) title() string {
	if c.isList() {
		return c.kind
	}
	return c.full
}

// value returns what is bound for a value of a row, or why the row is refused.
func (c *heldColumn) value(r stream.Row, column int) (bound driver.Value, reason string) {
	if r.Null(r.Row, column) {
		if c.kind == "timestamp" && !c.nullable {
			return nil, c.Name + ": must not be null: the database would store the present time" // without explicit_defaults_for_timestamp
		}
		return nil, ""
	}
	v := r.Value(r.Row, column)
	isFlag := strings.HasPrefix(c.full, "tinyint(1)") // which feeds write as true and false
	if c.Type.Special(v) || v.Loose && isFlag == (c.Type == stream.Boolean) {
		return nil, stream.Inexact(c.Name, c.Type.AppendText(nil, v), c.title())
	}
	bound, exact := c.bind(c, v)
	text, ok := bound.([]byte)
	if ok && text == nil {
		bound = []byte{} // nil would be NULL
	}
	if c.document && !isJSON(text) {
		return nil, c.Name + ": must be JSON, as its column is"
	}
	if exact && !c.alters(text) || c.Round {
		return bound, ""
	}
	reason = stream.Inexact(c.Name, c.Type.AppendText(nil, v), c.title())
	if bytes.HasSuffix(v.Bytes, []byte(" ")) {
		reason += ": it ends with a space"
	}
	return nil, reason
}

// unescaped undoes what the server does to the labels of a type, beside doubling quotes.
var unescaped = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\0`, "\x00")

// labelsOf returns the labels of a type such as enum('a','it”s').
func labelsOf(full string) (labels []string) {
	for {
		_, rest, found := strings.Cut(full, "'")
		if !found {
			return labels
		}
		label := ""
		for {
			var part string
			part, rest, _ = strings.Cut(rest, "'")
			label += part
			if !strings.HasPrefix(rest, "'") {
				break
			}
			label, rest = label+"'", rest[1:]
		}
		labels, full = append(labels, unescaped.Replace(label)), rest
	}
}

// isNarrow reports whether every decimal of a column has a double of its own.
func (c tableColumn) isNarrow() bool { return c.precision <= stream.RealDigits }

func (c tableColumn) isUnsigned() bool {
	return c.kind == "bit" || strings.Contains(c.full, "unsigned")
}

// floats reports whether a column keeps all digits of a real.
func (c tableColumn) floats() bool { return !strings.Contains(c.full, "(") }

// keepsCharacters reports whether a text comes back as it was sent. Of all character sets, cp932 gives a character back as another.
func (c tableColumn) keepsCharacters() bool { return c.charset != "cp932" }

// alters reports whether the server takes a character of a text as another. In tis620 it ignores the plane of a character.
func (c tableColumn) alters(text []byte) bool {
	return c.charset == "tis620" && bytes.ContainsFunc(text, func(r rune) bool { return r > math.MaxUint16 })
}

func bindNothing(*heldColumn, stream.Value) (driver.Value, bool) { return nil, true }

// bindNumber binds a whole number. The server refuses one that is out of range.
func bindNumber(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	if v.Big {
		return uint64(v.N), true
	}
	return v.N, true
}

func bindReal(_ *heldColumn, v stream.Value) (driver.Value, bool) { return v.Real(), true }

func bindWhole(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	return float64(v.N), !v.Big && v.N >= -stream.WholeMax && v.N <= stream.WholeMax
}

func bindFloat(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	near := float64(float32(v.Real())) // the server refuses what is above the largest float, although it rounds to it
	return near, near == v.Real()
}

func bindBits(c *heldColumn, v stream.Value) (driver.Value, bool) {
	return uint64(v.N), (v.N >= 0 || v.Big) && uint64(v.N)>>c.precision == 0
}

func bindYear(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	return v.N, v.N == 0 || v.N >= 1901 && v.N <= 2155
}

func bindDecimal(c *heldColumn, v stream.Value) (driver.Value, bool) {
	return v.Bytes, stream.DecimalFits(v.Bytes, c.precision, c.scale)
}

func bindRealDecimal(c *heldColumn, v stream.Value) (driver.Value, bool) {
	text := strconv.AppendFloat(nil, v.Real(), 'f', -1, 64)
	return text, stream.DecimalFits(text, c.precision, c.scale)
}

func bindUnsigned(c *heldColumn, v stream.Value) (driver.Value, bool) {
	n, err := strconv.ParseUint(string(stream.TrimDecimal(v.Bytes)), 10, 64)
	return n, err == nil && (c.kind != "bit" || n>>c.precision == 0)
}

// bindString binds a text without white space at its end: the server refuses one that is too long.
func bindString(c *heldColumn, v stream.Value) (driver.Value, bool) {
	switch c.Type {
	case stream.JSON:
		return v.Bytes, true
	case stream.Decimal:
		if c.isKey { // equal numbers need equal texts
			return stream.TrimDecimal(v.Bytes), true
		}
		return v.Bytes, true
	}
	return c.Type.AppendText(nil, v), true
}

func bindText(c *heldColumn, v stream.Value) (driver.Value, bool) {
	if len(v.Bytes) > c.length && c.cuts(v.Bytes) {
		return v.Bytes, false
	}
	return v.Bytes, !bytes.HasSuffix(v.Bytes, []byte(" ")) || c.kind != "char" && !(c.strict && c.padded())
}

func bindBytes(c *heldColumn, v stream.Value) (driver.Value, bool) {
	return v.Bytes, len(v.Bytes) == c.length || len(v.Bytes) < c.length && c.kind != "binary"
}

func bindLabel(c *heldColumn, v stream.Value) (driver.Value, bool) {
	return v.Bytes, slices.Contains(c.labels, string(v.Bytes))
}

func bindLabels(c *heldColumn, v stream.Value) (driver.Value, bool) {
	rest := c.labels
	for label := range strings.SplitSeq(string(v.Bytes), ",") {
		i := slices.Index(rest, label)
		if i < 0 {
			return v.Bytes, len(v.Bytes) == 0
		}
		rest = rest[i+1:]
	}
	return v.Bytes, true
}

// bindAddress binds an address as the server spells it.
func bindAddress(c *heldColumn, v stream.Value) (driver.Value, bool) {
	text := string(v.Bytes)
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4() != (c.kind == "inet4") || a.Zone() != "" {
		return v.Bytes, false
	}
	spelled := a.String()
	switch b, fields := a.As16(), strings.Split(spelled, ":"); {
	case a.Is4():
	case [12]byte(b[:12]) == [12]byte{} && (b[12] != 0 || b[13] != 0):
		spelled = "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	case len(fields) == 8 && !strings.Contains(spelled, "::") && slices.Contains(fields, "0"): // Go writes a lone zero
		i := slices.Index(fields, "0")
		spelled = strings.Join(fields[:i], ":") + "::" + strings.Join(fields[i+1:], ":")
	}
	return v.Bytes, spelled == text
}

// bindMoment binds a timestamp or a time.
func bindMoment(c *heldColumn, v stream.Value) (driver.Value, bool) {
	unit := int64(1)
	for range 6 - c.scale {
		unit *= 10
	}
	rest := ((v.N % unit) + unit) % unit
	rounded := v.N - rest
	if rest*2 >= unit && rest > 0 {
		rounded += unit
	}
	return c.Type.AppendText(nil, stream.Value{N: rounded}), rest == 0
}

// bindJSON binds JSON whose numbers MySQL keeps. It stores others as a double nearby.
func bindJSON(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	decoder := json.NewDecoder(bytes.NewReader(v.Bytes))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return v.Bytes, true
		}
		number, ok := token.(json.Number)
		if !ok {
			continue
		}
		text := number.String()
		if _, err := strconv.ParseInt(text, 10, 64); err == nil && text != "-0" {
			continue
		}
		if _, err := strconv.ParseUint(text, 10, 64); err == nil {
			continue
		}
		x, err := strconv.ParseFloat(text, 64)
		same, ok := stream.Decimal.ParseValue([]byte(text))
		shortest := strconv.FormatFloat(x, 'f', -1, 64)
		if err != nil || !ok || shortest != string(stream.TrimDecimal(same.Bytes)) || !precise(text) {
			return v.Bytes, false
		}
	}
}

// precise reports whether MySQL's JSON reads a number as the nearest double: its parser multiplies the
// digits by a power of ten, and both must be exact (RapidJSON, StrtodNormalPrecision).
func precise(number string) bool {
	const powerMax = 22
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	power, _ := strconv.Atoi(exponent) // 0 without one
	power -= len(fraction)
	return len(strings.TrimLeft(whole+fraction, "0")) <= stream.RealDigits && power >= -powerMax && power <= powerMax
}
