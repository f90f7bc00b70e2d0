package query

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// entryBytes is the memory of an entry besides its name and rows.
const entryBytes = 320

// cache holds answers by their arguments, bounded in bytes. It drops the least recently used
// first. The caller judges their age.
type cache struct {
	limit int

	mu        sync.Mutex // guards what follows
	entries   *simplelru.LRU[string, *Answer]
	bytes     int
	evictions uint64
}

func newCache(limit int) *cache {
	c := &cache{limit: limit}
	// Only bytes limit the cache: this many entries never fit.
	entries, err := simplelru.NewLRU(max(limit/entryBytes, 1)+1, func(name string, a *Answer) {
		c.bytes -= size(name, a)
		a.Forms.Release()
	})
	if err != nil {
		panic("bug: a cache of no entries: " + err.Error())
	}
	c.entries = entries
	return c
}

func size(name string, a *Answer) int { return len(name) + cap(a.Data) + entryBytes }

// get returns the answer of name, or nil.
func (c *cache) get(name []byte) *Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, _ := c.entries.Get(string(name))
	return a
}

// put adds an answer, unless it is larger than the cache.
func (c *cache) put(name string, a *Answer) {
	n := size(name, a)
	if n > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Remove(name)
	for c.bytes+n > c.limit {
		c.entries.RemoveOldest()
		c.evictions++
	}
	c.entries.Add(name, a)
	c.bytes += n
}

// clear drops all answers.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Purge()
}

// usage returns the content's size, and how many answers were dropped.
func (c *cache) usage() (entries, bytes int, evictions uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.Len(), c.bytes, c.evictions
}
