package mysql

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"spillway/internal/serve/feed"
)

// columns says how the rows of one statement become JSON objects and keys. It is immutable.
type columns struct {
	names  []string
	types  []string // as the driver names them
	digits []int64  // of the fractions of times; nil if they do not matter
	labels [][]byte // by feed.Labels
	forms  []form
	key    []keyColumn
	keys   *columns // of the statement that selects the key alone

	decimals map[string]string // placeholders of filters on decimals, by name
}

// metadata is what a result tells about a column.
type metadata struct {
	name             string
	typ              string
	precision, scale int64 // of decimals; scale also of times
}

// metadataOf reads the columns of a result.
func metadataOf(rows driver.Rows) []metadata {
	var list []metadata
	typed, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	sized, _ := rows.(driver.RowsColumnTypePrecisionScale)
	for i, name := range rows.Columns() {
		m := metadata{name: name, typ: typed.ColumnTypeDatabaseTypeName(i)}
		if precision, scale, ok := sized.ColumnTypePrecisionScale(i); ok && (m.typ == "DECIMAL" || isInstant(m.typ)) {
			m.precision, m.scale = precision, scale
		}
		list = append(list, m)
	}
	return list
}

// encoder appends the JSON of a value that is not NULL: an int64, float32, float64 or bytes, as in the driver's binary protocol.
type encoder func(dst []byte, value driver.Value) []byte

// A subtype is what only the table tells about a column.
type subtype int

const (
	plain    subtype = iota
	boolean          // TINYINT(1): 0 and 1 are false and true
	document         // MariaDB's JSON: text whose validity a constraint checks
)

// newColumns prepares the columns of a result. It returns an error if a key column is missing or has a type that cannot be a key.
func newColumns(def feed.Definition, list []metadata, subtypes map[string]subtype) (*columns, error) {
	c := &columns{decimals: make(map[string]string)}
	for _, m := range list {
		if m.typ == "DECIMAL" {
			c.decimals[m.name] = m.decimal()
		}
		c.names, c.types = append(c.names, m.name), append(c.types, m.typ)
		c.forms = append(c.forms, formatOf(def, m).formOf(m.typ, subtypes[m.name]))
		if def.RFC3339 {
			c.digits = append(c.digits, m.scale)
		}
	}
	c.labels = feed.Labels(c.names)
	positions, err := def.KeyPositions(c.names)
	if err != nil {
		return nil, err
	}
	for _, i := range positions {
		k, err := newKeyColumn(i, list[i])
		if err != nil {
			return nil, err
		}
		c.key = append(c.key, k)
	}
	c.keys = c.keysOnly()
	return c, nil
}

// typeOf returns the type of a column; "" if it is not known.
func (c *columns) typeOf(name string) string {
	if i := slices.Index(c.names, name); i >= 0 {
		return c.types[i]
	}
	return ""
}

// same reports whether c and other describe the same rows.
func (c *columns) same(other *columns) bool {
	return slices.Equal(c.names, other.names) && slices.Equal(c.types, other.types) &&
		slices.Equal(c.digits, other.digits) && slices.Equal(c.key, other.key)
}

// matches reports whether rows have the columns that c was made for.
func (c *columns) matches(rows driver.Rows) bool {
	names := rows.Columns()
	if len(names) != len(c.names) {
		return false
	}
	typed, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	for i, name := range names {
		if name != c.names[i] || typed.ColumnTypeDatabaseTypeName(i) != c.types[i] {
			return false
		}
	}
	return c.digits == nil || slices.EqualFunc(metadataOf(rows), c.digits, func(m metadata, digits int64) bool { return m.scale == digits })
}

// keysOnly returns the columns of the statement that selects the key alone.
func (c *columns) keysOnly() *columns {
	keys := &columns{}
	for i, column := range c.key {
		keys.names = append(keys.names, c.names[column.index])
		keys.types = append(keys.types, c.types[column.index])
		column.index = i
		keys.key = append(keys.key, column)
	}
	return keys
}

// row is the current row of a statement. It implements feed.Row.
type row struct {
	*columns
	values []driver.Value
}

// AppendObject implements feed.Row.
func (r *row) AppendObject(dst []byte) []byte {
	for i, value := range r.values {
		dst = append(dst, r.labels[i]...)
		if value == nil {
			dst = append(dst, "null"...)
			continue
		}
		dst = r.forms[i].encode(dst, value)
	}
	return append(dst, '}')
}

// AppendKey implements feed.Row.
func (r *row) AppendKey(dst []byte) ([]byte, error) {
	for _, column := range r.key {
		value := r.values[column.index]
		if value == nil {
			return dst, fmt.Errorf("%w (%s); exclude such rows from the statement", feed.ErrNullKey, column.name)
		}
		text, err := column.text(value)
		if err != nil {
			return dst, err
		}
		dst = feed.AppendKey(dst, column.kind, text)
	}
	return dst, nil
}

// format says how a source writes the values of a column.
type format struct {
	rfc3339       bool
	digits        int // of a time's fraction, with rfc3339
	numbersAsText bool
}

func formatOf(def feed.Definition, m metadata) format {
	f := format{rfc3339: def.RFC3339, numbersAsText: def.NumbersAsText}
	const digitsMax = 6
	if isInstant(m.typ) && m.scale <= digitsMax { // otherwise the driver has cut the fraction off
		f.digits = int(m.scale)
	}
	return f
}

func isInstant(typ string) bool { return typ == "DATETIME" || typ == "TIMESTAMP" }

// form is how the values of a type are written.
type form struct {
	encode encoder
	json   feed.JSONType
}

// formOf returns the form of a type. Character strings, enumerations, sets and types that are
// not listed become strings. So do dates, which may have parts that are zero.
func (o format) formOf(typ string, f subtype) form {
	switch typ {
	case "TINYINT", "UNSIGNED TINYINT":
		if f == boolean {
			return form{appendBoolean, feed.JSONFlag}
		}
		return form{appendNumber, feed.JSONInteger}
	case "SMALLINT", "UNSIGNED SMALLINT", "MEDIUMINT", "UNSIGNED MEDIUMINT", "INT", "UNSIGNED INT", "YEAR":
		return form{appendNumber, feed.JSONInteger}
	case "BIGINT", "UNSIGNED BIGINT":
		if o.numbersAsText {
			return form{appendQuotedNumber, feed.JSONString}
		}
		return form{appendNumber, feed.JSONInteger}
	case "DECIMAL":
		if o.numbersAsText {
			return form{appendQuotedNumber, feed.JSONString}
		}
		return form{appendNumber, feed.JSONNumber}
	case "FLOAT", "DOUBLE":
		return form{appendNumber, feed.JSONNumber}
	case "BIT":
		return form{appendBits, feed.JSONInteger}
	case "DATE":
		return form{appendTime, feed.JSONString}
	case "DATETIME":
		if o.rfc3339 {
			return form{o.appendTime, feed.JSONTimestamp}
		}
		return form{appendTime, feed.JSONString}
	case "TIMESTAMP":
		if o.rfc3339 {
			return form{o.appendTime, feed.JSONTimestamp}
		}
		return form{appendInstant, feed.JSONTimestamp}
	case "TIME":
		return form{appendClock, feed.JSONString}
	case "JSON":
		return form{appendRaw, feed.JSONAny}
	case "NULL":
		return form{appendText, feed.JSONAny}
	case "BINARY", "VARBINARY", "BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "GEOMETRY", "VECTOR":
		return form{appendBytes, feed.JSONBytes}
	}
	if f == document {
		return form{appendDocument, feed.JSONAny}
	}
	return form{appendText, feed.JSONString}
}

func appendText(dst []byte, value driver.Value) []byte {
	return feed.AppendString(dst, bytesOf(value))
}

func appendBytes(dst []byte, value driver.Value) []byte {
	return feed.AppendBase64(dst, bytesOf(value))
}

func appendRaw(dst []byte, value driver.Value) []byte { return append(dst, bytesOf(value)...) }

func appendBits(dst []byte, value driver.Value) []byte {
	return strconv.AppendUint(dst, bitsOf(bytesOf(value)), 10)
}

func appendClock(dst []byte, value driver.Value) []byte {
	return feed.AppendPlain(dst, trimFraction(bytesOf(value)))
}

func appendQuotedNumber(dst []byte, value driver.Value) []byte {
	return append(appendNumber(append(dst, '"'), value), '"')
}

// bytesOf returns the text of a value.
func bytesOf(value driver.Value) []byte {
	switch v := value.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return fmt.Append(nil, value)
}

// appendNumber appends a number exactly: reals in the shortest form that reads back the
// same, others unchanged except for the zeros of ZEROFILL.
func appendNumber(dst []byte, value driver.Value) []byte {
	switch v := value.(type) {
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case float64:
		return feed.AppendReal(dst, v, 64)
	case float32:
		return feed.AppendReal(dst, float64(v), 32)
	}
	text := bytesOf(value)
	if negative, rest := bytes.CutPrefix(text, []byte{'-'}); rest {
		dst, text = append(dst, '-'), negative
	}
	for len(text) > 1 && text[0] == '0' && text[1] != '.' {
		text = text[1:]
	}
	return append(dst, text...)
}

func appendBoolean(dst []byte, value driver.Value) []byte {
	if n, ok := value.(int64); ok && (n == 0 || n == 1) {
		return strconv.AppendBool(dst, n == 1)
	}
	return appendNumber(dst, value)
}

// bitsOf reads a BIT value, which is a number of up to 64 bits.
func bitsOf(text []byte) uint64 {
	var n uint64
	for _, b := range text {
		n = n<<8 | uint64(b)
	}
	return n
}

// appendTime appends a date or a time without a zone, "2016-12-01 23:59:57.25". The zero date, which a lax sql_mode allows, becomes null.
// A date with some zero parts is unchanged.
func appendTime(dst []byte, value driver.Value) []byte {
	text := bytesOf(value)
	if isZeroDate(text) {
		return append(dst, "null"...)
	}
	return feed.AppendPlain(dst, trimFraction(text))
}

// appendTime appends a DATETIME or a TIMESTAMP as RFC 3339. The zero date becomes null, and a date with some zero parts is unchanged.
func (o format) appendTime(dst []byte, value driver.Value) []byte {
	if done, ok := feed.AppendTime(dst, bytesOf(value), o.digits); ok {
		return done
	}
	return appendTime(dst, value)
}

// appendInstant appends a TIMESTAMP as RFC 3339. The session is in UTC.
func appendInstant(dst []byte, value driver.Value) []byte {
	text := trimFraction(bytesOf(value))
	if isZeroDate(text) {
		return append(dst, "null"...)
	}
	date, clock, _ := bytes.Cut(text, []byte{' '})
	dst = append(dst, '"')
	dst = append(dst, date...)
	dst = append(dst, 'T')
	dst = append(dst, clock...)
	return append(dst, 'Z', '"')
}

func isZeroDate(text []byte) bool { return bytes.HasPrefix(text, []byte("0000-00-00")) }

// trimFraction removes zeros at the end of a fraction, so that the text does not depend on the column's declaration.
func trimFraction(text []byte) []byte {
	if bytes.IndexByte(text, '.') < 0 {
		return text
	}
	return bytes.TrimRight(bytes.TrimRight(text, "0"), ".")
}

func appendDocument(dst []byte, value driver.Value) []byte {
	text := bytesOf(value)
	if isJSON(text) {
		return append(dst, text...)
	}
	return feed.AppendString(dst, text)
}

func isJSON(text []byte) bool { return utf8.Valid(text) && json.Valid(text) }
