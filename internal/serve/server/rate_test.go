package server

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/config"
)

// A client gets its burst and then its rate, however it spreads its requests; a bucket of
// tokens that is filled exactly says the same. What is given back counts as never taken.
func TestRateLimitAgainstBucket(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		cfg := config.HTTP{RatePerMinute: 1 + random.IntN(6000), RateBurst: 1 + random.IntN(20), RateClients: 100}
		l := newRateLimit(cfg)
		now := l.start
		var refill, level int64 = l.interval, l.interval * int64(cfg.RateBurst) // in nanoseconds
		for range 300 {
			pause := time.Duration(random.Int64N(3 * refill))
			if random.IntN(3) == 0 {
				pause = 0
			}
			now = now.Add(pause)
			level = min(level+int64(pause), refill*int64(cfg.RateBurst))
			wait, ok := l.take(7, now)
			if ok != (level >= refill) || !ok && wait != time.Duration(refill-level) {
				t.Fatalf("%+v: %v, %v with %d of %d", cfg, ok, wait, level, refill)
			}
			switch {
			case ok && random.IntN(4) == 0:
				l.giveBack(7)
			case ok:
				level -= refill
			}
		}
	}
}

func TestRateLimitForgets(t *testing.T) {
	t.Parallel()
	l := newRateLimit(config.HTTP{RatePerMinute: 1, RateBurst: 1, RateClients: 160})
	for i := range uint64(100_000) {
		if _, ok := l.take(i, l.start); !ok {
			t.Fatal(i)
		}
	}
	if l.len() != 160 || l.forgotten.Load() != 100_000-160 {
		t.Errorf("%d clients, %d forgotten", l.len(), l.forgotten.Load())
	}
	if _, ok := l.take(99_999, l.start); ok || l.limited.Load() != 1 {
		t.Error("the last client is not limited")
	}
	if newRateLimit(config.HTTP{}) != nil {
		t.Error("a limit of 0 is one")
	}
}

// neverRefill has the budgets last for the test, which might otherwise see one of them refilled and not another.
func (l *rateLimit) neverRefill() {
	burst := l.burst / l.interval
	l.interval = int64(time.Hour)
	l.burst = burst * l.interval
}

func TestRateLimitClients(t *testing.T) {
	t.Parallel()
	l := newRateLimit(config.HTTP{RatePerMinute: 1, RateBurst: 1, RateClients: 160})
	hash := func(text string) uint64 { return l.addressed(netip.MustParseAddr(text)) }
	if hash("2001:db8::1") != hash("2001:db8::ffff:ffff:ffff:ffff") || hash("2001:db8::1") == hash("2001:db8:0:1::1") {
		t.Error("a network of 64 bits is not one client")
	}
	if hash("192.0.2.1") == hash("192.0.2.2") || hash("192.0.2.1") == hash("::") || hash("192.0.2.1") == l.named("192.0.2.1") {
		t.Error("clients are mixed up")
	}
}

// The client is the last address that no trusted proxy has, in all lines together.
func TestClientAddress(t *testing.T) {
	t.Parallel()
	_, s := start(t, &rows{n: 10}, func(c *Config) {
		c.Proxies = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("10.0.0.0/8")}
	})
	for _, c := range []struct {
		want  string
		lines []string
	}{
		{"0.0.0.0", nil}, // the peer of a request from memory
		{"192.0.2.1", []string{"192.0.2.1"}},
		{"192.0.2.2", []string{"192.0.2.1, 192.0.2.2"}},
		{"192.0.2.2", []string{"192.0.2.1", "192.0.2.2"}},
		{"192.0.2.2", []string{"192.0.2.1", "192.0.2.2, 10.1.1.1", "10.2.2.2"}},
		{"10.1.1.1", []string{"unknown, 10.1.1.1"}},
		{"192.0.2.3", []string{"::ffff:192.0.2.3"}},
		{"fe80::1", []string{"fe80::1%eth0"}},
		{"203.0.113.7", []string{"203.0.113.7:50000"}},
		{"203.0.113.7", []string{"203.0.113.7:50000, 10.1.1.1:80"}},
		{"2001:db8::1", []string{"[2001:db8::1]:4000"}},
		{"2001:db8::1", []string{"[2001:db8::1]"}},
		{"0.0.0.0", []string{"[2001:db8::1"}},
		{"0.0.0.0", []string{"2001:db8::1]"}},
		{"0.0.0.0", []string{"203.0.113.7:"}},
	} {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, nil, nil)
		for _, line := range c.lines {
			ctx.Request.Header.Add("X-Forwarded-For", line)
		}
		if got := s.client(&ctx); got != c.want {
			t.Errorf("%q: %s, want %s", c.lines, got, c.want)
		}
		address := netip.MustParseAddr(c.want)
		if name := s.network(&ctx); (name == "") != (address.IsUnspecified() || c.want[:3] == "10.") || name != "" && !netip.MustParsePrefix(name).Contains(address) {
			t.Errorf("%q: network %q", c.lines, name)
		}
	}
}

// A key of write paths does not read, and one of read paths does not write.
func TestReadKeys(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 10}, func(c *Config) {
		c.Feeds[0].Access, c.Keys, c.ReadKeys = Key, []string{"write"}, []string{"read", "other"}
		c.Streams = []StreamRoute{openStream(t, &streamSink{})}
	})
	for header, want := range map[string]int{"": 401, "Bearer write": 401, "Bearer read": 200, "bearer other": 200, "Bearer readother": 401, "Bearer ": 401, "read": 401} {
		if a := request(t, http.MethodGet, url+"/alias/list", "Authorization", header); a.status != want || want == 200 && a.header.Get("Cache-Control") != "private, no-cache" {
			t.Errorf("%q: %d %v", header, a.status, a.header)
		}
	}
	if status, _ := post(t, url+"/things", `{"id":1}`, "Authorization", "Bearer read", "Content-Type", "application/json"); status != 401 {
		t.Errorf("a read key writes: %d", status)
	}
}

func BenchmarkRateLimit(b *testing.B) {
	l := newRateLimit(config.HTTP{RatePerMinute: 60000, RateBurst: 100, RateClients: 100_000})
	for i := range uint64(100_000) {
		l.take(i, l.start)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		l.take(uint64(i)*2654435761%100_000, l.start.Add(time.Duration(i)*time.Microsecond))
	}
}
