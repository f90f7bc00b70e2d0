package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/serve/config"
)

// probing returns the configuration of a server whose database probe is a function.
func probing(probe func(context.Context) error) Config {
	return Config{
		Probes: &Probes{Database: probe},
		HTTP: config.HTTP{
			Connections: 1000, HeaderBytes: 4096, BodyBytes: 1000, BodiesBytes: 1 << 20, ReadTimeout: time.Hour,
			WriteTimeout: time.Hour, IdleTimeout: time.Hour, DrainTimeout: time.Minute,
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

// TestSwitch replaces the generation while clients send requests on open connections. When
// AwaitRetired has returned, no request uses an earlier one any more.
func TestSwitch(t *testing.T) {
	t.Parallel()
	var closed [20]atomic.Bool
	var late, answered atomic.Int64
	generation := func(n int) Config {
		return probing(func(context.Context) error {
			if closed[n].Load() {
				late.Add(1)
			}
			return nil
		})
	}
	s := New(generation(0))
	s.pauses.drainIdle = time.Minute // until a slow client sends the request whose response says goodbye
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln, func() {}) }()
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			if err := probeUntilClosed(ln.Addr().String(), &answered); err != nil {
				t.Error(err)
			}
		})
	}
	for n := 1; n < len(closed); n++ {
		for before := answered.Load(); answered.Load() < before+20; {
			runtime.Gosched()
		}
		next := s.Next(generation(n))
		s.Switch(next)
		if !s.AwaitRetired(t.Context()) {
			t.Fatal("the requests do not end")
		}
		closed[n-1].Store(true)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	clients.Wait()
	if late.Load() > 0 {
		t.Errorf("%d requests used a generation that was closed", late.Load())
	}
}

// probeUntilClosed sends requests over one connection until the server announces its close.
func probeUntilClosed(address string, answered *atomic.Int64) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	for r := bufio.NewReader(c); ; answered.Add(1) {
		if _, err := io.WriteString(c, "GET /probe/database HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.Close {
			return nil
		}
	}
}

// TestAwaitRetired waits for a request that began before Switch, and not for later ones.
func TestAwaitRetired(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}), make(chan struct{})
	s := New(probing(func(context.Context) error { close(began); <-end; return nil }))
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln, func() {}) }()
	statuses := make(chan string, 2)
	ask := func() {
		resp, err := http.Get("http://" + ln.Addr().String() + "/probe/database")
		if err != nil {
			statuses <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		statuses <- fmt.Sprint(resp.StatusCode, string(body))
	}
	go ask()
	<-began
	next := s.Next(probing(func(context.Context) error { return io.EOF }))
	s.Switch(next)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if s.AwaitRetired(short) {
		t.Error("the first request is not waited for")
	}
	ask()
	if got := <-statuses; !strings.HasPrefix(got, "503") {
		t.Errorf("after Switch: %s", got)
	}
	close(end)
	if !s.AwaitRetired(t.Context()) {
		t.Error("the first request does not end")
	}
	if got := <-statuses; !strings.HasPrefix(got, "200") {
		t.Errorf("the request from before Switch: %s", got)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
