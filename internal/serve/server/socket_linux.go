//go:build !portable

package server

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket reads and writes a connection with less work per call than net.TCPConn. The
// socket never blocks, so its system calls return at once and the scheduler need not be
// told of them (RawSyscall). Otherwise its monitor thread takes the processor away from
// calls that the kernel happens to interrupt. Waiting is left to the runtime's poller.
type socket struct {
	raw     syscall.RawConn
	in, out transfer
}

func (s *socket) bind(c netConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return errors.Join(fmt.Errorf("reach the socket: %w", err), c.Close())
	}
	s.raw = raw
	s.in.bind(syscall.SYS_READ)
	s.out.bind(syscall.SYS_WRITE)
	return nil
}

// transfer is one direction's system call, bound once so that a call allocates nothing.
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
				return false // the poller waits, until the deadline
			}
			t.n, t.errno = int(n), errno
			return true
		}
	}
}

func (s *socket) read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.in.bytes = p
	err := s.raw.Read(s.in.call)
	s.in.bytes = nil
	switch {
	case err != nil:
		return 0, err // net.Conn's own error
	case s.in.errno != 0:
		return 0, os.NewSyscallError("read", s.in.errno)
	case s.in.n == 0:
		return 0, io.EOF
	}
	return s.in.n, nil
}

func (s *socket) write(p []byte) (int, error) {
	for written := 0; ; {
		s.out.bytes = p[written:]
		err := s.raw.Write(s.out.call)
		s.out.bytes = nil
		if err == nil && s.out.errno != 0 {
			err = os.NewSyscallError("write", s.out.errno)
		}
		if err != nil {
			return written, err // net.Conn's own error
		}
		if written += s.out.n; written >= len(p) {
			return written, nil
		}
	}
}

// expectAcks ends the connection when the client's kernel has not acknowledged sent bytes for
// that long. Otherwise a client that has lost its network stays connected for a quarter of an
// hour: small writes to it succeed.
func (c *conn) expectAcks(limit time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is gone
	}
	_ = raw.Control(func(fd uintptr) { // as above
		// a Unix socket does not have it, or need it
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}

// refuseNew drops the listener's SYN packets, so that its queue runs empty. A client whose
// SYN is dropped tries again a second later, when the port is closed or another
// process's. Handshakes under way end. It does nothing where the kernel wants CAP_NET_ADMIN for it.
func refuseNew(socket int) {
	const flagsAt, syn, ack = 13, 0x02, 0x10 // in the TCP header (RFC 9293, 3.1), where the filter begins
	filter := [...]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: flagsAt},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: syn | ack},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: syn, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_ = unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program) // the queue is emptied anyway
}
