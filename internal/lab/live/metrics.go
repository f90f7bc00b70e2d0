package live

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"spillway/internal/lab/result"
)

// metrics returns the handler of a scrape.
func (s *Server) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(s.snapshot))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// bounds are the upper bounds of the buckets of response times.
func bounds() []time.Duration {
	var all []time.Duration
	for decade := 100 * time.Microsecond; decade <= 10*time.Second; decade *= 10 {
		all = append(all, decade, decade*5/2, decade*5)
	}
	return append(all, 100*time.Second)
}

// A collector turns a snapshot into metrics when it is scraped.
type collector struct {
	snapshot func() *result.Snapshot
	numbers  []number
	errors   *prometheus.Desc
	response *prometheus.Desc
	bounds   []time.Duration
}

// A number is a metric with one value.
type number struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*result.Snapshot) float64
}

func newCollector(snapshot func() *result.Snapshot) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("spillway_load_"+name, help, labels, nil)
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	return &collector{
		snapshot: snapshot, bounds: bounds(),
		errors: desc("errors_total", "Failed requests by class.", "class"),
		response: desc("response_seconds", "Response time from the intended start. Requests without an answer are in the bucket +Inf only.",
			nil...),
		numbers: []number{
			{
				desc("requests_total", "Requests that ended: answered, failed or never sent."), counter,
				func(s *result.Snapshot) float64 { return float64(s.Sums.Requests()) },
			},
			{
				desc("good_answers_total", "Answers with an expected status that passed every check, within the steps."), counter,
				func(s *result.Snapshot) float64 { return float64(s.Sums.Completed) },
			},
			{desc("in_flight", "Requests sent and not answered."), gauge, func(s *result.Snapshot) float64 { return float64(s.Last.InFlight) }},
			{desc("backlog", "Requests due and not sent."), gauge, func(s *result.Snapshot) float64 { return float64(s.Last.Backlog) }},
			{desc("connections", "Connections open."), gauge, func(s *result.Snapshot) float64 { return float64(s.Last.Connections) }},
			{desc("offered_requests_per_second", "Arrival rate of the current step, 0 in a closed loop."), gauge, offered},
			{
				desc("step", "Number of the current step, from 0."), gauge,
				func(s *result.Snapshot) float64 { return float64(max(0, len(s.Run.Steps)-1)) },
			},
		},
	}
}

// offered is the arrival rate of the current step.
func offered(s *result.Snapshot) float64 {
	if len(s.Run.Steps) == 0 {
		return 0
	}
	return s.Run.Steps[len(s.Run.Steps)-1].OfferedHz
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, n := range c.numbers {
		descs <- n.desc
	}
	descs <- c.errors
	descs <- c.response
}

// Collect implements prometheus.Collector. There are no metrics before the run begins.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.snapshot()
	if s == nil {
		return
	}
	for _, n := range c.numbers {
		metrics <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(s))
	}
	for _, class := range result.ErrorClasses() {
		metrics <- prometheus.MustNewConstMetric(c.errors, prometheus.CounterValue, float64(s.Sums.Errors[class]), class.String())
	}
	times, err := s.Sums.Latency.Responses()
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(c.response, err)
		return
	}
	buckets := make(map[float64]uint64, len(c.bounds))
	for i, n := range times.Known.Cumulative(c.bounds) {
		buckets[c.bounds[i].Seconds()] = uint64(n)
	}
	sum := times.Known.Mean().Seconds()*float64(times.Known.Count()) + times.Beyond.Mean().Seconds()*float64(times.Beyond.Count())
	metrics <- prometheus.MustNewConstHistogram(c.response, uint64(times.Count()), sum, buckets)
}
