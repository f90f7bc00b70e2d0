package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"spillway/internal/lab/peer"
	"spillway/internal/lab/result"
)

// listenOption names the address in errors.
const listenOption = "agent --listen"

// Config describes an agent. The zero value serves loopback without TLS.
type Config struct {
	Token  string           // required of every request; "" is allowed on a loopback listener only
	TLS    *tls.Config      // nil: plain HTTP
	Allow  []string         // public hosts that it may load
	Header result.Header    // of its records: version, machine and command line
	Clock  func() time.Time // read once; nil is this host's clock
	Log    *slog.Logger
}

// Listen listens for Serve on HOST:PORT, as peer.Listen.
func Listen(ctx context.Context, address, token string) (net.Listener, error) {
	return peer.Listen(ctx, listenOption, address, token)
}

// Serve makes load for coordinators, one run at a time, until ctx ends. Then it ends
// the run and closes the listener.
func Serve(ctx context.Context, listener net.Listener, config Config) error {
	if err := peer.CheckListener(listenOption, listener, config.Token); err != nil {
		return errors.Join(err, listener.Close())
	}
	s := &server{config: config, clock: newClock(config.Clock), ctx: ctx}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", s.run)
	httpServer := &http.Server{
		Handler: duplex(peer.Guard("agent", config.Token,
			mux)), MaxHeaderBytes: 16 << 10, ReadHeaderTimeout: peer.Timeout, IdleTimeout: silenceMax,
		ErrorLog: slog.NewLogLogger(config.Log.Handler(), slog.LevelWarn),
	}
	if config.TLS != nil {
		protocols := config.TLS.Clone()
		protocols.NextProtos = []string{"http/1.1"}
		listener = tls.NewListener(listener, protocols)
	}
	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve agents' coordinators: %w", err)
	case <-ctx.Done():
	}
	drain, stop := context.WithTimeout(context.WithoutCancel(ctx), stopMax)
	defer stop()
	if httpServer.Shutdown(drain) != nil { // a run does not end
		httpServer.Close()
	}
	<-failed
	return nil
}

// duplex answers before the request has ended, also when it is refused. Who is refused can not keep the connection: nothing
// more is read from it, unless next sets another deadline.
func duplex(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		controller := http.NewResponseController(w)
		if err := errors.Join(controller.EnableFullDuplex(), controller.SetReadDeadline(time.Now())); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Connection", "close")
		next.ServeHTTP(w, r)
	})
}

type server struct {
	config Config
	clock  clock
	ctx    context.Context
	busy   atomic.Bool
}

// run makes the load of one coordinator.
func (s *server) run(w http.ResponseWriter, r *http.Request) {
	if !s.busy.CompareAndSwap(false, true) {
		http.Error(w, "this agent makes the load of another run", http.StatusConflict)
		return
	}
	defer s.busy.Store(false)
	controller := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	one := &session{
		server: s, cancel: cancel, out: &output{writer: w, controller: controller},
		orders: make(chan *order, 1), begins: make(chan begin, 1), gone: make(chan struct{}),
	}
	go one.read(r.Body, controller)
	one.serve(ctx)
	// The coordinator closes first, so that no reply is lost in a reset connection.
	patience := time.NewTimer(stopMax / 2)
	defer patience.Stop()
	select {
	case <-one.gone:
		return
	case <-patience.C:
	}
	_ = controller.SetReadDeadline(time.Now()) // ends read
	<-one.gone
}
