package server

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/valyala/fasthttp"

	"spillway/internal/serve/config"
)

// rateShards are locked independently.
const rateShards = 16

// rateLimit limits the requests of each client to configured paths. A client is the subject of a
// JWT or a key, if its path requires one, and otherwise an address; the addresses of an IPv6 network
// of 64 bits are one. Its state is one number, the theoretical arrival time of the generic cell rate
// algorithm: when the client's budget is full again.
type rateLimit struct {
	start     time.Time
	interval  int64 // nanoseconds per request
	burst     int64 // nanoseconds of a whole budget
	seed      maphash.Seed
	shards    [rateShards]rateShard
	limited   atomic.Uint64 // requests
	forgotten atomic.Uint64 // clients
}

type rateShard struct {
	mu      sync.Mutex
	clients *simplelru.LRU[uint64, int64] // arrival times by the hash of a client
}

// newRateLimit returns nil if there is no limit.
func newRateLimit(cfg config.HTTP) *rateLimit {
	if cfg.RatePerMinute <= 0 {
		return nil
	}
	l := &rateLimit{start: time.Now(), interval: int64(time.Minute) / int64(cfg.RatePerMinute), seed: maphash.MakeSeed()}
	l.burst = l.interval * int64(max(1, cfg.RateBurst))
	for i := range l.shards {
		l.shards[i].clients, _ = simplelru.NewLRU[uint64, int64](max(1, cfg.RateClients/rateShards), nil) // the size is positive
	}
	return l
}

// take takes one request from a client's budget. If the budget is spent, it takes nothing and
// returns the time until there is room for one.
func (l *rateLimit) take(client uint64, now time.Time) (wait time.Duration, ok bool) {
	at := int64(now.Sub(l.start))
	shard := &l.shards[client%rateShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	full, _ := shard.clients.Get(client)
	next := max(full, at) + l.interval
	if excess := next - at - l.burst; excess > 0 {
		l.limited.Add(1)
		return time.Duration(excess), false
	}
	if shard.clients.Add(client, next) {
		l.forgotten.Add(1)
	}
	return 0, true
}

// giveBack returns a request that take has taken to its client's budget.
func (l *rateLimit) giveBack(client uint64) {
	shard := &l.shards[client%rateShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if full, known := shard.clients.Get(client); known {
		shard.clients.Add(client, full-l.interval)
	}
}

// len returns how many clients are remembered.
func (l *rateLimit) len() (n int) {
	for i := range l.shards {
		l.shards[i].mu.Lock()
		n += l.shards[i].clients.Len()
		l.shards[i].mu.Unlock()
	}
	return n
}

// named returns the hash of a client that is known by name.
func (l *rateLimit) named(name string) uint64 { return maphash.String(l.seed, name) }

// addressed returns the hash of a client that is known by its address.
func (l *rateLimit) addressed(address netip.Addr) uint64 {
	return maphash.Comparable(l.seed, networkOf(address))
}

// networkOf returns what is one client: an IPv4 address, or an IPv6 network of 64 bits.
func networkOf(address netip.Addr) netip.Prefix {
	network, _ := address.Prefix(min(64, address.BitLen())) // so many bits are possible
	return network
}

// withinRate reports whether a client may send another request; if not, it has responded.
// name is "" for a client that is known only by its address.
func (s *Server) withinRate(ctx *fasthttp.RequestCtx, name string) bool {
	wait, ok := s.rate.take(s.rateClient(ctx, name), time.Now())
	if !ok {
		s.problem(ctx, limited, fmt.Sprintf("this client may send %d requests per minute (http.rate_per_minute)", s.cfg.RatePerMinute))
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, retryText(wait))
	}
	return ok
}

// rateClient returns the hash of the client of a request.
func (s *Server) rateClient(ctx *fasthttp.RequestCtx, name string) uint64 {
	if name != "" {
		return s.rate.named(name)
	}
	if address := s.clientAddress(ctx); address.IsValid() {
		return s.rate.addressed(address)
	}
	return 0
}
