package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
)

// TestDrain stops the server under load. Every request that was sent on an accepted
// connection must get a complete answer.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := New(Config{
		Probes: &Probes{},
		HTTP: config.HTTP{
			Connections: 1000, HeaderBytes: 4096, BodyBytes: 1000, ReadTimeout: time.Hour, WriteTimeout: time.Hour,
			IdleTimeout: time.Hour, DrainTimeout: time.Minute,
		},
		Log: slog.New(slog.DiscardHandler),
	})
	s.pauses.drainIdle = time.Minute // until a slow client sends the request whose response says goodbye
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln, func() {}) }()

	var clients sync.WaitGroup
	var answered, lost atomic.Int64
	warm := make(chan struct{}, 64)
	for range 32 {
		clients.Go(func() { hammer(ln.Addr().String(), &answered, &lost, warm) })
	}
	for range 32 {
		<-warm
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	clients.Wait()
	if lost.Load() > 0 || answered.Load() < 3200 {
		t.Errorf("%d answered, %d lost", answered.Load(), lost.Load())
	}
}

// TestDrainWithoutRights: a listener that cannot keep connections out is closed when its queue is empty, and not before.
func TestDrainWithoutRights(t *testing.T) {
	t.Parallel()
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ln, 100, nil, pauses{acceptDrain: 10 * time.Millisecond, drainIdle: time.Hour})
	l.refuseNew = func(int) {}
	const clients = 20
	for range clients {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if err := errors.Join(l.drain(), l.SetDeadline(time.Now().Add(-time.Second))); err != nil { // it is late
		t.Fatal(err)
	}
	for i := range clients {
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("after %d connections: %v", i, err)
		}
		defer c.Close()
	}
	if _, err := l.Accept(); err != io.EOF {
		t.Errorf("Accept: %v", err)
	}
	if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a connection waits in the queue, and nobody accepts it")
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

// hammer sends requests over one connection until the server announces its close, and counts
// unanswered ones.
func hammer(address string, answered, lost *atomic.Int64, warm chan<- struct{}) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		lost.Add(1)
		return
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for n := 0; ; n++ {
		if n == 100 {
			warm <- struct{}{}
		}
		if _, err := io.WriteString(c, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			lost.Add(1)
			return
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			lost.Add(1)
			return
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "hello world!!" {
			lost.Add(1)
			return
		}
		answered.Add(1)
		if resp.Close {
			return
		}
	}
}

func TestDeadlinesAreNeverLate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := connDeadline{drift: deadlineDrift}
		base := time.Unix(1000, 0)
		for range 50 {
			if rapid.IntRange(0, 9).Draw(t, "none") == 0 {
				d.asked = time.Time{}
			} else {
				base = base.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "later")))
				d.asked = base.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "timeout")))
			}
			if d.due() {
				d.set = d.asked
			}
			if d.asked.IsZero() != d.set.IsZero() {
				t.Fatalf("asked %v, set %v", d.asked, d.set)
			}
			if early := d.asked.Sub(d.set); early < 0 || early > deadlineDrift {
				t.Fatalf("asked %v, set %v", d.asked, d.set)
			}
		}
	})
}

func TestTemporary(t *testing.T) {
	t.Parallel()
	if !isTemporary(&net.OpError{Err: syscall.EMFILE}) {
		t.Error("running out of descriptors must not end the listener")
	}
	if isTemporary(errors.New("x")) {
		t.Error("any error is temporary")
	}
}

// A Unix socket replaces the file of a process that has ended, and no other file.
func TestListenUnixKeepsOtherFiles(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sw") // its name leaves room for a socket's
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "spillway.db")
	if err := os.WriteFile(file, []byte("rows"), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := Listen(t.Context(), config.UnixPrefix+file)
	if err == nil {
		_ = ln.Close()
	}
	if text, readErr := os.ReadFile(file); err == nil || string(text) != "rows" {
		t.Errorf("the file is %q (%v) after listening: %v", text, readErr, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: file, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	if ln, err = Listen(t.Context(), config.UnixPrefix+file); err != nil {
		t.Fatalf("a socket left behind: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
}

// TestShortWriteTimeout: a connection that was idle for longer than the write timeout, which
// is shorter than deadlineDrift, still gets its responses. A process that stands still for half
// of the timeout may rightly miss one, so the connection is tried again.
func TestShortWriteTimeout(t *testing.T) {
	t.Parallel()
	const timeout = deadlineDrift * 9 / 10
	url, _ := start(t, &rows{n: 5}, func(c *Config) { c.WriteTimeout = timeout })
	apptest.AwaitState(t, "a connection gets a response before and after it was idle", func() (string, bool) {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r := bufio.NewReader(c)
		for n := range 2 {
			if n > 0 {
				<-time.After(timeout + timeout/20)
			}
			if _, err := io.WriteString(c, "GET /list HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				return err.Error(), false
			}
			resp, err := http.ReadResponse(r, nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
			}
			if err != nil {
				return err.Error(), false
			}
		}
		return "", true
	})
}
