package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/gather"
)

// SpoolConfig bounds a spool. All fields are needed but the last one.
type SpoolConfig struct {
	Bytes      int64 // of the file in use, with the dead letters in it
	QueueBytes int   // that wait for the next fsync
	GroupBytes int   // of one group, unless one entry has more
	Log        *slog.Logger

	// Synced, if set, is told of each transaction: the entries and records in it, and
	// how long it took until it was on disk.
	Synced func(entries, rows int, took time.Duration)
}

// Validate returns an error that names the first field that cannot work.
func (c SpoolConfig) Validate() error {
	switch {
	case c.Bytes < 1<<20:
		return errors.New("spool_bytes must be at least 1 MiB")
	case c.QueueBytes < 1:
		return errors.New("queue_bytes must be at least 1")
	case c.GroupBytes < 1:
		return errors.New("batch_bytes must be at least 1")
	case c.Log == nil:
		return errors.New("a log is needed")
	}
	return nil
}

// Spool keeps what clients send in a local file, each of them answered when that is on
// disk, until a drain has taken it elsewhere. What it keeps has a name, and what is of
// one name is drained in the order in which it was kept. Use OpenSpool. Its
// methods may be called concurrently.
//
// It commits in groups: what came while the last transaction was being synced goes
// into the next one, the groups of all names together with what the drains have done
// meanwhile. Nothing waits for a timer.
type Spool struct {
	cfg  SpoolConfig
	file SpoolFile
	done chan struct{} // the writer has ended

	mu      sync.Mutex
	wake    sync.Cond // there may be something to write, or the spool closes
	names   map[string]*spoolName
	pending []*spoolTicket
	waiting int // bytes in pending
	keys    map[spoolKeyName]*spoolTicket
	removed []*removal
	used    int64
	closed  bool
	failing error // why the last transaction failed; nil after one that did not

	failedAt time.Time
	together gather.Gather // entries in a transaction

	logged   atomic.Int64 // when a failure was logged last
	counters spoolCounters
}

type spoolKeyName struct{ name, key string }

// spoolName is what is known of a name.
type spoolName struct {
	SpoolHead
	grown   chan struct{} // closed when groups are added
	drain   DrainState
	reason  error // why it is not draining
	retries uint64
	drained uint64 // groups, since the start
	rows    uint64 // in them
}

// spoolTicket is an entry that was accepted. replayed and err are set before done
// is closed.
type spoolTicket struct {
	SpoolEntry
	name     string
	size     int
	done     chan struct{}
	replayed bool
	err      error
}

// removal is groups that a drain has taken.
type removal struct {
	Drained
	groups []Group
	done   chan struct{}
	err    error
}

// OpenSpool starts a spool over a file; heads is where its names stand. The owner
// must call Close when the drains have ended, and close the file afterwards.
func OpenSpool(cfg SpoolConfig, file SpoolFile, heads []SpoolHead) (*Spool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	used, err := file.Write(SpoolChange{})
	if err != nil {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	s := &Spool{
		cfg: cfg, file: file, used: used, done: make(chan struct{}),
		names: make(map[string]*spoolName), keys: make(map[spoolKeyName]*spoolTicket),
	}
	s.wake.L = &s.mu
	s.together.Every = gatherEvery
	for _, h := range heads {
		s.names[h.Name] = &spoolName{SpoolHead: h, grown: make(chan struct{})}
	}
	go s.write()
	return s, nil
}

// Close refuses new entries, makes durable what was accepted and returns when that is
// done. Drains must have ended. It is called once.
func (s *Spool) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.mu.Unlock()
	<-s.done
}

// Append keeps an entry and returns when it is on disk. replayed reports that an entry
// with the same key is kept already, and this one is not. When ctx ends first the
// entry may be kept all the same: the error wraps ErrUnknown. Other errors, after
// which nothing was kept: ErrOverloaded (an *Overload whose Limit is "spool_bytes",
// "queue_bytes" or "disk"), ErrTooLarge, ErrKeyReused, ErrClosed, or what the disk
// says.
func (s *Spool) Append(ctx context.Context, name string, e SpoolEntry) (replayed bool, err error) {
	if err := CheckKey(e.Key); err != nil {
		return false, err
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	for {
		t, other, err := s.admit(name, e)
		if err != nil {
			return false, err
		}
		if t != nil {
			err := t.wait(ctx)
			return t.replayed && err == nil, err
		}
		err = other.wait(ctx)
		switch {
		case ctx.Err() != nil && err != nil:
			return false, err
		case err != nil:
			continue // the other was not kept
		case other.Fingerprint != e.Fingerprint:
			return false, ErrKeyReused
		}
		s.counters.replayed.Add(1)
		return true, nil
	}
}

// wait waits until the ticket's group is on disk.
func (t *spoolTicket) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// admit queues an entry, or returns the one with the same key that is being kept.
func (s *Spool) admit(name string, e SpoolEntry) (t, other *spoolTicket, err error) {
	t = &spoolTicket{SpoolEntry: e, name: name, size: len(e.Payload) + len(e.Key) + len(name), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, ErrClosed
	}
	id := spoolKeyName{name, e.Key}
	if e.Key != "" {
		if other := s.keys[id]; other != nil {
			return nil, other, nil
		}
	}
	if err := s.room(t); err != nil {
		s.counters.overloads.add(err, 1)
		return nil, nil, err
	}
	if e.Key != "" {
		s.keys[id] = t
	}
	s.pending = append(s.pending, t)
	s.waiting += t.size
	if s.together.Enough(len(s.pending)) || s.waiting >= s.cfg.GroupBytes {
		s.wake.Signal()
	}
	return t, nil, nil
}

// spoolRetryAfter is when a client may come again: a full spool empties with the drain.
const spoolRetryAfter = time.Second

// room returns an error when an entry must not be queued. The caller holds mu.
func (s *Spool) room(t *spoolTicket) error {
	limit := ""
	switch {
	case int64(t.size) > s.cfg.Bytes || t.size > s.cfg.QueueBytes:
		return fmt.Errorf("%w: %d bytes (spool_bytes %d, queue_bytes %d)", ErrTooLarge, t.size, s.cfg.Bytes, s.cfg.QueueBytes)
	case s.used+int64(s.waiting+t.size) > s.cfg.Bytes:
		limit = LimitSpool
	case s.waiting+t.size > s.cfg.QueueBytes:
		limit = LimitBytes
	default:
		return nil
	}
	return &Overload{Limit: limit, RetryAfter: spoolRetryAfter}
}

// write runs one transaction after the other until the spool is closed and nothing
// waits.
func (s *Spool) write() {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if len(s.pending) == 0 && len(s.removed) == 0 {
			if s.closed {
				return
			}
			s.wake.Wait()
			continue
		}
		s.together.Wait(&s.wake, func() bool {
			return s.together.Enough(len(s.pending)) || s.waiting >= s.cfg.GroupBytes || s.closed
		})
		tickets, removed := s.take(), s.removed
		s.removed = nil
		s.mu.Unlock()
		tickets = s.known(tickets)
		s.mu.Lock()
		s.commit(tickets, removed)
	}
}

// gatherEvery is the most time between the starts of two transactions when the second
// waits for more entries, so that they share an fsync.
const gatherEvery = 2 * time.Millisecond

// take removes the entries of the next transaction from the queue.
func (s *Spool) take() []*spoolTicket {
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

// known answers the entries whose keys are in the file and returns the others.
func (s *Spool) known(tickets []*spoolTicket) []*spoolTicket {
	return slices.DeleteFunc(tickets, func(t *spoolTicket) bool {
		if t.Key == "" {
			return false
		}
		k, err := s.file.Key(t.name, t.Key)
		switch {
		case err != nil:
			t.err = fmt.Errorf("look up an idempotency key in the spool: %w", err)
		case k == nil || k.Expires.Before(t.At):
			return false
		case k.Fingerprint != t.Fingerprint:
			t.err = ErrKeyReused
		default:
			t.replayed = true
			s.counters.replayed.Add(1)
		}
		s.mu.Lock()
		s.answer(t)
		s.mu.Unlock()
		return true
	})
}

// answer ends a ticket. The caller holds mu.
func (s *Spool) answer(t *spoolTicket) {
	if t.Key != "" {
		delete(s.keys, spoolKeyName{t.name, t.Key})
	}
	close(t.done)
}

// commit runs one transaction. The caller holds mu, which is free meanwhile.
func (s *Spool) commit(tickets []*spoolTicket, removed []*removal) {
	if len(tickets) == 0 && len(removed) == 0 {
		return
	}
	s.together.Begin()
	change := s.seal(tickets)
	for _, r := range removed {
		change.Drained = append(change.Drained, r.Drained)
	}
	s.mu.Unlock()
	start := time.Now()
	used, err := s.file.Write(change)
	took := time.Since(start)
	s.mu.Lock()
	s.together.End(len(tickets) + len(s.pending))
	if err != nil && len(removed) > 0 && len(tickets) > 0 {
		// What frees room must not fail with what needs it.
		s.refuse(tickets, err)
		s.commit(nil, removed)
		s.failing, s.failedAt = err, time.Now()
		return
	}
	s.failing, s.failedAt = err, time.Now()
	if err != nil {
		s.refuse(tickets, err)
		for _, r := range removed {
			r.err = err
			close(r.done)
		}
		return
	}
	s.used = used
	s.added(change)
	s.count(tickets, change, took) // first: what was answered is in the figures
	for _, r := range removed {
		s.drop(r)
		close(r.done)
	}
	for _, t := range tickets {
		s.answer(t)
	}
}

// seal makes a group of the entries of each name. The caller holds mu.
func (s *Spool) seal(tickets []*spoolTicket) SpoolChange {
	var change SpoolChange
	var order []string
	entries := make(map[string][]SpoolEntry)
	for _, t := range tickets {
		if entries[t.name] == nil {
			order = append(order, t.name)
		}
		entries[t.name] = append(entries[t.name], t.SpoolEntry)
	}
	for _, name := range order {
		sequence := uint64(1)
		if n := s.names[name]; n != nil && n.ID != [16]byte{} {
			sequence = n.Last + 1
		} else {
			head := SpoolHead{Name: name}
			_, _ = rand.Read(head.ID[:]) // it does not fail
			change.Names = append(change.Names, head)
		}
		change.Groups = append(change.Groups, Seal(name, sequence, entries[name]))
		for _, e := range entries[name] {
			if e.Key != "" {
				change.Keys = append(change.Keys, SpoolKey{Name: name, Key: e.Key, Fingerprint: e.Fingerprint, Expires: e.Expires, Sequence: sequence})
			}
		}
	}
	return change
}

// refuse answers entries that were not kept. The caller holds mu.
func (s *Spool) refuse(tickets []*spoolTicket, err error) {
	switch {
	case errors.Is(err, ErrUnconfirmed):
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	case errors.Is(err, ErrSpoolFull):
		err = fmt.Errorf("%w: %w", &Overload{Limit: LimitDisk, RetryAfter: 10 * spoolRetryAfter}, err)
		s.counters.overloads.add(err, len(tickets))
	default:
		err = fmt.Errorf("write to the spool: %w", err)
	}
	s.counters.failed.Add(uint64(len(tickets)))
	s.logFailure(err)
	for _, t := range tickets {
		t.err = err
		s.answer(t)
	}
}

func (s *Spool) logFailure(err error) {
	now, last := time.Now().UnixNano(), s.logged.Load()
	if now-last < int64(logEvery) || !s.logged.CompareAndSwap(last, now) {
		return
	}
	s.cfg.Log.Error("the spool cannot be written", "error", err)
}

// name returns what is known of a name, which is empty at first. The caller holds mu.
func (s *Spool) name(name string) *spoolName {
	n := s.names[name]
	if n == nil {
		n = &spoolName{SpoolHead: SpoolHead{Name: name}, grown: make(chan struct{})}
		s.names[name] = n
	}
	return n
}

// added books groups that are on disk. The caller holds mu.
func (s *Spool) added(change SpoolChange) {
	for _, head := range change.Names {
		s.name(head.Name).ID = head.ID
	}
	for _, g := range change.Groups {
		n := s.name(g.Name)
		n.Last = g.Sequence
		if n.Groups == 0 {
			n.Oldest = g.At
		}
		n.Groups++
		n.Rows += int64(g.Rows)
		n.Bytes += int64(len(g.Payload))
		close(n.grown)
		n.grown = make(chan struct{})
	}
}

// drop books groups that were drained. The caller holds mu.
func (s *Spool) drop(r *removal) {
	n := s.name(r.Name)
	n.Drained = r.Upto
	n.Dead += int64(len(r.Dead))
	for _, g := range r.groups {
		n.Groups--
		n.Rows -= int64(g.Rows)
		n.Bytes -= int64(g.Bytes)
		n.drained++
		n.rows += uint64(g.Rows)
	}
	n.Oldest = time.Time{} // until the next read
}
