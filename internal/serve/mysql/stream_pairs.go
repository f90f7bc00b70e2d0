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
	kinds  string                 // types of columns, as in information_schema.columns
	only   func(tableColumn) bool // of these; nil: all
	bind   binder
	coarse bool // columns that hold few of the values: they need round: true
}

// binder returns what is bound for a value. exact reports whether the column holds the value. If not,
// stream.Column.Round accepts what is bound.
type binder func(c *heldColumn, v stream.Value) (bound driver.Value, exact bool)

const (
	integers = "tinyint smallint mediumint int bigint"
	moments  = "datetime timestamp"
	texts    = "varchar tinytext text mediumtext longtext"
	blobs    = "varbinary tinyblob blob mediumblob longblob"

	inRange = "in the range of the column"
	asText  = "whose text fits the column"
)

// pairs are all pairs of types that are exact.
var pairs = []pair{
	{Pair: stream.Pair{Type: stream.Integer, Column: "TINYINT to BIGINT", When: inRange, Key: true}, kinds: integers, bind: bindNumber},
	{Pair: stream.Pair{Type: stream.Integer, Column: "DECIMAL(p,s)", When: inRange, Key: true}, kinds: "decimal", bind: bindNumber},
	{Pair: stream.Pair{Type: stream.Integer, Column: "DOUBLE", When: "that a double equals: all up to 2^53", Key: true}, kinds: "double", bind: bindWhole},
	{Pair: stream.Pair{Type: stream.Integer, Column: "BIT(n)", When: "from 0, of up to n bits", Key: true}, kinds: "bit", bind: bindBits},
	{Pair: stream.Pair{Type: stream.Integer, Column: "YEAR", When: "0, or 1901 to 2155", Key: true}, kinds: "year", bind: bindYear},
	{Pair: stream.Pair{Type: stream.Integer, Column: "CHAR(n), VARCHAR(n), TEXT", When: asText, Key: true}, kinds: "char " + texts, bind: bindString},
	{Pair: stream.Pair{Type: stream.Real, Column: "DOUBLE", Key: true}, kinds: "double", bind: bindReal},
	{
		Pair: stream.Pair{
			Type: stream.Real, Column: "FLOAT", When: "only with `round: true`",
			Round: "rounds to a float of 4 bytes, where a double keeps the value",
		}, kinds: "float", bind: bindFloat, coarse: true,
	},
	{
		Pair: stream.Pair{
			Type: stream.Real, Column: "DECIMAL(p,s), p up to 15", When: "of up to s digits behind the point", Key: true,
			Round: "rounds to s digits behind the point",
		}, kinds: "decimal", only: func(c tableColumn) bool { return c.precision <= stream.RealDigits }, bind: bindRealDecimal,
	},
	{
		Pair: stream.Pair{
			Type: stream.Decimal, Column: "DECIMAL(p,s)", When: "of up to s digits behind the point", Key: true,
			Round: "rounds to s digits behind the point",
		}, kinds: "decimal", bind: bindDecimal,
	},
	{
		Pair:  stream.Pair{Type: stream.Decimal, Column: "BIGINT UNSIGNED, BIT(n)", When: "whole numbers in the range of the column", Key: true},
		kinds: "bigint bit", only: func(c tableColumn) bool { return c.kind == "bit" || strings.Contains(c.full, "unsigned") }, bind: bindUnsigned,
	},
	{Pair: stream.Pair{Type: stream.Decimal, Column: "CHAR(n), VARCHAR(n), TEXT", When: asText, Key: true}, kinds: "char " + texts, bind: bindString},
	{Pair: stream.Pair{Type: stream.Boolean, Column: "TINYINT to BIGINT, BIT(n)", Key: true}, kinds: integers + " bit", bind: bindNumber},
	{
		Pair:  stream.Pair{Type: stream.Text, Column: "CHAR(n)", When: "of up to n characters of its character set, without spaces at the end", Key: true},
		kinds: "char", only: tableColumn.keepsCharacters, bind: bindText,
	},
	{
		Pair: stream.Pair{
			Type: stream.Text, Column: "VARCHAR(n), TEXT",
			When: "that fit, of its character set; in `key` without spaces at the end, unless the collation is NO PAD", Key: true,
		}, kinds: texts, only: tableColumn.keepsCharacters, bind: bindText,
	},
	{Pair: stream.Pair{Type: stream.Text, Column: "VARBINARY(n), BLOB", When: "of up to n bytes", Key: true}, kinds: blobs, bind: bindBytes},
	{Pair: stream.Pair{Type: stream.Text, Column: "BINARY(n)", When: "of n bytes", Key: true}, kinds: "binary", bind: bindBytes},
	{Pair: stream.Pair{Type: stream.Text, Column: "ENUM", When: "labels, as the type lists them", Key: true}, kinds: "enum", bind: bindLabel},
	{
		Pair:  stream.Pair{Type: stream.Text, Column: "SET", When: "labels with commas between them, in the order of the type", Key: true},
		kinds: "set", bind: bindLabels,
	},
	{
		Pair:  stream.Pair{Type: stream.Text, Column: "INET4, INET6", When: "addresses as the server writes them, such as `2001:db8::1`", Key: true},
		kinds: "inet4 inet6", bind: bindAddress,
	},
	{Pair: stream.Pair{Type: stream.JSON, Column: "VARCHAR(n), TEXT, JSON of MariaDB", When: asText, Key: true}, kinds: texts, bind: bindString},
	{
		Pair:  stream.Pair{Type: stream.JSON, Column: "JSON of MySQL", When: "whose numbers are integers of 64 bits or doubles; it orders the fields anew"},
		kinds: "json", bind: bindJSON,
	},
	{
		Pair: stream.Pair{
			Type: stream.Timestamp, Column: "DATETIME(p), TIMESTAMP(p)", When: inRange + ", of up to p digits behind the point", Key: true,
			Round: "rounds to p digits behind the point",
		}, kinds: moments, bind: bindMoment,
	},
	{
		Pair: stream.Pair{
			Type: stream.Time, Column: "TIME(p)", When: inRange + ", of up to p digits behind the point", Key: true,
			Round: "rounds to p digits behind the point",
		}, kinds: "time", bind: bindMoment,
	},
	{Pair: stream.Pair{Type: stream.Date, Column: "DATE", Key: true}, kinds: "date", bind: bindString},
	{Pair: stream.Pair{Type: stream.Timestamp, Column: "CHAR(n), VARCHAR(n), TEXT", When: asText, Key: true}, kinds: "char " + texts, bind: bindString},
	{Pair: stream.Pair{Type: stream.Date, Column: "CHAR(n), VARCHAR(n), TEXT", When: asText, Key: true}, kinds: "char " + texts, bind: bindString},
	{Pair: stream.Pair{Type: stream.Time, Column: "CHAR(n), VARCHAR(n), TEXT", When: asText, Key: true}, kinds: "char " + texts, bind: bindString},
	{Pair: stream.Pair{Type: stream.UUID, Column: "UUID of MariaDB, CHAR(36), VARCHAR(n), TEXT", Key: true}, kinds: "uuid char " + texts, bind: bindString},
	{Pair: stream.Pair{Type: stream.Bytes, Column: "VARBINARY(n), BLOB", When: "of up to n bytes", Key: true}, kinds: blobs, bind: bindBytes},
	{Pair: stream.Pair{Type: stream.Bytes, Column: "BINARY(n)", When: "of n bytes", Key: true}, kinds: "binary", bind: bindBytes},
}

// Pairs returns the pairs of types that a stream accepts, for documents.
func Pairs() []stream.Pair {
	list := make([]stream.Pair, len(pairs))
	for i, p := range pairs {
		list[i] = p.Pair
	}
	return list
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
		case p.Type != c.Type || p.coarse && !c.Round:
			continue
		case c.isKey && !p.Key:
			return fmt.Errorf("key column %s is %s, where different values can be equal: use another column as key", c.Name, c.title())
		case c.Round && p.Round == "":
			return fmt.Errorf("column %s is %s, which does not round values of type %s: remove round: true", c.Name, c.title(), c.Type)
		}
		c.bind = p.bind
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
	bound, exact := c.bind(c, v)
	if text, ok := bound.([]byte); ok && text == nil {
		bound = []byte{} // nil would be NULL
	}
	if exact || c.Round {
		return bound, ""
	}
	reason = stream.Inexact(c.Name, c.Type.AppendText(nil, v), c.title())
	if bytes.HasSuffix(v.Bytes, []byte(" ")) {
		reason += ": it ends with a space"
	}
	return nil, reason
}

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
		labels, full = append(labels, label), rest
	}
}

// keepsCharacters reports whether a text comes back as it was sent. Of all character sets, cp932 gives a
// character back as another.
func (c tableColumn) keepsCharacters() bool { return c.charset != "cp932" }

func bindNothing(*heldColumn, stream.Value) (driver.Value, bool) { return nil, true }

func bindNumber(_ *heldColumn, v stream.Value) (driver.Value, bool) { return v.N, true }

func bindReal(_ *heldColumn, v stream.Value) (driver.Value, bool) { return v.Real(), true }

func bindWhole(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	x := float64(v.N)
	return x, x < math.MaxInt64 && int64(x) == v.N
}

func bindFloat(_ *heldColumn, v stream.Value) (driver.Value, bool) {
	return v.Real(), float64(float32(v.Real())) == v.Real()
}

func bindBits(c *heldColumn, v stream.Value) (driver.Value, bool) {
	return v.N, v.N >= 0 && v.N>>c.precision == 0
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

// bindString binds a text that has no space at its end: the server refuses one that is too long.
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
	if !bytes.HasSuffix(v.Bytes, []byte(" ")) {
		return v.Bytes, true
	}
	return v.Bytes, c.kind != "char" && !c.cuts(v.Bytes) && !(c.strict && c.padded())
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

// bindJSON binds JSON whose numbers MySQL keeps. It stores others as the nearest double.
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
		if shortest := strconv.FormatFloat(x, 'f', -1, 64); err != nil || !ok || shortest != string(stream.TrimDecimal(same.Bytes)) {
			return v.Bytes, false
		}
	}
}
