package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// StreamStats returns the metrics of all streams, named spillway_stream_... Their
// stream label is the stream's name. stats is called at each scrape.
func StreamStats(stats func() []stream.Stats) prometheus.Collector {
	type s = stream.Stats
	result := func(name string) prometheus.Labels { return prometheus.Labels{"result": name} }
	reason := func(name string) prometheus.Labels { return prometheus.Labels{"reason": name} }
	const rejections = "Requests of which nothing was stored, and that would fare no better again, by reason."
	const records = "Records of the requests that were taken, by what became of them."
	c := &snapshots[s]{prefix: "spillway_stream_", label: "stream", name: func(s s) string { return s.Name }, read: stats}
	overloads := overloadsBy("Requests refused because too much waits, by the limit that was met.", func(s s) map[string]uint64 { return s.Overloaded },
		queue.LimitWait, queue.LimitRows, queue.LimitBytes, queue.LimitSpool, queue.LimitDisk)
	return c.describe(append(overloads, []metric[s]{
		{"records_total", counter, func(s s) float64 { return float64(s.Stored) }, records, result("stored")},
		{"records_total", counter, func(s s) float64 { return float64(s.RefusedSchema) }, records, result("refused_schema")},
		{"records_total", counter, func(s s) float64 { return float64(s.RefusedDatabase) }, records, result("refused_database")},
		{"records_total", counter, func(s s) float64 { return float64(s.Failed - s.Unknown) }, records, result("failed")},
		{"records_total", counter, func(s s) float64 { return float64(s.Unknown) }, records, result("unknown")},
		{"rejections_total", counter, func(s s) float64 { return float64(s.KeyReused) }, rejections, reason("key_reused")},
		{"rejections_total", counter, func(s s) float64 { return float64(s.TooLarge) }, rejections, reason("too_large")},
		{"rejections_total", counter, func(s s) float64 { return float64(s.Unreadable) }, rejections, reason("unreadable")},
		{"replays_total", counter, func(s s) float64 { return float64(s.Replayed) }, "Requests whose Idempotency-Key was there already.", nil},
		{"batches_total", counter, func(s s) float64 { return float64(s.Batches) }, "Transactions, each counted once whatever its attempts.", nil},
		{"retries_total", counter, func(s s) float64 { return float64(s.Retries) }, "Attempts to commit beyond the first.", nil},
		{"swept_total", counter, func(s s) float64 { return float64(s.Swept) }, "Expired rows deleted from the stream's own tables.", nil},
		{"queue_rows", gauge, func(s s) float64 { return float64(s.QueueRows) }, "Records that wait for a transaction.", nil},
		{"queue_bytes", gauge, func(s s) float64 { return float64(s.QueueBytes) }, "Memory of the records that wait.", nil},
		{"committing", gauge, func(s s) float64 { return float64(s.Committing) }, "Transactions under way.", nil},
		{"commit_mean_seconds", gauge, func(s s) float64 { return s.CommitMean.Seconds() }, "Time of a transaction, the recent ones counting most.", nil},
		{"predicted_wait_seconds", gauge, func(s s) float64 { return s.PredictedWait.Seconds() }, "How long a record that came now would wait.", nil},
	}...))
}

// overloadsBy returns overloads_total of some limits.
func overloadsBy[T any](help string, of func(T) map[string]uint64, limits ...string) []metric[T] {
	var metrics []metric[T]
	for _, limit := range limits {
		metrics = append(metrics, metric[T]{
			"overloads_total", counter, func(t T) float64 { return float64(of(t)[limit]) }, help, prometheus.Labels{"limit": limit},
		})
	}
	return metrics
}

// StreamBatches is the distributions of streams' transactions: their rows and how
// long they take, as spillway_stream_batch_rows and spillway_stream_commit_seconds.
// Its methods may be called concurrently.
type StreamBatches struct {
	rows, seconds *prometheus.HistogramVec
}

// NewStreamBatches returns empty distributions, to be registered once.
func NewStreamBatches() *StreamBatches {
	labels := []string{"stream"}
	return &StreamBatches{
		rows: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_stream_batch_rows", Help: "Records of a transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000},
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spillway_stream_commit_seconds", Help: "Time of a transaction that was stored, with all its attempts.",
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10},
		}, labels),
	}
}

// Committed returns what stream.Config.Committed of the stream of that name calls.
func (b *StreamBatches) Committed(name string) func(rows, refused int, took time.Duration) {
	rowsOf, secondsOf := b.rows.WithLabelValues(name), b.seconds.WithLabelValues(name)
	return func(rows, _ int, took time.Duration) {
		rowsOf.Observe(float64(rows))
		secondsOf.Observe(took.Seconds())
	}
}

// Describe implements prometheus.Collector.
func (b *StreamBatches) Describe(ch chan<- *prometheus.Desc) {
	b.rows.Describe(ch)
	b.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (b *StreamBatches) Collect(ch chan<- prometheus.Metric) {
	b.rows.Collect(ch)
	b.seconds.Collect(ch)
}

// StreamAck is the level at which a stream acknowledges records.
type StreamAck struct {
	Stream string `json:"stream"` // its name
	Level  string `json:"ack"`    // in words, as answers have it
}

// StreamAcks returns spillway_stream_ack: 1 for the level that each stream
// acknowledges at now. acks is called at each scrape.
func StreamAcks(acks func() []StreamAck) prometheus.Collector {
	return &streamAcks{
		read: acks,
		desc: prometheus.NewDesc("spillway_stream_ack", "1 for the level at which records are acknowledged now.", []string{"stream", "ack"}, nil),
	}
}

type streamAcks struct {
	read func() []StreamAck
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *streamAcks) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *streamAcks) Collect(ch chan<- prometheus.Metric) {
	for _, a := range c.read() {
		ch <- prometheus.MustNewConstMetric(c.desc, gauge, 1, a.Stream, a.Level)
	}
}
