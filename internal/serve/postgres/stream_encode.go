package postgres

import (
	"encoding/binary"
	"math"

	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/stream"
)

// arrayType is the array that carries a column's values.
type arrayType struct {
	name string // of the element, in SQL
	oid  uint32 // of the element
}

var arrayTypes = map[stream.Type]arrayType{
	stream.Integer:   {"bigint", pgtype.Int8OID},
	stream.Real:      {"double precision", pgtype.Float8OID},
	stream.Text:      {"text", pgtype.TextOID},
	stream.Boolean:   {"boolean", pgtype.BoolOID},
	stream.Timestamp: {"timestamptz", pgtype.TimestamptzOID},
	stream.JSON:      {"jsonb", pgtype.JSONBOID},
	stream.UUID:      {"uuid", pgtype.UUIDOID},
}

// postgresEpoch is 2000-01-01 in microseconds since 1970.
const postgresEpoch = 946684800 * 1000000

// binaryFormat asks for binary parameters, all of them.
var binaryFormat = []int16{1}

// appendArrayHeader begins an array of n elements in PostgreSQL's binary form.
func appendArrayHeader(dst []byte, oid uint32, n int) []byte {
	if n == 0 {
		dst = binary.BigEndian.AppendUint32(dst, 0) // dimensions
		dst = binary.BigEndian.AppendUint32(dst, 0)
		return binary.BigEndian.AppendUint32(dst, oid)
	}
	dst = binary.BigEndian.AppendUint32(dst, 1) // dimensions
	dst = binary.BigEndian.AppendUint32(dst, 1) // there may be NULLs
	dst = binary.BigEndian.AppendUint32(dst, oid)
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	return binary.BigEndian.AppendUint32(dst, 1) // the first index
}

func appendElement(dst, element []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(element)))
	return append(dst, element...)
}

// encodeRows returns an array for each column of the rows.
func encodeRows(columns []stream.Column, rows []stream.Row) [][]byte {
	arrays := make([][]byte, len(columns))
	size := 0
	for _, r := range rows {
		if r.Row == 0 {
			size += r.Size()
		}
	}
	buffer := make([]byte, 0, size+len(columns)*(20+12*len(rows)))
	for i, c := range columns {
		start := len(buffer)
		buffer = appendColumn(buffer, i, c.Type, rows)
		arrays[i] = buffer[start:len(buffer):len(buffer)]
	}
	return arrays
}

func appendColumn(dst []byte, column int, t stream.Type, rows []stream.Row) []byte {
	dst = appendArrayHeader(dst, arrayTypes[t].oid, len(rows))
	for _, r := range rows {
		if r.Null(r.Row, column) {
			dst = binary.BigEndian.AppendUint32(dst, math.MaxUint32)
			continue
		}
		switch t {
		case stream.Integer:
			dst = binary.BigEndian.AppendUint32(dst, 8)
			dst = binary.BigEndian.AppendUint64(dst, uint64(r.Integer(r.Row, column)))
		case stream.Real:
			dst = binary.BigEndian.AppendUint32(dst, 8)
			dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(r.Real(r.Row, column)))
		case stream.Timestamp:
			dst = binary.BigEndian.AppendUint32(dst, 8)
			dst = binary.BigEndian.AppendUint64(dst, uint64(r.Microseconds(r.Row, column)-postgresEpoch))
		case stream.Boolean:
			dst = binary.BigEndian.AppendUint32(dst, 1)
			dst = append(dst, 0)
			if r.Boolean(r.Row, column) {
				dst[len(dst)-1] = 1
			}
		case stream.JSON:
			text := r.Bytes(r.Row, column)
			dst = binary.BigEndian.AppendUint32(dst, uint32(1+len(text)))
			dst = append(dst, 1) // jsonb's version
			dst = append(dst, text...)
		default:
			dst = appendElement(dst, r.Bytes(r.Row, column))
		}
	}
	return dst
}

// encodeIDs returns an array of batch ids.
func encodeIDs(ids [][16]byte) []byte {
	dst := appendArrayHeader(nil, pgtype.UUIDOID, len(ids))
	for _, id := range ids {
		dst = appendElement(dst, id[:])
	}
	return dst
}

// encodeKeys returns the arguments of the statement that stores keys.
func encodeKeys(name string, requests []*stream.Entry) ([][]byte, error) {
	n := len(requests)
	keys := appendArrayHeader(nil, pgtype.TextOID, n)
	fingerprints := appendArrayHeader(nil, pgtype.ByteaOID, n)
	outcomes := appendArrayHeader(nil, pgtype.ByteaOID, n)
	expiries := appendArrayHeader(nil, pgtype.TimestamptzOID, n)
	for _, e := range requests {
		outcome, err := e.OutcomeNow()
		if err != nil {
			return nil, err
		}
		keys = appendElement(keys, []byte(e.Key))
		fingerprints = appendElement(fingerprints, e.Fingerprint[:])
		outcomes = appendElement(outcomes, outcome)
		expiries = binary.BigEndian.AppendUint32(expiries, 8)
		expiries = binary.BigEndian.AppendUint64(expiries, uint64(e.Expires.UnixMicro()-postgresEpoch))
	}
	return [][]byte{[]byte(name), keys, fingerprints, outcomes, expiries}, nil
}
