package popup

import (
	"sync"
	"sync/atomic"
)

// Cache holds copies of states of a Store elsewhere, up to a limit, at 85 to 170 bytes each.
// If it is full, a new state replaces an arbitrary one. Its methods may be called
// concurrently.
//
// Forget removes a state that has changed. A state that was read before the change is not
// added after it:
//
//	before := c.Now(key)
//	state, err := read(key)
//	c.Put(key, before, state) // does nothing after a Forget
type Cache struct {
	limit  int // states in a shard
	seeds  seeds
	shards [shards]cacheShard
}

// Moment counts the changes of a key's shard. See Cache.
type Moment uint64

// CacheStats is a snapshot of a Cache, for metrics.
type CacheStats struct {
	States       int
	Hits, Misses uint64
}

type cacheShard struct {
	mu           sync.RWMutex
	states       table
	now          Moment
	evictAt      int // cell at which the next eviction starts
	hits, misses atomic.Uint64
}

// NewCache returns an empty Cache for limit states, rounded to at least one in each of 256
// shards.
func NewCache(limit int) *Cache {
	return &Cache{limit: max(1, limit/shards), seeds: newSeeds()}
}

// Limit returns the maximum of states.
func (c *Cache) Limit() int { return c.limit * shards }

func (c *Cache) find(key Key) (fingerprint, *cacheShard) {
	f := c.seeds.of(key)
	return f, &c.shards[f[0]%shards]
}

// Get returns a state and whether the cache has it. It allocates nothing.
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

// Now returns the moment for Put. Call it before the state is read.
func (c *Cache) Now(key Key) Moment {
	_, s := c.find(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now
}

// Put adds a state that was read after a moment, unless its shard has changed since.
func (c *Cache) Put(key Key, read Moment, state State) {
	f, s := c.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != read {
		return
	}
	if s.states.used >= c.limit && !s.states.has(f) {
		s.evictAt = s.states.evict(s.evictAt)
	}
	s.states.set(f, state)
}

// Forget removes a state that has changed.
func (c *Cache) Forget(key Key) {
	f, s := c.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now++
	s.states.remove(f)
}

// Clear removes all states.
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
