package stream

import (
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"time"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/tables"
)

// committer commits one batch after the other until the stream is closed and nothing
// waits. Between two batches it retries deferred requests.
func (s *Stream) committer(n int) {
	s.mu.Lock()
	for turn := 0; ; turn++ {
		if d := s.takeDeferred(time.Now(), turn); d != nil {
			s.retryDeferred(n, d)
			continue
		}
		tickets, held := s.take()
		if len(tickets) == 0 {
			if s.closed && s.queue.empty() && len(s.deferred) == 0 {
				break
			}
			s.wake.Wait()
			continue
		}
		b := s.newBatch(tickets)
		start := time.Now()
		beside := s.load.busy > 0
		if beside {
			s.pace.last = s.finished
		}
		s.load.begin(n, start, held)
		if !s.queue.empty() {
			s.wakeCommitter(start)
		}
		s.mu.Unlock()

		attempts, err := s.commitBatch(b, tickets, start, s.canSplit(tickets))
		split := errors.Is(err, errSplit) || isDefinite(err) && len(tickets) > 1 && !errors.Is(err, tables.ErrUnusable)
		if split {
			s.split(b, tickets, start, err)
		}
		took := time.Since(start)
		if !split {
			s.record(b, tickets, attempts, took, err)
		}

		var wakes []func()
		s.mu.Lock()
		if !split {
			wakes = s.finish(b, tickets, attempts, err)
		}
		s.load.end(n, took, err == nil)
		if err == nil {
			s.pace.ended(took, beside, len(tickets)+s.queue.requests)
		}
		s.queue.release(held)
		s.mu.Unlock()
		queue.Wake(wakes)
		// Let the clients that were just answered send their next records first: these go into this committer's next batch.
		runtime.Gosched()
		s.mu.Lock()
	}
	s.wake.Broadcast()
	s.mu.Unlock()
}

// take returns the requests of the next batch, and the lanes that it holds. It returns nothing if nothing can go yet. The caller holds mu.
func (s *Stream) take() ([]*ticket, uint64) {
	if s.queue.empty() || !s.mayBegin(time.Now()) {
		return nil, 0
	}
	s.gather()
	return s.queue.take(s.cfg.BatchRows, s.cfg.BatchBytes)
}

// isDefinite reports whether a batch failed for good: nothing was stored, a retry does not help, and one of its requests may be the cause.
func isDefinite(err error) bool {
	return err != nil && !errors.Is(err, errSplit) && !errors.Is(err, queue.ErrUnknown) && !errors.Is(err, ErrUnavailable)
}

// record counts a batch, and logs why it failed for good.
func (s *Stream) record(b *Batch, tickets []*ticket, attempts int, took time.Duration, err error) {
	if isDefinite(err) {
		s.logFailure(err, attempts, true)
	}
	s.count(b, tickets, took, err)
}

// end counts a batch and answers its requests.
func (s *Stream) end(b *Batch, tickets []*ticket, attempts int, took time.Duration, err error) {
	s.record(b, tickets, attempts, took, err)
	s.mu.Lock()
	wakes := s.finish(b, tickets, attempts, err)
	s.mu.Unlock()
	queue.Wake(wakes)
}

// finish answers the requests of a batch. The caller holds mu, and then calls queue.Wake without it: who wakes may need mu at once.
func (s *Stream) finish(b *Batch, tickets []*ticket, attempts int, err error) (wakes []func()) {
	wakes = s.settle(b, tickets, err)
	switch {
	case err == nil && attempts == 1:
		s.forget = append(s.forget, b.ID)
	case err != nil:
		s.giveBack(b)
	}
	s.finished++
	s.tried = time.Now()
	if !errors.Is(err, ErrBlocked) { // a lock does not hold up the records of others
		s.failing = err
	}
	return wakes
}

// giveBack returns the ids that a batch was to forget and did not, because it was not stored. The caller holds mu.
func (s *Stream) giveBack(b *Batch) {
	if len(s.forget) < forgetMax {
		s.forget = append(s.forget, b.Forget...)
	}
}

const (
	forgetEvery = 64   // batches whose ids are deleted together
	forgetMax   = 4096 // ids kept for that; maintenance deletes the others
)

// newBatch makes a batch of requests. The caller holds mu.
//
// The id of a batch that was stored at the first attempt is no longer needed. After more
// attempts it is: an earlier one may still reach the server, and must then fail.
func (s *Stream) newBatch(tickets []*ticket) *Batch {
	b := &Batch{Requests: make([]*Entry, len(tickets)), KeyTTL: s.cfg.KeyTTL, KeyKeep: s.cfg.SpoolMaxAge}
	if s.canSplit(tickets) {
		b.LockWait = s.lockWait()
	}
	_, _ = rand.Read(b.ID[:]) // never fails
	for i, t := range tickets {
		b.Requests[i] = &t.Entry
	}
	if len(s.forget) >= forgetEvery {
		b.Forget, s.forget = s.forget, nil
	}
	return b
}

// settle sets the outcomes of the requests of a batch. The caller holds mu.
func (s *Stream) settle(b *Batch, tickets []*ticket, err error) (wakes []func()) {
	for _, t := range tickets {
		if t.Key != "" {
			delete(s.keys, t.Key)
		}
		answer := err
		if err == nil {
			t.result, answer = t.outcome()
			t.result.Level = b.Level
		}
		switch {
		case !t.late:
			wakes = t.Answer(answer, wakes)
		case t.successor != nil:
			t.successor.result = t.result
			wakes = t.successor.Answer(answer, wakes)
		}
	}
	return wakes
}

// answerLate answers the requests of a batch whose COMMIT is not answered in time: their outcome is unknown. The committer keeps the batch
// and takes no other one, so that the connections that wait for a COMMIT are never more than the committers. A request that comes again
// with the same key waits for the COMMIT.
func (s *Stream) answerLate(tickets []*ticket) {
	err := fmt.Errorf("%w: %w", queue.ErrUnknown, errNoAnswer)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished++
	s.tried, s.failing = time.Now(), err
	if s.cfg.Memory {
		return // nobody waits, and the requests were accepted
	}
	var wakes []func()
	for _, t := range tickets {
		if t.late {
			continue
		}
		t.late = true
		if t.Key != "" {
			t.successor = &ticket{stream: s, Entry: Entry{Key: t.Key, Fingerprint: t.Fingerprint}}
			t.successor.Open(nil, true)
			s.keys[t.Key] = t.successor
		}
		wakes = t.Answer(err, wakes)
	}
	queue.Wake(wakes)
}

// attempt has the sink commit a batch once. late reports that its COMMIT was not answered in time.
func (s *Stream) attempt(b *Batch, tickets []*ticket) (late bool, err error) {
	err = s.attempts.commit(s.base, s.cfg.CommitTimeout, s.sink, b, func() {
		s.answerLate(tickets)
		if late {
			return
		}
		late = true
		s.hanging.Add(1)
		s.cfg.Log.Error("COMMIT not answered within commit_timeout: the connection waits for it",
			"stream", s.schema.def.Name, "requests", len(tickets))
	})
	if late {
		s.hanging.Add(-1)
	}
	s.observe(b.Session, err)
	return late, err
}

// commitBatch has the sink commit a batch and retries it for Config.RetryFor, which begins again, once, behind a COMMIT that was not
// answered in time. With split it returns errSplit if a lock, or a refusal that is not the records', holds the batch up: nothing was
// stored then, and no attempt is running.
func (s *Stream) commitBatch(b *Batch, tickets []*ticket, start time.Time, split bool) (attempts int, err error) {
	unconfirmed, hung := false, false
	for attempt := 1; ; attempt++ {
		began := time.Now()
		late, err := s.attempt(b, tickets)
		if err == nil {
			return attempt, nil
		}
		if late && !hung {
			start, hung = time.Now(), true
		}
		again := errors.Is(err, ErrTransient) || errors.Is(err, ErrUnconfirmed)
		unconfirmed = unconfirmed || errors.Is(err, ErrUnconfirmed)
		pause := queue.Backoff(attempt, backoffFirst, backoffMost)
		over := s.base.Err() != nil || time.Since(start)+pause > s.cfg.RetryFor || !unconfirmed && abandoned(tickets)
		b.Reset()
		if split && !over && !unconfirmed && (errors.Is(err, ErrBlocked) || errors.Is(err, ErrRefused)) {
			s.counters.retries.Add(1)
			return attempt, fmt.Errorf("%w: %w", errSplit, err)
		}
		if again || unconfirmed {
			s.logFailure(err, attempt, !again || over)
		}
		switch {
		case unconfirmed && (!again || over):
			return attempt, fmt.Errorf("%w: %w", queue.ErrUnknown, err)
		case !again:
			return attempt, err
		case over:
			return attempt, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		b.RowByRow = b.RowByRow || time.Since(began) > s.cfg.CommitTimeout/2
		s.counters.retries.Add(1)
		queue.Sleep(s.base, pause)
	}
}

// The pauses between attempts.
const (
	backoffFirst = 5 * time.Millisecond
	backoffMost  = time.Second
)

// abandoned reports whether no client waits for any of the tickets.
func abandoned(tickets []*ticket) bool {
	for _, t := range tickets {
		if !t.Abandoned() && !t.late {
			return false
		}
	}
	return true
}

// logEvery is the shortest time between two log lines about failed batches.
const logEvery = 5 * time.Second

func (s *Stream) logFailure(err error, attempt int, final bool) {
	now, last := time.Now().UnixNano(), s.logged.Load()
	if now-last < int64(logEvery) || !s.logged.CompareAndSwap(last, now) {
		return
	}
	if final {
		s.cfg.Log.Error("batch not stored", "stream", s.schema.def.Name, "attempts", attempt, "error", err)
		return
	}
	s.cfg.Log.Warn("batch failed, retrying", "stream", s.schema.def.Name, "attempts", attempt, "error", err)
}
