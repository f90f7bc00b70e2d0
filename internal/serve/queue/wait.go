package queue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Ticket is the wait of one request for the commit or fsync of its group. The request
// waits with Wait, others with the same idempotency key with Join, and the owner of the
// queue ends the wait with Answer.
type Ticket struct {
	done      chan struct{}        // nil: nobody waits for the answer
	ready     func() (wake func()) // may be nil
	err       error                // set before done is closed
	abandoned atomic.Bool
}

// Open prepares a ticket for use. ready, if it is not nil, is called at the end of the wait. It
// must not block, because the owner of the queue may hold a lock. What it returns, if that is not
// nil, is called after the other tickets of the group are answered too. With ready, Wait is called
// after that, and Join only if the ticket is shared.
func (t *Ticket) Open(ready func() (wake func()), shared bool) {
	t.ready = ready
	if ready == nil || shared {
		t.done = make(chan struct{})
	}
}

// Answer ends the wait. It is called once; what the owner has set before may be read
// after Wait or Join. It appends to wakes, for Wake.
func (t *Ticket) Answer(err error, wakes []func()) []func() {
	t.err = err
	if t.done != nil {
		close(t.done)
	}
	if t.ready != nil {
		if wake := t.ready(); wake != nil {
			return append(wakes, wake)
		}
	}
	return wakes
}

// Wake follows Answer.
func Wake(wakes []func()) {
	for _, wake := range wakes {
		wake()
	}
}

// Abandon notes that the request no longer waits.
func (t *Ticket) Abandon() { t.abandoned.Store(true) }

// Wait waits for the answer. If ctx ends first, the error wraps ErrUnknown and ctx's
// cause, and the ticket counts as abandoned.
func (t *Ticket) Wait(ctx context.Context) error {
	err := t.wait(ctx)
	if ctx.Err() != nil && err != nil {
		t.Abandon()
	}
	return err
}

func (t *Ticket) wait(ctx context.Context) error {
	if t.done == nil {
		return t.err
	}
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

// ErrShared: nothing has happened, because a request with the same idempotency key is being
// stored, and the caller does not want to wait for it.
var ErrShared = errors.New("a request with this idempotency key is being stored")

// Appending is an entry that a spool has accepted.
type Appending interface {
	// Appended waits until the entry is on disk, or ctx ends. replayed reports that an entry with the
	// same key was there before.
	Appended(ctx context.Context) (replayed bool, err error)
	// Abandon notes that nobody waits any more.
	Abandon()
}

// Gather decides how long a group of requests waits for more of them before they go
// together: an fsync costs about the same for one and for a hundred.
//
// A client alone does not wait. If several requests were active recently, the next group
// waits for as many, or until Every has passed since the previous group began. Without
// the wait, the first client to return after a group would form the next group alone.
//
// All methods are called with one mutex held.
type Gather struct {
	Every time.Duration // longest time between the beginnings of two groups

	began  time.Time
	active int // the most requests in a group or waiting, recently; it decays
	want   int // for how many Wait waits
}

// Begin notes that a group begins.
func (g *Gather) Begin() { g.began = time.Now() }

// End notes that a group has ended with n requests active: those in it and those waiting.
func (g *Gather) End(n int) { g.active = max(n, g.active*7/8) }

// Enough reports whether n waiting requests are as many as Wait waits for. A caller that
// adds a request then wakes the waiter.
func (g *Gather) Enough(n int) bool { return n >= g.want }

// Wait waits until done returns true or Every has passed. done is called whenever wake is
// signaled, and may call Enough. The mutex is wake.L, which is released during the wait.
func (g *Gather) Wait(wake *sync.Cond, done func() bool) {
	wait := g.Every - time.Since(g.began)
	if g.active < 2 || wait <= 0 {
		return
	}
	over := false
	timer := time.AfterFunc(wait, func() {
		wake.L.Lock()
		defer wake.L.Unlock()
		over = true
		wake.Signal()
	})
	defer timer.Stop()
	for g.want = g.active; !over && !done(); {
		wake.Wait()
	}
	g.want = 0
}

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

// Ticks yields after each interval until ctx ends. It yields less often if the loop's body takes
// longer.
func Ticks(ctx context.Context, every time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				if !yield(now) {
					return
				}
			}
		}
	}
}
