//go:build linux && !portable

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
)

// TestFastLaneAgain: a connection returns when its requests need no waiting any more, each time after twice as many of them.
func TestFastLaneAgain(t *testing.T) {
	l := startLane(t, 1, nil)
	c, err := net.Dial("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	regular := func(n int, request string) int64 {
		before := l.regular.Load()
		for range n {
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(answers, nil)
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
			}
			if err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("%q: %v, %v", request, answer, err)
			}
		}
		return l.regular.Load() - before
	}
	const hit, waits = "GET /list HTTP/1.1\r\nHost: a\r\n\r\n", "GET /probe/database HTTP/1.1\r\nHost: a\r\n\r\n"
	if n := regular(3*laneStreak, hit); n != 1+laneStreak {
		t.Errorf("%d requests were answered before it returned: the first one waits for the window", n)
	}
	for stay := int64(2 * laneStreak); stay <= 8*laneStreak; stay *= 2 {
		if n := regular(3, waits) + regular(int(stay)-1, hit) + regular(1, waits); n != 3+stay {
			t.Errorf("%d of %d requests were answered before it may return", n, 3+stay)
		}
		if n := regular(int(stay)+10, hit); n != stay {
			t.Errorf("%d requests without waiting were answered before it returned, want %d", n, stay)
		}
	}
	if handed := l.listener.Load().handed.Load(); handed != 4 {
		t.Errorf("it was handed over %d times, want 4", handed)
	}
}

// TestFastLaneAgainBetweenRequests: the server reads the rest of a request in its own lane, also when the connection is due to return.
func TestFastLaneAgainBetweenRequests(t *testing.T) {
	fast, regular := startLanes(t, nil)
	hits, body := strings.Repeat(get("/hello"), laneStreak), get("/openapi.json")
	post := fmt.Sprintf("POST /popup/click HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	agree(t, fast, regular, hits+get("/hello")[:10], get("/hello")[10:])
	agree(t, fast, regular, hits+post, body)
	agree(t, fast, regular, hits+post+body[:20], body[20:])
	agree(t, fast, regular, strings.Repeat(get("/hello", "X: 1\r\n"), 10*laneHeaderBytes/len(get("/hello"))))
	if n := fast.listener.Load().handed.Load(); n < 4 {
		t.Errorf("%d connections left the fast lane: the test compares nothing", n)
	}
}

// TestFastLaneAgainWithoutDescriptor: a connection that cannot return for want of a descriptor stays.
func TestFastLaneAgainWithoutDescriptor(t *testing.T) {
	l := startLane(t, 1, nil)
	c := l.dialLane(t, 0)
	answers := bufio.NewReader(c)
	ask := func(request string) {
		t.Helper()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(answers, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ask(get("/probe/database"))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	for range 2 * laneStreak {
		ask(get("/hello"))
	}
}

// TestFastLaneSlowReaderWithoutDescriptor: a connection that got the rest of a response, and cannot return for want of a
// descriptor, stays open.
func TestFastLaneSlowReaderWithoutDescriptor(t *testing.T) {
	l := startLane(t, 1, largePage(t))
	l.warmUp(t)
	c := l.askSlowly(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, get("/hello")); err != nil {
		t.Fatal(err)
	}
	if _, err = http.ReadResponse(r, nil); err != nil {
		t.Errorf("the next request on the connection: %v", err)
	}
}

// runLane runs a server; stop stops it and returns Run's error. Connections have some time to send a request while it stops; 0: as
// much as usual.
func runLane(t *testing.T, loops int, wait time.Duration, change func(*Config)) (l *lane, stop func() error) {
	t.Helper()
	cfg := Config{
		Probes: &Probes{},
		HTTP: config.HTTP{
			Connections: 100, HeaderBytes: laneHeaderBytes, BodyBytes: 1000, BodiesBytes: 1 << 20,
			ReadTimeout: time.Hour, WriteTimeout: time.Hour, IdleTimeout: time.Hour, DrainTimeout: time.Minute,
			Loops: loops,
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	if wait > 0 {
		s.pauses.acceptDrain, s.pauses.drainIdle = wait, 20*wait
	}
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln, func() {}) }()
	apptest.Await(t, "the server serves", s.Serving)
	return &lane{Server: s, address: ln.Addr().String(), regular: new(atomic.Int64)}, func() error {
		cancel()
		return <-done
	}
}

// TestFastLaneDrainAfterSlowReader: a connection that has got the rest of a response, and is idle, does not hold up the end.
func TestFastLaneDrainAfterSlowReader(t *testing.T) {
	t.Parallel()
	l, stop := runLane(t, 1, 0, largePage(t))
	l.warmUp(t)
	c := l.askSlowly(t)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	if err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestFastLaneConnectedBeforeStop: a client that has connected and sent nothing gets an answer while the server stops.
func TestFastLaneConnectedBeforeStop(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, -1} {
		withMoreTime(t, usualPauses().acceptDrain, func(t *testing.T, wait time.Duration) string {
			l, stop := runLane(t, loops, wait, nil)
			c := l.dialLane(t, 0)
			ended := make(chan error, 1)
			go func() { ended <- stop() }()
			apptest.Await(t, "the server stops", l.Draining)
			_, failed := io.WriteString(c, get("/hello"))
			text, err := io.ReadAll(c)
			if stopped := <-ended; stopped != nil {
				t.Error(stopped)
			}
			if err := errors.Join(failed, err); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") {
				return fmt.Sprintf("loops %d: %q, %v, want a response of 200", loops, text, err)
			}
			return ""
		})
	}
}

// withMoreTime calls try with a time in which the test does its part, and again with twice as much as long as try returns what
// was wrong: a process that stands still in between may rightly be too late. It fails the test if even eleven seconds and more are
// too few.
func withMoreTime(t *testing.T, first time.Duration, try func(*testing.T, time.Duration) string) {
	t.Helper()
	for limit := first; ; limit *= 2 {
		wrong := try(t, limit)
		if wrong == "" {
			return
		}
		if limit > 10*time.Second {
			t.Errorf("with %s: %s", limit, wrong)
			return
		}
		t.Logf("again, because with %s: %s", limit, wrong)
	}
}

// TestFastLaneListenerBuffer: the kernel keeps little for a client that does not read its events, whoever has accepted it.
func TestFastLaneListenerBuffer(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, -1} {
		l := startLane(t, loops, nil)
		c := l.dialLane(t, 0)
		if _, err := io.WriteString(c, askEvents); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(c); lines.Scan() && !strings.HasPrefix(lines.Text(), "data: "); {
		}
		l.listenings.mu.Lock()
		for one := range l.listenings.all {
			if n := sendBuffer(t, one.conn); n != 2*sendBufferMax {
				t.Errorf("loops %d: a send buffer of %d bytes", loops, n)
			}
		}
		if len(l.listenings.all) != 1 {
			t.Errorf("%d listeners", len(l.listenings.all))
		}
		l.listenings.mu.Unlock()
	}
}

// sendBuffer returns the size of the kernel's buffer, which it doubles when it is set.
func sendBuffer(t *testing.T, c net.Conn) (bytes int) {
	t.Helper()
	raw, err := c.(*conn).SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) { bytes, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) })
		if failed != nil {
			err = failed
		}
	}
	if err != nil {
		t.Error(err)
	}
	return bytes
}
