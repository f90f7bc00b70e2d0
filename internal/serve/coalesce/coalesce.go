// Package coalesce lets concurrent callers share one call for the same key.
//
// It is like groupcache's singleflight, and in addition callers wait under their own
// context, their number is bounded, and a call is cancelled when its last caller has left.
// Calls can belong to classes, each with bounds of its own, so that one class cannot take
// the others' room.
// It caches no result: a caller that arrives after a call starts a new one. There are never
// two calls for one key at the same time: a caller that arrives while a cancelled call still
// runs waits for its end.
//
// A call runs in the goroutine of its first caller, so that a caller who is alone costs neither
// a goroutine nor a wake-up. If that caller leaves, its goroutine goes on for the others.
package coalesce

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"spillway/internal/serve/queue"
)

// ErrFull is returned at once if the maximum number of callers waits. Retry later.
var ErrFull = errors.New("too many requests are waiting")

// Group shares calls by key. Use New. Its methods may be called concurrently.
type Group[V any] struct {
	limits Limits
	base   context.Context // the group's lifetime
	stop   context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	calls   map[string]*call[V]
	ending  list.List // of running calls, in about the order in which their time is over
	timer   bool      // endDue follows
	classes map[string]*class
	waiting int
	shared  uint64
}

// Func returns the result of a call.
type Func[V any] func(context.Context) (V, error)

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
	value   V
	err     error
	expired bool          // the first caller's time was over: the others start again
	running queue.Context // of the call

	// Guarded by Group.mu:
	done    chan struct{} // closed when the fields above are set; nil: nobody waits for that
	waiters int           // 0: cancelled, must not be joined
	left    bool          // the first caller has left, and does not count
	place   *list.Element // in Group.ending
}

// New returns a group for at most limit waiting callers. The owner must call Close.
func New[V any](limit int) *Group[V] { return NewClasses[V](Limits{Callers: limit}) }

// NewClasses returns a group whose classes have these limits. The owner must call Close.
func NewClasses[V any](limits Limits) *Group[V] {
	base, stop := context.WithCancel(context.Background())
	return &Group[V]{limits: limits, base: base, stop: stop, calls: make(map[string]*call[V]), classes: make(map[string]*class)}
}

// Do is DoClass for a group with a single class.
func (g *Group[V]) Do(ctx context.Context, until time.Time, key string, fn Func[V]) (value V, shared bool, err error) {
	return g.DoClass(ctx, until, "", key, fn)
}

// DoClass returns the result of fn for key, which belongs to one class. If a call for key is
// running, DoClass waits for its result instead, and shared is true. The context of fn ends at
// until, or when the last caller has left or the group is closed; fn should then return soon.
// If a call ends because its first caller's time is over, one of the others calls fn again.
// DoClass returns ctx's error when ctx ends, context.DeadlineExceeded after until, and ErrFull if
// too many callers of the class wait. If ctx ends while fn runs for others too, DoClass returns
// when fn does.
func (g *Group[V]) DoClass(ctx context.Context, until time.Time, name, key string, fn Func[V]) (value V, shared bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cl := g.classLocked(name)
	if cl.callers >= g.limits.Callers {
		g.releaseLocked(name, cl)
		return value, false, ErrFull
	}
	g.countLocked(cl, 1)
	defer func() {
		g.countLocked(cl, -1)
		g.releaseLocked(name, cl)
	}()
	for {
		c, running := g.calls[key]
		switch {
		case g.base.Err() != nil:
			return value, shared, context.Canceled
		case !running:
			value, err = g.callLocked(ctx, until, cl, key, fn)
			return value, shared, err
		}
		joins := c.waiters > 0
		if joins && !shared {
			shared = true
			g.shared++
		}
		if err := g.waitLocked(ctx, until, c, joins); err != nil {
			return value, shared, err
		}
		if joins && !c.expired {
			return c.value, shared, c.err
		}
		if !time.Now().Before(until) {
			return value, shared, context.DeadlineExceeded
		}
	}
}

// waitLocked waits for the end of a call, as one of its callers if it joins.
func (g *Group[V]) waitLocked(ctx context.Context, until time.Time, c *call[V], joins bool) (err error) {
	if c.done == nil {
		c.done = make(chan struct{})
	}
	if joins {
		c.waiters++
	}
	g.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, until)
	select {
	case <-c.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	cancel()
	g.mu.Lock()
	if joins {
		g.leaveLocked(c)
	}
	return err
}

// countLocked adds n callers.
func (g *Group[V]) countLocked(cl *class, n int) {
	g.waiting += n
	cl.callers += n
}

// leaveLocked has a caller leave a call.
func (g *Group[V]) leaveLocked(c *call[V]) {
	if c.waiters--; c.waiters == 0 {
		c.running.Cancel(context.Canceled)
	}
}

// callLocked calls fn. It unlocks meanwhile.
func (g *Group[V]) callLocked(ctx context.Context, until time.Time, cl *class, key string, fn Func[V]) (value V, err error) {
	c := &call[V]{running: queue.Context{Until: until}, waiters: 1}
	c.place = g.ending.PushBack(c)
	if !g.timer {
		g.timer = true
		time.AfterFunc(time.Until(until), g.endDue)
	}
	g.calls[key] = c
	cl.calls++
	g.wait.Add(1)
	defer g.wait.Done()
	g.mu.Unlock()
	stays := afterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		c.left = true
		g.countLocked(cl, -1)
		g.leaveLocked(c)
	})
	if err = cl.begin(&c.running); err == nil {
		value, err = fn(&c.running)
		cl.end()
	}
	stays()
	g.mu.Lock()
	c.value, c.err = value, err
	c.expired = err != nil && c.running.Err() == context.DeadlineExceeded
	if c.left {
		g.countLocked(cl, 1)
	}
	g.ending.Remove(c.place)
	delete(g.calls, key)
	cl.calls--
	if c.done != nil {
		close(c.done)
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case c.expired:
		err = context.DeadlineExceeded
	}
	return value, err
}

// afterFunc is context.AfterFunc, without its cost for a queue.Context.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if own, ok := ctx.(*queue.Context); ok {
		return own.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// endDue cancels the calls whose time is over.
func (g *Group[V]) endDue() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = false
	for e := g.ending.Front(); e != nil; e = e.Next() {
		c := e.Value.(*call[V])
		if left := time.Until(c.running.Until); left > 0 {
			g.timer = true
			time.AfterFunc(left, g.endDue)
			return
		}
		c.running.Cancel(context.DeadlineExceeded)
	}
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

// releaseLocked forgets a class in which nothing is under way.
func (g *Group[V]) releaseLocked(name string, cl *class) {
	if cl.callers == 0 && cl.calls == 0 {
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

// Close cancels running calls and waits for them.
func (g *Group[V]) Close() {
	g.mu.Lock() // no call starts between the cancellation and Wait
	g.stop()
	for e := g.ending.Front(); e != nil; e = e.Next() {
		e.Value.(*call[V]).running.Cancel(context.Canceled)
	}
	g.mu.Unlock()
	g.wait.Wait()
}
