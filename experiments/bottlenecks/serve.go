//go:build linux

package main

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Kinds of planted servers.
const (
	plantBurn    = "burn"    // each request burns work of CPU time
	plantRead    = "read"    // each request reads a file of size bytes in pieces of 4 kB
	plantLock    = "lock"    // each request holds one lock while it sleeps for work
	plantSleep   = "sleep"   // each request sleeps for work; k > 0: at most k at once, the others wait
	plantBody    = "body"    // the response has size bytes
	plantProxy   = "proxy"   // each request is one request to backend, over a connection of its own
	plantLimit   = "limit"   // at most rate requests per second, which take work; the others are answered with 429 at once
	plantGarbage = "garbage" // each request allocates size bytes, beside a live heap of k MiB
	plantPages   = "pages"   // each request touches k random pages of a file of size bytes
	plantSQL     = "sql"     // each request runs sql on one of k connections to database, and burns work of CPU time
	plantRedis   = "redis"   // each request runs the script sql on database
	plantStall   = "stall"   // accepts with a backlog of k, and stops for work every ten times as long
	plantVirtual = "virtual" // k sleepers that are exact on average: each request takes work of one of them
	plantBucket  = "bucket"  // event loop: answers while tokens last, which arrive at rate per second; otherwise 503
	plantSpin    = "spin"    // no server: k threads keep their cores busy
)

// A plant is a server with a known limit.
type plant struct {
	kind     string
	listen   string // host:port
	work     time.Duration
	k        int
	size     int
	rate     float64
	backend  string // URL
	database string // URL
	sql      string
}

// args returns the arguments that make this program the server.
func (p plant) args() []string {
	return []string{
		"-serve", p.kind, "-listen", p.listen, "-work", p.work.String(), "-k", strconv.Itoa(p.k), "-size", strconv.Itoa(p.size),
		"-rate", strconv.FormatFloat(p.rate, 'g', -1, 64), "-backend", p.backend, "-database", p.database, "-sql", p.sql,
	}
}

// serve runs the server until ctx ends. /ready answers at once and is not part of the fault, except with a server that is no
// net/http server.
func (p plant) serve(ctx context.Context) error {
	switch p.kind {
	case plantSpin:
		return spin(ctx, p.k)
	case plantStall:
		return serveStalls(ctx, p)
	case plantBucket:
		return serveBucket(ctx, p)
	}
	handler, end, err := p.handler(ctx)
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	defer end()
	listener, err := net.Listen("tcp", p.listen)
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", handler)
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/debug/vars", expvar.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", p.kind, err)
	case <-ctx.Done():
	}
	err = server.Close()
	<-done
	return err
}

// handler returns what answers requests, and what ends it.
func (p plant) handler(ctx context.Context) (handler http.Handler, end func(), err error) {
	none := func() {}
	switch p.kind {
	case plantBurn:
		return burn(p.work), none, nil
	case plantRead:
		return readFile(p.size)
	case plantLock:
		return holdLock(p.work), none, nil
	case plantSleep:
		return sleepers(p.k, p.work), none, nil
	case plantVirtual:
		return newVirtualSleepers(p.k, p.work), none, nil
	case plantBody:
		return body(p.size), none, nil
	case plantProxy:
		return proxy(p.backend), none, nil
	case plantLimit:
		return limit(p.rate, p.work), none, nil
	case plantGarbage:
		return garbage(p.k, p.size), none, nil
	case plantPages:
		return pages(p.size, p.k)
	case plantSQL:
		return statements(ctx, p.database, p.sql, p.k, p.work)
	case plantRedis:
		return script(p.database, p.sql)
	}
	return nil, nil, errors.New("unknown kind of server")
}

// answer writes a short response.
func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "ok\n") // the client may be gone
}
