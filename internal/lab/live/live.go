// Package live shows a run while it is under way: the report page, and metrics for Prometheus.
//
// Everything is made when somebody asks for it, from a snapshot of the recorder, so that a run that nobody looks at is not
// disturbed. The page is made at most once per second and in at most 2 % of the time. Its thread has the lowest priority,
// which leaves the cores of the load generator's threads alone while another core is idle.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// Address is where the page is served by default.
const Address = "127.0.0.1:0"

// Options are the addresses of the page and of the metrics, "" for none.
type Options struct {
	Page    string // loopback only, because the page shows the command line
	Metrics string
}

// Render writes the page of a run.
type Render func(w io.Writer, run *result.Run) error

// A Server serves the page and the metrics of one run. It is safe for concurrent use.
type Server struct {
	page    *page
	servers []*http.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	recorder *result.Recorder // nil until the run begins
}

// Open listens and tells notify the addresses. An address that cannot be used is a usage error.
func Open(o Options, render Render, notify func(text string)) (*Server, error) {
	s := &Server{}
	s.page = &page{render: render, snapshot: s.snapshot}
	for _, one := range []struct {
		flag, address, path, pattern, what string
		handler                            http.Handler
	}{
		{"--live", o.Page, "/", "GET /{$}", "live report", byAddress(s.page)},
		{"--metrics", o.Metrics, "/metrics", "GET /metrics", "metrics", s.metrics()},
	} {
		if one.address == "" {
			continue
		}
		listener, err := net.Listen("tcp", one.address)
		if err == nil && one.flag == "--live" && !listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
			err = errors.Join(errors.New("the page shows the command line, so it is served on loopback only: use 127.0.0.1:PORT and a tunnel"),
				listener.Close())
		}
		if err != nil {
			return nil, exit.UsageError(fmt.Errorf("%s %s: %w", one.flag, one.address, errors.Join(err, s.Close())))
		}
		mux := http.NewServeMux()
		mux.Handle(one.pattern, one.handler)
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
		s.servers = append(s.servers, server)
		s.serving.Go(func() { _ = server.Serve(listener) }) // ends with http.ErrServerClosed
		notify(fmt.Sprintf("%s: http://%s%s", one.what, listener.Addr(), one.path))
	}
	return s, nil
}

// byAddress refuses requests that name a host other than localhost or an address: the site of that name, open in a browser,
// could read the page by letting its name lead here (DNS rebinding).
func byAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		if !strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") && net.ParseIP(host) == nil {
			http.Error(w, "this page is at "+r.Context().Value(http.LocalAddrContextKey).(net.Addr).String(), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Follow begins to show the run of a recorder.
func (s *Server) Follow(r *result.Recorder) {
	r.Follow()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorder = r
}

// snapshot is nil until the run begins.
func (s *Server) snapshot() *result.Snapshot {
	s.mu.Lock()
	r := s.recorder
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.Snapshot()
}

// farewell is how long Finish waits for a reader of the page.
const farewell = 3 * time.Second

// Finish lets those who look at the page read the end of the run. It waits for the next request for up to farewell, if
// there was one recently, or until ctx ends.
func (s *Server) Finish(ctx context.Context) { s.page.finish(ctx) }

// Close ends the servers and waits for them.
func (s *Server) Close() error {
	var errs []error
	for _, server := range s.servers {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if err := server.Shutdown(ctx); err != nil {
			errs = append(errs, server.Close())
		}
		cancel()
	}
	s.serving.Wait()
	return errors.Join(errs...)
}
