package query

import (
	"sync/atomic"
	"time"
)

// complainEvery is the least time between two lines of the log about one query's
// errors.
const complainEvery = time.Second

// Complaints keeps a query whose database is down from filling the log: one line a
// second, which says how many errors had none. The zero value is ready. Its
// methods may be called concurrently.
type Complaints struct {
	last   atomic.Int64 // Unix ns of the last line
	silent atomic.Uint64
	open   atomic.Bool // the last line told an error
}

// Due reports whether an error at now gets a line, and how many before it got none.
func (c *Complaints) Due(now time.Time) (silent uint64, due bool) {
	last := c.last.Load()
	if now.UnixNano()-last < int64(complainEvery) || !c.last.CompareAndSwap(last, now.UnixNano()) {
		c.silent.Add(1)
		return 0, false
	}
	c.open.Store(true)
	return c.silent.Swap(0), true
}

// Over reports, once after errors, that a success at now is worth a line, and how
// many errors had none.
func (c *Complaints) Over(now time.Time) (silent uint64, due bool) {
	if !c.open.Load() || now.UnixNano()-c.last.Load() < int64(complainEvery) || !c.open.CompareAndSwap(true, false) {
		return 0, false
	}
	return c.silent.Swap(0), true
}
