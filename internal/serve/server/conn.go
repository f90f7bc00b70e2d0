package server

import (
	"context"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// deadlineDrift is how much too early a deadline may expire. If the timeouts are shorter than
// twice as long, it is half of the shortest.
const deadlineDrift = time.Second

// conn is an accepted connection that is cheaper per request than net.TCPConn. fasthttp
// sets new deadlines at every request; conn passes on only those that differ noticeably.
// Reads and writes go through socket.
//
// One goroutine uses a conn at a time, as fasthttp does. Close may be called by another.
type conn struct {
	netConn
	remote   net.Addr
	listener *listener
	socket   socket
	read     connDeadline
	write    connDeadline
	ended    bool        // Read has returned io.EOF
	linger   atomic.Bool // Close waits until the client has read its last response
	once     sync.Once
	onClose  func() // called by the first Close; nil: nothing
	begun    *begun // what an event loop has done; nil: nothing is left of it
	stay     stay   // of a connection that an event loop has handed over
}

// netConn is what TCP and Unix connections have in common.
type netConn interface {
	net.Conn
	CloseWrite() error
	SyscallConn() (syscall.RawConn, error)
}

// newConn wraps a TCP or Unix connection that has entered l.
func newConn(accepted net.Conn, l *listener) (*conn, error) {
	c, ok := accepted.(netConn)
	if !ok {
		panic("bug: the listener accepts connections of another type")
	}
	wrapped := &conn{netConn: c, remote: c.RemoteAddr(), listener: l}
	if _, unix := c.(*net.UnixConn); unix {
		wrapped.remote = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	}
	wrapped.read.drift, wrapped.write.drift = l.drift, l.drift
	if err := wrapped.socket.bind(c); err != nil {
		l.Leave()
		return nil, err
	}
	return wrapped, nil
}

// RemoteAddr implements net.Conn. The clients of a Unix socket count as 127.0.0.1, because
// they are on this machine.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// Read implements io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	if c.begun != nil {
		return c.resume(p)
	}
	if c.stay.over() {
		return 0, io.EOF // see Close
	}
	if c.read.due() {
		if err := c.netConn.SetReadDeadline(c.read.asked); err != nil {
			return 0, err // net.Conn's own error
		}
		c.read.set = c.read.asked
	}
	n, err := c.socket.read(p)
	if err == io.EOF {
		c.ended = true
	}
	return n, err // net.Conn's own error
}

// Write implements io.Writer.
func (c *conn) Write(p []byte) (int, error) {
	if c.write.due() {
		if err := c.netConn.SetWriteDeadline(c.write.asked); err != nil {
			return 0, err // net.Conn's own error
		}
		c.write.set = c.write.asked
	}
	return c.socket.write(p)
}

// ReadFrom keeps io.Copy from bypassing Write.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r) // io.Copy's contract
}

// SetReadDeadline implements net.Conn; Read passes it on.
func (c *conn) SetReadDeadline(t time.Time) error { c.read.asked = t; return nil }

// SetWriteDeadline implements net.Conn; Write passes it on.
func (c *conn) SetWriteDeadline(t time.Time) error { c.write.asked = t; return nil }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { c.read.asked, c.write.asked = t, t; return nil }

// allowWrite sets the deadline of a write that follows at once: limit from now, or down to half
// as long if that spares a change.
func (c *conn) allowWrite(now time.Time, limit time.Duration) error {
	left := c.write.set.Sub(now)
	if c.write.asked.Equal(c.write.set) && left >= limit/2 && left <= limit {
		return nil
	}
	c.write.asked = now.Add(limit)
	c.write.set = c.write.asked
	return c.netConn.SetWriteDeadline(c.write.set) // net.Conn's own error
}

// Close implements net.Conn. It may be called more than once.
func (c *conn) Close() error {
	c.once.Do(func() {
		if c.linger.Load() {
			c.discard()
		}
		if c.onClose != nil {
			c.onClose()
		}
		if c.stay.returns.Load() && c.listener.front.TakeBack(c.stay.conn) {
			return // the place in the listener is the loop's
		}
		c.listener.Leave()
		// If the client has sent more than was read, it is reset, but first reads what has reached it of the response, and the end.
		_ = c.CloseWrite() // it is closed anyway
	})
	return c.netConn.Close() // io.Closer's contract
}

// discard reads what the client still sends after its last response. Closing earlier would
// reset the connection, and the client might not read the response.
func (c *conn) discard() {
	if c.CloseWrite() != nil || c.netConn.SetReadDeadline(time.Now().Add(c.listener.pauses.linger)) != nil {
		return // it is gone
	}
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{c.netConn}) // until it closes, or the time is over
}

// connDeadline is the requested deadline and the one that the poller has.
type connDeadline struct {
	asked, set time.Time
	drift      time.Duration // how much earlier set may be
}

// due reports whether the requested deadline must be set: it is earlier than the current
// one, or later by more than drift.
func (d *connDeadline) due() bool {
	if d.asked.Equal(d.set) {
		return false
	}
	if d.asked.IsZero() || d.set.IsZero() {
		return true
	}
	drift := d.asked.Sub(d.set)
	return drift < 0 || drift > d.drift
}

// clientContext returns a context that ends after the timeout, and when the client disconnects. It checks the
// socket periodically, because nothing reads it while a handler runs. The handler calls
// stop before it returns. With TLS, a disconnect shows only when the response is written.
//
// A client that has closed only its sending half counts as disconnected, as in net/http.
func (s *Server) clientContext(ctx *fasthttp.RequestCtx, timeout time.Duration) (waiting context.Context, stop func()) {
	waiting, cancel := context.WithTimeout(s.base, timeout)
	c, ok := ctx.Conn().(*conn)
	if !ok {
		return waiting, cancel
	}
	var check *time.Timer
	check = time.AfterFunc(math.MaxInt64, func() {
		switch {
		case waiting.Err() != nil:
		case c.gone():
			cancel()
		default:
			check.Reset(s.pauses.clientCheck)
		}
	})
	check.Reset(s.pauses.clientCheck)
	return waiting, func() {
		cancel()
		check.Stop()
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
