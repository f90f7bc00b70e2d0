package target

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// link is one open connection whose calls block.
type link interface {
	// exchange sends a request, waits for its answer and fills in the rest of
	// o. It reports whether the connection can carry another one.
	exchange(o *Outcome, last bool) (reuse bool)
	// abort makes an exchange under way fail soon; it may be called from
	// another goroutine, more than once.
	abort()
	close()
}

// dialer opens a link; turn counts the connections opened, to choose a local
// address by.
type dialer func(ctx context.Context, turn int) (link, error)

// Session is one place for connections to a target that is not driven by
// Worker: TLS, HTTP/2 and SQL. Its requests block. Except for Abort it is for one
// goroutine.
type Session struct {
	clock         Clock
	dial          dialer
	perConnection int
	connection    int
	stride        int // sessions of this target: turns differ between them
	counters      Counters
	carried       int
	opened        int
	lost          bool
	refused       error // what Connect came to; the first request tells

	mu      sync.Mutex
	link    link
	aborted bool
}

// Do sends a request that was due at intended, on a connection opened for it
// when there is none, and waits for its end. Nothing is sent twice.
func (s *Session) Do(ctx context.Context, intended int64) Outcome {
	o := Outcome{Intended: intended, Begin: s.clock.Now(), Connection: s.connection}
	if s.link == nil {
		err := s.refused
		if s.refused = nil; err == nil {
			err = s.open(ctx)
		}
		if err != nil {
			o.Err, o.Done = err, s.clock.Now()
			return o
		}
		o.Connected = s.clock.Now()
	}
	s.carried++
	last := s.perConnection > 0 && s.carried >= s.perConnection
	reuse := s.link.exchange(&o, last)
	if o.Done == 0 {
		o.Done = s.clock.Now()
	}
	s.counters.InFlight += o.Done - o.Begin
	if !reuse || last {
		s.hangUp()
		s.lost = !last
	}
	return o
}

// Connect opens the connection ahead of the first request and returns how long
// that took. A failure is kept for the first request to tell, so that it counts.
func (s *Session) Connect(ctx context.Context) (took time.Duration, ok bool) {
	start := s.clock.Now()
	s.refused = s.open(ctx)
	return time.Duration(s.clock.Now() - start), s.refused == nil
}

func (s *Session) open(ctx context.Context) error {
	l, err := s.dial(ctx, s.connection+s.opened*s.stride)
	if err != nil {
		return err
	}
	s.opened++
	s.counters.Connects++
	if s.lost {
		s.counters.Reconnects++
	}
	s.carried, s.lost = 0, false
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted {
		l.close()
		return fmt.Errorf("connect: %w", context.Canceled)
	}
	s.link = l
	return nil
}

func (s *Session) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.link.close()
	}
	s.link = nil
}

// Open says whether the connection is open. The session has no request then.
func (s *Session) Open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link != nil
}

// Counters returns what was done up to now. Only connections and InFlight are
// counted.
func (s *Session) Counters() Counters { return s.counters }

// Abort makes a request under way fail soon, and every later one. It may be
// called from another goroutine.
func (s *Session) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborted = true
	if s.link != nil {
		s.link.abort()
	}
}

// Close closes the connection.
func (s *Session) Close() { s.hangUp() }
