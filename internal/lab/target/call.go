package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"spillway/internal/lab/result"
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
	if c, ok := s.conn.(*callConn); ok && c.conn.Err() != nil {
		s.disconnect()
		s.lost = true
	}
	return s.send(ctx, Outcome{Intended: intended, Request: call.Number, call: call})
}

// Host returns the host of an HTTP target, without its port.
func (t *Target) Host() string {
	where, err := splitAuthority(t.host, "80")
	if err != nil {
		return t.host
	}
	return where.host
}

// Source returns the source of the session's values. It belongs to the goroutine
// that uses the session.
func (s *Session) Source() *Source { return s.source }

// CheckFailed returns err as the error of an answer with the wrong content, for
// Classify.
func CheckFailed(err error) error { return fmt.Errorf("%w: %w", errCheck, err) }

// callConn is a connection of net/http, HTTP/1.1 or HTTP/2, that carries one
// request at a time. net/http never repeats the request of a ClientConn.
type callConn struct {
	conn    *http.ClientConn
	ctx     context.Context // abort ends it
	cancel  context.CancelFunc
	target  *Target
	source  *Source
	traffic *traffic
	first   atomic.Int64 // of the current request: when the answer began
	header  []byte
	body    bytes.Buffer
	memory  scratch
}

// dialCall opens a connection for Session.Call.
func (t *Target) dialCall(ctx context.Context, number int, source *Source) (blockingConn, error) {
	c := &callConn{target: t, source: source, traffic: new(traffic)}
	open := c.openHTTP1
	if t.config.HTTP2 {
		open = t.openHTTP2
	}
	var err error
	if c.conn, err = open(ctx, number); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

func (c *callConn) openHTTP1(ctx context.Context, number int) (*http.ClientConn, error) {
	t := c.target
	transport := &http.Transport{
		Protocols: new(http.Protocols), DisableCompression: true, MaxResponseHeaderBytes: headerBytesMax,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := t.network.dial(ctx, number)
			if err != nil {
				return nil, err
			}
			return c.traffic.count(conn), nil
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := t.network.dialTLS(ctx, number, t.tls)
			if err != nil {
				return nil, err
			}
			return c.traffic.count(conn), nil
		},
	}
	transport.Protocols.SetHTTP1(true)
	return transport.NewClientConn(ctx, t.scheme(), "target:80") // only the functions above use the address
}

func (t *Target) scheme() string {
	if t.tls != nil {
		return "https"
	}
	return "http"
}

func (c *callConn) exchange(o *Outcome, deadline time.Time, last bool) bool {
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	defer cancel()
	o.Kind = methodKind(o.call.Method)
	request, err := c.build(ctx, o.call, last)
	if err != nil {
		o.Err = err
		return true
	}
	c.first.Store(0)
	sent, received := c.traffic.sent.Load(), c.traffic.received.Load()
	o.Sent, o.BytesSent = c.target.config.Clock.Now(), len(o.call.Path)+len(o.call.Body)
	response, err := c.conn.RoundTrip(request)
	if err == nil {
		err = c.read(response, o)
	}
	o.First = c.first.Load()
	if !c.target.config.HTTP2 {
		o.BytesSent, o.BytesReceived = int(c.traffic.sent.Load()-sent), c.traffic.received.Load()-received
	}
	if err != nil {
		o.Err = c.explain(ctx, err)
		return false
	}
	o.Done = c.target.config.Clock.Now()
	a := answer{status: o.Status, body: c.body.Bytes()}
	if !o.call.Checks.expected(o.Status) {
		a.problem = strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json")
		a.location = []byte(response.Header.Get("Location"))
	}
	o.Err = o.call.Checks.judge(&a, &c.memory)
	return c.conn.Err() == nil
}

// read reads the whole answer and keeps what is wanted of it.
func (c *callConn) read(response *http.Response, o *Outcome) error {
	defer response.Body.Close()
	o.Status = response.StatusCode
	most := int64(o.call.Checks.bodyMax(o.Status))
	if o.call.Keep {
		most = answerMax
	}
	c.body.Reset()
	if _, err := c.body.ReadFrom(io.LimitReader(response.Body, most)); err != nil {
		return err
	}
	rest, err := io.Copy(io.Discard, response.Body)
	o.BytesReceived = int64(c.body.Len()) + rest
	if err == nil {
		o.call.Answer = Answer{Status: o.Status, Header: response.Header, Body: c.body.Bytes(), Cut: rest > 0}
	}
	return err
}

func (c *callConn) build(ctx context.Context, call *Call, last bool) (*http.Request, error) {
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { c.first.Store(c.target.config.Clock.Now()) }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), call.Method, c.target.scheme()+"://target/", nil)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	path, err := ownPath(call.Path, c.target.host)
	if err != nil || strings.HasPrefix(path, "//") {
		return nil, fmt.Errorf("build request: path %.60q is none of the target's", call.Path)
	}
	request.Host, request.URL.Opaque, request.Close = c.target.host, path, last
	if call.Body != nil {
		request.Body = io.NopCloser(bytes.NewReader(call.Body))
		request.ContentLength = int64(len(call.Body))
	}
	request.Header.Set("User-Agent", "spillway")
	for i := range c.target.http.headers {
		h := &c.target.http.headers[i]
		c.header = h.value.append(c.header[:0], c.source)
		setHeader(request, h.name, string(c.header))
	}
	for _, h := range call.Headers {
		if holdsLineEnd(h.Value) {
			return nil, fmt.Errorf("build request: the value of header %s contains a line end", h.Name)
		}
		setHeader(request, h.Name, h.Value)
	}
	return request, nil
}

func setHeader(request *http.Request, name, value string) {
	if http.CanonicalHeaderKey(name) == "Host" {
		request.Host = value
		return
	}
	request.Header.Set(name, value)
}

// explain gives an error of net/http the class that it has elsewhere. What is not
// an error of the network violates the protocol.
func (c *callConn) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errTimeout
	case ctx.Err() != nil:
		return ctx.Err()
	case c.traffic.ended.Load():
		return fmt.Errorf("exchange: %w: %w", io.ErrUnexpectedEOF, err)
	case Classify(err) != result.Other:
		return fmt.Errorf("exchange: %w", err)
	}
	return fmt.Errorf("%w: %w", errMalformed, err)
}

func (c *callConn) abort() { c.cancel() }

func (c *callConn) close() {
	c.cancel()
	c.conn.Close()
}

// traffic counts the bytes of a connection, below HTTP and above TLS. Those of
// HTTP/2 are not counted.
type traffic struct {
	sent, received atomic.Int64
	ended          atomic.Bool // the peer closed the connection
}

// count returns conn with its bytes counted.
func (t *traffic) count(conn net.Conn) net.Conn { return &countedConn{conn, t} }

type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.traffic.received.Add(int64(n))
	if errors.Is(err, io.EOF) {
		c.traffic.ended.Store(true)
	}
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.traffic.sent.Add(int64(n))
	return n, err
}
