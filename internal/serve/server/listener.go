package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
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

// drain keeps new connections out, lets Accept take those that the kernel has
// queued, and then ends it. Closing a listener resets what is in its queue, and
// such a client may have sent its request already. So the listener's SYN packets
// are dropped first: a client that knocks now tries again a second later, by
// which time the port is closed, or another process's. Handshakes under way end.
func (l *listener) drain() error {
	defer l.SetDeadline(time.Now().Add(acceptDrain)) // it fails on a closed listener only
	raw, err := l.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach the listening socket: %w", err)
	}
	const flagsAt, syn, ack = 13, 0x02, 0x10 // in the TCP header (RFC 9293, 3.1), where the filter begins
	filter := [...]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flagsAt},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	}); err != nil {
		failed = err
	}
	if failed != nil {
		return fmt.Errorf("keep new connections out: %w", failed)
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
