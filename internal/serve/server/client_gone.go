package server

import (
	"context"
	"sync"
	"syscall"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"spillway/internal/serve/queue"
)

// clientContext returns a context that ends when the client disconnects. It checks the
// socket periodically, because nothing reads it while a handler runs. The handler calls
// stop before it returns. With TLS, a disconnect shows only when the response is written.
//
// A client that has closed only its sending half counts as disconnected, as in net/http.
func (s *Server) clientContext(ctx *fasthttp.RequestCtx) (waiting context.Context, stop func()) {
	waiting, cancel := context.WithCancel(s.base)
	c, ok := ctx.Conn().(*conn)
	if !ok {
		return waiting, cancel
	}
	var checking sync.WaitGroup
	checking.Go(func() {
		for range queue.Ticks(waiting, s.pauses.clientCheck) {
			if c.gone() {
				cancel()
				return
			}
		}
	})
	return waiting, func() {
		cancel()
		checking.Wait()
	}
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
