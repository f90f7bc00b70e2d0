package queue

import (
	"context"
	"sync"
	"time"
)

// Context is a context without a parent that costs less than those of package context: it has no timer, and no channel until
// somebody asks for it. The zero value is ready to use.
type Context struct {
	Until time.Time // when the caller will cancel it; zero: unknown

	mu    sync.Mutex // guards what follows
	done  chan struct{}
	err   error
	after []*func()
}

// Cancel ends the context with an error of package context, unless it has ended.
func (c *Context) Cancel(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	for _, f := range c.after {
		go (*f)()
	}
	c.after = nil
}

// AfterFunc calls f in a goroutine when the context ends, unless stop is called before; stop reports whether it prevents that.
// Functions of package context use it.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	own := &f
	c.after = append(c.after, own)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, other := range c.after {
			if other == own {
				c.after = append(c.after[:i], c.after[i+1:]...)
				return true
			}
		}
		return false
	}
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) { return c.Until, !c.Until.IsZero() }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value implements context.Context.
func (c *Context) Value(any) any { return nil }

var _ context.Context = (*Context)(nil)
