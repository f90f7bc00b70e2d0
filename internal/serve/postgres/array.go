package postgres

import (
	"bytes"

	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/feed"
)

// elementOf returns the element type of the arrays that become JSON arrays. Other arrays
// become strings.
func elementOf(array uint32) (uint32, bool) {
	switch array {
	case pgtype.Int2ArrayOID:
		return pgtype.Int2OID, true
	case pgtype.Int4ArrayOID:
		return pgtype.Int4OID, true
	case pgtype.Int8ArrayOID:
		return pgtype.Int8OID, true
	case pgtype.OIDArrayOID:
		return pgtype.OIDOID, true
	case pgtype.Float4ArrayOID:
		return pgtype.Float4OID, true
	case pgtype.Float8ArrayOID:
		return pgtype.Float8OID, true
	case pgtype.NumericArrayOID:
		return pgtype.NumericOID, true
	case pgtype.BoolArrayOID:
		return pgtype.BoolOID, true
	case pgtype.TextArrayOID, pgtype.VarcharArrayOID, pgtype.BPCharArrayOID, pgtype.NameArrayOID:
		return pgtype.TextOID, true
	case pgtype.UUIDArrayOID:
		return pgtype.UUIDOID, true
	case pgtype.DateArrayOID:
		return pgtype.DateOID, true
	case pgtype.TimeArrayOID:
		return pgtype.TimeOID, true
	case pgtype.TimestampArrayOID:
		return pgtype.TimestampOID, true
	case pgtype.TimestamptzArrayOID:
		return pgtype.TimestamptzOID, true
	case pgtype.JSONArrayOID:
		return pgtype.JSONOID, true
	case pgtype.JSONBArrayOID:
		return pgtype.JSONBOID, true
	case pgtype.ByteaArrayOID:
		return pgtype.ByteaOID, true
	}
	return 0, false
}

// appendArray appends an array as a JSON array; dimensions are nested. Text that is not an
// array in PostgreSQL's text format becomes a string.
func appendArray(dst, text []byte, encode encoder) []byte {
	body := text
	if len(text) > 0 && text[0] == '[' { // [0:1]={...} has bounds that do not start at 1
		body = text[bytes.IndexByte(text, '=')+1:]
	}
	p := arrayParser{dst: dst, text: body, encode: encode}
	if !p.array() || len(p.text) > 0 {
		return feed.AppendString(p.dst[:len(dst)], text)
	}
	return p.dst
}

// arrayParser walks an array's text and appends JSON as it goes.
type arrayParser struct {
	dst    []byte
	text   []byte // the rest
	encode encoder
	value  []byte // scratch: the last quoted element
}

// array consumes {...} and reports whether it was present.
func (p *arrayParser) array() bool {
	if !p.take('{') {
		return false
	}
	p.dst = append(p.dst, '[')
	if p.take('}') {
		p.dst = append(p.dst, ']')
		return true
	}
	for {
		if !p.element() {
			return false
		}
		if p.take('}') {
			p.dst = append(p.dst, ']')
			return true
		}
		if !p.take(',') {
			return false
		}
		p.dst = append(p.dst, ',')
	}
}

func (p *arrayParser) element() bool {
	if len(p.text) == 0 {
		return false
	}
	switch p.text[0] {
	case '{':
		return p.array()
	case '"':
		if !p.quoted() {
			return false
		}
		p.dst = p.encode(p.dst, p.value)
		return true
	}
	end := bytes.IndexAny(p.text, ",}")
	if end <= 0 {
		return false
	}
	value := p.text[:end]
	p.text = p.text[end:]
	if bytes.EqualFold(value, []byte("NULL")) {
		p.dst = append(p.dst, "null"...)
		return true
	}
	p.dst = p.encode(p.dst, value)
	return true
}

// quoted consumes "..." into value, without the backslashes.
func (p *arrayParser) quoted() bool {
	p.value = p.value[:0]
	for i := 1; i < len(p.text); i++ {
		switch p.text[i] {
		case '"':
			p.text = p.text[i+1:]
			return true
		case '\\':
			i++
			if i == len(p.text) {
				return false
			}
		}
		p.value = append(p.value, p.text[i])
	}
	return false
}

func (p *arrayParser) take(b byte) bool {
	if len(p.text) == 0 || p.text[0] != b {
		return false
	}
	p.text = p.text[1:]
	return true
}
