package admin

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
	"spillway/internal/serve/standby"
	"spillway/internal/serve/token"
)

// metric is one number of a snapshot.
type metric[T any] struct {
	name  string          // without the collector's prefix; one that ends with _total is a counter
	value func(T) float64 // NaN: absent
	help  string
	label prometheus.Labels // in addition to the collector's; nil: none
}

// BuildInfo returns spillway_build_info, which is always 1. Its labels are the version of the
// program, that of Go, and the revision of the source.
func BuildInfo(version, revision string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_build_info", Help: "Always 1. The labels are the versions of the program and of Go, and the revision of the source.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "revision": revision},
	}, func() float64 { return 1 })
}

// PoolStats returns the metrics of one database pool, named spillway_pool_... Their database
// label is name, which must not contain a password. stats is called at each scrape.
func PoolStats(name string, stats func() database.Stats) prometheus.Collector {
	type s = database.Stats
	read := func() []s { return []s{stats()} }
	c := &snapshots[s]{prefix: "spillway_pool_", fixed: prometheus.Labels{"database": name}, read: read}
	return c.describe([]metric[s]{
		{"connections", func(s s) float64 { return float64(s.InUse) }, "Connections open.", prometheus.Labels{"state": "in_use"}},
		{"connections", func(s s) float64 { return float64(s.Idle) }, "Connections open.", prometheus.Labels{"state": "idle"}},
		{"connections_max", func(s s) float64 { return float64(s.Max) }, "Connections at most.", nil},
		{"waiting", func(s s) float64 { return float64(s.Waiting) }, "Statements waiting for a connection.", nil},
		{"waits_total", func(s s) float64 { return float64(s.Waits) }, "Statements that waited for a connection.", nil},
		{"wait_seconds_total", func(s s) float64 { return s.WaitTime.Seconds() }, "Time that statements waited for a connection.", nil},
		{"connects_total", func(s s) float64 { return float64(s.Connects) }, "Connections opened.", nil},
	})
}

// FeedStats returns the metrics of all feeds, named spillway_feed_... Their feed
// label is the feed's name. stats is called at each scrape.
func FeedStats(stats func() []feed.Stats) prometheus.Collector {
	type s = feed.Stats
	c := &snapshots[s]{prefix: "spillway_feed_", labels: []string{"feed"}, of: func(s s) []string { return []string{s.Name} }, read: stats}
	return c.describe([]metric[s]{
		{"windows", func(s s) float64 { return float64(s.Windows) }, "Windows kept, one per value of the parameters.", nil},
		{"rows", func(s s) float64 { return float64(s.Rows) }, "Rows in the windows.", nil},
		{"age_seconds", func(s s) float64 { return s.AgeSeconds }, "Age of the oldest window in use.", nil},
		{"refreshes_total", func(s s) float64 { return float64(s.Refreshes) }, "Statements that read a window.", nil},
		{"refresh_errors_total", func(s s) float64 { return float64(s.RefreshErrors) }, "Refreshes that failed.", nil},
		{"refresh_seconds_total", func(s s) float64 { return s.RefreshSeconds }, "Time spent in refreshes.", nil},
		{"pages_total", func(s s) float64 { return float64(s.WindowPages) }, "Pages answered.", prometheus.Labels{"source": "window"}},
		{"pages_total", func(s s) float64 { return float64(s.DatabasePages) }, "Pages answered.", prometheus.Labels{"source": "database"}},
		{"not_modified_total", func(s s) float64 { return float64(s.NotModified) }, "Pages answered with 304.", nil},
		{"refused_total", func(s s) float64 { return float64(s.Refused) }, "Pages not answered: database unavailable or too many waiting.", nil},
		{"coalesced_total", func(s s) float64 { return float64(s.Coalesced) }, "Pages that shared another request's statement.", nil},
		{"waiting", func(s s) float64 { return float64(s.Waiting) }, "Requests waiting for the database.", nil},
		{"segment_rows", func(s s) float64 { return float64(s.SegmentRows) }, "Rows counted for deep offsets.", nil},
		{"segment_bytes", func(s s) float64 { return float64(s.SegmentBytes) }, "Memory of the counts for deep offsets.", nil},
		{"segment_age_seconds", func(s s) float64 { return s.SegmentAgeSeconds }, "Age of the oldest count for deep offsets.", nil},
		{"evictions_total", func(s s) float64 { return float64(s.Evictions) }, "Windows dropped for others.", nil},
		{"listeners", func(s s) float64 { return float64(s.Listeners) }, "Listeners of events now.", nil},
		{"events_total", func(s s) float64 { return float64(s.Events) }, "Events that listeners got.", nil},
		{
			"listeners_dropped_total", func(s s) float64 { return float64(s.ListenersDropped) },
			"Listeners dropped because their clients did not read.", nil,
		},
	})
}

// ReplicaStats returns the metrics of the read replica, named spillway_replica_...
func ReplicaStats(name string, reads *standby.Switch) prometheus.Collector {
	type s = *standby.Switch
	c := &snapshots[s]{prefix: "spillway_replica_", fixed: prometheus.Labels{"database": name}, read: func() []s { return []s{reads} }}
	return c.describe([]metric[s]{
		{"fallbacks_total", func(s s) float64 { return float64(s.Fallbacks()) }, "Reads answered by the primary instead.", nil},
		{"down", func(s s) float64 { return flag(s.Down()) }, "1 while only the primary is used.", nil},
		{
			"late", func(s s) float64 { return flag(s.Late()) },
			"1 if the replica's rows are older than replica_lag_max, or of unknown age: the primary answers, unless it is away.", nil,
		},
		{"lag_seconds", func(s s) float64 {
			lag, known := s.Lag()
			if !known {
				return math.NaN()
			}
			return lag.Seconds()
		}, "Age of the oldest change of the primary that is not replayed; absent if it is unknown.", nil},
	})
}

// KeySetStats returns the metrics of the key set of JWTs, named spillway_jwks_... stats is
// called at each scrape.
func KeySetStats(stats func() token.SetStats) prometheus.Collector {
	type s = token.SetStats
	c := &snapshots[s]{prefix: "spillway_jwks_", read: func() []s { return []s{stats()} }}
	return c.describe([]metric[s]{
		{"keys", func(s s) float64 { return float64(s.Keys) }, "Keys that verify JWTs.", nil},
		{"age_seconds", func(s s) float64 {
			if s.FetchedAt.IsZero() {
				return math.NaN()
			}
			return time.Since(s.FetchedAt).Seconds()
		}, "Time since the key set was fetched; absent if it never was.", nil},
		{"fetches_total", func(s s) float64 { return float64(s.Fetches) }, "Fetches of the key set.", nil},
		{"errors_total", func(s s) float64 { return float64(s.Errors) }, "Fetches that failed.", nil},
		{"unavailable_total", func(s s) float64 { return float64(s.Unavailable) }, "Requests whose key could not be fetched.", nil},
	})
}

// QueryStats returns the metrics of all queries, named spillway_query_... Their
// query label is the query's name. stats is called at each scrape.
func QueryStats(stats func() []query.Stats) prometheus.Collector {
	type s = query.Stats
	c := &snapshots[s]{prefix: "spillway_query_", labels: []string{"query"}, of: func(s s) []string { return []string{s.Name} }, read: stats}
	return c.describe([]metric[s]{
		{"answers_total", func(s s) float64 { return float64(s.Hits) }, "Requests answered.", prometheus.Labels{"source": "memory"}},
		{"answers_total", func(s s) float64 { return float64(s.Stale) }, "Requests answered.", prometheus.Labels{"source": "stale"}},
		{"answers_total", func(s s) float64 { return float64(s.Misses) }, "Requests answered.", prometheus.Labels{"source": "waited"}},
		{"not_modified_total", func(s s) float64 { return float64(s.NotModified) }, "Responses with 304.", nil},
		{"refused_total", func(s s) float64 { return float64(s.Refused) }, "Requests not answered.", nil},
		{"executions_total", func(s s) float64 { return float64(s.Executions) }, "Statements run.", nil},
		{"execution_errors_total", func(s s) float64 { return float64(s.ExecutionErrors) }, "Statements that failed.", nil},
		{"execution_seconds_total", func(s s) float64 { return s.ExecutionSeconds }, "Time spent in statements.", nil},
		{"renewal_errors_total", func(s s) float64 { return float64(s.RenewalErrors) }, "Renewals of cached answers that failed.", nil},
		{"shared_hits_total", func(s s) float64 { return float64(s.SharedHits) }, "Answers fetched by another replica.", nil},
		{"shared_errors_total", func(s s) float64 { return float64(s.SharedErrors) }, "Calls of the shared cache that failed.", nil},
		{"coalesced_total", func(s s) float64 { return float64(s.Coalesced) }, "Requests that shared another request's execution.", nil},
		{"waiting", func(s s) float64 { return float64(s.Waiting) }, "Requests waiting for the database.", nil},
		{
			"predicted_wait_seconds", func(s s) float64 { return s.PredictedWait.Seconds() },
			"Predicted time until the answer to a request that needs the database.", nil,
		},
		{"cache_entries", func(s s) float64 { return float64(s.CacheEntries) }, "Answers cached in memory.", nil},
		{"cache_bytes", func(s s) float64 { return float64(s.CacheBytes) }, "Memory of cached answers.", nil},
		{"evictions_total", func(s s) float64 { return float64(s.Evictions) }, "Answers dropped for others.", nil},
	})
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// snapshots is a collector of values of T. All are read once per scrape, so that the metrics
// of one scrape are consistent.
type snapshots[T any] struct {
	prefix string            // of the metrics' names
	fixed  prometheus.Labels // on every metric; nil: none
	labels []string          // distinguish the values of one read; none: there is one
	of     func(T) []string  // their values; nil if there are none
	read   func() []T

	metrics []metric[T]
	descs   []*prometheus.Desc // one per metric
}

// describe sets the metrics of s.
func (s *snapshots[T]) describe(metrics []metric[T]) *snapshots[T] {
	s.metrics = metrics
	for _, m := range metrics {
		labels := prometheus.Labels{}
		maps.Copy(labels, s.fixed)
		maps.Copy(labels, m.label)
		s.descs = append(s.descs, prometheus.NewDesc(s.prefix+m.name, m.help, s.labels, labels))
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *snapshots[T]) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range s.descs {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (s *snapshots[T]) Collect(out chan<- prometheus.Metric) {
	for _, now := range s.read() {
		var values []string
		if s.of != nil {
			values = s.of(now)
		}
		for i, m := range s.metrics {
			kind := prometheus.GaugeValue
			if strings.HasSuffix(m.name, "_total") {
				kind = prometheus.CounterValue
			}
			if value := m.value(now); !math.IsNaN(value) {
				out <- prometheus.MustNewConstMetric(s.descs[i], kind, value, values...)
			}
		}
	}
}

// metricsLog logs the errors of the metrics handler.
type metricsLog struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (l metricsLog) Println(v ...any) { l.log.Error("gather metrics", "error", fmt.Sprint(v...)) }
