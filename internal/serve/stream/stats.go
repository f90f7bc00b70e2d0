package stream

import (
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// Stats is a snapshot of a stream, for metrics.
type Stats struct {
	Name string `json:"stream" label:"stream"`

	// What Derive sets.
	Ack       string            `json:"ack"`           // what an acknowledgement is worth now
	Refused   map[string]uint64 `json:"refused"`       // by reason
	BatchMean float64           `json:"batch_records"` // of a transaction

	Stored          uint64 `json:"stored" metric:"records_total,result=stored" help:"Records by result."`
	RefusedSchema   uint64 `json:"-" metric:"records_total,result=refused_schema"`
	RefusedDatabase uint64 `json:"-" metric:"records_total,result=refused_database"`
	Skipped         uint64 `json:"-" metric:"skipped_total" help:"Records counted as stored that the database did not insert."`
	Failed          uint64 `json:"-"` // records of batches that were not stored, or may not have been
	Unknown         uint64 `json:"-" metric:"records_total,result=unknown"`
	Replayed        uint64 `json:"-" metric:"replays_total" help:"Requests with a known Idempotency-Key."`

	Overloaded map[string]uint64 `json:"-" metric:"overloads_total,limit=wait_max|queue_rows|queue_bytes|spool_bytes|disk" help:"Refusals by limit."`
	KeyReused  uint64            `json:"-" metric:"rejections_total,reason=key_reused" help:"Requests rejected permanently, by reason."`
	TooLarge   uint64            `json:"-" metric:"rejections_total,reason=too_large"`
	Unreadable uint64            `json:"-" metric:"rejections_total,reason=unreadable"`

	Batches   uint64 `json:"-" metric:"batches_total" help:"Transactions; retries are not counted."`
	BatchRows uint64 `json:"-"` // records in them
	Retries   uint64 `json:"-" metric:"retries_total" help:"Attempts to commit beyond the first."`
	Swept     uint64 `json:"-" metric:"swept_total" help:"Expired rows deleted from Spillway's tables."`

	QueueRows     int           `json:"queue_records" metric:"queue_rows" help:"Records waiting for a transaction."`
	QueueBytes    int           `json:"-" metric:"queue_bytes" help:"Memory of waiting records."`
	Committing    int           `json:"-" metric:"committing" help:"Running transactions."`
	CommitSeconds float64       `json:"commit_seconds" metric:"commit_mean_seconds" help:"Weighted mean time of recent transactions."`
	PredictedWait time.Duration `json:"-" metric:"predicted_wait_seconds" help:"Predicted wait of a new record."`
}

// Derive sets what follows from the other fields, and the level at which the stream acknowledges.
func (s *Stats) Derive(ack string) {
	s.Ack, s.BatchMean = ack, float64(s.BatchRows)/float64(max(1, s.Batches))
	s.Refused = map[string]uint64{
		"schema": s.RefusedSchema, "database": s.RefusedDatabase, "unreadable": s.Unreadable, "too_large": s.TooLarge, "key_reused": s.KeyReused,
		"failed": s.Failed,
	}
	maps.Copy(s.Refused, s.Overloaded)
	maps.DeleteFunc(s.Refused, func(_ string, n uint64) bool { return n == 0 })
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

// Stats returns a snapshot. That of a Spooled is of the drain: Stored are records in the table, Batches what
// was drained. What waits is in the spool's Stats.
func (c *core) Stats() Stats {
	n := &c.counters
	return Stats{
		Name: c.name, Stored: n.stored.Load(), RefusedSchema: n.refusedSchema.Load(), RefusedDatabase: n.refusedDatabase.Load(),
		Skipped: n.skipped.Load(), Replayed: n.replayed.Load(),
		Unknown: n.unknown.Load(), Failed: n.failed.Load(), // in this order, so that none is unknown that has not failed
		Overloaded: n.overloads.Read(), KeyReused: n.keyReused.Load(), TooLarge: n.tooLarge.Load(),
		Batches: n.batches.Load(), BatchRows: n.batchRows.Load(), Retries: n.retries.Load(), Swept: n.swept.Load(),
	}
}

// Stats returns a snapshot.
func (s *Stream) Stats() Stats {
	stats := s.core.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.QueueRows, stats.QueueBytes = s.queue.rows+s.deferredRows, s.queue.bytes+s.deferredBytes
	stats.Committing, stats.CommitSeconds = s.load.busy, s.load.mean.Seconds()
	stats.PredictedWait = s.predict(1, 1, 0)
	return stats
}
