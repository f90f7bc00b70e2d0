package doctor

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"spillway/internal/netstat"
)

// How a target is probed.
const (
	closingProbes     = 16 // connections for each way of asking
	closingConcurrent = 4
	closingTimeout    = 5 * time.Second       // of one request, with its connection
	closingPatience   = time.Second           // until a server that closes by itself has done so
	closingSettles    = 2 * time.Second       // until the kernels have closed the connections
	closingEvery      = 50 * time.Millisecond // between two looks at them
)

// Closing says which side closed the connections of some requests first. That side has TIME_WAIT.
type Closing struct {
	WithClose CloseCount `json:"with_connection_close"` // the request had Connection: close, as the last one of load has
	Without   CloseCount `json:"without"`
	// Race: with Connection: close the server closes by itself, at the same time as a client that knows the answer's length.
	// Which side is first then depends on the load.
	Race bool `json:"race"`
}

// CloseCount counts connections by the side that closed them first.
type CloseCount struct {
	Client  int `json:"client"` // also those that both sides closed at once: the client's port is held
	Server  int `json:"server"`
	Unknown int `json:"unknown,omitempty"` // reset, or without TIME_WAIT on either side that this host sees
}

// known reports whether any connection was seen.
func (c CloseCount) known() bool { return c.Client+c.Server > 0 }

// clientShare is the share of connections that the client closed first.
func (c CloseCount) clientShare() float64 {
	return float64(c.Client) / float64(max(1, c.Client+c.Server))
}

// Text describes the count.
func (c CloseCount) Text() string {
	if !c.known() {
		return "neither side's TIME_WAIT was seen"
	}
	return fmt.Sprintf("the server closed %d of %d first", c.Server, c.Client+c.Server)
}

// ReadClosing sends a few GET requests over a connection each, closes them after the answer as load does, and looks where
// TIME_WAIT is. A server in another network namespace is taken for the one that closed first if this side has none.
func ReadClosing(ctx context.Context, url string) (*Closing, error) {
	closing := &Closing{}
	for _, way := range []struct {
		header bool
		count  *CloseCount
	}{{true, &closing.WithClose}, {false, &closing.Without}} {
		probed, err := probeAll(ctx, url, way.header)
		if err == nil {
			err = way.count.settle(ctx, probed)
		}
		if err != nil {
			return nil, fmt.Errorf("find out which side closes first: %w", err)
		}
	}
	patient, err := probeClosing(ctx, url, true, closingPatience)
	if err != nil {
		return nil, fmt.Errorf("find out which side closes first: %w", err)
	}
	closing.Race = patient.serverClosed && patient.measured
	return closing, nil
}

// probeAll probes over closingProbes connections, some at a time.
func probeAll(ctx context.Context, url string, header bool) ([]connection, error) {
	probed := make([]connection, closingProbes)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(closingConcurrent)
	for i := range probed {
		group.Go(func() error {
			one, err := probeClosing(ctx, url, header, 0)
			probed[i] = one.connection
			return err
		})
	}
	return probed, group.Wait()
}

// A connection is the two ends of a closed connection, seen from the client.
type connection struct{ local, remote netip.AddrPort }

// A probe is a connection that answered a request.
type probe struct {
	connection
	measured     bool // the answer said how long it was
	serverClosed bool // while the client was patient
}

// probeClosing sends a request over a new connection, reads the answer and closes: at once, or when the server has closed or
// the patience is over.
func probeClosing(ctx context.Context, url string, header bool, patience time.Duration) (p probe, err error) {
	ctx, cancel := context.WithTimeout(ctx, closingTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return p, err
	}
	request.Close = header
	host := net.JoinHostPort(request.URL.Hostname(), cmp.Or(request.URL.Port(), schemePorts[request.URL.Scheme]))
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return p, err
	}
	defer conn.Close()
	local, remote := plainAddress(conn.LocalAddr()), plainAddress(conn.RemoteAddr())
	if err := mayAsk(remote.Addr()); err != nil {
		return p, err
	}
	p.connection = connection{local, remote}
	deadline, _ := ctx.Deadline()
	if err := errors.Join(conn.SetDeadline(deadline), request.Write(conn)); err != nil {
		return p, err
	}
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, request)
	if err != nil {
		return p, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return p, err
	}
	p.measured = response.ContentLength >= 0 || len(response.TransferEncoding) > 0
	if patience > 0 {
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return p, err
		}
		_, err := in.ReadByte()
		p.serverClosed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	return p, nil
}

// mayAsk rejects public addresses, to which doctor sends no requests.
func mayAsk(address netip.Addr) error {
	if address.IsLoopback() || address.IsPrivate() || address.IsLinkLocalUnicast() {
		return nil
	}
	return fmt.Errorf("%s is a public address, which is not asked: add closes=client or closes=server to --for", address)
}

// plainAddress is a TCP address, as IPv4 if it is one.
func plainAddress(a net.Addr) netip.AddrPort { return unmapped(a.(*net.TCPAddr).AddrPort()) }

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// settle waits until no probed connection is open or closing, and counts.
func (c *CloseCount) settle(ctx context.Context, probed []connection) error {
	client, err := netstat.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	again := time.Tick(closingEvery)
	over := time.Now().Add(closingSettles)
	for {
		var closing int
		*c, closing, err = countClosing(client, probed)
		if err != nil || closing == 0 || time.Now().After(over) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
		}
	}
}

// countClosing counts connections by the side that has TIME_WAIT, and those that are not closed yet.
func countClosing(client *netstat.Client, probed []connection) (c CloseCount, closing int, err error) {
	states, servers := map[connection]uint8{}, false
	err = client.Sockets(netstat.Query{States: netstat.AnyState}, func(s *netstat.Socket) {
		one := connection{unmapped(s.Local), unmapped(s.Remote)}
		states[one] = s.State
		servers = servers || s.State == netstat.Listen && s.Local.Port() == probed[0].remote.Port()
	})
	if err != nil {
		return c, 0, err
	}
	for _, one := range probed {
		ours, theirs := states[one], states[connection{one.remote, one.local}]
		switch {
		case ours == netstat.TimeWait:
			c.Client++
		case ours != 0 || theirs != 0 && theirs != netstat.TimeWait:
			c.Unknown++
			closing++
		case theirs == netstat.TimeWait || !servers:
			c.Server++
		default:
			c.Unknown++
		}
	}
	return c, closing, nil
}
