package target

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// hostile starts a TCP server that hands each connection to serve, with its
// number from 1, and closes it behind it.
func hostile(t testing.TB, serve func(number int, conn net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() {
		for number := 1; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			serving.Go(func() {
				defer stop()
				defer conn.Close()
				serve(number, conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}

// answering serves each request of a connection with what answer returns; an
// answer of nil closes the connection.
func answering(answer func(r *http.Request) []byte) func(int, net.Conn) {
	return func(_ int, conn net.Conn) {
		reader := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			if r.ContentLength > 0 {
				if _, err := reader.Discard(int(r.ContentLength)); err != nil {
					return
				}
			}
			b := answer(r)
			if b == nil {
				return
			}
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// open opens a target for a test.
func open(t testing.TB, c Config) *Target {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Clock == (Clock{}) {
		c.Clock = NewClock()
	}
	tg, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return tg
}

// drive sends n requests in a closed loop over so many connections and returns
// how each ended, and the worker's counters.
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
	deadline := clock.Now() + int64(30*time.Second)
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
		t.Fatalf("%d of %d requests ended", len(outcomes), n)
	}
	for i := range outcomes {
		checkTimes(t, &outcomes[i])
	}
	return outcomes, counters
}

// checkTimes checks that the times of an outcome are in order.
func checkTimes(t testing.TB, o *Outcome) {
	t.Helper()
	last := o.Intended
	for _, at := range []int64{o.Begin, o.Connected, o.Sent, o.First, o.Done} {
		if at != 0 && at < last {
			t.Errorf("times out of order: %+v", o)
		}
		last = max(last, at)
	}
	if o.Err == nil && (o.Sent == 0 || o.First == 0 || o.Done == 0) {
		t.Errorf("answered without all times: %+v", o)
	}
}
