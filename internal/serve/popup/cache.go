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
//	_, before, _ := c.Get(key)
//	state, err := read(key)
//	c.Put(key, before, state) // does nothing after a Forget
type Cache struct {
	limit  int // states in a shard
	seeds  seeds
	shards [shards]cacheShard
}

// ShardVersion counts the changes of a key's shard. See Cache.
type ShardVersion uint64

// CacheStats is a snapshot of a Cache, for metrics.
type CacheStats struct {
	States int    `metric:"cache_states" help:"States in the cache of this process."`
	Hits   uint64 `metric:"cache_hits_total" help:"Requests answered from the cache; 0 without one."`
	Misses uint64 `metric:"cache_misses_total" help:"Requests that read Redis; 0 without a cache."`
}

type cacheShard struct {
	mu           sync.RWMutex
	states       table
	version      ShardVersion
	evictAt      int // cell at which the next eviction starts
	hits, misses atomic.Uint64
}

// NewCache returns an empty Cache for limit states, rounded to at least one in each of 256
// shards.
func NewCache(limit int) *Cache {
	return &Cache{limit: max(1, limit/shards), seeds: newSeeds()}
}

func (c *Cache) find(key Key) (fingerprint, *cacheShard) {
	f, i := c.seeds.of(key)
	return f, &c.shards[i]
}

// Get returns a state and whether the cache has it, and the version of its shard, for Put. It
// allocates nothing.
func (c *Cache) Get(key Key) (state State, version ShardVersion, found bool) {
	f, s := c.find(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.states.has(f) {
		s.misses.Add(1)
		return State{}, s.version, false
	}
	s.hits.Add(1)
	return s.states.get(f), s.version, true
}

// Known is Get that counts nothing. If the state is used, the caller adds 1 to hits.
func (c *Cache) Known(key Key) (state State, hits *atomic.Uint64, known bool) {
	f, s := c.find(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.states.has(f) {
		return State{}, nil, false
	}
	return s.states.get(f), &s.hits, true
}

// Put adds a state that was read at a version of its shard, unless its shard has changed since.
func (c *Cache) Put(key Key, read ShardVersion, state State) {
	f, s := c.find(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version != read {
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
	s.version++
	s.states.remove(f)
}

// Clear removes all states.
func (c *Cache) Clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.version++
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
