// Package deadline hands out contexts that end in some time and are shared: calls
// that begin close together get the same one. A context of its own costs each call a
// timer and three allocations, which is more than a page from memory costs as a whole.
package deadline

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Shared hands out contexts. Use New. Its method may be called concurrently.
type Shared struct {
	base    context.Context
	timeout time.Duration
	now     atomic.Pointer[shared]
	mu      sync.Mutex // of making the next one
}

type shared struct {
	context.Context
	cancel context.CancelFunc // never called: the context's own timer ends it
	until  time.Time          // calls that begin later get another one
}

// New returns a Shared whose contexts are children of base.
func New(base context.Context, timeout time.Duration) *Shared {
	return &Shared{base: base, timeout: timeout}
}

// Context returns a context for a call that begins now: it ends between the timeout
// and a sixteenth of it later, or with its base. It must not be used for calls that
// need to be cancelled by themselves.
func (s *Shared) Context(now time.Time) context.Context {
	if c := s.now.Load(); c != nil && now.Before(c.until) {
		return c.Context
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.now.Load(); c != nil && now.Before(c.until) {
		return c.Context
	}
	slack := s.timeout / 16
	ctx, cancel := context.WithDeadline(s.base, now.Add(s.timeout+slack))
	s.now.Store(&shared{ctx, cancel, now.Add(slack)})
	return ctx
}
