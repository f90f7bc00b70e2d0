package spool

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"spillway/internal/serve/queue"
)

// Stats is a snapshot of a spool, for metrics.
type Stats struct {
	Entries     uint64  `metric:"entries_total" help:"Requests written."`
	Rows        uint64  `metric:"records_total" help:"Records written."`
	Syncs       uint64  `metric:"syncs_total" help:"Transactions, each an fsync."`
	SyncSeconds float64 `metric:"sync_seconds_total" help:"Time of transactions."`
	Failed      uint64  `metric:"failures_total" help:"Requests not written, or with unknown outcome."`
	Replayed    uint64  `metric:"replays_total" help:"Requests with a known Idempotency-Key."`

	Overloaded map[string]uint64 `metric:"overloads_total,limit=queue_bytes|spool_bytes|disk" help:"Requests refused, by limit."`

	UsedBytes  int64 `metric:"used_bytes" help:"Bytes of the file in use."`
	LimitBytes int64 `metric:"limit_bytes" help:"Limit of the file (spool.bytes)."`
	QueueBytes int   `metric:"queue_bytes" help:"Bytes waiting for the next fsync."`
	Names      []NameStats
}

// NameStats is a snapshot of one name of a spool.
type NameStats struct {
	Name          string  `json:"stream" label:"stream"`
	ID            string  `json:"id"`     // "": nothing of it is in the file
	Groups        int64   `json:"groups"` // that wait to be drained
	Rows          int64   `json:"records" metric:"backlog_records" help:"Records waiting for the drain."`
	Bytes         int64   `json:"bytes" metric:"backlog_bytes" help:"Bytes waiting for the drain."`
	OldestSeconds float64 `json:"oldest_seconds" metric:"backlog_age_seconds" help:"Age of the oldest record waiting for the drain."`
	Drained       uint64  `json:"drained_sequence"`
	Last          uint64  `json:"last_sequence"`
	Dead          int64   `json:"dead_letters" metric:"dead_letters" help:"Records rejected by the database, kept in the file."`
	InDoubt       int64   `json:"dead_letters_in_doubt"` // of these: the database may have them

	State   DrainState `json:"drain,omitempty"`    // "": there is no process
	Reason  string     `json:"reason,omitempty"`   // of DrainRetrying and DrainStopped
	MovedTo string     `json:"moved_to,omitempty"` // the stream that WorkMove gave it to

	Records    uint64 `json:"-" metric:"drained_records_total" help:"Records drained."`
	Retries    uint64 `json:"-" metric:"drain_retries_total" help:"Failed attempts to drain."`
	UsedBytes  int64  `json:"-" metric:"share_used_bytes" help:"Bytes of the file that count for the stream's share."`
	LimitBytes int64  `json:"-" metric:"share_limit_bytes" help:"The stream's share of the file."`
}

// stats returns what the file has of a name.
func (h *head) stats() NameStats {
	s := NameStats{
		Name: h.name, Groups: max(0, h.groups), Rows: max(0, h.rows), Bytes: max(0, h.bytes),
		Drained: h.drained, Last: h.last, Dead: h.dead, InDoubt: h.inDoubt, MovedTo: h.movedTo,
	}
	if h.id != [16]byte{} {
		s.ID = fmt.Sprintf("%x", h.id)
	}
	if h.groups > 0 && !h.oldest.IsZero() {
		s.OldestSeconds = max(0, time.Since(h.oldest).Seconds()) // the database's clock may be ahead
	}
	return s
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
	c := &s.counters
	stats := Stats{
		Names: []NameStats{}, Entries: c.entries.Load(), Rows: c.rows.Load(), Syncs: c.syncs.Load(),
		SyncSeconds: time.Duration(c.nanos.Load()).Seconds(),
		Overloaded:  c.overloads.Read(), Failed: c.failed.Load(), Replayed: c.replayed.Load(), LimitBytes: s.cfg.Bytes,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.UsedBytes, stats.QueueBytes = s.used, s.waiting
	for _, n := range s.names {
		of := n.stats()
		of.State, of.Records, of.Retries, of.UsedBytes, of.LimitBytes = n.drain, n.drainedRows, n.retries, s.usedBy(n), s.cfg.Shares[n.name]
		if n.reason != nil {
			of.Reason = n.reason.Error()
		}
		stats.Names = append(stats.Names, of)
	}
	slices.SortFunc(stats.Names, func(a, b NameStats) int { return cmp.Compare(a.Name, b.Name) })
	return stats
}

// Status returns the names of which the file has something, in alphabetical order.
func (s *Spool) Status() []NameStats {
	return slices.DeleteFunc(s.Stats().Names, func(n NameStats) bool { return n.ID == "" })
}
