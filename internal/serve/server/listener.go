package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// acceptDrain is how long queued connections are accepted at stop.
const acceptDrain = 50 * time.Millisecond

// listener counts and limits its connections, and drains its queue before it closes.
type listener struct {
	*net.TCPListener
	limit   int64  // connections open at once
	refusal []byte // response to a connection beyond limit
	open    atomic.Int64
	refused atomic.Int64
	closed  chan struct{} // receives whenever a connection closes
}

func newListener(ln *net.TCPListener, limit int, refusal []byte) *listener {
	return &listener{TCPListener: ln, limit: int64(limit), refusal: refusal, closed: make(chan struct{}, 1)}
}

// Accept returns the next connection, or io.EOF after drain has emptied the queue.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil && l.open.Load() < l.limit:
			return newConn(c, l)
		case err == nil:
			l.refuse(c)
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			return nil, io.EOF
		case isTemporary(err):
			// Out of descriptors, or the client has left.
			time.Sleep(5 * time.Millisecond)
		default:
			return nil, fmt.Errorf("accept: %w", err)
		}
	}
}

// refuse answers a connection beyond the limit.
func (l *listener) refuse(c *net.TCPConn) {
	l.refused.Add(1)
	_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // an empty socket buffer takes it at once
	_, _ = c.Write(l.refusal)
	_ = c.Close()
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// drain refuses new connections, lets Accept take those in the kernel's queue, and then
// ends it. Closing the listener at once would reset queued connections, whose clients may
// have sent a request.
func (l *listener) drain() error {
	defer l.SetDeadline(time.Now().Add(acceptDrain)) // it fails on a closed listener only
	return refuseNew(l.TCPListener)
}

// waitClosed waits until no connection is open or ctx ends.
func (l *listener) waitClosed(ctx context.Context) {
	for l.open.Load() > 0 {
		select {
		case <-l.closed:
		case <-ctx.Done():
			return
		}
	}
}
