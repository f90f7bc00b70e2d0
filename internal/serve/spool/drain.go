package spool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// DrainState is what the drain of a name does.
type DrainState string

// The states of a drain.
const (
	DrainNone     DrainState = "none"     // nothing drains the name
	DrainRunning  DrainState = "running"  // storing groups, or waiting for some
	DrainRetrying DrainState = "retrying" // the last attempt failed; the next follows after a pause
	DrainStopped  DrainState = "stopped"  // groups are missing or damaged: spillway spool repair
)

// Drain hands the groups of a name to a destination, oldest first, at most bytes at once,
// and deletes those that were stored. When ctx ends it returns nil.
//
// If the destination fails, Drain retries forever, after pauses of 50 ms to 5 s. At a
// group that is missing or damaged it returns an error that wraps ErrDamaged, which Ready
// and Stats repeat. What is behind the damage stays in the spool until Repair; new entries
// are accepted meanwhile.
//
// One Drain of a name may run at a time.
func (s *Spool) Drain(ctx context.Context, name string, bytes int, to queue.Destination) error {
	s.mu.Lock()
	n := s.name(name)
	if n.drain == DrainRunning || n.drain == DrainRetrying {
		s.mu.Unlock()
		return fmt.Errorf("drain %s: another drain of it is running", name)
	}
	n.drain, n.reason = DrainRunning, nil
	s.mu.Unlock()
	d := &drain{spool: s, name: name, bytes: bytes, limit: bytes, least: 1, to: to, pick: rand.N[uint64]}
	err := d.run(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	n.drain, n.reason = DrainNone, nil
	if err == nil {
		return nil
	}
	n.drain, n.reason = DrainStopped, err
	s.cfg.Log.Error("drain stopped: run spillway spool repair", "name", name, "error", err)
	return fmt.Errorf("drain %s: %w", name, err)
}

// drain drains one name.
type drain struct {
	spool *Spool
	name  string
	to    queue.Destination
	pick  func(n uint64) uint64 // a random number below n
	bytes int                   // given to the destination at once, at most
	limit int                   // the same now: less after an error
	least int                   // groups given to the destination at once, if there are as many
	given int                   // groups given to the destination last
	taken int                   // groups that it stored of them
	more  bool                  // the last read did not return all groups
	began time.Time             // when groups were last given to the destination
	left  []queue.Group         // that were read and are not stored: the destination's batch was full

	failures int
	logged   time.Time
}

// removal is groups that were drained and are to be deleted.
type removal struct {
	drained
	groups []queue.Group
	done   chan struct{}
	err    error // set before done is closed
}

// run returns nil when ctx has ended, else an error that wraps ErrDamaged.
func (d *drain) run(ctx context.Context) error {
	for ctx.Err() == nil {
		groups, err := d.next(ctx)
		if err == nil && len(groups) > 0 {
			err = d.store(ctx, groups)
		}
		switch {
		case err == nil:
			d.succeeded()
		case ctx.Err() != nil:
		case errors.Is(err, ErrDamaged):
			return err
		default:
			d.failed(err)
			queue.Sleep(ctx, queue.Backoff(d.failures, 50*time.Millisecond, 5*time.Second))
		}
	}
	return nil
}

// drainEvery is the shortest time between two batches while the drain keeps up, so that
// more records share a transaction of the database.
const drainEvery = 100 * time.Millisecond

// next waits for groups and reads them.
func (d *drain) next(ctx context.Context) ([]queue.Group, error) {
	s := d.spool
	if wait := drainEvery - time.Since(d.began); !d.more && d.failures == 0 && wait > 0 {
		queue.Sleep(ctx, wait)
	}
	s.mu.Lock()
	n := s.name(d.name)
	h, grown := n.head, n.grown
	h.epochs = slices.Clone(h.epochs)
	s.mu.Unlock()
	if h.drained == h.last {
		select {
		case <-grown:
		case <-ctx.Done():
		}
		return nil, nil
	}
	groups, err := d.read(ctx, &h)
	switch {
	case len(groups) == 0, len(groups) < d.least && errors.Is(err, ErrDamaged):
		return nil, err
	case d.more && d.least == heldMost:
		return d.addLater(ctx, groups, &h), nil
	}
	return groups, nil
}

// read returns groups for the destination, from the first that is not drained: those that
// it left, and more from the file if these do not fill a batch. The error is about the
// group behind them.
func (d *drain) read(ctx context.Context, h *head) ([]queue.Group, error) {
	groups, size := d.left, 0
	d.left = nil
	for i := range groups {
		size += groups[i].Bytes
	}
	if len(groups) > 0 && len(groups[0].Entries) > 0 { // a repair leaves groups without entries
		d.setOldest(groups[0].Entries[0].At)
	}
	at := h.drained + uint64(len(groups))
	d.more = at < h.last
	for enough := len(groups) > d.taken; d.more && !enough; {
		sealed, err := d.spool.file.read(ctx, d.name, at, d.limit-size)
		if err != nil {
			return groups, fmt.Errorf("read the spool: %w", err)
		}
		if at == h.drained && len(sealed) > 0 {
			d.setOldest(sealed[0].at)
		}
		more, err := openGroups(sealed, h, at)
		groups = append(groups, more...)
		if err != nil {
			return groups, err
		}
		at += uint64(len(more))
		d.more, enough, size = at < h.last, len(groups) >= d.least, 0
	}
	return groups, nil
}

// setOldest notes the time of the first group that waits.
func (d *drain) setOldest(at time.Time) {
	s := d.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name(d.name).oldest = at
}

// addLater adds the newest group, and a random one of those before it, behind gaps, if they can
// be read. They may show that the destination stores records, where none of the groups before
// them does.
func (d *drain) addLater(ctx context.Context, groups []queue.Group, h *head) []queue.Group {
	later := []uint64{h.last}
	if after := groups[len(groups)-1].Sequence; h.last-after > 1 {
		later = []uint64{after + 1 + d.pick(h.last-after-1), h.last}
	}
	for _, sequence := range later {
		sealed, err := d.spool.file.read(ctx, d.name, sequence-1, 1)
		if err != nil || len(sealed) == 0 {
			continue
		}
		if more, err := openGroups(sealed[:1], h, sequence-1); err == nil {
			groups = append(groups, more...)
		}
	}
	return groups
}

// openGroups opens the groups of a name behind a sequence, up to the first that is missing
// or damaged. The error is about that one.
func openGroups(sealed []sealedGroup, h *head, after uint64) ([]queue.Group, error) {
	var groups []queue.Group
	for i := range sealed {
		if want := after + uint64(i) + 1; sealed[i].sequence != want {
			return groups, fmt.Errorf("%w: groups %d to %d of %s are missing", ErrDamaged, want, sealed[i].sequence-1, h.name)
		}
		g, err := sealed[i].open()
		if err != nil {
			return groups, err
		}
		at := place{g.Epoch, g.Number}
		g.Spool, g.EpochLast = h.id, h.epochLast(at)
		g.PreviousEpoch, g.PreviousLast = h.previous(at)
		groups = append(groups, g)
	}
	if len(sealed) == 0 {
		return nil, fmt.Errorf("%w: groups %d to %d of %s are missing", ErrDamaged, after+1, h.last, h.name)
	}
	return groups, nil
}

// store hands groups to the destination and deletes those that it stored.
func (d *drain) store(ctx context.Context, groups []queue.Group) error {
	d.began, d.given = time.Now(), len(groups)
	stored, err := d.to.StoreGroups(ctx, groups)
	if err != nil {
		return err
	}
	if stored.Groups < 1 || stored.Groups > len(groups) {
		return fmt.Errorf("%d of %d groups were stored", stored.Groups, len(groups))
	}
	d.taken, d.left = stored.Groups, groups[stored.Groups:]
	if d.least > 1 {
		d.left = nil // there may be a gap in them
	}
	groups = groups[:stored.Groups]
	r := &removal{groups: groups, done: make(chan struct{})}
	r.drained = drained{name: d.name, upto: groups[len(groups)-1].Sequence, dead: stored.Dead}
	for _, g := range groups {
		for _, e := range g.Entries {
			if e.Key != "" {
				r.keys = append(r.keys, e.Key)
			}
		}
	}
	s := d.spool
	s.mu.Lock()
	s.removals = append(s.removals, r)
	s.wake.Signal()
	s.mu.Unlock()
	<-r.done
	if r.err != nil {
		return fmt.Errorf("delete drained groups from the spool: %w", r.err)
	}
	return nil
}

// succeeded notes that the last attempt did not fail.
func (d *drain) succeeded() {
	d.limit, d.least = min(d.limit*4, d.bytes), 1
	if d.failures == 0 {
		return
	}
	d.spool.cfg.Log.Info("drain resumed", "name", d.name, "attempts", d.failures+1)
	d.failures, d.logged = 0, time.Time{}
	d.spool.setDrain(d.name, DrainRunning, nil)
}

// failed notes an attempt that failed. The next one has one group: the cause may be one
// group alone, or their number. After a queue.ErrHeld it has more than before, because a
// later record decides about the one that is held.
func (d *drain) failed(err error) {
	d.failures++
	d.limit, d.least, d.left = 1, 1, nil
	if errors.Is(err, queue.ErrHeld) {
		d.limit, d.least = d.bytes, min(2*d.given, heldMost)
	}
	d.spool.setDrain(d.name, DrainRetrying, err)
	if now := time.Now(); now.Sub(d.logged) > time.Minute {
		d.logged = now
		d.spool.cfg.Log.Warn("drain failed, retrying", "name", d.name, "attempts", d.failures, "error", err)
	}
}

// heldMost limits the groups that are given to the destination, beyond the bytes of a batch,
// because a record is held.
const heldMost = 64

func (s *Spool) setDrain(name string, state DrainState, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.name(name)
	n.drain, n.reason = state, reason
	if state == DrainRetrying {
		n.retries++
	}
}
