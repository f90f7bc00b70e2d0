//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// holdLock holds one lock for the time of a request, as a program that does I/O under a global lock.
func holdLock(work time.Duration) http.Handler {
	var mu sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		time.Sleep(work)
		mu.Unlock()
		answer(w, nil)
	})
}

// sleepers answers after a sleep. k > 0: that many requests sleep at once, and the others wait for their turn.
func sleepers(k int, work time.Duration) http.Handler {
	workers := make(chan struct{}, k)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if k > 0 {
			workers <- struct{}{}
			defer func() { <-workers }()
		}
		time.Sleep(work)
		answer(w, nil)
	})
}

// virtualSleepers are k workers with a service time that is exact: a request is answered when its worker would be done if
// every wake-up were on time, so that late wake-ups do not add up. Their capacity is k / work per second.
type virtualSleepers struct {
	work time.Duration
	mu   sync.Mutex
	free []time.Time // when each worker is free; the next request takes the first of them, in turn
	next int
}

func newVirtualSleepers(k int, work time.Duration) *virtualSleepers {
	return &virtualSleepers{work: work, free: make([]time.Time, k)}
}

// take returns when a request that arrives now is done. With equal service times, workers become free in the order in which
// they were taken.
func (s *virtualSleepers) take(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	start := s.free[s.next]
	if start.Before(now) {
		start = now
	}
	done := start.Add(s.work)
	s.free[s.next] = done
	s.next = (s.next + 1) % len(s.free)
	return done
}

// ServeHTTP implements http.Handler.
func (s *virtualSleepers) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	time.Sleep(time.Until(s.take(time.Now())))
	answer(w, nil)
}

func body(size int) http.Handler {
	text := bytes.Repeat([]byte{'x'}, size)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(text) // the client may be gone
	})
}

// proxy asks the backend over a new connection for each request, which it closes first, as many programs do by default.
func proxy(backend string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := pass(r.Context(), backend, w); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
}

// pass copies the answer of a URL, over a connection that this side closes.
func pass(ctx context.Context, url string, w io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", request.URL.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := request.Write(conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(w, response.Body)
	return err
}

// limit refuses what exceeds the rate with 429, from a token bucket of a tenth of a second, and answers the rest after work.
func limit(rate float64, work time.Duration) http.Handler {
	b := newBucket(rate, max(1, rate/10))
	var mu sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		ok := b.take(time.Now())
		mu.Unlock()
		if !ok {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "slow down", http.StatusTooManyRequests)
			return
		}
		time.Sleep(work)
		answer(w, nil)
	})
}

// serveStalls accepts connections with a backlog of k and answers one request on each. Every ten times work it does not accept
// for work, as a process with one thread that is busy elsewhere.
func serveStalls(ctx context.Context, p plant) error {
	listener, err := listenBacklog(p.listen, p.k)
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.kind, err)
	}
	stopped := context.AfterFunc(ctx, func() { listener.Close() })
	defer stopped()
	var open sync.WaitGroup
	defer open.Wait()
	next := time.Now().Add(10 * p.work)
	for {
		if now := time.Now(); now.After(next) {
			time.Sleep(p.work)
			next = now.Add(10 * p.work)
		}
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("serve %s: %w", p.kind, err)
		}
		open.Go(func() { answerOnce(conn) })
	}
}

// answerOnce waits for 5 ms, reads one request, which is small, answers it and closes.
func answerOnce(conn net.Conn) {
	defer conn.Close()
	time.Sleep(5 * time.Millisecond)
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 4096)); err == nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
	}
}

// listenBacklog listens with a backlog, which package net does not offer.
func listenBacklog(address string, backlog int) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close() // the listener has a copy
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, err
	}
	return net.FileListener(file)
}
