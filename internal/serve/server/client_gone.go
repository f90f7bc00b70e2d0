package server

import (
	"context"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// departureEvery is how often a waiting request's client is looked after.
const departureEvery = 200 * time.Millisecond

// present returns a context that ends when the client goes away: nobody reads
// its socket while a handler runs, so the socket is looked at from time to time.
// The handler calls stop before it returns. Behind TLS the client's leaving shows
// only when the answer is written.
//
// A client that has closed its sending half alone counts as gone, as it does for net/http.
func (s *Server) present(ctx *fasthttp.RequestCtx) (waiting context.Context, stop func()) {
	waiting, cancel := context.WithCancel(s.base)
	c, ok := ctx.Conn().(*conn)
	if !ok {
		return waiting, cancel
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(departureEvery)
		defer ticker.Stop()
		for {
			select {
			case <-waiting.Done():
				return
			case <-ticker.C:
			}
			if c.gone() {
				cancel()
				return
			}
		}
	}()
	return waiting, func() {
		cancel()
		<-done
	}
}

// gone reports whether the other side has closed the connection. It takes
// nothing from what there is to read.
func (c *conn) gone() bool {
	closed := false
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && err == nil || err == syscall.ECONNRESET || err == syscall.EPIPE
	})
	return closed || err != nil
}
