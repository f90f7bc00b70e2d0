package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// bodySmall is the size up to which bodies are not counted, in bytes. They fit into a
// connection's buffers, which http.connections limits. Paths that read no body accept as
// much.
const bodySmall = 4 << 10

// bodies bounds the large request bodies that all connections together receive and hold.
type bodies struct {
	limit   int64
	held    atomic.Int64 // bytes
	refused atomic.Int64 // requests
}

// hold counts n bytes in, unless they are too many.
func (b *bodies) hold(n int64) bool {
	if n == 0 || b.held.Add(n) <= b.limit {
		return true
	}
	b.held.Add(-n)
	return false
}

// bodyBounds says how large a request's body may be.
type bodyBounds struct {
	most  int     // bytes
	why   problem // the problem of a larger one
	route *route  // whose metrics count the request

	denied error // with noKey: what the request lacks
}

// bodyBounds returns the bounds of a request, by its headers.
func (s *Server) bodyBounds(h *fasthttp.RequestHeader) bodyBounds {
	e, ok := s.entryOf(h)
	switch {
	case !s.hosts.serve(h.Host()):
		return bodyBounds{why: wrongHost, route: s.unknown}
	case !ok:
		return bodyBounds{most: min(bodySmall, s.cfg.BodyBytes), why: notFound, route: s.unknown}
	case e.write == nil || !h.IsPost():
		return bodyBounds{most: min(bodySmall, s.cfg.BodyBytes), why: bodyTooLarge, route: s.unread(e)}
	}
	if err := s.lacksKey(e.write, h); err != nil {
		return bodyBounds{why: noKey, route: e.write, denied: err}
	}
	return bodyBounds{most: e.write.body, why: bodyTooLarge, route: e.write}
}

// chunked is the length of a body that comes in chunks.
const chunked = -1

// large reports whether a request's body may be larger than bodySmall.
func large(h *fasthttp.RequestHeader) bool {
	n := h.ContentLength()
	return n > bodySmall || n == chunked
}

// size returns how much of all bodies a request's body counts for, in bytes.
func (b bodyBounds) size(h *fasthttp.RequestHeader) int64 {
	n := h.ContentLength()
	if n == chunked {
		n = b.most
	}
	if n <= bodySmall {
		return 0
	}
	return int64(n)
}

// received runs after a request's headers were read, before memory is taken for its body.
// fasthttp reads a small body before it calls serve. It leaves a large one for
// receiveBody, except for the first byte.
//
// # Refusing a body before it is read
//
// fasthttp has no hook that answers a request by its headers, except for requests with "Expect: 100-continue": it calls
// ExpectHandler, and reads no body if that does not return 100 (func serveConnCounted in
// https://github.com/valyala/fasthttp/blob/v1.74.0/server.go). So if the headers are enough to refuse a request, received adds
// that header, and expected answers. The client never sees it.
func (s *Server) received(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if n := h.ContentLength(); (n == 0 || n < chunked) && framingFault(h) == "" {
		return fasthttp.RequestConfig{} // no body
	}
	if _, refused := s.refuses(h); refused {
		h.SetBytesV(fasthttp.HeaderExpect, []byte("100-continue"))
	}
	if large(h) {
		return fasthttp.RequestConfig{MaxRequestBodySize: 1}
	}
	return fasthttp.RequestConfig{MaxRequestBodySize: bodySmall}
}

// refuses returns the bounds of a request, and whether its headers alone show that the
// body is over them or has no clear end.
func (s *Server) refuses(h *fasthttp.RequestHeader) (bodyBounds, bool) {
	if framingFault(h) != "" {
		return bodyBounds{why: badRequest, route: s.unknown}, true
	}
	b := s.bodyBounds(h)
	if h.ContentLength() > b.most {
		return b, true
	}
	size := b.size(h)
	if size == 0 || s.bodies.held.Load()+size <= s.bodies.limit {
		return b, false
	}
	b.why = bodiesFull
	return b, true
}

// expected answers a request whose body received refuses, and a client that waits for
// leave to send its body.
func (s *Server) expected(ctx *fasthttp.RequestCtx) int {
	b, refused := s.refuses(&ctx.Request.Header)
	if !refused && ctx.Request.Header.IsHTTP11() {
		return fasthttp.StatusContinue
	}
	if !refused { // HTTP/1.0 knows no Continue: received has refused it, and room has been made since
		b.why = bodiesFull
	}
	s.refuseBody(ctx, b)
	return ctx.Response.StatusCode()
}

// refuseBody answers and counts a request whose body is not read completely.
func (s *Server) refuseBody(ctx *fasthttp.RequestCtx, b bodyBounds) {
	switch b.why {
	case badRequest:
		s.problem(ctx, badRequest, framingFault(&ctx.Request.Header))
	case wrongHost:
		s.problem(ctx, wrongHost, wrongHostDetail)
	case notFound:
		s.problem(ctx, notFound, "there is nothing at this path")
	case noKey:
		s.deny(ctx, b.denied)
	case bodiesFull:
		s.bodies.refused.Add(1)
		s.unavailable(ctx, bodiesFull, fmt.Sprintf("request bodies have reached %d bytes (http.bodies_bytes): nothing was stored, send it again",
			s.bodies.limit), nil)
	default:
		s.problem(ctx, bodyTooLarge, sizeDetail(b.most))
	}
	e, _ := s.entryOf(&ctx.Request.Header)
	s.restrict(ctx, e)
	s.cors(ctx, nil)
	ctx.SetConnectionClose()
	if c := connOf(ctx); c != nil {
		c.linger.Store(true)
	}
	b.route.meter.observe(ctx.Response.StatusCode(), 0)
}

// heldKey is the user value of a request that holds a share of all bodies, in bytes.
type heldKey struct{}

// receiveBody reads a large body, which handlers then find in ctx. It returns false if it
// has answered the request instead.
func (s *Server) receiveBody(ctx *fasthttp.RequestCtx) bool {
	h := &ctx.Request.Header
	b := s.bodyBounds(h)
	size := b.size(h)
	if !s.bodies.hold(size) {
		b.why = bodiesFull
		s.refuseBody(ctx, b)
		return false
	}
	ctx.SetUserValue(heldKey{}, size)
	body, err := readBody(ctx, h.ContentLength(), b.most)
	switch {
	case err != nil:
		s.serveError(ctx, err)
		return false
	case len(body) > b.most:
		s.dropBody(ctx)
		s.refuseBody(ctx, b)
		return false
	}
	ctx.Request.SetBodyRaw(body)
	return true
}

// readBody reads a body of length bytes, or a chunked one of at most most: a longer one is
// cut at one byte more.
func readBody(ctx *fasthttp.RequestCtx, length, most int) ([]byte, error) {
	if length != chunked {
		body := make([]byte, length)
		_, err := io.ReadFull(ctx.RequestBodyStream(), body)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return body, err // net.Conn's own error
	}
	body, err := io.ReadAll(io.LimitReader(ctx.RequestBodyStream(), int64(most)+1))
	if c := connOf(ctx); err == nil && c != nil && c.ended {
		err = io.ErrUnexpectedEOF // between two chunks, which fasthttp takes for the end
	}
	return body, err // net.Conn's own error
}

// dropBody gives back the memory of a large body. fasthttp would keep it until the
// connection's next request.
func (s *Server) dropBody(ctx *fasthttp.RequestCtx) {
	if !large(&ctx.Request.Header) {
		return
	}
	if held, ok := ctx.UserValue(heldKey{}).(int64); ok {
		ctx.RemoveUserValue(heldKey{})
		s.bodies.held.Add(-held)
	}
	ctx.Request.ReleaseBody(bodySmall)
}

// tlsListener accepts TLS connections from a listener.
type tlsListener struct {
	*listener
	config *tls.Config
}

// Accept implements net.Listener.
func (l tlsListener) Accept() (net.Conn, error) {
	c, err := l.listener.Accept()
	if err != nil {
		return nil, err
	}
	inner, ok := c.(*conn)
	if !ok {
		panic("bug: the listener accepts connections of another type")
	}
	return &tlsConn{tls.Server(inner, l.config), inner}, nil
}

// tlsConn is a TLS connection on top of a conn.
type tlsConn struct {
	*tls.Conn
	inner *conn
}

// Read implements io.Reader.
func (c *tlsConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF {
		c.inner.ended = true
	}
	return n, err // net.Conn's own error
}

// connOf returns the connection of a request; nil in tests that serve from memory.
func connOf(ctx *fasthttp.RequestCtx) *conn {
	switch c := ctx.Conn().(type) {
	case *conn:
		return c
	case *tlsConn:
		return c.inner
	}
	return nil
}
