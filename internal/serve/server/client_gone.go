package server

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"spillway/internal/serve/queue"
)

// departures cancels what clients wait for when they disconnect. It checks the sockets periodically, because nothing reads them
// while a handler runs. The zero value is ready to use.
type departures struct {
	mu      sync.Mutex // guards what follows
	waiting map[*conn]*queue.Context
	timer   *time.Timer // nil: nobody waits
}

// clientContext returns a context that ends when the client disconnects. The handler calls stop before it returns. With TLS, a
// disconnect shows only when the response is written.
//
// A client that has closed only its sending half counts as disconnected, as in net/http.
func (s *Server) clientContext(ctx *fasthttp.RequestCtx) (waiting context.Context, stop func()) {
	c, ok := ctx.Conn().(*conn)
	if !ok {
		return s.base, func() {}
	}
	d, client := &s.departures, new(queue.Context)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		d.waiting = make(map[*conn]*queue.Context)
		d.timer = time.AfterFunc(s.pauses.clientCheck, func() { d.check(s.base, s.pauses.clientCheck) })
	}
	d.waiting[c] = client
	return client, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.waiting, c)
	}
}

// check cancels what is waited for by clients that have left, or by all after the end of base.
func (d *departures) check(base context.Context, pause time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		d.timer = nil
		return
	}
	for c, client := range d.waiting {
		if base.Err() != nil || c.gone() {
			client.Cancel(context.Canceled)
			delete(d.waiting, c)
		}
	}
	d.timer.Reset(pause)
}

// gone reports whether the connection has ended, mostly because the client has closed it. It
// consumes no data.
func (c *conn) gone() bool {
	closed := false
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && err == nil || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return closed || err != nil
}
