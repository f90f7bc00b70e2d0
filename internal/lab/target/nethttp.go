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

// netHTTPConn is one session's use of a connection of net/http, HTTP/1.1 or HTTP/2. It
// carries one request at a time. net/http never repeats the request of a ClientConn.
type netHTTPConn struct {
	conn   *sharedHTTP
	ctx    context.Context // abort ends it
	cancel context.CancelFunc
	target *Target
	source *Source
	path   []byte
	header []byte
	body   []byte
	frame  []byte       // gRPC: memory for the body
	text   bytes.Buffer // of the answer, as far as it is needed
	memory scratch
}

// openHTTP opens a connection. Over TLS, HTTP/2 must be negotiated. Without TLS, the
// server must know that it is HTTP/2 (h2c with prior knowledge).
func (t *Target) openHTTP(ctx context.Context, number int, counts *traffic) (*http.ClientConn, error) {
	dialed := func(conn net.Conn, err error) (net.Conn, error) {
		if err != nil || t.config.HTTP2 {
			return conn, err
		}
		return &countedConn{conn, counts}, nil
	}
	transport := &http.Transport{
		Protocols:              new(http.Protocols),
		DisableCompression:     true, // requests have the headers that the user wrote
		MaxResponseHeaderBytes: headerBytesMax,
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dialed(t.network.dial(ctx, number)) },
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dialed(t.dialHTTPS(ctx, number)) },
	}
	transport.Protocols.SetHTTP1(!t.config.HTTP2)
	transport.Protocols.SetHTTP2(t.config.HTTP2 && t.tls != nil)
	transport.Protocols.SetUnencryptedHTTP2(t.config.HTTP2 && t.tls == nil)
	return transport.NewClientConn(ctx, t.scheme(), "target:80") // only the functions above use the address
}

func (t *Target) dialHTTPS(ctx context.Context, number int) (net.Conn, error) {
	conn, err := t.network.dialTLS(ctx, number, t.tls)
	if err != nil {
		return nil, err
	}
	if t.config.HTTP2 && conn.ConnectionState().NegotiatedProtocol != "h2" {
		conn.Close()
		return nil, fmt.Errorf("%w: the server does not offer HTTP/2", errTLS)
	}
	return conn, nil
}

func (t *Target) scheme() string {
	if t.tls != nil {
		return "https"
	}
	return "http"
}

// httpGroup is the connection that the sessions of one group share.
type httpGroup struct {
	target  *Target
	lock    chan struct{} // holds a value while the fields below are in use
	current *sharedHTTP
}

// sharedHTTP is a connection with the number of its sessions.
type sharedHTTP struct {
	*http.ClientConn
	traffic traffic
	group   *httpGroup
	users   int
	changed chan struct{} // takes a value when the state of the connection may have changed
}

func newHTTPGroup(t *Target) *httpGroup {
	return &httpGroup{target: t, lock: make(chan struct{}, 1)}
}

// dialer returns the dialer of a session that joins the group.
func (g *httpGroup) dialer(source *Source) dialer {
	return func(ctx context.Context, number int) (blockingConn, bool, error) { return g.join(ctx, number, source) }
}

// join joins the group's connection. fresh is set if it had to be opened.
func (g *httpGroup) join(ctx context.Context, number int, source *Source) (conn blockingConn, fresh bool, err error) {
	select {
	case g.lock <- struct{}{}:
		defer func() { <-g.lock }()
	case <-ctx.Done():
		return nil, false, fmt.Errorf("connect: %w", ctx.Err())
	}
	if fresh = g.current == nil || g.current.Err() != nil; fresh {
		opened := &sharedHTTP{group: g, changed: make(chan struct{}, 1)}
		if opened.ClientConn, err = g.target.openHTTP(ctx, number, &opened.traffic); err != nil {
			return nil, false, err
		}
		opened.SetStateHook(func(*http.ClientConn) {
			select {
			case opened.changed <- struct{}{}:
			default:
			}
		})
		g.current = opened
	}
	g.current.users++
	c := &netHTTPConn{conn: g.current, target: g.target, source: source}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, fresh, nil
}

// leave ends a session's use. The last one closes the connection.
func (s *sharedHTTP) leave() {
	s.group.lock <- struct{}{}
	defer func() { <-s.group.lock }()
	if s.users--; s.users > 0 {
		return
	}
	s.Close()
	if s.group.current == s {
		s.group.current = nil
	}
}

func (c *netHTTPConn) exchange(o *Outcome, deadline time.Time, last bool) bool {
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	defer cancel()
	var first atomic.Int64 // set by another goroutine, perhaps late
	clock := c.target.config.Clock
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { first.Store(clock.Now()) }}
	request, checks, err := c.build(httptrace.WithClientTrace(ctx, trace), o)
	if err != nil {
		o.Err = fmt.Errorf("build request: %w", err)
		return true
	}
	counts := &c.conn.traffic
	sent, received := counts.sent.Load(), counts.received.Load()
	request.Close = last && !c.target.config.HTTP2 // sessions that share a connection do not end it
	o.Sent = clock.Now()
	response, err := c.conn.RoundTrip(request)
	if err == nil {
		err = c.read(response, checks, o)
	}
	o.First = first.Load()
	if !c.target.config.HTTP2 {
		o.BytesSent, o.BytesReceived = int(counts.sent.Load()-sent), counts.received.Load()-received
	}
	if err != nil {
		o.Err = c.explain(ctx, err)
		return c.target.config.HTTP2 && c.reusable()
	}
	o.Done = clock.Now()
	c.settle(ctx)
	a := answer{status: o.Status, body: c.text.Bytes()}
	if !checks.expected(o.Status) {
		a.problem = strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json")
		a.location = []byte(response.Header.Get("Location"))
	}
	if o.Err = checks.judge(&a, &c.memory); c.target.grpc != nil && checks.expected(o.Status) {
		o.Err = c.target.grpc.judge(response, checks, a.body, o.BytesReceived)
	}
	return c.reusable()
}

// settle waits until net/http has decided whether the connection of an answered request takes
// another one. It closes one that has not taken the whole request within 50 ms of the answer: a
// request that comes before that would fail.
func (c *netHTTPConn) settle(ctx context.Context) {
	for !c.target.config.HTTP2 && c.conn.Err() == nil && c.conn.Available() == 0 {
		select {
		case <-c.conn.changed:
		case <-ctx.Done():
			return
		}
	}
}

// read reads the whole answer and keeps what is needed of it.
func (c *netHTTPConn) read(response *http.Response, checks *Checks, o *Outcome) error {
	defer response.Body.Close()
	o.Status = response.StatusCode
	most := checks.bodyMax(o.Status)
	if o.call != nil && o.call.Keep {
		most = answerMax
	}
	c.text.Reset()
	if most > 0 {
		c.text.ReadFrom(io.LimitReader(response.Body, int64(most))) // Copy returns the same error
	}
	rest, err := io.Copy(io.Discard, response.Body)
	o.BytesReceived = int64(c.text.Len()) + rest
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if o.call != nil {
		o.call.Answer = Answer{Status: o.Status, Header: response.Header, Body: c.text.Bytes(), Cut: rest > 0}
	}
	return nil
}

// explain gives an error of net/http the class that it has elsewhere.
func (c *netHTTPConn) explain(ctx context.Context, err error) error {
	switch text := err.Error(); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errTimeout
	case ctx.Err() != nil:
		return ctx.Err()
	case c.conn.traffic.ended.Load():
		return fmt.Errorf("exchange: %w: %w", io.ErrUnexpectedEOF, err)
	case Classify(err) != result.Other:
		return fmt.Errorf("exchange: %w", err)
	case !c.target.config.HTTP2, strings.Contains(text, "connection error: "): // HTTP/2: found by this side
		return fmt.Errorf("%w: %w", errMalformed, err)
	case c.conn.Err() != nil, strings.Contains(text, "stream error: "):
		return fmt.Errorf("%w: %w", errCutShort, err)
	}
	return fmt.Errorf("exchange: %w", err)
}

// reusable reports whether the connection takes more requests. Over HTTP/2, a request
// that timed out ended only its stream.
func (c *netHTTPConn) reusable() bool { return c.conn.Err() == nil && c.ctx.Err() == nil }

// build returns the caller's request, or else the one that o names, and the checks of its
// answer. It counts the bytes of the path and the body.
func (c *netHTTPConn) build(ctx context.Context, o *Outcome) (*http.Request, *Checks, error) {
	if o.call != nil {
		o.Kind, o.BytesSent = methodKind(o.call.Method), len(o.call.Path)+len(o.call.Body)
		request, err := c.buildCall(ctx, o.call)
		return request, o.call.Checks, err
	}
	c.source.Next()
	r := &c.target.http.requests[o.number]
	o.Kind = r.kind
	request, err := c.buildOwn(ctx, r)
	o.BytesSent = len(c.path) + len(c.body)
	return request, &c.target.config.Checks, err
}

func (c *netHTTPConn) buildOwn(ctx context.Context, r *builtRequest) (*http.Request, error) {
	c.path = r.path.Append(c.path[:0], c.source)
	c.body = r.body.Append(c.body[:0], c.source)
	if grpc := c.target.grpc; grpc != nil {
		var err error
		if c.frame, err = grpc.append(c.frame[:0], c.body); err != nil {
			return nil, err
		}
		c.body, c.frame = c.frame, c.body
	}
	request, err := http.NewRequestWithContext(ctx, r.method, c.target.scheme()+"://target"+string(c.path), nil)
	if err != nil {
		return nil, err
	}
	if r.withBody {
		setBody(request, c.body)
	}
	c.setHeaders(request)
	return request, nil
}

// setBody leaves GetBody nil, so that net/http cannot send the body again.
func setBody(request *http.Request, body []byte) {
	request.Body = io.NopCloser(bytes.NewReader(body))
	request.ContentLength = int64(len(body))
}

// setHeaders sets the headers of the Config. Those of the same name follow each other,
// except that there is one Host and one User-Agent.
func (c *netHTTPConn) setHeaders(request *http.Request) {
	request.Host = c.target.host
	request.Header.Set("User-Agent", userAgent)
	for i := range c.target.http.headers {
		h := &c.target.http.headers[i]
		c.header = h.value.Append(c.header[:0], c.source)
		switch name := http.CanonicalHeaderKey(h.name); name {
		case "Host", "User-Agent":
			setHeader(request, name, string(c.header))
		default:
			request.Header.Add(name, string(c.header))
		}
	}
}

func setHeader(request *http.Request, name, value string) {
	if http.CanonicalHeaderKey(name) == "Host" {
		request.Host = value
		return
	}
	request.Header.Set(name, value)
}

func (c *netHTTPConn) abort() { c.cancel() }

func (c *netHTTPConn) close() {
	c.cancel()
	c.conn.leave()
}

// traffic counts the bytes of a connection, below HTTP and above TLS. Those of
// HTTP/2 are not counted.
type traffic struct {
	sent, received atomic.Int64
	ended          atomic.Bool // the peer closed the connection
}

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
