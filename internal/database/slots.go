package database

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Pauses before a server that has refused a connection is asked for another one. They double.
const (
	refusedFirst = 500 * time.Millisecond
	refusedLast  = 10 * time.Second
)

// Slots counts the connections of a pool that are in use. There are as many as the pool may have, or as the server grants: who
// finds none waits for one in use, and does not ask the server for another. The methods may be called concurrently.
type Slots struct {
	// Refuses reports whether an error means that the server grants no further connection.
	Refuses func(error) bool
	// Counts returns the connections that are open, those that are being opened, and how many were opened since the start.
	Counts func() (open, opening int, opened int64)
	Log    *slog.Logger
	// Wanted is called when somebody begins to wait; it may be nil.
	Wanted func()

	free     chan struct{}
	waiting  atomic.Int32
	waits    atomic.Int64
	waitTime atomic.Int64
	missing  atomic.Int64 // slots that were taken away; changed under mu

	mu     sync.Mutex
	tried  bool // a connection more than the server granted
	opened int64
	pause  time.Duration
	next   time.Time // when one is tried
}

// Fill adds n slots. The caller calls it once.
func (s *Slots) Fill(n int) {
	s.free = make(chan struct{}, n)
	for range n {
		s.free <- struct{}{}
	}
}

// Acquire returns what get does, once there is a slot for it. If the server grants no connection, but there are others, it
// waits for one of them. Unless it returns an error, the caller calls Release.
func Acquire[C any](ctx context.Context, s *Slots, get func(context.Context) (C, error)) (C, error) {
	for {
		if err := s.take(ctx); err != nil {
			return *new(C), err
		}
		conn, err := get(ctx)
		if err == nil {
			s.grow()
			return conn, nil
		}
		if !s.Refuses(err) {
			s.Release()
			return conn, err
		}
		if !s.shrink(err) {
			return conn, err
		}
	}
}

// ErrNoSpare means that AcquireSpare had no slot to take.
var ErrNoSpare = errors.New("no connection is to spare")

// AcquireSpare is Acquire for a connection that can be done without: it waits for none, takes none that others wait for, and leaves
// so many slots free.
func AcquireSpare[C any](ctx context.Context, s *Slots, leave int, get func(context.Context) (C, error)) (conn C, err error) {
	s.grow()
	if len(s.free) <= leave || s.waiting.Load() > 0 {
		return conn, ErrNoSpare
	}
	select {
	case <-s.free:
	default:
		return conn, ErrNoSpare
	}
	switch conn, err = get(ctx); {
	case err == nil:
		s.grow()
	case s.Refuses(err):
		s.shrink(err)
	default:
		s.Release()
	}
	return conn, err
}

// Waiting returns how many wait for a slot.
func (s *Slots) Waiting() int { return int(s.waiting.Load()) }

// Release returns a slot.
func (s *Slots) Release() {
	s.free <- struct{}{}
	s.grow()
}

// Limit is the number of slots.
func (s *Slots) Limit() int { return cap(s.free) - int(s.missing.Load()) }

// Waited returns how often a slot was waited for, and for how long in all.
func (s *Slots) Waited() (int64, time.Duration) {
	return s.waits.Load(), time.Duration(s.waitTime.Load())
}

func (s *Slots) take(ctx context.Context) error {
	s.grow()
	select {
	case <-s.free:
		return nil
	default:
	}
	began := time.Now()
	s.waiting.Add(1)
	if s.Wanted != nil {
		s.Wanted()
	}
	defer func() {
		s.waiting.Add(-1)
		s.waits.Add(1)
		s.waitTime.Add(int64(time.Since(began)))
	}()
	again := time.NewTicker(refusedFirst) // all who have a slot may keep it
	defer again.Stop()
	for {
		select {
		case <-s.free:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
			s.grow()
		}
	}
}

// shrink takes the caller's slot, and the free ones, away down to the connections that are open. It returns false if there are
// none: nothing will become free.
func (s *Slots) shrink(reason error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	open, opening, _ := s.Counts()
	if open > 0 && s.missing.Load() == 0 {
		s.Log.Warn("the server grants fewer connections than pool.max; statements wait for those that there are",
			"pool_max", cap(s.free), "open", open, "error", reason)
		s.tried = true
	}
	s.free <- struct{}{} // the caller's
	for open > 0 && s.Limit() > open && len(s.free) > 0 {
		select {
		case <-s.free:
			s.missing.Add(1)
		default: // another one was faster
		}
	}
	if s.tried {
		s.tried, s.pause = false, min(max(2*s.pause, refusedFirst), refusedLast)
		s.next = time.Now().Add(s.pause)
	}
	return open+opening > 0
}

// grow gives back a slot that was taken away, after a pause. Once the server has granted a connection for it, there are twice as
// many, until all are back.
func (s *Slots) grow() {
	if s.missing.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	more, now := 0, time.Now()
	switch open, _, opened := s.Counts(); {
	case s.tried && opened > s.opened:
		more, s.opened = s.Limit(), opened
	case !s.tried && !now.Before(s.next):
		more, s.opened, s.tried = max(open-s.Limit(), 0)+1, opened, true
	}
	for range min(more, int(s.missing.Load())) {
		s.missing.Add(-1)
		s.free <- struct{}{}
	}
	if s.missing.Load() == 0 {
		s.tried, s.pause = false, 0
	}
}
