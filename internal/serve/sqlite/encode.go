package sqlite

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/feed"
)

// columnKind says how a column's declared type changes the JSON of its values. Otherwise
// the storage class decides: integers exactly, reals in the shortest form that reads back
// the same, text as a string, blobs as base64. SQLite has no type for times.
type columnKind int

const (
	plain    columnKind = iota
	boolean             // BOOLEAN, BOOL: 0 and 1 are false and true
	decimals            // DECIMAL, NUMERIC, also DECIMAL_TEXT: text that is a number is written as that number, to the digit
	document            // JSON, JSONB: text that is valid JSON is written as it is
	moment              // DATETIME, TIMESTAMP, with feed.Definition.RFC3339: text that is a time is written as RFC 3339
)

func kindOf(declared string) columnKind {
	declared = strings.ToUpper(declared)
	switch {
	case strings.HasPrefix(declared, "BOOL"):
		return boolean
	case strings.HasPrefix(declared, "DEC"), strings.HasPrefix(declared, "NUMERIC"):
		return decimals
	case strings.HasPrefix(declared, "JSON"):
		return document
	}
	return plain
}

// jsonOf returns the JSON type that the values of a declared type usually have.
func jsonOf(declared string) feed.JSONType {
	switch kindOf(declared) {
	case boolean:
		return feed.JSONFlag
	case decimals:
		return feed.JSONFloat
	case document:
		return feed.JSONAny
	case plain, moment:
	}
	switch affinityOf(declared) {
	case asInteger:
		return feed.JSONInteger
	case asReal:
		return feed.JSONFloat
	case asText:
		return feed.JSONString
	case asNumber, asBound:
	}
	return feed.JSONAny
}

// affinity says how a column's declared type changes values.
type affinity int

const (
	asNumber  affinity = iota // integers and reals, as which text is stored too
	asInteger                 // the same
	asReal                    // reals
	asText                    // text
	asBound                   // as bound
)

// affinityOf follows SQLite's rules for declared types.
func affinityOf(declared string) affinity {
	declared = strings.ToUpper(declared)
	contains := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(declared, part) })
	}
	switch {
	case contains("INT"):
		return asInteger
	case contains("CHAR", "CLOB", "TEXT"):
		return asText
	case contains("BLOB") || declared == "":
		return asBound
	case contains("REAL", "FLOA", "DOUB"):
		return asReal
	}
	return asNumber
}

// smallInteger matches declared types of integers that need fewer than 64 bits.
var smallInteger = regexp.MustCompile(`^(TINY|SMALL|MEDIUM)INT|^INT[24]\b`)

// momentType matches declared types of times, with the digits of their fraction.
var momentType = regexp.MustCompile(`^(?:DATETIME|TIMESTAMP)\s*(?:\(\s*([0-9])\s*\))?`)

// format sets how the source writes a column of a declared type, and the JSON type of that. A time
// has as many digits as its type says, or 6. Integers have 64 bits, unless the column is declared
// as smaller or BOOLEAN.
func (s *source) format(c *column, declared string) {
	declared = strings.ToUpper(declared)
	if match := momentType.FindStringSubmatch(declared); match != nil && s.def.RFC3339 {
		c.kind, c.digits = moment, 6
		if match[1] != "" {
			c.digits = int(match[1][0] - '0')
		}
	}
	c.text = s.def.NumbersAsText && c.kind != boolean && c.kind != document && !smallInteger.MatchString(declared)
	switch c.json = jsonOf(declared); {
	case c.kind == moment:
		c.json = feed.JSONTimestamp
	case c.text && (c.kind == decimals || c.json == feed.JSONInteger):
		c.json = feed.JSONString
	}
}

// row is the current row of a statement. It implements feed.Row.
type row struct {
	stmt     *sqlite.Stmt
	shape    *shape
	text     []byte // the current value
	keysOnly bool   // the statement's columns are those of the key
}

// AppendObject implements feed.Row.
func (r *row) AppendObject(dst []byte) []byte {
	for i := range r.shape.columns {
		dst = append(dst, r.shape.labels[i]...)
		dst = r.appendValue(dst, i, &r.shape.columns[i])
	}
	return append(dst, '}')
}

// AppendKey implements feed.Row.
func (r *row) AppendKey(dst []byte) ([]byte, error) {
	for i, position := range r.shape.keys {
		c := &r.shape.columns[position]
		if r.keysOnly {
			position = i
		}
		kind := feed.KeyText
		switch r.stmt.ColumnType(position) {
		case sqlite.TypeInteger:
			kind = feed.KeyInteger
			r.text = strconv.AppendInt(r.text[:0], r.stmt.ColumnInt64(position), 10)
		case sqlite.TypeFloat:
			kind = feed.KeyReal
			r.text = strconv.AppendFloat(r.text[:0], r.stmt.ColumnFloat(position), 'g', -1, 64)
		case sqlite.TypeText:
			r.readBytes(position)
		case sqlite.TypeBlob:
			kind = feed.KeyBlob
			r.readBytes(position)
		default:
			return dst, fmt.Errorf("%w (%s); exclude such rows from the statement", feed.ErrNullKey, c.name)
		}
		if !c.accepts(kind) {
			return dst, fmt.Errorf("the key column %s holds a value that is not of its declared type", c.name)
		}
		dst = feed.AppendKey(dst, kind, r.text)
	}
	return dst, nil
}

func (r *row) appendValue(dst []byte, i int, c *column) []byte {
	switch class := r.stmt.ColumnType(i); class {
	case sqlite.TypeInteger, sqlite.TypeFloat:
		start := len(dst)
		dst = r.appendNumber(dst, i, c.kind)
		if c.text && (class == sqlite.TypeInteger || c.kind == decimals) && dst[start] != '"' {
			dst = append(slices.Insert(dst, start, '"'), '"')
		}
		return dst
	case sqlite.TypeText:
		r.readBytes(i)
		if c.kind == decimals && !c.text && isNumber(r.text) || c.kind == document && isDocument(r.text) {
			return append(dst, r.text...)
		}
		if c.kind == moment {
			if done, ok := feed.AppendTime(dst, r.text, c.digits); ok {
				return done
			}
		}
		return feed.AppendString(dst, r.text)
	case sqlite.TypeBlob:
		r.readBytes(i)
		return feed.AppendBase64(dst, r.text)
	}
	return append(dst, "null"...)
}

func (r *row) appendNumber(dst []byte, i int, kind columnKind) []byte {
	if r.stmt.ColumnType(i) == sqlite.TypeFloat {
		return feed.AppendReal(dst, r.stmt.ColumnFloat(i), 64)
	}
	n := r.stmt.ColumnInt64(i)
	if kind == boolean && (n == 0 || n == 1) {
		return strconv.AppendBool(dst, n == 1)
	}
	return strconv.AppendInt(dst, n, 10)
}

// readBytes copies a text or a blob to r.text. The length is read first, because that
// makes SQLite convert the text of a UTF-16 file.
func (r *row) readBytes(i int) {
	n := r.stmt.ColumnLen(i)
	r.text = slices.Grow(r.text[:0], n)[:n]
	r.stmt.ColumnBytes(i, r.text)
}

// isNumber reports whether text is one JSON number.
func isNumber(text []byte) bool {
	if len(text) == 0 || text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return false
	}
	last := text[len(text)-1]
	return last >= '0' && last <= '9' && json.Valid(text)
}

func isDocument(text []byte) bool { return utf8.Valid(text) && json.Valid(text) }
