// Command fasthttp is the empty endpoint on fasthttp alone: what spillway's own rung has below its routes, limits and metrics.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fasthttp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	listen := flag.String("listen", "127.0.0.1:8082", "address to serve on")
	flag.Parse()

	server := &fasthttp.Server{Handler: empty}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe(*listen) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.ShutdownWithContext(drain); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return <-served
}

// empty answers the same bytes as spillway's rung.
func empty(c *fasthttp.RequestCtx) {
	if string(c.Path()) != "/probe/empty" {
		c.SetStatusCode(fasthttp.StatusNotFound)
		return
	}
	c.SetContentType("text/plain; charset=utf-8")
	c.SetBodyString("hello world!!")
}
