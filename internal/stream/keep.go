package stream

import (
	"context"
	"time"
)

const (
	keepEvery   = time.Minute    // between two looks at the database's settings, and two sweeps
	batchesKept = 24 * time.Hour // a batch's id, where it may still be asked for
	sweepRows   = 1000           // one statement deletes at most so many rows
	sweepSteps  = 50             // one sweep runs at most so many statements
)

// keep reads the database's durability settings at start and every minute, and
// sweeps out what has expired.
func (s *Stream) keep() {
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		s.readDurability()
		s.sweep()
		select {
		case <-s.keeping.Done():
			return
		case <-ticker.C:
		}
	}
}

// readDurability keeps the last answer where the database gives none.
func (s *Stream) readDurability() {
	ctx, cancel := context.WithTimeout(s.keeping, s.cfg.CommitTimeout)
	defer cancel()
	d, err := s.sink.Durability(ctx)
	if err != nil {
		s.cfg.Log.Debug("the durability settings cannot be read", "stream", s.schema.def.Name, "error", err)
		return
	}
	before := s.durability.Swap(&d)
	if before != nil && before.String() == d.String() {
		return
	}
	if len(d.Unsafe) > 0 {
		s.cfg.Log.Warn("committed records may be lost in a crash", "stream", s.schema.def.Name, "ack", d.String())
		return
	}
	s.cfg.Log.Info("committed records are on disk", "stream", s.schema.def.Name, "ack", d.String())
}

func (s *Stream) sweep() {
	for range sweepSteps {
		ctx, cancel := context.WithTimeout(s.keeping, s.cfg.CommitTimeout)
		now := time.Now()
		n, err := s.sink.Sweep(ctx, now, now.Add(-batchesKept), sweepRows)
		cancel()
		if err != nil {
			s.cfg.Log.Debug("expired keys cannot be swept", "stream", s.schema.def.Name, "error", err)
			return
		}
		s.counters.swept.Add(uint64(n))
		if n < sweepRows {
			return
		}
	}
}
