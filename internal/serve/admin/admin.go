// Package admin is the listener for operators: health, readiness, metrics and
// profiles, over net/http. It listens on loopback unless a token is set, and
// then asks for the token everywhere but on /livez and /readyz. It serves no
// application traffic. Where popups are served it has the API of their campaigns,
// the one thing that can be changed here, described by /openapi.json.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// The limits of the listener.
const (
	ConnectionsMax    = 256              // open at once; more are closed and counted
	HeaderBytesMax    = 16 << 10         // request line and headers
	ReadTimeout       = 10 * time.Second // a request's first byte to its last
	WriteTimeout      = 30 * time.Second // an answer; profiles add the seconds they were asked for
	IdleTimeout       = time.Minute      // a keep-alive connection without a request
	DrainTimeout      = 5 * time.Second  // stop: time given to requests under way
	MetricsRequestMax = 8                // /metrics requests answered at once
)

// Config says where the listener is and what it shows.
type Config struct {
	Listen   string               // host:port
	Token    string               // bearer token; "" allows loopback addresses only
	Log      *slog.Logger         // nil: nothing is logged
	Registry *prometheus.Registry // what /metrics shows; nil: a new one
	Ready    func() []Problem     // what keeps the process from being ready; nil: nothing does
	Acks     func() []StreamAck   // what streams acknowledge, for /readyz; nil: none
	Popups   *Popups              // the campaigns; nil: no popups are served
}

// Problem is one thing that keeps the process from being ready.
type Problem struct {
	Name   string `json:"name"`   // what is not ready: a feed's path, a database
	Reason string `json:"reason"` // why, in a sentence
}

// Server is the admin listener. Its methods may be called concurrently, but it
// serves once.
type Server struct {
	cfg         Config
	http        *http.Server
	connections *connections
}

// New checks the configuration, registers the Go runtime's and the process's
// collectors, and returns a server that does not listen yet. An address beyond
// loopback without a token is refused.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.Ready == nil {
		cfg.Ready = func() []Problem { return nil }
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin listen address %q: want host:port, as 127.0.0.1:9090: %w", cfg.Listen, err)
	}
	if cfg.Token == "" && !isLoopback(host) {
		return nil, errOpen(cfg.Listen)
	}
	s := &Server{cfg: cfg, connections: newConnections()}
	for _, c := range append(s.connections.collectors(),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register admin metrics: %w", err)
		}
	}
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
	return s, nil
}

// errOpen explains why an address needs a token.
func errOpen(address string) error {
	return fmt.Errorf("admin listen address %q is not loopback and no token is set: "+
		"set admin.token, or listen on 127.0.0.1", address)
}

// Run listens on the configured address and serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for admin: %w", err)
	}
	return s.Serve(ctx, ln)
}

// Serve serves on ln, which it closes, until ctx ends. Then it accepts no more,
// gives the requests under way DrainTimeout, and returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if s.cfg.Token == "" && !isLoopbackAddr(ln.Addr()) {
		return errors.Join(errOpen(ln.Addr().String()), ln.Close())
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
	if err != nil { // some request did not end in time
		s.cfg.Log.Warn("admin requests cut off", "after", DrainTimeout)
		err = s.http.Close()
	}
	<-failed
	if err != nil {
		return fmt.Errorf("stop admin listener: %w", err)
	}
	return nil
}

// isLoopback reports whether a host, as written in an address or a Host
// header, is this machine's loopback.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isLoopbackAddr reports whether a listener can be reached from this machine only.
func isLoopbackAddr(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}
