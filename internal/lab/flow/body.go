package flow

import (
	"bytes"
	"encoding/json"
	"net/url"

	"spillway/internal/lab/target"
)

// part is a piece of a body: literal text, or a template.
type part struct {
	literal  string
	template *target.Template // nil: the literal
	encoding encoding
	variable int // of a typed part
}

// encoding says how a template is inserted.
type encoding uint8

const (
	asText   encoding = iota
	asForm            // application/x-www-form-urlencoded
	asJSON            // a JSON text
	asNumber          // a JSON number
	typed             // the value of one variable as JSON, with its type
)

// appendTo appends the part to b.
func (p *part) appendTo(b []byte, u *User) []byte {
	if p.template == nil && p.encoding != typed {
		return append(b, p.literal...)
	}
	switch p.encoding {
	case asForm:
		u.scratch = p.template.Append(u.scratch[:0], u.source)
		return append(b, url.QueryEscape(string(u.scratch))...)
	case asJSON:
		u.scratch = p.template.Append(u.scratch[:0], u.source)
		return appendJSON(b, string(u.scratch))
	case typed:
		if u.isJSON[p.variable] {
			return append(b, u.source.Variables[p.variable]...)
		}
		return appendJSON(b, u.source.Variables[p.variable])
	}
	return p.template.Append(b, u.source)
}

// appendJSON appends s as a JSON text. Invalid UTF-8 becomes U+FFFD.
func appendJSON(b []byte, s string) []byte {
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		panic("bug: encode text: " + err.Error())
	}
	return append(b, bytes.TrimSuffix(quoted.Bytes(), []byte("\n"))...)
}
