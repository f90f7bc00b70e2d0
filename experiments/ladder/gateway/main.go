// Command gateway is a microservice framework's gateway, small: it takes an HTTP request, reads the session cookie, looks the
// service up in the registry and calls it by gRPC. How it keeps connections and how it reads cookies are flags, for these
// are what the seed tuned.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ladder/greet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	listen := flag.String("listen", "127.0.0.1:8091", "address to serve on; several gateways may share it")
	ready := flag.String("ready", "", "address that accepts connections once this gateway serves")
	registry := flag.String("registry", "http://127.0.0.1:8090", "URL of the registry")
	lookup := flag.Duration("lookup", time.Minute, "a service's addresses are kept for this long; 0: asked for each request")
	client := flag.String("client", "each", "connections to the service: each (one a request), pool or shared (one for all)")
	size := flag.Int("pool", 10, "connections that --client pool keeps")
	cookies := flag.String("cookies", "split", "how the session is found: split (take everything apart) or search")
	flag.Parse()

	g := &gateway{places: newPlaces(*registry, *lookup)}
	switch *client {
	case "each":
		g.client = newPool(0)
	case "pool":
		g.client = newPool(*size)
	case "shared":
		g.client = newShared()
	default:
		return fmt.Errorf("--client %q: each, pool or shared", *client)
	}
	defer g.client.close()
	switch *cookies {
	case "split":
		g.session = sessionBySplit
	case "search":
		g.session = sessionBySearch
	default:
		return fmt.Errorf("--cookies %q: split or search", *cookies)
	}
	return serve(ctx, *listen, *ready, g)
}

// serve serves until ctx ends. The listener shares its port: the kernel spreads connections over all gateways there.
func serve(ctx context.Context, listen, ready string, handler http.Handler) error {
	sharing := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	listener, err := sharing.Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if ready != "" {
		sign, err := net.Listen("tcp", ready)
		if err != nil {
			return errors.Join(fmt.Errorf("listen: %w", err), listener.Close())
		}
		defer sign.Close()
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
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

// gateway answers every path by one call of the service.
type gateway struct {
	places  *places
	client  client
	session func(header string) (string, bool)
}

// ServeHTTP calls the service for one request.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session, ok := g.session(r.Header.Get("Cookie"))
	if !ok {
		http.Error(w, "no session cookie", http.StatusUnauthorized)
		return
	}
	text, err := g.call(r.Context(), session)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // the client may have left
}

func (g *gateway) call(ctx context.Context, session string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	address, err := g.places.next(ctx, greet.Service)
	if err != nil {
		return "", fmt.Errorf("look up the service: %w", err)
	}
	conn, err := g.client.take(address)
	if err != nil {
		return "", fmt.Errorf("connect to the service: %w", err)
	}
	answer := &wrapperspb.StringValue{}
	err = conn.Invoke(ctx, greet.Hello, wrapperspb.String(session), answer)
	g.client.put(address, conn, err)
	if err != nil {
		return "", fmt.Errorf("call the service: %w", err)
	}
	return answer.Value, nil
}
