package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// StreamStats returns the metrics of all streams, named spillway_stream_... Their
// stream label is the stream's name. stats is called at each scrape.
func StreamStats(stats func() []stream.Stats) prometheus.Collector {
	type s = stream.Stats
	result := func(name string) prometheus.Labels { return prometheus.Labels{"result": name} }
	reason := func(name string) prometheus.Labels { return prometheus.Labels{"reason": name} }
	const rejections = "Requests rejected permanently, by reason."
	const records = "Records by result."
	c := &snapshots[s]{prefix: "spillway_stream_", labels: []string{"stream"}, of: func(s s) []string { return []string{s.Name} }, read: stats}
	overloads := overloadsBy("Requests refused, by the limit that was reached.", func(s s) map[string]uint64 { return s.Overloaded },
		queue.LimitWait, queue.LimitRows, queue.LimitBytes, queue.LimitSpool, queue.LimitDisk)
	return c.describe(append(overloads, []metric[s]{
		{"records_total", func(s s) float64 { return float64(s.Stored) }, records, result("stored")},
		{"records_total", func(s s) float64 { return float64(s.RefusedSchema) }, records, result("refused_schema")},
		{"records_total", func(s s) float64 { return float64(s.RefusedDatabase) }, records, result("refused_database")},
		{"skipped_total", func(s s) float64 { return float64(s.Skipped) }, "Records counted as stored that the database did not insert.", nil},
		{"records_total", func(s s) float64 { return float64(s.Failed - s.Unknown) }, records, result("failed")},
		{"records_total", func(s s) float64 { return float64(s.Unknown) }, records, result("unknown")},
		{"rejections_total", func(s s) float64 { return float64(s.KeyReused) }, rejections, reason("key_reused")},
		{"rejections_total", func(s s) float64 { return float64(s.TooLarge) }, rejections, reason("too_large")},
		{"rejections_total", func(s s) float64 { return float64(s.Unreadable) }, rejections, reason("unreadable")},
		{"replays_total", func(s s) float64 { return float64(s.Replayed) }, "Requests with a known Idempotency-Key.", nil},
		{"batches_total", func(s s) float64 { return float64(s.Batches) }, "Transactions; retries are not counted.", nil},
		{"retries_total", func(s s) float64 { return float64(s.Retries) }, "Attempts to commit beyond the first.", nil},
		{"swept_total", func(s s) float64 { return float64(s.Swept) }, "Expired rows deleted from Spillway's tables.", nil},
		{"queue_rows", func(s s) float64 { return float64(s.QueueRows) }, "Records waiting for a transaction.", nil},
		{"queue_bytes", func(s s) float64 { return float64(s.QueueBytes) }, "Memory of waiting records.", nil},
		{"committing", func(s s) float64 { return float64(s.Committing) }, "Running transactions.", nil},
		{"commit_mean_seconds", func(s s) float64 { return s.CommitMean.Seconds() }, "Weighted mean time of recent transactions.", nil},
		{"predicted_wait_seconds", func(s s) float64 { return s.PredictedWait.Seconds() }, "Predicted wait of a new record.", nil},
	}...))
}

// overloadsBy returns overloads_total of some limits.
func overloadsBy[T any](help string, of func(T) map[string]uint64, limits ...string) []metric[T] {
	var metrics []metric[T]
	for _, limit := range limits {
		metrics = append(metrics, metric[T]{
			"overloads_total", func(t T) float64 { return float64(of(t)[limit]) }, help, prometheus.Labels{"limit": limit},
		})
	}
	return metrics
}

// StreamBatches are histograms of streams' transactions, spillway_stream_batch_rows and
// spillway_stream_commit_seconds. Its methods may be called concurrently.
type StreamBatches struct {
	rows, seconds *prometheus.HistogramVec
}

// NewStreamBatches returns empty histograms, which must be registered once.
func NewStreamBatches() *StreamBatches {
	labels := []string{"stream"}
	return &StreamBatches{
		rows: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_stream_batch_rows", Help: "Records per transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000},
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_stream_commit_seconds", Help: "Time of a committed transaction with its retries.",
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10},
		}, labels),
	}
}

// Committed returns the stream.Config.Committed of the stream with that name.
func (b *StreamBatches) Committed(name string) func(rows, refused int, took time.Duration) {
	rowsOf, secondsOf := b.rows.WithLabelValues(name), b.seconds.WithLabelValues(name)
	return func(rows, _ int, took time.Duration) {
		rowsOf.Observe(float64(rows))
		secondsOf.Observe(took.Seconds())
	}
}

// Collectors returns the histograms.
func (b *StreamBatches) Collectors() []prometheus.Collector {
	return []prometheus.Collector{b.rows, b.seconds}
}

// StreamAck is the current ack level of a stream.
type StreamAck struct {
	Stream string `json:"stream"` // its name
	Level  string `json:"ack"`    // as in responses
}

// StreamAcks returns spillway_stream_ack, which is 1 for each stream's current level. acks is
// called at each scrape.
func StreamAcks(acks func() []StreamAck) prometheus.Collector {
	c := &snapshots[StreamAck]{
		prefix: "spillway_stream_", read: acks,
		labels: []string{"stream", "ack"}, of: func(a StreamAck) []string { return []string{a.Stream, a.Level} },
	}
	return c.describe([]metric[StreamAck]{{"ack", func(StreamAck) float64 { return 1 }, "1 for the current ack level.", nil}})
}

// SpoolStats returns the metrics of the spool, named spillway_spool_... stats is called at
// each scrape and returns nothing if there is no spool.
func SpoolStats(stats func() []spool.Stats) prometheus.Collector {
	type s = spool.Stats
	c := &snapshots[s]{prefix: "spillway_spool_", read: stats}
	overloads := overloadsBy("Requests refused, by the limit that was reached.",
		func(s s) map[string]uint64 { return s.Overloaded }, queue.LimitBytes, queue.LimitSpool, queue.LimitDisk)
	return c.describe(append(overloads, []metric[s]{
		{"used_bytes", func(s s) float64 { return float64(s.UsedBytes) }, "Bytes of the file in use.", nil},
		{"limit_bytes", func(s s) float64 { return float64(s.LimitBytes) }, "Limit of the file (spool.bytes).", nil},
		{"queue_bytes", func(s s) float64 { return float64(s.QueueBytes) }, "Bytes waiting for the next fsync.", nil},
		{"entries_total", func(s s) float64 { return float64(s.Entries) }, "Requests written.", nil},
		{"records_total", func(s s) float64 { return float64(s.Rows) }, "Records written.", nil},
		{"syncs_total", func(s s) float64 { return float64(s.Syncs) }, "Transactions, each an fsync.", nil},
		{"sync_seconds_total", func(s s) float64 { return s.SyncSeconds }, "Time of transactions.", nil},
		{"failures_total", func(s s) float64 { return float64(s.Failed) }, "Requests not written, or with unknown outcome.", nil},
		{"replays_total", func(s s) float64 { return float64(s.Replayed) }, "Requests with a known Idempotency-Key.", nil},
	}...))
}

// SpoolNameStats returns the metrics of each stream in the spool, named
// spillway_spool_...{stream}. stats is called at each scrape.
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
		return func(s s) float64 { return flag(s.State == want) }
	}
	c := &snapshots[s]{prefix: "spillway_spool_", labels: []string{"stream"}, of: func(s s) []string { return []string{s.Name} }, read: read}
	return c.describe([]metric[s]{
		{"backlog_records", func(s s) float64 { return float64(s.Rows) }, "Records waiting for the drain.", nil},
		{
			"undrained_records", func(s s) float64 { return float64(s.Rows) * flag(s.State == spool.DrainNone) },
			"Records that no stream drains.", nil,
		},
		{"backlog_bytes", func(s s) float64 { return float64(s.Bytes) }, "Bytes waiting for the drain.", nil},
		{"backlog_age_seconds", func(s s) float64 { return s.OldestSeconds }, "Age of the oldest record waiting for the drain.", nil},
		{"drained_records_total", func(s s) float64 { return float64(s.Records) }, "Records drained.", nil},
		{"drain_retries_total", func(s s) float64 { return float64(s.Retries) }, "Failed attempts to drain.", nil},
		{"drain_retrying", state(spool.DrainRetrying), "1 while the database does not accept drained records.", nil},
		{"drain_stopped", state(spool.DrainStopped), "1 if groups are missing or damaged; use spillway spool repair.", nil},
		{"share_used_bytes", func(s s) float64 { return float64(s.UsedBytes) }, "Bytes of the file that count for the stream's share.", nil},
		{"share_limit_bytes", func(s s) float64 { return float64(s.LimitBytes) }, "The stream's share of the file.", nil},
		{"dead_letters", func(s s) float64 { return float64(s.Dead) }, "Records rejected by the database, kept in the file.", nil},
	})
}
