package target

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// HTTPRequest describes one kind of request.
type HTTPRequest struct {
	Name   string   // in reports; "": method and path
	Method string   // GET when empty
	Path   Template // with its query
	Body   Template // no body when empty
	Weight int      // relative frequency; 0 counts as 1
}

// Header is one header line of every request. Its value is the text of a Template.
type Header struct{ Name, Value string }

// headerLine is a Header with a compiled value.
type headerLine struct {
	name  string
	value Template
}

// compileHeaders compiles the values and reads the files that they name.
func compileHeaders(headers []Header) ([]headerLine, error) {
	lines := make([]headerLine, len(headers))
	for i, h := range headers {
		value, err := ParseTemplate(h.Value)
		if err != nil {
			return nil, fmt.Errorf("header %s: %w", h.Name, err)
		}
		for _, part := range value.parts {
			if part.value != nil && slices.ContainsFunc(part.value.rows, holdsLineEnd) {
				return nil, fmt.Errorf("header %s: a value in its file contains a line end", h.Name)
			}
		}
		lines[i] = headerLine{h.Name, value}
	}
	return lines, nil
}

func holdsLineEnd(s string) bool { return strings.ContainsAny(s, "\r\n\x00") }

// ParseHeader reads "Name: value".
func ParseHeader(s string) (Header, error) {
	name, value, found := strings.Cut(s, ":")
	if !found || !isToken(name) {
		return Header{}, fmt.Errorf("header %q: write 'Name: value'", s)
	}
	value = strings.TrimSpace(value)
	return Header{Name: name, Value: value}, CheckHeader(name, value)
}

// CheckHeader rejects a header line that cannot be sent, or that is computed.
func CheckHeader(name, value string) error {
	switch {
	case !isToken(name):
		return fmt.Errorf("header %q: not a valid name", name)
	case holdsLineEnd(value):
		return fmt.Errorf("header %s: its value contains a line end", name)
	}
	switch http.CanonicalHeaderKey(name) {
	case "Content-Length", "Transfer-Encoding":
		return fmt.Errorf("header %s: it is computed from the body; remove it", name)
	case "Connection":
		return errors.New("header Connection: use --per-connection 1 for short connections")
	}
	return nil
}

// IsMethod reports whether s is a valid HTTP method.
func IsMethod(s string) bool { return isToken(s) }

// isToken reports whether s is a valid method or header name.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("()<>@,;:\\\"/[]?={}", r)
	})
}

// builtRequest is a request ready to be sent: complete, or as templates.
type builtRequest struct {
	head     bool
	kind     Kind
	keep     []byte // the complete request, if it has no values …
	last     []byte // … and the same with Connection: close
	method   string
	path     *Template
	headers  *Template // " HTTP/1.1" and the header lines
	body     *Template
	withBody bool
}

const userAgent = "spillway"

const closeLine = "Connection: close\r\n"

func buildRequest(r *HTTPRequest, headers *Template) (builtRequest, error) {
	method := cmp.Or(r.Method, http.MethodGet)
	if !isToken(method) {
		return builtRequest{}, fmt.Errorf("method %q is not a valid HTTP method", method)
	}
	_, fixedPath := r.Path.constant()
	if err := r.Path.checkPath(); err != nil {
		return builtRequest{}, err
	}
	escaped := r.Path.percentEncoded()
	body, fixedBody := r.Body.constant()
	b := builtRequest{
		head: method == http.MethodHead, kind: methodKind(method), method: method, path: &escaped, headers: headers, body: &r.Body,
		withBody: body != "" || !fixedBody || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch,
	}
	if _, fixedHeaders := headers.constant(); fixedPath && fixedHeaders && fixedBody {
		b.keep = b.append(nil, false, nil)
		b.last = b.append(nil, true, nil)
	}
	return b, nil
}

// headerLines returns the text that follows the path in each request.
func headerLines(host string, headers []headerLine) *Template {
	text := " HTTP/1.1\r\n"
	given := make(map[string]bool)
	for _, h := range headers {
		given[http.CanonicalHeaderKey(h.name)] = true
	}
	if !given["Host"] {
		text += "Host: " + host + "\r\n"
	}
	if !given["User-Agent"] {
		text += "User-Agent: " + userAgent + "\r\n"
	}
	lines := &Template{}
	for _, h := range headers {
		text += h.name + ": "
		for _, part := range h.value.parts {
			text += part.text
			if part.value != nil {
				lines.parts = append(lines.parts, templatePart{text, part.value})
				text = ""
			}
		}
		text += "\r\n"
	}
	lines.parts = append(lines.parts, templatePart{text: text})
	return lines
}

func unsafeInPath(r rune) bool { return r <= ' ' || r >= 0x7f }

// ParsePath compiles the path of a request with its query. Values are encoded by
// RFC 6570. A path may begin with a variable {+NAME}.
func (s Scope) ParsePath(text string) (Template, error) {
	t, err := s.Parse(text)
	if err != nil {
		return t, err
	}
	return t.percentEncoded(), t.checkPath()
}

// checkPath rejects a path that cannot be sent as written.
func (t *Template) checkPath() error {
	whole := len(t.parts) > 0 && t.parts[0].text == "" && t.parts[0].value.isReserved()
	if len(t.parts) == 0 || !whole && !strings.HasPrefix(t.parts[0].text, "/") {
		return fmt.Errorf("path %q does not begin with /", t.text)
	}
	for _, part := range t.parts {
		if strings.ContainsFunc(part.text, unsafeInPath) {
			return fmt.Errorf("path %q contains a space, a control character or a non-ASCII letter; percent-encode it", part.text)
		}
	}
	return nil
}

func (v *Value) isReserved() bool { return v != nil && v.source == fromVariable && v.reserved }

// percentEncoded returns the template with its values encoded for a path or query,
// by RFC 6570: all but unreserved characters, and for {+…} all but reserved ones.
func (t *Template) percentEncoded() Template {
	parts := slices.Clone(t.parts)
	for i := range parts {
		v := parts[i].value
		if v == nil || v.source != fromFile && v.source != fromVariable {
			continue
		}
		encoded := *v
		encoded.encode = true
		encoded.rows = slices.Clone(v.rows)
		for j, row := range v.rows {
			encoded.rows[j] = percentEncode(row, v.reserved)
		}
		parts[i].value = &encoded
	}
	return Template{t.text, parts}
}

// percentEncode encodes every byte of s that is not unreserved. If reserved is
// set, it leaves reserved characters and complete escapes such as %41 as well.
// "#" is always encoded, because a request has no fragment.
func percentEncode(s string, reserved bool) string {
	const unreserved, alsoReserved = alphanumeric + "-._~", ":/?[]@!$&'()*+,;="
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case strings.IndexByte(unreserved, c) >= 0,
			reserved && strings.IndexByte(alsoReserved, c) >= 0,
			reserved && c == '%' && i+2 < len(s) && strings.Trim(s[i+1:i+3], "0123456789abcdefABCDEF") == "":
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func methodKind(method string) Kind {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return Read
	}
	return Write
}

// append appends the complete request to b. s may be nil if the request has no values.
func (r *builtRequest) append(b []byte, last bool, s *Source) []byte {
	if r.keep != nil && !last {
		return append(b, r.keep...)
	}
	b = append(b, r.method...)
	b = append(b, ' ')
	b = r.path.Append(b, s)
	b = r.headers.Append(b, s)
	if last {
		b = append(b, closeLine...)
	}
	if !r.withBody {
		return append(b, "\r\n"...)
	}
	return r.appendBody(b, s)
}

// appendBody appends the length, the end of the headers and the body. It leaves a
// gap for the length, which is known only after the body is written.
func (r *builtRequest) appendBody(b []byte, s *Source) []byte {
	const gap = "Content-Length:           \r\n\r\n" // nine digits and a space
	b = append(b, gap...)
	start := len(b)
	b = r.body.Append(b, s)
	var digits [20]byte
	number := strconv.AppendInt(digits[:0], int64(len(b)-start), 10)
	copy(b[start-len("\r\n\r\n")-len(number):], number)
	return b
}

// httpMix holds the requests of a run.
type httpMix struct {
	mix
	headers  []headerLine
	requests []builtRequest
}

func newHTTPMix(requests []HTTPRequest, host string, headers []Header) (*httpMix, error) {
	lines, err := compileHeaders(headers)
	if err != nil {
		return nil, err
	}
	m := &httpMix{headers: lines}
	joined := headerLines(host, lines)
	var entries []mixEntry
	for i := range requests {
		r := &requests[i]
		b, err := buildRequest(r, joined)
		if err != nil {
			return nil, err
		}
		m.requests = append(m.requests, b)
		entries = append(entries, mixEntry{max(r.Weight, 1), r.Name, b.method + " " + r.Path.text, b.method})
	}
	m.mix, err = newMix(entries)
	return m, err
}
