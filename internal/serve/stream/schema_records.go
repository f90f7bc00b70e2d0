package stream

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"
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

// Integer returns the value of an Integer column, unless that is Value.Big.
func (r *Records) Integer(row, column int) int64 { return int64(r.at(row, column).n) }

// Real returns the value of a Real column.
func (r *Records) Real(row, column int) float64 { return math.Float64frombits(r.at(row, column).n) }

// Boolean returns the value of a Boolean column.
func (r *Records) Boolean(row, column int) bool { return r.at(row, column).n == 1 }

// Microseconds returns the value of a Timestamp column since 1970.
func (r *Records) Microseconds(row, column int) int64 { return int64(r.at(row, column).n) }

// Bytes returns the value of a Text, JSON or Bytes column, the digits of a Decimal column, the
// 16 bytes of a UUID column, or the JSON of an array. It must not be changed.
func (r *Records) Bytes(row, column int) []byte {
	v := r.at(row, column)
	start, length := v.n>>32, v.n&math.MaxUint32
	return r.arena[start : start+length : start+length]
}

// AppendTime appends the value of a Timestamp column as 2016-12-01 23:59:57.123456 in UTC,
// without a fraction if it is zero.
func (r *Records) AppendTime(dst []byte, row, column int) []byte {
	return Timestamp.AppendText(dst, r.Value(row, column))
}

// AppendUUID appends the value of a UUID column in the 8-4-4-4-12 form.
func (r *Records) AppendUUID(dst []byte, row, column int) []byte {
	return UUID.AppendText(dst, r.Value(row, column))
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

// grow adds a row of NULLs.
func (r *Records) grow() []value {
	base := len(r.values)
	r.values = append(r.values, make([]value, len(r.columns))...)
	return r.values[base:]
}
