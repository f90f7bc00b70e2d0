package stream

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// Request is what one client sends.
type Request struct {
	Records *Records
	Refused []Refusal // by Schema.Parse; they become part of the Outcome
	// Key is the client's idempotency key: what a second request with it gets is the
	// first one's Outcome. Empty: none. See CheckKey.
	Key         string
	Fingerprint [32]byte // of the body; needed with a key
}

// FingerprintOf returns the fingerprint of a body.
func FingerprintOf(body []byte) [32]byte { return sha256.Sum256(body) }

// ticket is a request that was accepted. Its Result, outcome and err are set before
// done is closed.
type ticket struct {
	Entry
	rows, bytes int
	lanes       uint64
	left        atomic.Bool // nobody waits for it any more

	done    chan struct{}
	outcome Outcome
	err     error
}

// Commit queues a request's records and waits until they are safe. A record that
// the database refuses is in the Outcome and no error. When ctx ends first the
// records stay queued: the error wraps ErrUnknown and ctx's cause. With a key that is
// under way already Commit waits for that request. For errors see ErrOverloaded and
// those that follow it.
func (s *Stream) Commit(ctx context.Context, r Request) (Outcome, error) {
	if r.Key == "" && r.Records.Len() == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		return Outcome{Refused: r.Refused}, nil
	}
	for {
		t, other, err := s.admit(r, time.Now())
		if err != nil {
			return Outcome{}, err
		}
		if t != nil {
			return t.wait(ctx)
		}
		outcome, err := other.result(ctx)
		switch {
		case ctx.Err() != nil && err != nil:
			return Outcome{}, err
		case err != nil:
			continue // the other was not stored, or nobody knows: the database does
		case other.Fingerprint != r.Fingerprint:
			s.counters.rejected(ErrKeyReused)
			return Outcome{}, ErrKeyReused
		}
		outcome.Replayed = true
		s.counters.replayed.Add(1)
		return outcome, nil
	}
}

// Accept queues a request's records and does not wait for them: they are in this
// process's memory only. Its errors are those of Commit before anything is stored.
func (s *Stream) Accept(r Request) error {
	if r.Key == "" && r.Records.Len() == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		return nil
	}
	t, other, err := s.admit(r, time.Now())
	switch {
	case err != nil:
		return err
	case t != nil:
		return nil
	case other.Fingerprint != r.Fingerprint:
		s.counters.rejected(ErrKeyReused)
		return ErrKeyReused
	}
	return nil
}

// wait waits for the ticket's outcome in the name of its client.
func (t *ticket) wait(ctx context.Context) (Outcome, error) {
	outcome, err := t.result(ctx)
	if ctx.Err() != nil && err != nil {
		t.left.Store(true)
	}
	return outcome, err
}

// result waits for the ticket's outcome.
func (t *ticket) result(ctx context.Context) (Outcome, error) {
	select {
	case <-t.done:
		return t.outcome, t.err
	default:
	}
	select {
	case <-t.done:
		return t.outcome, t.err
	case <-ctx.Done():
		return Outcome{}, fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// admit queues a request, or returns the one with the same key that is under way.
func (s *Stream) admit(r Request, now time.Time) (t, other *ticket, err error) {
	if err := CheckKey(r.Key); err != nil {
		return nil, nil, err
	}
	t = &ticket{
		Entry: Entry{Records: r.Records, Key: r.Key, Fingerprint: r.Fingerprint, refused: r.Refused},
		rows:  max(1, r.Records.Len()), bytes: r.Records.Size() + len(r.Key), done: make(chan struct{}),
	}
	if r.Key != "" {
		t.Expires = now.Add(s.cfg.KeyTTL)
	}
	t.lanes = r.Records.lanes(len(s.queue.lanes))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, ErrClosed
	}
	if r.Key != "" {
		if other := s.keys[r.Key]; other != nil {
			return nil, other, nil
		}
	}
	if err := s.room(t, now); err != nil {
		s.counters.rejected(err)
		return nil, nil, err
	}
	if r.Key != "" {
		s.keys[r.Key] = t
	}
	s.queue.push(t)
	s.wake.Signal()
	return t, nil, nil
}

// room returns an error when a request must not be queued. The caller holds mu.
func (s *Stream) room(t *ticket, now time.Time) error {
	rows, bytes := s.queue.rows+s.asideRows+t.rows, s.queue.bytes+s.asideBytes+t.bytes
	switch {
	case t.rows > s.cfg.QueueRows || t.bytes > s.cfg.QueueBytes:
		return fmt.Errorf("%w: %d records, %d bytes (queue_rows %d, queue_bytes %d)", ErrTooLarge, t.rows, t.bytes, s.cfg.QueueRows, s.cfg.QueueBytes)
	case s.queue.rows == 0 && s.load.free() && s.queue.held&t.lanes == 0 && rows <= s.cfg.QueueRows && bytes <= s.cfg.QueueBytes:
		return nil // else a slow database would never be tried again
	}
	wait, limit := s.predictAt(now, t.lanes, t.rows, t.bytes), ""
	switch {
	case rows > s.cfg.QueueRows:
		limit = LimitRows
	case bytes > s.cfg.QueueBytes:
		limit = LimitBytes
	case wait > s.cfg.WaitMax:
		limit = LimitWait
	default:
		return nil
	}
	return &Overload{Limit: limit, Wait: wait, RetryAfter: retryAfter(wait, s.cfg.WaitMax)}
}

// committer commits one batch after the other until the stream is closed and nothing
// waits. Between two batches it tries what was set aside.
func (s *Stream) committer(n int) {
	s.mu.Lock()
	for turn := 0; ; turn++ {
		if a := s.takeAside(time.Now(), turn); a != nil {
			s.tryAside(n, a)
			continue
		}
		tickets, held := s.queue.take(s.cfg.BatchRows, s.cfg.BatchBytes)
		if len(tickets) == 0 {
			if s.closed && s.queue.empty() && len(s.aside) == 0 {
				break
			}
			s.wake.Wait()
			continue
		}
		if !s.queue.empty() {
			s.wake.Signal()
		}
		b := s.newBatch(tickets)
		start := time.Now()
		s.load.begin(n, start, held)
		s.mu.Unlock()

		attempts, err := s.store(b, tickets, start, s.mayPart(tickets))
		parted := errors.Is(err, errParted)
		if parted {
			s.part(b, tickets, start)
		}
		took := time.Since(start)
		if !parted {
			s.count(b, tickets, took, err)
		}

		s.mu.Lock()
		if !parted {
			s.finish(b, tickets, attempts, err)
		}
		s.load.end(n, took, err == nil)
		s.queue.release(held)
		s.mu.Unlock()
		// The clients that were just answered send their next records first: they
		// go into this committer's next batch. With nothing to run it costs nothing.
		runtime.Gosched()
		s.mu.Lock()
	}
	s.wake.Broadcast()
	s.mu.Unlock()
}

// finish answers the requests of a batch. The caller holds mu.
func (s *Stream) finish(b *Batch, tickets []*ticket, attempts int, err error) {
	s.settle(b, tickets, err)
	switch {
	case err == nil && attempts == 1:
		s.forget = append(s.forget, b.ID)
	case err != nil:
		s.giveBack(b)
	}
	if !errors.Is(err, ErrBlocked) { // others' records are not held up by that
		s.failing = err
	}
}

// giveBack keeps what a batch that was not stored was to forget. The caller holds mu.
func (s *Stream) giveBack(b *Batch) {
	if len(s.forget) < forgetMax {
		s.forget = append(s.forget, b.Forget...)
	}
}

const (
	forgetEvery = 64   // batches whose ids are deleted together
	forgetMax   = 4096 // ids kept for that; sweeping deletes what is beyond
)

// newBatch makes a batch of requests. The caller holds mu.
//
// A batch that was stored at the first attempt needs its id no more. After more
// than one attempt it does: what an earlier attempt sent may still reach the
// server, and must then fail.
func (s *Stream) newBatch(tickets []*ticket) *Batch {
	b := &Batch{Requests: make([]*Entry, len(tickets))}
	if s.mayPart(tickets) {
		b.LockWait = s.lockWait()
	}
	_, _ = rand.Read(b.ID[:]) // it does not fail
	for i, t := range tickets {
		b.Requests[i] = &t.Entry
	}
	if len(s.forget) >= forgetEvery {
		b.Forget, s.forget = s.forget, nil
	}
	return b
}

// settle answers the requests of a batch. The caller holds mu.
func (s *Stream) settle(b *Batch, tickets []*ticket, err error) {
	for _, t := range tickets {
		if t.Key != "" {
			delete(s.keys, t.Key)
		}
		t.err = err
		if err == nil {
			t.outcome, t.err = t.Entry.outcome()
		}
		close(t.done)
	}
}

// store has the sink commit a batch, as often as it takes and is worth it. With part
// it returns errParted where a lock holds the batch up: nothing was stored then, and no
// attempt is under way.
func (s *Stream) store(b *Batch, tickets []*ticket, start time.Time, part bool) (attempts int, err error) {
	unconfirmed := false
	for attempt := 1; ; attempt++ {
		began := time.Now()
		err := commitWithin(s.base, s.cfg.CommitTimeout, s.sink, b)
		s.keeper.observe(b.Session, err)
		if err == nil {
			return attempt, nil
		}
		again := errors.Is(err, ErrTransient) || errors.Is(err, ErrUnconfirmed)
		unconfirmed = unconfirmed || errors.Is(err, ErrUnconfirmed)
		pause := backoff(attempt)
		over := s.base.Err() != nil || time.Since(start)+pause > s.cfg.RetryFor || !unconfirmed && abandoned(tickets)
		b.Reset()
		if part && !over && !unconfirmed && errors.Is(err, ErrBlocked) {
			s.counters.retries.Add(1)
			return attempt, errParted
		}
		s.logFailure(err, attempt, !again || over)
		switch {
		case unconfirmed && (!again || over):
			return attempt, fmt.Errorf("%w: %w", ErrUnknown, err)
		case !again:
			return attempt, err
		case over:
			return attempt, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		b.Careful = b.Careful || time.Since(began) > s.cfg.CommitTimeout/2
		s.counters.retries.Add(1)
		s.sleep(pause)
	}
}

// abandoned reports whether nobody waits for any of the tickets.
func abandoned(tickets []*ticket) bool {
	for _, t := range tickets {
		if !t.left.Load() {
			return false
		}
	}
	return true
}

func (s *Stream) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.base.Done():
	}
}

// logEvery is the least time between two log lines about batches that fail.
const logEvery = 5 * time.Second

func (s *Stream) logFailure(err error, attempt int, final bool) {
	now, last := time.Now().UnixNano(), s.logged.Load()
	if now-last < int64(logEvery) || !s.logged.CompareAndSwap(last, now) {
		return
	}
	if final {
		s.cfg.Log.Error("a batch was not stored", "stream", s.schema.def.Name, "attempts", attempt, "error", err)
		return
	}
	s.cfg.Log.Warn("a batch is tried again", "stream", s.schema.def.Name, "attempts", attempt, "error", err)
}
