package stream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
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
	Level    string    `json:"-"`                 // what the COMMIT was worth: Batch.Level
}

// OutcomeNow returns the outcome of a request as spillway_requests keeps it. A Sink calls it
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

// Waiting is a request that Begin has accepted.
type Waiting interface {
	// Receipt waits until the request is answered. A record that the database refuses is part of the
	// Outcome, not an error. If ctx ends first, the request stays queued: the error wraps
	// queue.ErrUnknown and ctx's cause.
	Receipt(ctx context.Context) (Receipt, error)
	// Abandon notes that nobody waits any more.
	Abandon()
}

// Begin queues a request's records and does not wait until they are stored. If w is nil, the
// receipt is already known. Otherwise w has it, and ready, if it is not nil, is called when Receipt
// need not wait any more: see queue.Ticket.
//
// If a request with the same key is queued or being committed, Begin waits for that one, or until
// ctx ends. With ready, the error is queue.ErrShared instead, and nothing has happened.
func (s *Stream) Begin(ctx context.Context, r Request, ready func() (wake func())) (receipt Receipt, w Waiting, err error) {
	known := Receipt{Outcome: Outcome{Stored: r.Records.Len(), Refused: r.Refused}, Pending: s.cfg.Memory}
	if r.Key == "" && r.Records.Len() == 0 {
		s.counters.refusedSchema.Add(uint64(len(r.Refused)))
		known.Ack = s.Ack()
		return known, nil, nil
	}
	if s.cfg.Memory {
		ready = nil // no answer is waited for
	}
	for {
		t, other, err := s.admit(r, time.Now(), ready)
		same := other == nil || other.Fingerprint == r.Fingerprint
		switch {
		case err != nil:
			return Receipt{}, nil, err
		case s.cfg.Memory && same:
			known.Ack = AckMemory
			return known, nil, nil
		case other == nil:
			return Receipt{}, t, nil
		case ready != nil:
			return Receipt{}, nil, queue.ErrShared
		}
		retry, err := false, queue.ErrKeyReused
		if !s.cfg.Memory {
			retry, err = other.Join(ctx, same)
		}
		switch {
		case err != nil:
			s.counters.rejected(err)
			return Receipt{}, nil, err
		case !retry:
			s.counters.replayed.Add(1)
			outcome := other.result
			outcome.Replayed = true
			return s.receipt(outcome), nil, nil
		}
	}
}

// ticket is a request that was accepted. Result and outcome are set before it is answered.
type ticket struct {
	queue.Ticket
	Entry
	stream      *Stream
	rows, bytes int
	lanes       uint64
	result      Outcome

	late      bool    // it was answered before its COMMIT was
	successor *ticket // of a late one with a key: what requests with the same key wait for
}

// Receipt implements Waiting.
func (t *ticket) Receipt(ctx context.Context) (Receipt, error) {
	if err := t.Wait(ctx); err != nil {
		return Receipt{}, err
	}
	return t.stream.receipt(t.result), nil
}

// admit queues a request, or returns the queued one with the same key. ready is that of Ticket.Open.
func (s *Stream) admit(r Request, now time.Time, ready func() (wake func())) (t, other *ticket, err error) {
	if err := queue.CheckKey(r.Key); err != nil {
		return nil, nil, err
	}
	t = &ticket{
		Entry:  Entry{Records: r.Records, Key: r.Key, Fingerprint: r.Fingerprint, refused: r.Refused},
		stream: s, rows: max(1, r.Records.Len()), bytes: r.Records.Size() + len(r.Key),
	}
	t.Open(ready, r.Key != "")
	t.lanes = r.Records.lanes(len(s.queue.lanes), s.schema.orderBy)
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
	s.wakeCommitter(now)
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
