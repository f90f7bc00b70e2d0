package spool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// ticket is an entry that was accepted. Its fields are set before it is answered.
type ticket struct {
	queue.Ticket
	queue.Entry
	name     string
	size     int
	replayed bool
}

// nameKey is an idempotency key of a name.
type nameKey struct{ name, key string }

// Append stores an entry and returns when it is on disk. replayed reports that an entry
// with the same key waits already, and this one was not stored.
//
// If ctx ends first, the entry may still be stored: the error wraps
// queue.ErrUnknown. After any other error nothing was stored: queue.ErrOverloaded,
// ErrTooLarge, ErrKeyReused, ErrBadKey, ErrClosed, or an error of the disk.
func (s *Spool) Append(ctx context.Context, name string, e queue.Entry) (replayed bool, err error) {
	if err := queue.CheckKey(e.Key); err != nil {
		return false, err
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.At, e.Expires = e.At.Truncate(time.Microsecond), e.Expires.Truncate(time.Microsecond) // as the file has them
	for {
		t, other, err := s.admit(name, e)
		if err != nil {
			return false, err
		}
		if t != nil {
			err := t.Wait(ctx)
			return err == nil && t.replayed, err
		}
		kept := groupKey{accepted: other.At}
		if !kept.is(&e) { // another request with the key: it is stored first
			if _, err := other.Join(ctx, true); err != nil {
				return false, err
			}
			continue
		}
		retry, err := other.Join(ctx, other.Fingerprint == e.Fingerprint)
		if retry {
			continue
		}
		if err == nil {
			s.counters.replayed.Add(1)
		}
		return err == nil, err
	}
}

// admit queues an entry, or returns the ticket of the one with the same key.
func (s *Spool) admit(name string, e queue.Entry) (t, other *ticket, err error) {
	t = &ticket{Entry: e, name: name, size: len(e.Payload) + len(e.Key) + len(name)}
	t.Open()
	id := nameKey{name, e.Key}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, queue.ErrClosed
	}
	if e.Key != "" {
		if other := s.keys[id]; other != nil {
			return nil, other, nil
		}
	}
	limits := queue.Limits{Bytes: s.cfg.QueueBytes, Spool: s.cfg.Bytes}
	waiting := queue.Load{Bytes: s.waiting, Spool: s.used + int64(s.waiting)}
	if err := limits.Admit(queue.Load{Bytes: t.size, Spool: int64(t.size)}, waiting); err != nil {
		s.counters.overloads.Add(err, 1)
		return nil, nil, err
	}
	if err := s.admitShare(t); err != nil {
		s.counters.overloads.Add(err, 1)
		return nil, nil, err
	}
	if e.Key != "" {
		s.keys[id] = t
	}
	s.pending = append(s.pending, t)
	s.waiting += t.size
	if s.full() {
		s.wake.Signal()
	}
	return t, nil, nil
}

// admitShare counts an entry in the share of its name, or refuses it. The caller holds mu.
func (s *Spool) admitShare(t *ticket) error {
	share := s.cfg.Shares[t.name]
	if share == 0 {
		return nil
	}
	n := s.name(t.name)
	limits := queue.Limits{Spool: share}
	if err := limits.Admit(queue.Load{Spool: int64(t.size)}, queue.Load{Spool: s.usedBy(n) + n.pending}); err != nil {
		return fmt.Errorf("the share of %s: %w", t.name, err)
	}
	n.pending += int64(t.size)
	return nil
}

// usedBy returns the bytes of the file that count for the share of a name: its part of the
// bytes in use, which pages that are not full belong to. The caller holds mu.
func (s *Spool) usedBy(n *nameState) int64 {
	holds, all := n.holds(), int64(0)
	for _, other := range s.names {
		all += other.holds()
	}
	if holds == 0 {
		return 0
	}
	return max(holds, int64(float64(s.used-emptyBytes)*float64(holds)/float64(all)))
}

// gatherEvery is the longest time between the beginnings of two transactions while the
// second waits for more entries to share its fsync.
const gatherEvery = 2 * time.Millisecond

// full reports whether the next transaction need not wait for more entries. The caller
// holds mu.
func (s *Spool) full() bool {
	return s.gather.Enough(len(s.pending)) || s.waiting >= s.cfg.GroupBytes
}

// run writes one transaction after the other until the spool is closed and nothing waits.
func (s *Spool) run() {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			s.endTasks()
		}
		if len(s.pending) == 0 && len(s.removals) == 0 && len(s.tasks) == 0 {
			if s.closed {
				s.saveClocks()
				return
			}
			s.wake.Wait()
			continue
		}
		s.gather.Wait(&s.wake, func() bool { return s.full() || s.closed })
		tickets, removals := s.take(), s.removals
		s.removals = nil
		s.mu.Unlock()
		tickets = s.dropKnown(tickets)
		s.mu.Lock()
		s.commit(tickets, removals)
		s.step()
	}
}

// take removes the entries of the next transaction from the queue. The caller holds mu.
func (s *Spool) take() []*ticket {
	size, n := 0, 0
	for n < len(s.pending) && (n == 0 || size+s.pending[n].size <= s.cfg.GroupBytes) {
		size += s.pending[n].size
		n++
	}
	tickets := s.pending[:n:n]
	s.pending = s.pending[n:]
	s.waiting -= size
	return tickets
}

// dropKnown answers the entries whose keys are in the file and returns the others.
func (s *Spool) dropKnown(tickets []*ticket) []*ticket {
	return slices.DeleteFunc(tickets, func(t *ticket) bool {
		if t.Key == "" {
			return false
		}
		k, err := s.file.key(t.name, t.Key)
		switch {
		case err != nil:
			err = fmt.Errorf("look up an idempotency key in the spool: %w", err)
		case k == nil || !k.is(&t.Entry):
			return false
		case k.fingerprint != t.Fingerprint:
			err = queue.ErrKeyReused
		default:
			t.replayed = true
			s.counters.replayed.Add(1)
		}
		s.mu.Lock()
		s.answer(t, err)
		s.mu.Unlock()
		return true
	})
}

// answer ends the wait of an entry. The caller holds mu.
func (s *Spool) answer(t *ticket, err error) {
	if t.Key != "" {
		delete(s.keys, nameKey{t.name, t.Key})
	}
	if s.cfg.Shares[t.name] > 0 {
		s.name(t.name).pending -= int64(t.size)
	}
	t.Answer(err)
}

// commit stores entries and removals, and answers them. The caller holds mu, which is not held
// during a transaction.
func (s *Spool) commit(tickets []*ticket, removals []*removal) {
	if len(tickets) == 0 && len(removals) == 0 {
		return
	}
	err := s.write(tickets, removals)
	failed := err
	if err != nil {
		s.refuse(tickets, err)
	}
	if err != nil && len(tickets) > 0 && len(removals) > 0 {
		// Deletions, which free room, must not fail because of entries, which need it.
		err = s.write(nil, removals)
	}
	if err != nil {
		for _, r := range removals {
			r.err = err
			close(r.done)
		}
	}
	s.failing, s.failedAt = failed, time.Now()
}

// write makes one transaction, and answers its entries and removals when it is on disk. The
// caller holds mu; write releases it during the transaction.
func (s *Spool) write(tickets []*ticket, removals []*removal) error {
	s.gather.Begin()
	c := s.change(tickets, removals)
	s.mu.Unlock()
	start := time.Now()
	used, err := s.file.write(c)
	took := time.Since(start)
	s.mu.Lock()
	s.gather.End(len(tickets) + len(s.pending))
	if err != nil {
		return err
	}
	s.used = used
	s.added(c)
	s.count(tickets, c, took) // before the answers, so that the metrics include them
	for _, r := range removals {
		s.drop(r)
		close(r.done)
	}
	for _, t := range tickets {
		s.answer(t, nil)
	}
	return nil
}

// change makes a group of the entries of each name, and adds the removals. The caller
// holds mu.
func (s *Spool) change(tickets []*ticket, removals []*removal) change {
	var c change
	var order []string
	entries := make(map[string][]queue.Entry)
	for _, t := range tickets {
		if entries[t.name] == nil {
			order = append(order, t.name)
		}
		entries[t.name] = append(entries[t.name], t.Entry)
	}
	for _, name := range order {
		s.addGroup(&c, name, entries[name])
	}
	for _, r := range removals {
		c.drained = append(c.drained, r.drained)
	}
	c.clocks = s.changedClocks()
	return c
}

// addGroup makes a group of entries of a name that has none in the change yet. The caller
// holds mu.
func (s *Spool) addGroup(c *change, name string, entries []queue.Entry) {
	h := head{name: name}
	if n := s.names[name]; n != nil && n.id != [16]byte{} {
		h = n.head
	} else {
		_, _ = rand.Read(h.id[:]) // never fails
		c.names = append(c.names, h)
	}
	at, first := h.next(s.file.epoch)
	if first {
		c.epochs = append(c.epochs, nameEpoch{name, epoch{id: at.epoch, first: h.last + 1}})
	}
	c.groups = append(c.groups, seal(name, h.last+1, at, entries))
	c.keys = appendKeys(c.keys, name, h.last+1, entries)
}

// refuse answers entries that were not stored. The caller holds mu.
func (s *Spool) refuse(tickets []*ticket, err error) {
	switch {
	case errors.Is(err, queue.ErrUnknown):
	case errors.Is(err, errFull):
		err = fmt.Errorf("%w: %w", &queue.Overload{Limit: queue.LimitDisk, RetryAfter: 10 * queue.RetryAfter}, err)
		s.counters.overloads.Add(err, len(tickets))
	default:
		err = fmt.Errorf("write to the spool: %w", err)
	}
	s.counters.failed.Add(uint64(len(tickets)))
	s.logFailure(err)
	for _, t := range tickets {
		s.answer(t, err)
	}
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

// name returns the state of a name, which is new at first. The caller holds mu.
func (s *Spool) name(name string) *nameState {
	n := s.names[name]
	if n == nil {
		n = &nameState{head: head{name: name}, grown: make(chan struct{})}
		s.names[name] = n
	}
	return n
}

// added counts groups that are on disk, and wakes their drains. The caller holds mu.
func (s *Spool) added(c change) {
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
	s.savedClocks(c.clocks)
	for _, g := range c.groups {
		n := s.name(g.name)
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
}

// drop counts groups that were drained. The caller holds mu.
func (s *Spool) drop(r *removal) {
	n := s.name(r.name)
	n.head.drained = r.upto
	n.epochs = current(n.epochs, r.upto)
	for i := range r.dead {
		n.countDead(&r.dead[i], 1)
	}
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
