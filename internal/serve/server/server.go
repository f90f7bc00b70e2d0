// Package server is the public listener: it turns requests into calls of the
// engines and their answers into HTTP.
//
// Routes are known when it starts; every path is one look-up in a map. Whatever
// is wrong with a request is answered with problem+json (RFC 9457) and a stable
// type, before anything reaches an engine.
//
// Stopping loses no accepted request: the listener goes on until its queue is
// empty, each answer from then on closes its connection, and only connections
// that stay silent are closed by us.
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
	"spillway/internal/serve/query"
)

// Config says what is served and within which limits. All limits are needed.
type Config struct {
	Feeds         []FeedRoute
	Queries       []QueryRoute
	Popup         *PopupRoute // nil: none
	Streams       []StreamRoute
	Keys          []string                                            // bearer keys of the write paths; none: they are open
	ProbeDatabase func(context.Context) error                         // one trivial statement
	ProbeRedis    func(context.Context, string) ([]byte, bool, error) // GET key; nil: no Redis is configured
	Connections   int                                                 // open at once
	HeaderBytes   int                                                 // request line and headers
	BodyBytes     int                                                 // request body
	BodiesBytes   int64                                               // bodies that are being received or held at once
	ReadTimeout   time.Duration                                       // from a request's first byte to its last
	WriteTimeout  time.Duration                                       // to a client that does not read
	IdleTimeout   time.Duration                                       // between requests
	DrainTimeout  time.Duration                                       // at stop
	TLS           *tls.Config                                         // nil: plain HTTP
	CORSOrigins   []string                                            // "*": all
	Proxies       []netip.Prefix                                      // whose X-Forwarded-For is believed in the access log
	AccessLog     bool                                                // a line a request
	Log           *slog.Logger                                        //
}

// FeedRoute is where a feed is served.
type FeedRoute struct {
	Paths []string
	Feed  *feed.Feed
}

// QueryRoute is where a query is served.
type QueryRoute struct {
	Paths []string
	Query *query.Query
}

// Server is the public listener. Use New, then Run once.
type Server struct {
	cfg      Config
	base     context.Context // the parent of all waits; fasthttp's own contexts cost a goroutine each as parents
	probes   *sharedDeadline
	stop     context.CancelFunc
	http     *fasthttp.Server
	routes   map[string]*entry
	unknown  *route                   // requests of no route, for metrics
	listener atomic.Pointer[listener] // nil until Run
	draining atomic.Bool
	keys     keyring
	bodies   bodies
	ids      requestIDs
	names    names
}

// entry is what is served at one path.
type entry struct {
	read  *route // GET and HEAD; nil: nothing
	write *route // POST; nil: nothing
	allow string // methods, as the Allow header lists them
}

// route is a handler with its metrics.
type route struct {
	name   string
	body   int  // of a POST: the largest in bytes, as it is sent
	keyed  bool // it asks for one of Config.Keys
	handle func(*fasthttp.RequestCtx)
	meter  meter
}

// drainQuiet is how long, at stop, open connections get to send the request
// whose answer will tell them to close.
const drainQuiet = time.Second

// New returns a server for cfg.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg:     cfg,
		routes:  make(map[string]*entry),
		unknown: &route{name: "unknown"},
		keys:    newKeyring(cfg.Keys),
		bodies:  bodies{limit: cfg.BodiesBytes},
		ids:     requestIDs{boot: rand.Uint32()},
		names:   newNames(),
	}
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
	s.http = &fasthttp.Server{
		Handler:               s.serve,
		ErrorHandler:          s.serveError,
		HeaderReceived:        s.received,
		ExpectHandler:         s.expected,
		Concurrency:           math.MaxInt32, // the listener keeps the bound
		ReadBufferSize:        cfg.HeaderBytes,
		MaxRequestBodySize:    cfg.BodyBytes,
		ReadTimeout:           cfg.ReadTimeout,
		WriteTimeout:          cfg.WriteTimeout,
		IdleTimeout:           cfg.IdleTimeout,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		CloseOnShutdown:       true,
		StreamRequestBody:     true, // for receiveBody
		// A form's files would be written to the disk before anybody asks for them.
		DisablePreParseMultipartForm: true,
		Logger:                       quietLogger{},
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

// addWrite serves POST at several paths, counted under "POST " and the first, to those
// who have a key. Larger bodies than that are refused before they are read.
func (s *Server) addWrite(paths []string, body int, handle func(*fasthttp.RequestCtx)) error {
	r := &route{name: "POST " + paths[0], body: body, keyed: true, handle: handle}
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
	lc.KeepAlive = -1         // http.idle_timeout ends dead connections, without four system calls for each live one
	lc.SetMultipathTCP(false) // it costs CPU at every connection, and drain needs plain TCP
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

// Run serves on ln until ctx ends, then drains: see the package comment. It
// returns when every connection is closed or DrainTimeout has passed, the
// latter with an error.
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
		s.cfg.Log.Warn("listener cannot be drained; queued connections are lost", "error", err)
	}
	<-failed
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	quiet, stop := context.WithTimeout(ctx, drainQuiet)
	l.waitClosed(quiet)
	stop()
	if err := s.http.ShutdownWithContext(ctx); err != nil {
		return fmt.Errorf("drain: %d connections still open after %s: %w", l.open.Load(), s.cfg.DrainTimeout, err)
	}
	return nil
}

// serve is the one handler of all requests.
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

// any returns the route that counts requests by other methods.
func (e *entry) any() *route {
	if e.read != nil {
		return e.read
	}
	return e.write
}

// otherMethod answers OPTIONS, and refuses what the path does not answer.
func (s *Server) otherMethod(ctx *fasthttp.RequestCtx, e *entry) {
	if ctx.IsOptions() {
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	} else {
		s.problem(ctx, badMethod, "this path answers "+e.allow)
	}
	ctx.Response.Header.Set("Allow", e.allow)
}

// serveError answers what could not be read as a request.
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
		s.problem(ctx, badRequest, "this is no HTTP request that can be understood")
	}
	ctx.SetConnectionClose()
	s.dropBody(ctx)
	s.unknown.meter.observe(ctx.Response.StatusCode(), 0)
}

// Serving reports whether Run has begun, for readiness.
func (s *Server) Serving() bool { return s.listener.Load() != nil }

// Draining reports whether the server is stopping, for readiness.
func (s *Server) Draining() bool { return s.draining.Load() }

// quietLogger drops fasthttp's own messages: clients that go away are no news,
// and what matters is counted.
type quietLogger struct{}

func (quietLogger) Printf(string, ...any) {}

// sharedDeadline hands out contexts with a timeout. Calls that begin close together
// get the same context, because a context of its own costs each call a timer and
// three allocations. Its method may be called concurrently.
type sharedDeadline struct {
	base    context.Context
	timeout time.Duration
	now     atomic.Pointer[deadline]
	mu      sync.Mutex // of making the next one
}

type deadline struct {
	context.Context
	cancel context.CancelFunc // never called: the context's own timer ends it
	until  time.Time          // calls that begin later get another one
}

// newSharedDeadline returns a sharedDeadline whose contexts are children of base.
func newSharedDeadline(base context.Context, timeout time.Duration) *sharedDeadline {
	return &sharedDeadline{base: base, timeout: timeout}
}

// Context returns a context for a call that begins now: it ends between the timeout
// and a sixteenth of it later, or with its base. It must not be used for calls that
// need to be cancelled by themselves.
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
