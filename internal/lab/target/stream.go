package target

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// streamLink speaks one of the lean engine's protocols over a connection that
// the engine cannot drive: TLS.
type streamLink struct {
	conn     net.Conn
	clock    Clock
	timeout  time.Duration
	protocol protocol
	buffer   []byte
	used     bool
}

func (l *streamLink) exchange(o *Outcome, last bool) bool {
	b := l.protocol.request(!l.used, last)
	l.used = true
	o.Sent = l.clock.Now()
	o.BytesSent = len(b)
	if err := l.conn.SetDeadline(time.Now().Add(l.timeout)); err != nil {
		o.Err = err
		return false
	}
	if _, err := l.conn.Write(b); err != nil {
		o.Err = fmt.Errorf("send request: %w", err)
		return false
	}
	for {
		n, err := l.conn.Read(l.buffer)
		if err != nil && !errors.Is(err, io.EOF) {
			o.Err = fmt.Errorf("read answer: %w", err)
			return false
		}
		if o.First == 0 && n > 0 {
			o.First = l.clock.Now()
		}
		o.BytesReceived += int64(n)
		done, err := l.protocol.feed(l.buffer[:n])
		if err != nil {
			o.Err = err
			return false
		}
		if done {
			o.Done = l.clock.Now()
			return l.protocol.answer(o)
		}
	}
}

func (l *streamLink) abort() { l.conn.SetDeadline(time.Unix(1, 0)) }

func (l *streamLink) close() { l.conn.Close() }

// network opens plain connections to one resolved address.
type network struct {
	kind    string // tcp or unix
	address string
	sources []netip.Addr
	timeout time.Duration
}

func (n *network) dial(ctx context.Context, turn int) (net.Conn, error) {
	d := net.Dialer{Timeout: n.timeout, FallbackDelay: -1, KeepAlive: -1}
	if len(n.sources) > 0 {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(n.sources[turn%len(n.sources)], 0))
	}
	return d.DialContext(ctx, n.kind, n.address)
}

// dialTLS opens a TLS connection; the handshake is part of the time to connect.
func (n *network) dialTLS(ctx context.Context, turn int, config *tls.Config) (*tls.Conn, error) {
	raw, err := n.dial(ctx, turn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
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
