package spool

import (
	"context"
	"fmt"
	"time"

	"spillway/internal/serve/queue"
)

// ticket is an entry that was accepted. replayed is set before it is answered.
type ticket struct {
	queue.Ticket
	queue.Entry
	name     string
	size     int
	replayed bool
}

// nameKey is an idempotency key of a name.
type nameKey struct{ name, key string }

// Begin stores an entry; Appended returns when it is on disk, and reports that an entry with the same key waits already, and this one
// was not stored. ready, if it is not nil, is called when Appended need not wait any more: see queue.Ticket. If an entry with the same
// key is being stored, Begin waits for that one. With ready, the error is queue.ErrShared instead, and nothing has happened.
//
// If ctx ends first, the entry may still be stored: the error wraps
// queue.ErrUnknown. After any other error nothing was stored: queue.ErrOverloaded,
// ErrTooLarge, ErrKeyReused, ErrBadKey, ErrClosed, or an error of the disk.
func (s *Spool) Begin(ctx context.Context, name string, e queue.Entry, ready func() (wake func())) (queue.Appending, error) {
	if err := queue.CheckKey(e.Key); err != nil {
		return nil, err
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.At, e.Expires = e.At.Truncate(time.Microsecond), e.Expires.Truncate(time.Microsecond) // as the file has them
	for {
		t, other, err := s.admit(name, e, ready)
		switch {
		case err != nil:
			return nil, err
		case other == nil:
			return t, nil
		case ready != nil:
			return nil, queue.ErrShared
		}
		kept := groupKey{accepted: other.At}
		if !kept.is(&e, s.now(name)) { // another request with the key: it is stored first
			if _, err := other.Join(ctx, true); err != nil {
				return nil, err
			}
			continue
		}
		switch retry, err := other.Join(ctx, other.Fingerprint == e.Fingerprint); {
		case err != nil:
			return nil, err
		case !retry:
			s.counters.replayed.Add(1)
			known := &ticket{replayed: true}
			known.Open(nil, true)
			known.Answer(nil, nil)
			return known, nil
		}
	}
}

// Appended implements queue.Appending.
func (t *ticket) Appended(ctx context.Context) (replayed bool, err error) {
	err = t.Wait(ctx)
	return err == nil && t.replayed, err
}

// admit queues an entry, or returns the ticket of the one with the same key. ready is that of Ticket.Open.
func (s *Spool) admit(name string, e queue.Entry, ready func() (wake func())) (t, other *ticket, err error) {
	t = &ticket{Entry: e, name: name, size: len(e.Payload) + len(e.Key) + len(name)}
	t.Open(ready, e.Key != "")
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
	waiting := queue.Load{Bytes: s.waiting, Spool: s.used + int64(s.waiting+s.writing)}
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

// name returns the state of a name, which is new at first. The caller holds mu.
func (s *Spool) name(name string) *nameState {
	n := s.names[name]
	if n == nil {
		n = &nameState{head: head{name: name}, grown: make(chan struct{}), drain: DrainNone}
		s.names[name] = n
	}
	return n
}
