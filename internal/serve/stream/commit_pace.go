package stream

import "time"

// pace decides when a committer begins a batch.
//
// Several clients that wait for their answers send again soon after them. If the first to
// return began the next batch, it would be alone in it, and the others would wait for two
// commits. So a batch waits until as many requests are there as were around lately, for at
// most a part of the time that a commit takes. A client alone never waits, and if the
// others did not return in time, the next batches do not wait.
//
// A second batch beside a running one is of use while the database waits for something: a
// disk, or a standby. While it computes, both take longer, and one larger batch costs less.
// So the times of batches that ran alone and beside others are compared.
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
	gatherShare  = 4  // a batch waits at most the mean of commits divided by it
	skipMost     = 64 // batches that do not wait after waits that were of no use
	besideEvery  = 64 // batches after which one is begun beside another to see whether that pays
	overdueAfter = 2  // times the mean of commits: other batches no longer wait for one that takes longer
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

// besidePays reports whether a batch beside others takes hardly longer than one alone, or whether
// that is to be tried.
func (p *pace) besidePays(finished uint64) bool {
	return p.beside == 0 || p.beside < p.alone*5/4 || finished-p.last >= besideEvery
}

// mayBegin reports whether a free committer may begin a batch now. The caller holds mu.
func (s *Stream) mayBegin(now time.Time) bool {
	switch {
	case s.pace.want > 0:
		return false
	case s.load.busy == 0, s.queue.rows >= s.cfg.BatchRows, s.queue.bytes >= s.cfg.BatchBytes:
		return true
	}
	return s.pace.besidePays(s.finished) || s.load.overdue(now)
}

// overdue reports whether all running commits take longer than usual.
func (l *load) overdue(now time.Time) bool {
	for _, start := range l.running {
		if !start.IsZero() && now.Sub(start) < overdueAfter*l.mean {
			return false
		}
	}
	return true
}

// wakeCommitter has a committer take what waits, now or when the running batches are overdue.
// The caller holds mu.
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
		time.AfterFunc(overdueAfter*s.load.mean, func() {
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
	if p.active < 2 || s.load.busy > 0 || s.queue.requests >= p.active || s.closed || s.cfg.Memory {
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
