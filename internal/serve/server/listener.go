package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/config"
	"spillway/internal/serve/front"
)

// Listener is an open socket that Run serves on.
type Listener struct {
	netListener
	passed bool      // by the service manager, which keeps it open
	taken  bool      // the socket is an event loop's
	remove sync.Once // removes the file of a Unix socket
	ends   sync.Once // closes
}

// netListener is what TCP and Unix listeners have in common.
type netListener interface {
	net.Listener
	SetDeadline(time.Time) error
}

// Listen opens the listener of an address, HOST:PORT or unix:PATH.
func Listen(ctx context.Context, address string) (*Listener, error) {
	if path, ok := strings.CutPrefix(address, config.UnixPrefix); ok {
		return listenUnix(ctx, path)
	}
	var lc net.ListenConfig
	lc.KeepAlive = -1         // http.idle_timeout ends dead connections; keep-alive costs four system calls per connection
	lc.SetMultipathTCP(false) // it costs CPU per connection, and draining needs plain TCP
	ln, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return newOpenListener(ln, false)
}

// Passed returns the listener of a listening socket that the service manager has opened.
// It may have connections in its queue. When Run stops, those stay for the next process.
// The caller may close file afterwards.
func Passed(file *os.File) (*Listener, error) {
	ln, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listen on the passed socket %s: %w", file.Name(), err)
	}
	return newOpenListener(ln, true)
}

func newOpenListener(ln net.Listener, passed bool) (*Listener, error) {
	open, ok := ln.(netListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen on %s: neither TCP nor a Unix socket of type stream", ln.Addr()), ln.Close())
	}
	return &Listener{netListener: open, passed: passed}, nil
}

// unlink removes the file of a Unix socket that this process has opened. Only the first call
// does, because another process may have its own file there later.
func (l *Listener) unlink() (err error) {
	if _, unix := l.netListener.(*net.UnixListener); unix && !l.passed {
		l.remove.Do(func() { err = os.Remove(l.Addr().String()) })
	}
	return err
}

// Close implements net.Listener. It may be called more than once.
func (l *Listener) Close() (err error) {
	l.ends.Do(func() {
		if err = l.unlink(); !l.taken {
			err = errors.Join(err, l.netListener.Close())
		}
	})
	return err
}

// take returns the socket, which becomes the caller's. Nothing else waits for connections then.
func (l *Listener) take() (socket int, err error) {
	raw, err := l.netListener.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("reach the listening socket: %w", err)
	}
	failed := raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(failed, err); err != nil {
		return -1, fmt.Errorf("take the listening socket: %w", err)
	}
	if err := l.netListener.Close(); err != nil {
		return -1, errors.Join(fmt.Errorf("take the listening socket: %w", err), unix.Close(socket))
	}
	l.taken = true
	return socket, nil
}

// unixMode lets the owner and the group of a Unix socket connect.
const unixMode = 0o660

// listenUnix opens a Unix socket. It replaces the file of a process that has ended.
func listenUnix(ctx context.Context, path string) (*Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && isDeserted(ctx, path) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
		}
		ln, err = lc.Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if unix, ok := ln.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // see unlink
	}
	if err := os.Chmod(path, unixMode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), ln.Close())
	}
	return newOpenListener(ln, false)
}

// isDeserted reports whether path is a Unix socket on which no process listens.
func isDeserted(ctx context.Context, path string) bool {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return false // connections to other files are refused too
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// listener counts and limits its connections, and drains its queue before it closes.
type listener struct {
	*Listener
	limit   int64         // connections open at once
	refusal []byte        // response to a connection beyond limit
	drift   time.Duration // how much too early a connection's deadlines may expire
	pauses  pauses
	open    atomic.Int64
	refused atomic.Int64
	closed  chan struct{} // receives whenever a connection closes

	refuseNew    func(socket int)          // has the kernel refuse connections, if it can
	drainEnd     atomic.Pointer[time.Time] // until when the queue is emptied; nil: it is not
	front        *front.Front              // accepts, and answers what needs no waiting; nil: there is none
	socket       int                       // of front
	handed       atomic.Int64              // connections that left front; some return
	writeTimeout time.Duration             // of what it hands over
}

func newListener(ln *Listener, limit int, refusal []byte, p pauses) *listener {
	return &listener{Listener: ln, limit: int64(limit), refusal: refusal, pauses: p, closed: make(chan struct{}, 1), refuseNew: refuseNew}
}

// Enter implements front.Gate.
func (l *listener) Enter() bool {
	if l.open.Add(1) <= l.limit {
		return true
	}
	l.open.Add(-1)
	l.refused.Add(1)
	return false
}

// Leave implements front.Gate.
func (l *listener) Leave() {
	l.open.Add(-1)
	select {
	case l.closed <- struct{}{}:
	default:
	}
}

// Accept returns the next connection. After drain it empties the queue, closes the listener at once and returns io.EOF.
func (l *listener) Accept() (net.Conn, error) {
	if l.front != nil {
		return l.acceptHanded()
	}
	for {
		c, err := l.Listener.Accept()
		switch {
		case err == nil && l.Enter():
			return newConn(c, l)
		case err == nil:
			l.refuse(c)
		case errors.Is(err, os.ErrDeadlineExceeded) && l.extend():
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			_ = l.Close() // nobody accepts any more
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
func (l *listener) refuse(c net.Conn) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // an empty socket buffer takes it at once
	_, _ = c.Write(l.refusal)
	_ = c.Close()
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// drain refuses new connections if the kernel permits it, lets Accept take those in its queue, and then
// ends it. Closing the listener at once would reset queued connections, whose clients may
// have sent a request. The queue of a passed socket is left to the next process.
func (l *listener) drain() error {
	if l.front != nil {
		return l.drainFront()
	}
	if l.passed {
		return l.SetDeadline(time.Now()) // it fails on a closed listener only
	}
	l.drainEnd.Store(new(time.Now().Add(l.pauses.drainIdle)))
	defer l.SetDeadline(time.Now().Add(l.pauses.acceptDrain)) // as above
	if _, tcp := l.netListener.(*net.TCPListener); !tcp {
		return l.unlink()
	}
	return l.control(l.refuseNew)
}

// extend has Accept continue while connections are in the queue of a listener that is drained, and reports whether it does.
func (l *listener) extend() bool {
	end, queued := l.drainEnd.Load(), false
	if end == nil || time.Now().After(*end) {
		return false
	}
	err := l.control(func(socket int) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}, 0)
		queued = err == nil && n > 0
	})
	return err == nil && queued && l.SetDeadline(time.Now().Add(l.pauses.acceptDrain)) == nil
}

// control calls f with the socket.
func (l *listener) control(f func(socket int)) error {
	raw, err := l.netListener.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil {
		return fmt.Errorf("reach the listening socket: %w", err)
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
