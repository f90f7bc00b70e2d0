package admin

import (
	"cmp"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/standby"
	"spillway/internal/serve/stream"
)

// Stats returns the metrics of what read returns at each scrape, whose names begin with prefix. Those that end with _total are
// counters. The fields of T and of the structs in it say which there are.
//
// A field with a tag such as `metric:"pages_total,source=window" help:"Pages answered."` is one. A tag may have several, with a
// semicolon between them. Those of one name have the help of the first. A duration is in seconds, a bool 0 or 1, a text 1, and a
// nil pointer is absent. In a map, limit=a|b are the values of the keys a and b. A text with a tag such as `label:"feed"` is a
// label of all of them.
func Stats[T any](prefix string, read func() []T) prometheus.Collector {
	s := &collector{read: func() (all []reflect.Value) {
		for _, one := range read() {
			all = append(all, reflect.ValueOf(one))
		}
		return all
	}}
	s.describe(prefix, flatten(reflect.TypeFor[T](), nil))
	return s
}

// collector is that of Stats. It reads once per scrape, so that the metrics of one scrape are consistent.
type collector struct {
	read    func() []reflect.Value
	labels  [][]int // fields
	metrics []metric
}

// metric is one number of a value.
type metric struct {
	field []int
	key   string // in a map
	kind  prometheus.ValueType
	desc  *prometheus.Desc
}

// flatten returns the fields of a struct, each followed by those in it.
func flatten(t reflect.Type, index []int) (all []reflect.StructField) {
	for i := range t.NumField() {
		f := t.Field(i)
		f.Index = append(slices.Clip(index), i)
		if all = append(all, f); f.Type.Kind() == reflect.Struct {
			all = append(all, flatten(f.Type, f.Index)...)
		}
	}
	return all
}

// describe sets the labels and the metrics from the tags of fields.
func (s *collector) describe(prefix string, fields []reflect.StructField) {
	var labels []string
	for _, f := range fields {
		if label := f.Tag.Get("label"); label != "" {
			labels, s.labels = append(labels, label), append(s.labels, f.Index)
		}
	}
	help := make(map[string]string)
	for _, f := range fields {
		for tag := range strings.SplitSeq(f.Tag.Get("metric"), ";") {
			name, pair, _ := strings.Cut(tag, ",")
			if name == "" {
				continue
			}
			help[name] = cmp.Or(help[name], f.Tag.Get("help"))
			kind := prometheus.GaugeValue
			if strings.HasSuffix(name, "_total") {
				kind = prometheus.CounterValue
			}
			label, keys, labelled := strings.Cut(pair, "=")
			for key := range strings.SplitSeq(keys, "|") {
				fixed := prometheus.Labels{}
				if labelled {
					fixed[label] = key
				}
				s.metrics = append(s.metrics, metric{f.Index, key, kind, prometheus.NewDesc(prefix+name, help[name], labels, fixed)})
			}
		}
	}
}

// Describe implements prometheus.Collector.
func (s *collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range s.metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (s *collector) Collect(out chan<- prometheus.Metric) {
	for _, now := range s.read() {
		var labels []string
		for _, field := range s.labels {
			labels = append(labels, now.FieldByIndex(field).String())
		}
		for _, m := range s.metrics {
			if value := now.FieldByIndex(m.field); value.Kind() != reflect.Pointer || !value.IsNil() {
				out <- prometheus.MustNewConstMetric(m.desc, m.kind, numberOf(reflect.Indirect(value), m.key), labels...)
			}
		}
	}
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
	case v.Kind() == reflect.Bool && !v.Bool():
		return 0
	}
	return 1
}

// BuildInfo returns spillway_build_info, which is always 1. Its labels are the version of the
// program, that of Go, and the revision of the source.
func BuildInfo(version, revision string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_build_info", Help: "Always 1. The labels are the versions of the program and of Go, and the revision of the source.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "revision": revision},
	}, func() float64 { return 1 })
}

// ReplicaStats returns the metrics of the read replica, named spillway_replica_...
func ReplicaStats(name string, reads *standby.Switch) prometheus.Collector {
	type replica struct {
		Database  string   `label:"database"`
		Fallbacks uint64   `metric:"fallbacks_total" help:"Reads answered by the primary instead."`
		Down      bool     `metric:"down" help:"1 while only the primary is used."`
		Late      bool     `metric:"late" help:"1 if the replica's rows are older than replica_lag_max, or of unknown age: the primary answers, unless it is away."`
		Lag       *float64 `metric:"lag_seconds" help:"Age of the oldest change of the primary that is not replayed; absent if it is unknown."`
	}
	return Stats("spillway_replica_", func() []replica {
		r := replica{Database: name, Fallbacks: reads.Fallbacks(), Down: reads.Down(), Late: reads.Late()}
		if lag, known := reads.Lag(); known {
			r.Lag = new(lag.Seconds())
		}
		return []replica{r}
	})
}

// StreamStats returns the metrics of all streams, named spillway_stream_...
func StreamStats(read func() []stream.Stats) prometheus.Collector {
	type figures struct {
		stream.Stats
		Refused uint64 `metric:"records_total,result=failed"` // the outcome of the others that failed is not known
	}
	return Stats("spillway_stream_", func() (all []figures) {
		for _, s := range read() {
			all = append(all, figures{s, s.Failed - s.Unknown})
		}
		return all
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
	Stream string `json:"stream" label:"stream"`                                            // its name
	Level  string `json:"ack" label:"ack" metric:"ack" help:"1 for the current ack level."` // as in responses
}

// SpoolStats returns the metrics of each stream in the spools that read returns, named
// spillway_spool_...{stream}.
func SpoolStats(read func() []spool.Stats) prometheus.Collector {
	type figures struct {
		spool.NameStats
		Undrained int64 `metric:"undrained_records" help:"Records that no stream drains."`
		Retrying  bool  `metric:"drain_retrying" help:"1 while the database does not accept drained records."`
		Stopped   bool  `metric:"drain_stopped" help:"1 if groups are missing or damaged; use spillway spool repair."`
	}
	return Stats("spillway_spool_", func() (all []figures) {
		for _, open := range read() {
			for _, s := range open.Names {
				f := figures{NameStats: s, Retrying: s.State == spool.DrainRetrying, Stopped: s.State == spool.DrainStopped}
				if s.State == spool.DrainNone {
					f.Undrained = s.Rows
				}
				all = append(all, f)
			}
		}
		return all
	})
}

// PopupFigures is a snapshot of the popups, for metrics and /figures.
type PopupFigures struct {
	popup.Stats  `json:"-"`
	Store        string              `json:"store"` // memory or redis
	States       int                 `json:"-" metric:"states" help:"States of users in memory."`
	Evicted      uint64              `json:"-" metric:"states_evicted_total" help:"States left to the database, beyond memory_users; 0 with Redis."`
	Waiting      int64               `json:"events_waiting" metric:"events_waiting" help:"Durable events that the database does not have yet; -1 if not known."`
	WaitingAge   float64             `json:"events_waiting_seconds" metric:"events_waiting_seconds" help:"Age of the oldest of them."`
	RecordErrors uint64              `json:"-" metric:"record_errors_total" help:"Events that could not be recorded."`
	SetAside     int64               `json:"-" metric:"events_set_aside" help:"Events that could not be decoded and must be repaired by hand."`
	Deleted      uint64              `json:"-" metric:"events_deleted_total" help:"Events deleted from the database because they were older than events_days."`
	Campaigns    popup.CampaignStats `json:"-"`
	Down         bool                `json:"down" metric:"down" help:"1 while the states do not answer."`
	Durable      bool                `json:"events_durable" metric:"events_durable" help:"1 if acknowledged events survive a crash; 0 if Redis does not sync, or may not."`
	LockAge      float64             `json:"-" metric:"lock_unverified_seconds" help:"Time since the database last confirmed the lock; 0 with Redis."`
	ClockSkew    float64             `json:"clock_skew_seconds" metric:"clock_skew_seconds" help:"Time by which this machine's clock is ahead of the store's, which decides."`
}

// PopupListStats returns the metric of lists of users. read is called at each scrape.
func PopupListStats(read func() *popup.Lists) prometheus.Collector {
	type list struct {
		Name  string `label:"list"`
		Users int    `metric:"users" help:"Users of each list in force, 8 bytes of memory each; 0 until it was read."`
	}
	return Stats("spillway_popup_list_", func() (all []list) {
		lists := read()
		for _, name := range lists.Names() {
			all = append(all, list{name, lists.Len(name)})
		}
		return all
	})
}
