package popup

import "time"

// A Memory keeps the states that were used last, and leaves the others to the database (partial). A
// state is evicted only if the database has it: none of its events waits in the spool. As in
// Redis (maxmemory-samples), the victim is the longest idle of a few.
//
// The way of a state:
//
//	replace  the table has it, and pending its version
//	Record   the spool has its event; after an error putBack puts back the state and pending of before
//	stored   the database has the event: pending forgets the version
//	evict    the table does not have it, and gone its key for a minute
//	Get      Lookups reads it from the database, and Restore puts it into the table

const (
	evictSample = 16          // states that are compared
	evictVisit  = 8 * 64      // cells that are visited for them
	goneFor     = time.Minute // for which a shard remembers at least what it evicted
)

// partial reports whether states of the database may be missing.
func (m *Memory) partial() bool { return m.evicted.Load() > 0 }

// waiting notes that an event waits in the spool; the shard is locked.
func (s *shard) waiting(f fingerprint, version uint64) {
	if s.pending == nil {
		s.pending = map[fingerprint]uint64{}
	}
	s.pending[f] = max(s.pending[f], version)
}

// stored notes that the database has events.
func (m *Memory) stored(events []Event) {
	for i := range events {
		f, s := m.find(events[i].Key)
		s.mu.Lock()
		if s.pending[f] <= events[i].Sequence {
			delete(s.pending, f)
		}
		s.mu.Unlock()
	}
}

// evict removes a state from a shard, which is locked, or else from another one. It reports
// whether it did.
func (m *Memory) evict(own *shard) bool {
	if own.evict() {
		m.evicted.Add(1)
		return true
	}
	for i := range m.shards {
		s := &m.shards[i]
		if s == own || !s.mu.TryLock() { // two requests could wait for each other
			continue
		}
		done := s.evict()
		if done {
			m.evicted.Add(1) // before a Get of the state finds nothing, and asks partial
		}
		s.mu.Unlock()
		if done {
			return true
		}
	}
	return false
}

// evict removes the longest idle of some states that the database has. Those that were
// answered come first: the others are due sooner.
func (s *shard) evict() bool {
	t := &s.states
	if t.used == 0 {
		return false
	}
	mask, sampled := len(t.cells)-1, 0
	var victim *cell
	for visited := 0; visited < min(len(t.cells), evictVisit) && sampled < evictSample; visited++ {
		c := &t.cells[s.evictAt&mask]
		s.evictAt++
		if _, waits := s.pending[c.key]; c.key == (fingerprint{}) || waits {
			continue
		}
		sampled++
		if victim == nil || (c.phase != Shown) != (victim.phase != Shown) && c.phase != Shown ||
			(c.phase != Shown) == (victim.phase != Shown) && c.last() < victim.last() {
			victim = c
		}
	}
	if victim == nil {
		return false
	}
	s.remember(victim.key)
	t.remove(victim.key)
	return true
}

// remember notes an evicted state. A request that saw no state before, because the user was
// new, must not store one as if there were none.
func (s *shard) remember(f fingerprint) {
	if now := time.Now(); now.Sub(s.goneSince) > goneFor {
		s.gone[1], s.gone[0], s.goneSince = s.gone[0], nil, now
	}
	if s.gone[0] == nil {
		s.gone[0] = map[fingerprint]bool{}
	}
	s.gone[0][f] = true
}

// wasEvicted reports whether a state was evicted lately.
func (s *shard) wasEvicted(f fingerprint) bool { return s.gone[0][f] || s.gone[1][f] }

// last returns the time of the last show or answer.
func (c *cell) last() int64 { return max(c.shown, c.answered) }
