package stream

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// DrainState is what the drain of a name does.
type DrainState string

// The states.
const (
	DrainNone     DrainState = ""         // nothing drains the name
	DrainRunning  DrainState = "running"  // or waiting for groups
	DrainRetrying DrainState = "retrying" // the last attempt was not stored: again after a pause
	DrainStopped  DrainState = "stopped"  // groups are missing or damaged: spillway spool repair
)

// SpoolStats is a snapshot of a spool, for metrics.
type SpoolStats struct {
	Entries     uint64  // kept since the start
	Rows        uint64  // records in them
	Syncs       uint64  // transactions, each an fsync
	SyncSeconds float64 // spent in them
	Failed      uint64  // entries that could not be written, or nobody knows
	Replayed    uint64  // entries not kept because their key is there

	Overloaded map[string]uint64 // entries refused because of what waits or is kept, or the disk, by Overload.Limit

	UsedBytes  int64 // of the file
	LimitBytes int64
	QueueBytes int // that wait for the next fsync
	Names      []SpoolNameStats
}

// SpoolNameStats is a snapshot of one name of a spool.
type SpoolNameStats struct {
	Name   string
	State  DrainState
	Reason string // of retrying or stopped

	Groups  int64 // that wait to be drained
	Rows    int64 // in them
	Bytes   int64 // in them
	Oldest  time.Duration
	Drained uint64 // groups since the start
	Records uint64 // in those
	Retries uint64
	Dead    int64 // dead letters in the file
}

type spoolCounters struct {
	entries, rows, syncs, failed, replayed atomic.Uint64
	nanos                                  atomic.Int64
	overloads                              overloads
}

// count books a transaction.
func (s *Spool) count(tickets []*spoolTicket, change SpoolChange, took time.Duration) {
	rows := 0
	for _, g := range change.Groups {
		rows += g.Rows
	}
	s.counters.entries.Add(uint64(len(tickets)))
	s.counters.rows.Add(uint64(rows))
	s.counters.syncs.Add(1)
	s.counters.nanos.Add(int64(took))
	if s.cfg.Synced != nil {
		s.cfg.Synced(len(tickets), rows, took)
	}
}

// Stats returns the spool's figures, the names in alphabetical order.
func (s *Spool) Stats() SpoolStats {
	now, c := time.Now(), &s.counters
	stats := SpoolStats{
		Entries: c.entries.Load(), Rows: c.rows.Load(), Syncs: c.syncs.Load(), SyncSeconds: time.Duration(c.nanos.Load()).Seconds(),
		Overloaded: c.overloads.read(), Failed: c.failed.Load(), Replayed: c.replayed.Load(), LimitBytes: s.cfg.Bytes,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.UsedBytes, stats.QueueBytes = s.used, s.waiting
	for _, n := range s.names {
		of := SpoolNameStats{
			Name: n.Name, State: n.drain, Groups: max(0, n.Groups), Rows: max(0, n.Rows), Bytes: max(0, n.Bytes), Drained: n.drained, Records: n.rows,
			Retries: n.retries, Dead: n.Dead,
		}
		if n.reason != nil {
			of.Reason = n.reason.Error()
		}
		if n.Groups > 0 && !n.Oldest.IsZero() {
			of.Oldest = max(0, now.Sub(n.Oldest))
		}
		stats.Names = append(stats.Names, of)
	}
	slices.SortFunc(stats.Names, func(a, b SpoolNameStats) int { return cmp.Compare(a.Name, b.Name) })
	return stats
}

// failingFor is how long a failed transaction makes the spool not ready: while nobody
// sends anything, nothing shows that it could be written again.
const failingFor = 5 * time.Second

// Ready returns nil while the spool keeps entries and is not close to refusing them: the
// last transaction was stored, less than three quarters of SpoolConfig.Bytes are in
// use, and no drain has stopped for good. A database that is down is no reason.
func (s *Spool) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.failing != nil && time.Since(s.failedAt) < failingFor: // later only a try can tell
		return fmt.Errorf("the spool cannot be written: %w", s.failing)
	case s.used > s.cfg.Bytes/4*3:
		return fmt.Errorf("the spool holds %d bytes (spool_bytes %d)", s.used, s.cfg.Bytes)
	}
	for _, n := range s.names {
		if n.drain == DrainStopped {
			return fmt.Errorf("the drain of %s has stopped: %w", n.Name, n.reason)
		}
	}
	return nil
}
