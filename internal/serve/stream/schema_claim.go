package stream

import (
	"bytes"
	"errors"
	"fmt"

	"spillway/internal/serve/param"
)

// ErrClaim is the error of a claim that a column cannot have. The text says why.
var ErrClaim = errors.New("the JWT lacks a claim")

// Bound is the value of one column for all records of a request. Use Schema.Bind.
type Bound struct {
	column int
	n      value  // of an integer
	text   []byte // of a text; the 16 bytes of a uuid
}

// Claims returns the claims that requests need, as parameters.
func (s *Schema) Claims() []param.Param {
	var claims []param.Param
	for _, c := range s.columns {
		if c.Claim != "" {
			claims = append(claims, param.Param{Name: param.ClaimPrefix + c.Claim, Type: param.Type(c.Type)})
		}
	}
	return claims
}

// Bind returns the values of the columns with a claim. claim returns the text of a claim, or
// "". Errors wrap ErrClaim.
func (s *Schema) Bind(claim func(name string) string) ([]Bound, error) {
	var all []Bound
	for i := range s.columns {
		c := &s.columns[i]
		if c.Claim == "" {
			continue
		}
		n, text, ok := c.Type.parse(claim(c.Claim))
		if !ok || c.Type == Text && len(text) == 0 {
			return nil, fmt.Errorf("%w: %s must be %s", ErrClaim, c.Claim, c.Type.describe())
		}
		if reason := c.outOfBounds(n, text); reason != "" {
			return nil, fmt.Errorf("%w that can be stored: %s %s", ErrClaim, c.Claim, reason)
		}
		all = append(all, Bound{i, n, text})
	}
	return all, nil
}

// bind sets a column of the current record. The record is refused if it has another value.
func (p *parser) bind(row []value, b *Bound) {
	c := &p.schema.columns[b.column]
	had := row[b.column]
	if c.Type == Integer {
		row[b.column] = b.n
	} else {
		row[b.column] = p.records.keep(b.text)
	}
	if p.seen[b.column] && !p.equal(c.Type, had, row[b.column]) {
		p.refuse(c.Name, "must be the claim "+c.Claim+" of the JWT")
	}
	p.seen[b.column] = true
}

// equal reports whether two values of a type are the same. NULL is only equal to itself.
func (p *parser) equal(t Type, a, b value) bool {
	if a.set != b.set || !t.inArena() {
		return a == b
	}
	text := func(v value) []byte { return p.records.arena[v.n>>32:][:uint32(v.n)] }
	return bytes.Equal(text(a), text(b))
}
