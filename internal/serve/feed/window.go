package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

const (
	retryMax     = time.Second     // between attempts while the database is down
	refreshMax   = 5 * time.Second // timeout of one refresh
	askedPortion = 8               // asked is written at most this often per IdleAfter
)

// errDropped means that the window was removed, parked or read anew before the request began to
// wait. The request looks for a window again.
var errDropped = errors.New("the window was removed")

// window keeps one snapshot fresh while requests arrive. One goroutine, run, refreshes it.
// Requests read current, and wait in await if it cannot be served.
//
//	 ┌────────── refresh every interval ─────────┐
//	 ▼                                           │
//	active ── no request for IdleAfter ──▶ parked ── await ──▶ active
//
// It is removed for another value while nobody waits for it and it has no listeners, or if the
// database rejects its value. It is also removed if nobody asks any more, and it was never read or
// its rows are too old to be served. While it has listeners it is active. Whether to read it is
// decided when its turn has come.
type window struct {
	feed    *Feed
	name    string // encodes args
	args    []string
	ctx     context.Context // the window's lifetime
	stop    context.CancelFunc
	wake    chan struct{}            // one token: leave the parked state
	current atomic.Pointer[snapshot] // nil before the first refresh
	asked   atomic.Int64             // Unix nanoseconds of about the last request
	event   atomic.Pointer[Event]    // the last one; nil without listeners
	charged atomic.Int64             // part of Feed.held
	took    atomic.Int64             // nanoseconds of the last statement

	_     [64]byte // hits changes with every request, what is above seldom
	hits  atomic.Uint64
	older atomic.Uint64 // requests for pages that it does not hold

	requests uint64 // of both kinds, halved once per period; guarded by Feed.mu, as is
	seen     uint64 // how many of them requests contains

	mu        sync.Mutex // guards what follows
	waiting   int        // requests
	listeners int
	opener    string   // user of the first of the listeners
	gone      bool     // no more requests may wait
	outcome   *outcome // of the current or next refresh
	failure   error    // of the last refresh; nil after a success
	sweeper   *sweeper // nil unless rows are counted for deep offsets
	sweeps    sync.WaitGroup
}

// outcome is the result of one refresh, for the requests that wait for it.
type outcome struct {
	done chan struct{}
	err  error
}

func newWindow(f *Feed, name string, args []string, now time.Time) *window {
	w := &window{
		feed:    f,
		name:    name,
		args:    param.CloneArgs(args),
		wake:    make(chan struct{}, 1),
		outcome: &outcome{done: make(chan struct{})},
	}
	w.ctx, w.stop = context.WithCancel(f.base)
	w.asked.Store(now.UnixNano())
	return w
}

// resident describes the window to the admission. The feed's lock is held.
func (w *window) resident() resident {
	w.mu.Lock()
	busy := w.neededLocked()
	w.mu.Unlock()
	return resident{requests: w.requests + w.hits.Load() + w.older.Load() - w.seen, asked: w.asked.Load(), busy: busy, bytes: w.charged.Load()}
}

// age halves the count of requests. The feed's lock is held.
func (w *window) age(halvings uint) {
	all := w.hits.Load() + w.older.Load()
	w.requests, w.seen = (w.requests+all-w.seen)>>halvings, all
}

// get returns the snapshot to serve at now, and waits for one if necessary. Its error is
// errDropped if the window was removed.
func (w *window) get(ctx context.Context, now time.Time) (*snapshot, error) {
	w.ask(now)
	s := w.current.Load()
	if s == nil || s.parked {
		var err error
		if s, err = w.await(ctx); err != nil {
			return nil, err
		}
		now = time.Now()
	}
	if w.tooOld(s, now) {
		return nil, w.unavailable()
	}
	return s, nil
}

// unavailable returns why there are no rows that may be served.
func (w *window) unavailable() error {
	if w.feed.pauses.Has(w.name) {
		return ErrPaused
	}
	return ErrUnavailable
}

// ask notes a request. Not every request writes, because all cores share the cache line.
func (w *window) ask(now time.Time) {
	if n := now.UnixNano(); n-w.asked.Load() > int64(w.feed.cfg.IdleAfter)/askedPortion {
		w.asked.Store(n)
	}
}

func (w *window) tooOld(s *snapshot, now time.Time) bool {
	return now.Sub(s.readAt) > w.feed.cfg.StaleMax
}

// enter registers a request that waits. After nil, the window stays until leave.
func (w *window) enter() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.gone:
		return errDropped
	case w.waiting >= w.feed.cfg.WaitersMax:
		return ErrBusy
	}
	w.waiting++
	return nil
}

func (w *window) leave() {
	w.mu.Lock()
	w.waiting--
	last := w.waiting == 0
	w.mu.Unlock()
	if last {
		w.feed.shrink()
	}
}

// neededLocked reports whether requests wait for the window, or it has listeners.
func (w *window) neededLocked() bool { return w.waiting > 0 || w.listeners > 0 }

// close ends the window for new requests, unless it is needed. The caller removes it.
func (w *window) close() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.neededLocked() {
		return false
	}
	w.gone = true
	return true
}

// await waits for the end of the next refresh and returns the snapshot to serve. After a
// failed refresh that is the previous one, if there is one.
func (w *window) await(ctx context.Context) (*snapshot, error) {
	if err := w.enter(); err != nil {
		return nil, err
	}
	defer w.leave()
	w.mu.Lock()
	if s := w.current.Load(); s != nil && !s.parked {
		w.mu.Unlock() // refreshed since the caller looked
		return s, nil
	}
	if w.gone {
		w.mu.Unlock()
		return nil, errDropped
	}
	out := w.outcome
	select {
	case w.wake <- struct{}{}:
	default:
	}
	w.mu.Unlock()

	select {
	case <-out.done:
		return w.served(out)
	case <-time.After(w.feed.cfg.Timeout):
		return nil, fmt.Errorf("wait for the window: %w", ErrUnavailable)
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the window: %w", ctx.Err())
	}
}

// served returns what the requests that waited for out get.
func (w *window) served(out *outcome) (*snapshot, error) {
	s := w.current.Load()
	switch {
	case errors.Is(out.err, errDropped):
		return nil, errDropped
	case s != nil && !w.tooOld(s, time.Now()):
		return s, nil
	case errors.Is(out.err, param.ErrValue):
		return nil, out.err
	case s != nil:
		return nil, w.unavailable()
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, out.err)
}

// run refreshes the window until it is stopped or of no use.
func (w *window) run() {
	defer w.end()
	cfg := &w.feed.cfg
	timer := time.NewTimer(0)
	defer timer.Stop()
	var wake <-chan struct{} // of a window that nobody needs
	var usual time.Duration  // of the last statement that succeeded
	for failures := 0; ; {
		select {
		case <-timer.C:
		case <-wake:
		case <-w.ctx.Done():
			return
		}
		if w.abandoned(time.Now()) {
			return
		}
		wake = nil
		took, err := w.takeTurn()
		switch {
		case w.ctx.Err() != nil || w.rejected(err):
			return
		case errors.Is(err, errNotNeeded):
			wake = w.wake
			if timer.Stop(); w.current.Load() == nil {
				timer.Reset(cfg.IdleAfter) // it is abandoned then
			} else if len(w.args) > 0 {
				timer.Reset(cfg.StaleMax) // or then
			}
			continue
		case err != nil:
			failures++
			timer.Reset(pace(cfg.Refresh, took, retryMax, failures))
		default:
			failures = 0
			timer.Reset(pace(cfg.Refresh, took, 2*cmp.Or(usual, took), failures))
			usual = took
		}
	}
}

// errNotNeeded means that the window was not read, because nobody needs its rows now.
var errNotNeeded = errors.New("nobody needs the window")

// takeTurn waits for the feed's turn and then refreshes the window, unless nobody needs its rows
// any more. took is the time of the statement.
func (w *window) takeTurn() (took time.Duration, err error) {
	if w.parkIfIdle(time.Now()) {
		return 0, errNotNeeded
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	turns := w.feed.cfg.Refreshes
	if len(w.args) == 0 {
		turns = nil
	}
	leave, err := turns.Enter(ctx, 0)
	if err != nil {
		return 0, err // the window ends
	}
	defer leave()
	if w.parkIfIdle(time.Now()) {
		cancel() // its time says nothing about the others
		return 0, errNotNeeded
	}
	return w.refresh(ctx)
}

// rejected reports whether the database rejects the window's value. Rows that were read
// earlier are served as long as after other errors.
func (w *window) rejected(err error) bool {
	s := w.current.Load()
	return errors.Is(err, param.ErrValue) && (s == nil || w.tooOld(s, time.Now()))
}

// abandoned reports whether nobody asks for the window's value any more, and it was never read
// or its rows are too old to be served. It then accepts no more requests.
func (w *window) abandoned(now time.Time) bool {
	idle := now.UnixNano()-w.asked.Load() >= int64(w.feed.cfg.IdleAfter)
	s := w.current.Load()
	return idle && len(w.args) > 0 && (s == nil || s.parked && w.tooOld(s, now)) && w.close()
}

// pace returns the pause after a refresh whose statement took the given time. Refreshes start
// one interval apart but use at most half of the time. After failures the interval doubles up to
// retryMax. A statement that took longer than most has waited for a lock, or for a database that
// was down, and the pause is no longer than most: the next one may be fast.
func pace(interval, took, most time.Duration, failures int) time.Duration {
	for ; failures > 0 && interval < retryMax; failures-- {
		interval = min(2*interval, retryMax)
	}
	return max(interval-took, min(took, most), 0)
}

// parkIfIdle reports whether nobody needs the window's rows at now: no request waits, there are
// no listeners, and it was not read, is parked, or had no requests for IdleAfter. It is then
// parked, and the next request wakes it. A feed's only window is read in any case.
func (w *window) parkIfIdle(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, idle := w.current.Load(), now.UnixNano()-w.asked.Load() >= int64(w.feed.cfg.IdleAfter)
	switch {
	case w.neededLocked(), s == nil && len(w.args) == 0, s != nil && !s.parked && !idle:
		return false
	case s != nil && !s.parked:
		w.current.Store(s.park(true))
	}
	select { // an earlier token belongs to a finished refresh
	case <-w.wake:
	default:
	}
	return true
}

// refresh reads the window, publishes it and wakes waiting requests. took is the time of the
// statement, without a wait for a connection.
func (w *window) refresh(ctx context.Context) (took time.Duration, err error) {
	f, start := w.feed, time.Now()
	if f.pauses.Has(w.name) {
		w.publish(nil, ErrPaused)
		return 0, ErrPaused
	}
	ctx, cancel := context.WithTimeout(ctx, refreshMax)
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
	err = f.source.Read(ctx, Range{Args: w.args, Limit: f.cfg.Window}, &rows)
	start = readAt(start, rows.Began)
	var s *snapshot
	switch at := readAt(start, rows.ReadAt); {
	case err != nil:
	case previous != nil && at.Before(previous.readAt):
		s = previous.park(false) // a replica's rows are older: the window does not go back
	default:
		s, err = newSnapshot(rows, f.cfg.Window, f.cfg.Limit, f.fingerprint, f.cfg.CursorMax, f.cfg.Envelope, at, previous)
	}
	took = time.Since(start)
	w.took.Store(int64(took))
	f.counters.refreshed(took, err)
	if s != nil {
		w.charge(s.bytes)
	}
	w.publish(s, err)
	f.shrink()
	return took, err
}

// charge accounts for the memory of the window.
func (w *window) charge(bytes int64) { w.feed.held.Add(bytes - w.charged.Swap(bytes)) }

// publish makes s current and wakes waiting requests. After a failure, the previous
// snapshot may be served again.
func (w *window) publish(s *snapshot, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	previous := w.current.Load()
	if err != nil && previous != nil && previous.parked {
		s = previous.park(false)
	}
	if s != nil {
		w.current.Store(s)
		if previous != nil {
			previous.release(s)
		}
		w.announceLocked(s)
	}
	w.logChange(err)
	w.failure = err
	w.outcome.err = err
	close(w.outcome.done)
	w.outcome = &outcome{done: make(chan struct{})}
}

// logChange logs the first of several failures, and the first success after them. A client's
// value that was never read is not worth a line.
func (w *window) logChange(err error) {
	log := w.feed.cfg.Log.With("feed", w.feed.cfg.Name)
	switch {
	case errors.Is(err, ErrPaused), w.current.Load() == nil && errors.Is(err, param.ErrValue):
	case err != nil && w.failure == nil && w.ctx.Err() == nil:
		log.Warn("window not refreshed; serving the last one", "error", err, "stale_max", w.feed.cfg.StaleMax)
	case err == nil && w.failure != nil:
		log.Info("window refreshed again")
	}
}

// end removes the window, sends waiting requests to another one, and waits for the sweeper.
func (w *window) end() {
	w.feed.drop(w)
	w.mu.Lock()
	w.gone = true
	w.announceLocked(nil)
	w.outcome.err = errDropped
	close(w.outcome.done)
	w.outcome = &outcome{done: make(chan struct{})}
	w.mu.Unlock()
	if s := w.retire(); s != nil {
		s.release(nil)
	}
	w.charge(0)
	w.sweeps.Wait()
}

// retire has Repeat.Now find nothing in the window any more, and returns its last snapshot, or nil.
func (w *window) retire() *snapshot {
	s := w.current.Load()
	if s != nil {
		w.current.Store(s.park(true))
	}
	return s
}

// ready returns why the window is not fresh enough, without texts of the database. It
// returns nil for a fresh window and for one that is not in use.
func (w *window) ready(now time.Time) error {
	s := w.current.Load()
	if s != nil && (s.parked || !w.tooOld(s, now)) {
		return nil
	}
	w.mu.Lock()
	failed := w.failure != nil
	w.mu.Unlock()
	reason := "the database is slow"
	if failed {
		reason = "refreshes fail; the log says why"
	}
	if s == nil {
		return &queue.Unready{Why: fmt.Errorf("window not read yet: %s", reason)}
	}
	age := now.Sub(s.readAt).Round(time.Second)
	return &queue.Unready{Why: fmt.Errorf("window is %s old, bound %s: %s", age, w.feed.cfg.StaleMax, reason)}
}
