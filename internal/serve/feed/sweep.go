package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"spillway/internal/serve/queue"
)

const (
	sweepIdle = time.Minute      // time without deep offsets after which rows are not counted again
	sweepKeep = 10 * time.Minute // time without deep offsets after which the counts are freed
	sweepRest = time.Second      // between looks of a sweeper that has nothing to do
)

// sweeper counts the rows beyond one window for deep offsets. It extends the index as far
// as requests need, one statement at a time. It then recounts segments, the oldest count
// first. All counting of a feed shares a budget, Config.SweepShare of one connection's time,
// of which half is left to extensions. It starts with the first deep offset and ends if
// there was none for sweepKeep. If the counts of a feed need more than three quarters of
// Config.SweepBytes, sweepIdle is enough; if they need all of it, no index is extended.
type sweeper struct {
	w       *window
	charged int64 // part of Feed.counted; only run uses it

	mu      sync.Mutex // guards what follows
	index   offsets
	walked  int           // memory of segments that are not in the index yet
	largest int           // memory of the largest segment so far
	target  int           // the index must reach this offset
	full    bool          // there is no memory to reach it
	asked   time.Time     // the last deep offset
	grown   chan struct{} // closed and replaced whenever the index grows or fails; closed at the end
	failure error         // of the last walk
	wake    chan struct{}
}

// errReset means that the index no longer fits the feed and must be rebuilt.
var errReset = errors.New("the rows beyond the window changed too much")

// locate finds the row at an offset beyond the window. It waits until the sweeper has
// counted that far or ctx ends.
func (w *window) locate(ctx context.Context, s *snapshot, offset int) (location, error) {
	if err := w.enter(); err != nil {
		return location{}, err
	}
	defer w.leave()
	for {
		sw := w.sweep()
		if sw == nil {
			return location{}, errDropped
		}
		at, ok, grown, err := sw.ask(s, offset)
		if ok || err != nil {
			return at, err
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return location{}, sw.counting("")
		}
		if err := sw.failed(); err != nil {
			return location{}, fmt.Errorf("count rows up to offset %d: %w", offset, err)
		}
		s = w.current.Load() // the anchor may have moved
		if s == nil || s.parked || !s.full {
			return location{}, errDropped // nothing is counted for it
		}
	}
}

// sweep returns the window's sweeper, starting it on first use; nil if the window has ended.
func (w *window) sweep() *sweeper {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil
	}
	if w.sweeper == nil {
		w.sweeper = &sweeper{w: w, grown: make(chan struct{}), wake: make(chan struct{}, 1)}
		w.sweeps.Go(w.sweeper.run)
	}
	return w.sweeper
}

// ask locates an offset, or makes the sweeper count up to it. grown is closed when it is
// worth trying again.
func (sw *sweeper) ask(s *snapshot, offset int) (at location, ok bool, grown <-chan struct{}, err error) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.asked = time.Now()
	if at, ok = sw.locateLocked(s, offset); ok {
		return at, true, nil, nil
	}
	sw.target = max(sw.target, offset)
	if sw.full {
		return at, false, nil, sw.countingLocked("; sweep_bytes allows no more")
	}
	select {
	case sw.wake <- struct{}{}:
	default:
	}
	return at, false, sw.grown, nil
}

// counting returns ErrCounting with the number of rows counted.
func (sw *sweeper) counting(why string) error {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return sw.countingLocked(why)
}

func (sw *sweeper) countingLocked(why string) error {
	return fmt.Errorf("%w: %d so far%s", ErrCounting, sw.index.rows(), why)
}

func (sw *sweeper) failed() error {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return sw.failure
}

// locateLocked finds offset from the anchor's position in the snapshot.
func (sw *sweeper) locateLocked(s *snapshot, offset int) (location, bool) {
	anchorAt, ok := s.index[sw.index.anchor]
	if !ok {
		return location{}, false
	}
	return sw.index.locate(offset, anchorAt, s.readAt)
}

// reachedLocked reports whether the index reaches the target. The window itself may, and no
// request may have set it yet.
func (sw *sweeper) reachedLocked(s *snapshot) bool {
	_, ok := sw.locateLocked(s, sw.target)
	return ok || sw.target <= s.rows.Len()
}

// run counts until the window ends or nobody needs the counts.
func (sw *sweeper) run() {
	defer sw.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	wake := sw.wake
	for {
		select {
		case <-timer.C:
		case <-wake:
		case <-sw.w.ctx.Done():
			return
		}
		if sw.unused(time.Now()) {
			return
		}
		pause, err := sw.step()
		wake = sw.wake
		if err != nil {
			wake, pause = nil, retryMax // even if requests wait
		}
		sw.mu.Lock()
		sw.walked = 0
		sw.chargeLocked(0)
		sw.failure = err
		close(sw.grown)
		sw.grown = make(chan struct{})
		sw.mu.Unlock()
		timer.Reset(pause)
	}
}

// unused reports whether the counts were not needed for so long that they are freed.
func (sw *sweeper) unused(now time.Time) bool {
	keep := sweepKeep
	if limit := int64(sw.w.feed.cfg.SweepBytes); sw.w.feed.counted.Load() > limit-limit/4 {
		keep = sweepIdle
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	return now.Sub(sw.asked) > keep && !sw.asked.IsZero()
}

// end frees the counts. Requests that wait start another sweeper.
func (sw *sweeper) end() {
	sw.w.mu.Lock()
	sw.w.sweeper = nil
	sw.w.mu.Unlock()
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.index, sw.walked = offsets{}, 0
	sw.chargeLocked(0)
	close(sw.grown)
}

// chargeLocked accounts for the memory of the index and of what was walked. To keep to the
// limit, it removes segments from the end of the index, except the first ones, keep in number.
// It reports whether that was enough.
func (sw *sweeper) chargeLocked(keep int) bool {
	f := sw.w.feed
	for {
		now := int64(sw.index.bytes + sw.walked)
		f.counted.Add(now - sw.charged)
		sw.charged = now
		if f.counted.Load() <= int64(f.cfg.SweepBytes) {
			return true
		}
		if len(sw.index.segments) <= keep {
			return false
		}
		sw.index.trim()
	}
}

// step keeps the anchor in the window, extends the index towards the target, or recounts
// old segments. It returns the pause before the next step.
func (sw *sweeper) step() (pause time.Duration, err error) {
	s := sw.w.current.Load()
	if s == nil || !s.full || s.parked {
		return sweepRest, nil // the window holds all rows, or is not in use
	}
	sw.mu.Lock()
	reached := sw.reachedLocked(s)
	idle := time.Since(sw.asked) > sweepIdle
	sw.mu.Unlock()
	if reached && idle {
		return sweepRest, nil
	}
	if err := sw.anchor(s); err != nil {
		if errors.Is(err, errReset) {
			sw.mu.Lock()
			sw.index = offsets{}
			sw.mu.Unlock()
			return 0, nil
		}
		return 0, err
	}
	sw.mu.Lock()
	reached = sw.reachedLocked(s)
	sw.full = !reached && !sw.roomLocked()
	full := sw.full
	from, to, found := sw.index.small(smallMax)
	if !found {
		from, to, found = sw.index.stalest()
	}
	sw.mu.Unlock()
	switch {
	case !reached && !full:
		return 0, sw.extend()
	case idle || !found:
		return sweepRest, nil
	}
	budget, refresh := sw.w.feed.sweeps, sw.w.feed.cfg.Refresh
	if wait := budget.delay(time.Now(), budget.most()/2); wait > 0 {
		return max(wait, refresh), nil // the rest is for extensions
	}
	return refresh, sw.recount(from, to)
}

// roomLocked reports whether the limit of memory leaves room for one more segment, even if it
// is as large as any before or twice as large as the last one. Otherwise it would be counted
// only to be trimmed.
func (sw *sweeper) roomLocked() bool {
	more := max(4<<10, sw.largest)
	if n := len(sw.index.segments); n > 0 {
		more = max(more, 2*sw.index.segments[n-1].bytes())
	}
	return sw.w.feed.counted.Load()+int64(more) <= int64(sw.w.feed.cfg.SweepBytes)
}

// anchor sets the anchor, and raises it as rows arrive above it.
func (sw *sweeper) anchor(s *snapshot) error {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	o := &sw.index
	// In the lower half of the window, with room for rows that arrive until the next step.
	high, low := s.rows.Len()/4, s.rows.Len()/2
	if !o.anchored {
		o.anchored, o.anchor = true, s.rows.Keys[high].clone()
		return nil
	}
	at, ok := s.index[o.anchor]
	switch {
	case ok && at > low:
		o.raise(s.rows.Keys, high, at, s.readAt)
	case !ok:
		return sw.bridgeLocked(s.rows.Keys[high].clone())
	}
	return nil
}

// bridgeLocked recovers a lost anchor: it counts from a row of the current window down to
// it. It releases the lock while the database works.
func (sw *sweeper) bridgeLocked(top Key) error {
	old := sw.index.anchor
	sw.mu.Unlock()
	segments, whole, err := sw.walk(top, old, 0)
	sw.mu.Lock()
	if err != nil {
		return err
	}
	if len(segments) == 0 || !whole || sw.index.anchor != old {
		return errReset // the anchor's row and all above it are gone, or it is too far away
	}
	segments[len(segments)-1].last = old
	sw.index.replace(0, 0, segments)
	sw.index.anchor = top
	return nil
}

// extend counts the next segment after the index.
func (sw *sweeper) extend() error {
	sw.mu.Lock()
	bottom := sw.index.bottom()
	sw.mu.Unlock()
	walk, err := sw.keys(Range{After: bottom, Limit: segmentTarget})
	if err != nil {
		return err
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.index.extend(walk, segmentTarget, walk.ReadAt)
	if n := len(sw.index.segments); n > 0 {
		sw.largest = max(sw.largest, sw.index.segments[n-1].bytes())
	}
	return nil
}

// recount counts the segments [from, to) again.
func (sw *sweeper) recount(from, to int) error {
	sw.mu.Lock()
	top, last := sw.index.top(from), sw.index.segments[to-1].last
	toEnd := sw.index.complete && to == len(sw.index.segments)
	sw.mu.Unlock()
	until := last
	if toEnd {
		until = "" // rows may have been added after the last one
	}
	fresh, whole, err := sw.walk(top, until, from)
	if err != nil {
		return err
	}
	if len(fresh) > 0 && whole && !toEnd {
		fresh[len(fresh)-1].last = last // the bound stays; its row may be gone
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if to = min(to, len(sw.index.segments)); !whole {
		to = len(sw.index.segments) // there is no memory to reach what follows
	}
	sw.index.replace(from, to, fresh)
	sw.index.complete = whole && (toEnd || sw.index.complete)
	return nil
}

// walk counts the rows after one key, up to and including another, in segments. To keep to the
// limit of memory, it removes segments of the index after the first ones, keep in number. It
// reports whether it got to the end within the limit.
func (sw *sweeper) walk(after, until Key, keep int) (segments []segment, whole bool, err error) {
	for {
		w, err := sw.keys(Range{After: after, Until: until, Limit: segmentTarget})
		if err != nil {
			return nil, false, err
		}
		if w.Count > 0 {
			s := segment{keys: w.Keys, last: w.Last, count: w.Count, readAt: w.ReadAt}
			segments = append(segments, s)
			after = w.Last
			sw.mu.Lock()
			sw.walked += s.bytes()
			fits := sw.chargeLocked(keep)
			sw.mu.Unlock()
			if !fits {
				return segments, false, nil
			}
		}
		if w.Count < segmentTarget {
			return segments, true, nil
		}
	}
}

// keys runs one statement within the feed's budget, and sets ReadAt.
func (sw *sweeper) keys(r Range) (Walk, error) {
	f := sw.w.feed
	if err := f.sweeps.enter(sw.w.ctx); err != nil {
		return Walk{}, err
	}
	began := time.Now()
	defer func() { f.sweeps.leave(time.Now(), time.Since(began)) }()
	ctx, cancel := context.WithTimeout(sw.w.ctx, refreshMax)
	defer cancel()
	leave, err := f.cfg.Gate.Enter(ctx, 0)
	if err != nil {
		return Walk{}, err
	}
	defer leave()
	began = time.Now()
	r.Args = sw.w.args
	w, err := f.source.Keys(ctx, r, offsetStride)
	if err != nil {
		return Walk{}, fmt.Errorf("count rows: %w", err)
	}
	w.ReadAt = readAt(began, w.ReadAt)
	return w, nil
}

// creditSpan is the time for which a share that is not used is kept.
const creditSpan = time.Minute

// budget limits work, one piece at a time, to a share of the time. What is not used grows to
// a credit of up to creditSpan's share. Its methods may be called concurrently.
type budget struct {
	share float64
	turn  chan struct{} // one token: somebody works

	mu     sync.Mutex
	credit time.Duration // negative: to be paid back by waiting
	at     time.Time     // of credit
}

func newBudget(share float64, now time.Time) *budget {
	b := &budget{share: share, turn: make(chan struct{}, 1), at: now}
	b.credit = b.most()
	return b
}

// most returns the largest credit.
func (b *budget) most() time.Duration { return time.Duration(b.share * float64(creditSpan)) }

// delay returns how long to wait until the credit is at least reserve; 0: it is.
func (b *budget) delay(now time.Time, reserve time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.growLocked(now)
	if b.credit >= reserve {
		return 0
	}
	return time.Duration(float64(reserve-b.credit)/b.share) + time.Microsecond
}

func (b *budget) growLocked(now time.Time) {
	b.credit = min(b.most(), b.credit+time.Duration(b.share*float64(now.Sub(b.at))))
	b.at = now
}

// enter waits until work may start. After nil, the caller calls leave.
func (b *budget) enter(ctx context.Context) error {
	for {
		if queue.Sleep(ctx, b.delay(time.Now(), 0)); ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case b.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if b.delay(time.Now(), 0) == 0 {
			return nil
		}
		<-b.turn // another one has used the credit
	}
}

// leave ends the work and charges the time that it took.
func (b *budget) leave(now time.Time, took time.Duration) {
	b.mu.Lock()
	b.growLocked(now)
	b.credit -= took
	b.mu.Unlock()
	<-b.turn
}
