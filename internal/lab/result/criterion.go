package result

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Metrics of a Criterion. Latencies are named by histogram, figure and unit: "response_p99_seconds",
// "service_p999_seconds", "response_mean_seconds", "response_max_seconds".
const (
	MetricErrorShare = "error_share" // failed requests over all requests, 0 to 1
	MetricRate       = "rate_hz"     // answered requests per second
)

// Observe reads the metric of a criterion from a total. An unknown metric is an error.
func (t *Total) Observe(metric string) (float64, error) {
	switch metric {
	case MetricErrorShare:
		return t.ErrorShare(), nil
	case MetricRate:
		return t.Rate(), nil
	}
	name, figure, ok := strings.Cut(strings.TrimSuffix(metric, "_seconds"), "_")
	payload, known := map[string]HDR{"response": t.Latency.Response, "service": t.Latency.Service}[name]
	if !ok || !known {
		return 0, fmt.Errorf("unknown metric %q", metric)
	}
	if payload == "" {
		return 0, nil
	}
	hdr, err := hdrhistogram.Decode([]byte(payload))
	if err != nil {
		return 0, fmt.Errorf("read histogram: %w", err)
	}
	return readFigure(hdr, figure, metric)
}

func readFigure(hdr *hdrhistogram.Histogram, figure, metric string) (float64, error) {
	switch figure {
	case "mean":
		return hdr.Mean() / float64(time.Second), nil
	case "max":
		return time.Duration(hdr.Max()).Seconds(), nil
	}
	digits, isPercentile := strings.CutPrefix(figure, "p")
	if _, err := strconv.ParseUint(digits, 10, 32); err != nil || !isPercentile || len(digits) < 2 {
		return 0, fmt.Errorf("unknown metric %q", metric)
	}
	percentile, err := strconv.ParseFloat(digits[:2]+"."+digits[2:]+"0", 64) // "999" is 99.9
	if err != nil {
		return 0, fmt.Errorf("unknown metric %q", metric)
	}
	return time.Duration(hdr.ValueAtPercentile(percentile)).Seconds(), nil
}

// reevaluate evaluates the criteria of one part on the merged total.
func reevaluate(criteria []Criterion, total *Total) ([]Criterion, error) {
	var judged []Criterion
	for _, c := range criteria {
		observed, err := total.Observe(c.Metric)
		if err != nil {
			return nil, fmt.Errorf("judge %s: %w", c.Text, err)
		}
		c.Observed = observed
		c.Met = meets(c.Text, observed, c.Limit)
		judged = append(judged, c)
	}
	return judged, nil
}

// meets applies the comparison operator in text.
func meets(text string, observed, limit float64) bool {
	switch {
	case strings.Contains(text, ">="):
		return observed >= limit
	case strings.Contains(text, ">"):
		return observed > limit
	case strings.Contains(text, "<="):
		return observed <= limit
	}
	return observed < limit
}
