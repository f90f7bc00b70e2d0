package admin

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// counted are the counters of a public listener.
type counted struct {
	routes           []string
	requests, errors uint64 // of each route; half of the requests within a millisecond, the others within a second
}

func countedRequests(requests, errors uint64) *counted {
	return &counted{routes: []string{"/orders"}, requests: requests, errors: errors}
}

func (c *counted) read(yield func(route string, buckets [trafficBuckets]uint64, errors uint64)) {
	for _, route := range c.routes {
		yield(route, [trafficBuckets]uint64{c.requests / 2, c.requests - c.requests/2}, c.errors)
	}
}

func (c *counted) traffic() *Traffic {
	return NewTraffic([]time.Duration{time.Millisecond, time.Second}, c.read)
}

func sampled(c *counted) *Traffic {
	t := c.traffic()
	t.sample(t.start)
	return t
}

func allFigures() Figures {
	return Figures{
		Feeds: []feed.Stats{{Name: "/orders"}}, Queries: []query.Stats{{Name: "/order"}},
		Databases: []DatabaseFigures{{Database: "sqlite:x"}},
		Popups:    &PopupFigures{Store: "memory"}, Disk: &Disk{FreeBytes: 1, TotalBytes: 2},
	}
}

func TestTraffic(t *testing.T) {
	c := countedRequests(0, 0)
	traffic := c.traffic()
	at := func(second int) time.Time { return traffic.start.Add(time.Duration(second) * time.Second) }
	for second := range 4000 {
		c.requests += 10
		if second%100 == 0 {
			c.errors++
		}
		traffic.sample(at(second))
	}
	f := traffic.Figures()[0]
	if f.Requests != 36000 || f.Errors != 36 || f.RateHz != 10 || *f.P50 != 0.001 || *f.P99 < 0.9 || *f.P99 > 1 {
		t.Errorf("the last hour: %+v, p50 %g, p99 %g", f, *f.P50, *f.P99)
	}
	recent, hour := traffic.Series(1, 1000), traffic.Series(10, 2)
	if r := recent.Routes[0]; len(r.Requests) != 300 || r.Requests[0] != 10 || r.Errors[0] != 1 || !recent.From.Equal(at(3700).UTC().Truncate(time.Millisecond)) {
		t.Errorf("seconds from %s: %d, %v", recent.From, len(r.Requests), r)
	}
	if diff := cmp.Diff([]uint64{100, 100}, hour.Routes[0].Requests); diff != "" {
		t.Error(diff)
	}

	traffic.sample(at(4200)) // the process was suspended
	if r := traffic.Series(1, 3).Routes[0]; r.Requests[2] != 0 || r.P99[2] != nil {
		t.Errorf("after a gap: %+v", r)
	}
	c.requests, c.errors = 4, 0 // a reload has replaced the route
	traffic.sample(at(4201))
	if r := traffic.Series(1, 1).Routes[0]; r.Requests[0] != 4 || r.Errors[0] != 0 {
		t.Errorf("after a reload: %+v", r)
	}
}

// The rate of a stream follows what it stores.
func TestStreamRate(t *testing.T) {
	traffic := countedRequests(0, 0).traffic()
	stored := func(n uint64) { traffic.sampleStreams([]stream.Stats{{Name: "/positions", Stored: n}}) }
	for second := range uint64(60) {
		stored(1000 * second)
	}
	if got := traffic.rateOf("/positions"); got < 999 || got > 1000 || traffic.rateOf("/other") != 0 {
		t.Errorf("%g per second", got)
	}
	for range 60 {
		stored(7) // the counter has begun again
	}
	if got := traffic.rateOf("/positions"); got > 1 {
		t.Errorf("%g per second", got)
	}
}

// Routes beyond the limit are counted together.
func TestTrafficRoutes(t *testing.T) {
	c := countedRequests(2, 0)
	for i := range trafficRoutes + 5 {
		c.routes = append(c.routes, fmt.Sprintf("/r%03d", i))
	}
	all := sampled(c).Figures()
	if len(all) != trafficRoutes+1 || all[0].Route != otherRoutes || all[0].Requests != 12 {
		t.Errorf("%d routes, the first is %+v", len(all), all[0])
	}
}

func TestFiguresOfSpools(t *testing.T) {
	s := newServer(Config{Listen: "127.0.0.1:0", Spools: map[string]*Spool{"streams": {Open: func() *spool.Spool { return nil }}}})
	if f := s.figures(); len(f.Spools) != 1 || f.Spools[0].Open || f.Spools[0].Streams == nil || f.Links == nil {
		t.Errorf("%+v", f)
	}
}
