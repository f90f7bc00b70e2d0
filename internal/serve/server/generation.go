package server

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/compress"
)

// live is what the generations of a Server share: the connections, and what is counted. A
// generation is a Server with its own routes and settings. One of them answers new requests.
type live struct {
	base     context.Context // parent of all waits; a fasthttp context as parent costs a goroutine
	noWait   context.Context // has ended
	stop     context.CancelFunc
	http     *fasthttp.Server
	current  atomic.Pointer[Server]
	listener atomic.Pointer[listener] // nil until Run
	draining atomic.Bool

	answerers atomic.Uint64 // event loops of the fast lane
	elsewhere atomic.Uint64 // requests that they have not answered
	bodies    bodies
	ids       requestIDs
	problems  map[problem]description
	unknown   *route     // metrics of requests without a route
	options   *route     // metrics of OPTIONS, at any path
	rate      *rateLimit // nil: off
	pauses    pauses

	compressor *compress.Compressor // nil: off

	sharedBodies sync.Pool // of *sharedBody
	listenings   *listenings

	mu      sync.Mutex // guards what follows
	meters  map[string]*meter
	retired []*Server // may still answer requests
}

// newLive returns what the generations share. The limits of connections are those of cfg for
// good.
func newLive(cfg Config) *live {
	l := &live{
		bodies:  bodies{limit: int64(cfg.BodiesBytes)},
		ids:     requestIDs{boot: rand.Uint32()},
		unknown: &route{name: "unknown", meter: &meter{}},
		options: &route{name: "OPTIONS", meter: &meter{}},
		rate:    newRateLimit(cfg.HTTP),
		pauses:  usualPauses(),

		problems:   readProblems(),
		compressor: compress.New(cfg.CompressBytes),
		listenings: &listenings{all: make(map[*listening]struct{})},
		meters:     make(map[string]*meter),
	}
	l.listenings.none.L = &l.listenings.mu
	ended, end := context.WithCancel(context.Background())
	end()
	l.noWait = ended
	l.base, l.stop = context.WithCancel(context.Background())
	fasthttp.SetBodySizePoolLimit(bodyKept, bodyKept) // for all servers of the process
	l.http = &fasthttp.Server{
		Handler:               l.dispatch,
		ErrorHandler:          func(ctx *fasthttp.RequestCtx, err error) { l.current.Load().serveError(ctx, err) },
		HeaderReceived:        func(h *fasthttp.RequestHeader) fasthttp.RequestConfig { return l.current.Load().received(h) },
		ExpectHandler:         func(ctx *fasthttp.RequestCtx) int { return l.current.Load().expected(ctx) },
		ConnState:             track,
		Concurrency:           math.MaxInt32, // the listener has the limit
		ReadBufferSize:        cfg.HeaderBytes,
		MaxRequestBodySize:    cfg.BodyBytes,
		ReadTimeout:           cfg.ReadTimeout,
		WriteTimeout:          cfg.WriteTimeout,
		IdleTimeout:           cfg.IdleTimeout,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		CloseOnShutdown:       true,
		KeepHijackedConns:     true, // their buffers are released, see listening
		StreamRequestBody:     true, // for receiveBody
		// Otherwise files of a form are written to disk before a handler runs.
		DisablePreParseMultipartForm: true,
		Logger:                       discardLogger{},
	}
	return l
}

// stripes is the number of counters of a generation's requests. Connections are spread
// over them, so that cores rarely write to the same cache line.
const stripes = 16

// underway counts the requests that a generation is answering.
type underway [stripes]struct {
	requests atomic.Int64
	_        [56]byte
}

// none reports whether no request is being answered. For a generation that is not the
// current one, that is final: a request that comes late finds out and leaves.
func (b *underway) none() bool {
	for i := range b {
		if b[i].requests.Load() != 0 {
			return false
		}
	}
	return true
}

// dispatch answers a request by the current generation.
func (l *live) dispatch(ctx *fasthttp.RequestCtx) {
	stripe := ctx.ConnID() % stripes
	s := l.enter(stripe)
	l.elsewhere.Add(1)
	s.serve(ctx)
	s.leave(stripe)
}

// enter returns the current generation. It answers a request until leave.
func (l *live) enter(stripe uint64) *Server {
	s := l.current.Load()
	for {
		s.underway[stripe].requests.Add(1)
		now := l.current.Load()
		if now == s {
			return s
		}
		s.underway[stripe].requests.Add(-1) // the one that switched may not have seen this request
		s = now
	}
}

// leave says that a request is answered.
func (s *Server) leave(stripe uint64) { s.underway[stripe].requests.Add(-1) }

// Next returns a server with the routes and settings of cfg that shares the connections of s.
// Connections, HeaderBytes, BodyBytes, BodiesBytes, CompressBytes, Rate, TLS, Loops and the timeouts stay those of New.
// It answers requests after Switch.
func (s *Server) Next(cfg Config) *Server { return newGeneration(s.live, cfg) }

// Switch makes next, which Next has returned, answer all later requests. Requests that are
// being answered are not disturbed; see AwaitRetired. Listeners are: their clients connect
// again.
func (s *Server) Switch(next *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.current.Swap(next); before != next {
		s.retired = append(s.retired, before)
		before.endEvents()
	}
	if s.draining.Load() { // Run may have seen the one before only
		next.endEvents()
	}
	s.forgetLocked()
}

// retiredCheck is how often AwaitRetired looks.
const retiredCheck = 5 * time.Millisecond

// AwaitRetired returns when every request that began before the last Switch is answered, so
// that engines which only such requests use can be closed. It returns false if ctx ends first.
func (s *Server) AwaitRetired(ctx context.Context) bool {
	ticker := time.NewTicker(retiredCheck)
	defer ticker.Stop()
	for s.anyRetired() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// anyRetired reports whether an earlier generation is answering a request.
func (l *live) anyRetired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked()
	return len(l.retired) > 0
}

// forgetLocked forgets the earlier generations that answer no request any more.
func (l *live) forgetLocked() {
	left := l.retired[:0]
	for _, s := range l.retired {
		if !s.underway.none() {
			left = append(left, s)
		}
	}
	clear(l.retired[len(left):])
	l.retired = left
}

// endEvents ends the connections of all listeners of a generation.
func (s *Server) endEvents() { s.endOnce.Do(func() { close(s.ended) }) }

// meter returns the meter of a route, the same one in every generation.
func (l *live) meter(route string) *meter {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, ok := l.meters[route]
	if !ok {
		m = &meter{}
		l.meters[route] = m
	}
	return m
}

// DownRoute is where a part is configured that cannot be served yet. Requests get 503.
type DownRoute struct {
	Reads, Writes []string             // the paths of GET and of POST, the part's own one first
	Access        Access               // what requests need
	Retry         func() time.Duration // until the next attempt to start the part
}

// addDown adds the routes of a part that cannot be served yet.
func (s *Server) addDown(d DownRoute) {
	handle := waiting(func(ctx *fasthttp.RequestCtx) {
		s.problem(ctx, notStarted, "this path cannot be served yet: it is starting, or its database does not answer or rejects it; the log and "+
			"/readyz of the admin listener say why")
		ctx.Response.Header.Set("Retry-After", retryText(d.Retry()))
	})
	if len(d.Reads) > 0 {
		s.addRead(d.Reads, d.Access, handle).coded = s.compressor != nil
	}
	if len(d.Writes) > 0 {
		s.addWrite(d.Writes, d.Access, s.cfg.BodyBytes, handle)
	}
}
