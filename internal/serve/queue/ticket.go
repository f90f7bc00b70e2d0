package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Ticket is the wait of one request for the commit or fsync of its group. The request
// waits with Wait, others with the same idempotency key with Join, and the owner of the
// queue ends the wait with Answer.
type Ticket struct {
	done      chan struct{}
	err       error // set before done is closed
	abandoned atomic.Bool
}

// Open prepares a ticket for use.
func (t *Ticket) Open() { t.done = make(chan struct{}) }

// Answer ends the wait. It is called once; what the owner has set before may be read
// after Wait or Join.
func (t *Ticket) Answer(err error) {
	t.err = err
	close(t.done)
}

// Wait waits for the answer. If ctx ends first, the error wraps ErrUnknown and ctx's
// cause, and the ticket counts as abandoned.
func (t *Ticket) Wait(ctx context.Context) error {
	err := t.wait(ctx)
	if ctx.Err() != nil && err != nil {
		t.abandoned.Store(true)
	}
	return err
}

func (t *Ticket) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// Join waits for another request with the same idempotency key. sameBody reports whether
// the bodies are equal too. retry is true if the other request was not stored: the caller
// must then queue its own.
func (t *Ticket) Join(ctx context.Context, sameBody bool) (retry bool, err error) {
	err = t.wait(ctx)
	switch {
	case ctx.Err() != nil && err != nil:
		return false, err
	case err != nil:
		return true, nil
	case !sameBody:
		return false, ErrKeyReused
	}
	return false, nil
}

// Abandoned reports whether the request no longer waits.
func (t *Ticket) Abandoned() bool { return t.abandoned.Load() }

// Backoff returns the pause after a failed attempt, counted from 1: first, doubled with
// each attempt up to most. Half of it is random, so that retries do not collide again.
func Backoff(attempt int, first, most time.Duration) time.Duration {
	full := min(first<<min(attempt-1, 10), most)
	return full - time.Duration(rand.Float64()*float64(full)/2)
}

// Sleep waits for a duration, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
