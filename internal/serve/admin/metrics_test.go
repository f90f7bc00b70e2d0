package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		Stats("spillway_pool_", func() []DatabaseFigures {
			return []DatabaseFigures{
				{
					Database: "main", Up: new(bool),
					Stats: database.Stats{InUse: 1, Idle: 2, Max: 3, Waiting: 4, Waits: 5, WaitTime: 6500 * time.Millisecond, Connects: 7},
				},
				{Database: "other"},
			}
		}),
		Stats("spillway_feed_", func() []feed.Stats {
			return []feed.Stats{{
				Name: "/goodslist", Windows: 1, Rows: 200, AgeSeconds: 0.25, Refreshes: 2, RefreshErrors: 3, RefreshSeconds: 1.5,
				WindowPages: 4, DatabasePages: 5, NotModified: 6, Refused: 7, Coalesced: 8, Waiting: 9,
				WindowBytes: 18, SegmentRows: 10, SegmentBytes: 13, SegmentAgeSeconds: 11, Evictions: 12, Listeners: 14, Events: 15, ListenersDropped: 16,
			}, {Name: "/by-city", Rows: 7}}
		}),
	)
	base := start(t, Config{Registry: registry})
	_, _, body := get(t, base+"/metrics", nil)
	var got []string
	for line := range strings.Lines(body) {
		if strings.Contains(line, `{feed="/goodslist"`) || strings.Contains(line, `{database="main"`) {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		`spillway_feed_age_seconds{feed="/goodslist"} 0.25`,
		`spillway_feed_coalesced_total{feed="/goodslist"} 8`,
		`spillway_feed_events_total{feed="/goodslist"} 15`,
		`spillway_feed_evictions_total{feed="/goodslist"} 12`,
		`spillway_feed_listeners{feed="/goodslist"} 14`,
		`spillway_feed_listeners_dropped_total{feed="/goodslist"} 16`,
		`spillway_feed_not_modified_total{feed="/goodslist"} 6`,
		`spillway_feed_pages_total{feed="/goodslist",source="database"} 5`,
		`spillway_feed_pages_total{feed="/goodslist",source="window"} 4`,
		`spillway_feed_refresh_errors_total{feed="/goodslist"} 3`,
		`spillway_feed_refresh_seconds_total{feed="/goodslist"} 1.5`,
		`spillway_feed_refreshes_total{feed="/goodslist"} 2`,
		`spillway_feed_refused_total{feed="/goodslist"} 7`,
		`spillway_feed_rows{feed="/goodslist"} 200`,
		`spillway_feed_segment_age_seconds{feed="/goodslist"} 11`,
		`spillway_feed_segment_bytes{feed="/goodslist"} 13`,
		`spillway_feed_segment_rows{feed="/goodslist"} 10`,
		`spillway_feed_waiting{feed="/goodslist"} 9`,
		`spillway_feed_window_bytes{feed="/goodslist"} 18`,
		`spillway_feed_windows{feed="/goodslist"} 1`,
		`spillway_pool_connections{database="main",state="idle"} 2`,
		`spillway_pool_connections{database="main",state="in_use"} 1`,
		`spillway_pool_connections_max{database="main"} 3`,
		`spillway_pool_connects_total{database="main"} 7`,
		`spillway_pool_up{database="main"} 0`,
		`spillway_pool_wait_seconds_total{database="main"} 6.5`,
		`spillway_pool_waiting{database="main"} 4`,
		`spillway_pool_waits_total{database="main"} 5`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	others := []string{"go_goroutines ", "spillway_admin_connections 1\n", `spillway_pool_waiting{database="other"} 0`, `spillway_feed_rows{feed="/by-city"} 7`}
	for _, part := range others {
		if !strings.Contains(body, "\n"+part) {
			t.Errorf("no %s in /metrics", part)
		}
	}
}
