package stream

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner is the position of a parser in its data.
type scanner struct {
	at      int
	problem string // why the data at that position is not JSON
	decoded []byte // the last string that had escapes
}

func (p *parser) ended() bool { return p.at >= len(p.data) }

// fail notes why the data is not JSON and returns false.
func (p *parser) fail(problem string) bool {
	p.problem = problem
	return false
}

func (p *parser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) take(c byte) bool {
	if p.at < len(p.data) && p.data[p.at] == c {
		p.at++
		return true
	}
	return false
}

// literal reads null, true or false.
func (p *parser) literal(word string) bool {
	if !bytes.HasPrefix(p.data[p.at:], []byte(word)) {
		return p.fail("no value")
	}
	p.at += len(word)
	return true
}

// field reads the value of a column. It reports whether it is JSON.
func (p *parser) field(row []value, column int) bool {
	c := &p.schema.columns[column]
	if p.seen[column] {
		p.refuse(c.Name, "is there twice")
	}
	p.seen[column] = true
	if p.ended() {
		return p.fail("no value")
	}
	first := p.data[p.at]
	if first == 'n' {
		if c.Required {
			p.refuse(c.Name, "must not be null")
		}
		return p.literal("null")
	}
	number := first == '-' || first >= '0' && first <= '9'
	switch c.Type {
	case Integer, Real, Decimal:
		if number || first == '"' {
			return p.numberField(row, column)
		}
		if p.schema.def.Loose && c.Type == Integer && (first == 't' || first == 'f') {
			return p.booleanField(row, column)
		}
	case Boolean:
		if first == 't' || first == 'f' || p.schema.def.Loose && (number || first == '"') {
			return p.booleanField(row, column)
		}
	case Text, Timestamp, UUID, Date, Time, Bytes:
		if first == '"' {
			return p.textField(row, column)
		}
		if number && c.Type == Timestamp {
			return p.numberField(row, column)
		}
	case JSON:
		return p.jsonField(row, column)
	default:
		if first == '[' {
			return p.jsonField(row, column)
		}
	}
	p.refuse(c.Name, c.wrongType)
	return p.any(1)
}

// booleanField reads true, false, 1 or 0, or a string that is one of these numbers.
func (p *parser) booleanField(row []value, column int) bool {
	c := &p.schema.columns[column]
	v, ok := value{set: true}, false
	switch p.data[p.at] {
	case 't':
		v.n, v.loose, ok = 1, c.Type == Integer, p.literal("true")
	case 'f':
		v.loose, ok = c.Type == Integer, p.literal("false")
	default:
		digit, _, isText := p.numberText(c.Name)
		if string(digit) == "1" {
			v.n = 1
		}
		v.loose = true
		return isText && p.set(row, column, v, nil, v.n == 1 || string(digit) == "0")
	}
	return ok && p.set(row, column, v, nil, true)
}

// numberText reads a number, or a string, and returns its text. number reports whether that is
// a JSON number.
func (p *parser) numberText(field string) (text []byte, number, ok bool) {
	start := p.at
	if p.data[start] != '"' {
		ok = p.number()
		return p.data[start:p.at], ok, ok
	}
	if text, ok = p.text(field); ok {
		inner := parser{data: text}
		number = inner.number() && inner.ended()
	}
	return text, number, ok
}

// set sets a column of the current record, unless the value does not fit its type. The record is
// refused if it does not, or is out of bounds. text is as for outOfBounds.
func (p *parser) set(row []value, column int, v value, text []byte, fits bool) bool {
	c := &p.schema.columns[column]
	if !fits || !p.schema.def.Special && c.Type.Special(Value{N: int64(v.n), Bytes: text}) {
		p.refuse(c.Name, c.wrongType)
		return true
	}
	if reason := c.outOfBounds(v, text); reason != "" {
		p.refuse(c.Name, reason)
	}
	row[column] = v
	return true
}

// numberField reads a number, or a string that is one. That of a timestamp is in milliseconds.
func (p *parser) numberField(row []value, column int) bool {
	c := &p.schema.columns[column]
	text, number, ok := p.numberText(c.Name)
	if !ok {
		return false
	}
	v, fits := value{}, false
	switch {
	case c.Type == Decimal:
		start := len(p.records.arena)
		v, fits = p.records.parse(Decimal, text)
		text = p.records.arena[start:]
	case c.Type == Timestamp && c.Format != UnixMS:
		p.refuse(c.Name, c.wrongNumber)
		return true
	case c.Type == Timestamp:
		n, err := strconv.ParseInt(string(text), 10, 64)
		v, fits = value{n: uint64(n * 1000), set: true}, err == nil && n >= MillisecondsMin && n <= MillisecondsMax
	case number || c.Type == Real && isSpecialNumber(text):
		v, fits = parseScalar(c.Type, text)
	}
	return p.set(row, column, v, text, fits)
}

func (p *parser) textField(row []value, column int) bool {
	c := &p.schema.columns[column]
	text, ok := p.text(c.Name)
	if !ok {
		return false
	}
	if c.Type == Timestamp || c.Type == Time {
		v, exact, fits := parseMoment(c.Type, text)
		if fits && !exact && !c.Round {
			p.refuse(c.Name, "has more than 6 digits behind the point; the stream's owner can set round: true")
		}
		return p.set(row, column, v, nil, fits)
	}
	v, fits := p.records.parse(c.Type, text)
	return p.set(row, column, v, text, fits)
}

func (p *parser) jsonField(row []value, column int) bool {
	start := p.at
	if !p.any(1) {
		return false
	}
	text := p.data[start:p.at]
	v, fits := p.records.parse(p.schema.columns[column].Type, text)
	return p.set(row, column, v, text, fits)
}

// any reads a value of any kind inside depth others and reports whether it is JSON.
func (p *parser) any(depth int) bool {
	if p.ended() {
		return p.fail("no value")
	}
	switch c := p.data[p.at]; c {
	case '{', '[':
		if depth >= p.limits.Depth {
			return p.fail(fmt.Sprintf("more than %d objects and arrays inside each other", p.limits.Depth))
		}
		p.at++
		if c == '{' {
			return p.object(depth)
		}
		return p.array(depth)
	case '"':
		_, ok := p.text("")
		return ok
	case 'n':
		return p.literal("null")
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	default:
		return p.anyNumber()
	}
}

// anyNumber reads a number inside a json value. It refuses numbers beyond a double, because
// databases that parse them as doubles would.
func (p *parser) anyNumber() bool {
	start := p.at
	if !p.number() {
		return false
	}
	const surelyFits = 15
	if text := p.data[start:p.at]; len(text) > surelyFits || bytes.ContainsAny(text, "eE") {
		if x, _ := strconv.ParseFloat(string(text), 64); math.IsInf(x, 0) || underflows(text, x) {
			p.refuse("", "a number is out of the range of a double")
		}
	}
	return true
}

func (p *parser) array(depth int) bool {
	if p.space(); p.take(']') {
		return true
	}
	for {
		if p.space(); !p.any(depth + 1) {
			return false
		}
		if p.space(); p.take(']') {
			return true
		}
		if !p.take(',') {
			return p.fail("no comma or ] after a value")
		}
	}
}

func (p *parser) object(depth int) bool {
	outer := len(p.names)
	defer func() { p.names = p.names[:outer] }()
	if p.space(); p.take('}') {
		return true
	}
	for {
		_, name, ok := p.name()
		if !ok {
			return false
		}
		p.own(outer, name)
		if !p.any(depth + 1) {
			return false
		}
		if p.space(); p.take('}') {
			return true
		}
		if !p.take(',') {
			return p.fail("no comma or } after a value")
		}
		p.space()
	}
}

// own notes a name of the object whose names begin at first. It refuses the record if the
// object has the name already, or has too many.
func (p *parser) own(first int, name []byte) {
	if len(p.names)-first >= p.limits.Fields {
		p.refuse("", fmt.Sprintf("has an object with more than %d fields", p.limits.Fields))
		return
	}
	for _, other := range p.names[first:] {
		if bytes.Equal(other, name) {
			p.refuse(clip(name), "is there twice")
			return
		}
	}
	if len(p.decoded) > 0 && len(name) > 0 && &p.decoded[0] == &name[0] {
		name = bytes.Clone(name) // the next string is decoded there
	}
	p.names = append(p.names, name)
}

// number reads a number.
func (p *parser) number() bool {
	p.take('-')
	if !p.take('0') && !p.digits() {
		return p.fail("no value")
	}
	if p.take('.') && !p.digits() {
		return p.fail("no digit after the point of a number")
	}
	if p.take('e') || p.take('E') {
		if !p.take('+') {
			p.take('-')
		}
		if !p.digits() {
			return p.fail("no digit in the exponent of a number")
		}
	}
	return true
}

func (p *parser) digits() bool {
	start := p.at
	for p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9' {
		p.at++
	}
	return p.at > start
}

// text reads a string and returns its value, which is valid until the next string. If it is
// not valid text, the record is refused because of field.
func (p *parser) text(field string) ([]byte, bool) {
	if !p.take('"') {
		return nil, p.fail("no string")
	}
	start, escaped, high := p.at, false, false
	for p.at < len(p.data) {
		switch c := p.data[p.at]; {
		case c == '"':
			raw := p.data[start:p.at]
			p.at++
			if high && !utf8.Valid(raw) {
				p.refuse(field, "has a string that is not UTF-8")
			}
			if escaped {
				return p.unescape(field, raw), true
			}
			return raw, true
		case c == '\\':
			escaped = true
			p.at++
			if !p.escape() {
				return nil, false
			}
		case c < ' ':
			return nil, p.fail("a control character in a string")
		default:
			high = high || c >= utf8.RuneSelf
			p.at++
		}
	}
	return nil, p.fail("a string without end")
}

// escape checks an escape behind its backslash.
func (p *parser) escape() bool {
	if p.ended() {
		return p.fail("a string without end")
	}
	c := p.data[p.at]
	p.at++
	if c != 'u' {
		return bytes.IndexByte([]byte(`"\/bfnrt`), c) >= 0 || p.fail("an unknown escape in a string")
	}
	for range 4 {
		if p.ended() {
			return p.fail("a string without end")
		}
		if _, ok := hexDigit(p.data[p.at]); !ok {
			return p.fail("an unknown escape in a string")
		}
		p.at++
	}
	return true
}

// unescape returns the value of a string with well-formed escapes.
func (p *parser) unescape(field string, raw []byte) []byte {
	dst := p.decoded[:0]
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			dst = append(dst, raw...)
			break
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		if c != 'u' {
			dst = append(dst, unescaped(c))
			continue
		}
		r := hexRune(raw)
		raw = raw[4:]
		if utf16.IsSurrogate(r) {
			low := rune(0)
			if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
				low = hexRune(raw[2:])
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				p.refuse(field, "has a string with half a surrogate pair")
			} else {
				raw = raw[6:]
			}
		}
		if r == 0 {
			p.refuse(field, "has a string with NUL")
		}
		dst = utf8.AppendRune(dst, r)
	}
	p.decoded = dst
	return dst
}

func hexRune(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		digit, _ := hexDigit(c)
		r = r<<4 | rune(digit)
	}
	return r
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}
