package query

import (
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a query's counters, for metrics.
type Stats struct {
	Name             string        `json:"query" label:"query"`
	Hits             uint64        `json:"memory_answers" metric:"answers_total,source=memory" help:"Requests answered."`
	Stale            uint64        `json:"stale_answers" metric:"answers_total,source=stale"`
	Misses           uint64        `json:"waited_answers" metric:"answers_total,source=waited"`
	Refused          uint64        `json:"refused" metric:"refused_total" help:"Requests not answered."`
	Executions       uint64        `json:"executions" metric:"executions_total" help:"Statements run."`
	ExecutionErrors  uint64        `json:"execution_errors" metric:"execution_errors_total" help:"Statements that failed."`
	ExecutionSeconds float64       `json:"execution_seconds" metric:"execution_seconds_total" help:"Time spent in statements."`
	RenewalErrors    uint64        `json:"-" metric:"renewal_errors_total" help:"Renewals of cached answers that failed."`
	SharedHits       uint64        `json:"-" metric:"shared_hits_total" help:"Answers fetched by another replica."`
	SharedErrors     uint64        `json:"-" metric:"shared_errors_total" help:"Calls of the shared cache that failed."`
	Coalesced        uint64        `json:"-" metric:"coalesced_total" help:"Requests that shared another request's execution."`
	Waiting          int           `json:"waiting" metric:"waiting" help:"Requests waiting for the database."`
	PredictedWait    time.Duration `json:"-" metric:"predicted_wait_seconds" help:"Predicted time of a request that needs the database."`
	NotModified      uint64        `json:"-" metric:"not_modified_total" help:"Responses with 304."`
	CacheEntries     int           `json:"cached" metric:"cache_entries" help:"Answers cached in memory."`
	CacheBytes       int           `json:"bytes" metric:"cache_bytes" help:"Memory of cached answers."`
	Evictions        uint64        `json:"-" metric:"evictions_total" help:"Answers dropped for others."`
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
	waiting, shared := q.lanes.Waiting()
	c := &q.counters
	s := Stats{
		Name: q.cfg.Name, Hits: c.hits.Load(), Stale: c.stale.Load(), Misses: c.misses.Load(), Refused: c.refused.Load(),
		Executions: c.executions.Load(), ExecutionErrors: c.executionErrors.Load(),
		ExecutionSeconds: time.Duration(c.executionNanos.Load()).Seconds(), RenewalErrors: c.renewalErrors.Load(),
		SharedHits: c.sharedHits.Load(), SharedErrors: c.sharedErrors.Load(), Coalesced: shared,
		Waiting: waiting, NotModified: c.notModified.Load(),
		PredictedWait: q.cfg.Gate.PredictedWait(),
	}
	if q.cache != nil {
		s.CacheEntries, s.CacheBytes, s.Evictions = q.cache.usage()
	}
	return s
}
