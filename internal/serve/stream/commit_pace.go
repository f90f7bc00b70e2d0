package stream

import "time"

// pace decides when a committer begins a batch.
//
// Several clients that wait for their answers send again soon after them. If the first to return began the next batch, it would be alone
// in it, and the others would wait for two commits. So a batch waits until as many requests are there as were around lately, for at most a
// part of the time that a commit takes. A client alone never waits, and if the others did not return in time, the next batches do not
// wait.
//
// While there are no more requests than committers, batches may run side by side. That is of use if the database waits for something: a
// disk, or a standby. If it computes, both batches take longer, and a larger one costs less. So the times of batches that ran alone and
// beside others are compared. If there are more requests, batches grow instead.
//
// Its methods are called with Stream.mu held.
type pace struct {
	alone, beside time.Duration // mean time of a batch that ran alone, and beside another; 0: unknown
	last          uint64        // Stream.finished when a batch was begun beside another last

	active int  // the most requests in a batch or waiting, recently; it decays
	want   int  // requests for which a committer waits; 0: none does
	misses int  // waits in a row that ended without them
	skip   int  // batches that do not wait
	armed  bool // a timer will wake a committer
}

const (
	gatherShare = 4  // a batch waits at most the mean of commits divided by it
	skipMost    = 64 // batches that do not wait after waits that were of no use
	besideEvery = 64 // batches after which one is begun beside another to see whether that pays
)

// ended notes a batch that was stored. n is how many requests were in it or wait.
func (p *pace) ended(took time.Duration, beside bool, n int) {
	mean := &p.alone
	if beside {
		mean = &p.beside
	}
	if *mean == 0 {
		*mean = took
	}
	*mean += time.Duration(weight * float64(took-*mean))
	p.active = max(n, p.active*7/8)
}

// besidePays reports whether a batch beside others takes hardly longer than one alone, or whether that is to be tried.
func (p *pace) besidePays(finished uint64) bool {
	return p.beside == 0 || p.beside < p.alone*5/4 || finished-p.last >= besideEvery
}

// mayBegin reports whether a free committer may begin a batch now. With an order, the lanes decide. Records with a key do not run side by
// side, because equal keys would wait for each other in the database, unless the running batches are stuck. The caller holds mu.
func (s *Stream) mayBegin(now time.Time) bool {
	keyed := len(s.schema.def.Key) > 0
	full := s.queue.rows >= s.cfg.BatchRows || s.queue.bytes >= s.cfg.BatchBytes
	few := s.pace.active <= s.cfg.Committers
	switch {
	case s.pace.want > 0:
		return false
	case s.load.busy == 0, s.queue.ordered:
		return true
	case !keyed && (full || few && s.pace.besidePays(s.finished)):
		return true
	}
	return s.load.allSince(now.Add(-s.stuckTime()))
}

// stuckTime is how long a batch may run before others no longer wait for it.
func (s *Stream) stuckTime() time.Duration {
	if s.load.mean == 0 {
		return s.lockWait()
	}
	return stuckAfter * s.load.mean
}

// allSince reports whether all running commits began by then.
func (l *load) allSince(then time.Time) bool {
	for _, start := range l.running {
		if start.After(then) {
			return false
		}
	}
	return true
}

// wakeCommitter has a committer take what waits: now, or when the running batches are stuck. The caller holds mu.
func (s *Stream) wakeCommitter(now time.Time) {
	switch {
	case s.pace.want > 0:
		if s.queue.requests >= s.pace.want {
			s.more.Signal()
		}
	case s.mayBegin(now):
		s.wake.Signal()
	case !s.pace.armed && s.load.free():
		s.pace.armed = true
		time.AfterFunc(s.stuckTime(), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.pace.armed = false
			if !s.queue.empty() {
				s.wakeCommitter(time.Now())
			}
		})
	}
}

// gather waits until as many requests wait as were around lately. The caller holds mu.
func (s *Stream) gather() {
	p := &s.pace
	if p.active < 2 || s.load.busy > 0 || s.queue.requests >= p.active || s.queue.ordered || s.closed || s.cfg.Memory {
		return
	}
	if p.skip > 0 {
		p.skip--
		return
	}
	limit := s.load.mean / gatherShare
	deadline := time.Now().Add(limit)
	p.want = p.active
	timer := time.AfterFunc(limit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.more.Signal()
	})
	defer timer.Stop()
	for s.queue.requests < p.want && !s.closed && time.Now().Before(deadline) {
		s.more.Wait()
	}
	if s.queue.requests < p.want {
		p.misses++
		p.skip = min(1<<min(p.misses, 6), skipMost)
	} else {
		p.misses = 0
	}
	p.want = 0
}
