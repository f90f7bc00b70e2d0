//go:build !portable

package server

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

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
