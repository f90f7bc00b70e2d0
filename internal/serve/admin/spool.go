package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
)

// SpoolStats returns the metrics of the spool, named spillway_spool_...; stats, called
// at each scrape, returns none where there is no spool.
func SpoolStats(stats func() []spool.Stats) prometheus.Collector {
	type s = spool.Stats
	c := &snapshots[s]{prefix: "spillway_spool_", read: stats}
	overloads := overloadsBy("Requests refused, by the limit that was met: too much waits, or the file or the disk is full.",
		func(s s) map[string]uint64 { return s.Overloaded }, queue.LimitBytes, queue.LimitSpool, queue.LimitDisk)
	return c.describe(append(overloads, []metric[s]{
		{"used_bytes", gauge, func(s s) float64 { return float64(s.UsedBytes) }, "Bytes of the file in use.", nil},
		{"limit_bytes", gauge, func(s s) float64 { return float64(s.LimitBytes) }, "Bytes of the file at most (spool.bytes).", nil},
		{"queue_bytes", gauge, func(s s) float64 { return float64(s.QueueBytes) }, "Bytes that wait for the next fsync.", nil},
		{"entries_total", counter, func(s s) float64 { return float64(s.Entries) }, "Requests kept.", nil},
		{"records_total", counter, func(s s) float64 { return float64(s.Rows) }, "Records kept.", nil},
		{"syncs_total", counter, func(s s) float64 { return float64(s.Syncs) }, "Transactions, each an fsync.", nil},
		{"sync_seconds_total", counter, func(s s) float64 { return s.SyncSeconds }, "Time spent in them.", nil},
		{"failures_total", counter, func(s s) float64 { return float64(s.Failed) }, "Requests that could not be written, or nobody knows.", nil},
		{"replays_total", counter, func(s s) float64 { return float64(s.Replayed) }, "Requests whose Idempotency-Key was there already.", nil},
	}...))
}

// SpoolNameStats returns the metrics of each stream's part of the spool, named
// spillway_spool_...{stream}; stats is called at each scrape.
func SpoolNameStats(stats func() []spool.Stats) prometheus.Collector {
	type s = spool.NameStats
	read := func() []s {
		var names []s
		for _, spool := range stats() {
			names = append(names, spool.Names...)
		}
		return names
	}
	state := func(want spool.DrainState) func(s) float64 {
		return func(s s) float64 {
			if s.State == want {
				return 1
			}
			return 0
		}
	}
	c := &snapshots[s]{prefix: "spillway_spool_", label: "stream", name: func(s s) string { return s.Name }, read: read}
	return c.describe([]metric[s]{
		{"backlog_records", gauge, func(s s) float64 { return float64(s.Rows) }, "Records that wait to be drained.", nil},
		{"backlog_bytes", gauge, func(s s) float64 { return float64(s.Bytes) }, "Bytes that wait to be drained.", nil},
		{"backlog_age_seconds", gauge, func(s s) float64 { return s.Oldest.Seconds() }, "Age of the oldest record that waits to be drained.", nil},
		{"drained_records_total", counter, func(s s) float64 { return float64(s.Records) }, "Records drained.", nil},
		{"drain_retries_total", counter, func(s s) float64 { return float64(s.Retries) }, "Attempts to drain that were not stored.", nil},
		{"drain_retrying", gauge, state(spool.DrainRetrying), "1 while the database does not take what is drained.", nil},
		{"drain_stopped", gauge, state(spool.DrainStopped), "1 when groups are missing or damaged: spillway spool repair.", nil},
		{"dead_letters", gauge, func(s s) float64 { return float64(s.Dead) }, "Records that the database has refused, kept in the file.", nil},
	})
}
