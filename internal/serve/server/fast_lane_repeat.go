package server

import (
	"bytes"
	"hash/maphash"
	"net/netip"
	"time"
	"weak"

	"spillway/internal/serve/feed"
)

const (
	repeatSlots = 128     // requests that an event loop remembers
	repeatMax   = 8 << 10 // bytes of one with its response
)

// repeats holds responses of an event loop that are sent again, as they are, to a request with the same bytes: pages of windows,
// while their Date and their Age stay the same.
type repeats struct {
	seed  maphash.Seed
	slots [repeatSlots]repeat
}

// repeat is a request and its response. The response is kept when the request has come twice in a row, so that requests that are
// all different cost no copies.
type repeat struct {
	hash     uint64 // of the last request
	bytes    []byte // the request, then the response; empty: not kept
	response int    // where it begins
	keep     bool   // the connection stays open
	server   weak.Pointer[Server]
	meter    *meter
	page     feed.Repeat
	until    time.Time  // when the Date changes
	log      *AccessLog // nil: none
	line     accessLine // for log, but for the client
	newID    bool       // the line needs an id of its own
}

// slot returns where a request may be remembered.
func (r *repeats) slot(request []byte) (*repeat, uint64) {
	hash := maphash.Bytes(r.seed, request)
	return &r.slots[hash%repeatSlots], hash
}

// Repeat implements front.Answerer.
func (a *answerer) Repeat(dst, request []byte, peer netip.AddrPort) (response []byte, keep, ok bool) {
	if request[0] == 'P' {
		return dst, false, false // POST
	}
	return a.repeat(dst, request, peer, time.Now())
}

func (a *answerer) repeat(dst, request []byte, peer netip.AddrPort, now time.Time) (response []byte, keep, ok bool) {
	r, hash := a.repeats.slot(request)
	if r.hash != hash || len(r.bytes) == 0 || !bytes.Equal(r.bytes[:r.response], request) {
		return dst, false, false
	}
	s := a.live.enter(a.stripe)
	ok = s == r.server.Value() && !s.draining.Load() && now.Before(r.until) && r.page.Now(now)
	s.leave(a.stripe)
	if !ok {
		return dst, false, false
	}
	dst = append(dst, r.bytes[r.response:]...)
	took := time.Since(now)
	r.meter.observe(200, took)
	if r.log != nil {
		line := r.line
		line.client = peer.Addr().String()
		if r.newID {
			line.id = a.live.ids.next()
		}
		r.log.write(&line, took)
	}
	return dst, r.keep, true
}

// remember keeps the response to the last request, a page.
func (a *answerer) remember(x *loopRequest, request, response []byte, keep bool) {
	r, hash := a.repeats.slot(request)
	again := r.hash == hash
	r.hash, r.bytes = hash, r.bytes[:0]
	log := x.server.cfg.AccessLog
	if !again || len(request)+len(response) > repeatMax || log != nil && len(x.server.cfg.Proxies) > 0 {
		return
	}
	r.bytes = append(append(r.bytes, request...), response...)
	r.response, r.keep = len(request), keep
	now := arrival(&x.ctx)
	r.server, r.meter, r.page = weak.Make(x.server), x.route.meter, x.page.Repeat(now)
	if r.log = log; log != nil {
		r.line, r.newID = x.server.accessLine(&x.ctx, x.route), !isID(x.ctx.Request.Header.PeekBytes(headerRequestID))
	}
	r.until = now.Add(time.Second - time.Duration(now.Nanosecond()))
}
