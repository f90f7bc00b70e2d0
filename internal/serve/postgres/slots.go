package postgres

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// slotsReturn is how long a slot is away that the server had no connection for.
const slotsReturn = time.Minute

// stateTooManyConnections is the SQLSTATE of a server, role, database or pooler that grants no further connection.
const stateTooManyConnections = "53300"

// slots counts the connections in use. There are as many as the pool has, or as the server grants: who finds none waits for
// one in use, and does not ask the server for another.
type slots struct {
	free   chan struct{}
	wanted func()       // somebody waits for one; may be nil
	wait   atomic.Int32 // how many do

	mu      sync.Mutex
	missing int       // taken away, because the server granted no connection
	back    time.Time // when one of them is tried again
}

func newSlots(n int) *slots {
	s := &slots{free: make(chan struct{}, n)}
	for range n {
		s.free <- struct{}{}
	}
	return s
}

// take waits for a slot.
func (s *slots) take(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	if s.missing > 0 && !now.Before(s.back) {
		s.missing, s.back = s.missing-1, now.Add(slotsReturn)
		s.free <- struct{}{}
	}
	s.mu.Unlock()
	select {
	case <-s.free:
		return nil
	default:
	}
	s.wait.Add(1)
	defer s.wait.Add(-1)
	if s.wanted != nil {
		s.wanted()
	}
	select {
	case <-s.free:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// takeSpare takes a slot if nobody waits for one and so many others are free.
func (s *slots) takeSpare(others int) bool {
	if len(s.free) <= others || s.wait.Load() > 0 {
		return false
	}
	select {
	case <-s.free:
		return true
	default:
		return false
	}
}

func (s *slots) release() { s.free <- struct{}{} }

// takeAway keeps the caller's slot for a while, unless it is the last one. first reports whether no other is away.
func (s *slots) takeAway(now time.Time) (away, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missing+1 >= cap(s.free) {
		return false, false
	}
	s.missing, s.back = s.missing+1, now.Add(slotsReturn)
	return true, s.missing == 1
}

// limit is the number of slots.
func (s *slots) limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cap(s.free) - s.missing
}

type pooled = pgxpool.Conn

// lease is a connection of the pool with its slot.
type lease struct {
	*pooled
	slots *slots
}

// Release returns both.
func (l lease) Release() {
	l.pooled.Release()
	l.slots.release()
}

// Hijack takes the connection out of the pool, which may open another in its place. The caller closes it.
func (l lease) Hijack() *pgx.Conn {
	l.slots.release()
	return l.pooled.Hijack()
}

// isTooMany reports whether the server grants no further connection.
func isTooMany(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == stateTooManyConnections
}
