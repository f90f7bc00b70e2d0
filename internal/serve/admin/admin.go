// Package admin is the listener for operators: health, readiness, metrics and profiles over
// net/http. It serves no application traffic. It listens on loopback unless there are tokens,
// and then requires one of them on all paths except /livez and /readyz with its groups. With
// popups it also has the campaign API. /openapi.json describes the listener. Pages for browsers call
// the same API, with a caller whom they have identified.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/stream"
)

// The limits of the listener.
const (
	ConnectionsMax    = 256              // open at once; for each more one is closed and counted
	HeaderBytesMax    = 16 << 10         // request line and headers
	ReadTimeout       = 10 * time.Second // from a request's first byte to its last
	WriteTimeout      = 30 * time.Second // one response; a profile adds its own seconds
	IdleTimeout       = time.Minute      // time between requests on a connection
	DrainTimeout      = 5 * time.Second  // time for open requests at stop
	MetricsRequestMax = 8                // concurrent requests of /metrics
)

// Config is the listener's configuration. All fields are required but Tokens, Popups, Spools and Pages.
type Config struct {
	Listen   string  // host:port
	Tokens   []Token // accepted bearer tokens; none: loopback addresses only
	Log      *slog.Logger
	Registry *prometheus.Registry // of /metrics
	Ready    func() []Part        // the state of all parts
	Acks     func() []StreamAck   // ack levels of streams, for /readyz
	Popups   *Popups              // the campaigns; nil: no popups
	Spools   map[string]*Spool    // by their names in paths
	Traffic  *Traffic             // the requests of the last hour
	About    About
	Figures  func() Figures // all but Process, Links, Routes, Streams and Spools
	Streams  func() []stream.Stats
	Read     func(path string) *Read // a feed or a query; nil: there is none of the path
	Changes  audit.Log               // who changed what

	// Pages returns the pages for browsers, at / and below PagesPath. They check who asks; Host is checked before.
	Pages func(*Access) http.Handler

	// Configuration returns the configuration in force, and what the file would change. It is called concurrently.
	Configuration func() Configuration

	// Reload applies the configuration file, or returns an error and changes nothing. It is
	// called concurrently.
	Reload func(context.Context) error
}

// Server is the admin listener. Its methods may be called concurrently. It serves once.
type Server struct {
	cfg         Config
	http        *http.Server
	connections *connections
}

// New returns a server that does not listen yet, and registers the collectors of the Go
// runtime and the process.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, connections: newConnections()}
	cfg.Registry.MustRegister(s.connections.collectors()...)
	cfg.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.http = &http.Server{
		Handler:           s.handler(),
		MaxHeaderBytes:    HeaderBytesMax,
		ReadHeaderTimeout: ReadTimeout,
		ReadTimeout:       ReadTimeout,
		WriteTimeout:      WriteTimeout,
		IdleTimeout:       IdleTimeout,
		ConnState:         s.connections.track,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	return s
}

// Listen listens on the configured address.
func (s *Server) Listen(ctx context.Context) (net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for admin: %w", err)
	}
	return ln, nil
}

// Serve serves on ln until ctx ends, and closes it. Open requests then have DrainTimeout to
// end. Without a token, ln must be on loopback: a host name may lead elsewhere.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if tcp, ok := ln.Addr().(*net.TCPAddr); len(s.cfg.Tokens) == 0 && ok && !tcp.IP.IsLoopback() {
		err := fmt.Errorf("admin listen address %q is not loopback and no token is set: set admin.token, or listen on 127.0.0.1", ln.Addr())
		return errors.Join(err, ln.Close())
	}
	s.http.BaseContext = func(net.Listener) context.Context { return ctx } // ends profiles on stop
	s.cfg.Log.Info("admin listener ready", "address", ln.Addr().String())

	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve admin: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), DrainTimeout)
	defer cancel()
	err := s.http.Shutdown(drain)
	if err != nil { // a request did not end in time
		s.cfg.Log.Warn("admin requests aborted", "after", DrainTimeout)
		err = s.http.Close()
	}
	<-failed
	if err != nil {
		return fmt.Errorf("stop admin listener: %w", err)
	}
	return nil
}

// connections limits the connections of the listener. The one that has been without a request for
// the longest time makes room for a new one. If there is none, that of the oldest request does:
// clients that only hold connections keep nobody out.
type connections struct {
	refused prometheus.Counter

	mu      sync.Mutex // guards what follows
	open    int
	changed map[net.Conn]lastChange // of those that are not being closed
}

// lastChange is the last one of a connection's state.
type lastChange struct {
	quiet bool // it is without a request
	at    time.Time
}

func newConnections() *connections {
	return &connections{changed: make(map[net.Conn]lastChange), refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "spillway_admin_connections_refused_total",
		Help: "Admin connections closed because too many were open.",
	})}
}

// track is net/http's ConnState hook. It closes a connection for each new one beyond the limit,
// which net/http then reports as closed.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open++; c.open > ConnectionsMax {
			c.refused.Inc()
			c.makeRoomLocked()
		}
		c.changed[conn] = lastChange{quiet: true, at: time.Now()}
	case http.StateIdle, http.StateActive:
		if _, open := c.changed[conn]; open {
			c.changed[conn] = lastChange{quiet: state == http.StateIdle, at: time.Now()}
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.changed, conn)
		c.open--
	}
}

// makeRoomLocked closes a connection.
func (c *connections) makeRoomLocked() {
	var least net.Conn
	var last lastChange
	for conn, l := range c.changed {
		if least == nil || l.quiet && !last.quiet || l.quiet == last.quiet && l.at.Before(last.at) {
			least, last = conn, l
		}
	}
	if least != nil {
		delete(c.changed, least)
		_ = least.Close() // nothing to do if it fails
	}
}

// collectors returns the metrics of the limit.
func (c *connections) collectors() []prometheus.Collector {
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_admin_connections",
		Help: "Admin connections open.",
	}, func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(c.open)
	})
	return []prometheus.Collector{open, c.refused}
}
