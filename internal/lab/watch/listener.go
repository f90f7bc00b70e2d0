package watch

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// Listeners reads the accept queues of the TCP sockets that listen on the ports, or on any port when none is given, in
// the network namespace of the calling thread. Each address is a subject of its own, "127.0.0.1:8080" or "[::]:8080":
//
//   - accept_queue: connections that are established and wait for the server to accept them,
//   - accept_queue_limit: what the server asked for in listen, bounded by net.core.somaxconn. One more connection than
//     that fits, and then the kernel drops,
//   - sockets: how many sockets listen there (SO_REUSEPORT). The figures are those of the fullest of them.
//
// A port given on which nothing listens is an error that is said while the other ports are read. The kernel walks its
// table of listeners only, never that of connections.
func Listeners(ports ...int) (*Sampler, error) {
	for _, port := range ports {
		if port < 1 || port > 65535 {
			return nil, fmt.Errorf("port %d: a port is a number from 1 to 65535", port)
		}
	}
	d, err := openDiag()
	if err != nil {
		return nil, err
	}
	l := &listeners{diag: d, ports: slices.Sorted(slices.Values(ports))}
	detail := "accept queues of all listening TCP sockets"
	if len(ports) > 0 {
		detail = fmt.Sprintf("accept queues of the TCP sockets that listen on %s", portList(l.ports))
	}
	return &Sampler{
		Kind: result.SamplerListener, Detail: detail, Every: FastEvery,
		Read: l.read, Close: d.close,
	}, nil
}

type listeners struct {
	diag  *diag
	ports []int // sorted; none for all
	seen  []listener
}

// A listener is an address on which something listens.
type listener struct {
	address      netip.AddrPort
	queue, limit uint32
	sockets      int
}

// fuller reports whether a queue leaves less room than another.
func fuller(queue, limit, otherQueue, otherLimit uint32) bool {
	return int64(limit)-int64(queue) < int64(otherLimit)-int64(otherQueue)
}

func (l *listeners) read(context.Context) ([]result.Sample, error) {
	l.seen = l.seen[:0]
	if err := l.diag.sockets(diagQuery{states: 1 << tcpListen}, l.add); err != nil {
		return nil, err
	}
	slices.SortFunc(l.seen, func(a, b listener) int { return a.address.Compare(b.address) })
	samples := make([]result.Sample, 0, len(l.seen))
	for _, one := range l.seen {
		samples = append(samples, result.Sample{Subject: one.address.String(), Values: map[string]float64{
			"accept_queue": float64(one.queue), "accept_queue_limit": float64(one.limit), "sockets": float64(one.sockets),
		}})
	}
	if missing := l.missing(); len(missing) > 0 {
		return samples, fmt.Errorf("nothing listens on %s (ss -ltn lists what does)", portList(missing))
	}
	return samples, nil
}

// add takes a socket in, together with those of the same address.
func (l *listeners) add(s *diagSocket) {
	if s.state != tcpListen {
		return
	}
	if len(l.ports) > 0 && !slices.Contains(l.ports, int(s.port)) {
		return
	}
	address := s.addrPort()
	for i := range l.seen {
		known := &l.seen[i]
		if known.address != address {
			continue
		}
		known.sockets++
		if fuller(s.queue, s.limit, known.queue, known.limit) {
			known.queue, known.limit = s.queue, s.limit
		}
		return
	}
	l.seen = append(l.seen, listener{address: address, queue: s.queue, limit: s.limit, sockets: 1})
}

// missing returns the ports asked for on which nothing listens.
func (l *listeners) missing() []int {
	var missing []int
	for _, port := range l.ports {
		if !slices.ContainsFunc(l.seen, func(one listener) bool { return int(one.address.Port()) == port }) {
			missing = append(missing, port)
		}
	}
	return missing
}

// portList is "port 80" or "ports 80 443".
func portList(ports []int) string {
	text := strings.Trim(fmt.Sprint(ports), "[]")
	if len(ports) == 1 {
		return "port " + text
	}
	return "ports " + text
}
