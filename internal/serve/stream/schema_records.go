package stream

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/param"
)

// heading is the name and the type of a column.
type heading struct {
	name string
	kind Type
}

// Records are the valid records of one request. They share one arena, and do not change
// after Parse has returned them.
type Records struct {
	columns []heading
	values  []value // row after row
	arena   []byte
	indexes []int32 // where in the request each record was
}

// Len returns how many records there are.
func (r *Records) Len() int { return len(r.indexes) }

// Size returns about how many bytes of memory the records use, reserved ones included.
func (r *Records) Size() int { return cap(r.arena) + 16*cap(r.values) + 4*cap(r.indexes) }

// slackMax is the unused space of an arena that is cheaper to keep than to copy.
const slackMax = 4096

// clip frees the space that was reserved for texts and not used.
func (r *Records) clip() {
	if cap(r.arena)-len(r.arena) > slackMax {
		r.arena = bytes.Clone(r.arena)
	}
}

// Index returns where in its request a record was, from 0.
func (r *Records) Index(row int) int { return int(r.indexes[row]) }

func (r *Records) at(row, column int) value { return r.values[row*len(r.columns)+column] }

// Null reports whether a value is NULL. The other methods then return zero values.
func (r *Records) Null(row, column int) bool { return !r.at(row, column).set }

// Bytes returns the value of a Text, JSON or Bytes column, the digits of a Decimal column, the
// 16 bytes of a UUID column, or the JSON of an array. It must not be changed.
func (r *Records) Bytes(row, column int) []byte {
	v := r.at(row, column)
	start, length := v.n>>32, v.n&math.MaxUint32
	return r.arena[start : start+length : start+length]
}

// lanes returns a bit for each of n lanes that the records belong to by a column; -1: none. A
// request without records, which has a key only, belongs to the first.
func (r *Records) lanes(n, column int) uint64 {
	if column < 0 {
		return 1
	}
	var mask uint64
	var scalar [8]byte
	for row := range r.Len() {
		key := scalar[:]
		switch t := r.columns[column].kind; {
		case t == Decimal:
			key = TrimDecimal(r.Bytes(row, column))
		case t.inArena():
			key = r.Bytes(row, column)
		default:
			binary.LittleEndian.PutUint64(key, r.at(row, column).n)
		}
		mask |= 1 << (xxhash.Sum64(key) % uint64(n))
	}
	return max(1, mask)
}

// keep adds bytes to the arena, as a value.
func (r *Records) keep(text []byte) value {
	r.arena = append(r.arena, text...)
	return span(len(r.arena)-len(text), len(text))
}

// parse parses a value that is not NULL, and keeps it. ok is false if the text is not of the type, which
// its caller has checked of a Text and a JSON.
func (r *Records) parse(t Type, text []byte) (v value, ok bool) {
	start := len(r.arena)
	switch t {
	case Text, JSON:
		return r.keep(text), true
	case Integer, Real, Boolean, Timestamp, Date, Time:
		return parseScalar(t, text)
	case Decimal:
		r.arena, ok = appendDecimal(r.arena, text)
	case UUID:
		var id [16]byte
		id, ok = param.ParseUUID(text)
		return r.keep(id[:]), ok
	case Bytes:
		var err error
		r.arena, err = base64.StdEncoding.Strict().AppendDecode(r.arena, text)
		ok = err == nil && !bytes.ContainsAny(text, "\r\n")
	default:
		element, _ := t.Element()
		_, ok = ParseArray(element, text)
		return r.keep(text), ok
	}
	return span(start, len(r.arena)-start), ok
}

// fallback returns the value of a column that a record of a time lacks. ok is false if the column has no
// default.
func (r *Records) fallback(c *column, micro int64) (v value, ok bool) {
	switch {
	case c.now:
		return value{n: uint64(micro), set: true}, true
	case c.hasDefault && c.Type.inArena():
		return r.keep(c.fallbackText), true
	}
	return c.fallback, c.hasDefault
}

// grow adds a row of NULLs.
func (r *Records) grow() []value {
	base := len(r.values)
	r.values = append(r.values, make([]value, len(r.columns))...)
	return r.values[base:]
}
