package target

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchMax is the number of events that one wait returns. The pacer reads the
// clock between two batches, so a batch also bounds how late an arrival can be.
const batchMax = 64

// poller waits for sockets with epoll. One thread owns it.
type poller struct {
	fd     int
	events [batchMax]unix.EpollEvent
	coarse bool // the kernel has no epoll_pwait2: wait in milliseconds
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &poller{fd: fd}, nil
}

func (p *poller) close() error { return unix.Close(p.fd) }

// add watches fd. Its events carry key.
func (p *poller) add(fd int, events uint32, key eventKey) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, key.event(events))
}

// change sets the events watched on fd.
func (p *poller) change(fd int, events uint32, key eventKey) error {
	return p.control(unix.EPOLL_CTL_MOD, fd, key.event(events))
}

func (p *poller) control(operation, fd int, e unix.EpollEvent) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(p.fd), uintptr(operation), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// poll returns the number of pending events without waiting. The call cannot
// block, so it skips the Go scheduler's bookkeeping, which halves its cost.
func (p *poller) poll() (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), batchMax, 0, 0, 0)
	return pending(n, errno)
}

// wait returns the number of pending events and waits up to d for the first
// one. The scheduler knows of a longer call, so other goroutines continue.
func (p *poller) wait(d time.Duration) (int, error) {
	if d <= 0 {
		return p.poll()
	}
	if !p.coarse {
		n, err := p.waitFine(d)
		if !errors.Is(err, unix.ENOSYS) {
			return n, err
		}
		p.coarse = true
	}
	n, err := unix.EpollWait(p.fd, p.events[:], int(d/time.Millisecond)) // rounds down: the rest is polled
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("wait for epoll: %w", err)
	}
	return max(n, 0), nil
}

// shortWait is the longest wait that the Go scheduler need not know of. Its monitor would wake up with the worker each time, and
// take the CPU from a worker that has one core.
const shortWait = time.Millisecond

// waitFine waits with the kernel's nanosecond resolution.
func (p *poller) waitFine(d time.Duration) (int, error) {
	ts := unix.NsecToTimespec(int64(d))
	var n uintptr
	var errno unix.Errno
	if d <= shortWait {
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), batchMax,
			uintptr(unsafe.Pointer(&ts)), 0, 0)
	} else {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), batchMax,
			uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
	return pending(n, errno)
}

// pending returns the number of events of a wait, which a signal may have ended.
func pending(n uintptr, errno unix.Errno) (int, error) {
	switch errno {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, fmt.Errorf("wait for epoll: %w", errno)
}

// eventKey identifies a socket in an event. The generation tells an event of a
// closed socket from one of the socket that replaced it.
type eventKey struct {
	connection int32
	generation int32
}

func (k eventKey) event(events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: k.connection, Pad: k.generation}
}

// endpoint is the address of raw connections: TCP or a Unix socket. It is
// immutable and may be shared.
type endpoint struct {
	family  int
	address []byte // a struct sockaddr
	sources []netip.Addr
}

func tcpEndpoint(address netip.AddrPort, sources []netip.Addr) endpoint {
	ip := address.Addr().Unmap()
	if !ip.Is4() {
		raw := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
		raw = binary.BigEndian.AppendUint16(raw, address.Port())
		raw = append(raw, 0, 0, 0, 0) // flow
		raw = append(raw, ip.AsSlice()...)
		return endpoint{unix.AF_INET6, append(raw, 0, 0, 0, 0), sources} // scope
	}
	raw := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	raw = binary.BigEndian.AppendUint16(raw, address.Port())
	raw = append(raw, ip.AsSlice()...)
	return endpoint{unix.AF_INET, append(raw, make([]byte, 8)...), sources}
}

func unixEndpoint(path string) endpoint {
	raw := binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX)
	return endpoint{family: unix.AF_UNIX, address: append(append(raw, path...), 0)}
}

// open starts a connection. number selects the local address. established is
// false while the connection is still being made.
func (e *endpoint) open(number int) (fd int, established bool, err error) {
	fd, errno := call(unix.SYS_SOCKET, uintptr(e.family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return -1, false, fmt.Errorf("open socket: %w", errno)
	}
	if err := e.bind(fd, number); err != nil {
		socketClose(fd)
		return -1, false, err
	}
	switch errno := socketConnect(fd, e.address); errno {
	case 0:
		return fd, true, nil
	case unix.EINPROGRESS:
		return fd, false, nil
	default:
		socketClose(fd)
		return -1, false, fmt.Errorf("connect: %w", errno)
	}
}

// bind sets the local address. connect chooses the port, because it can share a
// port between different destinations.
func (e *endpoint) bind(fd, number int) error {
	if len(e.sources) == 0 {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return fmt.Errorf("set IP_BIND_ADDRESS_NO_PORT: %w", err)
	}
	if err := unix.Bind(fd, localAddress(e.sources[number%len(e.sources)])); err != nil {
		return fmt.Errorf("bind local address: %w", err)
	}
	return nil
}

func localAddress(ip netip.Addr) unix.Sockaddr {
	if ip = ip.Unmap(); ip.Is4() {
		return &unix.SockaddrInet4{Addr: ip.As4()}
	}
	return &unix.SockaddrInet6{Addr: ip.As16()}
}

// The calls below never block on a non-blocking socket, so they skip the
// scheduler's bookkeeping around system calls.

func call(number, a, b, c uintptr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(number, a, b, c)
	return int(n), errno
}

func socketConnect(fd int, address []byte) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address[0])), uintptr(len(address)))
	return errno
}

func socketClose(fd int) { call(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func socketRead(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func socketWrite(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}
