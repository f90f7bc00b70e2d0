package report

import (
	"time"

	"spillway/internal/histogram"
)

// Figures are what is read from one histogram. A percentile is nil (null in JSON) when the sample does not carry it:
// fewer than histogram.TailSamples samples lie beyond.
type Figures struct {
	Count       int64       `json:"count"`
	Mean        *float64    `json:"mean_seconds"`
	Min         *float64    `json:"min_seconds"`
	P50         *float64    `json:"p50_seconds"`
	P90         *float64    `json:"p90_seconds"`
	P95         *float64    `json:"p95_seconds"`
	P99         *float64    `json:"p99_seconds"`
	P999        *float64    `json:"p999_seconds"`
	P9999       *float64    `json:"p9999_seconds"`
	Max         *float64    `json:"max_seconds"`
	P50Interval *[2]float64 `json:"p50_interval_seconds"` // 95 % confidence, by order statistics
	P99Interval *[2]float64 `json:"p99_interval_seconds"`
}

func figuresOf(h *histogram.Histogram) Figures {
	f := Figures{Count: h.Count()}
	if f.Count == 0 {
		return f
	}
	f.Mean, f.Min, f.Max = inSeconds(h.Mean()), inSeconds(h.Min()), inSeconds(h.Max())
	f.P50, f.P90, f.P95 = percentile(h, 0.5), percentile(h, 0.9), percentile(h, 0.95)
	f.P99, f.P999, f.P9999 = percentile(h, 0.99), percentile(h, 0.999), percentile(h, 0.9999)
	f.P50Interval, f.P99Interval = interval(h, 0.5), interval(h, 0.99)
	return f
}

func percentile(h *histogram.Histogram, q float64) *float64 {
	if !h.Carries(q) {
		return nil
	}
	return inSeconds(h.Quantile(q))
}

func interval(h *histogram.Histogram, q float64) *[2]float64 {
	low, high, ok := h.Interval(q)
	if !ok {
		return nil
	}
	return &[2]float64{low.Seconds(), high.Seconds()}
}

func inSeconds(d time.Duration) *float64 {
	s := d.Seconds()
	return &s
}

// orDash writes a figure in seconds, or a dash where there is none.
func orDash(s *float64) string {
	if s == nil {
		return "-"
	}
	return seconds(*s)
}
