package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"unsafe"

	"github.com/valyala/fasthttp"
)

// bodySmall is how large a body may be without being counted, in bytes: a connection's
// own buffers are larger, and http.connections bounds those. It is also what may be sent
// where nothing reads a body.
const bodySmall = 4 << 10

// bodies bounds the request bodies that all connections together receive and hold. Small
// ones pay one comparison.
type bodies struct {
	limit   int64
	held    atomic.Int64 // bytes
	refused atomic.Int64 // requests
}

// hold counts n bytes in, unless they are too many.
func (b *bodies) hold(n int64) bool {
	if b.held.Add(n) <= b.limit {
		return true
	}
	b.held.Add(-n)
	b.refused.Add(1)
	return false
}

// bodyShare is what one connection's request has of the bodies. The connection's
// goroutine uses it; Close, which may be another's, gives it back at last.
type bodyShare struct {
	held   atomic.Int64 // bytes
	bounds bodyBounds   // of a request whose body counts: fasthttp forgets its headers when it gives the body up
}

// bodyBounds is what a request may send.
type bodyBounds struct {
	most  int         // bytes, at least 1
	why   problemKind // it may not send more
	route *route      // that counts it
}

// received bounds a request's body by its headers, before memory is taken for it: by what
// its path reads, without a key to nothing, and by what all connections hold.
func (s *Server) received(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	b := s.bodyBounds(h)
	if counted(h) {
		if c := connOf(contextOf(h)); c != nil {
			c.release(&s.bodies)
			b = s.holdBody(c, h.ContentLength(), b)
			c.body.bounds = b
		}
	}
	return fasthttp.RequestConfig{MaxRequestBodySize: b.most}
}

// holdBody counts a body of that size in, and returns the bounds that it has then.
func (s *Server) holdBody(c *conn, size int, b bodyBounds) bodyBounds {
	if size < 0 {
		size = b.most // in chunks: it may grow as large
	}
	switch {
	case size > b.most || size <= bodySmall:
	case s.bodies.hold(int64(size)):
		c.body.held.Store(int64(size))
	default:
		b.most, b.why = 1, bodiesFull
	}
	return b
}

// counted reports whether a request's body may be larger than bodySmall: it says so, or
// comes in chunks.
func counted(h *fasthttp.RequestHeader) bool {
	const chunked = -1
	n := h.ContentLength()
	return n > bodySmall || n == chunked
}

// bodyBounds returns what a request may send, by its headers.
func (s *Server) bodyBounds(h *fasthttp.RequestHeader) bodyBounds {
	path, _, _ := bytes.Cut(h.RequestURI(), []byte("?"))
	e, ok := s.routes[string(path)]
	switch {
	case !ok:
		return bodyBounds{min(bodySmall, s.cfg.BodyBytes), notFound, s.unknown}
	case e.write == nil || !h.IsPost():
		return bodyBounds{min(bodySmall, s.cfg.BodyBytes), bodyTooLarge, e.any()}
	case s.locked(e.write, h):
		return bodyBounds{1, noKey, e.write} // 0 would be the default
	}
	return bodyBounds{e.write.body, bodyTooLarge, e.write}
}

// dropBody gives back the memory of a body that is needed no more: fasthttp would keep it
// for the connection's next request, however long that takes.
func (s *Server) dropBody(ctx *fasthttp.RequestCtx) {
	if !counted(&ctx.Request.Header) {
		return
	}
	ctx.Request.ReleaseBody(bodySmall)
	if c := connOf(ctx); c != nil {
		c.release(&s.bodies)
		c.body.bounds = bodyBounds{}
	}
}

// release gives back what the connection's request has of all bodies.
func (c *conn) release(all *bodies) {
	if n := c.body.held.Swap(0); n > 0 {
		all.held.Add(-n)
	}
}

// tooLarge answers a request whose body is not read, and returns who counts it.
func (s *Server) tooLarge(ctx *fasthttp.RequestCtx) *route {
	h := &ctx.Request.Header
	b, c := s.bodyBounds(h), connOf(ctx)
	if c != nil {
		c.linger.Store(true)
		if c.body.bounds.route != nil {
			b = c.body.bounds
		}
	}
	switch b.why {
	case notFound:
		s.problem(ctx, notFound, "there is nothing at this path")
	case noKey:
		s.unauthorized(ctx)
	case bodiesFull:
		s.unavailable(ctx, bodiesFull, fmt.Sprintf("%d bytes of request bodies may be under way (http.bodies_bytes): nothing was stored, send it again", s.bodies.limit), nil)
	default:
		s.problem(ctx, bodyTooLarge, sizeDetail(b.most))
	}
	return b.route
}

// expected answers a client that asks whether to send its body (Expect: 100-continue).
func (s *Server) expected(ctx *fasthttp.RequestCtx) int {
	h := &ctx.Request.Header
	b := s.bodyBounds(h)
	if c := connOf(ctx); c != nil && counted(h) {
		b = c.body.bounds
	}
	if h.ContentLength() <= b.most && b.why != bodiesFull {
		return fasthttp.StatusContinue
	}
	r := s.tooLarge(ctx)
	r.meter.observe(ctx.Response.StatusCode(), 0)
	return ctx.Response.StatusCode()
}

// contextOf returns the request that a header is part of. It holds for the headers that
// fasthttp shows before it reads a body, which it does without saying of which
// connection: a test sees that it does hold.
func contextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const at = unsafe.Offsetof((*fasthttp.RequestCtx)(nil).Request) + unsafe.Offsetof((*fasthttp.Request)(nil).Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(at)))
}

// connOf returns the connection of a request, with or without TLS; nil: it is none of
// this package's.
func connOf(ctx *fasthttp.RequestCtx) *conn {
	var inner net.Conn = ctx.Conn()
	if t, ok := inner.(*tls.Conn); ok {
		inner = t.NetConn()
	}
	c, _ := inner.(*conn)
	return c
}
