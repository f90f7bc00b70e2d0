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
//
// A batch that the database refuses for what no client has sent is split in the same way.
//
// A batch that fails for good is split too, because one request may be the cause.

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

// splitting is the work of splitting one batch.
type splitting struct {
	start  time.Time   // of the batch
	since  time.Time   // of the time during which pieces are split that a lock holds up
	pieces [][]*ticket // the next one last
	batch  *Batch      // tried last; its requests were not stored

	stored  bool // a piece was stored
	failed  int  // pieces that failed for good since one was stored
	limit   int  // of these that are split
	refused int  // pieces with ErrRefused since one was stored

	failing [][]*ticket // pieces that failed beyond the limit
	again   bool        // a piece was stored since these were last taken
	err     error       // of the last of them
}

// add adds the halves of a piece.
func (p *splitting) add(piece []*ticket) {
	p.pieces = append(p.pieces, piece[len(piece)/2:], piece[:len(piece)/2])
}

// split stores the requests of a batch that failed with err in ever smaller pieces, in
// order, and answers them.
//
// A request that needs a lock is deferred. After CommitTimeout split does not split further
// because of locks, and tries the pieces that are left for RetryFor. With an order, RetryFor
// begins again behind each request that has used it up, up to three times.
//
// So is one that is refused for what no client has sent. After refusedMost of these pieces, all
// requests may be: the others are not split further.
//
// A request that makes the transaction fail gets its error. If many pieces fail and none is
// stored in between, the cause may not be a request: the pieces that are left are tried once
// each. If one is stored, those that failed are split further, unless an order forbids to
// store them behind it. Else all of their requests get the error.
func (s *Stream) split(b *Batch, tickets []*ticket, start time.Time, err error) {
	if len(tickets) == 1 {
		s.deferRequest(b, tickets[0], start, 1)
		return
	}
	p := &splitting{start: start, since: start, batch: b, limit: min(2*len(tickets), failedMost)}
	p.add(tickets)
	for len(p.pieces) > 0 {
		piece := p.pieces[len(p.pieces)-1]
		p.pieces = p.pieces[:len(p.pieces)-1]
		s.store(p, piece)
		if len(p.pieces) == 0 && p.again {
			p.pieces, p.failing = p.failing, nil
			p.again, p.failed = false, 0
		}
	}
	for _, piece := range p.failing {
		s.end(&Batch{}, piece, 1, 0, p.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveBack(p.batch)
	if p.stored && p.failed <= p.limit && isDefinite(s.failing) {
		s.failing = nil // single requests have failed, not the stream
	}
}

// failedMost is how many pieces of a batch may fail before one is stored. A batch of half as
// many requests is split to the end.
const failedMost = 256

// refusedMost is how many pieces may be refused with ErrRefused before one is stored.
const refusedMost = 64

// store stores a piece of a split batch, or splits it.
func (s *Stream) store(p *splitting, piece []*ticket) {
	began := time.Now()
	from := p.start
	if s.queue.ordered && began.Sub(p.start) < behindMost*s.cfg.RetryFor {
		from = began // it may have waited for those before it
	}
	split := s.canSplit(piece) && began.Sub(p.since) < s.cfg.CommitTimeout && p.refused < refusedMost
	s.mu.Lock()
	s.giveBack(p.batch)
	b := s.newBatch(piece)
	s.mu.Unlock()
	p.batch = b
	b.LockWait = 0
	if split {
		b.LockWait = s.pieceWait()
	}
	attempts, err := s.commitBatch(b, piece, from, split)
	if errors.Is(err, ErrRefused) {
		p.refused++
	}
	switch {
	case errors.Is(err, errSplit) && len(piece) == 1:
		s.deferRequest(b, piece[0], p.start, 1)
		p.batch = &Batch{}
		return
	case errors.Is(err, errSplit):
		p.add(piece)
		return
	case isDefinite(err):
		p.failed++
		p.err = err
		switch {
		case len(piece) > 1 && p.failed <= p.limit:
			p.add(piece)
			return
		case len(piece) > 1 && !s.queue.ordered:
			p.failing = append(p.failing, piece)
			return
		}
	case err == nil:
		p.stored, p.again, p.failed, p.refused = true, true, 0, 0
	}
	if from == began && len(piece) == 1 {
		p.since = time.Now()
	}
	s.end(b, piece, attempts, time.Since(began), err)
	p.batch = &Batch{}
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
	time.AfterFunc(pause, func() {
		s.mu.Lock() // a committer that has just found nothing to do is waiting then
		defer s.mu.Unlock()
		s.wake.Signal()
	})
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
		s.end(b, tickets, attempts, time.Since(d.start), err)
	}
	s.mu.Lock()
	s.load.end(n, 0, false)
}
