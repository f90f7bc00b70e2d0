package spool

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// Stats is a snapshot of a spool, for metrics.
type Stats struct {
	Entries     uint64  // stored since the start
	Rows        uint64  // records in them
	Syncs       uint64  // transactions, each an fsync
	SyncSeconds float64 // spent in them
	Failed      uint64  // entries that were not written, or may not have been
	Replayed    uint64  // entries not stored because their key waits already

	Overloaded map[string]uint64 // refused entries by queue.Overload.Limit

	UsedBytes  int64 // of the file
	LimitBytes int64
	QueueBytes int // that wait for the next fsync
	Names      []NameStats
}

// NameStats is a snapshot of one name of a spool.
type NameStats struct {
	Name   string
	State  DrainState
	Reason string // of DrainRetrying and DrainStopped

	Groups  int64 // that wait to be drained
	Rows    int64 // in them
	Bytes   int64 // in them
	Oldest  time.Duration
	Records uint64 // drained since the start
	Retries uint64
	MovedTo string // the name that the groups were given to; "": none
	Dead    int64  // dead letters in the file
	InDoubt int64  // dead letters that the database may have

	UsedBytes  int64 // of its groups and dead letters
	LimitBytes int64 // Config.Shares; 0: none
}

type counters struct {
	entries, rows, syncs, failed, replayed atomic.Uint64
	nanos                                  atomic.Int64
	overloads                              queue.Overloads
}

// count counts a transaction.
func (s *Spool) count(tickets []*ticket, took time.Duration) {
	rows := 0
	for _, t := range tickets {
		rows += t.Rows
	}
	s.counters.entries.Add(uint64(len(tickets)))
	s.counters.rows.Add(uint64(rows))
	s.counters.syncs.Add(1)
	s.counters.nanos.Add(int64(took))
	if s.cfg.Synced != nil {
		s.cfg.Synced(len(tickets), rows, took)
	}
}

// Stats returns a snapshot, its names in alphabetical order.
func (s *Spool) Stats() Stats {
	now, c := time.Now(), &s.counters
	stats := Stats{
		Entries: c.entries.Load(), Rows: c.rows.Load(), Syncs: c.syncs.Load(), SyncSeconds: time.Duration(c.nanos.Load()).Seconds(),
		Overloaded: c.overloads.Read(), Failed: c.failed.Load(), Replayed: c.replayed.Load(), LimitBytes: s.cfg.Bytes,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.UsedBytes, stats.QueueBytes = s.used, s.waiting
	for _, n := range s.names {
		of := NameStats{
			Name: n.name, State: n.drain, Groups: max(0, n.groups), Rows: max(0, n.rows), Bytes: max(0, n.bytes),
			Records: n.drainedRows, Retries: n.retries, MovedTo: n.movedTo, Dead: n.dead, InDoubt: n.inDoubt,
			UsedBytes: s.usedBy(n), LimitBytes: s.cfg.Shares[n.name],
		}
		if n.reason != nil {
			of.Reason = n.reason.Error()
		}
		if n.groups > 0 && !n.oldest.IsZero() {
			of.Oldest = max(0, now.Sub(n.oldest))
		}
		stats.Names = append(stats.Names, of)
	}
	slices.SortFunc(stats.Names, func(a, b NameStats) int { return cmp.Compare(a.Name, b.Name) })
	return stats
}
