//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Servers of known capacity.
const (
	serverBucket   = "bucket"
	serverSleepers = "sleepers"
	serverBurner   = "burner"
)

// errorsAllowed is the share of errors that every SLO of -accuracy allows.
const errorsAllowed = 0.01

// A target is a server of known capacity.
type target struct {
	server   string
	capacity float64 // good answers per second
	plant    plant
	slo      string
	maxTime  time.Duration // of the search
	within   float64       // how far the peak may be from the analytic rate, as a share
}

// newTarget returns the server with that capacity. The burner's is only aimed at; it is measured when it runs.
func newTarget(server string, capacity float64) (target, error) {
	t := target{server: server, capacity: capacity, maxTime: 2 * time.Minute, within: 0.05}
	quantile := "p99"
	if capacity < 100 { // 1,000 answers for a p99 would take too long
		quantile, t.maxTime = "p90", 10*time.Minute
	}
	limit := 50 * time.Millisecond
	switch server {
	case serverBucket:
		t.plant = plant{kind: plantBucket, rate: capacity}
	case serverSleepers:
		k, work := sleepersOf(capacity)
		t.plant = plant{kind: plantVirtual, k: k, work: work}
		limit += 3 * work
	case serverBurner:
		t.plant = plant{kind: plantBurn, work: burnOf(capacity)}
		limit += 5 * t.plant.work
		t.within = 0.1
	default:
		return t, fmt.Errorf("unknown server %q: bucket, sleepers or burner", server)
	}
	t.slo = fmt.Sprintf("%s<%dms errors<%g%%", quantile, limit.Milliseconds(), 100*errorsAllowed)
	return t, nil
}

// sleepersOf returns how many sleepers, and for how long each, give a capacity: those that take about 20 ms.
func sleepersOf(capacity float64) (k int, work time.Duration) {
	k = max(1, int(math.Round(capacity*0.02)))
	return k, time.Duration(float64(k) / capacity * float64(time.Second))
}

// requestOverhead is about what net/http takes per request beside the work.
const requestOverhead = 40 * time.Microsecond

func burnOf(capacity float64) time.Duration {
	return max(time.Microsecond, time.Duration(float64(time.Second)/capacity)-requestOverhead)
}

// analytic returns the highest rate of evenly spaced arrivals that meets the SLO.
//
// A bucket of rate R refuses the share 1 - R/λ of λ > R at once, so that λ (1 - e) = R at the highest share of errors e that is
// allowed. k sleepers of time S, and a core that spends S on each request, let no queue grow up to k/S, and above it the queue
// grows without end.
func (t target) analytic() float64 {
	if t.server == serverBucket {
		return t.capacity / (1 - errorsAllowed)
	}
	return t.capacity
}

// defaultRates are the capacities that -accuracy searches for.
func defaultRates(server string) []float64 {
	low := []float64{5, 10, 20, 30, 50, 75, 100, 150, 200, 300}
	switch server {
	case serverBucket:
		return append(low, 500, 750, 1000, 2000, 3000, 5000, 10000, 20000, 30000, 50000)
	case serverSleepers:
		return append(low, 400, 500, 600, 750, 1000, 1500, 2000, 3000, 4000, 5000)
	}
	return append(low, 400, 500, 600, 750, 1000, 1250, 1500, 2000, 2500, 3000)
}

// targets returns the servers that -servers and -rates name.
func (o *options) targets() ([]target, error) {
	var all []target
	for server := range strings.SplitSeq(o.servers, ",") {
		rates := defaultRates(server)
		if o.rates != "" {
			rates = nil
			for text := range strings.SplitSeq(o.rates, ",") {
				rate, err := strconv.ParseFloat(text, 64)
				if err != nil || !(rate > 0) || rate > 1e6 {
					return nil, errors.New("-rates takes rates per second up to 1000000, such as 100,1000")
				}
				rates = append(rates, rate)
			}
		}
		slices.Sort(rates)
		for _, rate := range rates {
			t, err := newTarget(server, rate)
			if err != nil {
				return nil, err
			}
			all = append(all, t)
		}
	}
	return all, nil
}
