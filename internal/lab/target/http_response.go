package target

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Bounds of an HTTP response. They stop a server that never ends its headers.
const (
	headerBytesMax = 64 << 10 // status line, headers and trailers of one response
	chunkLineMax   = 4 << 10  // a chunk's size and extensions
	checkedBodyMax = 1 << 20  // the part of a body that checks see
)

// errMalformed is wrapped by every error about bytes that are not a valid answer.
// errCutShort means that the connection ended inside an answer.
var (
	errMalformed = errors.New("malformed response")
	errCutShort  = errors.New("connection closed before the response ended")
)

// responseState is the parser's position in a response.
type responseState uint8

const (
	inStatus     responseState = iota
	inHeaders                  // header lines
	inBody                     // body of known length
	inUntilClose               // body that ends with the connection
	inChunkSize                // the line before a chunk
	inChunkData                // bytes of a chunk
	inChunkEnd                 // the line end after a chunk
	inTrailers                 // header lines after the last chunk
	inDone
)

// response parses one HTTP/1.x response incrementally. The bytes may be split
// anywhere. It stores as much of the body as the checks need. reset prepares it for
// the next response.
type response struct {
	answer
	checks    *Checks
	state     responseState
	head      bool // the request was a HEAD: there is no body
	chunked   bool
	hasLength bool
	close     bool  // the server closes after this response
	minor     int   // HTTP/1.minor
	rest      int64 // bytes of the body or chunk still to come; in the headers: Content-Length
	used      int   // bytes of header and trailer lines so far
	keepMax   int   // bytes of the body to store
	line      []byte
}

func (r *response) reset(head bool, checks *Checks) {
	*r = response{answer: answer{location: r.location[:0], body: r.body[:0]}, checks: checks, head: head, line: r.line[:0]}
}

// feed takes the next bytes and reports whether the response is complete. Bytes
// after its end are an error.
func (r *response) feed(b []byte) (done bool, err error) {
	for len(b) > 0 {
		if r.state == inDone {
			return false, fmt.Errorf("%w: %d bytes after its end", errMalformed, len(b))
		}
		switch r.state {
		case inBody, inChunkData:
			b = r.skip(b)
		case inUntilClose:
			r.keep(b)
			return false, nil
		case inHeaders:
			b, err = r.feedHeaders(b)
			if err != nil {
				return false, err
			}
		default:
			b, err = r.feedLine(b)
			if err != nil {
				return false, err
			}
		}
	}
	return r.state == inDone, nil
}

// eof handles the end of the connection. It returns nil if that completes the response.
func (r *response) eof() error {
	if r.state == inUntilClose {
		r.state = inDone
		r.close = true
		return nil
	}
	return errCutShort
}

// skip consumes bytes of a body or chunk.
func (r *response) skip(b []byte) []byte {
	n := min(int64(len(b)), r.rest)
	r.keep(b[:n])
	r.rest -= n
	if r.rest == 0 && r.state == inBody {
		r.state = inDone
	} else if r.rest == 0 {
		r.state = inChunkEnd
	}
	return b[n:]
}

func (r *response) keep(b []byte) {
	if r.keepMax > 0 {
		r.body = append(r.body, b[:min(len(b), r.keepMax-len(r.body))]...)
	}
}

// feedHeaders parses the complete header lines in b, usually all of them, and
// passes the rest to feedLine.
func (r *response) feedHeaders(b []byte) ([]byte, error) {
	for r.state == inHeaders && len(r.line) == 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			break
		}
		line := b[:end]
		if end > 0 && line[end-1] == '\r' {
			line = line[:end-1]
		}
		b = b[end+1:]
		if len(line) == 0 {
			return b, r.endHeaders()
		}
		if r.used += len(line); r.used > headerBytesMax {
			return nil, fmt.Errorf("%w: headers over %d bytes", errMalformed, headerBytesMax)
		}
		if err := r.takeHeader(line); err != nil {
			return nil, err
		}
	}
	if len(b) == 0 {
		return nil, nil
	}
	return r.feedLine(b)
}

// feedLine parses one line, or stores the part that has arrived.
func (r *response) feedLine(b []byte) ([]byte, error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		r.line = append(r.line, b...)
		return nil, r.bound(0)
	}
	line := b[:end]
	if len(r.line) > 0 {
		r.line = append(r.line, line...)
		line = r.line
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	err := r.bound(len(line))
	if err == nil {
		err = r.takeLine(line)
	}
	r.line = r.line[:0]
	return b[end+1:], err
}

// bound limits the length of lines and headers. n is the length of the complete line.
func (r *response) bound(n int) error {
	if r.state == inChunkSize || r.state == inChunkEnd {
		if max(n, len(r.line)) > chunkLineMax {
			return fmt.Errorf("%w: chunk size line over %d bytes", errMalformed, chunkLineMax)
		}
		return nil
	}
	if r.used+max(n, len(r.line)) > headerBytesMax {
		return fmt.Errorf("%w: headers over %d bytes", errMalformed, headerBytesMax)
	}
	r.used += n
	return nil
}

func (r *response) takeLine(line []byte) error {
	switch r.state {
	case inStatus:
		return r.takeStatus(line)
	case inHeaders:
		if len(line) == 0 {
			return r.endHeaders()
		}
		return r.takeHeader(line)
	case inChunkSize:
		return r.takeChunkSize(line)
	case inChunkEnd:
		if len(line) != 0 {
			return fmt.Errorf("%w: chunk longer than its size", errMalformed)
		}
		r.state = inChunkSize
	case inTrailers:
		if len(line) == 0 {
			r.state = inDone
		}
	}
	return nil
}

// takeStatus reads "HTTP/1.1 200 OK".
func (r *response) takeStatus(line []byte) error {
	const prefix = "HTTP/1."
	if len(line) < 12 || string(line[:len(prefix)]) != prefix || line[8] != ' ' ||
		(line[7] != '0' && line[7] != '1') || (len(line) > 12 && line[12] != ' ') {
		return fmt.Errorf("%w: status line %.40q", errMalformed, line)
	}
	status := 0
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return fmt.Errorf("%w: status line %.40q", errMalformed, line)
		}
		status = status*10 + int(c-'0')
	}
	if status < 100 {
		return fmt.Errorf("%w: status %d", errMalformed, status)
	}
	r.status = status
	r.minor = int(line[7] - '0')
	r.close = r.minor == 0
	r.state = inHeaders
	return nil
}

// takeHeader reads the three headers that determine where the response ends, and
// those that explain a failure.
func (r *response) takeHeader(line []byte) error {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return fmt.Errorf("%w: header line %.40q", errMalformed, line)
	}
	switch colon {
	case len("Content-Length"):
		if equalFold(line[:colon], "content-length") {
			return r.takeLength(trim(line[colon+1:]))
		}
	case len("Transfer-Encoding"):
		if equalFold(line[:colon], "transfer-encoding") {
			if !equalFold(trim(line[colon+1:]), "chunked") {
				return fmt.Errorf("%w: transfer encoding %.40q", errMalformed, trim(line[colon+1:]))
			}
			r.chunked = true
		}
	case len("Content-Type"):
		if r.status >= 400 && equalFold(line[:colon], "content-type") {
			r.problem = bytes.HasPrefix(trim(line[colon+1:]), []byte("application/problem+json"))
		}
	case len("Location"):
		if redirects(r.status) && equalFold(line[:colon], "location") {
			r.location = append(r.location[:0], trim(line[colon+1:])...)
		}
	case len("Connection"):
		if equalFold(line[:colon], "connection") {
			r.takeConnection(line[colon+1:])
		}
	}
	return nil
}

func (r *response) takeLength(value []byte) error {
	n, ok := parseNumber(value, 10)
	if !ok || (r.hasLength && n != r.rest) {
		return fmt.Errorf("%w: content length %.40q", errMalformed, value)
	}
	r.rest, r.hasLength = n, true
	return nil
}

func (r *response) takeConnection(value []byte) {
	if string(value) == " keep-alive" && r.minor == 1 {
		return // the default of HTTP/1.1
	}
	for len(value) > 0 {
		var token []byte
		token, value, _ = bytes.Cut(value, []byte{','})
		switch token = trim(token); {
		case equalFold(token, "close"):
			r.close = true
		case equalFold(token, "keep-alive") && r.minor == 0:
			r.close = false
		}
	}
}

// endHeaders determines how the body ends.
func (r *response) endHeaders() error {
	r.keepMax = r.checks.bodyMax(r.status)
	switch {
	case r.status == 101:
		return fmt.Errorf("%w: unexpected status 101", errMalformed)
	case r.status < 200: // an interim response: the real one follows
		r.reset(r.head, r.checks)
	case r.head, r.status == 204, r.status == 304:
		r.state = inDone
	case r.chunked:
		r.rest = 0
		r.state = inChunkSize
	case r.hasLength && r.rest == 0:
		r.state = inDone
	case r.hasLength:
		r.state = inBody
	default:
		r.state = inUntilClose
	}
	return nil
}

// takeChunkSize reads the hexadecimal size of a chunk and skips its extensions.
func (r *response) takeChunkSize(line []byte) error {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	size, ok := parseNumber(trim(line), 16)
	switch {
	case !ok:
		return fmt.Errorf("%w: chunk size %.40q", errMalformed, line)
	case size == 0:
		r.state = inTrailers
	default:
		r.rest, r.state = size, inChunkData
	}
	return nil
}

// parseNumber reads a number without a sign.
func parseNumber(b []byte, base int) (n int64, ok bool) {
	unsigned, err := strconv.ParseUint(string(b), base, 63)
	return int64(unsigned), err == nil
}

// trim removes spaces and tabs from both ends.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// equalFold reports whether b equals a lower-case ASCII word, ignoring case.
func equalFold(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// httpProtocol is HTTP/1.1 on one connection.
type httpProtocol struct {
	requests []builtRequest
	checks   *Checks
	source   *Source
	scratch  *scratch
	sent     *builtRequest
	response response
}

func (p *httpProtocol) request(number int, _, last bool) []byte {
	p.source.Next()
	r := &p.requests[number]
	p.sent = r
	p.response.reset(r.head, p.checks)
	switch {
	case r.keep != nil && last:
		return r.last
	case r.keep != nil:
		return r.keep
	}
	p.scratch.request = r.append(p.scratch.request[:0], last, p.source)
	return p.scratch.request
}

func (p *httpProtocol) feed(b []byte) (bool, error) {
	if len(b) == 0 {
		return true, p.response.eof()
	}
	return p.response.feed(b)
}

func (p *httpProtocol) answer(o *Outcome) bool {
	o.Status = p.response.status
	o.Kind = p.sent.kind
	o.Err = p.checks.judge(&p.response.answer, p.scratch)
	return !p.response.close
}
