package netstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Constants of linux/sock_diag.h and linux/inet_diag.h.
const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY, of requests and answers
	diagBytecode     = 1  // INET_DIAG_REQ_BYTECODE
	diagPortAtLeast  = 2  // INET_DIAG_BC_S_GE: the local port
	diagPortAtMost   = 3  // INET_DIAG_BC_S_LE
	diagRequestSize  = 56 // struct inet_diag_req_v2
	diagMessageSize  = 72 // struct inet_diag_msg
)

// diagBuffer holds what the kernel sends at once, at most 32 KiB.
const diagBuffer = 64 << 10

// diagTimeout bounds the wait for an answer. The kernel usually answers while it is asked.
const diagTimeout = 2 * time.Second

// A Client lists the TCP sockets of the network namespace of the thread that opened it. It is for one goroutine at a time.
type Client struct {
	fd       int
	sequence uint32
	buf      []byte
}

// Open opens a client. The caller closes it.
func Open() (*Client, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	c := &Client{fd: fd, buf: make([]byte, diagBuffer)}
	wait := unix.NsecToTimeval(int64(diagTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		c.Close()
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return c, nil
}

// Close closes the client.
func (c *Client) Close() { _ = unix.Close(c.fd) }

// Sockets calls each with the selected IPv4 sockets, then with the selected IPv6 sockets. The socket is valid until each
// returns.
func (c *Client) Sockets(query Query, each func(*Socket)) error {
	for _, family := range [...]byte{unix.AF_INET, unix.AF_INET6} {
		if err := c.dump(family, query, each); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) dump(family byte, query Query, each func(*Socket)) error {
	c.sequence++
	request := appendQuery(nil, family, c.sequence, query)
	if err := unix.Sendto(c.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask sock_diag: %w", err)
	}
	for {
		n, err := unix.Read(c.fd, c.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read sock_diag: %w", err)
		}
		done, err := parseDiag(c.buf[:n], c.sequence, each)
		if done || err != nil {
			return err
		}
	}
}

// appendQuery writes a netlink message: header, inet_diag_req_v2, and the port bounds as a program for the kernel.
func appendQuery(b []byte, family byte, sequence uint32, query Query) []byte {
	program := portProgram(query.PortFirst, query.PortLast)
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
	b = order.AppendUint32(b, query.States)
	b = append(b, make([]byte, diagRequestSize-8)...) // any addresses
	if program != nil {
		b = order.AppendUint16(b, uint16(unix.SizeofNlAttr+len(program)))
		b = order.AppendUint16(b, diagBytecode)
		b = append(b, program...)
	}
	return b
}

// portProgram is inet_diag bytecode for "local port >= first and <= last", nil for all ports. An operation takes two words
// and holds two offsets: to the next operation, and to where the program goes if the comparison fails. A jump past the end
// rejects the socket.
func portProgram(first, last uint16) []byte {
	if first == 0 && last == 0 {
		return nil
	}
	const operation, total = 8, 16
	order := binary.NativeEndian
	var b []byte
	for i, bound := range [...]struct {
		code byte
		port uint16
	}{{diagPortAtLeast, first}, {diagPortAtMost, last}} {
		b = append(b, bound.code, operation)
		b = order.AppendUint16(b, uint16(total-i*operation+4))
		b = append(b, 0, 0)
		b = order.AppendUint16(b, bound.port)
	}
	return b
}

// parseDiag calls each with the sockets in netlink messages. done reports the end of the answer. Messages with another
// sequence number answer an earlier request that timed out.
func parseDiag(b []byte, sequence uint32, each func(*Socket)) (done bool, err error) {
	order := binary.NativeEndian
	var socket Socket
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return false, errors.New("sock_diag: truncated message")
		}
		length, kind := int(order.Uint32(b)), order.Uint16(b[4:])
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return false, fmt.Errorf("sock_diag: message of %d bytes in %d", length, len(b))
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
			return false, fmt.Errorf("sock_diag: socket of %d bytes", len(body))
		}
	}
	return false, nil
}

// parseSocket reads struct inet_diag_msg. The length of body has been checked.
func parseSocket(body []byte, s *Socket) {
	var local, remote netip.Addr
	if body[0] == unix.AF_INET {
		local, remote = netip.AddrFrom4([4]byte(body[8:12])), netip.AddrFrom4([4]byte(body[24:28]))
	} else {
		local, remote = netip.AddrFrom16([16]byte(body[8:24])), netip.AddrFrom16([16]byte(body[24:40]))
	}
	s.State = body[1]
	s.Local = netip.AddrPortFrom(local, binary.BigEndian.Uint16(body[4:]))
	s.Remote = netip.AddrPortFrom(remote, binary.BigEndian.Uint16(body[6:]))
	order := binary.NativeEndian
	s.Queued, s.Backlog = order.Uint32(body[56:]), order.Uint32(body[60:])
	s.Inode = order.Uint32(body[68:])
}

func diagError(body []byte) error {
	if len(body) < 4 {
		return errors.New("sock_diag: truncated error message")
	}
	code := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	switch code {
	case 0:
		return nil
	case unix.ENOENT:
		return errors.New("ask sock_diag: the kernel cannot list TCP sockets: run modprobe tcp_diag")
	}
	return fmt.Errorf("ask sock_diag: %w", code)
}
