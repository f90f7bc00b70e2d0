package admin

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// Bounds of Traffic: the last five minutes by second and the last hour by ten seconds, 48 kB per route.
const (
	trafficBuckets = 17 // of a route's histogram of durations
	trafficRoutes  = 150
	recentSeconds  = 300
	hourStep       = 10
	rateSeconds    = 5 // of the rates of streams
	hourSlots      = 3600 / hourStep
)

// otherRoutes is the name under which routes beyond trafficRoutes are counted together.
const otherRoutes = "(other routes)"

// count is what happened on a route in some time.
type count struct {
	buckets [trafficBuckets]uint32 // requests by duration
	errors  uint32                 // answers 500 and above
}

func (c *count) add(other *count) {
	for i := range c.buckets {
		c.buckets[i] += other.buckets[i]
	}
	c.errors += other.errors
}

func (c *count) requests() (n uint64) {
	for _, bucket := range c.buckets {
		n += uint64(bucket)
	}
	return n
}

// RouteCounts calls yield with the counters of each route: its requests by duration, and its answers of 500 and above. They begin at
// zero again when the route is replaced.
type RouteCounts = func(yield func(route string, buckets [trafficBuckets]uint64, errors uint64))

// counters are those of a route.
type counters struct {
	buckets [trafficBuckets]uint64
	errors  uint64
}

// routeTraffic is the last hour of a route. Both rings are indexed by the time since the start.
type routeTraffic struct {
	recent [recentSeconds]count
	hour   [hourSlots]count
	before map[string]counters // of the last sample; several of otherRoutes
}

// Traffic keeps the requests of each route in the last hour, in at most 8 MB. It takes a sample of the public listener's
// counters each second. Its methods may be called concurrently.
type Traffic struct {
	bounds []time.Duration // upper bounds of the buckets; the last one has none
	read   RouteCounts

	mu     sync.Mutex // guards what follows
	start  time.Time
	last   int64 // the second of the last sample, from start
	routes map[string]*routeTraffic
	rates  map[string]rate // of streams
}

// rate is the rate of a counter.
type rate struct {
	stored uint64  // at the last sample
	hz     float64 // weighted to the last rateSeconds
}

// NewTraffic returns an empty Traffic of the counters that read tells, with these upper bounds of all buckets but the last.
func NewTraffic(bounds []time.Duration, read RouteCounts) *Traffic {
	return &Traffic{bounds: bounds, read: read, start: time.Now(), routes: make(map[string]*routeTraffic), rates: make(map[string]rate)}
}

// Run takes the samples until ctx ends, of the streams too.
func (t *Traffic) Run(ctx context.Context, streams func() []stream.Stats) {
	for range queue.Ticks(ctx, time.Second) {
		t.sample(time.Now())
		t.sampleStreams(streams())
	}
}

// sampleStreams adds what the streams have stored since the last sample to their rates.
func (t *Traffic) sampleStreams(streams []stream.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range streams {
		r := t.rates[s.Name]
		r.hz += (float64(s.Stored-min(s.Stored, r.stored)) - r.hz) / rateSeconds
		r.stored = s.Stored
		t.rates[s.Name] = r
	}
}

// rateOf returns how many records a stream stores per second.
func (t *Traffic) rateOf(name string) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rates[name].hz
}

// sample adds what was counted since the last sample to the second of now.
func (t *Traffic) sample(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance(max(int64(now.Sub(t.start)/time.Second), t.last))
	t.read(t.count)
}

// advance empties the slots of the seconds up to second.
func (t *Traffic) advance(second int64) {
	for _, r := range t.routes {
		for s := max(t.last+1, second-recentSeconds+1); s <= second; s++ {
			r.recent[s%recentSeconds] = count{}
		}
		for s := max(t.last/hourStep+1, second/hourStep-hourSlots+1); s <= second/hourStep; s++ {
			r.hour[s%hourSlots] = count{}
		}
	}
	t.last = second
}

// count adds to the current slots what a route has counted since the last sample.
func (t *Traffic) count(route string, buckets [trafficBuckets]uint64, errors uint64) {
	name := route
	if t.routes[name] == nil && len(t.routes) >= trafficRoutes {
		name = otherRoutes
	}
	r := t.routes[name]
	if r == nil {
		r = &routeTraffic{before: make(map[string]counters)}
		t.routes[name] = r
	}
	before := r.before[route]
	r.before[route] = counters{buckets, errors}
	grown := func(value, before uint64) uint32 {
		if value < before {
			before = 0
		}
		return uint32(min(value-before, math.MaxUint32))
	}
	added := count{errors: grown(errors, before.errors)}
	for i := range added.buckets {
		added.buckets[i] = grown(buckets[i], before.buckets[i])
	}
	r.recent[t.last%recentSeconds].add(&added)
	r.hour[t.last/hourStep%hourSlots].add(&added)
}

// quantile returns the time within which a share of the requests was answered, between the bounds of a bucket; nil without
// requests. Beyond the last bound it is that bound.
func (t *Traffic) quantile(c *count, share float64) *float64 {
	rank, below := share*float64(c.requests()), 0.0
	for i, n := range c.buckets {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		low := 0.0
		if i > 0 {
			low = t.bounds[i-1].Seconds()
		}
		high := low
		if i < len(t.bounds) {
			high = t.bounds[i].Seconds()
		}
		return new(low + (high-low)*(rank-below)/float64(n))
	}
	return nil
}

// RouteFigures are the requests of a route in the last hour of this process.
type RouteFigures struct {
	Route    string   `json:"route"`
	Requests uint64   `json:"requests"`
	Errors   uint64   `json:"errors"`  // answers 500 and above
	RateHz   float64  `json:"rate_hz"` // of the last ten whole seconds
	P50      *float64 `json:"p50_seconds"`
	P99      *float64 `json:"p99_seconds"`
}

// Figures returns the routes that had requests, in alphabetical order.
func (t *Traffic) Figures() []RouteFigures {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []RouteFigures{}
	for name, r := range t.routes {
		var sum, recent count
		for i := range r.hour {
			sum.add(&r.hour[i])
		}
		for s := max(0, t.last-9); s <= t.last; s++ {
			recent.add(&r.recent[s%recentSeconds])
		}
		all = append(all, RouteFigures{
			name, sum.requests(), uint64(sum.errors), float64(recent.requests()) / 10, t.quantile(&sum, 0.5),
			t.quantile(&sum, 0.99),
		})
	}
	slices.SortFunc(all, func(a, b RouteFigures) int { return strings.Compare(a.Route, b.Route) })
	return all
}

// TrafficSeries are the requests of each route over time.
type TrafficSeries struct {
	From   time.Time     `json:"from"` // when the first slot begins
	Step   int           `json:"step_seconds"`
	Routes []RouteSeries `json:"routes"`
}

// RouteSeries are the slots of a route, the oldest first.
type RouteSeries struct {
	Route    string     `json:"route"`
	Requests []uint64   `json:"requests"`
	Errors   []uint64   `json:"errors"`
	P99      []*float64 `json:"p99_seconds"` // null: there was no request
}

// Series returns at most the last slots: with a step of 1 of the last five minutes by second, otherwise of the last hour by
// ten seconds. The last slot may be incomplete.
func (t *Traffic) Series(step, slots int) TrafficSeries {
	t.mu.Lock()
	defer t.mu.Unlock()
	most, of := recentSeconds, func(r *routeTraffic, i int64) *count { return &r.recent[i%recentSeconds] }
	if step != 1 {
		step, most = hourStep, hourSlots
		of = func(r *routeTraffic, i int64) *count { return &r.hour[i%hourSlots] }
	}
	end := t.last / int64(step)
	begin := max(0, end-int64(min(slots, most))+1)
	s := TrafficSeries{From: t.start.Add(time.Duration(begin*int64(step)) * time.Second).UTC().Truncate(time.Millisecond), Step: step}
	s.Routes = []RouteSeries{}
	for name, r := range t.routes {
		one := RouteSeries{Route: name}
		for i := begin; i <= end; i++ {
			c := of(r, i)
			one.Requests, one.Errors = append(one.Requests, c.requests()), append(one.Errors, uint64(c.errors))
			one.P99 = append(one.P99, t.quantile(c, 0.99))
		}
		s.Routes = append(s.Routes, one)
	}
	slices.SortFunc(s.Routes, func(a, b RouteSeries) int { return strings.Compare(a.Route, b.Route) })
	return s
}

// showTraffic answers with the requests of the last hour, or with ?step_seconds=1 of the last five minutes.
func (s *Server) showTraffic(_ http.ResponseWriter, r *http.Request) (any, error) {
	switch r.URL.Query().Get("step_seconds") {
	case "1":
		return s.cfg.Traffic.Series(1, recentSeconds), nil
	case "", "10":
		return s.cfg.Traffic.Series(hourStep, hourSlots), nil
	}
	return nil, flawed(http.StatusBadRequest, Flaw{Field: "step_seconds", Message: "step_seconds must be 1 or 10"})
}
