package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

func TestStreamMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	batches := NewStreamBatches()
	registry.MustRegister(batches.Collectors()...)
	registry.MustRegister(StreamStats(func() []stream.Stats {
		return []stream.Stats{{
			Name: "/orders", Stored: 1, RefusedSchema: 2, RefusedDatabase: 3, Skipped: 14, Failed: 9, Unknown: 4, Overloaded: map[string]uint64{queue.LimitWait: 5}, KeyReused: 12, Unreadable: 13, Replayed: 6, Batches: 7, Retries: 8,
			Swept: 9, QueueRows: 10, QueueBytes: 11, Committing: 1, CommitSeconds: 0.005, PredictedWait: 250 * time.Millisecond,
		}}
	}), Stats("spillway_stream_", func() []StreamAck {
		return []StreamAck{{"/orders", "database, not fsynced: fsync=off"}, {"/positions", "memory"}}
	}))
	committed := batches.Committed("/orders")
	committed(3, 1, 2*time.Millisecond)
	committed(700, 0, 20*time.Millisecond)
	_, _, body := get(t, start(t, Config{Registry: registry})+"/metrics", nil)
	var got []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "spillway_stream_") && !strings.Contains(line, "_bucket") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		`spillway_stream_ack{ack="database, not fsynced: fsync=off",stream="/orders"} 1`,
		`spillway_stream_ack{ack="memory",stream="/positions"} 1`,
		`spillway_stream_batch_rows_sum{stream="/orders"} 703`,
		`spillway_stream_batch_rows_count{stream="/orders"} 2`,
		`spillway_stream_batches_total{stream="/orders"} 7`,
		`spillway_stream_commit_mean_seconds{stream="/orders"} 0.005`,
		`spillway_stream_commit_seconds_sum{stream="/orders"} 0.022`,
		`spillway_stream_commit_seconds_count{stream="/orders"} 2`,
		`spillway_stream_committing{stream="/orders"} 1`,
		`spillway_stream_overloads_total{limit="disk",stream="/orders"} 0`,
		`spillway_stream_overloads_total{limit="queue_bytes",stream="/orders"} 0`,
		`spillway_stream_overloads_total{limit="queue_rows",stream="/orders"} 0`,
		`spillway_stream_overloads_total{limit="spool_bytes",stream="/orders"} 0`,
		`spillway_stream_overloads_total{limit="wait_max",stream="/orders"} 5`,
		`spillway_stream_predicted_wait_seconds{stream="/orders"} 0.25`,
		`spillway_stream_queue_bytes{stream="/orders"} 11`,
		`spillway_stream_queue_rows{stream="/orders"} 10`,
		`spillway_stream_records_total{result="failed",stream="/orders"} 5`,
		`spillway_stream_records_total{result="refused_database",stream="/orders"} 3`,
		`spillway_stream_records_total{result="refused_schema",stream="/orders"} 2`,
		`spillway_stream_records_total{result="stored",stream="/orders"} 1`,
		`spillway_stream_records_total{result="unknown",stream="/orders"} 4`,
		`spillway_stream_rejections_total{reason="key_reused",stream="/orders"} 12`,
		`spillway_stream_rejections_total{reason="too_large",stream="/orders"} 0`,
		`spillway_stream_rejections_total{reason="unreadable",stream="/orders"} 13`,
		`spillway_stream_replays_total{stream="/orders"} 6`,
		`spillway_stream_retries_total{stream="/orders"} 8`,
		`spillway_stream_skipped_total{stream="/orders"} 14`,
		`spillway_stream_swept_total{stream="/orders"} 9`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
