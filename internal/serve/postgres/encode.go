package postgres

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/feed"
)

// columns says how the rows of one statement become JSON objects and keys. It is
// immutable.
type columns struct {
	fields []pgconn.FieldDescription
	names  []string
	labels [][]byte // by feed.Labels
	forms  []form
	key    []int // positions of the key's columns
}

// encoder appends the JSON of a value that is not NULL, given in PostgreSQL's text format.
type encoder func(dst, text []byte) []byte

// newColumns prepares the columns of a result. It returns an error if a key column is
// missing or two columns have one name.
func newColumns(def feed.Definition, types *catalog, fields []pgconn.FieldDescription) (*columns, error) {
	c := &columns{fields: slices.Clone(fields)} // the slice belongs to the connection
	for _, field := range fields {
		if slices.Contains(c.names, field.Name) {
			return nil, fmt.Errorf("the statement has two columns named %s; rename one with AS", field.Name)
		}
		c.names = append(c.names, field.Name)
		c.forms = append(c.forms, formatOf(def, field.TypeModifier).formOf(types, field.DataTypeOID))
	}
	c.labels = feed.Labels(c.names)
	var err error
	c.key, err = def.KeyPositions(c.names)
	return c, err
}

// matches reports whether fields are those that c was made for.
func (c *columns) matches(fields []pgconn.FieldDescription) bool {
	return slices.EqualFunc(fields, c.fields, func(field, of pgconn.FieldDescription) bool {
		return field.DataTypeOID == of.DataTypeOID && field.TypeModifier == of.TypeModifier && field.Name == of.Name
	})
}

// row is the current row of a statement. It implements feed.Row.
type row struct {
	*columns
	values [][]byte
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
	for _, i := range r.key {
		value := r.values[i]
		if value == nil {
			return dst, fmt.Errorf("%w (%s); exclude such rows from the statement", feed.ErrNullKey, r.names[i])
		}
		dst = feed.AppendKey(dst, r.forms[i].key, value)
	}
	return dst, nil
}

// format says how a source writes the values of a column.
type format struct {
	rfc3339       bool
	digits        int // of a timestamp's fraction, with rfc3339
	numbersAsText bool
}

// formatOf returns the format of a column with a type's modifier.
func formatOf(def feed.Definition, modifier int32) format {
	const digitsMax = 6 // without a modifier
	f := format{rfc3339: def.RFC3339, digits: digitsMax, numbersAsText: def.NumbersAsText}
	if modifier >= 0 && modifier <= digitsMax {
		f.digits = int(modifier)
	}
	return f
}

// form is how the values of a type are written, and their kind in a key.
type form struct {
	encode encoder
	json   feed.JSONType
	key    feed.KeyKind
}

// formOf returns the form of a type. Types that are not listed, such as enumerations,
// composites and ranges, become strings. Dates and times that a standard format lacks
// (infinity, years BC) are strings too.
func (f format) formOf(types *catalog, oid uint32) form {
	switch oid {
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.OIDOID:
		return form{appendRaw, feed.JSONInteger, feed.KeyInteger}
	case pgtype.Int8OID:
		if f.numbersAsText {
			return form{feed.AppendPlain, feed.JSONString, feed.KeyInteger}
		}
		return form{appendRaw, feed.JSONInteger, feed.KeyInteger}
	case pgtype.NumericOID:
		if f.numbersAsText {
			return form{feed.AppendPlain, feed.JSONString, feed.KeyText}
		}
		return form{appendNumber, feed.JSONFloat, feed.KeyText}
	case pgtype.Float4OID, pgtype.Float8OID:
		return form{appendNumber, feed.JSONFloat, feed.KeyText}
	case pgtype.JSONOID, pgtype.JSONBOID:
		return form{appendRaw, feed.JSONAny, feed.KeyText}
	case pgtype.BoolOID:
		return form{appendBool, feed.JSONBoolean, feed.KeyText}
	case pgtype.UUIDOID:
		return form{feed.AppendPlain, feed.JSONUUID, feed.KeyText}
	case pgtype.ByteaOID:
		return form{appendBytea, feed.JSONBytes, feed.KeyText}
	case pgtype.DateOID:
		return form{feed.AppendPlain, feed.JSONDate, feed.KeyText}
	case pgtype.TimeOID:
		return form{feed.AppendPlain, feed.JSONString, feed.KeyText}
	case pgtype.TimestampOID:
		if f.rfc3339 {
			return form{f.appendTime, feed.JSONTimestamp, feed.KeyText}
		}
		return form{feed.AppendPlain, feed.JSONString, feed.KeyText}
	case pgtype.TimestamptzOID:
		if f.rfc3339 {
			return form{f.appendTime, feed.JSONTimestamp, feed.KeyText}
		}
		return form{appendTimestampTZ, feed.JSONTimestamp, feed.KeyText}
	}
	if element, ok := types.element(oid); ok {
		encode := f.formOf(types, element).encode
		return form{func(dst, text []byte) []byte { return appendArray(dst, text, encode) }, feed.JSONArray, feed.KeyText}
	}
	return form{feed.AppendString, feed.JSONString, feed.KeyText}
}

// described returns the columns as documents name them.
func (c *columns) described() []feed.Column {
	if c == nil {
		return nil
	}
	var all []feed.Column
	for i, field := range c.fields {
		all = append(all, feed.Column{Name: field.Name, JSON: c.forms[i].json, Null: !slices.Contains(c.key, i)})
	}
	return all
}

func appendRaw(dst, text []byte) []byte { return append(dst, text...) }

// appendNumber appends the digits unchanged. NaN and the infinities, which JSON lacks,
// become strings.
func appendNumber(dst, text []byte) []byte {
	if len(text) == 0 || text[len(text)-1] < '0' || text[len(text)-1] > '9' {
		return feed.AppendPlain(dst, text)
	}
	return append(dst, text...)
}

func appendBool(dst, text []byte) []byte {
	if len(text) > 0 && text[0] == 't' {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// appendTimestampTZ appends a time as RFC 3339: "2016-12-01 23:59:57+00" becomes
// "2016-12-01T23:59:57Z", also from a session in another zone. Infinity and years BC are unchanged.
func appendTimestampTZ(dst, text []byte) []byte {
	instant, ok := bytes.CutSuffix(text, []byte("+00"))
	space := bytes.IndexByte(instant, ' ')
	if !ok || space < 0 {
		return format{}.appendTime(dst, text)
	}
	dst = append(dst, '"')
	dst = append(dst, instant[:space]...)
	dst = append(dst, 'T')
	dst = append(dst, instant[space+1:]...)
	return append(dst, 'Z', '"')
}

// appendTime appends a timestamp as RFC 3339. Text that has no such form (infinity, years BC or
// beyond 9999) is unchanged.
func (f format) appendTime(dst, text []byte) []byte {
	if done, ok := feed.AppendTime(dst, text, f.digits); ok {
		return done
	}
	return feed.AppendPlain(dst, text)
}

// appendBytea appends bytes as base64. text is in PostgreSQL's hex format, or in the older
// escape format if the server is set to it.
func appendBytea(dst, text []byte) []byte {
	digits, ok := bytes.CutPrefix(text, []byte(`\x`))
	if !ok {
		return feed.AppendBase64(dst, unescapeBytea(text))
	}
	value := make([]byte, hex.DecodedLen(len(digits)))
	n, err := hex.Decode(value, digits)
	if err != nil { // the escape format of bytes that start with \x
		return feed.AppendBase64(dst, unescapeBytea(text))
	}
	return feed.AppendBase64(dst, value[:n])
}

// unescapeBytea decodes \\ and \ooo.
func unescapeBytea(text []byte) []byte {
	value := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != '\\':
			value = append(value, text[i])
		case i+3 < len(text) && text[i+1] != '\\':
			value = append(value, (text[i+1]-'0')<<6|(text[i+2]-'0')<<3|(text[i+3]-'0'))
			i += 3
		default:
			value = append(value, '\\')
			i++
		}
	}
	return value
}
