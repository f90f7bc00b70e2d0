package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Applied is what became of groups.
type Applied struct {
	Groups int          // that were taken, from the first on: at least one
	Dead   []DeadLetter // entries in them that will never be taken
}

// Apply takes groups of a name to where they belong, in order, all or none of those
// that it reports. It may be given groups again that it has taken, after a crash and
// after it returned an error: it must know them by their Spool and Sequence, or take
// them twice harmlessly. After an error it is called again, with one group at first;
// after a *Moved at once, with just the groups up to its Last.
type Apply func(ctx context.Context, groups []Group) (Applied, error)

// Drain has apply take the groups of a name, oldest first, until ctx ends; then it
// returns nil. What was taken is deleted from the spool. When apply fails it is called
// again after a pause that grows from 50 ms to 5 s, for as long as it takes.
//
// When a group is missing or damaged Drain returns an error that wraps
// ErrSpoolDamaged, which Ready and Stats repeat, and so does every later call: what
// is behind the damage stays where it is until it is repaired. Entries are kept
// meanwhile. bytes bounds what apply is given at once. One Drain of a name may run
// at a time.
func (s *Spool) Drain(ctx context.Context, name string, bytes int, apply Apply) error {
	s.mu.Lock()
	n := s.name(name)
	if n.drain == DrainRunning || n.drain == DrainRetrying {
		s.mu.Unlock()
		return fmt.Errorf("drain %s: it is being drained already", name)
	}
	n.drain, n.reason = DrainRunning, nil
	s.mu.Unlock()
	d := &drain{s: s, name: name, bytes: bytes, limit: bytes, apply: apply}
	err := d.run(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	n.drain, n.reason = DrainNone, nil
	if err == nil {
		return nil
	}
	n.drain, n.reason = DrainStopped, err
	s.cfg.Log.Error("the drain has stopped: look with spillway spool repair", "name", name, "error", err)
	return fmt.Errorf("drain %s: %w", name, err)
}

// drain drains one name.
type drain struct {
	s     *Spool
	name  string
	apply Apply
	bytes int    // given to apply at once, at most
	limit int    // now: less after an error
	upto  uint64 // read just the groups up to this one; 0: as limit says
	more  bool   // the last groups that were read were not all there are
	began time.Time

	failures int
	logged   time.Time
}

// run returns nil when ctx has ended, else what is damaged.
func (d *drain) run(ctx context.Context) error {
	for ctx.Err() == nil {
		groups, err := d.next(ctx)
		if err == nil && len(groups) > 0 {
			err = d.take(ctx, groups)
		}
		var moved *Moved
		switch {
		case err == nil:
			d.went()
		case ctx.Err() != nil:
		case errors.Is(err, ErrSpoolDamaged):
			return err
		case errors.As(err, &moved) && d.upto == 0:
			d.upto = moved.Last
		default:
			d.failed(err)
			sleepUntil(ctx, drainPause(d.failures))
		}
	}
	return nil
}

// drainEvery is the time between the starts of two calls of apply that take all there
// is: what comes meanwhile shares a transaction of the database.
const drainEvery = 100 * time.Millisecond

// next waits for groups and reads them.
func (d *drain) next(ctx context.Context) ([]Group, error) {
	s := d.s
	if wait := drainEvery - time.Since(d.began); !d.more && d.failures == 0 && d.upto == 0 && wait > 0 {
		sleepUntil(ctx, wait)
	}
	s.mu.Lock()
	n := s.name(d.name)
	after, last, id, grown := n.Drained, n.Last, n.ID, n.grown
	s.mu.Unlock()
	if after == last {
		select {
		case <-grown:
		case <-ctx.Done():
		}
		return nil, nil
	}
	var groups []Group
	at := after
	for {
		sealed, err := s.file.Read(ctx, d.name, at, d.limit)
		if err != nil {
			return nil, fmt.Errorf("read the spool: %w", err)
		}
		if len(groups) == 0 && len(sealed) > 0 {
			s.mu.Lock()
			n.Oldest = sealed[0].At
			s.mu.Unlock()
		}
		more, err := openGroups(sealed, d.name, id, at, last)
		groups = append(groups, more...)
		if len(groups) == 0 || err != nil && d.upto > 0 {
			return nil, err
		}
		at = groups[len(groups)-1].Sequence
		d.more = at < last
		switch {
		case d.upto == 0 || at == d.upto || at == last:
			return groups, nil
		case at > d.upto:
			return groups[:uint64(len(groups))-(at-d.upto)], nil
		}
	}
}

// openGroups opens the groups behind one, up to the first that is damaged. The error
// is about that one.
func openGroups(sealed []SealedGroup, name string, id [16]byte, after, last uint64) ([]Group, error) {
	var groups []Group
	for i := range sealed {
		if want := after + uint64(i) + 1; sealed[i].Sequence != want {
			return groups, fmt.Errorf("%w: groups %d to %d of %s are missing", ErrSpoolDamaged, want, sealed[i].Sequence-1, name)
		}
		g, err := sealed[i].Open()
		if err != nil {
			return groups, err
		}
		g.Spool = id
		groups = append(groups, g)
	}
	if len(sealed) == 0 {
		return nil, fmt.Errorf("%w: groups %d to %d of %s are missing", ErrSpoolDamaged, after+1, last, name)
	}
	return groups, nil
}

// take has groups applied and deletes them from the spool.
func (d *drain) take(ctx context.Context, groups []Group) error {
	d.began = time.Now()
	done, err := d.apply(ctx, groups)
	if err != nil {
		return err
	}
	if done.Groups < 1 || done.Groups > len(groups) {
		return fmt.Errorf("%d of %d groups were taken", done.Groups, len(groups))
	}
	d.upto = 0
	groups = groups[:done.Groups]
	r := &removal{Drained: Drained{Name: d.name, Upto: groups[len(groups)-1].Sequence, Dead: done.Dead}, groups: groups, done: make(chan struct{})}
	for _, g := range groups {
		for _, e := range g.Entries {
			if e.Key != "" {
				r.Keys = append(r.Keys, e.Key)
			}
		}
	}
	s := d.s
	s.mu.Lock()
	s.removed = append(s.removed, r)
	s.wake.Signal()
	s.mu.Unlock()
	<-r.done
	if r.err != nil {
		return fmt.Errorf("delete drained groups from the spool: %w", r.err)
	}
	return nil
}

// went notes that the drain goes on.
func (d *drain) went() {
	d.limit = min(d.limit*4, d.bytes)
	if d.failures == 0 {
		return
	}
	d.s.cfg.Log.Info("the drain goes on", "name", d.name, "attempts", d.failures+1)
	d.failures, d.logged = 0, time.Time{}
	d.s.setDrain(d.name, DrainRunning, nil)
}

// failed notes an attempt that failed. The next one takes one group: it may be one
// group alone, or their number, that cannot be taken.
func (d *drain) failed(err error) {
	d.failures++
	d.limit = 1
	d.upto = 0
	d.s.setDrain(d.name, DrainRetrying, err)
	if now := time.Now(); now.Sub(d.logged) > time.Minute {
		d.logged = now
		d.s.cfg.Log.Warn("the drain tries again", "name", d.name, "attempts", d.failures, "error", err)
	}
}

func (s *Spool) setDrain(name string, state DrainState, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.name(name)
	n.drain, n.reason = state, reason
	if state == DrainRetrying {
		n.retries++
	}
}

// drainPause is the pause after some failures in a row, half of it random.
func drainPause(failures int) time.Duration {
	const first, most = 50 * time.Millisecond, 5 * time.Second
	full := min(first<<min(failures-1, 10), most)
	return full - time.Duration(rand.Float64()*float64(full)/2)
}

func sleepUntil(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
