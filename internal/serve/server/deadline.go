package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// sharedDeadline hands out contexts with a timeout. Calls that begin close together
// get the same context, because a context of its own costs each call a timer and
// three allocations. Its method may be called concurrently.
type sharedDeadline struct {
	base    context.Context
	timeout time.Duration
	now     atomic.Pointer[deadline]
	mu      sync.Mutex // of making the next one
}

type deadline struct {
	context.Context
	cancel context.CancelFunc // never called: the context's own timer ends it
	until  time.Time          // calls that begin later get another one
}

// newSharedDeadline returns a sharedDeadline whose contexts are children of base.
func newSharedDeadline(base context.Context, timeout time.Duration) *sharedDeadline {
	return &sharedDeadline{base: base, timeout: timeout}
}

// Context returns a context for a call that begins now: it ends between the timeout
// and a sixteenth of it later, or with its base. It must not be used for calls that
// need to be cancelled by themselves.
func (s *sharedDeadline) Context(now time.Time) context.Context {
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
	s.now.Store(&deadline{ctx, cancel, now.Add(slack)})
	return ctx
}
