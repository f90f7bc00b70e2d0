package server

import (
	"net/netip"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/front"
)

// A request that has to wait stays in its event loop if its route has a starter: the request is parsed and started there, and the
// loop sends the response when it is known.

// starter begins to answer a request of an event loop. If w is nil, the request is answered; otherwise w responds after x.ready is
// called. If ok is false, nothing has happened, and only the regular server can answer the request. The body is not used after the
// call. x is not nil, and its ctx is the request's.
type starter func(ctx *fasthttp.RequestCtx, x *loopRequest) (w started, ok bool)

// started is a request that waits. Its methods are called in the event loop.
type started interface {
	// respond responds. If over is true, the request has waited for x.later.Limit, and ready may not have been called.
	respond(ctx *fasthttp.RequestCtx, over bool)
	// left is told that the client has closed its sending half, or, with ended, the connection.
	left(ended bool)
}

// loopRequest is a request of an event loop and its response.
type loopRequest struct {
	answerer *answerer
	ctx      fasthttp.RequestCtx
	conn     loopConn
	route    *route
	later    front.Later
	ready    func() // sends later

	// Of a request that waits:
	server *Server
	entry  *entry
	wait   started
}

func (a *answerer) newRequest() *loopRequest {
	if n := len(a.free); n > 0 {
		x := a.free[n-1]
		a.free = a.free[:n-1]
		return x
	}
	x := &loopRequest{answerer: a}
	x.later.Respond, x.later.Left = x.respond, func(ended bool) { x.wait.left(ended) }
	x.ready = func() { a.known(&x.later) }
	return x
}

// forget lets go of what the request has used.
func (x *loopRequest) forget() {
	x.conn = loopConn{}
	x.server, x.entry, x.route, x.wait = nil, nil, nil, nil
}

// startable reports whether an event loop may take a request that has to wait, as far as its headers say.
func startable(h *fasthttp.RequestHeader) bool {
	return !large(h) && len(h.ContentEncoding()) == 0
}

// startRoute returns the route of a request that an event loop may start; nil: it may not.
func (s *Server) startRoute(h *fasthttp.RequestHeader) (*entry, *route) {
	e, ok := s.entryOf(h)
	if !ok || !s.hosts.serve(h.Host()) {
		return nil, nil
	}
	r := e.read
	if h.IsPost() {
		r = e.write
		if _, refused := s.refuses(h); refused {
			return nil, nil
		}
	}
	if r == nil || r.start == nil {
		return nil, nil
	}
	return e, r
}

// Takes implements front.Answerer.
func (a *answerer) Takes(head []byte, peer netip.AddrPort) bool {
	x := a.now
	a.source.Reset(head)
	a.in.Reset(&a.source)
	if err := x.ctx.Request.Header.Read(a.in); err != nil {
		return false
	}
	s := a.live.enter(a.stripe)
	defer s.leave(a.stripe)
	_, r := s.startRoute(&x.ctx.Request.Header)
	return r != nil
}

// Begin implements front.Answerer.
func (a *answerer) Begin(dst, request []byte, body int, peer netip.AddrPort) (response []byte, keep, ok bool, later *front.Later) {
	x := a.now
	if !a.parse(x, request, body, peer) {
		return dst, false, false, nil
	}
	s := a.live.enter(a.stripe)
	if x.entry, x.route = s.startRoute(&x.ctx.Request.Header); x.route == nil {
		x.forget()
		s.leave(a.stripe)
		return dst, false, false, nil
	}
	if s.draining.Load() {
		x.ctx.SetConnectionClose()
	}
	x.later.Limit = 0
	x.server = s
	if x.wait, ok = x.route.start(&x.ctx, x); ok && x.wait != nil {
		a.now = a.newRequest()
		return dst, false, false, &x.later
	}
	defer func() {
		x.forget()
		s.leave(a.stripe)
	}()
	if !ok {
		return dst, false, false, nil
	}
	s.conclude(x, x.entry)
	response, keep, ok = a.write(dst, x, arrival(&x.ctx))
	return response, keep, ok, nil
}

// respond is front.Later's Respond.
func (x *loopRequest) respond(dst []byte, over bool) (response []byte, keep bool) {
	a, s := x.answerer, x.server
	if s.draining.Load() {
		x.ctx.SetConnectionClose()
	}
	x.wait.respond(&x.ctx, over)
	s.conclude(x, x.entry)
	response, keep, ok := a.write(dst, x, time.Now())
	s.leave(a.stripe)
	x.forget()
	if !over { // otherwise ready is still to be called
		a.free = append(a.free, x)
	}
	return response, keep && ok
}
