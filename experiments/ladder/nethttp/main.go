// Command nethttp is the empty endpoint on Go's own HTTP server: bare, or behind a router with as many routes as a small
// application has, which stands for a framework.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "nethttp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	listen := flag.String("listen", "127.0.0.1:8081", "address to serve on")
	router := flag.Bool("router", false, "route the request and pass it through three layers of middleware")
	flag.Parse()

	server := &http.Server{Addr: *listen, Handler: http.HandlerFunc(empty), ReadHeaderTimeout: 10 * time.Second}
	if *router {
		server.Handler = routed()
	}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// empty answers the same bytes as spillway's rung.
func empty(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = []string{"text/plain; charset=utf-8"}
	_, _ = w.Write([]byte("hello world!!")) // the client may have left
}
