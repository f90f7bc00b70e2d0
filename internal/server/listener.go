package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	acceptDrain   = 50 * time.Millisecond // at stop: time to take what the kernel has queued
	deadlineDrift = time.Second           // a deadline may be reached so much too early
)

// listener counts its connections, and drains its queue before it closes.
type listener struct {
	*net.TCPListener
	open   atomic.Int64
	closed chan struct{} // gets a token whenever a connection closes
}

func newListener(ln *net.TCPListener) *listener {
	return &listener{TCPListener: ln, closed: make(chan struct{}, 1)}
}

// Accept returns the next connection; io.EOF once drain has let the queue run empty.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			l.open.Add(1)
			return &conn{TCPConn: c, listener: l}, nil
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

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// drain lets Accept take what is queued for a moment and then end.
func (l *listener) drain() error {
	if err := l.SetDeadline(time.Now().Add(acceptDrain)); err != nil {
		return fmt.Errorf("set accept deadline: %w", err)
	}
	return nil
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

// conn is an accepted connection whose deadlines cost nothing while requests
// come: the server asks for new ones at every request, and conn passes on only
// those that a blocked read or write would notice. One goroutine uses it at a
// time, as fasthttp does; Close may be called by another.
type conn struct {
	*net.TCPConn
	listener *listener
	read     deadline
	write    deadline
	once     sync.Once
}

// deadline is what was asked for and what the kernel side knows.
type deadline struct{ asked, set time.Time }

// due returns whether the asked deadline must be set: it is earlier than the one
// that is set, or later by more than deadlineDrift.
func (d *deadline) due() bool {
	if d.asked.Equal(d.set) {
		return false
	}
	if d.asked.IsZero() || d.set.IsZero() {
		return true
	}
	drift := d.asked.Sub(d.set)
	return drift < 0 || drift > deadlineDrift
}

func (c *conn) SetReadDeadline(t time.Time) error  { c.read.asked = t; return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { c.write.asked = t; return nil }
func (c *conn) SetDeadline(t time.Time) error      { c.read.asked, c.write.asked = t, t; return nil }

func (c *conn) Read(p []byte) (int, error) {
	if c.read.due() {
		if err := c.TCPConn.SetReadDeadline(c.read.asked); err != nil {
			return 0, err //nolint:wrapcheck // net.Conn's own error
		}
		c.read.set = c.read.asked
	}
	return c.TCPConn.Read(p) //nolint:wrapcheck // io.Reader's contract
}

func (c *conn) Write(p []byte) (int, error) {
	if c.write.due() {
		if err := c.TCPConn.SetWriteDeadline(c.write.asked); err != nil {
			return 0, err //nolint:wrapcheck // net.Conn's own error
		}
		c.write.set = c.write.asked
	}
	return c.TCPConn.Write(p) //nolint:wrapcheck // io.Writer's contract
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.listener.open.Add(-1)
		select {
		case c.listener.closed <- struct{}{}:
		default:
		}
	})
	return c.TCPConn.Close() //nolint:wrapcheck // io.Closer's contract
}
