package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// readBytes is the size of a worker's read buffer.
const readBytes = 64 << 10

// protocol is the client side of one connection, one request at a time.
type protocol interface {
	// request returns the bytes of a request of the mix. first is set on a new
	// connection, last if the connection ends after this request. The bytes
	// are valid until the next call.
	request(number int, first, last bool) []byte
	// feed takes bytes of the answer and reports whether the answer is
	// complete. An empty slice means that the peer closed the connection.
	feed(b []byte) (done bool, err error)
	// answer writes the verdict on a complete answer to o and reports whether
	// the connection can carry another request.
	answer(o *Outcome) (reuse bool)
}

// scratch is memory in which the connections of one goroutine build requests.
type scratch struct {
	request []byte
	word    []byte
	failure *answerError // the last one
}

// blockingConn is an open connection whose calls block.
type blockingConn interface {
	// exchange sends a request, waits until deadline for the answer and
	// completes o. It reports whether the connection can carry another request.
	exchange(o *Outcome, deadline time.Time, last bool) (reuse bool)
	// abort makes the current exchange fail soon. It may be called from
	// another goroutine and more than once.
	abort()
	close()
}

// dialer opens a connection. ctx has the deadline of the request that needs it.
// number counts connections and selects the local address. fresh is false if the
// connection was already open for other sessions.
type dialer func(ctx context.Context, number int) (conn blockingConn, fresh bool, err error)

// Session holds one connection at a time to a target that a Worker does not
// drive: TLS, HTTP/2, most SQL, and every target outside Linux. Its requests
// block. Only Abort may be called from another goroutine.
type Session struct {
	clock         Clock
	source        *Source
	mix           *mix
	dial          dialer
	timeout       time.Duration // of a request, including its connection
	perConnection int
	connection    int
	stride        int // number of sessions of this target
	counters      Counters
	carried       int // requests on this connection
	opened        int
	lost          bool  // the last connection ended unexpectedly
	connectErr    error // of Connect; the first request reports it

	mu      sync.Mutex
	conn    blockingConn
	aborted bool
}

// Do sends a request that was due at intended and waits for the answer. It opens
// a connection if there is none; the timeout covers both. It never sends a
// request twice. A request that fails after ctx has ended is unfinished.
func (s *Session) Do(ctx context.Context, intended int64) Outcome {
	o := s.do(ctx, intended)
	if o.Err != nil && ctx.Err() != nil && !Classify(o.Err).Answered() {
		o.Err = fmt.Errorf("%w: %w", errUnfinished, o.Err)
	}
	return o
}

func (s *Session) do(ctx context.Context, intended int64) Outcome {
	number := s.mix.draw(s.source)
	o := Outcome{Intended: intended, Begin: s.clock.Now(), Connection: s.connection, Request: s.mix.label(number), number: number}
	deadline := s.clock.deadline(o.Begin, s.timeout)
	if s.conn == nil {
		err, fresh := s.connectErr, false
		if s.connectErr = nil; err == nil {
			fresh, err = s.open(ctx, deadline)
		}
		if err != nil {
			o.Err, o.Done = err, s.clock.Now()
			return o
		}
		if fresh {
			o.Connected = s.clock.Now()
		}
	}
	s.carried++
	last := s.perConnection > 0 && s.carried >= s.perConnection
	reuse := s.conn.exchange(&o, deadline, last)
	if o.Done == 0 {
		o.Done = s.clock.Now()
	}
	s.counters.InFlight += o.Done - o.Begin
	if !reuse || last {
		s.disconnect()
		s.lost = !last
	}
	return o
}

// Connect opens the connection before the first request and returns how long
// that took. The first request reports a failure, so that it is counted.
func (s *Session) Connect(ctx context.Context) (took time.Duration, ok bool) {
	start := s.clock.Now()
	_, s.connectErr = s.open(ctx, s.clock.deadline(start, s.timeout))
	return time.Duration(s.clock.Now() - start), s.connectErr == nil
}

func (s *Session) open(ctx context.Context, deadline time.Time) (fresh bool, err error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, fresh, err := s.dial(ctx, s.connection+s.opened*s.stride)
	if err != nil {
		return false, err
	}
	if s.opened++; fresh {
		s.counters.Connects++
	}
	if fresh && s.lost {
		s.counters.Reconnects++
	}
	s.carried, s.lost = 0, false
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted {
		conn.close()
		return false, fmt.Errorf("connect: %w", context.Canceled)
	}
	s.conn = conn
	return fresh, nil
}

func (s *Session) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.close()
	}
	s.conn = nil
}

// Open reports whether the connection is open.
func (s *Session) Open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// Counters returns the totals so far. Only Connects, Reconnects and InFlight are
// counted.
func (s *Session) Counters() Counters { return s.counters }

// Abort makes the current request and all later ones fail soon. It may be called
// from another goroutine.
func (s *Session) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborted = true
	if s.conn != nil {
		s.conn.abort()
	}
}

// Close closes the connection.
func (s *Session) Close() { s.disconnect() }

// streamConn runs a protocol over a blocking connection.
type streamConn struct {
	conn     net.Conn
	clock    Clock
	protocol protocol
	buffer   []byte
	used     bool
}

// dialStream opens a connection for HTTP/1.1, Redis or PostgreSQL.
func (t *Target) dialStream(ctx context.Context, number int, source *Source) (blockingConn, error) {
	var conn net.Conn
	var err error
	switch {
	case t.kind == kindPostgres:
		conn, err = t.connectPostgres(ctx, number)
	case t.tls != nil:
		conn, err = t.network.dialTLS(ctx, number, t.tls)
	default:
		conn, err = t.network.dial(ctx, number)
	}
	if err != nil {
		return nil, err
	}
	return &streamConn{
		conn: conn, clock: t.config.Clock, protocol: t.newProtocol(source, new(scratch)),
		buffer: make([]byte, readBytes/4),
	}, nil
}

func (c *streamConn) exchange(o *Outcome, deadline time.Time, last bool) bool {
	b := c.protocol.request(o.number, !c.used, last)
	c.used = true
	o.Sent = c.clock.Now()
	o.BytesSent = len(b)
	if err := c.conn.SetDeadline(deadline); err != nil {
		o.Err = err
		return false
	}
	if _, err := c.conn.Write(b); err != nil {
		o.Err = fmt.Errorf("send request: %w", err)
		return false
	}
	for {
		n, err := c.conn.Read(c.buffer)
		if err != nil && !errors.Is(err, io.EOF) {
			o.Err = fmt.Errorf("read answer: %w", err)
			return false
		}
		if o.First == 0 && n > 0 {
			o.First = c.clock.Now()
		}
		o.BytesReceived += int64(n)
		done, err := c.protocol.feed(c.buffer[:n])
		if err != nil {
			o.Err = err
			return false
		}
		if done {
			o.Done = c.clock.Now()
			return c.protocol.answer(o)
		}
	}
}

func (c *streamConn) abort() { c.conn.SetDeadline(time.Unix(1, 0)) }

func (c *streamConn) close() { c.conn.Close() }
