package watch

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"spillway/internal/lab/result"
	"spillway/internal/netstat"
)

// Listeners samples the accept queues of the TCP sockets that listen on the ports, or on any port if none is given, in
// the network namespace of the calling thread. Each address is a subject of its own, "127.0.0.1:8080" or "[::]:8080":
//
//   - accept_queue: connections that are established and wait for the server to accept them,
//   - accept_queue_limit: the backlog that the server asked for, at most net.core.somaxconn. One more connection than
//     that fits; the kernel drops the rest,
//   - sockets: how many sockets listen there (SO_REUSEPORT). The other values are of the socket with the least room.
//
// If nothing listens on a given port, the reading has an error beside the samples of the other ports. The kernel searches
// its table of listeners only, never that of connections.
func Listeners(ports ...int) (*Sampler, error) {
	for _, port := range ports {
		if port < 1 || port > 65535 {
			return nil, fmt.Errorf("port %d: a port is a number from 1 to 65535", port)
		}
	}
	client, err := netstat.Open()
	if err != nil {
		return nil, err
	}
	l := &listeners{client: client, ports: slices.Sorted(slices.Values(ports))}
	detail := "accept queues of all listening TCP sockets"
	if len(ports) > 0 {
		detail = fmt.Sprintf("accept queues of the TCP sockets that listen on %s", portList(l.ports))
	}
	return &Sampler{
		Kind: result.SamplerListener, Detail: detail, Every: FastEvery,
		Read: l.read, Close: client.Close,
	}, nil
}

type listeners struct {
	client *netstat.Client
	ports  []int // sorted; none for all
	seen   []listener
}

// A listener is an address on which sockets listen.
type listener struct {
	address         netip.AddrPort
	queued, backlog uint32 // of the socket with the least room
	sockets         int
}

func (l *listeners) read(context.Context) ([]result.Sample, error) {
	l.seen = l.seen[:0]
	if err := l.client.Sockets(netstat.Query{States: 1 << netstat.Listen}, l.add); err != nil {
		return nil, err
	}
	slices.SortFunc(l.seen, func(a, b listener) int { return a.address.Compare(b.address) })
	samples := make([]result.Sample, 0, len(l.seen))
	for _, one := range l.seen {
		samples = append(samples, result.Sample{Subject: one.address.String(), Values: map[string]float64{
			"accept_queue": float64(one.queued), "accept_queue_limit": float64(one.backlog), "sockets": float64(one.sockets),
		}})
	}
	missing := slices.DeleteFunc(slices.Clone(l.ports), func(port int) bool {
		return slices.ContainsFunc(l.seen, func(one listener) bool { return int(one.address.Port()) == port })
	})
	if len(missing) > 0 {
		return samples, fmt.Errorf("nothing listens on %s (ss -ltn lists what does)", portList(missing))
	}
	return samples, nil
}

// add adds a socket to the listener at its address.
func (l *listeners) add(s *netstat.Socket) {
	if s.State != netstat.Listen || len(l.ports) > 0 && !slices.Contains(l.ports, int(s.Local.Port())) {
		return
	}
	for i := range l.seen {
		known := &l.seen[i]
		if known.address != s.Local {
			continue
		}
		known.sockets++
		if int64(s.Backlog)-int64(s.Queued) < int64(known.backlog)-int64(known.queued) {
			known.queued, known.backlog = s.Queued, s.Backlog
		}
		return
	}
	l.seen = append(l.seen, listener{address: s.Local, queued: s.Queued, backlog: s.Backlog, sockets: 1})
}

// portList is "port 80" or "ports 80 443".
func portList(ports []int) string {
	text := strings.Trim(fmt.Sprint(ports), "[]")
	if len(ports) == 1 {
		return "port " + text
	}
	return "ports " + text
}
