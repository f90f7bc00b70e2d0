package popup

import (
	"sync"
	"sync/atomic"
)

// Cache holds states that a store elsewhere has, a limited number of them at 85 to 170
// bytes each: a state for which there is no room takes the place of any other. What it
// gives is as new as the Forgets that have come. Its methods may be called concurrently.
//
//	before := c.Now(key)
//	state, err := read(key)
//	c.Put(key, before, state) // does nothing if the state was forgotten since
type Cache struct {
	limit  int // states in a shard
	seeds  seeds
	shards [shards]cacheShard
}

// Moment is a time in the life of a Cache, for one key.
type Moment uint64

// CacheStats is a snapshot of what a Cache has done.
type CacheStats struct {
	States       int
	Hits, Misses uint64
}

type cacheShard struct {
	mu           sync.RWMutex
	states       table
	now          Moment // goes on when anything of the shard is forgotten
	turn         int    // where the next state that must go is looked for
	hits, misses atomic.Uint64
}

// NewCache returns an empty Cache for limit states. They are spread over 256 shards, each
// of which holds its part, and one at least.
func NewCache(limit int) *Cache {
	return &Cache{limit: max(1, limit/shards), seeds: newSeeds()}
}

// Limit returns how many states it holds at most.
func (c *Cache) Limit() int { return c.limit * shards }

func (c *Cache) find(key Key) (fingerprint, *cacheShard) {
	f := c.seeds.of(key)
	return f, &c.shards[f[0]%shards]
}

// Get returns a state and whether it is there. It allocates nothing.
func (c *Cache) Get(key Key) (State, bool) {
	f, s := c.find(key)
	s.mu.RLock()
	found := s.states.has(f)
	var state State
	if found {
		state = s.states.get(f)
	}
	s.mu.RUnlock()
	if found {
		s.hits.Add(1)
	} else {
		s.misses.Add(1)
	}
	return state, found
}

// Now returns the moment from which on a state that is read may be Put.
func (c *Cache) Now(key Key) Moment {
	_, s := c.find(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now
}

// Put keeps a state that was read after a moment, unless it may have changed since.
func (c *Cache) Put(key Key, read Moment, state State) {
	f, s := c.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != read {
		return
	}
	if s.states.used >= c.limit && !s.states.has(f) {
		s.turn = s.states.evict(s.turn)
	}
	s.states.set(f, state)
}

// Forget drops a state that has changed.
func (c *Cache) Forget(key Key) {
	f, s := c.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now++
	s.states.remove(f)
}

// Clear drops all states.
func (c *Cache) Clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.now++
		s.states = table{}
		s.mu.Unlock()
	}
}

// Stats returns the counters.
func (c *Cache) Stats() CacheStats {
	var sum CacheStats
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		sum.States += s.states.used
		s.mu.RUnlock()
		sum.Hits += s.hits.Load()
		sum.Misses += s.misses.Load()
	}
	return sum
}
