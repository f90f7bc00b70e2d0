package query

import (
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a query's counters, for metrics.
type Stats struct {
	Name             string
	Hits             uint64 // answered from memory within the TTL
	Stale            uint64 // answered from memory after the TTL
	Misses           uint64 // answered by an execution or the shared cache
	Refused          uint64 // not answered
	Executions       uint64 // statements run
	ExecutionErrors  uint64
	ExecutionSeconds float64 // total time of executions
	RenewalErrors    uint64
	SharedHits       uint64 // answers that another replica had fetched
	SharedErrors     uint64
	Coalesced        uint64        // requests that shared another's execution
	Waiting          int           // requests waiting now
	PredictedWait    time.Duration // of a request that arrives now and needs the database
	NotModified      uint64        // answered with 304
	CacheEntries     int
	CacheBytes       int
	Evictions        uint64
}

type counters struct {
	hits, stale, misses, refused, notModified  atomic.Uint64
	executions, executionErrors, renewalErrors atomic.Uint64
	sharedHits, sharedErrors                   atomic.Uint64
	executionNanos                             atomic.Int64
}

func (c *counters) executed(took time.Duration, err error) {
	c.executions.Add(1)
	c.executionNanos.Add(int64(took))
	if err != nil {
		c.executionErrors.Add(1)
	}
}

// CountNotModified counts a response with 304.
func (q *Query) CountNotModified() { q.counters.notModified.Add(1) }

// Stats returns the query's counters.
func (q *Query) Stats() Stats {
	waiting, shared := q.group.Waiting()
	c := &q.counters
	s := Stats{
		Name: q.cfg.Name, Hits: c.hits.Load(), Stale: c.stale.Load(), Misses: c.misses.Load(), Refused: c.refused.Load(),
		Executions: c.executions.Load(), ExecutionErrors: c.executionErrors.Load(),
		ExecutionSeconds: time.Duration(c.executionNanos.Load()).Seconds(), RenewalErrors: c.renewalErrors.Load(),
		SharedHits: c.sharedHits.Load(), SharedErrors: c.sharedErrors.Load(), Coalesced: shared, Waiting: waiting,
		NotModified: c.notModified.Load(), PredictedWait: q.cfg.Gate.PredictedWait(),
	}
	if q.cache != nil {
		s.CacheEntries, s.CacheBytes, s.Evictions = q.cache.usage()
	}
	return s
}
