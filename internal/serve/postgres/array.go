package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/feed"
)

const macaddr8Array = 775 // which pgtype does not have

// catalog has the types of the elements of arrays.
type catalog struct {
	builtIn *pgtype.Map

	mu       sync.Mutex
	elements map[uint32]uint32 // of arrays that the database defines, such as those of enumerations; 0: the type is no array
}

// firstDefined is the smallest oid of a type that is not built in.
const firstDefined = 16384

// unknown returns the types of the fields that the catalog does not have.
func (c *catalog) unknown(fields []pgconn.FieldDescription) (oids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, field := range fields {
		if _, known := c.elements[field.DataTypeOID]; !known && field.DataTypeOID >= firstDefined {
			oids = append(oids, strconv.FormatUint(uint64(field.DataTypeOID), 10))
		}
	}
	return oids
}

// learn looks types up in the database.
func (c *catalog) learn(ctx context.Context, conn *pgconn.PgConn, oids []string) error {
	for _, oid := range oids {
		rows, err := texts(ctx, conn, "SELECT COALESCE(NULLIF(e.typbasetype, 0), e.oid)::text FROM pg_type t "+
			"JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid WHERE t.oid = $1::oid", oid)
		if err != nil {
			return fmt.Errorf("look up a type: %w", err)
		}
		element := uint64(0)
		if len(rows) == 1 {
			element, err = strconv.ParseUint(rows[0][0], 10, 32)
		}
		of, parseErr := strconv.ParseUint(oid, 10, 32)
		if err := cmp.Or(err, parseErr); err != nil {
			return fmt.Errorf("look up a type: %w", err)
		}
		c.mu.Lock()
		c.elements[uint32(of)] = uint32(element)
		c.mu.Unlock()
	}
	return nil
}

// element returns the type of an array's elements; false for other types.
func (c *catalog) element(oid uint32) (uint32, bool) {
	if oid == macaddr8Array {
		return pgtype.Macaddr8OID, true
	}
	if known, ok := c.builtIn.TypeForOID(oid); ok {
		array, ok := known.Codec.(*pgtype.ArrayCodec)
		if !ok || array.Delimiter == ';' { // of boxes
			return 0, false
		}
		return array.ElementType.OID, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.elements[oid]
	return element, element != 0
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
