package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"
)

// runEmpty is the empty endpoint on fasthttp alone, on Go's own HTTP server, or there behind a router with as many routes
// as a small application has, which stands for a framework. The server "kept" never closes a connection first, so that the
// client keeps each port in TIME_WAIT.
func runEmpty(ctx context.Context, flags *flag.FlagSet, args []string) error {
	address := flags.String("listen", "127.0.0.1:8081", "address to serve on")
	server := flags.String("server", "fasthttp", "fasthttp, nethttp, router or kept")
	delay := flags.Duration("delay", 0, "nethttp answers after this time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := listen(*address)
	if err != nil {
		return err
	}
	switch *server {
	case "fasthttp":
		return serveFast(ctx, listener, emptyFast)
	case "nethttp":
		return serveHTTP(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(*delay)
			empty(w, r)
		}))
	case "router":
		return serveHTTP(ctx, listener, routed())
	case "kept":
		context.AfterFunc(ctx, func() { listener.Close() })
		return serveKept(listener)
	}
	return errors.Join(fmt.Errorf("--server %q: fasthttp, nethttp, router or kept", *server), listener.Close())
}

// serveKept answers on each connection until the client has closed it.
func serveKept(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			for in := bufio.NewReader(conn); ; {
				request, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				request.Body.Close()
				if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"); err != nil {
					return
				}
			}
		}()
	}
}

// emptyFast answers the same bytes as spillway's rung.
func emptyFast(c *fasthttp.RequestCtx) {
	if string(c.Path()) != "/probe/empty" {
		c.SetStatusCode(fasthttp.StatusNotFound)
		return
	}
	c.SetContentType("text/plain; charset=utf-8")
	c.SetBodyString("hello world!!")
}

// empty answers the same bytes as spillway's rung.
func empty(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = []string{"text/plain; charset=utf-8"}
	_, _ = w.Write([]byte("hello world!!")) // the client may have left
}

// routed is an application's handler: forty routes, a third of them with a parameter, behind what every framework puts
// in front of a handler.
func routed() http.Handler {
	mux := http.NewServeMux()
	for _, noun := range []string{"users", "orders", "goods", "carts", "bills", "ships", "trucks", "routes", "popups", "events"} {
		mux.HandleFunc("GET /v1/"+noun, empty)
		mux.HandleFunc("POST /v1/"+noun, empty)
		mux.HandleFunc("GET /v1/"+noun+"/{id}", empty)
		mux.HandleFunc(fmt.Sprintf("GET /v1/%s/{id}/%s", noun, "history"), empty)
	}
	mux.HandleFunc("GET /probe/empty", empty)
	return recovered(timed(identified(mux)))
}

// recovered turns a panic into an answer.
func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				slog.Error("panic", "value", v)
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// timed remembers the status and logs a slow request.
func timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		recorder := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(recorder, r)
		if took := time.Since(begin); took > time.Second {
			slog.Warn("slow", "path", r.URL.Path, "status", recorder.status, "took", took)
		}
	})
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the status.
func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// requestKey is the key of a request's identity in its context.
type requestKey struct{}

// identified gives each request a value in its context, as frameworks do.
func identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, r.Header.Get("X-Request-Id"))))
	})
}
