// Package coalesce lets callers who want the same thing at the same time share
// one call for it.
//
// The idea is that of groupcache's singleflight, with what a server needs
// besides: callers wait under their own context, their number is bounded, and a
// call that nobody waits for any more is cancelled. It keeps no result: a caller
// who comes after the call ended starts a new one.
package coalesce

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned at once when the group's bound of waiting callers is
// reached. The caller should tell its client to come back later.
var ErrFull = errors.New("too many requests wait already")

// Group shares calls by key. Use New. Its methods may be called concurrently.
type Group[V any] struct {
	limit int
	base  context.Context // the owner's lifetime, not a request's
	stop  context.CancelFunc
	wait  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	calls   map[string]*call[V]
	waiting int
	shared  uint64
}

type call[V any] struct {
	done    chan struct{} // closed once value and err are set
	value   V
	err     error
	waiters int // guarded by Group.mu
	cancel  context.CancelFunc
}

// New returns a group in which at most limit callers wait at once. The owner
// must call Close.
func New[V any](limit int) *Group[V] {
	base, stop := context.WithCancel(context.Background())
	return &Group[V]{limit: limit, base: base, stop: stop, calls: make(map[string]*call[V])}
}

// Do returns what fn returns for key; if a call for key is under way already it
// waits for that one's result instead, and shared is true. fn runs in a
// goroutine of its own with a context that ends when the last waiting caller
// has left or the group is closed. Do returns early with ctx's error when ctx
// ends, and with ErrFull when too many callers wait.
func (g *Group[V]) Do(ctx context.Context, key string, fn func(context.Context) (V, error)) (value V, shared bool, err error) {
	g.mu.Lock()
	if g.waiting >= g.limit {
		g.mu.Unlock()
		return value, false, ErrFull
	}
	if g.base.Err() != nil {
		g.mu.Unlock()
		return value, false, context.Canceled
	}
	c, shared := g.calls[key]
	if shared {
		g.shared++
	} else {
		c = g.startLocked(key, fn)
	}
	c.waiters++
	g.waiting++
	g.mu.Unlock()

	select {
	case <-c.done:
		value, err = c.value, c.err
	case <-ctx.Done():
		err = ctx.Err()
	}

	g.mu.Lock()
	g.waiting--
	c.waiters--
	if c.waiters == 0 {
		c.cancel()
		g.forgetLocked(key, c) // a newcomer must not join a cancelled call
	}
	g.mu.Unlock()
	return value, shared, err
}

func (g *Group[V]) startLocked(key string, fn func(context.Context) (V, error)) *call[V] {
	ctx, cancel := context.WithCancel(g.base)
	c := &call[V]{done: make(chan struct{}), cancel: cancel}
	g.calls[key] = c
	g.wait.Add(1)
	go func() {
		defer g.wait.Done()
		c.value, c.err = fn(ctx)
		g.mu.Lock()
		g.forgetLocked(key, c)
		g.mu.Unlock()
		close(c.done)
	}()
	return c
}

func (g *Group[V]) forgetLocked(key string, c *call[V]) {
	if g.calls[key] == c {
		delete(g.calls, key)
	}
}

// Waiting returns how many callers wait now, and how many have shared another's
// call since the start.
func (g *Group[V]) Waiting() (now int, shared uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting, g.shared
}

// Close cancels the calls under way and waits for them.
func (g *Group[V]) Close() {
	g.mu.Lock() // no call starts between the cancellation and Wait
	g.stop()
	g.mu.Unlock()
	g.wait.Wait()
}
