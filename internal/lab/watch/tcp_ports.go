package watch

import (
	"math/bits"
	"runtime"
	"time"
)

// Bounds of counting ports.
const (
	portsEvery = time.Second // between two counts, at least
	portsShare = 0.005       // of one core that counting may take
)

// tcpPorts counts the ephemeral ports in use: the distinct local ports of the range that some TCP socket of the
// namespace holds, in whatever state, TIME_WAIT and LISTEN included. It is an exact count and never an estimate; what
// can be told without counting sockets cannot tell it:
//
//   - sockstat's TIME_WAIT is of both ends. The end that closes first holds it. When the client closes first, its
//     ephemeral port is gone for a minute; when the server does, the socket has the server's port and takes none of
//     the range, and the client's port is free at once. On loopback both ends are of this host and look the same there.
//   - opens less closes miss the ports that tcp_tw_reuse gave out again.
//
// So the kernel is asked, by a filter that runs in the kernel, for the sockets whose local port lies in the range:
// those of a server, however many, never leave it. That costs the kernel a walk through its table of connections (some
// 0.5 ms) and 0.3 µs for each socket of the range, and therefore is done once a second at most, and less often when it
// took more than portsShare of one core: 20,000 ports in use take 6.3 ms and are counted every 1.3 seconds. In between
// nothing is told rather than an old figure.
//
// A port in use is not always a port lost: the kernel gives it to a connection to another address or port as well.
// Sockets that are bound and neither listen nor connect are not seen.
type tcpPorts struct {
	diag     *diag
	next     time.Time // when to count again
	seen     [1 << 16 / 64]uint64
	used     int
	timeWait int // sockets in TIME_WAIT whose local port is of the range: closed first by this side as a client
}

func (p *tcpPorts) due(now time.Time) bool { return !now.Before(p.next) }

func (p *tcpPorts) count(now time.Time, ports portRange) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCPU()
	clear(p.seen[:])
	p.timeWait = 0
	err := p.diag.sockets(diagQuery{states: tcpAll, low: uint16(ports.low), high: uint16(ports.high)}, func(s *diagSocket) {
		p.seen[s.port/64] |= 1 << (s.port % 64)
		if s.state == tcpTimeWait {
			p.timeWait++
		}
	})
	p.used = 0
	for _, word := range p.seen {
		p.used += bits.OnesCount64(word)
	}
	p.next = now.Add(portsPause(threadCPU() - before))
	return err
}

// portsPause is the time from one count to the next when counting took that much CPU time.
func portsPause(cost time.Duration) time.Duration {
	return max(portsEvery, time.Duration(float64(cost)/portsShare))
}
