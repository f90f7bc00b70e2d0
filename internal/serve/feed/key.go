package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrCursor marks a cursor that is broken, of another feed, or holds a value
// that the key's column refuses: the client's mistake, answered with 400.
var ErrCursor = errors.New("the cursor is not one of this feed's")

// Key holds the values of one row's key columns, encoded by AppendKey. To the
// engine it is opaque: it compares keys for equality only and leaves the order
// to the database. It means the same in every process.
type Key string

// KeyKind is the storage class of one key value, for databases that keep a
// class with each value (SQLite) and to refuse a forged cursor early.
type KeyKind byte

// The kinds of key values. Every value travels as text; blobs as raw bytes.
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

// AppendKey appends one column's value to an encoded key: its kind, the length
// of its text as a uvarint, its text.
func AppendKey(dst []byte, kind KeyKind, text []byte) []byte {
	dst = append(dst, byte(kind))
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}

// Values decodes the key into exactly n values; anything else wraps ErrCursor.
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
