package server

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meter counts the responses of one route by status and duration. All connections write to
// it, so one response costs three atomic additions.
type meter struct {
	statuses [6]struct { // by hundreds
		codes [100]atomic.Uint64
	}
	buckets [durationBuckets + 1]atomic.Uint64 // the last one has no upper bound
	nanos   atomic.Int64
}

const durationBuckets = 16

// durationBounds returns the upper bounds of the duration buckets. They start at 50 us,
// because responses from a window are faster than the usual first bound of 5 ms.
func durationBounds() [durationBuckets]time.Duration {
	const us, ms = time.Microsecond, time.Millisecond
	return [durationBuckets]time.Duration{
		50 * us, 100 * us, 250 * us, 500 * us, 1 * ms, 2500 * us, 5 * ms, 10 * ms,
		25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, time.Second, 2500 * ms, 10 * time.Second,
	}
}

func (m *meter) observe(status int, took time.Duration) {
	if h := status / 100; h > 0 && h < len(m.statuses) {
		m.statuses[h].codes[status%100].Add(1)
	}
	b := 0
	if took > 50*time.Microsecond { // most responses end here
		bounds := durationBounds()
		for b = 1; b < durationBuckets && took > bounds[b]; b++ {
		}
	}
	m.buckets[b].Add(1)
	m.nanos.Add(int64(took))
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	d := newDescriptions()
	ch <- d.requests
	ch <- d.seconds
	ch <- d.open
	ch <- d.rejected
	ch <- d.handed
	ch <- d.bodies
	ch <- d.bodiesRejected
	ch <- d.rateLimited
	ch <- d.rateClients
	ch <- d.rateForgotten
	ch <- d.compressed
	ch <- d.compressRefused
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	d := newDescriptions()
	s = s.current.Load()
	seen := map[*route]bool{}
	s.unknown.collect(ch, d)
	s.options.collect(ch, d)
	for _, e := range s.routes {
		for _, r := range []*route{e.read, e.write} {
			if r != nil && !seen[r] { // aliases share a route
				seen[r] = true
				r.collect(ch, d)
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(d.bodies, prometheus.GaugeValue, float64(s.bodies.held.Load()))
	ch <- prometheus.MustNewConstMetric(d.bodiesRejected, prometheus.CounterValue, float64(s.bodies.refused.Load()))
	if s.rate != nil {
		ch <- prometheus.MustNewConstMetric(d.rateLimited, prometheus.CounterValue, float64(s.rate.limited.Load()))
		ch <- prometheus.MustNewConstMetric(d.rateClients, prometheus.GaugeValue, float64(s.rate.len()))
		ch <- prometheus.MustNewConstMetric(d.rateForgotten, prometheus.CounterValue, float64(s.rate.forgotten.Load()))
	}
	if s.compressor != nil {
		used, refused := s.compressor.Usage()
		ch <- prometheus.MustNewConstMetric(d.compressed, prometheus.GaugeValue, float64(used))
		ch <- prometheus.MustNewConstMetric(d.compressRefused, prometheus.CounterValue, float64(refused))
	}
	if l := s.listener.Load(); l != nil {
		ch <- prometheus.MustNewConstMetric(d.open, prometheus.GaugeValue, float64(l.open.Load()))
		ch <- prometheus.MustNewConstMetric(d.rejected, prometheus.CounterValue, float64(l.refused.Load()))
		ch <- prometheus.MustNewConstMetric(d.handed, prometheus.CounterValue, float64(l.handed.Load()))
	}
}

type descriptions struct {
	requests, seconds, open, rejected, handed, bodies, bodiesRejected *prometheus.Desc

	rateLimited, rateClients, rateForgotten *prometheus.Desc

	compressed, compressRefused *prometheus.Desc
}

func newDescriptions() descriptions {
	return descriptions{
		requests: prometheus.NewDesc("spillway_http_requests_total", "Responses by route and status.", []string{"route", "code"}, nil),
		seconds: prometheus.NewDesc("spillway_http_request_duration_seconds", "Time from the end of the request to the start of the response.",
			[]string{"route"}, nil),
		open: prometheus.NewDesc("spillway_http_connections", "Open connections.", nil, nil),
		rejected: prometheus.NewDesc("spillway_http_connections_rejected_total", "Connections refused because http.connections was reached.", nil,
			nil),
		handed: prometheus.NewDesc("spillway_http_connections_handed_total", "Times that a connection left the fast lane.", nil, nil),
		bodies: prometheus.NewDesc("spillway_http_bodies_bytes",
			"Bytes of request bodies received or held; bodies up to 4 KiB are not counted.", nil, nil),

		bodiesRejected: prometheus.NewDesc("spillway_http_bodies_rejected_total", "Requests refused because http.bodies_bytes was reached.", nil,
			nil),

		rateLimited: prometheus.NewDesc("spillway_http_rate_limited_total",
			"Requests refused because their client exceeded http.rate_per_minute.", nil, nil),
		rateClients: prometheus.NewDesc("spillway_http_rate_clients", "Clients whose rate is known.", nil, nil),
		rateForgotten: prometheus.NewDesc("spillway_http_rate_clients_forgotten_total",
			"Clients forgotten because http.rate_clients was reached.", nil, nil),

		compressed: prometheus.NewDesc("spillway_http_compressed_bytes", "Memory of compressed bodies.", nil, nil),
		compressRefused: prometheus.NewDesc("spillway_http_compress_refused_total",
			"Bodies sent uncompressed because http.compress_bytes was reached.", nil, nil),
	}
}

func (r *route) collect(ch chan<- prometheus.Metric, d descriptions) {
	for h := range r.meter.statuses {
		for c := range r.meter.statuses[h].codes {
			if n := r.meter.statuses[h].codes[c].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(d.requests, prometheus.CounterValue, float64(n), r.name, strconv.Itoa(100*h+c))
			}
		}
	}
	buckets := make(map[float64]uint64, durationBuckets)
	total := uint64(0)
	for i, bound := range durationBounds() {
		total += r.meter.buckets[i].Load()
		buckets[bound.Seconds()] = total
	}
	total += r.meter.buckets[durationBuckets].Load()
	if total > 0 {
		sum := time.Duration(r.meter.nanos.Load()).Seconds()
		ch <- prometheus.MustNewConstHistogram(d.seconds, total, sum, buckets, r.name)
	}
}
