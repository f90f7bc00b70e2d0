package target

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/result"
)

// drive sends n requests in a closed loop over that many connections. It
// returns the outcomes and the worker's counters.
func drive(t testing.TB, tg *Target, connections, n int) ([]Outcome, Counters) {
	t.Helper()
	var (
		w        *Worker
		outcomes []Outcome
	)
	clock, begun := tg.config.Clock, 0
	start := func() {
		if begun < n {
			begun++
			now := clock.Now()
			if !w.Start(now, now) {
				t.Fatal("no free connection")
			}
		}
	}
	w, err := tg.NewWorker(0, connections, func(o *Outcome) {
		outcomes = append(outcomes, *o)
		start()
	})
	if err != nil {
		t.Fatal(err)
	}
	for range connections {
		start()
	}
	deadline := clock.Now() + int64(90*time.Second)
	for len(outcomes) < n && clock.Now() < deadline {
		if err := w.Wait(clock.Now() + int64(100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	counters := w.Counters(clock.Now())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if len(outcomes) != n {
		t.Fatalf("%d of %d requests ended within 90 s", len(outcomes), n)
	}
	for i := range outcomes {
		checkTimes(t, &outcomes[i])
	}
	return outcomes, counters
}

func TestWorkerKeepAlive(t *testing.T) {
	address := hostile(t, answering(func(*http.Request) []byte { return []byte(okAnswer) }))
	outcomes, counters := drive(t, open(t, Config{URL: "http://" + address + "/"}), 4, 100)
	for _, o := range outcomes {
		if o.Err != nil || o.Status != 200 || o.Kind != Read || o.BytesReceived != int64(len(okAnswer)) {
			t.Fatalf("outcome %+v", o)
		}
	}
	if counters.Connects != 4 || counters.Reconnects != 0 || counters.OpenMax != 4 {
		t.Errorf("counters %+v, want 4 connections, no replacements", counters)
	}
	if counters.InFlight <= 0 || counters.Open < counters.InFlight {
		t.Errorf("integrals %+v", counters)
	}
}

func TestWorkerPerConnection(t *testing.T) {
	var closes atomic.Int64
	address := hostile(t, answering(func(r *http.Request) []byte {
		if r.Close {
			closes.Add(1)
		}
		return []byte(okAnswer)
	}))
	for per, want := range map[int]int64{1: 12, 3: 4} {
		closes.Store(0)
		_, counters := drive(t, open(t, Config{URL: "http://" + address, PerConnection: per}), 1, 12)
		if counters.Connects != want || counters.Reconnects != 0 {
			t.Errorf("%d per connection: %+v, want %d connections", per, counters, want)
		}
		if closes.Load() != want {
			t.Errorf("%d per connection: %d requests had Connection: close, want %d", per, closes.Load(), want)
		}
	}
}

// TestWorkerClasses has servers misbehave and checks what each is called.
func TestWorkerClasses(t *testing.T) {
	t.Parallel()
	reset := func(_ int, conn net.Conn) {
		io.ReadFull(conn, make([]byte, 10))
		conn.(*net.TCPConn).SetLinger(0)
	}
	say := func(text string) func(int, net.Conn) {
		return func(_ int, conn net.Conn) {
			conn.Read(make([]byte, 4096))
			io.WriteString(conn, text)
		}
	}
	silent := func(_ int, conn net.Conn) { io.Copy(io.Discard, conn) }
	drip := func(_ int, conn net.Conn) {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
		io.Copy(io.Discard, conn)
	}
	for name, test := range map[string]struct {
		serve func(int, net.Conn)
		want  result.ErrorClass
	}{
		"reset":         {reset, result.Reset},
		"silent close":  {say(""), result.Reset},
		"cut short":     {say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfew"), result.Reset},
		"silent":        {silent, result.Timeout},
		"never ends":    {drip, result.Timeout},
		"malformed":     {say("220 smtp ready\r\n"), result.Protocol},
		"bad status":    {say("HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), result.StatusError},
		"cut chunk":     {say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), result.Reset},
		"endless lines": {say("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 20000)), result.Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Config{URL: "http://" + hostile(t, test.serve)}
			if test.want == result.Timeout {
				c.Timeout = 300 * time.Millisecond
			}
			tg := open(t, c)
			outcomes, _ := drive(t, tg, 1, 3)
			for _, o := range outcomes {
				if o.Err == nil || Classify(o.Err) != test.want {
					t.Fatalf("%v is %v, want %v", o.Err, Classify(o.Err), test.want)
				}
			}
		})
	}
}

func TestWorkerRefused(t *testing.T) {
	for _, c := range []Config{{URL: "http://" + refusing(t)}, {URL: "http://x/", Socket: filepath.Join(t.TempDir(), "none")}} {
		outcomes, counters := drive(t, open(t, c), 2, 4)
		for _, o := range outcomes {
			if o.Err == nil || Classify(o.Err) != result.Refused || o.Connected != 0 || o.Sent != 0 {
				t.Fatalf("%+v: %v", o, o.Err)
			}
		}
		if counters.OpenMax > 2 {
			t.Errorf("%d connections at once, want at most 2", counters.OpenMax)
		}
	}
}

// TestWorkerSaysNothingTwice closes keep-alive connections under requests: each
// request is seen at most once, and failures are reported.
func TestWorkerSaysNothingTwice(t *testing.T) {
	var seen atomic.Int64
	address := hostile(t, func(_ int, conn net.Conn) {
		served := 0
		answering(func(*http.Request) []byte {
			seen.Add(1)
			if served++; served == 3 {
				return nil // closes without a word
			}
			return []byte(okAnswer)
		})(0, conn)
	})
	outcomes, counters := drive(t, open(t, Config{URL: "http://" + address}), 1, 30)
	failed := 0
	for _, o := range outcomes {
		if o.Err != nil {
			failed++
		}
	}
	if seen.Load() != 30 || failed != 10 {
		t.Errorf("the server saw %d requests, %d failed; want 30 and 10", seen.Load(), failed)
	}
	if counters.Connects != 10 || counters.Reconnects != 9 {
		t.Errorf("%+v, want 10 connections, 9 of them replacements", counters)
	}
}

// TestWorkerIdleClose ends connections that carry no request: no request fails.
func TestWorkerIdleClose(t *testing.T) {
	address := hostile(t, func(_ int, conn net.Conn) {
		conn.Read(make([]byte, 4096))
		io.WriteString(conn, okAnswer) // and closes
	})
	tg := open(t, Config{URL: "http://" + address})
	clock := tg.config.Clock
	ended := 0
	w, err := tg.NewWorker(0, 1, func(o *Outcome) {
		if ended++; o.Err != nil {
			t.Errorf("request %d: %v", ended, o.Err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for want := 1; want <= 3; want++ {
		now := clock.Now()
		w.Start(now, now)
		for ended < want || w.Open() > 0 {
			if err := w.Wait(clock.Now() + int64(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c := w.Counters(clock.Now()); c.Connects != 3 || c.Reconnects != 2 {
		t.Errorf("%+v, want 3 connections, 2 of them replacements", c)
	}
}

func TestWorkerHuge(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("0123456789"), 1<<20)
	address := hostile(t, answering(func(*http.Request) []byte {
		return append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(body)), body...)
	}))
	outcomes, _ := drive(t, open(t, Config{URL: "http://" + address}), 2, 6)
	for _, o := range outcomes {
		if o.Err != nil || o.BytesReceived < int64(len(body)) || o.First >= o.Done {
			t.Fatalf("outcome %+v", o)
		}
	}
}

// TestWorkerLargeRequest sends bodies that do not fit the socket's buffer to a
// server that is in no hurry to read them.
func TestWorkerLargeRequest(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	address := hostile(t, answering(func(r *http.Request) []byte {
		got.Add(r.ContentLength)
		return []byte(okAnswer)
	}))
	body := PlainTemplate(strings.Repeat("{x}", 4<<20))
	outcomes, counters := drive(t, open(t, Config{URL: "http://" + address, Method: "PUT", Body: body}), 2, 4)
	for _, o := range outcomes {
		if o.Err != nil || o.Kind != Write {
			t.Fatalf("outcome %+v", o)
		}
	}
	if got.Load() != 4*12<<20 || counters.Connects != 2 {
		t.Errorf("the server got %d bytes over %d connections, want %d over 2", got.Load(), counters.Connects, 4*12<<20)
	}
}

func TestWorkerSources(t *testing.T) {
	var from [4]atomic.Int64
	address := hostile(t, func(number int, conn net.Conn) {
		from[conn.RemoteAddr().(*net.TCPAddr).IP.To4()[3]].Add(1)
		answering(func(*http.Request) []byte { return []byte(okAnswer) })(number, conn)
	})
	sources := []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}
	drive(t, open(t, Config{URL: "http://" + address, Sources: sources, PerConnection: 1}), 2, 20)
	if from[2].Load() != 10 || from[3].Load() != 10 {
		t.Errorf("%d connections from .2 and %d from .3, want 10 each", from[2].Load(), from[3].Load())
	}
}

func TestWorkerUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host, r.URL.Path) })}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	defer func() {
		server.Close()
		<-done
	}()
	checks, err := ParseChecks([]string{"body~=localhost/a/b"})
	if err != nil {
		t.Fatal(err)
	}
	outcomes, _ := drive(t, open(t, Config{URL: "http+unix://" + strings.ReplaceAll(path, "/", "%2F") + "/a/b", Checks: checks}), 2, 10)
	for _, o := range outcomes {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
	}
}

// TestWorkerFailsOnce checks that a request which fails at once does not also time out.
func TestWorkerFailsOnce(t *testing.T) {
	tg := open(t, Config{URL: "http://shop/", Socket: filepath.Join(t.TempDir(), "none"), Timeout: time.Nanosecond})
	outcomes, counters := drive(t, tg, 2, 100)
	for _, o := range outcomes {
		if class := Classify(o.Err); class != result.Refused {
			t.Fatalf("class %s of %v, want %s", class, o.Err, result.Refused)
		}
	}
	if counters.InFlight < 0 || counters.Connects != 0 {
		t.Errorf("counters %+v", counters)
	}
}

func TestClassifyFileLimit(t *testing.T) {
	if Classify(fmt.Errorf("open socket: %w", os.NewSyscallError("socket", unix.EMFILE))) != result.NoFile {
		t.Error("EMFILE is not called no_file")
	}
}
