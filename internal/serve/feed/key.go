package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ErrCursor marks a cursor that is damaged, belongs to another feed, or contains a value
// that its column does not accept. It is the client's mistake.
var ErrCursor = errors.New("the cursor does not belong to this feed")

// Key holds the values of one row's key columns, encoded by AppendKey. The engine compares
// keys only for equality and leaves the order to the database. A key has the same meaning
// in every process.
type Key string

// clone copies the key, which may share the memory of all keys of a snapshot.
func (k Key) clone() Key { return Key(strings.Clone(string(k))) }

// KeyKind is the storage class of one key value. SQLite stores a class with each value, and
// it helps to reject a forged cursor early.
type KeyKind byte

// The kinds of key values. All are encoded as text, except blobs.
const (
	KeyInteger KeyKind = 'i'
	KeyReal    KeyKind = 'r'
	KeyText    KeyKind = 't'
	KeyBlob    KeyKind = 'b'
)

// KeyValue is one column's value in a Key.
type KeyValue struct {
	Kind KeyKind
	Text string
}

// AppendKey appends one column's value to an encoded key: its kind, the length of its text
// as a uvarint, and its text.
func AppendKey(dst []byte, kind KeyKind, text []byte) []byte {
	dst = append(dst, byte(kind))
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}

// Values decodes the key into exactly n values. Every error wraps ErrCursor.
func (k Key) Values(n int) ([]KeyValue, error) {
	values := make([]KeyValue, 0, n)
	rest := []byte(k)
	for len(rest) > 0 {
		kind := KeyKind(rest[0])
		switch kind {
		case KeyInteger, KeyReal, KeyText, KeyBlob:
		default:
			return nil, fmt.Errorf("key value of unknown kind %q: %w", rest[0], ErrCursor)
		}
		length, used := binary.Uvarint(rest[1:])
		if used <= 0 || length > uint64(len(rest)-1-used) {
			return nil, fmt.Errorf("key value cut short: %w", ErrCursor)
		}
		rest = rest[1+used:]
		values = append(values, KeyValue{Kind: kind, Text: string(rest[:length])})
		rest = rest[length:]
	}
	if len(values) != n {
		return nil, fmt.Errorf("key of %d values where the feed has %d: %w", len(values), n, ErrCursor)
	}
	return values, nil
}

// Keyset writes the parts of a statement that select and order rows by a key, as every
// database reads them.
type Keyset struct {
	Key   []KeyColumn
	Quote func(name string) string
}

// Columns lists the names of the key columns.
func (k Keyset) Columns() string {
	return k.list(func(KeyColumn) string { return "" })
}

// Order lists the key columns with their directions, for ORDER BY.
func (k Keyset) Order() string {
	return k.list(func(c KeyColumn) string {
		if c.Ascending {
			return ""
		}
		return " DESC"
	})
}

func (k Keyset) list(suffix func(KeyColumn) string) string {
	names := make([]string, len(k.Key))
	for i, column := range k.Key {
		names[i] = k.Quote(column.Name) + suffix(column)
	}
	return strings.Join(names, ", ")
}

// Compare returns the condition that a row comes after a key, or with until that it does
// not. value writes the value of a column of that key. Each column is compared on its own,
// because their directions may differ.
func (k Keyset) Compare(until bool, value func(column int) string) string {
	last := len(k.Key) - 1
	text := fmt.Sprintf("%s %s %s", k.Quote(k.Key[last].Name), k.Key[last].Operator(until, true), value(last))
	for i := last - 1; i >= 0; i-- {
		name, v := k.Quote(k.Key[i].Name), value(i)
		text = fmt.Sprintf("(%s %s %s OR (%s = %s AND %s))", name, k.Key[i].Operator(until, false), v, name, v, text)
	}
	return text
}

// Operator compares a column's value with that of a key: the row comes after the key, or
// with until it does not. Equality is included with until, for the last column of a key.
func (c KeyColumn) Operator(until, last bool) string {
	op := "<"
	if c.Ascending != until {
		op = ">"
	}
	if until && last {
		op += "="
	}
	return op
}
