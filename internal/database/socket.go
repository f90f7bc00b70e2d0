package database

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a connection whose reads need not wait themselves. One goroutine uses it at a time, except for Close.
type socket struct {
	net.Conn
	raw  syscall.RawConn
	wait func() bool // nil: reads wait themselves
	try  func(fd uintptr) bool

	// Of the current read:
	into []byte
	n    int
	err  error
}

func newSocket(conn net.Conn) (*socket, error) {
	raw, err := conn.(syscall.Conn).SyscallConn() // net's connections all are one
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the descriptor: %w", err), conn.Close())
	}
	s := &socket{Conn: conn, raw: raw}
	s.try = func(fd uintptr) bool {
		s.n, s.err = unix.Read(int(fd), s.into)
		return true
	}
	return s, nil
}

// SyscallConn implements syscall.Conn.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	if s.wait == nil {
		return s.Conn.Read(p)
	}
	s.into = p
	for s.wait() {
		err := s.raw.Read(s.try)
		switch {
		case err != nil:
			return 0, err
		case s.err == unix.EAGAIN || s.err == unix.EINTR:
		case s.err == nil && s.n == 0:
			return 0, io.EOF
		default:
			return max(0, s.n), s.err
		}
	}
	return 0, net.ErrClosed
}

// Park has the connection that Connect has opened call wait before each read, until something has come to fd. If wait returns false, the
// read fails. With nil, reads wait themselves again.
func (s *MySQLSession) Park(wait func() bool) (fd int, err error) {
	s.raw.wait = wait
	err = s.raw.raw.Control(func(descriptor uintptr) { fd = int(descriptor) })
	return fd, err
}
