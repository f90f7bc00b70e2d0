package server

import (
	"bufio"
	"bytes"
	"errors"
	"hash/maphash"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
)

// The fast lane: event loops answer requests on connections that fasthttp's server never sees. They use its parser and its
// serializer, and the handlers of the other requests, so that both lanes answer alike.

// quickBytes is the size of the largest page or answer of a query that is sent by an event loop.
const quickBytes = 64 << 10

// openFastLane has event loops accept the connections of l, if the system supports them.
func (s *Server) openFastLane(l *listener) error {
	if !front.Supported || s.cfg.Loops < 0 || s.cfg.TLS != nil {
		return nil
	}
	loops := s.cfg.Loops
	if loops == 0 {
		loops = runtime.GOMAXPROCS(0)
	}
	socket, err := l.take()
	if err != nil {
		return err
	}
	l.socket = socket
	l.writeTimeout = s.cfg.WriteTimeout
	l.front, err = front.Open(front.Config{
		Socket: socket,
		Shared: l.passed,
		Loops:  loops,
		Answerer: func(loop *front.Loop, known func(*front.Later) func()) front.Answerer {
			a := newAnswerer(s.live, s.cfg.HeaderBytes, known)
			a.loop = loop
			return a
		},
		Gate:         l,
		Refusal:      l.refusal,
		RequestBytes: s.cfg.HeaderBytes + bodySmall,
		BodyBytes:    bodySmall,
		FirstTimeout: s.cfg.ReadTimeout,
		IdleTimeout:  s.cfg.IdleTimeout,
		Elsewhere:    s.elsewhere.Load,
	})
	return err
}

// drainFront is drain with event loops.
func (l *listener) drainFront() error {
	if l.passed {
		return l.front.StopAccepting(false)
	}
	var err error
	if _, tcp := l.netListener.(*net.TCPListener); tcp {
		l.refuseNew(l.socket)
	} else {
		err = l.unlink()
	}
	for waited := l.pauses.acceptDrain; ; waited += l.pauses.acceptDrain {
		half := l.front.Half()
		<-time.After(l.pauses.acceptDrain)
		if !half || waited >= l.pauses.drainIdle {
			break
		}
	}
	return errors.Join(err, l.front.StopAccepting(true))
}

// acceptHanded returns the next connection that the event loops do not serve, or io.EOF after their end.
func (l *listener) acceptHanded() (net.Conn, error) {
	for {
		handed, err := l.front.Accept()
		if err != nil {
			return nil, err // io.EOF
		}
		if c, err := newConn(handed, l); err == nil { // otherwise it has ended, and is closed
			l.handed.Add(1)
			c.begun = &begun{handed.Handed, l.writeTimeout}
			handed.Handed.Read, handed.Handed.Unsent = nil, nil // c.begun has them
			c.stay.conn, c.stay.enough = handed, laneStreak<<min(handed.Handed.Times-1, laneDoublings)
			return c, nil
		}
	}
}

const (
	laneStreak    = 4  // quick responses in a row after which a connection returns to the event loops
	laneDoublings = 20 // of that number, one each time that the connection is handed over
)

// stay decides when a connection returns to the event loops: when its requests need no waiting any more. The zero value never
// does. One goroutine uses it at a time.
type stay struct {
	conn    *front.Conn
	enough  int
	streak  int         // quick responses in a row
	between bool        // the connection is between two requests
	returns atomic.Bool // the server closes its conn, and TakeBack follows
}

// answered notes a response.
func (s *stay) answered(quick bool) {
	if s.streak++; !quick {
		s.streak = 0
	}
}

// over reports whether the connection returns, instead of waiting for the next request here. It does so only between two
// requests: the server may also read the rest of one.
func (s *stay) over() bool {
	return s.conn != nil && s.between && s.streak >= s.enough && s.leave()
}

// leave has the connection return when the server closes it, and reports whether that is possible.
func (s *stay) leave() bool {
	if s.conn.Detach() != nil {
		s.streak = 0 // no descriptor is free
		return false
	}
	s.returns.Store(true)
	return true
}

// track notes whether a connection is between two requests.
func track(c net.Conn, state fasthttp.ConnState) {
	if c, ok := c.(*conn); ok {
		c.stay.between = state == fasthttp.StateIdle
	}
}

// begun is what an event loop has done with a connection, and what is left of it to do.
type begun struct {
	front.Handed
	write time.Duration // limit
}

// resume is Read until nothing is left of what an event loop has begun.
func (c *conn) resume(p []byte) (int, error) {
	b := c.begun
	switch {
	case len(b.Read) > 0:
		n := copy(p, b.Read)
		if b.Read = b.Read[n:]; len(b.Read) == 0 && !b.Expired {
			c.begun = nil
		}
		return n, nil
	case b.Expired:
		c.begun = nil
		return 0, os.ErrDeadlineExceeded
	}
	c.begun = nil
	if err := c.SetWriteDeadline(time.Now().Add(b.write)); err != nil {
		return 0, err // net.Conn's own error
	}
	if _, err := c.Write(b.Unsent); err != nil || b.Close || c.stay.leave() { // then a loop waits for the next request
		return 0, io.EOF
	}
	return c.Read(p)
}

// answerer answers the requests of one event loop.
type answerer struct {
	live   *live
	stripe uint64 // of underway
	known  func(*front.Later) (wake func())
	loop   *front.Loop    // nil: none
	now    *loopRequest   // of the request that is being answered
	free   []*loopRequest // of requests that have been
	source bytes.Reader
	in     *bufio.Reader
	sink   sink
	out    *bufio.Writer

	repeats repeats
	date    []byte // of HTTP
	second  int64  // of date
}

// newAnswerer returns one that calls known when a request need not wait any more.
func newAnswerer(l *live, headerBytes int, known func(*front.Later) (wake func())) *answerer {
	a := &answerer{live: l, stripe: l.answerers.Add(1) % stripes, known: known}
	a.now = a.newRequest()
	a.in = bufio.NewReaderSize(&a.source, headerBytes)
	a.out = bufio.NewWriterSize(&a.sink, 4096)
	a.repeats.seed = maphash.MakeSeed()
	return a
}

// Answer implements front.Answerer.
func (a *answerer) Answer(dst, request []byte, body int, peer netip.AddrPort) (response []byte, keep, ok bool, later *front.Later) {
	x := a.now
	if !a.parse(x, request, body, peer) {
		return dst, false, false, nil
	}
	x.server = a.live.enter(a.stripe)
	switch x.server.serveLoop(x) {
	case begins:
		a.now = a.newRequest()
		return dst, false, false, &x.later
	case quick:
		at := arrival(&x.ctx)
		response, keep, ok = a.conclude(dst, x, at)
		again := x.page != (feed.CachedPage{}) && a.live.rate == nil && x.route.access == Open
		if ok && again && x.ctx.Response.StatusCode() == fasthttp.StatusOK {
			a.remember(x, request, response[len(dst):], keep)
		}
	default:
		response = dst
	}
	x.end()
	return response, keep, ok, nil
}

// parse reads a request whose last bytes are its body. It reports whether that is all of it.
func (a *answerer) parse(x *loopRequest, request []byte, body int, peer netip.AddrPort) bool {
	head := len(request) - body
	a.source.Reset(request[:head])
	a.in.Reset(&a.source)
	x.conn.peer = peer
	ctx := &x.ctx
	ctx.Init2(&x.conn, discardLogger{}, false)
	ctx.Request.Reset()
	ctx.Response.Reset()
	ctx.ResetUserValues()
	ctx.Response.Header.SetNoDefaultContentType(true)
	h := &ctx.Request.Header
	if err := h.Read(a.in); err != nil || a.in.Buffered() > 0 || a.source.Len() > 0 {
		return false
	}
	if h.IsPost() {
		ctx.Request.SetBodyRaw(request[head:])
	}
	return !h.IsPost() || h.ContentLength() == body
}

// serveLoop is serve in an event loop.
func (s *Server) serveLoop(x *loopRequest) handled {
	ctx := &x.ctx
	e, ok := s.entryOf(&ctx.Request.Header)
	if !ok || !s.hosts.serve(ctx.Host()) {
		return slow
	}
	x.entry, x.route = e, e.read
	if ctx.IsPost() {
		if _, refused := s.refuses(&ctx.Request.Header); refused {
			return slow
		}
		x.route = e.write
	}
	if x.route == nil {
		return slow
	}
	if s.draining.Load() {
		ctx.SetConnectionClose()
	}
	return x.route.handle(ctx, x)
}

// conclude completes and counts the response of a request, and appends it to dst. date is its Date.
func (a *answerer) conclude(dst []byte, x *loopRequest, date time.Time) (response []byte, keep, ok bool) {
	x.server.finish(&x.ctx, x.entry)
	x.server.count(&x.ctx, x.route, time.Since(arrival(&x.ctx)))
	return a.write(dst, x, date)
}

// write appends the response of a request to dst.
func (a *answerer) write(dst []byte, x *loopRequest, date time.Time) (response []byte, keep, ok bool) {
	ctx := &x.ctx
	h := &ctx.Request.Header
	keep = !h.ConnectionClose() && !ctx.Response.Header.ConnectionClose()
	switch {
	case !keep:
		ctx.Response.Header.SetConnectionClose()
	case !h.IsHTTP11():
		ctx.Response.Header.Set(fasthttp.HeaderConnection, "keep-alive")
	}
	ctx.Response.SkipBody = ctx.IsHead()
	a.sink.bytes = dst
	a.out.Reset(&a.sink)
	err := ctx.Response.Write(a.out)
	if err == nil {
		err = a.out.Flush()
	}
	response, a.sink.bytes = a.sink.bytes, nil
	if err != nil {
		return dst, false, false // only a body that ends early
	}
	a.stamp(response[len(dst):], date)
	return response, keep, true
}

// stamp sets the Date of a response. fasthttp's may be a second old, and a repeated response must not seem older than others.
func (a *answerer) stamp(response []byte, now time.Time) {
	if second := now.Unix(); second != a.second {
		a.second, a.date = second, fasthttp.AppendHTTPDate(a.date[:0], now)
	}
	const name = "\r\nDate: "
	if i := bytes.Index(response, []byte(name)); i >= 0 {
		copy(response[i+len(name):], a.date)
	}
}

// arrival returns when a request had arrived.
func arrival(ctx *fasthttp.RequestCtx) time.Time {
	if at := ctx.Time(); !at.IsZero() {
		return at
	}
	return ctx.ConnTime() // in an event loop, where each request begins one
}

// sink collects a response.
type sink struct{ bytes []byte }

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	s.bytes = append(s.bytes, p...)
	return len(p), nil
}

// loopConn is the connection of a request in an event loop, which handlers do not use but for its address.
type loopConn struct {
	net.Conn
	peer netip.AddrPort
}

// RemoteAddr implements net.Conn.
func (c *loopConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.peer) }
