package stream

import (
	"errors"
	"slices"
	"time"
)

// A batch that waits for a lock that another session holds is parted, so that the
// requests that need the lock are found and the others stored without them. Without an
// order those are set aside: each is tried again, alone and between other batches,
// for RetryFor. With an order what is behind them must wait for them.

// errParted is the error of a batch that is to be parted.
var errParted = errors.New("the batch is parted")

const (
	lockShare  = 10 // of CommitTimeout a whole batch may wait for a lock
	pieceShare = 10 // and of that a piece of one that has waited
	behindMost = 3  // times RetryFor what is behind such pieces waits for them
)

// lockWait is how long a batch waits for a lock before it is parted.
func (s *Stream) lockWait() time.Duration {
	return max(s.cfg.CommitTimeout/lockShare, time.Millisecond)
}

// pieceWait is how long a piece of it does.
func (s *Stream) pieceWait() time.Duration { return max(s.lockWait()/pieceShare, time.Millisecond) }

// mayPart reports whether a batch of these requests can be parted, or set aside.
func (s *Stream) mayPart(tickets []*ticket) bool { return len(tickets) > 1 || !s.queue.ordered }

// part stores the requests of a batch that a lock holds up in ever smaller pieces, in
// order, and answers them; what needs the lock is set aside. After CommitTimeout it
// parts no more: where so many wait, the others are tried as they are for RetryFor.
// With an order that time begins again behind each request that has had its RetryFor,
// until there were three of them.
func (s *Stream) part(b *Batch, tickets []*ticket, start time.Time) {
	if len(tickets) == 1 {
		s.setAside(b, tickets[0], start, 1)
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
		parts := s.mayPart(piece) && began.Sub(since) < s.cfg.CommitTimeout
		s.mu.Lock()
		s.giveBack(b)
		b = s.newBatch(piece)
		s.mu.Unlock()
		b.LockWait = 0
		if parts {
			b.LockWait = s.pieceWait()
		}
		attempts, err := s.store(b, piece, from, parts)
		switch {
		case errors.Is(err, errParted) && len(piece) == 1:
			s.setAside(b, piece[0], start, 1)
			b = &Batch{}
			continue
		case errors.Is(err, errParted):
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

// aside is a request that waits for a lock.
type aside struct {
	*ticket
	start time.Time // of the first attempt
	due   time.Time // when it is tried again
	tries int
}

// setAside has the one request of a batch tried again after a pause.
func (s *Stream) setAside(b *Batch, t *ticket, start time.Time, tries int) {
	pause := backoff(tries + 3) // from 40 ms on: a lock is held for a while
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveBack(b)
	s.aside = append(s.aside, &aside{ticket: t, start: start, due: time.Now().Add(pause), tries: tries})
	s.asideRows += t.rows
	s.asideBytes += t.bytes
	time.AfterFunc(pause, s.wake.Signal)
}

// takeAside returns a request that is to be tried now, nil where there is none or it is
// the turn of what waits in the queue. The caller holds mu.
func (s *Stream) takeAside(now time.Time, turn int) *aside {
	if len(s.aside) == 0 || turn%2 == 1 && !s.queue.empty() {
		return nil
	}
	over := s.base.Err() != nil
	for i, a := range s.aside {
		if over || !a.due.After(now) {
			s.aside = slices.Delete(s.aside, i, i+1)
			s.asideRows -= a.rows
			s.asideBytes -= a.bytes
			return a
		}
	}
	return nil
}

// tryAside tries a request that was set aside, and answers it or sets it aside again.
// The caller holds mu, which is free meanwhile.
func (s *Stream) tryAside(n int, a *aside) {
	tickets := []*ticket{a.ticket}
	b := s.newBatch(tickets)
	b.LockWait = min(s.lockWait(), s.pieceWait()<<min(a.tries, 10))
	s.load.begin(n, time.Now(), 0)
	s.mu.Unlock()
	attempts, err := s.store(b, tickets, a.start, true)
	if errors.Is(err, errParted) {
		s.setAside(b, a.ticket, a.start, a.tries+1)
	} else {
		s.count(b, tickets, time.Since(a.start), err)
	}
	s.mu.Lock()
	if !errors.Is(err, errParted) {
		s.finish(b, tickets, attempts, err)
	}
	s.load.end(n, 0, false)
}
