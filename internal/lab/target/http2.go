package target

import (
	"bytes"
	"context"
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

// http2Conn is one session's use of an HTTP/2 connection of net/http. It carries
// one request at a time.
type http2Conn struct {
	conn   *sharedHTTP2
	ctx    context.Context // abort ends it
	cancel context.CancelFunc
	clock  Clock
	mix    *httpMix
	grpc   *grpcMethod // nil: HTTP
	checks *Checks
	source *Source
	base   string // scheme and host of every URL
	path   []byte
	header []byte
	body   []byte
	frame  []byte       // gRPC: memory for the body
	text   bytes.Buffer // of the answer, for the checks
	memory scratch
}

// openHTTP2 opens a connection, which over TLS must negotiate h2. Without TLS, the
// server must know that it is HTTP/2 (h2c with prior knowledge).
func (t *Target) openHTTP2(ctx context.Context, number int) (*http.ClientConn, error) {
	transport := &http.Transport{
		Protocols:          new(http.Protocols),
		DisableCompression: true, // requests have the headers that the user wrote
	}
	scheme := "https"
	if t.tls == nil {
		scheme = "http"
		transport.Protocols.SetUnencryptedHTTP2(true)
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return t.network.dial(ctx, number)
		}
	} else {
		config := t.tls.Clone()
		config.NextProtos = []string{"h2"}
		transport.Protocols.SetHTTP2(true)
		transport.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := t.network.dialTLS(ctx, number, config)
			if err != nil {
				return nil, err
			}
			if conn.ConnectionState().NegotiatedProtocol != "h2" {
				conn.Close()
				return nil, fmt.Errorf("%w: the server does not offer HTTP/2", errTLS)
			}
			return conn, nil
		}
	}
	return transport.NewClientConn(ctx, scheme, "target:443") // only the functions above use the address
}

// http2Group is the connection that the sessions of one group share.
type http2Group struct {
	target  *Target
	lock    chan struct{} // holds a value while the fields below are in use
	current *sharedHTTP2
}

// sharedHTTP2 is a connection with the number of its sessions.
type sharedHTTP2 struct {
	*http.ClientConn
	group *http2Group
	users int
}

func newHTTP2Group(t *Target) *http2Group {
	return &http2Group{target: t, lock: make(chan struct{}, 1)}
}

// dialer returns the dialer of a session that joins the group.
func (g *http2Group) dialer(source *Source) dialer {
	return func(ctx context.Context, number int) (blockingConn, bool, error) { return g.join(ctx, number, source) }
}

// join joins the group's connection. fresh is set if it had to be opened.
func (g *http2Group) join(ctx context.Context, number int, source *Source) (conn blockingConn, fresh bool, err error) {
	select {
	case g.lock <- struct{}{}:
		defer func() { <-g.lock }()
	case <-ctx.Done():
		return nil, false, fmt.Errorf("connect: %w", ctx.Err())
	}
	if fresh = g.current == nil || g.current.Err() != nil; fresh {
		opened, err := g.target.openHTTP2(ctx, number)
		if err != nil {
			return nil, false, err
		}
		g.current = &sharedHTTP2{ClientConn: opened, group: g}
	}
	g.current.users++
	t := g.target
	c := &http2Conn{
		conn: g.current, clock: t.config.Clock, mix: t.http, grpc: t.grpc, checks: &t.config.Checks,
		source: source, base: "https://" + t.host,
	}
	if t.tls == nil {
		c.base = "http://" + t.host
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, fresh, nil
}

// leave ends a session's use. The last one closes the connection.
func (s *sharedHTTP2) leave() {
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

func (c *http2Conn) exchange(o *Outcome, deadline time.Time, _ bool) bool {
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	defer cancel()
	c.source.next()
	r := &c.mix.requests[o.number]
	o.Kind = r.kind
	var first atomic.Int64 // set by another goroutine, perhaps late
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { first.Store(c.clock.Now()) }}
	request, err := c.build(httptrace.WithClientTrace(ctx, trace), r)
	if err != nil {
		o.Err = err
		return false
	}
	o.Sent = c.clock.Now()
	o.BytesSent = len(c.path) + len(c.body)
	response, err := c.conn.RoundTrip(request)
	if err != nil {
		o.Err = c.failure(fmt.Errorf("exchange: %w", err))
		return c.reusable()
	}
	defer response.Body.Close()
	o.First = first.Load()
	o.Status = response.StatusCode
	c.text.Reset()
	if most := c.checks.bodyMax(o.Status); most > 0 {
		n, _ := c.text.ReadFrom(io.LimitReader(response.Body, int64(most))) // Copy returns the same error
		o.BytesReceived += n
	}
	n, err := io.Copy(io.Discard, response.Body)
	o.BytesReceived += n
	if err != nil {
		o.Err = c.failure(fmt.Errorf("read answer: %w", err))
	}
	if o.Err != nil {
		return c.reusable()
	}
	o.Done = c.clock.Now()
	a := answer{status: o.Status, body: c.text.Bytes()}
	if !c.checks.expected(o.Status) {
		a.problem = strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json")
		a.location = []byte(response.Header.Get("Location"))
	}
	if o.Err = c.checks.judge(&a, &c.memory); c.grpc != nil && c.checks.expected(o.Status) {
		o.Err = c.grpc.judge(response, c.checks, a.body, o.BytesReceived)
	}
	return c.reusable()
}

// failure names the reason of an error of net/http that has no class.
func (c *http2Conn) failure(err error) error {
	if Classify(err) != result.Other {
		return err
	}
	switch text := err.Error(); {
	case strings.Contains(text, "connection error: "): // found by this side
		return fmt.Errorf("%w: %w", errMalformed, err)
	case c.conn.Err() != nil, strings.Contains(text, "stream error: "):
		return fmt.Errorf("%w: %w", errCutShort, err)
	}
	return err
}

// reusable reports whether the connection takes more requests. One that timed out
// ended only its stream.
func (c *http2Conn) reusable() bool { return c.conn.Err() == nil && c.ctx.Err() == nil }

func (c *http2Conn) build(ctx context.Context, r *builtRequest) (*http.Request, error) {
	c.path = r.path.append(c.path[:0], c.source)
	c.body = r.body.append(c.body[:0], c.source)
	if c.grpc != nil {
		var err error
		if c.frame, err = c.grpc.append(c.frame[:0], c.body); err != nil {
			return nil, fmt.Errorf("build request: %w", err)
		}
		c.body, c.frame = c.frame, c.body
	}
	request, err := http.NewRequestWithContext(ctx, r.method, c.base+string(c.path), nil)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if r.withBody {
		request.Body = io.NopCloser(bytes.NewReader(c.body)) // GetBody stays nil: net/http must not send it again
		request.ContentLength = int64(len(c.body))
	}
	request.Header.Set("User-Agent", userAgent)
	for i := range c.mix.headers {
		h := &c.mix.headers[i]
		c.header = h.value.append(c.header[:0], c.source)
		if http.CanonicalHeaderKey(h.name) == "Host" {
			request.Host = string(c.header)
			continue
		}
		if name := http.CanonicalHeaderKey(h.name); name == "User-Agent" {
			request.Header.Set(name, string(c.header))
		} else {
			request.Header.Add(name, string(c.header))
		}
	}
	return request, nil
}

func (c *http2Conn) abort() { c.cancel() }

func (c *http2Conn) close() {
	c.cancel()
	c.conn.leave()
}
