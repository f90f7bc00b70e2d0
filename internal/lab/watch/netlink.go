package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// What linux/sock_diag.h and linux/inet_diag.h say.
const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY, of requests and answers
	diagBytecode     = 1  // INET_DIAG_REQ_BYTECODE
	diagPortAtLeast  = 2  // INET_DIAG_BC_S_GE: the local port
	diagPortAtMost   = 3  // INET_DIAG_BC_S_LE
	diagRequestSize  = 56 // struct inet_diag_req_v2
	diagMessageSize  = 72 // struct inet_diag_msg
)

// States of a TCP socket, linux/tcp_states.h.
const (
	tcpTimeWait = 6
	tcpListen   = 10
	// tcpAll are the states in which a socket holds a local port. A socket that is bound and neither listens nor
	// connects is in no table that sock_diag reads.
	tcpAll = 1<<13 - 1
)

// diagBuffer takes what the kernel sends at once, at most 32 KiB.
const diagBuffer = 64 << 10

// A diag asks the kernel for its TCP sockets (sock_diag, what ss uses), of the network namespace of the thread that
// opened it. It needs no privilege.
type diag struct {
	fd       int
	sequence uint32
	buf      []byte
}

func openDiag() (*diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	d := &diag{fd: fd, buf: make([]byte, diagBuffer)}
	// The kernel answers while it is asked; the bound is for the day that it does not.
	wait := unix.NsecToTimeval(int64(ReadTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		d.close()
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return d, nil
}

func (d *diag) close() {
	if d != nil {
		_ = unix.Close(d.fd)
	}
}

// A diagSocket is a TCP socket as sock_diag tells it.
type diagSocket struct {
	family, state byte
	port          uint16 // local
	address       [16]byte
	queue, limit  uint32 // of a listening socket: connections that wait to be accepted, and how many may
	uid, inode    uint32
}

// addrPort is the socket's local address.
func (s *diagSocket) addrPort() netip.AddrPort {
	address := netip.AddrFrom16(s.address)
	if s.family == unix.AF_INET {
		address = netip.AddrFrom4([4]byte(s.address[:4]))
	}
	return netip.AddrPortFrom(address, s.port)
}

// A diagQuery says which sockets are asked for. The kernel sorts out the others before it writes anything.
type diagQuery struct {
	states    uint32 // bits 1<<state
	low, high uint16 // of the local port; 0, 0 for all
}

// sockets calls each with the IPv4 sockets and then the IPv6 sockets that the query asks for. The socket is good until
// each returns.
func (d *diag) sockets(query diagQuery, each func(*diagSocket)) error {
	for _, family := range [...]byte{unix.AF_INET, unix.AF_INET6} {
		if err := d.dump(family, query, each); err != nil {
			return err
		}
	}
	return nil
}

func (d *diag) dump(family byte, query diagQuery, each func(*diagSocket)) error {
	d.sequence++
	request := appendQuery(nil, family, d.sequence, query)
	if err := unix.Sendto(d.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask sock_diag: %w", err)
	}
	for {
		n, err := unix.Read(d.fd, d.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sock_diag: %w", err)
		}
		done, err := parseDiag(d.buf[:n], d.sequence, each)
		if done || err != nil {
			return err
		}
	}
}

// appendQuery writes a netlink message: header, inet_diag_req_v2, and the port bounds as a program for the kernel.
func appendQuery(b []byte, family byte, sequence uint32, query diagQuery) []byte {
	program := portProgram(query.low, query.high)
	length := unix.SizeofNlMsghdr + diagRequestSize
	if program != nil {
		length += unix.SizeofNlAttr + len(program)
	}
	order := binary.NativeEndian
	b = order.AppendUint32(b, uint32(length))
	b = order.AppendUint16(b, sockDiagByFamily)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = order.AppendUint32(b, sequence)
	b = order.AppendUint32(b, 0)
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = order.AppendUint32(b, query.states)
	b = append(b, make([]byte, diagRequestSize-8)...) // any addresses
	if program != nil {
		b = order.AppendUint16(b, uint16(unix.SizeofNlAttr+len(program)))
		b = order.AppendUint16(b, diagBytecode)
		b = append(b, program...)
	}
	return b
}

// portProgram is bytecode of inet_diag: local port >= low and <= high. Each operation takes two words; it says how far
// to go on when it holds, and a jump behind the end refuses the socket.
func portProgram(low, high uint16) []byte {
	if low == 0 && high == 0 {
		return nil
	}
	const operation, total = 8, 16
	order := binary.NativeEndian
	var b []byte
	for i, bound := range [...]struct {
		code byte
		port uint16
	}{{diagPortAtLeast, low}, {diagPortAtMost, high}} {
		b = append(b, bound.code, operation)
		b = order.AppendUint16(b, uint16(total-i*operation+4))
		b = append(b, 0, 0)
		b = order.AppendUint16(b, bound.port)
	}
	return b
}

// parseDiag reads netlink messages and calls each with the sockets in them; done is told at the end of the answer.
// Messages of another sequence are left-overs of a question that was given up.
func parseDiag(b []byte, sequence uint32, each func(*diagSocket)) (done bool, err error) {
	order := binary.NativeEndian
	var socket diagSocket
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return false, errors.New("sock_diag: a message is cut off")
		}
		length, kind := int(order.Uint32(b)), order.Uint16(b[4:])
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return false, fmt.Errorf("sock_diag: a message of %d bytes in %d", length, len(b))
		}
		body := b[unix.SizeofNlMsghdr:length]
		ours := order.Uint32(b[8:]) == sequence
		b = b[min(len(b), (length+3)&^3):]
		switch {
		case !ours:
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR:
			return true, diagError(body)
		case kind == sockDiagByFamily && len(body) >= diagMessageSize:
			parseSocket(body, &socket)
			each(&socket)
		case kind == sockDiagByFamily:
			return false, fmt.Errorf("sock_diag: a socket of %d bytes", len(body))
		}
	}
	return false, nil
}

// parseSocket reads struct inet_diag_msg, of which body has the full size.
func parseSocket(body []byte, s *diagSocket) {
	s.family, s.state = body[0], body[1]
	s.port = binary.BigEndian.Uint16(body[4:])
	copy(s.address[:], body[8:24])
	order := binary.NativeEndian
	s.queue, s.limit = order.Uint32(body[56:]), order.Uint32(body[60:])
	s.uid, s.inode = order.Uint32(body[64:]), order.Uint32(body[68:])
}

func diagError(body []byte) error {
	if len(body) < 4 {
		return errors.New("sock_diag: an error message is cut off")
	}
	code := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	switch code {
	case 0:
		return nil
	case unix.ENOENT:
		return errors.New("ask sock_diag: this kernel cannot list TCP sockets (modprobe tcp_diag loads what it lacks)")
	}
	return fmt.Errorf("ask sock_diag: %w", code)
}
