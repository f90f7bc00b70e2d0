package peak

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// queueing simulates every request of a single queue (Lindley's recursion), so that latencies are as noisy and as alike as those of
// a real one. Arrivals are random, service times are exponential.
type queueing struct {
	capacity, quantile, limit float64
	workers                   int
	fixed                     bool // service times do not vary
	even                      bool // arrivals are evenly spaced
	random                    *rand.Rand
}

func (q *queueing) observe(p Probe) Observation {
	if p.Rate == 0 {
		n := int64(q.capacity * p.Duration.Seconds())
		return Observation{
			Validity: result.Valid, Rate: q.capacity, Requests: n, Took: p.cost(),
			Service: time.Duration(float64(p.Connections) / q.capacity * 1e9),
		}
	}
	at, end := -p.Warmup.Seconds(), p.Duration.Seconds()
	free := slices.Repeat([]float64{at}, q.workers)
	var times []float64
	for {
		if q.even {
			at += 1 / p.Rate
		} else {
			at += q.random.ExpFloat64() / p.Rate
		}
		if at >= end {
			break
		}
		first := 0
		for i, f := range free {
			if f < free[first] {
				first = i
			}
		}
		service := float64(q.workers) / q.capacity
		if !q.fixed {
			service *= q.random.ExpFloat64()
		}
		free[first] = max(free[first], at) + service
		if at >= 0 {
			times = append(times, free[first]-at)
		}
	}
	slices.Sort(times)
	o := Observation{Validity: result.Valid, Rate: p.Rate, Requests: int64(len(times)), Took: p.cost()}
	if !histogram.Carries(o.Requests, q.quantile) {
		o.Validity = result.TooFewSamples
		return o
	}
	n := float64(len(times))
	spread := 1.96 * math.Sqrt(n*q.quantile*(1-q.quantile))
	rank := func(r float64) float64 { return times[int(clamp(r, 0, n-1))] }
	middle, low, high := rank(n*q.quantile), rank(n*q.quantile-spread), rank(n*q.quantile+spread)
	log := math.Log(middle / q.limit)
	o.Margins = []Margin{{Criterion: "p99<limit", Log: log, Sigma: math.Log(high/low) / 2 / 1.96, Met: log <= 0}}
	if p.Rate > 1.02*q.capacity {
		o.Overloaded = true
		if log <= 0 {
			o.Validity = result.NotStationary
		}
	}
	return o
}

// longRunPeak is the highest rate that meets the limit in a long run.
func (q *queueing) longRunPeak() float64 {
	const requests = 1e5
	low, high := q.capacity/10, q.capacity
	for high > 1.01*low {
		rate := (low + high) / 2
		o := q.observe(Probe{Rate: rate, Duration: time.Duration(requests / rate * 1e9), Warmup: time.Duration(requests / 10 / rate * 1e9)})
		if o.Margins[0].Met {
			low = rate
		} else {
			high = rate
		}
	}
	return low
}

// TestSearchOnAQueueOfRequests finds the peaks of queues whose latencies fluctuate by themselves.
func TestSearchOnAQueueOfRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		queue    queueing
		deadline time.Duration
	}{
		{"1 worker, 10,000/s", queueing{capacity: 10000, quantile: 0.99, limit: 0.02, workers: 1, fixed: true}, 2 * time.Minute},
		{"8 workers that vary, 10,000/s", queueing{capacity: 10000, quantile: 0.99, limit: 0.0064, workers: 8}, 2 * time.Minute},
		{"1 worker, 1,000/s", queueing{capacity: 1000, quantile: 0.99, limit: 0.02, workers: 1, fixed: true}, 2 * time.Minute},
		{"8 workers, 1,000/s evenly", queueing{capacity: 1000, quantile: 0.99, limit: 0.012, workers: 8, fixed: true, even: true}, 2 * time.Minute},
		{"8 workers, 100/s evenly", queueing{capacity: 100, quantile: 0.99, limit: 0.12, workers: 8, fixed: true, even: true}, 2 * time.Minute},
		{"4 workers, 30/s evenly, p90", queueing{capacity: 30, quantile: 0.9, limit: 0.2, workers: 4, fixed: true, even: true}, 10 * time.Minute},
		{"1 worker, 6/s evenly, p90", queueing{capacity: 6, quantile: 0.9, limit: 0.5, workers: 1, fixed: true, even: true}, 10 * time.Minute},
	} {
		q := &c.queue
		q.random = rand.New(rand.NewPCG(1, 5))
		peak := q.longRunPeak()
		within := 0
		runs := seedsOf(4, 20)
		for seed := range uint64(runs) {
			q.random = rand.New(rand.NewPCG(seed, 6))
			search, at := NewSearch(Settings{Quantile: q.quantile, Deadline: c.deadline}), time.Duration(0)
			for {
				p, ok := search.Next(at)
				if !ok {
					break
				}
				o := q.observe(p)
				at += o.Took
				search.Observe(p, o)
			}
			a := search.Answer()
			if math.Abs(a.Feasible/peak-1) <= 0.1 {
				within++
			}
			if a.Feasible > 1.05*q.capacity || at > c.deadline {
				t.Errorf("%s, seed %d: %g/s is feasible after %s, the capacity is %g/s", c.name, seed, a.Feasible, at, q.capacity)
			}
		}
		if within < runs*19/20 {
			t.Errorf("%s: %d of %d runs ended within 10 %% of %g/s", c.name, within, runs, peak)
		}
	}
}
