package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// How much others may cost: a client's 99th percentile beside them is at most so many times
// that without them, and so much more, in one of some tries. It is meant to find what
// stalls, not to measure: other programs may have the machine meanwhile.
const (
	neighbourTimes = 10
	neighbourMore  = 250 * time.Millisecond
	neighbourTries = 3
	idleNeighbours = 10_000
)

// TestStreamNeighbours: 10,000 idle connections, clients that send slowly, send huge bodies,
// read no answers or send garbage neither stall the others nor spoil their answers.
func TestStreamNeighbours(t *testing.T) {
	t.Parallel()
	p := postgresPlace(t, shared.postgres)
	s := p.serve(t, readings)
	good := &goodClients{}
	without := good.run(t, s)

	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for _, c := range idleConnections(t, s) {
		defer c.Close()
	}
	var slow, huge, unread, garbage atomic.Int64
	for range 20 {
		others.Go(func() { repeat(ctx, s, &slow, dripBody) })
		others.Go(func() { repeat(ctx, s, &unread, readNothing) })
	}
	for range 4 {
		others.Go(func() { repeat(ctx, s, &huge, sendHuge) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		others.Go(func() { sendGarbage(ctx, t, s, random, &garbage) })
	}
	eventually(t, "the others are at work", func() bool {
		return min(slow.Load(), unread.Load(), garbage.Load()) > 0 && huge.Load() > 1<<20
	})
	most := neighbourTimes*without + neighbourMore
	beside := good.run(t, s)
	for try := 1; try < neighbourTries && beside > most; try++ {
		beside = min(beside, good.run(t, s))
	}
	stop()
	others.Wait()
	t.Logf("99th percentile %v without the others, %v beside them: %d bytes slowly, %d bytes of huge bodies, %d bytes of requests whose answers nobody reads, %d of garbage",
		without, beside, slow.Load(), huge.Load(), unread.Load(), garbage.Load())
	if beside > most {
		t.Errorf("the 99th percentile is %v beside others, and %v without", beside, without)
	}
	stored := p.query(t, "SELECT count(*), count(DISTINCT id) FROM readings WHERE device = 1")[0]
	if want := fmt.Sprint(good.next.Load()); stored[0] != want || stored[1] != want {
		t.Errorf("%s stored, %s of them different, %s acknowledged", stored[0], stored[1], want)
	}
}

// goodClients post records whose answers must be right.
type goodClients struct{ next atomic.Int64 }

// run posts with 8 clients for two seconds, and returns the 99th percentile of the times.
func (g *goodClients) run(t *testing.T, s *apptest.Spillway) time.Duration {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var mu sync.Mutex
	var times []time.Duration
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				id := g.next.Add(1)
				start := time.Now()
				a, err := tryPost(t.Context(), client, s.URL("readings"), fmt.Sprintf(`[{"id":%d,"device":1},{"id":"no"}]`, id))
				took := time.Since(start)
				if err != nil || a.status != 200 || !strings.HasPrefix(string(a.body), `{"stored":1,"ack":"database`) || !strings.Contains(string(a.body), `"refused":[{"index":1,"field":"id"`) {
					t.Errorf("%d %s %v", a.status, a.body, err)
				}
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	group.Wait()
	slices.Sort(times)
	return times[len(times)*99/100]
}

// idleConnections opens many; every tenth has begun a request.
func idleConnections(t *testing.T, s *apptest.Spillway) []net.Conn {
	t.Helper()
	var all []net.Conn
	for i := range idleNeighbours {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatalf("open idle connection %d (this test needs %d descriptors: ulimit -n): %v", i, idleNeighbours+1000, err)
		}
		if i%10 == 0 {
			_, _ = io.WriteString(c, "POST /readings HTTP/1.1\r\n") // the server may give it up
		}
		all = append(all, c)
	}
	return all
}

const postHead = "POST /readings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"

// repeat has one connection after the other ill-treated until ctx ends.
func repeat(ctx context.Context, s *apptest.Spillway, sent *atomic.Int64, treat func(context.Context, net.Conn, *atomic.Int64)) {
	for ctx.Err() == nil {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		treat(ctx, c, sent)
		stop()
		_ = c.Close()
	}
}

// dripBody sends a body of 100 kB a byte at a time.
func dripBody(ctx context.Context, c net.Conn, sent *atomic.Int64) {
	text := postHead + "Content-Length: 100000\r\n\r\n"
	for ctx.Err() == nil {
		n, err := io.WriteString(c, text)
		if err != nil {
			return
		}
		sent.Add(int64(n))
		text = " "
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// sendHuge sends a body of a gigabyte, in chunks or not, until the server has had enough.
func sendHuge(ctx context.Context, c net.Conn, sent *atomic.Int64) {
	head, chunk := "Content-Length: 1073741824\r\n\r\n", strings.Repeat("x", 1<<16)
	if sent.Load()%2 == 0 {
		head, chunk = "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk)
	}
	if _, err := io.WriteString(c, postHead+head); err != nil {
		return
	}
	for ctx.Err() == nil {
		n, err := io.WriteString(c, chunk)
		sent.Add(int64(n))
		if err != nil {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// readNothing sends requests whose answers nobody reads.
func readNothing(ctx context.Context, c net.Conn, sent *atomic.Int64) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4096) // the server's writes wait soon
	}
	request := strings.Repeat("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 20)
	for ctx.Err() == nil {
		n, err := io.WriteString(c, request)
		sent.Add(int64(n))
		if err != nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// sendGarbage posts what is random, cut short or flipped, also as gzip. Every one is
// answered, and none with an error of the server's.
func sendGarbage(ctx context.Context, t *testing.T, s *apptest.Spillway, random *rand.Rand, sent *atomic.Int64) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		body := []byte(`[{"id":7,"device":700,"value":1e3,"note":"\u00e4\ud83d"},{"id":-9223372036854775808,"note":null}]`)
		var headers []string
		if random.IntN(2) == 0 {
			body, headers = []byte(gzipped(string(body))), []string{"Content-Encoding", "gzip"}
		}
		switch random.IntN(4) {
		case 0:
			body = body[:random.IntN(len(body))]
		case 1:
			for range 1 + random.IntN(5) {
				body[random.IntN(len(body))] ^= byte(1 << random.IntN(8))
			}
		case 2:
			body = bytes.Repeat([]byte{"[{\"0\x00\xff\\"[random.IntN(7)]}, 1+random.IntN(20000))
		case 3:
			body = make([]byte, random.IntN(5000))
			for i := range body {
				body[i] = byte(random.Uint32())
			}
		}
		if random.IntN(3) == 0 {
			headers = append(headers, "Content-Type", "application/x-ndjson")
		}
		a, err := tryPost(ctx, client, s.URL("readings"), string(body), headers...)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			t.Errorf("%q %v: %v", body, headers, err)
		case a.status != 200 && a.status/100 != 4:
			t.Errorf("%q %v: %d %s", body, headers, a.status, a.body)
		}
		sent.Add(1)
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
