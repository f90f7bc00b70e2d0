package stream

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// recordsFormat begins the payload of an entry that holds records: name and type of each
// column, then the values, then what the schema refused.
const recordsFormat = "SWR1"

// appendRecords encodes the records from one row until another so that they can be decoded after
// the stream's columns have changed.
func appendRecords(b []byte, r *Records, from, until int, refused []Refusal) ([]byte, error) {
	b = append(b, recordsFormat...)
	b = binary.AppendUvarint(b, uint64(len(r.columns)))
	for _, c := range r.columns {
		b = queue.AppendBytes(b, c.name)
		b = queue.AppendBytes(b, string(c.kind))
	}
	b = binary.AppendUvarint(b, uint64(until-from))
	for row := from; row < until; row++ {
		b = binary.AppendUvarint(b, uint64(r.Index(row)))
		for i, c := range r.columns {
			v := r.at(row, i)
			if !v.set {
				b = append(b, 0)
				continue
			}
			switch {
			case c.kind.inArena():
				b = queue.AppendBytes(append(b, markPlain), r.Bytes(row, i))
			case v.big:
				b = binary.AppendUvarint(append(b, markBig), v.n)
			case c.kind == Integer || c.kind == Timestamp:
				b = binary.AppendVarint(append(b, v.mark()), int64(v.n))
			default:
				b = binary.LittleEndian.AppendUint64(append(b, v.mark()), v.n)
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

// The bytes before a value that is not NULL.
const (
	markPlain byte = iota + 1
	markBig
	markLoose
)

func (v value) mark() byte {
	if v.loose {
		return markLoose
	}
	return markPlain
}

// columnsMax is the maximum number of columns of a configuration, without Definition.Extra.
const columnsMax = 500

var errNotRecords = errors.New("the entry has no records that this program can decode")

// decodeRecords returns the records of an entry, with their columns as they were, and what the
// schema refused.
func decodeRecords(payload []byte) (*Records, []Refusal, error) {
	d := queue.Decoder{Rest: payload}
	if string(d.Take(len(recordsFormat))) != recordsFormat {
		return nil, nil, errNotRecords
	}
	columns := d.Uvarint()
	r := &Records{columns: make([]heading, 0, min(columns, columnsMax+1)), arena: payload}
	for range columns {
		c := heading{string(d.Bytes()), Type(d.Bytes())}
		r.columns = append(r.columns, c)
		if d.Bad || c.kind.describe() == "" || len(r.columns) > columnsMax+1 {
			return nil, nil, errNotRecords
		}
	}
	rows := d.Uvarint()
	for range rows {
		r.indexes = append(r.indexes, int32(d.Uvarint()))
		for _, c := range r.columns {
			r.values = append(r.values, decodeValue(&d, c.kind, payload))
		}
		if d.Bad {
			return nil, nil, errNotRecords
		}
	}
	var refused []Refusal
	if text := d.Bytes(); len(text) > 0 && json.Unmarshal(text, &refused) != nil || d.Bad || len(d.Rest) > 0 {
		return nil, nil, errNotRecords
	}
	return r, refused, nil
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
	case set[0] == markBig:
		return value{n: d.Uvarint(), set: true, big: true}
	case kind == Integer || kind == Timestamp:
		return value{n: uint64(d.Varint()), set: true, loose: set[0] == markLoose}
	}
	if bits := d.Take(8); bits != nil {
		return value{n: binary.LittleEndian.Uint64(bits), set: true, loose: set[0] == markLoose}
	}
	return value{}
}

// fit turns records into those of a schema, with the row that each was, and returns the rows that
// do not fit it. at is the time of the request.
func (r *Records) fit(schema *Schema, at time.Time) (*Records, []int, []deadRecord) {
	out := &Records{columns: schema.headings, arena: slices.Clip(r.arena)} // the payload must not be overwritten
	places := make([]int, len(r.columns))                                  // in the schema; -1: none
	for i, c := range r.columns {
		places[i] = slices.IndexFunc(schema.headings, func(now heading) bool { return now.name == c.name })
	}
	var origin []int
	var unfit []deadRecord
	for row := range r.Len() {
		if reason := r.move(row, out, schema, places, at); reason != "" {
			unfit = append(unfit, deadRecord{Row: row, Reason: reason})
			continue
		}
		origin = append(origin, row)
	}
	return out, origin, unfit
}

// move adds a row to records of a schema, or returns why it does not fit.
func (r *Records) move(row int, out *Records, schema *Schema, places []int, at time.Time) (reason string) {
	there := make([]bool, len(schema.columns))
	base := len(out.values)
	values := out.grow()
	for i, c := range r.columns {
		place, v := places[i], r.at(row, i)
		switch {
		case place >= 0 && (c.kind == schema.columns[place].Type || !v.set):
			values[place] = v
			there[place] = true
		case place >= 0 && schema.columns[place].Type == Decimal && (c.kind == Integer || c.kind == Real):
			values[place], _ = out.parse(Decimal, c.kind.AppendText(nil, r.Value(row, i))) // of a real, the shortest decimal
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
		default:
			known := false
			if values[i], known = out.fallback(&c, at.UnixMicro()); !known && c.Required {
				reason = fmt.Sprintf("column %s is required now", c.Name)
			}
		}
	}
	if reason != "" {
		out.values = out.values[:base]
		return reason
	}
	out.indexes = append(out.indexes, r.indexes[row])
	return ""
}

// SpooledJSON returns each record of an entry's payload as a JSON object, for people to
// read. For a payload without records it returns one string of base64.
func SpooledJSON(payload []byte) ([]json.RawMessage, error) {
	r, _, err := decodeRecords(payload)
	if err != nil {
		text, err := json.Marshal(base64.StdEncoding.EncodeToString(payload))
		return []json.RawMessage{text}, err
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
	for i, c := range r.columns {
		if r.Null(row, i) {
			continue
		}
		written := c.kind.AppendText(nil, r.Value(row, i))
		var field any = json.RawMessage(written)
		switch special := c.kind.Special(r.Value(row, i)); {
		case special, slices.Contains([]Type{Text, UUID, Date, Time, Bytes}, c.kind):
			field = string(written)
		case c.kind == Timestamp:
			field = time.UnixMicro(int64(r.at(row, i).n)).UTC()
		}
		text, err := json.Marshal(map[string]any{c.name: field})
		if err != nil {
			return nil, fmt.Errorf("encode column %s: %w", c.name, err)
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, text[1:len(text)-1]...)
	}
	return append(b, '}'), nil
}
