package target

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
)

// network opens connections to the target.
type network struct {
	socket  string // path of a Unix socket; "": TCP
	host    string // as the user wrote it
	port    uint16
	others  []string // more hosts, to which connections go while host is away
	sources []netip.Addr
	allow   []string
	lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	place   atomic.Pointer[netip.AddrPort] // in use
}

// dial opens a connection before the deadline of ctx.
func (n *network) dial(ctx context.Context, number int) (net.Conn, error) {
	d := n.dialer(number)
	if n.socket != "" {
		return d.DialContext(ctx, "unix", n.socket)
	}
	return d.DialContext(ctx, "tcp", n.place.Load().String())
}

// dialAddress opens a connection to one of the addresses in Target.hosts, with a port. It becomes the address in use.
func (n *network) dialAddress(ctx context.Context, number int, address string) (net.Conn, error) {
	conn, err := n.dialer(number).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	place, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	n.place.Store(&place)
	return conn, nil
}

// dialer returns the dialer of a connection over TCP.
func (n *network) dialer(number int) *net.Dialer {
	d := &net.Dialer{FallbackDelay: -1, KeepAlive: -1}
	if len(n.sources) > 0 {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(n.sources[number%len(n.sources)], 0))
	}
	return d
}

// dialTLS opens a TLS connection. The handshake counts as part of connecting.
func (n *network) dialTLS(ctx context.Context, number int, config *tls.Config) (*tls.Conn, error) {
	raw, err := n.dial(ctx, number)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errTLS, err)
		}
		return nil, err
	}
	return conn, nil
}

// resolve returns the addresses of a host that connections can go to from the
// sources, IPv4 first. It fails if one of them may not be loaded.
func (n *network) resolve(ctx context.Context, host string) ([]netip.AddrPort, error) {
	addresses, err := n.lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	var places []netip.AddrPort
	for _, a := range addresses {
		a = a.Unmap()
		if err := mayLoad(host, a, n.allow); err != nil {
			return nil, err
		}
		wrongFamily := func(source netip.Addr) bool { return source.Unmap().Is4() != a.Is4() }
		if place := netip.AddrPortFrom(a, n.port); !slices.ContainsFunc(n.sources, wrongFamily) && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	switch {
	case len(addresses) == 0:
		return nil, fmt.Errorf("look up %s: it has no address", host)
	case len(places) == 0:
		return nil, fmt.Errorf("--source %s and target %s must both be IPv4 or both be IPv6", n.sources[0], addresses[0].Unmap())
	}
	slices.SortStableFunc(places, func(a, b netip.AddrPort) int { return family(a) - family(b) })
	return places, nil
}

func family(place netip.AddrPort) int {
	if place.Addr().Is4() {
		return 4
	}
	return 6
}

// mayLoad rejects a public address that is not in allow.
func mayLoad(host string, address netip.Addr, allow []string) error {
	if address.IsLoopback() || address.IsPrivate() || address.IsLinkLocalUnicast() || slices.Contains(allow, host) ||
		slices.Contains(allow, address.String()) {
		return nil
	}
	where := host
	if where != address.String() {
		where += " (" + address.String() + ")"
	}
	return fmt.Errorf("not allowed: %s is neither this machine nor a private address; a load test can take a service down: if you may "+
		"test this host, add --allow %s",
		where, host)
}

// choose tries the addresses in order and uses the first to which try connects.
func (t *Target) choose(ctx context.Context, try func(context.Context) error) error {
	n := &t.network
	places := t.places
	if len(places) == 0 || len(t.hosts) > 0 { // a Unix socket or a file, or each connection chooses
		return try(ctx)
	}
	var failed error
	for i, place := range places {
		n.place.Store(&place)
		err := try(ctx)
		switch {
		case err == nil:
			t.settle(i, failed)
			return nil
		case ctx.Err() != nil, errors.Is(err, errStatus), errors.Is(err, errTLS):
			return err // another address would not help
		case failed == nil:
			failed = err
		default:
			failed = fmt.Errorf("%w; %w", failed, err)
		}
	}
	return failed
}

// settle notes what a reader must know about the addresses besides the one to which a connection was made.
func (t *Target) settle(number int, failed error) {
	host, chosen := t.network.host, t.places[number]
	same := 0 // of the same family
	for _, place := range t.places {
		if family(place) == family(chosen) {
			same++
		}
	}
	switch {
	case failed != nil:
		t.note("%s has %d addresses; this run loads %s, the first that can be connected to (%v)", host, len(t.places), chosen, failed)
	case same > 1, len(t.places) > 1 && !chosen.Addr().IsLoopback(): // localhost is one address of each family
		t.note("%s has %d addresses; this run loads %s only", host, len(t.places), chosen)
	}
}

func (t *Target) note(format string, values ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, values...))
}
