package live

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"spillway/internal/lab/result"
)

// metrics returns the handler of a scrape. There are no metrics before the run begins.
func (s *Server) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) {
		if snapshot := s.snapshot(); snapshot != nil {
			sendMetrics(snapshot, metrics)
		}
	}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// sendMetrics sends the figures of a snapshot.
func sendMetrics(s *result.Snapshot, metrics chan<- prometheus.Metric) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("spillway_load_"+name, help, labels, nil)
	}
	send := func(kind prometheus.ValueType, value float64, name, help string) {
		metrics <- prometheus.MustNewConstMetric(desc(name, help), kind, value)
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	send(counter, float64(s.Sums.Requests()), "requests_total", "Requests that ended: answered, failed or never sent.")
	send(counter, float64(s.Sums.Completed), "good_answers_total",
		"Answers with an expected status that passed every check, within the steps.")
	send(gauge, float64(s.Last.InFlight), "in_flight", "Requests sent and not answered.")
	send(gauge, float64(s.Last.Backlog), "backlog", "Requests due and not sent.")
	send(gauge, float64(s.Last.Connections), "connections", "Connections open.")
	offered, step := 0.0, len(s.Run.Steps)-1
	if step >= 0 {
		offered = s.Run.Steps[step].OfferedHz
	}
	send(gauge, offered, "offered_requests_per_second", "Arrival rate of the current step, 0 in a closed loop.")
	send(gauge, float64(max(0, step)), "step", "Number of the current step, from 0.")

	failed := desc("errors_total", "Failed requests by class.", "class")
	for _, class := range result.ErrorClasses() {
		metrics <- prometheus.MustNewConstMetric(failed, counter, float64(s.Sums.Errors[class]), class.String())
	}
	response := desc("response_seconds", "Response time from the intended start. Requests without an answer are in the bucket +Inf only.")
	times, err := s.Sums.Latency.Responses()
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(response, err)
		return
	}
	bounds := bucketBounds()
	buckets := make(map[float64]uint64, len(bounds))
	for i, n := range times.Known.Cumulative(bounds) {
		buckets[bounds[i].Seconds()] = uint64(n)
	}
	sum := times.Known.Mean().Seconds()*float64(times.Known.Count()) + times.Beyond.Mean().Seconds()*float64(times.Beyond.Count())
	metrics <- prometheus.MustNewConstHistogram(response, uint64(times.Count()), sum, buckets)
}

// bucketBounds are the upper bounds of the buckets of response times.
func bucketBounds() []time.Duration {
	var all []time.Duration
	for decade := 100 * time.Microsecond; decade <= 10*time.Second; decade *= 10 {
		all = append(all, decade, decade*5/2, decade*5)
	}
	return append(all, 100*time.Second)
}
