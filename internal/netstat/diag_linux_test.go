package netstat

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// message is a netlink message.
func message(kind uint16, sequence uint32, body []byte) []byte {
	order := binary.NativeEndian
	b := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = order.AppendUint16(b, kind)
	b = order.AppendUint16(b, unix.NLM_F_MULTI)
	b = order.AppendUint32(b, sequence)
	b = order.AppendUint32(b, 0)
	b = append(b, body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// listening is inet_diag_msg of a listener on 127.0.0.1:8080 with 5 of 128 waiting, with a remote address as connections have.
func listening() []byte {
	b := make([]byte, diagMessageSize)
	b[0], b[1] = unix.AF_INET, Listen
	binary.BigEndian.PutUint16(b[4:], 8080)
	copy(b[8:], []byte{127, 0, 0, 1})
	binary.BigEndian.PutUint16(b[6:], 77)
	copy(b[24:], []byte{10, 0, 0, 9})
	order := binary.NativeEndian
	order.PutUint32(b[56:], 5)
	order.PutUint32(b[60:], 128)
	order.PutUint32(b[64:], 33)
	order.PutUint32(b[68:], 4711)
	return b
}

func TestParseDiag(t *testing.T) {
	done := message(unix.NLMSG_DONE, 9, make([]byte, 4))
	one := message(sockDiagByFamily, 9, listening())
	withAttribute := message(sockDiagByFamily, 9, append(listening(), 5, 0, 8, 0, 0))
	stale := message(sockDiagByFamily, 8, listening())
	denied := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EPERM)+1)
	join := func(parts ...[]byte) (b []byte) {
		for _, part := range parts {
			b = append(b, part...)
		}
		return b
	}
	for name, c := range map[string]struct {
		bytes   []byte
		sockets int
		done    bool
		err     string
	}{
		"two and the end":      {join(one, withAttribute, done), 2, true, ""},
		"more to come":         {one, 1, false, ""},
		"an older answer":      {join(stale, one, done), 1, true, ""},
		"nothing":              {nil, 0, false, ""},
		"cut header":           {join(one, done[:10]), 1, false, "sock_diag: truncated message"},
		"cut body":             {one[:50], 0, false, "sock_diag: message of 88 bytes in 50"},
		"a short socket":       {message(sockDiagByFamily, 9, listening()[:60]), 0, false, "sock_diag: socket of 60 bytes"},
		"an error":             {message(unix.NLMSG_ERROR, 9, denied), 0, true, "ask sock_diag: operation not permitted"},
		"an error without one": {message(unix.NLMSG_ERROR, 9, nil), 0, true, "sock_diag: truncated error message"},
	} {
		var seen []Socket
		done, err := parseDiag(c.bytes, 9, func(s *Socket) { seen = append(seen, *s) })
		text := ""
		if err != nil {
			text = err.Error()
		}
		if len(seen) != c.sockets || done != c.done || text != c.err {
			t.Errorf("%s: %d sockets, %v, %q; want %d, %v, %q", name, len(seen), done, text, c.sockets, c.done, c.err)
		}
		for _, s := range seen {
			want := Socket{State: Listen, Local: netip.MustParseAddrPort("127.0.0.1:8080"), Remote: netip.MustParseAddrPort("10.0.0.9:77"), Queued: 5, Backlog: 128, Inode: 4711}
			if s != want {
				t.Errorf("%s: %+v, want %+v", name, s, want)
			}
		}
	}
}

// TestDiagRefused sends a program that the kernel rejects. The next request is answered.
func TestDiagRefused(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	bad := appendQuery(nil, unix.AF_INET, 77, Query{States: AnyState, PortFirst: 1, PortLast: 2})
	binary.NativeEndian.PutUint16(bad[unix.SizeofNlMsghdr+diagRequestSize+unix.SizeofNlAttr+2:], 3) // a jump into an operation
	if err := unix.Sendto(d.fd, bad, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	if err := d.Sockets(Query{States: 1 << Listen}, func(*Socket) {}); err != nil {
		t.Errorf("after a refused question: %v", err)
	}
	if _, err := parseDiag(message(unix.NLMSG_ERROR, 1, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1)), 1, nil); err == nil {
		t.Error("no error for a kernel without tcp_diag")
	}
}

func FuzzParseDiag(f *testing.F) {
	f.Add(append(message(sockDiagByFamily, 9, listening()), message(unix.NLMSG_DONE, 9, make([]byte, 4))...))
	f.Add(message(unix.NLMSG_ERROR, 9, []byte{255, 255, 255, 255}))
	f.Add(message(sockDiagByFamily, 9, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		sockets := 0
		_, _ = parseDiag(b, 9, func(s *Socket) {
			sockets++
			_ = s.Local.String()
		})
		if sockets*(unix.SizeofNlMsghdr+diagMessageSize) > len(b) {
			t.Errorf("%d sockets in %d bytes", sockets, len(b))
		}
	})
}
