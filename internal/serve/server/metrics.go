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

// Describe implements prometheus.Collector. It describes nothing, which leaves that to Collect.
func (*Server) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	s = s.current.Load()
	for _, r := range s.meteredRoutes() {
		r.collect(ch)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	number := func(kind prometheus.ValueType, value float64, name, help string) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), kind, value)
	}
	number(gauge, float64(s.bodies.held.Load()), "spillway_http_bodies_bytes",
		"Bytes of request bodies received or held; bodies up to 4 KiB are not counted.")
	number(counter, float64(s.bodies.refused.Load()), "spillway_http_bodies_rejected_total",
		"Requests refused because http.bodies_bytes was reached.")
	if s.cfg.AccessLog != nil {
		number(counter, float64(s.cfg.AccessLog.lost.Load()), "spillway_access_log_lost_total",
			"Lines of the access log that were lost, because it could not be written, or not fast enough.")
	}
	if s.rate != nil {
		number(counter, float64(s.rate.limited.Load()), "spillway_http_rate_limited_total",
			"Requests refused because their client exceeded http.rate_per_minute.")
		number(gauge, float64(s.rate.len()), "spillway_http_rate_clients", "Clients whose rate is known.")
		number(counter, float64(s.rate.forgotten.Load()), "spillway_http_rate_clients_forgotten_total",
			"Clients forgotten because http.rate_clients was reached.")
	}
	if s.compressor != nil {
		used, refused := s.compressor.Usage()
		number(gauge, float64(used), "spillway_http_compressed_bytes", "Memory of compressed bodies.")
		number(counter, float64(refused), "spillway_http_compress_refused_total",
			"Bodies sent uncompressed because http.compress_bytes was reached.")
	}
	if l := s.listener.Load(); l != nil {
		number(gauge, float64(l.open.Load()), "spillway_http_connections", "Open connections.")
		number(counter, float64(l.refused.Load()), "spillway_http_connections_rejected_total",
			"Connections refused because http.connections was reached.")
		number(counter, float64(l.handed.Load()), "spillway_http_connections_handed_total", "Times that a connection left the fast lane.")
	}
}

// meteredRoutes returns each route once: aliases share one.
func (s *Server) meteredRoutes() []*route {
	all := []*route{s.unknown, s.options}
	seen := map[*route]bool{}
	for _, e := range s.routes {
		for _, r := range []*route{e.read, e.write} {
			if r != nil && !seen[r] {
				seen[r] = true
				all = append(all, r)
			}
		}
	}
	return all
}

// DurationBounds returns the upper bounds of the buckets of Counts; the last bucket has none.
func DurationBounds() []time.Duration {
	bounds := durationBounds()
	return bounds[:]
}

// Counts calls yield for each route that has answered, with its responses by their time (see DurationBounds), and how many of them had
// a status of 500 and above. They begin at zero again when the route is replaced.
func (s *Server) Counts(yield func(route string, buckets [durationBuckets + 1]uint64, errors uint64)) {
	for _, r := range s.current.Load().meteredRoutes() {
		var buckets [durationBuckets + 1]uint64
		total, errors := uint64(0), uint64(0)
		for i := range buckets {
			buckets[i] = r.meter.buckets[i].Load()
			total += buckets[i]
		}
		for i := range r.meter.statuses[5].codes {
			errors += r.meter.statuses[5].codes[i].Load()
		}
		if total > 0 {
			yield(r.name, buckets, errors)
		}
	}
}

func (r *route) collect(ch chan<- prometheus.Metric) {
	requests := prometheus.NewDesc("spillway_http_requests_total", "Responses by route and status.", []string{"route", "code"}, nil)
	seconds := prometheus.NewDesc("spillway_http_request_duration_seconds", "Time from the end of the request to the start of the response.",
		[]string{"route"}, nil)
	for h := range r.meter.statuses {
		for c := range r.meter.statuses[h].codes {
			if n := r.meter.statuses[h].codes[c].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n), r.name, strconv.Itoa(100*h+c))
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
		ch <- prometheus.MustNewConstHistogram(seconds, total, sum, buckets, r.name)
	}
}
