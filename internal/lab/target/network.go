package target

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// network opens connections to the addresses of the target, in rotation.
type network struct {
	socket  string // path of a Unix socket; "": TCP
	host    string // as the user wrote it
	port    uint16
	others  []string // more hosts, to which connections go while host is away
	sources []netip.Addr
	allow   []string
	lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	places  atomic.Pointer[[]netip.AddrPort] // in use; replaced as a whole
}

// dial opens a connection before the deadline of ctx.
func (n *network) dial(ctx context.Context, number int) (net.Conn, error) {
	d := n.dialer(number)
	if n.socket != "" {
		return d.DialContext(ctx, "unix", n.socket)
	}
	places := *n.places.Load()
	return d.DialContext(ctx, "tcp", places[n.rotate(number, len(places))].String())
}

// dialAddress opens a connection to one of the addresses that resolveAll returned, with a port. It becomes the address in use.
func (n *network) dialAddress(ctx context.Context, number int, address string) (net.Conn, error) {
	conn, err := n.dialer(number).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	place, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	n.use(place)
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

// rotate selects the place of a connection. Sources and places rotate such that
// every source meets every place.
func (n *network) rotate(number, places int) int {
	return number / max(len(n.sources), 1) % places
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

// named reports whether the host is a name rather than an address.
func (n *network) named() bool {
	_, err := netip.ParseAddr(n.host)
	return n.host != "" && err != nil
}

// resolveAll returns the addresses of each host.
func (n *network) resolveAll(ctx context.Context, hosts []string) (map[string][]string, error) {
	found := make(map[string][]string, len(hosts))
	for _, host := range hosts {
		places, err := n.resolve(ctx, host)
		if err != nil {
			return nil, err
		}
		found[host] = nil
		for _, place := range places {
			found[host] = append(found[host], place.Addr().String())
		}
	}
	return found, nil
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

// use sets the addresses of new connections.
func (n *network) use(places ...netip.AddrPort) { n.places.Store(&places) }

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
// With rotation it uses all of that family.
func (t *Target) choose(ctx context.Context, try func(context.Context) error) error {
	n := &t.network
	places := t.places
	if len(places) == 0 || len(t.hosts) > 0 { // a Unix socket or a file, or each connection chooses
		return try(ctx)
	}
	var failed error
	for i, place := range places {
		n.use(place)
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

// settle uses the place to which a connection was made, and notes what a reader
// must know about the others.
func (t *Target) settle(number int, failed error) {
	n, chosen := &t.network, t.places[number]
	var same []netip.AddrPort // of the same family
	for _, place := range t.places {
		if family(place) == family(chosen) {
			same = append(same, place)
		}
	}
	switch {
	case t.config.DNSRefresh > 0:
		n.use(same...)
		t.note("%s is loaded at %s in rotation and looked up every %s", n.host, placesText(same), t.config.DNSRefresh)
	case failed != nil:
		t.note("%s has %d addresses; this run loads %s, the first that can be connected to (%v)", n.host, len(t.places), chosen, failed)
	case len(same) > 1, len(t.places) > 1 && !chosen.Addr().IsLoopback(): // localhost is one address of each family
		t.note("%s has %d addresses; this run loads %s only; --dns-refresh 30s loads all of the same family", n.host, len(t.places), chosen)
	}
}

func (t *Target) note(format string, values ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, values...))
}

func placesText(places []netip.AddrPort) string {
	var texts []string
	for _, place := range places {
		texts = append(texts, place.String())
	}
	return strings.Join(texts, ", ")
}

// Refresh looks the target's name up at the interval Config.DNSRefresh until ctx
// ends. New connections then go to the addresses of the last answer, in rotation;
// report receives each change and each new error. Without an interval Refresh
// returns at once. Check must have been called.
func (t *Target) Refresh(ctx context.Context, report func(text string)) {
	if t.config.DNSRefresh <= 0 {
		return
	}
	ticker := time.Tick(t.config.DNSRefresh)
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker:
		}
		if text := t.network.refresh(ctx, t.config.Timeout); text != last && ctx.Err() == nil {
			if last = text; text != "" {
				report(text)
			}
		}
	}
}

// refresh looks the name up once. It returns what changed, or why nothing could.
func (n *network) refresh(ctx context.Context, timeout time.Duration) (text string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := n.resolve(ctx, n.host)
	if err != nil {
		return fmt.Sprintf("%v; the addresses stay as they were", err)
	}
	before := *n.places.Load()
	found = slices.DeleteFunc(found, func(place netip.AddrPort) bool { return family(place) != family(before[0]) })
	order := func(a, b netip.AddrPort) int { return cmp.Or(a.Addr().Compare(b.Addr()), int(a.Port())-int(b.Port())) }
	slices.SortFunc(found, order)
	if len(found) == 0 || slices.Equal(found, slices.SortedFunc(slices.Values(before), order)) {
		return ""
	}
	n.use(found...)
	return fmt.Sprintf("%s is now loaded at %s", n.host, placesText(found))
}
