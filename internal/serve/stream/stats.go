package stream

import (
	"errors"
	"maps"
	"sync"
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
	Replayed        uint64 // requests answered with an earlier one's outcome

	Overloaded map[string]uint64 // requests refused because of what waits, by Overload.Limit
	KeyReused  uint64            // requests whose key has another body
	TooLarge   uint64            // requests that are over the queue's bounds alone
	Unreadable uint64            // requests whose body cannot be read; counted by who reads them

	Batches       uint64
	BatchRows     uint64  // records in them, in all
	CommitSeconds float64 // spent in them, in all
	Retries       uint64  // attempts beyond the first
	Swept         uint64  // rows of the stream's own tables that had expired

	QueueRows     int // those that wait for a lock among them
	QueueBytes    int
	Committing    int           // batches under way
	CommitMean    time.Duration // of the recent commits
	PredictedWait time.Duration // of a record that would come now
}

type counters struct {
	stored, refusedSchema, refusedDatabase, failed, unknown atomic.Uint64
	replayed, batches, batchRows, retries, swept            atomic.Uint64
	keyReused, tooLarge                                     atomic.Uint64
	commitNanos                                             atomic.Int64
	overloads                                               overloads
}

// rejected counts a request that was refused with an error.
func (c *counters) rejected(err error) {
	switch {
	case errors.Is(err, ErrKeyReused):
		c.keyReused.Add(1)
	case errors.Is(err, ErrTooLarge):
		c.tooLarge.Add(1)
	default:
		c.overloads.add(err, 1)
	}
}

// overloads counts what was refused by the limit that was met. Its methods may be
// called concurrently.
type overloads struct {
	mu      sync.Mutex
	byLimit map[string]uint64
}

// add counts n requests where the error is an Overload.
func (o *overloads) add(err error, n int) {
	var over *Overload
	if !errors.As(err, &over) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byLimit == nil {
		o.byLimit = make(map[string]uint64)
	}
	o.byLimit[over.Limit] += uint64(n)
}

func (o *overloads) read() map[string]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.byLimit)
}

// Stats returns the stream's figures.
func (s *Stream) Stats() Stats {
	c := &s.counters
	stats := Stats{
		Name: s.schema.def.Name, Stored: c.stored.Load(), RefusedSchema: c.refusedSchema.Load(),
		RefusedDatabase: c.refusedDatabase.Load(), Failed: c.failed.Load(), Unknown: c.unknown.Load(),
		Overloaded: c.overloads.read(), KeyReused: c.keyReused.Load(), TooLarge: c.tooLarge.Load(), Replayed: c.replayed.Load(), Batches: c.batches.Load(),
		BatchRows: c.batchRows.Load(), CommitSeconds: time.Duration(c.commitNanos.Load()).Seconds(),
		Retries: c.retries.Load(), Swept: c.swept.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.QueueRows, stats.QueueBytes = s.queue.rows+s.asideRows, s.queue.bytes+s.asideBytes
	stats.Committing, stats.CommitMean = s.load.busy, s.load.mean
	stats.PredictedWait = s.predict(1, 1, 0)
	return stats
}
