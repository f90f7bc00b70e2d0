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

const (
	acceptDrain = 50 * time.Millisecond // at stop: time to take what the kernel has queued
)

// listener counts its connections, and drains its queue before it closes.
type listener struct {
	*net.TCPListener
	limit   int64  // connections open at once
	refusal []byte // what one too many is told
	open    atomic.Int64
	refused atomic.Int64
	closed  chan struct{} // gets a token whenever a connection closes
}

func newListener(ln *net.TCPListener, limit int, refusal []byte) *listener {
	return &listener{TCPListener: ln, limit: int64(limit), refusal: refusal, closed: make(chan struct{}, 1)}
}

// Accept returns the next connection; io.EOF once drain has let the queue run empty.
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
			// Out of descriptors or a client gone already: the next may do better.
			time.Sleep(5 * time.Millisecond)
		default:
			return nil, fmt.Errorf("accept: %w", err)
		}
	}
}

// refuse tells a client that comes one too many to come again.
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

// drain keeps new connections out, lets Accept take those that the kernel has queued, and
// then ends it. Closing a listener resets what is in its queue, and such a client may have
// sent its request already.
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
