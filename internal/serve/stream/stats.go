package stream

import (
	"errors"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// Stats is a snapshot of a stream, for metrics.
type Stats struct {
	Name string

	Stored          uint64 // records
	RefusedSchema   uint64 // records that Parse refused, in requests that were answered
	RefusedDatabase uint64 // records that the database refused
	Skipped         uint64 // records that count as stored, and that the database did not insert: Batch.Skipped
	Failed          uint64 // records of batches that were not stored, or may not have been
	Unknown         uint64 // those of them that may have been stored
	Replayed        uint64 // requests answered with the outcome of an earlier one

	Overloaded map[string]uint64 // refused requests by queue.Overload.Limit
	KeyReused  uint64            // requests whose key belongs to another body
	TooLarge   uint64            // requests that alone exceed the queue's limits
	Unreadable uint64            // requests whose body cannot be parsed; counted by the server

	Batches   uint64
	BatchRows uint64 // records in them
	Retries   uint64 // attempts beyond the first
	Swept     uint64 // expired rows deleted from the stream's own tables

	QueueRows     int // deferred ones included
	QueueBytes    int
	Committing    int           // batches being committed
	CommitMean    time.Duration // of the recent commits
	PredictedWait time.Duration // of a record that came now
}

type counters struct {
	stored, refusedSchema, refusedDatabase, failed, unknown atomic.Uint64
	skipped                                                 atomic.Uint64
	replayed, batches, batchRows, retries, swept            atomic.Uint64
	keyReused, tooLarge                                     atomic.Uint64
	overloads                                               queue.Overloads
}

// rejected counts a request that was refused with an error.
func (c *counters) rejected(err error) {
	switch {
	case errors.Is(err, queue.ErrKeyReused):
		c.keyReused.Add(1)
	case errors.Is(err, queue.ErrTooLarge):
		c.tooLarge.Add(1)
	default:
		c.overloads.Add(err, 1)
	}
}

// count counts a batch.
func (s *Stream) count(b *Batch, tickets []*ticket, took time.Duration, err error) {
	c := &s.counters
	rows, refused := 0, 0
	for _, t := range tickets {
		switch {
		case t.Result.Stored != nil:
			c.replayed.Add(1)
			continue
		case t.Result.Reused:
			c.rejected(queue.ErrKeyReused)
			continue
		}
		rows += t.Records.Len()
		refused += len(t.Result.Refused)
		c.refusedSchema.Add(uint64(len(t.refused)))
	}
	c.batches.Add(1)
	c.batchRows.Add(uint64(rows))
	if err != nil {
		c.failed.Add(uint64(rows))
		if errors.Is(err, queue.ErrUnknown) {
			c.unknown.Add(uint64(rows))
		}
		return
	}
	c.stored.Add(uint64(rows - refused))
	c.refusedDatabase.Add(uint64(refused))
	c.skipped.Add(uint64(b.Skipped))
	if s.cfg.Committed != nil {
		s.cfg.Committed(rows, refused, took)
	}
}

// Stats returns a snapshot.
func (s *Stream) Stats() Stats {
	c := &s.counters
	stats := Stats{
		Name: s.schema.def.Name, Stored: c.stored.Load(), RefusedSchema: c.refusedSchema.Load(),
		RefusedDatabase: c.refusedDatabase.Load(), Skipped: c.skipped.Load(), Failed: c.failed.Load(), Unknown: c.unknown.Load(),
		Overloaded: c.overloads.Read(), KeyReused: c.keyReused.Load(), TooLarge: c.tooLarge.Load(), Replayed: c.replayed.Load(),
		Batches:   c.batches.Load(),
		BatchRows: c.batchRows.Load(),
		Retries:   c.retries.Load(), Swept: c.swept.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.QueueRows, stats.QueueBytes = s.queue.rows+s.deferredRows, s.queue.bytes+s.deferredBytes
	stats.Committing, stats.CommitMean = s.load.busy, s.load.mean
	stats.PredictedWait = s.predict(1, 1, 0)
	return stats
}
