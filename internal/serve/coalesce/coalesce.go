// Package coalesce lets callers who want the same thing at the same time share
// one call for it.
//
// The idea is that of groupcache's singleflight, with what a server needs
// besides: callers wait under their own context, their number is bounded, and a
// call that nobody waits for any more is cancelled. It keeps no result: a caller
// who comes after the call ended starts a new one, and one who comes while a
// cancelled call has not ended yet waits for that: at no time are there two calls
// for one key.
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
	waiters int // guarded by Group.mu; 0: cancelled, and not to be joined
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
// has left or the group is closed: it should then return soon, because newcomers wait
// for that. Do returns early with ctx's error when ctx ends, and with ErrFull
// when too many callers wait.
func (g *Group[V]) Do(ctx context.Context, key string, fn func(context.Context) (V, error)) (value V, shared bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting >= g.limit {
		return value, false, ErrFull
	}
	g.waiting++
	defer func() { g.waiting-- }()
	c, shared, err := g.joinLocked(ctx, key, fn)
	if err != nil {
		return value, false, err
	}

	g.mu.Unlock()
	select {
	case <-c.done:
		value, err = c.value, c.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()

	c.waiters--
	if c.waiters == 0 {
		c.cancel()
	}
	return value, shared, err
}

// joinLocked returns the call for key with the caller among its waiters: the one
// under way or, once a cancelled one has ended, a new one. It unlocks while it waits.
func (g *Group[V]) joinLocked(ctx context.Context, key string, fn func(context.Context) (V, error)) (c *call[V], shared bool, err error) {
	for {
		if g.base.Err() != nil {
			return nil, false, context.Canceled
		}
		c, shared = g.calls[key]
		if !shared {
			c = g.startLocked(key, fn)
		}
		if !shared || c.waiters > 0 {
			break
		}
		g.mu.Unlock()
		select {
		case <-c.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		g.mu.Lock()
		if err != nil {
			return nil, false, err
		}
	}
	c.waiters++
	if shared {
		g.shared++
	}
	return c, shared, nil
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
		delete(g.calls, key)
		g.mu.Unlock()
		close(c.done)
		cancel()
	}()
	return c
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
