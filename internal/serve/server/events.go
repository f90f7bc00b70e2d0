package server

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/compress"
	"spillway/internal/serve/feed"
)

// Listeners of events (server-sent events) stay connected for long and are many. Each is
// one goroutine that writes texts which all of them share; the request and its buffers are
// released before. Nothing reads from their connections.
const (
	lookInterval  = 3 * time.Second // from one look at an idle connection to the next
	looksPerBeat  = 5               // a heartbeat is sent every so many looks
	sendBufferMax = 64 << 10        // bytes that the kernel keeps for a client that does not read
	retryMin      = 500             // milliseconds until a client connects again, at least
	retrySpread   = 2500            // and how many more at most, so that not all come at once
)

// listening is a connection on which a client gets the events of a feed.
type listening struct {
	events *feed.Listener
	conn   *conn          // for deadlines, and to see whether the client is gone
	out    io.WriteCloser // conn, or TLS on top of it
	last   string         // the id of the last event that the client has
	until  time.Time      // when its token expires; zero: never
	ended  <-chan struct{}
	limit  time.Duration // of a write
}

// listenings are all of them. Stop waits until none is left.
type listenings struct {
	mu      sync.Mutex
	all     map[*listening]struct{}
	stopped bool
	none    sync.Cond // with mu: all is empty
}

// add takes over a listening until its connection is closed. It returns false after stop.
func (l *listenings) add(one *listening) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.all[one] = struct{}{}
	one.conn.onClose = func() {
		one.events.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(l.all, one); len(l.all) == 0 {
			l.none.Broadcast()
		}
	}
	return true
}

// stop ends writes that clients delay, and returns when all connections are closed. They
// have been told to end.
func (l *listenings) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for one := range l.all {
		_ = one.conn.netConn.Close() // its goroutine closes conn
	}
	for len(l.all) > 0 {
		l.none.Wait()
	}
}

// serveEvents responds with the events of the page that r asks for, until the generation
// ends.
func (h *feedHandler) serveEvents(ctx *fasthttp.RequestCtx, r *feed.Request, fields feed.Fields) {
	if r.Limit != 0 || r.Offset != 0 || r.Before != "" || !fields.All() {
		h.server.problem(ctx, badRequest, "events have the first page in its default size: omit limit, offset, before and fields")
		return
	}
	events, err := h.feed.Listen(h.server.base, ctx.Time(), r.Args, h.server.network(ctx))
	if err != nil {
		h.fail(ctx, err)
		return
	}
	one := &listening{
		events: events,
		conn:   connOf(ctx),
		out:    ctx.Conn(),
		last:   string(ctx.Request.Header.Peek("Last-Event-ID")),
		until:  h.server.expiry(ctx),
		ended:  h.server.ended,
		limit:  h.server.cfg.WriteTimeout,
	}
	if !h.server.listenings.add(one) {
		events.Close()
		h.server.unavailable(ctx, stopping, "the server stops", nil)
		return
	}
	header := &ctx.Response.Header
	header.SetContentType("text/event-stream")
	header.SetCanonical(headerCacheControl, noStore)
	header.Set("X-Accel-Buffering", "no") // nginx passes each event on at once
	ctx.SetConnectionClose()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {
		head := append(ctx.Response.Header.AppendBytes(nil), "retry: "...)
		head = strconv.AppendInt(head, retryMin+rand.Int64N(retrySpread), 10)
		go one.run(append(head, "\n\n"...))
	})
}

// run sends the header of the response and then events. It closes the connection.
func (l *listening) run(head []byte) {
	defer l.out.Close()
	if tcp, ok := l.conn.netConn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = tcp.SetWriteBuffer(sendBufferMax) // fails only if the connection is gone
	}
	l.conn.expectAcks(2 * l.limit) // longer than send waits for a client that does not read
	if !l.send(head) {
		return
	}
	timer := time.NewTimer(l.pause(time.Now()))
	defer timer.Stop()
	for looks := 1; ; {
		e := l.events.Event()
		if e.Text == nil {
			return
		}
		if e.ID != l.last {
			if !l.send(e.Text) {
				return
			}
			l.last = e.ID
			l.events.CountEvent()
		}
		select {
		case <-e.Next():
		case <-l.ended:
			return
		case now := <-timer.C:
			if !l.until.IsZero() && !now.Before(l.until) || l.conn.gone() {
				return
			}
			if looks++; looks%looksPerBeat == 0 && !l.send([]byte(":\n\n")) {
				return
			}
			timer.Reset(l.pause(now))
		}
	}
}

// pause returns the time from now until the connection must be looked at.
func (l *listening) pause(now time.Time) time.Duration {
	if l.until.IsZero() {
		return lookInterval
	}
	return max(0, min(lookInterval, l.until.Sub(now)))
}

// send writes p. It returns false if the connection is of no use any more.
func (l *listening) send(p []byte) bool {
	err := l.conn.allowWrite(time.Now(), l.limit)
	if err == nil {
		_, err = l.out.Write(p)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		l.events.CountDropped()
	}
	return err == nil
}

// expiry returns when the token of a request expires; zero if it has none.
func (s *Server) expiry(ctx *fasthttp.RequestCtx) time.Time {
	who, ok := ctx.UserValue(callerKey{}).(caller)
	if !ok || s.cfg.Tokens == nil {
		return time.Time{}
	}
	return s.cfg.Tokens.Expiry(who.claims)
}

// asksForEvents reports whether a request prefers text/event-stream to JSON: it names the
// type, with a larger weight than JSON has.
func asksForEvents(ctx *fasthttp.RequestCtx) bool {
	lines := ctx.Request.Header.PeekAll(fasthttp.HeaderAccept)
	return slices.ContainsFunc(lines, mayNameEvents) && ctx.IsGet() && !ctx.Request.IsBodyStream() && prefersEvents(lines)
}

// mayNameEvents is false for most lines that do not name text/event-stream, at little cost.
func mayNameEvents(line []byte) bool {
	const before = "text/event"
	for {
		dash := bytes.IndexByte(line, '-')
		if dash < 0 {
			return false
		}
		if dash >= len(before) && bytes.EqualFold(line[dash-len(before):dash], []byte(before)) {
			return true
		}
		line = line[dash+1:]
	}
}

// prefersEvents is asksForEvents for the lines of an Accept header (RFC 9110, 12.5.1).
func prefersEvents(lines [][]byte) bool {
	events, json, precision := 0, 0, 0
	compress.EachWeight(lines, func(name []byte, weight int, _ bool) {
		if bytes.EqualFold(name, []byte("text/event-stream")) {
			events = max(events, weight)
		}
		// The most precise range that includes JSON has its weight.
		for i, like := range []string{"*/*", "application/*", "application/json"} {
			if i+1 >= precision && bytes.EqualFold(name, []byte(like)) {
				json, precision = weight, i+1
			}
		}
	})
	return events > json
}
