package query

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// entryBytes is what an entry takes besides its name and rows: the answer, the
// list's element and the map's.
const entryBytes = 256

// cache keeps answers by their arguments, bounded in bytes: the least recently
// asked for go first. It knows no time: whoever asks judges the age.
type cache struct {
	limit int

	mu        sync.Mutex // guards what follows
	entries   *simplelru.LRU[string, *Answer]
	bytes     int
	evictions uint64
}

func newCache(limit int) *cache {
	c := &cache{limit: limit}
	// The bound is the bytes': so many entries of no size never fit.
	entries, err := simplelru.NewLRU(max(limit/entryBytes, 1)+1, func(name string, a *Answer) { c.bytes -= size(name, a) })
	if err != nil {
		panic("bug: a cache of no entries: " + err.Error())
	}
	c.entries = entries
	return c
}

func size(name string, a *Answer) int { return len(name) + cap(a.Data) + entryBytes }

// get returns the answer kept under name, or nil.
func (c *cache) get(name []byte) *Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, _ := c.entries.Get(string(name))
	return a
}

// put keeps an answer. One that is larger than the cache is not kept.
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

// usage returns how much is kept and how many answers had to go.
func (c *cache) usage() (entries, bytes int, evictions uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.Len(), c.bytes, c.evictions
}
