package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// batch is what one transaction stores and deletes.
type batch struct {
	tickets  []*ticket
	removals []*removal
	letters  []queue.DeadLetter // that order takes
	order    Order              // without letters: of WorkMove, to move what waits
}

// run is the only goroutine that writes the file. It makes one transaction after the other until
// the spool is closed and nothing waits. No function holds mu while the disk works.
func (s *Spool) run() {
	defer close(s.done)
	for {
		b, t := s.take()
		if b == nil {
			return
		}
		s.dropKnown(b)
		if len(b.tickets)+len(b.removals) > 0 {
			s.commit(b)
		}
		if t != nil {
			s.step(t)
		}
	}
}

// gatherEvery is the longest time between the beginnings of two transactions while the
// second waits for more entries to share its fsync.
const gatherEvery = 2 * time.Millisecond

// full reports whether the next transaction need not wait for more entries. The caller
// holds mu.
func (s *Spool) full() bool {
	return s.gather.Enough(len(s.pending)) || s.waiting >= s.cfg.GroupBytes
}

// take waits for work. It removes the entries and deletions of the next transaction from their
// queues, and also returns the first task, if there is one. The batch is nil when the spool is
// closed and nothing waits.
func (s *Spool) take() (*batch, *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && len(s.pending)+len(s.removals)+len(s.tasks) == 0 {
		s.wake.Wait()
	}
	s.gather.Wait(&s.wake, func() bool { return s.full() || s.closed })
	if s.closed {
		s.endTasks()
	}
	if len(s.pending)+len(s.removals)+len(s.tasks) == 0 {
		return nil, nil
	}
	s.gather.Begin()
	size, n := 0, 0
	for n < len(s.pending) && (n == 0 || size+s.pending[n].size <= s.cfg.GroupBytes) {
		size += s.pending[n].size
		n++
	}
	b := &batch{tickets: s.pending[:n:n], removals: s.removals}
	s.pending, s.waiting, s.removals = s.pending[n:], s.waiting-size, nil
	s.writing += size
	if len(s.tasks) > 0 {
		return b, s.tasks[0]
	}
	return b, nil
}

// dropKnown answers the entries whose keys are in the file.
func (s *Spool) dropKnown(b *batch) {
	b.tickets = slices.DeleteFunc(b.tickets, func(t *ticket) bool {
		if t.Key == "" {
			return false
		}
		k, err := s.file.key(t.name, t.Key)
		switch {
		case err != nil:
			err = s.reason(fmt.Errorf("look up an idempotency key: %w", err), 1)
		case k == nil || !k.is(&t.Entry, s.now(t.name)):
			return false
		case k.fingerprint != t.Fingerprint:
			err = queue.ErrKeyReused
		default:
			t.replayed = true
			s.counters.replayed.Add(1)
		}
		s.mu.Lock()
		s.release(t)
		s.mu.Unlock()
		queue.Wake(t.Answer(err, nil))
		return true
	})
}

// commit stores the entries and the deletions of a batch, and answers them.
func (s *Spool) commit(b *batch) {
	failed := s.write(b)
	err := failed
	if failed != nil && len(b.tickets) > 0 && len(b.removals) > 0 {
		// Deletions, which free room, must not fail because of entries, which need it.
		err = s.write(&batch{removals: b.removals})
	}
	s.mu.Lock()
	s.failing, s.failedAt = failed, time.Now()
	s.mu.Unlock()
	if failed != nil {
		failed = s.reason(failed, len(b.tickets))
	}
	var wakes []func()
	for _, t := range b.tickets {
		wakes = t.Answer(failed, wakes)
	}
	queue.Wake(wakes)
	for _, r := range b.removals {
		r.err = err
		close(r.done)
	}
}

// write makes the transaction of a batch and returns when it is on disk. The entries are to be
// answered then.
func (s *Spool) write(b *batch) error {
	c := s.change(b)
	start := time.Now()
	used, err := s.file.write(c)
	took := time.Since(start)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather.End(len(b.tickets) + len(s.pending))
	for _, t := range b.tickets {
		s.release(t)
	}
	if err != nil {
		return err
	}
	s.used = used
	s.apply(b, c)
	s.count(b.tickets, took)
	return nil
}

// change makes a group of the entries of each name, and adds the deletions.
func (s *Spool) change(b *batch) change {
	var c change
	entries := make(map[string][]queue.Entry)
	for _, t := range b.tickets {
		entries[t.name] = append(entries[t.name], t.Entry)
	}
	if b.order.Work == WorkMove {
		s.addMove(&c, b)
	}
	for _, l := range b.letters {
		if b.order.Work != WorkMove {
			c.retried = append(c.retried, l.ID)
		}
		if b.order.Work == WorkRetry {
			entries[l.Name] = append(entries[l.Name], queue.Entry{Payload: l.Payload, Rows: l.Rows, At: l.At})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		s.addGroup(&c, name, entries[name])
	}
	for _, r := range b.removals {
		c.drained = append(c.drained, r.drained)
		for _, l := range r.dead {
			s.addName(&c, l.Name)
		}
	}
	return c
}

// addGroup makes a group of entries of a name that has none in the change yet.
func (s *Spool) addGroup(c *change, name string, entries []queue.Entry) {
	h := s.addName(c, name)
	if h.movedTo != "" && c.move.to == "" {
		c.move = move{from: name, to: name} // the name is in use again
	}
	at, first := h.next(s.file.epoch)
	if first {
		c.epochs = append(c.epochs, nameEpoch{name, epoch{id: at.epoch, first: h.last + 1}})
	}
	c.groups = append(c.groups, seal(name, h.last+1, at, entries))
	c.keys = appendKeys(c.keys, name, h.last+1, entries)
}

// addName adds a name to a change if it is new, and returns where it stands.
func (s *Spool) addName(c *change, name string) head {
	for _, h := range c.names {
		if h.name == name {
			return h
		}
	}
	h := s.head(name)
	if h.id == [16]byte{} {
		_, _ = rand.Read(h.id[:]) // never fails
		c.names = append(c.names, h)
	}
	return h
}

// addMove gives dead letters, or what waits, to another name.
func (s *Spool) addMove(c *change, b *batch) {
	s.addName(c, b.order.To)
	c.move = move{to: b.order.To}
	for _, l := range b.letters {
		c.move.letters = append(c.move.letters, l.ID)
	}
	if len(b.letters) == 0 {
		c.move.from = b.order.Stream
	}
}

// head returns where a name stands. Only the goroutine of run changes what is in the file.
func (s *Spool) head(name string) head {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name(name).head
}

// apply notes what the transaction of a batch has changed, and wakes the drains. The caller
// holds mu.
func (s *Spool) apply(b *batch, c change) {
	for _, h := range c.names {
		s.name(h.name).id = h.id
	}
	for _, e := range c.epochs {
		n := s.name(e.name)
		n.epochs = append(n.epochs, e.epoch)
	}
	for _, k := range c.keys {
		s.name(k.name).head.keys += keyBytes + int64(len(k.key))
	}
	for _, g := range c.groups {
		s.name(g.name).grow(g)
	}
	for _, r := range b.removals {
		s.name(r.name).shrink(r)
		for i := range r.dead {
			s.name(r.dead[i].Name).countDead(&r.dead[i], 1)
		}
	}
	for i := range b.letters {
		s.name(b.letters[i].Name).countDead(&b.letters[i], -1)
		if b.order.Work == WorkMove {
			s.name(c.move.to).countDead(&b.letters[i], 1)
		}
	}
	for _, n := range s.names {
		if c.move.from == "" || n.name != c.move.from && n.movedTo != c.move.from {
			continue
		}
		if n.movedTo = c.move.to; n.name == c.move.to {
			n.movedTo = ""
		}
	}
}

// grow counts a group that is on disk, and wakes the drain.
func (n *nameState) grow(g sealedGroup) {
	n.last = g.sequence
	if n.groups == 0 {
		n.oldest = g.at
	}
	n.groups++
	n.rows += int64(g.rows)
	n.bytes += int64(len(g.payload))
	close(n.grown)
	n.grown = make(chan struct{})
}

// shrink counts groups that were deleted, because they were drained.
func (n *nameState) shrink(r *removal) {
	n.head.drained = r.upto
	n.epochs = current(n.epochs, r.upto)
	for _, key := range r.keys {
		n.head.keys -= keyBytes + int64(len(key))
	}
	for _, g := range r.groups {
		n.groups--
		n.rows -= int64(g.Rows)
		n.bytes -= int64(g.Bytes)
		n.drainedRows += uint64(g.Rows)
	}
	if n.groups <= 0 {
		n.head.keys = 0
	}
	n.oldest = time.Time{} // until the next read
}

// countDead counts a dead letter that was added, or deleted with -1.
func (h *head) countDead(l *queue.DeadLetter, n int64) {
	h.dead += n
	h.deadIn += n * int64(len(l.Payload))
	if l.InDoubt {
		h.inDoubt += n
	}
}

// release forgets an entry that no longer waits. The caller holds mu.
func (s *Spool) release(t *ticket) {
	s.writing -= t.size
	if t.Key != "" {
		delete(s.keys, nameKey{t.name, t.Key})
	}
	if s.cfg.Shares[t.name] > 0 {
		s.name(t.name).pending -= int64(t.size)
	}
}

// reason returns the error of entries that were not stored. It counts and logs it.
func (s *Spool) reason(err error, entries int) error {
	switch {
	case errors.Is(err, queue.ErrUnknown):
	case errors.Is(err, errFull):
		err = fmt.Errorf("%w: %w", &queue.Overload{Limit: queue.LimitDisk, RetryAfter: 10 * queue.RetryAfter}, err)
		s.counters.overloads.Add(err, entries)
	default:
		err = fmt.Errorf("write to the spool: %w", err)
	}
	s.counters.failed.Add(uint64(entries))
	s.logFailure(err)
	return err
}

// logEvery is the shortest time between two log lines about failed writes.
const logEvery = 5 * time.Second

func (s *Spool) logFailure(err error) {
	now, last := time.Now().UnixNano(), s.logged.Load()
	if now-last < int64(logEvery) || !s.logged.CompareAndSwap(last, now) {
		return
	}
	s.cfg.Log.Error("spool write failed", "error", err)
}
