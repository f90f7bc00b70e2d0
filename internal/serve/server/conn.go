package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// deadlineDrift is how much too early a deadline may be reached.
const deadlineDrift = time.Second

// conn is an accepted connection that spends less on each request than
// net.TCPConn:
//
//   - Deadlines: the server asks for new ones at every request. Only those that a
//     blocked read or write would notice are passed on.
//   - System calls: the socket never blocks, so its reads and writes return at once
//     and the scheduler need not be told of them (RawSyscall). Otherwise its monitor
//     thread takes the processor away from writes that the kernel happens to
//     interrupt, and wakes another thread for it: measured at one seventh of
//     the server's CPU. Waiting is the runtime's poller's, as ever.
//
// One goroutine uses a conn at a time, as fasthttp does; Close may be called by
// another.
type conn struct {
	*net.TCPConn
	listener *listener
	raw      syscall.RawConn
	in, out  transfer
	read     connDeadline
	write    connDeadline
	ended    bool        // Read has met the end
	linger   atomic.Bool // Close waits until the client has read what it was told
	once     sync.Once
}

// newConn returns c with its cheaper calls, counted by l.
func newConn(c *net.TCPConn, l *listener) (*conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach the socket: %w", err), c.Close())
	}
	wrapped := &conn{TCPConn: c, listener: l, raw: raw}
	wrapped.in.bind(syscall.SYS_READ)
	wrapped.out.bind(syscall.SYS_WRITE)
	l.open.Add(1)
	return wrapped, nil
}

// transfer is one direction's system call, bound once so that a call allocates
// nothing.
type transfer struct {
	call  func(fd uintptr) (done bool)
	bytes []byte // in: what to read into or to write
	n     int    // out: how many were
	errno syscall.Errno
}

// bind makes call the system call trap, read or write.
func (t *transfer) bind(trap uintptr) {
	t.call = func(fd uintptr) bool {
		for {
			n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.bytes))), uintptr(len(t.bytes)))
			switch errno {
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false // the poller waits, until the connDeadline
			}
			t.n, t.errno = int(n), errno
			return true
		}
	}
}

// Read implements io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	if c.read.due() {
		if err := c.TCPConn.SetReadDeadline(c.read.asked); err != nil {
			return 0, err // net.Conn's own error
		}
		c.read.set = c.read.asked
	}
	if len(p) == 0 {
		return 0, nil
	}
	c.in.bytes = p
	err := c.raw.Read(c.in.call)
	c.in.bytes = nil
	switch {
	case err != nil:
		return 0, err // net.Conn's own error
	case c.in.errno != 0:
		return 0, os.NewSyscallError("read", c.in.errno)
	case c.in.n == 0:
		c.ended = true
		return 0, io.EOF
	}
	return c.in.n, nil
}

// Write implements io.Writer.
func (c *conn) Write(p []byte) (int, error) {
	if c.write.due() {
		if err := c.TCPConn.SetWriteDeadline(c.write.asked); err != nil {
			return 0, err // net.Conn's own error
		}
		c.write.set = c.write.asked
	}
	for written := 0; ; {
		c.out.bytes = p[written:]
		err := c.raw.Write(c.out.call)
		c.out.bytes = nil
		if err == nil && c.out.errno != 0 {
			err = os.NewSyscallError("write", c.out.errno)
		}
		if err != nil {
			return written, err // net.Conn's own error
		}
		if written += c.out.n; written >= len(p) {
			return written, nil
		}
	}
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

// Close implements net.Conn. It may be called more than once.
func (c *conn) Close() error {
	c.once.Do(func() {
		if c.linger.Load() {
			c.discard()
		}
		c.listener.open.Add(-1)
		select {
		case c.listener.closed <- struct{}{}:
		default:
		}
	})
	return c.TCPConn.Close() // io.Closer's contract
}

// lingerFor is how long a client may go on to send what nobody reads.
const lingerFor = time.Second

// discard reads what a client sends that has its last answer. To close before that would
// reset the connection, and the answer might never be read.
func (c *conn) discard() {
	if c.CloseWrite() != nil || c.TCPConn.SetReadDeadline(time.Now().Add(lingerFor)) != nil {
		return // it is gone
	}
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{c.TCPConn}) // until it closes, or the time is over
}

// connDeadline is what was asked for and what the poller knows.
type connDeadline struct{ asked, set time.Time }

// due returns whether the asked deadline must be set: it is earlier than the one
// that is set, or later by more than deadlineDrift.
func (d *connDeadline) due() bool {
	if d.asked.Equal(d.set) {
		return false
	}
	if d.asked.IsZero() || d.set.IsZero() {
		return true
	}
	drift := d.asked.Sub(d.set)
	return drift < 0 || drift > deadlineDrift
}
