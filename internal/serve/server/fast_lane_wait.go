package server

import (
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
)

// waiter is a request that waits in its event loop, where its methods are called.
type waiter interface {
	// respond responds. If over is true, the request has waited for its limit, and may not be ready.
	respond(ctx *fasthttp.RequestCtx, over bool)
	// Abandon is told that the client has left.
	Abandon()
}

// loopRequest is a request of an event loop and its response.
type loopRequest struct {
	answerer *answerer
	ctx      fasthttp.RequestCtx
	conn     loopConn
	later    front.Later
	ready    func() (wake func()) // front.Config says when

	server *Server
	entry  *entry
	route  *route
	page   feed.CachedPage // in the response; the zero value: none
	wait   waiter          // nil: it does not wait
	query  queryWait       // wait, of a query
	feed   feedWait        // wait, of a page
}

// newRequest returns a request that is not used.
func (a *answerer) newRequest() *loopRequest {
	if n := len(a.free); n > 0 {
		x := a.free[n-1]
		a.free = a.free[:n-1]
		x.later.Inside = false
		return x
	}
	x := &loopRequest{answerer: a}
	x.later.Respond, x.later.Left = x.respond, func() { x.wait.Abandon() }
	x.ready = func() (wake func()) { return a.known(&x.later) }
	return x
}

// respond is front.Later's Respond.
func (x *loopRequest) respond(dst []byte, over bool) (response []byte, keep bool) {
	if x.server.draining.Load() {
		x.ctx.SetConnectionClose()
	}
	x.wait.respond(&x.ctx, over)
	response, keep, ok := x.answerer.conclude(dst, x, time.Now())
	x.end()
	if !over { // otherwise ready may still be called
		x.answerer.free = append(x.answerer.free, x)
	}
	return response, keep && ok
}

// end lets go of what the request has used.
func (x *loopRequest) end() {
	x.server.leave(x.answerer.stripe)
	x.server, x.entry, x.route, x.page, x.wait = nil, nil, nil, feed.CachedPage{}, nil
}
