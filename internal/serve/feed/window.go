package feed

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	retryMax     = time.Second     // between attempts while the database is down
	sweepIdle    = time.Minute     // time without deep offsets after which counting stops
	refreshMax   = 5 * time.Second // timeout of one refresh
	askedPortion = 8               // asked is written at most this often per IdleAfter
)

// window keeps one snapshot fresh while requests arrive. One goroutine, run, refreshes it.
// Requests read current, and wait in await if it cannot be served.
//
//	 ┌────────── refresh every interval ─────────┐
//	 ▼                                           │
//	active ── no request for IdleAfter ──▶ parked ── await ──▶ active
type window struct {
	feed    *Feed
	args    []string
	ctx     context.Context // the window's lifetime
	stop    context.CancelFunc
	current atomic.Pointer[snapshot] // nil before the first refresh
	asked   atomic.Int64             // Unix nanoseconds of about the last request
	wake    chan struct{}            // one token: leave the parked state

	mu      sync.Mutex // guards what follows
	outcome *outcome   // of the current or next refresh
	failure error      // of the last refresh; nil after a success
	sweeper *sweeper   // nil until the first deep offset
}

// outcome is the result of one refresh, for the requests that wait for it.
type outcome struct {
	done chan struct{}
	err  error
}

func newWindow(f *Feed, args []string, now time.Time) *window {
	w := &window{
		feed:    f,
		args:    cloneArgs(args),
		wake:    make(chan struct{}, 1),
		outcome: &outcome{done: make(chan struct{})},
	}
	w.ctx, w.stop = context.WithCancel(f.base)
	w.asked.Store(now.UnixNano())
	return w
}

// get returns the snapshot to serve at now, and waits for one if necessary.
func (w *window) get(ctx context.Context, now time.Time) (*snapshot, error) {
	// Not every request writes, because all cores share the cache line.
	if n := now.UnixNano(); n-w.asked.Load() > int64(w.feed.cfg.IdleAfter)/askedPortion {
		w.asked.Store(n)
	}
	s := w.current.Load()
	if s == nil || s.parked {
		var err error
		if s, err = w.await(ctx); err != nil {
			return nil, err
		}
		now = time.Now()
	}
	age := now.Sub(s.readAt)
	if age > w.feed.cfg.StaleMax {
		return nil, ErrUnavailable
	}
	return s, nil
}

// await waits for the end of the next refresh and returns the snapshot to serve. After a
// failed refresh that is the previous one, if there is one.
func (w *window) await(ctx context.Context) (*snapshot, error) {
	f := w.feed
	if n := f.waiting.Add(1); n > int64(f.cfg.WaitersMax) {
		f.waiting.Add(-1)
		return nil, ErrBusy
	}
	defer f.waiting.Add(-1)

	w.mu.Lock()
	if s := w.current.Load(); s != nil && !s.parked {
		w.mu.Unlock() // refreshed since the caller looked
		return s, nil
	}
	out := w.outcome
	select {
	case w.wake <- struct{}{}:
	default:
	}
	w.mu.Unlock()

	timer := time.NewTimer(f.cfg.Timeout)
	defer timer.Stop()
	select {
	case <-out.done:
	case <-timer.C:
		return nil, fmt.Errorf("wait for the window: %w", ErrUnavailable)
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the window: %w", ctx.Err())
	case <-w.ctx.Done():
		return nil, fmt.Errorf("wait for the window: %w", ErrUnavailable)
	}
	if s := w.current.Load(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, out.err)
}

// run refreshes the window until it is stopped.
func (w *window) run() {
	defer w.end()
	cfg := &w.feed.cfg
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-timer.C:
		case <-w.ctx.Done():
			return
		}
		if w.parkIfIdle(time.Now()) {
			select {
			case <-w.wake:
			case <-w.ctx.Done():
				return
			}
		}
		start := time.Now()
		err := w.refresh(start)
		if w.ctx.Err() != nil {
			return
		}
		if err != nil {
			failures++
		} else {
			failures = 0
		}
		timer.Reset(pace(cfg.Refresh, time.Since(start), failures))
	}
}

// pace returns the pause after a refresh that took the given time. Refreshes start one
// interval apart but use at most half of the time. After failures the interval doubles up
// to retryMax.
func pace(interval, took time.Duration, failures int) time.Duration {
	for ; failures > 0 && interval < retryMax; failures-- {
		interval = min(2*interval, retryMax)
	}
	return max(interval-took, took, 0)
}

// parkIfIdle parks the window if there were no requests for IdleAfter. The next request
// wakes it.
func (w *window) parkIfIdle(now time.Time) bool {
	if now.UnixNano()-w.asked.Load() < int64(w.feed.cfg.IdleAfter) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.current.Load()
	if s == nil || w.feed.waiting.Load() > 0 {
		return false
	}
	select { // an earlier token belongs to a finished refresh
	case <-w.wake:
	default:
	}
	w.current.Store(s.park(true))
	return true
}

// refresh reads the window, publishes it and wakes waiting requests.
func (w *window) refresh(start time.Time) error {
	f := w.feed
	ctx, cancel := context.WithTimeout(w.ctx, refreshMax)
	defer cancel()
	previous := w.current.Load()
	var rows Rows
	if previous != nil {
		rows = Rows{ // the previous size and an eighth more
			Data: make([]byte, 0, len(previous.rows.Data)+len(previous.rows.Data)/8),
			Ends: make([]int, 0, previous.rows.Len()+1),
			Keys: make([]Key, 0, previous.rows.Len()+1),
		}
	}
	err := f.source.Read(ctx, Range{Args: w.args, Limit: f.cfg.Window}, &rows)
	var s *snapshot
	if err == nil {
		s, err = newSnapshot(rows, f.cfg.Window, f.cfg.Limit, f.fingerprint, f.cfg.CursorMax, start, previous)
	}
	f.counters.refreshed(time.Since(start), err)
	w.publish(s, err)
	return err
}

// publish makes s current and wakes waiting requests. After a failure, the previous
// snapshot may be served again.
func (w *window) publish(s *snapshot, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if previous := w.current.Load(); err != nil && previous != nil && previous.parked {
		s = previous.park(false)
	}
	if s != nil {
		w.current.Store(s)
	}
	w.logChange(err)
	w.failure = err
	w.outcome.err = err
	close(w.outcome.done)
	w.outcome = &outcome{done: make(chan struct{})}
}

// logChange logs the first of several failures, and the first success after them.
func (w *window) logChange(err error) {
	log := w.feed.cfg.Log.With("feed", w.feed.cfg.Name)
	switch {
	case err != nil && w.failure == nil && w.ctx.Err() == nil:
		log.Warn("window not refreshed; serving the last one", "error", err, "stale_max", w.feed.cfg.StaleMax)
	case err == nil && w.failure != nil:
		log.Info("window refreshed again")
	}
}

// end wakes waiting requests and waits for the sweeper.
func (w *window) end() {
	w.mu.Lock()
	w.outcome.err = ErrUnavailable
	close(w.outcome.done)
	w.outcome = &outcome{done: make(chan struct{})}
	sw := w.sweeper
	w.mu.Unlock()
	if sw != nil {
		sw.wait()
	}
}

// ready returns why the window is not fresh enough. It returns nil for a fresh window and
// for one that is not in use.
func (w *window) ready(now time.Time) error {
	s := w.current.Load()
	if s != nil && (s.parked || now.Sub(s.readAt) <= w.feed.cfg.StaleMax) {
		return nil
	}
	w.mu.Lock()
	failure := w.failure
	w.mu.Unlock()
	switch {
	case s == nil && failure == nil:
		return fmt.Errorf("window not read yet")
	case s == nil:
		return fmt.Errorf("window not read yet: %w", failure)
	case failure == nil:
		return fmt.Errorf("window is %s old, bound %s: the database is slow", now.Sub(s.readAt).Round(time.Second), w.feed.cfg.StaleMax)
	}
	return fmt.Errorf("window is %s old, bound %s: %w", now.Sub(s.readAt).Round(time.Second), w.feed.cfg.StaleMax, failure)
}

// cloneArgs copies args and their texts, which may be in a request's buffer.
func cloneArgs(args []string) []string {
	c := slices.Clone(args)
	for i := range c {
		c[i] = string(append([]byte(nil), c[i]...))
	}
	return c
}
