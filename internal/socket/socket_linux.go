//go:build !portable

package socket

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"unsafe"
)

// IO reads and writes a connection with less work per call than net.TCPConn. The
// socket never blocks, so its system calls return at once and the scheduler need not be
// told of them (RawSyscall). Otherwise its monitor thread takes the processor away from
// calls that the kernel happens to interrupt. Waiting is left to the runtime's poller.
type IO struct {
	raw     syscall.RawConn
	in, out transfer
}

// Bind makes s that of a connection. It is called first, once.
func (s *IO) Bind(c Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach the socket: %w", err)
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

// Read implements io.Reader.
func (s *IO) Read(p []byte) (int, error) {
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

// Write implements io.Writer.
func (s *IO) Write(p []byte) (int, error) {
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
