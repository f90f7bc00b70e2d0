//go:build !portable

package front

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"spillway/internal/netstat"
)

// The sockets of loops never block, so the scheduler need not be told of these calls (RawSyscall).

// accept returns a connection from the queue of a listening socket, and the client's address. The clients of a Unix socket have
// 127.0.0.1, because they are on this machine.
func accept(socket int) (fd int, peer netip.AddrPort, errno syscall.Errno) {
	var name unix.RawSockaddrInet6 // has room for the other kinds
	size := uint32(unsafe.Sizeof(name))
	n, _, errno := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(socket), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, peer, errno
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	switch name.Family {
	case unix.AF_INET:
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&name))
		return int(n), netip.AddrPortFrom(netip.AddrFrom4(four.Addr), port), 0
	case unix.AF_INET6:
		return int(n), netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), port), 0
	}
	return int(n), netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0), 0
}

// prepare sets the options of a listening socket. Accepted connections inherit TCP_NODELAY. With deferred, the kernel wakes
// nobody before a connection has sent something, or for about a second. A Unix socket has neither option, and needs neither.
func prepare(socket int, deferred bool) {
	_ = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if deferred {
		_ = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	}
}

// Half reports whether clients may be connected of whom the kernel has not told because they have sent nothing. It tells of them
// from then on when they do.
func (f *Front) Half() bool {
	_ = unix.SetsockoptInt(f.cfg.Socket, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 0) // a Unix socket does not have it
	name, err := unix.Getsockname(f.cfg.Socket)
	if err != nil {
		return false
	}
	var port int
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		port = name.Port
	case *unix.SockaddrInet6:
		port = name.Port
	default:
		return false
	}
	kernel, err := netstat.Open()
	if err != nil {
		return true
	}
	defer kernel.Close()
	found := false
	err = kernel.Sockets(netstat.Arriving(uint16(port)), func(*netstat.Socket) { found = true })
	return found || err != nil
}

// acceptLate hands over a connection that has come since the loops found the queue empty. It returns false if there is none.
func (f *Front) acceptLate() bool {
	fd, peer, errno := accept(f.cfg.Socket)
	switch {
	case errno == unix.EINTR || errno == unix.ECONNABORTED:
		return true // the client has left
	case errno != 0:
		return false
	case !f.cfg.Gate.Enter():
		_, _ = send(fd, f.cfg.Refusal) // an empty socket buffer takes it at once
		closeSocket(fd)
	default:
		f.hand(taken{fd: fd, peer: peer})
	}
	return true
}

func receive(fd int, p []byte) (n int, errno syscall.Errno) {
	return transfer(syscall.SYS_RECVFROM, fd, p, 0)
}

// pending reports whether a client has sent something that was not read.
func pending(fd int) bool {
	var one [1]byte
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&one)), 1,
		unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	return errno == 0 && n > 0
}

func send(fd int, p []byte) (n int, errno syscall.Errno) {
	return transfer(syscall.SYS_SENDTO, fd, p, unix.MSG_NOSIGNAL)
}

// sendLast is send before endSending. The kernel holds back what does not fill a packet until then, and sends it and the end of
// the stream in one. Close alone would drop it if the client has sent more than was read.
func sendLast(fd int, p []byte) (n int, errno syscall.Errno) {
	return transfer(syscall.SYS_SENDTO, fd, p, unix.MSG_MORE|unix.MSG_NOSIGNAL)
}

func endSending(fd int) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
}

func transfer(trap uintptr, fd int, p []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
			flags, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func closeSocket(fd int) { _, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

// Conn is a connection that was handed over. Read, Write and deadlines are those of a network connection; Handed says what has
// happened before.
type Conn struct {
	*os.File
	Handed Handed
	peer   netip.AddrPort
	raw    syscall.RawConn

	detached int // see Detach
}

func newConn(t taken) *Conn {
	file := os.NewFile(uintptr(t.fd), "connection")
	raw, err := file.SyscallConn()
	if err != nil {
		panic("bug: a connection is handed over without a descriptor: " + err.Error())
	}
	return &Conn{File: file, Handed: t.Handed, peer: t.peer, raw: raw}
}

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.peer) }

// Detach prepares the connection for TakeBack, which must follow. If it fails, for want of a descriptor, nothing has happened.
func (c *Conn) Detach() error {
	var err error
	failed := c.raw.Control(func(own uintptr) { c.detached, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return errors.Join(failed, err)
}

// SetWriteBuffer sets how many bytes the kernel keeps for a client that does not read.
func (c *Conn) SetWriteBuffer(bytes int) error {
	var err error
	failed := c.raw.Control(func(own uintptr) { err = unix.SetsockoptInt(int(own), unix.SOL_SOCKET, unix.SO_SNDBUF, bytes) })
	return errors.Join(failed, err)
}

// LocalAddr implements net.Conn. It is nil if the connection has ended.
func (c *Conn) LocalAddr() net.Addr {
	var local net.Addr
	_ = c.raw.Control(func(fd uintptr) { // it fails only on a closed connection
		name, err := unix.Getsockname(int(fd))
		if err != nil {
			return
		}
		switch name := name.(type) {
		case *unix.SockaddrInet4:
			local = &net.TCPAddr{IP: name.Addr[:], Port: name.Port}
		case *unix.SockaddrInet6:
			local = &net.TCPAddr{IP: name.Addr[:], Port: name.Port}
		case *unix.SockaddrUnix:
			local = &net.UnixAddr{Name: name.Name, Net: "unix"}
		}
	})
	return local
}

// CloseWrite ends the sending half.
func (c *Conn) CloseWrite() error {
	var err error
	if failed := c.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) }); failed != nil {
		return failed // os.File's own error
	}
	return os.NewSyscallError("shutdown", err)
}
