package postgres

import (
	"bytes"

	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/feed"
)

// elements are the types of the elements of arrays that become JSON arrays. Other arrays become
// strings.
var elements = map[uint32]uint32{
	pgtype.Int2ArrayOID:        pgtype.Int2OID,
	pgtype.Int4ArrayOID:        pgtype.Int4OID,
	pgtype.Int8ArrayOID:        pgtype.Int8OID,
	pgtype.OIDArrayOID:         pgtype.OIDOID,
	pgtype.Float4ArrayOID:      pgtype.Float4OID,
	pgtype.Float8ArrayOID:      pgtype.Float8OID,
	pgtype.NumericArrayOID:     pgtype.NumericOID,
	pgtype.BoolArrayOID:        pgtype.BoolOID,
	pgtype.TextArrayOID:        pgtype.TextOID,
	pgtype.VarcharArrayOID:     pgtype.TextOID,
	pgtype.BPCharArrayOID:      pgtype.TextOID,
	pgtype.NameArrayOID:        pgtype.TextOID,
	pgtype.UUIDArrayOID:        pgtype.UUIDOID,
	pgtype.DateArrayOID:        pgtype.DateOID,
	pgtype.TimeArrayOID:        pgtype.TimeOID,
	pgtype.TimestampArrayOID:   pgtype.TimestampOID,
	pgtype.TimestamptzArrayOID: pgtype.TimestamptzOID,
	pgtype.JSONArrayOID:        pgtype.JSONOID,
	pgtype.JSONBArrayOID:       pgtype.JSONBOID,
	pgtype.ByteaArrayOID:       pgtype.ByteaOID,
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
