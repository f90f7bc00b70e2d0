package peak

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A simulated server has a latency that depends on rate and time, and a generator that loads it.
type simulated struct {
	latency   func(rate, capacity float64) float64 // p99 in seconds, or another percentile, at rates below the capacity
	capacity  func(at time.Duration) float64       // per second
	limit     float64                              // of the latency, in seconds
	rejects   bool                                 // answers what exceeds the capacity with errors, instead of letting it wait
	service   float64                              // without load, in seconds
	parallel  float64                              // requests that it works on at a time
	quantile  float64
	noise     float64                        // of ln(latency)
	settles   bool                           // the noise is that of 1,000 answers, and less with more
	spikes    float64                        // share of probes with a latency that is five times as long
	invalid   float64                        // share of probes that are not VALID, at random
	noisy     func(at time.Duration) float64 // share of probes in which something holds up the generator; nil: none
	disturbed [2]float64                     // rates between which the host is contended
	unsettled [2]float64                     // rates between which the latency changes during a probe
	generator float64                        // highest rate of the generator; 0: no limit
	fills     bool                           // requests in flight that begin to wait for answers look like a backlog
	random    *rand.Rand
}

const errorsLimit = 0.005

// seedsOf is how many seeds a test simulates: full of them, a part with -short.
func seedsOf(part, full int) int {
	if testing.Short() {
		return part
	}
	return full
}

// constant is a capacity that does not change.
func constant(capacity float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return capacity }
}

// queue is the p99 of a single queue with exponential service times, M/M/1: ln(100) times the mean.
func queue(rate, capacity float64) float64 { return math.Log(100) / (capacity - rate) }

// singleQueue meets its SLO up to that share of its capacity.
func singleQueue(capacity, share float64) *simulated {
	return &simulated{
		latency: queue, capacity: constant(capacity), limit: queue(share*capacity, capacity), service: 1 / capacity, parallel: 1, quantile: 0.99,
	}
}

// flatCurve has a latency that grows with that power of the rate and meets its limit at 800/s.
func flatCurve(exponent float64) *simulated {
	return &simulated{
		latency: func(rate, _ float64) float64 { return 0.05 * math.Pow(rate/800, exponent) }, capacity: constant(1e6), limit: 0.05,
		service: 0.001, parallel: 2, quantile: 0.99,
	}
}

// tokenBucket answers at once up to its capacity, and rejects the rest.
func tokenBucket(capacity float64) *simulated {
	return &simulated{
		latency: func(float64, float64) float64 { return 0.01 }, capacity: constant(capacity), limit: 0.05, rejects: true,
		service: 0.005, parallel: 1000, quantile: 0.99,
	}
}

// sleepers are k workers that sleep for the service time: the latency is flat until all of them are busy.
func sleepers(k int, service float64) *simulated {
	capacity := float64(k) / service
	return &simulated{
		latency: func(rate, capacity float64) float64 {
			rho := rate / capacity
			return service * (1 + 2*math.Pow(rho, math.Sqrt(2*float64(k+1)))/(float64(k)*(1-rho)))
		},
		capacity: constant(capacity), limit: 2 * service, service: service, parallel: float64(k), quantile: 0.99,
	}
}

// dipping is slow without load, too, such as a host that saves power.
func dipping(capacity, share float64) *simulated {
	s := singleQueue(capacity, share)
	s.latency = func(rate, capacity float64) float64 {
		return queue(rate, capacity) + 1.2*s.limit*math.Exp(-4*rate/capacity)
	}
	return s
}

// drifting loses that part of its capacity per minute.
func drifting(capacity, share, perMinute float64) *simulated {
	s := singleQueue(capacity, share)
	s.capacity = func(at time.Duration) float64 { return capacity * math.Exp(-perMinute*at.Minutes()) }
	return s
}

// changing has another capacity from that time on.
func changing(capacity, share, factor float64, from time.Duration) *simulated {
	s := singleQueue(capacity, share)
	s.capacity = func(at time.Duration) float64 {
		if at >= from {
			return factor * capacity
		}
		return capacity
	}
	return s
}

// peak is the highest rate that meets the SLO at that time.
func (s *simulated) peak(at time.Duration) float64 {
	capacity := s.capacity(at)
	limit := capacity
	if s.rejects {
		limit = capacity / (1 - errorsLimit)
	}
	for rate := limit; rate > limit/100; rate *= 0.999 {
		if rate >= capacity && s.rejects || rate < capacity && s.latency(rate, capacity) <= s.limit {
			return rate
		}
	}
	return 0
}

// observe runs the probe from that time on.
func (s *simulated) observe(p Probe, at time.Duration) Observation {
	took := p.Warmup + p.Duration
	capacity := (s.capacity(at) + s.capacity(at+took)) / 2
	o := Observation{Validity: result.Valid, Took: took + 100*time.Millisecond}
	if p.Rate == 0 {
		c := float64(p.Connections)
		o.Rate = min(c/s.service, s.parallel/s.service, capacity) * (1 + s.noise/5*s.random.NormFloat64())
		if s.generator > 0 {
			o.Rate = min(o.Rate, s.generator)
		}
		o.Service = time.Duration(c / o.Rate * float64(time.Second))
		o.Requests = int64(o.Rate * p.Duration.Seconds())
		if !histogram.Carries(o.Requests, s.quantile) {
			o.Validity = result.TooFewSamples
		}
	} else {
		s.offer(p, capacity, &o)
	}
	if s.noisy != nil && s.random.Float64() < s.noisy(at) {
		o.Validity, o.Disturbed = result.HostContended, true
		if s.random.IntN(2) == 0 {
			o.Validity = result.GeneratorLimited
		}
	}
	if s.random.Float64() < s.invalid {
		kinds := []result.Validity{result.TooFewSamples, result.HostContended, result.NotStationary, result.GeneratorLimited}
		o.Validity = kinds[s.random.IntN(len(kinds))]
	}
	return o
}

// offer is observe of an open loop.
func (s *simulated) offer(p Probe, capacity float64, o *Observation) {
	seconds := p.Duration.Seconds()
	n := p.Rate * seconds * (1 + 0.3*s.random.NormFloat64()/math.Sqrt(p.Rate*seconds))
	excess := max(0, p.Rate-capacity)
	o.Requests, o.Rate, o.Service = int64(n), min(p.Rate, capacity), time.Duration(s.service*1e9)
	latency, failed := 0.0, 0.0
	switch {
	case excess == 0 || s.rejects:
		latency, failed = s.latency(min(p.Rate, capacity), capacity), excess/p.Rate
	default:
		latency = max(s.latency(0.999*capacity, capacity), 0.99*excess*seconds/capacity)
		o.Overloaded = excess > 0.01*p.Rate
	}
	if s.fills { // as package load sees it, in points of 250 ms
		points := seconds / 0.25
		o.Overloaded = o.Overloaded || (s.service-p.Warmup.Seconds())/0.25 > 1/(1.0/16+1/points)
	}
	noise := s.noise
	if s.settles {
		noise *= math.Sqrt(1000 * 0.01 / (1 - s.quantile) / 10 / n)
	}
	margin := math.Log(latency/s.limit) + noise*s.random.NormFloat64()
	if s.random.Float64() < s.spikes {
		margin += math.Log(5)
	}
	errors := math.Log(failed / errorsLimit)
	o.Margins = []Margin{
		{Criterion: "p99<limit", Log: margin, Sigma: noise, Met: margin <= 0},
		{Criterion: "errors<0.5%", Log: errors, Sigma: 0.05, Met: errors <= 0},
	}
	switch {
	case p.Rate > s.disturbed[0] && p.Rate < s.disturbed[1]:
		o.Validity = result.HostContended
	case p.Rate > s.unsettled[0] && p.Rate < s.unsettled[1]:
		o.Validity = result.NotStationary
	case s.generator > 0 && p.Rate > s.generator:
		o.Validity = result.GeneratorLimited
	case o.Overloaded && o.Margins[0].Met && o.Margins[1].Met:
		o.Validity = result.NotStationary
	case !histogram.Carries(o.Requests, s.quantile):
		o.Validity = result.TooFewSamples
	}
}

// run lets a search find the peak of the server. It returns the time when it ended.
func run(s *simulated, settings Settings, seed uint64, each func(*Search)) (Answer, time.Duration) {
	s.random = rand.New(rand.NewPCG(seed, 1))
	settings.Quantile = s.quantile
	search := NewSearch(settings)
	at := time.Duration(0)
	for {
		p, ok := search.Next(at)
		if !ok {
			return search.Answer(), at
		}
		o := s.observe(p, at)
		at += o.Took
		search.Observe(p, o)
		if each != nil {
			each(search)
		}
	}
}
