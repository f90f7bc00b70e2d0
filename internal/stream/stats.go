package stream

import (
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a stream, for metrics.
type Stats struct {
	Name string

	Stored          uint64 // records
	RefusedSchema   uint64 // records that Parse refused, in requests that were answered
	RefusedDatabase uint64 // records that the database refused
	Failed          uint64 // records of batches that were not stored, or that nobody knows of
	Unknown         uint64 // those of them that nobody knows of
	Overloaded      uint64 // requests refused because of what waits
	Replayed        uint64 // requests answered with an earlier one's outcome

	Batches       uint64
	BatchRows     uint64  // records in them, in all
	CommitSeconds float64 // spent in them, in all
	Retries       uint64  // attempts beyond the first
	Swept         uint64  // rows of the stream's own tables that had expired

	QueueRows     int
	QueueBytes    int
	Committing    int           // batches under way
	CommitMean    time.Duration // of the recent commits
	PredictedWait time.Duration // of a record that would come now
}

type counters struct {
	stored, refusedSchema, refusedDatabase, failed, unknown  atomic.Uint64
	overloaded, replayed, batches, batchRows, retries, swept atomic.Uint64
	commitNanos                                              atomic.Int64
}

// Stats returns the stream's figures.
func (s *Stream) Stats() Stats {
	c := &s.counters
	stats := Stats{
		Name: s.schema.def.Name, Stored: c.stored.Load(), RefusedSchema: c.refusedSchema.Load(),
		RefusedDatabase: c.refusedDatabase.Load(), Failed: c.failed.Load(), Unknown: c.unknown.Load(),
		Overloaded: c.overloaded.Load(), Replayed: c.replayed.Load(), Batches: c.batches.Load(),
		BatchRows: c.batchRows.Load(), CommitSeconds: time.Duration(c.commitNanos.Load()).Seconds(),
		Retries: c.retries.Load(), Swept: c.swept.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.QueueRows, stats.QueueBytes = s.queue.rows, s.queue.bytes
	stats.Committing, stats.CommitMean = s.load.busy, s.load.mean
	stats.PredictedWait = s.predict(1, 1, 0)
	return stats
}
