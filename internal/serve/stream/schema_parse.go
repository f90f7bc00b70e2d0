package stream

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Form is the format of a body.
type Form uint8

// The forms of a body.
const (
	FormJSON  Form = iota // one object, or an array of objects: the first byte decides
	FormLines             // one object per line (NDJSON); empty lines and a byte order mark are skipped
)

// FormOf returns the form of a Content-Type: FormLines for NDJSON, else FormJSON.
func FormOf(contentType string) Form {
	name, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines":
		return FormLines
	}
	return FormJSON
}

// Limits bound a body and its records.
type Limits struct {
	Bytes   int // of the body
	Records int // in it
	Depth   int // of nested objects and arrays; a record is the first
	Fields  int // of one object
}

// ErrBody is the error of a body that cannot be parsed at all; the text says why.
var ErrBody = errors.New("the body cannot be parsed")

// ErrTooMany is an ErrBody: the body has more than Limits.Records.
var ErrTooMany = errors.New("too many records")

// Refusal is a record that was refused, and why. Index counts the request's records from 0.
// Field is the name of the field at fault; "" if there is none.
type Refusal struct {
	Index  int    `json:"index"`
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
}

// Parse parses a body in one pass. It returns the valid records, and why each of the others
// is refused. now is the request's time, for the default Now. Parse does not keep body.
//
// An error wraps ErrBody: the body exceeds a limit (ErrTooMany: of records), or does not
// have its form. In NDJSON, a line that is not JSON is a Refusal.
//
// A record is refused for a value of the wrong type or out of bounds, a missing required
// field, a duplicate field, and an unknown field unless Definition.Extra stores it. It is
// refused too for a string that is not UTF-8, or contains NUL or half a surrogate pair.
func (s *Schema) Parse(body []byte, form Form, now time.Time, limits Limits) (*Records, []Refusal, error) {
	return s.ParseBound(body, form, now, limits, nil)
}

// ParseBound is Parse for a request whose JWT determines some columns. A record that has
// another value in one of them is refused.
func (s *Schema) ParseBound(body []byte, form Form, now time.Time, limits Limits, bound []Bound) (*Records, []Refusal, error) {
	if len(body) > limits.Bytes || len(body) > math.MaxInt32 {
		return nil, nil, fmt.Errorf("%w: it has %d bytes, more than %d", ErrBody, len(body), limits.Bytes)
	}
	p := parser{
		schema: s, limits: limits, now: now.UnixMicro(), data: body, bound: bound,
		records: &Records{columns: s.headings, arena: make([]byte, 0, s.arenaSize(body))}, seen: make([]bool, len(s.columns)),
	}
	var err error
	if form == FormLines {
		err = p.lines()
	} else {
		err = p.document()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrBody, err)
	}
	p.records.clip()
	return p.records, p.refused, nil
}

// arenaSize estimates the bytes of texts in a body.
func (s *Schema) arenaSize(body []byte) int {
	for _, c := range s.columns {
		if c.Type.inArena() {
			return len(body) / 2
		}
	}
	return 0
}

// parser reads one body.
type parser struct {
	scanner
	schema  *Schema
	limits  Limits
	now     int64
	data    []byte
	bound   []Bound
	records *Records
	refused []Refusal
	count   int // records seen

	// Of the current record:
	seen  []bool // the columns that it has
	flaw  Refusal
	extra []byte // its unknown fields, without the braces of an object
	names [][]byte
}

// lines reads NDJSON.
func (p *parser) lines() error {
	rest := bytes.TrimPrefix(p.data, byteOrderMark)
	for len(rest) > 0 {
		line, after, _ := bytes.Cut(rest, newline)
		rest = after
		p.data, p.at = line, 0
		p.space()
		if p.ended() {
			continue
		}
		if err := p.another(); err != nil {
			return err
		}
		if !p.line() {
			p.refuse("", fmt.Sprintf("is not JSON: %s at byte %d of its line", p.problem, p.at))
			p.refused = append(p.refused, p.flaw)
		}
	}
	return nil
}

var newline, byteOrderMark = []byte("\n"), []byte("\ufeff")

// line reads the one record of a line and reports whether the line is JSON.
func (p *parser) line() bool {
	before, refused := *p.records, len(p.refused)
	ok := p.record()
	if p.space(); ok && !p.ended() {
		ok = p.fail("more after the record")
	}
	if !ok {
		*p.records, p.refused = before, p.refused[:refused]
		p.flaw = Refusal{Index: p.count - 1}
	}
	return ok
}

// document reads an object or an array of objects.
func (p *parser) document() error {
	p.space()
	if p.ended() {
		return errors.New("it is empty")
	}
	if p.data[p.at] != '[' {
		if err := p.another(); err != nil {
			return err
		}
		if !p.record() {
			return p.syntax()
		}
		return p.end("more after the record: send NDJSON with Content-Type application/x-ndjson, or an array")
	}
	p.at++
	if p.space(); p.take(']') {
		return p.end("more after the array")
	}
	for {
		if err := p.another(); err != nil {
			return err
		}
		if p.space(); !p.record() {
			return p.syntax()
		}
		p.space()
		if p.take(']') {
			return p.end("more after the array")
		}
		if !p.take(',') {
			p.fail("no comma or ] after a record")
			return p.syntax()
		}
	}
}

func (p *parser) end(problem string) error {
	if p.space(); p.ended() {
		return nil
	}
	p.fail(problem)
	return p.syntax()
}

func (p *parser) syntax() error {
	return fmt.Errorf("it is not JSON: %s at byte %d", p.problem, p.at)
}

// another begins a record.
func (p *parser) another() error {
	if p.count >= p.limits.Records {
		return fmt.Errorf("%w: it has more than %d records", ErrTooMany, p.limits.Records)
	}
	p.flaw = Refusal{Index: p.count}
	p.extra, p.names = p.extra[:0], p.names[:0]
	p.count++
	return nil
}

// refuse notes the first flaw of the current record.
func (p *parser) refuse(field, reason string) {
	if p.flaw.Reason == "" {
		p.flaw.Field, p.flaw.Reason = field, reason
	}
}

// record reads one record, and adds or refuses it. It reports whether it is JSON.
func (p *parser) record() bool {
	if !p.take('{') {
		p.refuse("", "must be an object")
		ok := p.any(0)
		p.refused = append(p.refused, p.flaw)
		return ok
	}
	rows, texts := len(p.records.values), len(p.records.arena)
	row := p.records.grow()
	clear(p.seen)
	if !p.fields(row) {
		return false
	}
	p.complete(row)
	if p.flaw.Reason != "" {
		p.records.values, p.records.arena = p.records.values[:rows], p.records.arena[:texts]
		p.refused = append(p.refused, p.flaw)
		return true
	}
	p.records.indexes = append(p.records.indexes, int32(p.flaw.Index))
	return true
}

// fields reads a record after its opening brace.
func (p *parser) fields(row []value) bool {
	if p.space(); p.take('}') {
		return true
	}
	for next, members := 0, 1; ; members++ {
		raw, name, ok := p.name()
		if !ok {
			return false
		}
		if members > p.limits.Fields {
			p.refuse("", fmt.Sprintf("has more than %d fields", p.limits.Fields))
		}
		column := p.schema.column(name, next)
		if column < 0 {
			ok = p.unknown(raw, name)
		} else {
			next = column + 1
			ok = p.field(row, column)
		}
		if !ok {
			return false
		}
		if p.space(); p.take('}') {
			return true
		}
		if !p.take(',') {
			return p.fail("no comma or } after a field")
		}
		p.space()
	}
}

// name reads a field's name and its colon. raw is the name as written, with quotes.
func (p *parser) name() (raw, name []byte, ok bool) {
	start := p.at
	text, ok := p.text("")
	if !ok {
		return nil, nil, false
	}
	raw = p.data[start:p.at]
	if p.space(); !p.take(':') {
		return nil, nil, p.fail("no colon after a name")
	}
	p.space()
	return raw, text, true
}

// column returns the number of a column; -1 for none. Records usually have their fields in
// the same order, so the likely column is tried first.
func (s *Schema) column(name []byte, likely int) int {
	if likely < len(s.columns) && likely != s.extra && string(name) == s.columns[likely].Name {
		return likely
	}
	if i, ok := s.byName[string(name)]; ok {
		return i
	}
	return -1
}

// unknown reads the value of a field that has no column.
func (p *parser) unknown(raw, name []byte) bool {
	start := p.at
	if p.schema.extra < 0 {
		p.refuse(clip(name), "is not a field of this stream")
		return p.any(1)
	}
	p.own(0, name)
	if !p.any(1) {
		return false
	}
	if p.flaw.Reason != "" {
		return true
	}
	if len(p.extra) > 0 {
		p.extra = append(p.extra, ',')
	}
	p.extra = append(p.extra, raw...)
	p.extra = append(p.extra, ':')
	p.extra = append(p.extra, p.data[start:p.at]...)
	return true
}

// clip shortens a name for a message.
func clip(name []byte) string {
	const most = 64
	if len(name) > most {
		name = name[:most]
	}
	return strings.ToValidUTF8(string(name), "")
}

// complete sets the defaults of missing fields.
func (p *parser) complete(row []value) {
	if p.flaw.Reason != "" {
		return
	}
	for i := range p.bound {
		p.bind(row, &p.bound[i])
	}
	for i := range p.schema.columns {
		c := &p.schema.columns[i]
		switch {
		case i == p.schema.extra:
			start := len(p.records.arena)
			p.records.arena = append(p.records.arena, '{')
			p.records.arena = append(p.records.arena, p.extra...)
			p.records.arena = append(p.records.arena, '}')
			row[i] = span(start, len(p.records.arena)-start)
		case !p.seen[i]:
			known := false
			if row[i], known = p.records.fallback(c, p.now); !known && c.Required {
				p.refuse(c.Name, "is missing")
			}
		}
	}
}
