// Package server is the public listener. It turns requests into calls of the engines, and
// their answers into HTTP.
//
// Routes are fixed at start; finding one is a map lookup. A wrong request is answered with
// problem+json (RFC 9457) and a stable type before it reaches an engine.
//
// Stopping loses no accepted request. The listener accepts connections until its queue is
// empty. Each response then closes its connection. Only idle connections are closed
// without a response.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/token"
)

// Config says what is served and within which limits. All limits are needed.
type Config struct {
	Feeds         []FeedRoute
	Queries       []QueryRoute
	Popup         *PopupRoute // nil: none
	Streams       []StreamRoute
	Keys          []string                                            // bearer keys of the write paths; none: no key is required
	ReadKeys      []string                                            // bearer keys of feeds and queries
	Tokens        *token.Verifier                                     // of JWTs; nil: no path requires one
	Rate          RateConfig                                          // of each client
	ProbeDatabase func(context.Context) error                         // one trivial statement
	ProbeRedis    func(context.Context, string) ([]byte, bool, error) // GET key; nil: no Redis is configured
	Connections   int                                                 // open at once
	HeaderBytes   int                                                 // request line and headers
	BodyBytes     int                                                 // request body
	BodiesBytes   int64                                               // large bodies received or held at once
	ReadTimeout   time.Duration                                       // from a request's first byte to its last
	WriteTimeout  time.Duration                                       // to a client that does not read
	IdleTimeout   time.Duration                                       // between requests
	DrainTimeout  time.Duration                                       // at stop
	TLS           *tls.Config                                         // nil: plain HTTP
	CORSOrigins   []string                                            // "*": all
	Proxies       []netip.Prefix                                      // whose X-Forwarded-For is used in the access log
	AccessLog     bool                                                // one line per request
	Log           *slog.Logger                                        //
}

// FeedRoute is where a feed is served.
type FeedRoute struct {
	Paths  []string
	Access Access
	Feed   *feed.Feed
}

// QueryRoute is where a query is served.
type QueryRoute struct {
	Paths  []string
	Access Access
	Query  *query.Query
}

// Server is the public listener. Use New, then Run once.
type Server struct {
	cfg      Config
	base     context.Context // parent of all waits; a fasthttp context as parent costs a goroutine
	probes   *sharedDeadline
	stop     context.CancelFunc
	http     *fasthttp.Server
	routes   map[string]*entry
	unknown  *route                   // metrics of requests without a route
	listener atomic.Pointer[listener] // nil until Run
	draining atomic.Bool
	keys     keyring    // of write paths
	readKeys keyring    // of feeds and queries
	rate     *rateLimit // nil: off
	bodies   bodies
	ids      requestIDs
	names    names
}

// entry holds the routes of one path.
type entry struct {
	read  *route // GET and HEAD; nil: none
	write *route // POST; nil: none
	allow string // the Allow header
}

// route is a handler with its metrics.
type route struct {
	name   string
	body   int // largest body of a POST as sent, in bytes
	access Access
	keys   keyring       // that access requires
	claims []param.Param // that requests need
	handle func(*fasthttp.RequestCtx)
	meter  meter
}

// drainIdle is how long open connections may stay idle at stop. A request that arrives
// within it gets a response that closes the connection.
const drainIdle = time.Second

// New returns a server for cfg.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg:     cfg,
		routes:  make(map[string]*entry),
		unknown: &route{name: "unknown"},
		keys:    newKeyring(cfg.Keys),
		rate:    newRateLimit(cfg.Rate),
		bodies:  bodies{limit: cfg.BodiesBytes},
		ids:     requestIDs{boot: rand.Uint32()},
		names:   newNames(),
	}
	s.readKeys = newKeyring(cfg.ReadKeys)
	s.base, s.stop = context.WithCancel(context.Background())
	s.probes = newSharedDeadline(s.base, probeTimeout)
	s.add("/hello", s.hello)
	s.add("/probe/empty", s.hello)
	s.add("/probe/database", s.probeDatabase)
	s.add("/probe/redis", s.probeRedis)
	for _, f := range cfg.Feeds {
		if err := s.addAll(f.Paths, newFeedHandler(s, f.Feed).serve); err != nil {
			return nil, err
		}
	}
	for _, q := range cfg.Queries {
		if err := s.addAll(q.Paths, (&queryHandler{server: s, query: q.Query}).serve); err != nil {
			return nil, err
		}
	}
	for _, r := range cfg.Streams {
		if err := s.addWrite(r.Paths, r.Limits.Bytes, newStreamHandler(s, r).serve); err != nil {
			return nil, err
		}
	}
	if cfg.Popup != nil {
		if err := s.addPopup(*cfg.Popup); err != nil {
			return nil, err
		}
	}
	if err := s.protect(); err != nil {
		return nil, err
	}
	s.http = &fasthttp.Server{
		Handler:               s.serve,
		ErrorHandler:          s.serveError,
		HeaderReceived:        s.received,
		ExpectHandler:         s.expected,
		Concurrency:           math.MaxInt32, // the listener has the limit
		ReadBufferSize:        cfg.HeaderBytes,
		MaxRequestBodySize:    cfg.BodyBytes,
		ReadTimeout:           cfg.ReadTimeout,
		WriteTimeout:          cfg.WriteTimeout,
		IdleTimeout:           cfg.IdleTimeout,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		CloseOnShutdown:       true,
		StreamRequestBody:     true, // for receiveBody
		// Otherwise files of a form are written to disk before a handler runs.
		DisablePreParseMultipartForm: true,
		Logger:                       discardLogger{},
	}
	return s, nil
}

// addAll serves one handler at several paths, counted under the first.
func (s *Server) addAll(paths []string, handle func(*fasthttp.RequestCtx)) error {
	r := &route{name: paths[0], handle: handle}
	for _, path := range paths {
		if !s.entry(path).setRead(r) {
			return fmt.Errorf("path %s is served twice", path)
		}
	}
	return nil
}

// addWrite serves POST at several paths, counted under "POST " and the first. Requests need
// a key. A body that declares more than body bytes is refused before it is read, and a
// chunked one when more have arrived.
func (s *Server) addWrite(paths []string, body int, handle func(*fasthttp.RequestCtx)) error {
	r := &route{name: "POST " + paths[0], body: body, access: Key, keys: s.keys, handle: handle}
	for _, path := range paths {
		if !s.entry(path).setWrite(r) {
			return fmt.Errorf("POST %s is served twice", path)
		}
	}
	return nil
}

func (s *Server) add(path string, handle func(*fasthttp.RequestCtx)) {
	s.entry(path).setRead(&route{name: path, handle: handle})
}

// entry returns the entry of a path, an empty one if there is none yet.
func (s *Server) entry(path string) *entry {
	e, ok := s.routes[path]
	if !ok {
		e = &entry{allow: "OPTIONS"}
		s.routes[path] = e
	}
	return e
}

func (e *entry) setRead(r *route) bool {
	free := e.read == nil
	e.read = r
	e.allow = "GET, HEAD, " + e.allow
	return free
}

func (e *entry) setWrite(r *route) bool {
	free := e.write == nil
	e.write = r
	e.allow = strings.Replace(e.allow, "OPTIONS", "POST, OPTIONS", 1)
	return free
}

// Listen opens the TCP listener for Run.
func Listen(ctx context.Context, address string) (*net.TCPListener, error) {
	var lc net.ListenConfig
	lc.KeepAlive = -1         // http.idle_timeout ends dead connections; keep-alive costs four system calls per connection
	lc.SetMultipathTCP(false) // it costs CPU per connection, and draining needs plain TCP
	ln, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("listen on %s: not a TCP listener", address)
	}
	return tcp, nil
}

// Run serves on ln until ctx ends, then drains. It returns when every connection is
// closed, or with an error after DrainTimeout.
func (s *Server) Run(ctx context.Context, ln *net.TCPListener) error {
	defer s.stop()
	l := newListener(ln, s.cfg.Connections, s.refusal())
	s.listener.Store(l)
	serve := net.Listener(l)
	if s.cfg.TLS != nil {
		serve = tlsListener{l, s.cfg.TLS}
	}
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(serve) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	if err := l.drain(); err != nil {
		s.cfg.Log.Warn("listener not drained; queued connections are lost", "error", err)
	}
	<-failed
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	idle, stop := context.WithTimeout(ctx, drainIdle)
	l.waitClosed(idle)
	stop()
	if err := s.http.ShutdownWithContext(ctx); err != nil {
		return fmt.Errorf("drain: %d connections still open after %s: %w", l.open.Load(), s.cfg.DrainTimeout, err)
	}
	return nil
}

// serve handles every request.
func (s *Server) serve(ctx *fasthttp.RequestCtx) {
	if s.draining.Load() {
		ctx.SetConnectionClose()
	}
	began := ctx.Time()
	if ctx.Request.IsBodyStream() && large(&ctx.Request.Header) {
		if !s.receiveBody(ctx) {
			return
		}
		began = time.Now()
	}
	r := s.unknown
	e, ok := s.routes[string(ctx.Path())]
	switch {
	case !ok:
		s.problem(ctx, notFound, "there is nothing at this path")
	case e.read != nil && (ctx.IsGet() || ctx.IsHead()):
		r = e.read
		r.handle(ctx)
	case e.write != nil && ctx.IsPost():
		r = e.write
		r.handle(ctx)
	default:
		r = e.any()
		s.otherMethod(ctx, e)
	}
	if len(s.cfg.CORSOrigins) > 0 {
		s.cors(ctx, e)
	}
	s.dropBody(ctx)
	s.echoID(ctx)
	took := time.Since(began)
	r.meter.observe(ctx.Response.StatusCode(), took)
	if s.cfg.AccessLog {
		s.logAccess(ctx, r, took)
	}
}

// any returns the route that counts requests with other methods.
func (e *entry) any() *route {
	if e.read != nil {
		return e.read
	}
	return e.write
}

// otherMethod answers OPTIONS, and refuses methods that the path does not support.
func (s *Server) otherMethod(ctx *fasthttp.RequestCtx, e *entry) {
	if ctx.IsOptions() {
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	} else {
		s.problem(ctx, badMethod, "this path supports "+e.allow)
	}
	ctx.Response.Header.Set("Allow", e.allow)
}

// serveError answers a request that could not be read.
func (s *Server) serveError(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.As(err, &small):
		s.problem(ctx, headersTooLarge, fmt.Sprintf("request line and headers are larger than %d bytes", s.cfg.HeaderBytes))
	case errors.As(err, &timeout) && timeout.Timeout():
		s.problem(ctx, requestTimeout, fmt.Sprintf("request was not complete within %s", s.cfg.ReadTimeout))
	case errors.Is(err, io.ErrUnexpectedEOF):
		s.problem(ctx, badRequest, "request ended early")
	default:
		s.problem(ctx, badRequest, "the request is not valid HTTP")
	}
	ctx.SetConnectionClose()
	s.dropBody(ctx)
	s.unknown.meter.observe(ctx.Response.StatusCode(), 0)
}

// Serving reports whether Run has begun, for readiness.
func (s *Server) Serving() bool { return s.listener.Load() != nil }

// Draining reports whether the server is stopping, for readiness.
func (s *Server) Draining() bool { return s.draining.Load() }

// discardLogger drops fasthttp's messages, which are about clients that disconnect. Errors
// that matter are counted.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

// sharedDeadline returns contexts with a timeout. Calls that begin close together share one
// context, which saves a timer and three allocations per call. Its method may be called
// concurrently.
type sharedDeadline struct {
	base    context.Context
	timeout time.Duration
	now     atomic.Pointer[deadline]
	mu      sync.Mutex // held while the next one is made
}

type deadline struct {
	context.Context
	cancel context.CancelFunc // never called: the context's own timer ends it
	until  time.Time          // later calls get the next one
}

// newSharedDeadline returns a sharedDeadline whose contexts are children of base.
func newSharedDeadline(base context.Context, timeout time.Duration) *sharedDeadline {
	return &sharedDeadline{base: base, timeout: timeout}
}

// Context returns a context for a call that begins now. It ends after the timeout and up to
// a sixteenth more, or with its base. It cannot cancel a single call.
func (s *sharedDeadline) Context(now time.Time) context.Context {
	if c := s.now.Load(); c != nil && now.Before(c.until) {
		return c.Context
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.now.Load(); c != nil && now.Before(c.until) {
		return c.Context
	}
	slack := s.timeout / 16
	ctx, cancel := context.WithDeadline(s.base, now.Add(s.timeout+slack))
	s.now.Store(&deadline{ctx, cancel, now.Add(slack)})
	return ctx
}

// The probes show the cost of each layer: an empty endpoint, one Redis GET, one SQL
// statement.

const (
	probeTimeout = time.Second
	probeKeyMax  = 512 // bytes
)

// hello serves the empty endpoint.
func (s *Server) hello(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetContentTypeBytes(s.names.text)
	ctx.Response.AppendBodyString("hello world!!")
}

// probeDatabase runs one trivial statement through the pool.
func (s *Server) probeDatabase(ctx *fasthttp.RequestCtx) {
	if err := s.cfg.ProbeDatabase(s.probes.Context(ctx.Time())); err != nil {
		s.unavailable(ctx, databaseDown, "the database does not answer", err)
		return
	}
	ctx.Response.Header.SetContentTypeBytes(s.names.json)
	ctx.Response.AppendBodyString(`{"return_code":"SUCCESS","data":1}`)
}

// probeRedis reads one key. A missing key gives an empty response.
func (s *Server) probeRedis(ctx *fasthttp.RequestCtx) {
	if s.cfg.ProbeRedis == nil {
		s.problem(ctx, noRedis, "no Redis is configured; set redis: in the configuration or --redis")
		return
	}
	key := ctx.QueryArgs().Peek("key")
	if len(key) == 0 || len(key) > probeKeyMax {
		s.problem(ctx, badRequest, "key must have 1 to 512 bytes")
		return
	}
	value, found, err := s.cfg.ProbeRedis(s.probes.Context(ctx.Time()), string(key))
	switch {
	case err != nil:
		s.unavailable(ctx, redisDown, "Redis does not answer", err)
	case !found:
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	default:
		ctx.Response.Header.SetContentTypeBytes(s.names.bytes)
		ctx.Response.AppendBody(value)
	}
}
