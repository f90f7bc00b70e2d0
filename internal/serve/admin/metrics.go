package admin

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
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
	return c.describe()
}

// FeedStats returns the metrics of all feeds, named spillway_feed_... Their feed
// label is the feed's name. stats is called at each scrape.
func FeedStats(stats func() []feed.Stats) prometheus.Collector {
	type s = feed.Stats
	c := &snapshots[s]{prefix: "spillway_feed_", labels: []string{"feed"}, of: func(s s) []string { return []string{s.Name} }, read: stats}
	return c.describe()
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
	}...)
}

// KeySetStats returns the metrics of the key set of JWTs, named spillway_jwks_... stats is
// called at each scrape.
func KeySetStats(stats func() token.SetStats) prometheus.Collector {
	type s = token.SetStats
	c := &snapshots[s]{prefix: "spillway_jwks_", read: func() []s { return []s{stats()} }}
	return c.describe(metric[s]{
		"age_seconds", func(s s) float64 {
			if s.FetchedAt.IsZero() {
				return math.NaN()
			}
			return time.Since(s.FetchedAt).Seconds()
		}, "Time since the key set was fetched; absent if it never was.", nil,
	})
}

// QueryStats returns the metrics of all queries, named spillway_query_... Their
// query label is the query's name. stats is called at each scrape.
func QueryStats(stats func() []query.Stats) prometheus.Collector {
	type s = query.Stats
	c := &snapshots[s]{prefix: "spillway_query_", labels: []string{"query"}, of: func(s s) []string { return []string{s.Name} }, read: stats}
	return c.describe()
}

// taggedMetrics returns the metrics of the fields of T, and of the structs in it, that have a tag such as
// `metric:"pages_total,source=window" help:"Pages answered."`. A tag may have several, with a semicolon between
// them. Those of one name have the help of the first. In a map, limit=a|b are the values of the keys a and b.
func taggedMetrics[T any]() (metrics []metric[T]) {
	help := make(map[string]string)
	var add func(of reflect.Type, index []int)
	add = func(of reflect.Type, index []int) {
		for i := range of.NumField() {
			field, index := of.Field(i), append(slices.Clip(index), i)
			if field.Type.Kind() == reflect.Struct {
				add(field.Type, index)
			}
			for tag := range strings.SplitSeq(field.Tag.Get("metric"), ";") {
				name, pair, _ := strings.Cut(tag, ",")
				if name == "" {
					continue
				}
				help[name] = cmp.Or(help[name], field.Tag.Get("help"))
				label, keys, labelled := strings.Cut(pair, "=")
				for key := range strings.SplitSeq(keys, "|") {
					m := metric[T]{name, func(t T) float64 { return numberOf(reflect.ValueOf(t).FieldByIndex(index), key) }, help[name], nil}
					if labelled {
						m.label = prometheus.Labels{label: key}
					}
					metrics = append(metrics, m)
				}
			}
		}
	}
	if of := reflect.TypeFor[T](); of.Kind() == reflect.Struct {
		add(of, nil)
	}
	return metrics
}

// numberOf returns the value of a metric. In a map it is that of a key.
func numberOf(v reflect.Value, key string) float64 {
	switch {
	case v.Kind() == reflect.Map:
		n, _ := v.Interface().(map[string]uint64)
		return float64(n[key])
	case v.Type() == reflect.TypeFor[time.Duration]():
		return time.Duration(v.Int()).Seconds()
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return flag(v.Bool())
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

// describe sets the metrics of s: those of T's fields with a tag, and others.
func (s *snapshots[T]) describe(others ...metric[T]) *snapshots[T] {
	s.metrics = append(taggedMetrics[T](), others...)
	for _, m := range s.metrics {
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
