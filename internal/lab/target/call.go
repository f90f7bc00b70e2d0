package target

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// answerMax is how much of an answer to a Call is kept.
const answerMax = 8 << 20

// Call is an HTTP request that the caller of Session.Call makes, instead of one of
// the target's requests, and its answer.
type Call struct {
	Number  int      // index of its name in Config.Calls
	Method  string   //
	Path    string   // with its query, encoded, or a complete URL of the target
	Headers []Header // replace those of the Config that have the same name
	Body    []byte   // nil: none
	Checks  *Checks  //
	Keep    bool     // the body of the answer is wanted

	Answer Answer // set by Session.Call, also if a check failed
}

// Answer is what arrived. It is valid until the session's next call.
type Answer struct {
	Status int // 0: there was no answer
	Header http.Header
	Body   []byte // up to 8 MiB, if it was wanted
	Cut    bool   // the body is longer
}

// Call sends a request that was due at intended and waits for the answer, as Do
// does. The target must have Config.Calls. If the server has closed the idle
// connection, it opens another one before it sends.
func (s *Session) Call(ctx context.Context, intended int64, call *Call) Outcome {
	call.Answer = Answer{}
	if c, ok := s.conn.(*netHTTPConn); ok && c.conn.Err() != nil {
		s.disconnect()
		s.lost = true
	}
	return s.send(ctx, Outcome{Intended: intended, Request: call.Number, call: call})
}

// Host returns the host of an HTTP target, without its port.
func (t *Target) Host() string {
	host, _, err := splitAuthority(t.host, "80")
	if err != nil {
		return t.host
	}
	return host
}

// Source returns the source of the session's values. It belongs to the goroutine
// that uses the session.
func (s *Session) Source() *Source { return s.source }

// CheckFailed returns err as the error of an answer with the wrong content, for
// Classify.
func CheckFailed(err error) error { return fmt.Errorf("%w: %w", errCheck, err) }

// buildCall returns the caller's request, whose path must be the target's.
func (c *netHTTPConn) buildCall(ctx context.Context, call *Call) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, call.Method, c.target.scheme()+"://target/", nil)
	if err != nil {
		return nil, err
	}
	if request.URL.Opaque, err = ownPath(call.Path, c.target.host); err != nil || strings.HasPrefix(request.URL.Opaque, "//") {
		return nil, fmt.Errorf("path %.60q is none of the target's", call.Path)
	}
	if call.Body != nil {
		setBody(request, call.Body)
	}
	c.setHeaders(request)
	for _, h := range call.Headers {
		if holdsLineEnd(h.Value) {
			return nil, fmt.Errorf("the value of header %s contains a line end", h.Name)
		}
		setHeader(request, h.Name, h.Value)
	}
	return request, nil
}
