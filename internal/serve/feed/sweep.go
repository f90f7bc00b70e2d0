package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// sweeper counts the rows beyond one window for deep offsets. It extends the index as far
// as requests need, one statement at a time. It then recounts segments, the oldest count
// first, within Config.SweepShare of one connection's time. It starts with the first deep
// offset and rests if there was none for sweepIdle.
type sweeper struct {
	w    *window
	done sync.WaitGroup

	mu      sync.Mutex // guards what follows
	index   offsets
	target  int           // the index must reach this offset
	asked   time.Time     // the last deep offset
	grown   chan struct{} // closed and replaced whenever the index grows or fails
	failure error         // of the last walk
	wake    chan struct{}
}

// errReset means that the index no longer fits the feed and must be rebuilt.
var errReset = errors.New("the rows beyond the window changed too much")

// locate finds the row at an offset beyond the window. It waits until the sweeper has
// counted that far or ctx ends.
func (w *window) locate(ctx context.Context, s *snapshot, offset int) (location, error) {
	sw := w.sweep()
	f := w.feed
	if n := f.waiting.Add(1); n > int64(f.cfg.WaitersMax) {
		f.waiting.Add(-1)
		return location{}, ErrBusy
	}
	defer f.waiting.Add(-1)
	for {
		sw.mu.Lock()
		sw.asked = time.Now()
		at, ok := sw.locateLocked(s, offset)
		grown := sw.grown
		if !ok {
			sw.target = max(sw.target, offset)
			sw.wakeLocked()
		}
		sw.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			sw.mu.Lock()
			defer sw.mu.Unlock()
			return location{}, fmt.Errorf("%w: %d so far", ErrCounting, sw.index.rows())
		}
		sw.mu.Lock()
		err := sw.failure
		sw.mu.Unlock()
		if err != nil {
			return location{}, fmt.Errorf("count rows up to offset %d: %w", offset, err)
		}
		if latest := w.current.Load(); latest != nil {
			s = latest // the anchor may have moved
		}
	}
}

// sweep returns the window's sweeper, starting it on first use.
func (w *window) sweep() *sweeper {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sweeper == nil {
		w.sweeper = &sweeper{w: w, grown: make(chan struct{}), wake: make(chan struct{}, 1)}
		w.sweeper.done.Go(w.sweeper.run)
	}
	return w.sweeper
}

func (sw *sweeper) wait() { sw.done.Wait() }

// locateLocked finds offset from the anchor's position in the snapshot.
func (sw *sweeper) locateLocked(s *snapshot, offset int) (location, bool) {
	anchorAt, ok := s.index[sw.index.anchor]
	if !ok {
		return location{}, false
	}
	return sw.index.locate(offset, anchorAt, s.readAt)
}

func (sw *sweeper) wakeLocked() {
	select {
	case sw.wake <- struct{}{}:
	default:
	}
}

// run counts until the window ends.
func (sw *sweeper) run() {
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
		start := time.Now()
		urgent, err := sw.step(start)
		wake = sw.wake
		if err != nil {
			wake = nil // pause, even if requests wait
		}
		sw.mu.Lock()
		sw.failure = err
		close(sw.grown)
		sw.grown = make(chan struct{})
		sw.mu.Unlock()
		timer.Reset(sw.pause(urgent, time.Since(start), err))
	}
}

// pause returns the pause after a step that took the given time.
func (sw *sweeper) pause(urgent bool, took time.Duration, err error) time.Duration {
	switch {
	case err != nil:
		return retryMax
	case urgent:
		return 0
	}
	share := sw.w.feed.cfg.SweepShare
	return max(time.Duration(float64(took)*(1/share-1)), sw.w.feed.cfg.Refresh)
}

// step keeps the anchor in the window, extends the index towards the target, or recounts
// old segments. It reports whether more work is urgent.
func (sw *sweeper) step(now time.Time) (urgent bool, err error) {
	s := sw.w.current.Load()
	if s == nil || !s.full {
		return false, nil // the window holds all rows
	}
	if s.parked {
		return false, nil
	}
	if err := sw.anchor(s); err != nil {
		if errors.Is(err, errReset) {
			sw.mu.Lock()
			sw.index = offsets{}
			sw.mu.Unlock()
			return true, nil
		}
		return false, err
	}
	sw.mu.Lock()
	_, reached := sw.locateLocked(s, sw.target)
	from, to, small := sw.index.small(smallMax)
	idle := now.Sub(sw.asked) > sweepIdle
	sw.mu.Unlock()
	switch {
	case !reached:
		return sw.extend()
	case idle:
		return false, nil
	case small:
		return false, sw.recount(from, to)
	}
	sw.mu.Lock()
	from, to, ok := sw.index.stalest()
	sw.mu.Unlock()
	if !ok {
		return false, nil
	}
	return false, sw.recount(from, to)
}

// anchor sets the anchor, and raises it as rows arrive above it.
func (sw *sweeper) anchor(s *snapshot) error {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	o := &sw.index
	// In the lower half of the window, with room for rows that arrive until the next step.
	high, low := s.rows.Len()/4, s.rows.Len()/2
	if !o.anchored {
		o.anchored, o.anchor = true, s.rows.Keys[high]
		return nil
	}
	at, ok := s.index[o.anchor]
	switch {
	case ok && at > low:
		o.raise(s.rows.Keys, high, at, s.readAt)
	case !ok:
		return sw.bridgeLocked(s.rows.Keys[high], s.readAt)
	}
	return nil
}

// bridgeLocked recovers a lost anchor: it counts from a row of the current window down to
// it. It releases the lock while the database works.
func (sw *sweeper) bridgeLocked(top Key, readAt time.Time) error {
	old := sw.index.anchor
	sw.mu.Unlock()
	segments, err := sw.walk(top, old)
	sw.mu.Lock()
	if err != nil {
		return err
	}
	if len(segments) == 0 || sw.index.anchor != old {
		return errReset // the anchor's row and all above it are gone
	}
	segments[len(segments)-1].last = old
	sw.index.replace(0, 0, segments)
	sw.index.anchor = top
	return nil
}

// extend counts the next segment after the index.
func (sw *sweeper) extend() (urgent bool, err error) {
	sw.mu.Lock()
	bottom := sw.index.bottom()
	sw.mu.Unlock()
	walk, err := sw.keys(Range{After: bottom, Limit: segmentTarget})
	if err != nil {
		return false, err
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.index.extend(walk, segmentTarget, walk.ReadAt)
	return true, nil
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
	fresh, err := sw.walk(top, until)
	if err != nil {
		return err
	}
	if len(fresh) > 0 && !toEnd {
		fresh[len(fresh)-1].last = last // the bound stays; its row may be gone
	}
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.index.replace(from, to, fresh)
	return nil
}

// walk counts the rows after one key, up to and including another, in segments.
func (sw *sweeper) walk(after, until Key) ([]segment, error) {
	var segments []segment
	for {
		w, err := sw.keys(Range{After: after, Until: until, Limit: segmentTarget})
		if err != nil {
			return nil, err
		}
		if w.Count > 0 {
			segments = append(segments, segment{keys: w.Keys, last: w.Last, count: w.Count, readAt: w.ReadAt})
			after = w.Last
		}
		if w.Count < segmentTarget {
			return segments, nil
		}
	}
}

// keys runs one statement for the sweeper, and sets ReadAt.
func (sw *sweeper) keys(r Range) (Walk, error) {
	f := sw.w.feed
	ctx, cancel := context.WithTimeout(sw.w.ctx, refreshMax)
	defer cancel()
	if err := f.cfg.Gate.enter(ctx); err != nil {
		return Walk{}, err
	}
	defer f.cfg.Gate.leave()
	r.Args = sw.w.args
	start := time.Now()
	w, err := f.source.Keys(ctx, r, offsetStride)
	if err != nil {
		return Walk{}, fmt.Errorf("count rows: %w", err)
	}
	w.ReadAt = readAt(start, w.ReadAt)
	return w, nil
}
