package stream

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"spillway/internal/serve/queue"
)

// recordsFormat begins the payload of an entry that holds records: name and type of each
// column, then the values, then what the schema refused.
const recordsFormat = "SWR1"

// spooledColumn is a column as it was when a record was accepted.
type spooledColumn struct {
	name string
	kind Type
}

// appendRecords encodes rows of records so that they can be decoded after the stream's
// columns have changed.
func appendRecords(b []byte, r *Records, rows []int, refused []Refusal) ([]byte, error) {
	b = append(b, recordsFormat...)
	b = binary.AppendUvarint(b, uint64(len(r.schema.columns)))
	for _, c := range r.schema.columns {
		b = queue.AppendBytes(b, c.Name)
		b = queue.AppendBytes(b, string(c.Type))
	}
	b = binary.AppendUvarint(b, uint64(len(rows)))
	for _, row := range rows {
		b = binary.AppendUvarint(b, uint64(r.Index(row)))
		for i, c := range r.schema.columns {
			v := r.at(row, i)
			if !v.set {
				b = append(b, 0)
				continue
			}
			b = append(b, 1)
			switch {
			case c.Type.inArena():
				b = queue.AppendBytes(b, r.Bytes(row, i))
			case c.Type == Integer || c.Type == Timestamp:
				b = binary.AppendVarint(b, int64(v.n))
			default:
				b = binary.LittleEndian.AppendUint64(b, v.n)
			}
		}
	}
	if len(refused) == 0 {
		return queue.AppendBytes(b, ""), nil
	}
	text, err := json.Marshal(refused)
	if err != nil {
		return nil, fmt.Errorf("encode refusals: %w", err)
	}
	return queue.AppendBytes(b, text), nil
}

// columnsMax is the maximum number of columns of a configuration, without Definition.Extra.
const columnsMax = 500

// allRows returns the numbers of n rows.
func allRows(n int) []int {
	rows := make([]int, n)
	for i := range rows {
		rows[i] = i
	}
	return rows
}

var errNotRecords = errors.New("the entry has no records that this program can decode")

// spooledRecords is the records of an entry, with their columns as they were.
type spooledRecords struct {
	columns []spooledColumn
	rows    []spooledRow
	arena   []byte // the payload
	refused []Refusal
}

type spooledRow struct {
	index  int32
	values []value
}

func decodeRecords(payload []byte) (*spooledRecords, error) {
	d := queue.Decoder{Rest: payload}
	if string(d.Take(len(recordsFormat))) != recordsFormat {
		return nil, errNotRecords
	}
	s := &spooledRecords{arena: payload}
	columns := d.Uvarint()
	s.columns = make([]spooledColumn, 0, min(columns, columnsMax+1))
	for range columns {
		c := spooledColumn{name: string(d.Bytes()), kind: Type(d.Bytes())}
		s.columns = append(s.columns, c)
		if d.Bad || c.kind.describe() == "" || len(s.columns) > columnsMax+1 {
			return nil, errNotRecords
		}
	}
	rows := d.Uvarint()
	for range rows {
		row := spooledRow{index: int32(d.Uvarint()), values: make([]value, len(s.columns))}
		for i, c := range s.columns {
			row.values[i] = decodeValue(&d, c.kind, payload)
		}
		if d.Bad {
			return nil, errNotRecords
		}
		s.rows = append(s.rows, row)
	}
	if text := d.Bytes(); len(text) > 0 && json.Unmarshal(text, &s.refused) != nil {
		return nil, errNotRecords
	}
	if d.Bad || len(d.Rest) > 0 {
		return nil, errNotRecords
	}
	return s, nil
}

// decodeValue decodes a value. Texts are spans of the payload.
func decodeValue(d *queue.Decoder, kind Type, payload []byte) value {
	set := d.Take(1)
	if set == nil || set[0] == 0 {
		return value{}
	}
	switch {
	case kind.inArena():
		text := d.Bytes()
		if kind == UUID && len(text) != 16 || kind == Decimal && !isDecimal(text) {
			d.Bad = true
		}
		return span(len(payload)-len(d.Rest)-len(text), len(text))
	case kind == Integer || kind == Timestamp:
		return value{n: uint64(d.Varint()), set: true}
	}
	if bits := d.Take(8); bits != nil {
		return value{n: binary.LittleEndian.Uint64(bits), set: true}
	}
	return value{}
}

// unfitRecord is a record that does not fit the schema, and why.
type unfitRecord struct {
	row    int
	reason string
}

// records turns the records of an entry into records of a schema, with the row in the entry
// of each, and returns those that no longer fit. at is the time of the request.
func (s *spooledRecords) records(schema *Schema, at time.Time) (*Records, []int, []unfitRecord) {
	out := &Records{schema: schema, arena: slices.Clip(s.arena)} // the payload must not be overwritten
	places := make([]int, len(s.columns))                        // in the schema; -1: none
	for i, c := range s.columns {
		places[i] = -1
		for j, now := range schema.columns {
			if now.Name == c.name {
				places[i] = j
			}
		}
	}
	var origin []int
	var unfit []unfitRecord
	for n, row := range s.rows {
		if reason := s.move(out, schema, places, row, at); reason != "" {
			unfit = append(unfit, unfitRecord{n, reason})
			continue
		}
		origin = append(origin, n)
	}
	return out, origin, unfit
}

// move adds a row to records, or returns why it does not fit.
func (s *spooledRecords) move(out *Records, schema *Schema, places []int, row spooledRow, at time.Time) (reason string) {
	there := make([]bool, len(schema.columns))
	base := len(out.values)
	values := out.grow()
	for i, v := range row.values {
		place, c := places[i], s.columns[i]
		switch {
		case place >= 0 && (c.kind == schema.columns[place].Type || !v.set):
			values[place] = v
			there[place] = true
		case place >= 0 && schema.columns[place].Type == Decimal && (c.kind == Integer || c.kind == Real):
			values[place] = out.addDecimal(c.kind, v)
			there[place] = true
		case v.set && place < 0:
			reason = fmt.Sprintf("the stream no longer has a column %s", c.name)
		case v.set:
			reason = fmt.Sprintf("column %s was %s and is %s now", c.name, c.kind, schema.columns[place].Type)
		}
	}
	for i, c := range schema.columns {
		switch {
		case there[i]:
			if c.Required && !values[i].set {
				reason = fmt.Sprintf("column %s must not be null now", c.Name)
			}
		case c.now:
			values[i] = value{n: uint64(at.UnixMicro()), set: true}
		case c.hasDefault && c.Type.inArena():
			values[i] = span(len(out.arena), len(c.fallbackText))
			out.arena = append(out.arena, c.fallbackText...)
		case c.hasDefault:
			values[i] = c.fallback
		case c.Required:
			reason = fmt.Sprintf("column %s is required now", c.Name)
		}
	}
	if reason != "" {
		out.values = out.values[:base]
		return reason
	}
	out.indexes = append(out.indexes, row.index)
	return ""
}

// addDecimal adds the value of an integer or a real to the arena as a decimal. That of a
// real is the shortest one that stands for it.
func (r *Records) addDecimal(kind Type, v value) value {
	start := len(r.arena)
	if kind == Integer {
		r.arena = strconv.AppendInt(r.arena, int64(v.n), 10)
	} else {
		r.arena = strconv.AppendFloat(r.arena, math.Float64frombits(v.n), 'f', -1, 64)
	}
	return span(start, len(r.arena)-start)
}

// SpooledJSON returns each record of an entry's payload as a JSON object, for people to
// read. For a payload without records it returns one string of base64.
func SpooledJSON(payload []byte) ([]json.RawMessage, error) {
	s, err := decodeRecords(payload)
	if err != nil {
		text, err := json.Marshal(base64.StdEncoding.EncodeToString(payload))
		return []json.RawMessage{text}, err
	}
	r := &Records{schema: &Schema{}, arena: s.arena}
	for _, c := range s.columns {
		r.schema.columns = append(r.schema.columns, column{Column: Column{Name: c.name, Type: c.kind}})
	}
	for _, row := range s.rows {
		r.values = append(r.values, row.values...)
		r.indexes = append(r.indexes, row.index)
	}
	objects := make([]json.RawMessage, 0, r.Len())
	for row := range r.Len() {
		object, err := r.object(row)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// object returns a record as a JSON object without the columns that are NULL.
func (r *Records) object(row int) (json.RawMessage, error) {
	b := []byte{'{'}
	for i, c := range r.schema.columns {
		if r.Null(row, i) {
			continue
		}
		var field any
		switch c.Type {
		case Integer:
			field = r.Integer(row, i)
		case Real:
			field = math.Float64frombits(r.at(row, i).n)
		case Boolean:
			field = r.Boolean(row, i)
		case Timestamp:
			field = time.UnixMicro(r.Microseconds(row, i)).UTC()
		case UUID:
			field = string(r.AppendUUID(nil, row, i))
		case JSON, Decimal:
			field = json.RawMessage(r.Bytes(row, i))
		default:
			field = string(r.Bytes(row, i))
		}
		text, err := json.Marshal(map[string]any{c.Name: field})
		if err != nil {
			return nil, fmt.Errorf("encode column %s: %w", c.Name, err)
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, text[1:len(text)-1]...)
	}
	return append(b, '}'), nil
}

// one encodes one row alone as it was accepted.
func (s *spooledRecords) one(row int) []byte {
	r := &Records{schema: &Schema{}, arena: s.arena, values: s.rows[row].values, indexes: []int32{s.rows[row].index}}
	for _, c := range s.columns {
		r.schema.columns = append(r.schema.columns, column{Column: Column{Name: c.name, Type: c.kind}})
	}
	b, _ := appendRecords(nil, r, []int{0}, nil) // cannot fail without refusals
	return b
}
