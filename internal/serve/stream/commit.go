package stream

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// Request is what one client sends.
type Request struct {
	Records *Records
	Refused []Refusal // by Schema.Parse; they become part of the Outcome
	// Key is the client's idempotency key; "" for none. A second request with it gets the
	// Outcome of the first. See queue.CheckKey.
	Key         string
	Fingerprint [32]byte // of the body; required with a key
}

// FingerprintOf returns the fingerprint of a body.
func FingerprintOf(body []byte) [32]byte { return sha256.Sum256(body) }

// Outcome is what became of a request.
type Outcome struct {
	Stored   int       `json:"stored"`            // records that are in the table
	Refused  []Refusal `json:"refused,omitempty"` // the others, in order
	Replayed bool      `json:"-"`                 // an earlier request with the same key was stored
}

// OutcomeNow returns the outcome of a request as RequestTable keeps it. A Sink calls it
// when the Result's refusals are final.
func (e *Entry) OutcomeNow() ([]byte, error) {
	data, err := json.Marshal(e.newOutcome())
	if err != nil {
		return nil, fmt.Errorf("encode an outcome: %w", err)
	}
	return data, nil
}

// newOutcome is the outcome of a request that is stored for the first time.
func (e *Entry) newOutcome() Outcome {
	o := Outcome{Stored: e.Records.Len() - len(e.Result.Refused), Refused: e.refused}
	if len(e.Result.Refused) == 0 {
		return o
	}
	o.Refused = slices.Clone(e.refused)
	for _, r := range e.Result.Refused {
		o.Refused = append(o.Refused, Refusal{Index: e.Records.Index(r.Row), Reason: r.Reason})
	}
	slices.SortFunc(o.Refused, func(a, b Refusal) int { return cmp.Compare(a.Index, b.Index) })
	return o
}

// outcome returns the outcome of a request that was committed.
func (e *Entry) outcome() (Outcome, error) {
	switch {
	case e.Result.Reused:
		return Outcome{}, queue.ErrKeyReused
	case e.Result.Stored == nil:
		return e.newOutcome(), nil
	}
	o := Outcome{Replayed: true}
	if err := json.Unmarshal(e.Result.Stored, &o); err != nil {
		return Outcome{}, fmt.Errorf("read the outcome of an idempotency key: %w", err)
	}
	return o, nil
}

// ticket is a request that was accepted. Result and outcome are set before it is answered.
type ticket struct {
	queue.Ticket
	Entry
	rows, bytes int
	lanes       uint64
	result      Outcome
}

// Commit queues a request's records and waits until they are committed. A record that the
// database refuses is part of the Outcome, not an error. If ctx ends first, the records
// stay queued: the error wraps queue.ErrUnknown and ctx's cause. If a request with the same
// key is queued or being committed, Commit waits for that one.
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
			err := t.Wait(ctx)
			if err != nil {
				return Outcome{}, err
			}
			return t.result, nil
		}
		retry, err := other.Join(ctx, other.Fingerprint == r.Fingerprint)
		switch {
		case retry:
			continue
		case err != nil:
			s.counters.rejected(err)
			return Outcome{}, err
		}
		s.counters.replayed.Add(1)
		outcome := other.result
		outcome.Replayed = true
		return outcome, nil
	}
}

// Accept queues a request's records and does not wait: they are only in this process's
// memory. Its errors are those of Commit before anything is stored.
func (s *Stream) Accept(r Request) error {
	if r.Key == "" && r.Records.Len() == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		return nil
	}
	t, other, err := s.admit(r, time.Now())
	switch {
	case err != nil:
		return err
	case t == nil && other.Fingerprint != r.Fingerprint:
		s.counters.rejected(queue.ErrKeyReused)
		return queue.ErrKeyReused
	}
	return nil
}

// admit queues a request, or returns the queued one with the same key.
func (s *Stream) admit(r Request, now time.Time) (t, other *ticket, err error) {
	if err := queue.CheckKey(r.Key); err != nil {
		return nil, nil, err
	}
	t = &ticket{
		Entry: Entry{Records: r.Records, Key: r.Key, Fingerprint: r.Fingerprint, refused: r.Refused},
		rows:  max(1, r.Records.Len()), bytes: r.Records.Size() + len(r.Key),
	}
	t.Open()
	if r.Key != "" {
		t.Expires = now.Add(s.cfg.KeyTTL)
	}
	t.lanes = r.Records.lanes(len(s.queue.lanes))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, queue.ErrClosed
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

// room returns an error if a request must not be queued. The caller holds mu.
func (s *Stream) room(t *ticket, now time.Time) error {
	limits := queue.Limits{Rows: s.cfg.QueueRows, Bytes: s.cfg.QueueBytes, Wait: s.cfg.WaitMax}
	request := queue.Load{Rows: t.rows, Bytes: t.bytes}
	if s.queue.rows == 0 && s.load.free() && s.queue.held&t.lanes == 0 {
		limits.Wait = 0 // or else a database that was slow would never be tried again
	} else {
		request.Wait = s.predictAt(now, t.lanes, t.rows, t.bytes)
	}
	return limits.Admit(request, queue.Load{Rows: s.queue.rows + s.deferredRows, Bytes: s.queue.bytes + s.deferredBytes})
}

// committer commits one batch after the other until the stream is closed and nothing
// waits. Between two batches it retries deferred requests.
func (s *Stream) committer(n int) {
	s.mu.Lock()
	for turn := 0; ; turn++ {
		if d := s.takeDeferred(time.Now(), turn); d != nil {
			s.retryDeferred(n, d)
			continue
		}
		tickets, held := s.queue.take(s.cfg.BatchRows, s.cfg.BatchBytes)
		if len(tickets) == 0 {
			if s.closed && s.queue.empty() && len(s.deferred) == 0 {
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

		attempts, err := s.commitBatch(b, tickets, start, s.canSplit(tickets))
		split := errors.Is(err, errSplit)
		if split {
			s.split(b, tickets, start)
		}
		took := time.Since(start)
		if !split {
			s.count(b, tickets, took, err)
		}

		s.mu.Lock()
		if !split {
			s.finish(b, tickets, attempts, err)
		}
		s.load.end(n, took, err == nil)
		s.queue.release(held)
		s.mu.Unlock()
		// Let the clients that were just answered send their next records first: these go
		// into this committer's next batch.
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
	s.finished++
	s.tried = time.Now()
	if !errors.Is(err, ErrBlocked) { // a lock does not hold up the records of others
		s.failing = err
	}
}

// giveBack returns the ids that a batch was to forget and did not, because it was not
// stored. The caller holds mu.
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
	b := &Batch{Requests: make([]*Entry, len(tickets))}
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

// settle answers the requests of a batch. The caller holds mu.
func (s *Stream) settle(b *Batch, tickets []*ticket, err error) {
	for _, t := range tickets {
		if t.Key != "" {
			delete(s.keys, t.Key)
		}
		answer := err
		if err == nil {
			t.result, answer = t.outcome()
		}
		t.Answer(answer)
	}
}

// commitBatch has the sink commit a batch and retries it for Config.RetryFor. With split it
// returns errSplit if a lock holds the batch up: nothing was stored then, and no attempt is
// running.
func (s *Stream) commitBatch(b *Batch, tickets []*ticket, start time.Time, split bool) (attempts int, err error) {
	unconfirmed := false
	for attempt := 1; ; attempt++ {
		began := time.Now()
		err := commitWithin(s.base, s.cfg.CommitTimeout, s.sink, b)
		s.maintenance.observe(b.Session, err)
		if err == nil {
			return attempt, nil
		}
		again := errors.Is(err, ErrTransient) || errors.Is(err, ErrUnconfirmed)
		unconfirmed = unconfirmed || errors.Is(err, ErrUnconfirmed)
		pause := queue.Backoff(attempt, backoffFirst, backoffMost)
		over := s.base.Err() != nil || time.Since(start)+pause > s.cfg.RetryFor || !unconfirmed && abandoned(tickets)
		b.Reset()
		if split && !over && !unconfirmed && errors.Is(err, ErrBlocked) {
			s.counters.retries.Add(1)
			return attempt, errSplit
		}
		s.logFailure(err, attempt, !again || over)
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
		if !t.Abandoned() {
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
