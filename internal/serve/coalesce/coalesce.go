// Package coalesce lets concurrent callers share one call for the same key.
//
// It is like groupcache's singleflight, and in addition callers wait under their own
// context, their number is bounded, and a call is cancelled when its last caller has left.
// Calls can belong to classes, each with bounds of its own, so that one class cannot take
// the others' room. Short calls can run in their callers' goroutines.
// It caches no result: a caller that arrives after a call starts a new one. There are never
// two calls for one key at the same time: a caller that arrives while a cancelled call still
// runs waits for its end.
package coalesce

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrFull is returned at once if the maximum number of callers waits. Retry later.
var ErrFull = errors.New("too many requests are waiting")

// Group shares calls by key. Use New. Its methods may be called concurrently.
type Group[V any] struct {
	limits Limits
	quick  atomic.Bool     // the next call is expected to be short
	base   context.Context // the group's lifetime
	stop   context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	calls   map[string]*call[V]
	classes map[string]*class
	waiting int
	shared  uint64
}

// Limits bound each class of a group.
type Limits struct {
	Callers int // callers waiting at once; others get ErrFull
	Calls   int // calls running at once; others wait for their turn. 0: no limit
}

// class counts what is under way in one class. It is guarded by Group.mu.
type class struct {
	callers, calls int
	turns          chan struct{} // one token per running call; nil: no limit
}

type call[V any] struct {
	done    chan struct{} // closed when value and err are set
	value   V
	err     error
	lost    bool // its caller's context has ended it
	waiters int  // guarded by Group.mu; 0: cancelled, must not be joined
	cancel  context.CancelFunc
}

// New returns a group whose classes have these limits. The owner must call Close.
func New[V any](limits Limits) *Group[V] {
	base, stop := context.WithCancel(context.Background())
	return &Group[V]{limits: limits, base: base, stop: stop, calls: make(map[string]*call[V]), classes: make(map[string]*class)}
}

// Do is DoClass for a group with a single class.
func (g *Group[V]) Do(ctx context.Context, key string, fn func(context.Context) (V, error)) (value V, shared bool, err error) {
	return g.DoClass(ctx, "", key, fn)
}

// DoClass returns the result of fn for key, which belongs to one class. If a call for key is
// running, DoClass waits for its result instead, and shared is true. fn runs in its own
// goroutine, unless it is short. Its context ends when the last caller has left or the group is closed; fn should
// then return soon, because new callers wait for that. DoClass returns ctx's error when ctx
// ends, and ErrFull if too many callers of the class wait.
func (g *Group[V]) DoClass(ctx context.Context, name, key string, fn func(context.Context) (V, error)) (value V, shared bool, err error) {
	if _, err := g.Enter(name, true); err != nil {
		return value, false, err
	}
	defer g.Leave(name, true, false)
	return g.Join(ctx, name, key, fn)
}

// Enter has a caller that waits elsewhere count as one of the class, until Leave. Unless it shares a call that the group does not know,
// turn says whether it may begin one, which counts until Leave, too. The error is ErrFull if too many callers of the class wait.
func (g *Group[V]) Enter(name string, shares bool) (turn bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cl := g.classLocked(name)
	if cl.callers >= g.limits.Callers {
		g.releaseLocked(name, cl)
		return false, ErrFull
	}
	g.waiting++
	cl.callers++
	if shares {
		return false, nil
	}
	if cl.turns != nil {
		select {
		case cl.turns <- struct{}{}:
		default:
			return false, nil
		}
	}
	cl.calls++
	return true, nil
}

// Leave is called at the end of the wait of a caller that has entered, and at the end of the call for which it had a turn.
func (g *Group[V]) Leave(name string, wait, call bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cl := g.classes[name]
	if wait {
		g.waiting--
		cl.callers--
	}
	if call {
		cl.end()
		cl.calls--
	}
	g.releaseLocked(name, cl)
}

// Join is DoClass for a caller that has entered.
func (g *Group[V]) Join(ctx context.Context, name, key string, fn func(context.Context) (V, error)) (value V, shared bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		c, shared, err := g.joinLocked(ctx, name, key, fn)
		if err != nil {
			return value, false, err
		}
		lost := false
		g.mu.Unlock()
		select {
		case <-c.done:
			value, err, lost = c.value, c.err, c.lost
		case <-ctx.Done():
			err = ctx.Err()
		}
		g.mu.Lock()
		if c.waiters--; c.waiters == 0 {
			c.cancel()
		}
		if !lost || ctx.Err() != nil {
			return value, shared, err
		}
	}
}

// short is how long the work of a call may take so that the next one is expected to be short.
const short = 10 * time.Millisecond

// Took notes how long the work of a call has taken, without what it has waited for before. If it was short and err is nil, the next call
// runs in the goroutine and with the context of the caller that begins it. If that context ends it, callers that share the call start
// another one.
func (g *Group[V]) Took(d time.Duration, err error) { g.quick.Store(err == nil && d < short) }

// joinLocked adds the caller to the call for key: the running one, or a new one after a
// cancelled one has ended. It unlocks while it waits.
func (g *Group[V]) joinLocked(ctx context.Context, name, key string, fn func(context.Context) (V, error)) (c *call[V], shared bool,
	err error,
) {
	for {
		if g.base.Err() != nil {
			return nil, false, context.Canceled
		}
		c, shared = g.calls[key]
		if !shared {
			c = g.startLocked(ctx, name, key, fn)
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
	if shared {
		c.waiters++
		g.shared++
	}
	return c, shared, nil
}

// startLocked starts a call. It unlocks while it runs a short one.
func (g *Group[V]) startLocked(ctx context.Context, name, key string, fn func(context.Context) (V, error)) *call[V] {
	here := g.quick.Load()
	c := &call[V]{done: make(chan struct{}), waiters: 1, cancel: func() {}}
	if !here {
		ctx, c.cancel = context.WithCancel(g.base)
	}
	g.calls[key] = c
	cl := g.classLocked(name)
	cl.calls++
	g.wait.Add(1)
	run := func() {
		defer g.wait.Done()
		if c.err = cl.begin(ctx); c.err == nil {
			c.value, c.err = fn(ctx)
			cl.end()
		}
		c.lost = here && c.err != nil && ctx.Err() != nil
		g.mu.Lock()
		delete(g.calls, key)
		cl.calls--
		g.releaseLocked(name, cl)
		g.mu.Unlock()
		close(c.done)
		c.cancel()
	}
	if !here {
		go run()
		return c
	}
	g.mu.Unlock()
	run()
	g.mu.Lock()
	return c
}

// classLocked returns the class of that name. The caller calls releaseLocked.
func (g *Group[V]) classLocked(name string) *class {
	cl, ok := g.classes[name]
	if !ok {
		cl = &class{}
		if g.limits.Calls > 0 {
			cl.turns = make(chan struct{}, g.limits.Calls)
		}
		g.classes[name] = cl
	}
	return cl
}

// releaseLocked forgets a class in which nothing is under way, unless it is the only one.
func (g *Group[V]) releaseLocked(name string, cl *class) {
	if cl.callers == 0 && cl.calls == 0 && name != "" {
		delete(g.classes, name)
	}
}

// begin waits for the turn of a call. After nil, the call must end.
func (cl *class) begin(ctx context.Context) error {
	if cl.turns == nil {
		return nil
	}
	select {
	case cl.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (cl *class) end() {
	if cl.turns != nil {
		<-cl.turns
	}
}

// Waiting returns how many callers wait now, and how many have shared another caller's call.
func (g *Group[V]) Waiting() (now int, shared uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting, g.shared
}

// Close cancels running calls, and waits for them and for short ones, which end with their callers' contexts.
func (g *Group[V]) Close() {
	g.mu.Lock() // no call starts between the cancellation and Wait
	g.stop()
	g.mu.Unlock()
	g.wait.Wait()
}
