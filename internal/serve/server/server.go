// Package server is the public listener. It turns requests into calls of the engines, and
// their answers into HTTP.
//
// Routes are fixed at start; finding one is a map lookup, unless its path has parameters. A wrong request is answered with
// problem+json (RFC 9457) and a stable type before it reaches an engine.
//
// Stopping loses no accepted request. After PrepareStop each response closes its connection,
// and new ones are accepted. When Run's context ends, the listener accepts connections until
// its queue is empty. Only idle connections are closed without a response, and those of
// listeners, which may connect elsewhere.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/valyala/fasthttp"

	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/token"
)

// Config says what is served and within which limits. Of HTTP, all limits are needed, and what another field has is not used.
type Config struct {
	config.HTTP

	Feeds     []FeedRoute
	Queries   []QueryRoute
	Popup     *PopupRoute // nil: none
	Streams   []StreamRoute
	Down      []DownRoute     // parts that cannot be served yet
	Probes    *Probes         // nil: none
	Files     []File          // served to everybody
	Keys      []string        // bearer keys of the write paths; none: no key is required
	ReadKeys  []string        // bearer keys of feeds and queries
	Tokens    *token.Verifier // of JWTs; nil: no path requires one
	Cookie    string          // may carry the key or the JWT of feeds and queries; "": none
	TLS       *tls.Config     // nil: plain HTTP
	Proxies   []netip.Prefix  // whose X-Forwarded-For names the client
	AccessLog *AccessLog      // nil: none
	Log       *slog.Logger    //
}

// FeedRoute is where a feed is served.
type FeedRoute struct {
	Paths   []string
	Access  Access
	Feed    *feed.Feed
	Columns feed.Columns  // that requests can select
	Caching SharedCaching // with Access Open
	Strict  bool          // requests with other parameters are refused
}

// QueryRoute is where a query is served.
type QueryRoute struct {
	Paths    []string
	Access   Access
	Query    *query.Query
	Envelope feed.Envelope // with EnvelopeOne the response is the only row, or 404
	Columns  feed.Columns  // that requests can select
	Caching  SharedCaching // with Access Open
	Strict   bool          // requests with other parameters are refused
}

// File is served to everybody, like a file.
type File struct {
	Path   string
	Type   string        // the Content-Type
	Policy string        // the Content-Security-Policy; "": none
	Read   func() []byte // returns the content at once; safe for concurrent use
}

// Server is the public listener. Use New, then Run once. Next and Switch replace its routes
// while it runs.
type Server struct {
	*live
	cfg      Config
	routes   map[string]*entry // by paths without parameters
	patterns []*entry          // with parameters, in the order in which they are tried
	underway underway
	keys     keyring // of write paths
	readKeys keyring // of feeds and queries
	hosts    hosts
	ended    chan struct{} // closed when listeners must end
	endOnce  sync.Once

	anyOrigin   bool   // pages of all origins may read responses
	varyUnknown []byte // Vary at unknown paths
}

// entry holds the routes of one path.
type entry struct {
	path  *param.Path // with parameters; nil: it has none
	read  *route      // GET and HEAD; nil: none
	write *route      // POST; nil: none
	allow string      // the Allow header
	vary  []byte      // the Vary header; empty: none
}

// route is a handler with its metrics.
type route struct {
	name   string
	body   int  // largest body of a POST as sent, in bytes
	coded  bool // responses may be compressed
	events bool // responses may be server-sent events
	access Access
	keys   keyring       // that access requires
	cookie string        // may carry the key or the JWT; "": none
	claims []param.Param // that requests need
	names  []string      // of parameters that requests may have
	strict bool          // requests must have no others
	handle handler
	meter  *meter
}

// handler responds to a request. In an event loop, which must not wait, x is not nil, and ctx is x's.
type handler func(ctx *fasthttp.RequestCtx, x *loopRequest) handled

// handled is what a handler has done.
type handled uint8

const (
	slow   handled = iota // it responds only in the regular server; in a loop nothing was counted, and the response is as it was
	quick                 // it has responded, or would have begun in a loop
	begins                // in a loop: x.wait responds later, and the body is not used any more
)

// waiting returns the handler for a function that may always have to wait.
func waiting(handle func(*fasthttp.RequestCtx)) handler {
	return func(ctx *fasthttp.RequestCtx, x *loopRequest) handled {
		if x == nil {
			handle(ctx)
		}
		return slow
	}
}

// pauses are times that no setting changes, but tests do, before Run.
type pauses struct {
	// acceptDrain is how long queued connections are accepted at stop.
	acceptDrain time.Duration
	// drainIdle is how long open connections may stay idle at stop. A request that arrives
	// within it gets a response that closes the connection.
	drainIdle time.Duration
	// clientCheck is how often the connection of a waiting request is checked.
	clientCheck time.Duration
	// linger is how long a connection is read after its last response.
	linger time.Duration
}

// usualPauses returns the pauses of every server outside of tests.
func usualPauses() pauses {
	return pauses{acceptDrain: 50 * time.Millisecond, drainIdle: time.Second, clientCheck: 200 * time.Millisecond, linger: time.Second}
}

// New returns a server for cfg, which must be valid: no path is served twice, and there are the keys or Tokens that paths require.
func New(cfg Config) *Server {
	l := newLive(cfg)
	s := newGeneration(l, cfg)
	l.current.Store(s)
	return s
}

// newGeneration returns a Server with the routes and settings of cfg on the connections of l.
func newGeneration(l *live, cfg Config) *Server {
	s := &Server{
		live:     l,
		cfg:      cfg,
		routes:   make(map[string]*entry),
		keys:     newKeyring(cfg.Keys),
		readKeys: newKeyring(cfg.ReadKeys),
		hosts:    newHosts(cfg.Hosts),
		ended:    make(chan struct{}),

		anyOrigin: slices.Contains(cfg.CORSOrigins, "*"),
	}
	if cfg.Probes != nil {
		s.addProbes(*cfg.Probes)
	}
	for _, f := range cfg.Files {
		s.addFile(f)
	}
	for _, f := range cfg.Feeds {
		r := s.addRead(f.Paths, f.Access, newFeedHandler(s, f).serve)
		r.claims, r.strict, r.names = claimsOf(f.Feed.Params()), f.Strict, namesOf(f.Feed.Params(), "limit", "offset", "before", "fields")
		r.coded, r.events = s.compressor != nil, true
	}
	for _, q := range cfg.Queries {
		h := &queryHandler{server: s, query: q.Query, envelope: q.Envelope, columns: q.Columns, control: q.Caching.control(q.Access)}
		r := s.addRead(q.Paths, q.Access, h.serve)
		r.claims, r.strict, r.names = claimsOf(q.Query.Params()), q.Strict, namesOf(q.Query.Params(), "fields")
		r.coded = s.compressor != nil && q.Query.Caches()
	}
	for _, c := range cfg.Streams {
		h := &streamHandler{server: s, route: c, deadlines: newSharedDeadline(s.base, c.Timeout)}
		r := s.addWrite(c.Paths, max(c.Access, Key), c.Limits.Bytes, h.serve)
		r.claims, r.strict = c.Schema.Claims(), c.Strict
	}
	if cfg.Popup != nil {
		s.addPopup(*cfg.Popup)
	}
	for _, d := range cfg.Down {
		s.addDown(d)
	}
	s.varyUnknown = s.vary(nil)
	s.prepare()
	return s
}

// prepare completes all routes.
func (s *Server) prepare() {
	slices.SortStableFunc(s.patterns, func(a, b *entry) int { return a.path.Compare(b.path) })
	prepared := make(map[*route]bool) // aliases share a route
	for _, e := range slices.AppendSeq(slices.Clone(s.patterns), maps.Values(s.routes)) {
		e.vary = s.vary(e)
		for _, r := range []*route{e.read, e.write} {
			if r != nil && !prepared[r] {
				prepared[r] = true
				r.meter = s.meter(r.name)
				s.checkNames(r)
				s.guard(r)
			}
		}
	}
}

// addRead serves GET and HEAD at several paths, counted under the first.
func (s *Server) addRead(paths []string, access Access, handle handler) *route {
	r := &route{name: paths[0], access: access, keys: s.readKeys, handle: handle}
	if access != Open {
		r.cookie = s.cfg.Cookie
	}
	for _, path := range paths {
		e := s.entry(path)
		e.read, e.allow = r, "GET, HEAD, "+e.allow
	}
	return r
}

// addWrite serves POST at several paths, counted under "POST " and the first. A body that declares more than body bytes is
// refused before it is read, and a chunked one when more have arrived.
func (s *Server) addWrite(paths []string, access Access, body int, handle handler) *route {
	if access == Key && len(s.keys) == 0 {
		access = keyless
	}
	r := &route{name: "POST " + paths[0], body: body, access: access, keys: s.keys, handle: handle}
	for _, path := range paths {
		e := s.entry(path)
		e.write, e.allow = r, strings.Replace(e.allow, "OPTIONS", "POST, OPTIONS", 1)
	}
	return r
}

func (s *Server) addFile(f File) {
	s.addRead([]string{f.Path}, Open, func(ctx *fasthttp.RequestCtx, _ *loopRequest) handled {
		text := f.Read()
		tag := feed.AppendETag(nil, xxhash.Sum64(text))
		header := &ctx.Response.Header
		header.SetCanonical(headerETag, tag)
		header.SetCanonical(headerCacheControl, []byte("no-cache"))
		if f.Policy != "" {
			header.Set("Content-Security-Policy", f.Policy)
		}
		if unchanged(&ctx.Request.Header, tag) {
			ctx.SetStatusCode(fasthttp.StatusNotModified)
			return quick
		}
		header.SetContentType(f.Type)
		ctx.Response.SetBodyRaw(text)
		return quick
	})
}

// Run serves on ln until ctx ends, then drains. It calls serving once Serving returns true. It
// returns when every connection is closed, or with an error after DrainTimeout.
func (s *Server) Run(ctx context.Context, ln *Listener, serving func()) error {
	defer s.stop()
	defer s.listenings.stop()
	l := newListener(ln, s.cfg.Connections, s.refusal(), s.pauses)
	l.drift = min(deadlineDrift, s.cfg.ReadTimeout/2, s.cfg.WriteTimeout/2, s.cfg.IdleTimeout/2)
	if err := s.openFastLane(l); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.listener.Store(l)
	serving()
	serve := net.Listener(l)
	if s.cfg.TLS != nil {
		serve = tlsListener{l, s.cfg.TLS}
	}
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(serve) }()
	select {
	case err := <-failed:
		if l.front != nil {
			err = errors.Join(err, l.front.StopAccepting(false))
			l.front.End(ctx)
		}
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	s.current.Load().endEvents()
	if err := l.drain(); err != nil {
		s.cfg.Log.Warn("listener not drained; queued connections are lost", "error", err)
	}
	if l.front == nil {
		<-failed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	idle, stop := context.WithTimeout(ctx, s.pauses.drainIdle)
	l.waitClosed(idle)
	stop()
	if l.front != nil {
		l.front.End(ctx)
		<-failed
	}
	s.listenings.stop()
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
	r, done := s.unknown, slow
	e, ok := s.entryOf(&ctx.Request.Header)
	switch {
	case !s.hosts.serve(ctx.Host()):
		s.problem(ctx, wrongHost, wrongHostDetail)
	case !ok:
		s.problem(ctx, notFound, "there is nothing at this path")
	case e.read != nil && (ctx.IsGet() || ctx.IsHead()):
		r = e.read
		done = r.handle(ctx, nil)
	case e.write != nil && ctx.IsPost():
		r = e.write
		done = r.handle(ctx, nil)
	default:
		r = s.other(ctx, e)
		s.otherMethod(ctx, e)
	}
	s.finish(ctx, e)
	if c := connOf(ctx); c != nil {
		c.stay.answered(done == quick)
	}
	s.count(ctx, r, time.Since(began))
}

// finish completes the response of a path. e is nil if the path is not known.
func (s *Server) finish(ctx *fasthttp.RequestCtx, e *entry) {
	s.restrict(ctx, e)
	s.cors(ctx, e)
	s.dropBody(ctx)
	if id := ctx.Request.Header.PeekBytes(headerRequestID); isID(id) {
		ctx.Response.Header.SetCanonical(headerRequestID, id)
	}
}

// other returns the route that counts a request with another method than its path's.
func (s *Server) other(ctx *fasthttp.RequestCtx, e *entry) *route {
	if ctx.IsOptions() {
		return s.options
	}
	return s.unread(e)
}

// unread returns the route that counts a refused request at a path. Only POST counts as one.
func (s *Server) unread(e *entry) *route {
	if e.read != nil {
		return e.read
	}
	return s.unknown
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
	if c := connOf(ctx); small != nil && c != nil {
		c.linger.Store(true) // the client may still be sending
	}
	s.restrict(ctx, nil)
	s.cors(ctx, nil)
	s.dropBody(ctx)
	s.unknown.meter.observe(ctx.Response.StatusCode(), 0)
}

// PrepareStop has every response close its connection, before Run's context ends. Connections are still accepted, so that a load
// balancer can find out from readiness that it should use another process.
func (s *Server) PrepareStop() { s.draining.Store(true) }

// Serving reports whether Run has begun, for readiness.
func (s *Server) Serving() bool { return s.listener.Load() != nil }

// Draining reports whether the server is stopping, or prepares for it, for readiness.
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
