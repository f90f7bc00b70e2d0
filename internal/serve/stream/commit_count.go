package stream

import (
	"errors"
	"time"
)

// count books a batch.
func (s *Stream) count(b *Batch, tickets []*ticket, took time.Duration, err error) {
	c := &s.counters
	rows, refused := 0, 0
	for _, t := range tickets {
		switch {
		case t.Result.Stored != nil:
			c.replayed.Add(1)
			continue
		case t.Result.Reused:
			c.rejected(ErrKeyReused)
			continue
		}
		rows += t.Records.Len()
		refused += len(t.Result.Refused)
		c.refusedSchema.Add(uint64(len(t.refused)))
	}
	c.batches.Add(1)
	c.batchRows.Add(uint64(rows))
	c.commitNanos.Add(int64(took))
	if err != nil {
		c.failed.Add(uint64(rows))
		if errors.Is(err, ErrUnknown) {
			c.unknown.Add(uint64(rows))
		}
		return
	}
	c.stored.Add(uint64(rows - refused))
	c.refusedDatabase.Add(uint64(refused))
	if s.cfg.Committed != nil {
		s.cfg.Committed(rows, refused, took)
	}
}
