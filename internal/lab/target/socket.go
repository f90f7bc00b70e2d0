package target

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// endpoint is where raw connections go: a TCP address or a Unix socket. It does
// not change and may be shared.
type endpoint struct {
	family  int
	address []byte // as the kernel reads it
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

// open begins a connection; turn picks the local address. established is false
// while the other side has not answered yet.
func (e *endpoint) open(turn int) (fd int, established bool, err error) {
	fd, errno := call(unix.SYS_SOCKET, uintptr(e.family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return -1, false, fmt.Errorf("open socket: %w", errno)
	}
	if err := e.bind(fd, turn); err != nil {
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

// bind sets the local address and leaves the choice of the port to connect,
// which may share a port between different destinations.
func (e *endpoint) bind(fd, turn int) error {
	if len(e.sources) == 0 {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return fmt.Errorf("set IP_BIND_ADDRESS_NO_PORT: %w", err)
	}
	if err := unix.Bind(fd, localAddress(e.sources[turn%len(e.sources)])); err != nil {
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
