package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// StreamStats returns the metrics of all streams, named spillway_stream_... Their
// stream label is the stream's name. stats is called at each scrape.
func StreamStats(stats func() []stream.Stats) prometheus.Collector {
	type s = stream.Stats
	c := &snapshots[s]{prefix: "spillway_stream_", labels: []string{"stream"}, of: func(s s) []string { return []string{s.Name} }, read: stats}
	return c.describe(metric[s]{
		"records_total", func(s s) float64 { return float64(s.Failed - s.Unknown) }, "Records by result.",
		prometheus.Labels{"result": "failed"},
	})
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
	return c.describe(metric[StreamAck]{"ack", func(StreamAck) float64 { return 1 }, "1 for the current ack level.", nil})
}

// SpoolStats returns the metrics of the spool, named spillway_spool_... stats is called at
// each scrape and returns nothing if there is no spool.
func SpoolStats(stats func() []spool.Stats) prometheus.Collector {
	c := &snapshots[spool.Stats]{prefix: "spillway_spool_", read: stats}
	return c.describe()
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
		{
			"undrained_records", func(s s) float64 { return float64(s.Rows) * flag(s.State == spool.DrainNone) },
			"Records that no stream drains.", nil,
		},
		{"drain_retrying", state(spool.DrainRetrying), "1 while the database does not accept drained records.", nil},
		{"drain_stopped", state(spool.DrainStopped), "1 if groups are missing or damaged; use spillway spool repair.", nil},
	}...)
}
