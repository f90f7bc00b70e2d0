package stream

import (
	"errors"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// A batch that waits for a lock of another session is split, until the requests that need
// the lock are found and the others are stored without them. Without an order, these
// requests are deferred: each is retried alone, between other batches, for RetryFor. With
// an order, the requests behind them must wait for them.

// errSplit is the error of a batch that is to be split.
var errSplit = errors.New("the batch is to be split")

const (
	lockShare  = 10 // CommitTimeout divided by it is how long a batch waits for a lock
	pieceShare = 10 // and that divided by it, how long a piece of a split batch does
	behindMost = 3  // times RetryFor is how long requests behind such pieces wait
)

// lockWait is how long a batch waits for a lock before it is split.
func (s *Stream) lockWait() time.Duration {
	return max(s.cfg.CommitTimeout/lockShare, time.Millisecond)
}

// pieceWait is how long a piece of a split batch waits for a lock.
func (s *Stream) pieceWait() time.Duration { return max(s.lockWait()/pieceShare, time.Millisecond) }

// canSplit reports whether a batch of these requests can be split, or deferred.
func (s *Stream) canSplit(tickets []*ticket) bool { return len(tickets) > 1 || !s.queue.ordered }

// split stores the requests of a batch that a lock holds up in ever smaller pieces, in
// order, and answers them. A request that needs the lock is deferred. After CommitTimeout
// it splits no further, and tries the pieces that are left for RetryFor. With an order,
// RetryFor begins again behind each request that has used it up, up to three times.
func (s *Stream) split(b *Batch, tickets []*ticket, start time.Time) {
	if len(tickets) == 1 {
		s.deferRequest(b, tickets[0], start, 1)
		return
	}
	halves := func(t []*ticket) [][]*ticket { return [][]*ticket{t[len(t)/2:], t[:len(t)/2]} }
	pieces := halves(tickets) // the next one last
	since := start
	for len(pieces) > 0 {
		piece := pieces[len(pieces)-1]
		pieces = pieces[:len(pieces)-1]
		began := time.Now()
		from := start
		if s.queue.ordered && began.Sub(start) < behindMost*s.cfg.RetryFor {
			from = began // it may have waited for those before it
		}
		split := s.canSplit(piece) && began.Sub(since) < s.cfg.CommitTimeout
		s.mu.Lock()
		s.giveBack(b)
		b = s.newBatch(piece)
		s.mu.Unlock()
		b.LockWait = 0
		if split {
			b.LockWait = s.pieceWait()
		}
		attempts, err := s.commitBatch(b, piece, from, split)
		switch {
		case errors.Is(err, errSplit) && len(piece) == 1:
			s.deferRequest(b, piece[0], start, 1)
			b = &Batch{}
			continue
		case errors.Is(err, errSplit):
			pieces = append(pieces, halves(piece)...)
			continue
		}
		if from == began && len(piece) == 1 {
			since = time.Now()
		}
		s.count(b, piece, time.Since(began), err)
		s.mu.Lock()
		s.finish(b, piece, attempts, err)
		s.mu.Unlock()
		b = &Batch{}
	}
}

// deferred is a request that waits for a lock.
type deferred struct {
	*ticket
	start    time.Time // of the first attempt
	due      time.Time // of the next one
	attempts int
}

// deferRequest has the one request of a batch retried after a pause.
func (s *Stream) deferRequest(b *Batch, t *ticket, start time.Time, attempts int) {
	pause := queue.Backoff(attempts+3, backoffFirst, backoffMost) // from 40 ms: a lock is held for a while
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveBack(b)
	s.deferred = append(s.deferred, &deferred{ticket: t, start: start, due: time.Now().Add(pause), attempts: attempts})
	s.deferredRows += t.rows
	s.deferredBytes += t.bytes
	time.AfterFunc(pause, s.wake.Signal)
}

// takeDeferred returns a deferred request that is due. It returns nil if there is none, and
// at every other turn while other requests wait. The caller holds mu.
func (s *Stream) takeDeferred(now time.Time, turn int) *deferred {
	if len(s.deferred) == 0 || turn%2 == 1 && !s.queue.empty() {
		return nil
	}
	over := s.base.Err() != nil
	for i, d := range s.deferred {
		if over || !d.due.After(now) {
			s.deferred = slices.Delete(s.deferred, i, i+1)
			s.deferredRows -= d.rows
			s.deferredBytes -= d.bytes
			return d
		}
	}
	return nil
}

// retryDeferred retries a deferred request, and answers it or defers it again. The caller
// holds mu; retryDeferred releases it meanwhile.
func (s *Stream) retryDeferred(n int, d *deferred) {
	tickets := []*ticket{d.ticket}
	b := s.newBatch(tickets)
	b.LockWait = min(s.lockWait(), s.pieceWait()<<min(d.attempts, 10))
	s.load.begin(n, time.Now(), 0)
	s.mu.Unlock()
	attempts, err := s.commitBatch(b, tickets, d.start, true)
	if errors.Is(err, errSplit) {
		s.deferRequest(b, d.ticket, d.start, d.attempts+1)
	} else {
		s.count(b, tickets, time.Since(d.start), err)
	}
	s.mu.Lock()
	if !errors.Is(err, errSplit) {
		s.finish(b, tickets, attempts, err)
	}
	s.load.end(n, 0, false)
}
