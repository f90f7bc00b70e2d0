package stream

import (
	"errors"
	"time"

	"spillway/internal/serve/queue"
)

// ErrShared: Begin has done nothing, because a request with the same idempotency key is being stored. Store waits for that one.
var ErrShared = errors.New("a request with this idempotency key is being stored")

// Waiting is a request that Begin has queued.
type Waiting interface {
	// Receipt returns what Store would. It may be called once ready was.
	Receipt() (Receipt, error)
	// Abandon notes that nobody waits any more. It does not take back what is queued.
	Abandon()
}

// Begin is Store without waiting. If w is not nil, the request is queued: ready is called once, perhaps before Begin returns and with
// locks held, when w has the results. Otherwise they are known at once, or the error is ErrShared.
func (s *Stream) Begin(r Request, ready func()) (receipt Receipt, w Waiting, err error) {
	if s.cfg.Memory || r.Key == "" && r.Records.Len() == 0 {
		receipt, err = s.Store(s.base, r) // does not wait
		return receipt, nil, err
	}
	t, _, err := s.admit(r, time.Now(), ready)
	switch {
	case err != nil:
		return Receipt{}, nil, err
	case t == nil:
		return Receipt{}, nil, ErrShared
	}
	return Receipt{}, waiting{s, t}, nil
}

// waiting is a queued request.
type waiting struct {
	*Stream
	*ticket
}

// Receipt implements Waiting.
func (w waiting) Receipt() (Receipt, error) {
	if err := w.Answered(); err != nil {
		return w.receipt(Outcome{}), err
	}
	return w.receipt(w.result), nil
}

// Begin is Stream.Begin.
func (s *Spooled) Begin(r Request, ready func()) (receipt Receipt, w Waiting, err error) {
	receipt, e, err := s.entry(r)
	if err != nil || e.At.IsZero() {
		return receipt, nil, err
	}
	t, ok, err := s.spool.Begin(s.name, e, ready)
	switch {
	case err != nil:
		s.counters.rejected(err)
		return Receipt{}, nil, err
	case !ok:
		return Receipt{}, nil, ErrShared
	}
	return Receipt{}, &spooling{s, t, receipt}, nil
}

// spooling is a request whose group is being written.
type spooling struct {
	stream *Spooled
	queue.Appending
	receipt Receipt
}

// Receipt implements Waiting.
func (w *spooling) Receipt() (Receipt, error) {
	replayed, err := w.Appended()
	return w.stream.appended(w.receipt, replayed, err)
}
