package streamtest

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
	"spillway/internal/serve/storetest"
)

// endless are timeouts that no slow client reaches. One that blocked the server would block it
// for an hour.
const endless = "http: {read_timeout: 1h, write_timeout: 1h}\n"

// TestStreamNeighbours: idle connections and clients that send slowly, send huge bodies, read
// no answers or send garbage do not block valid requests or change their answers.
func TestStreamNeighbours(t *testing.T) {
	t.Parallel()
	testNeighbours(t, neighbourhood{idle: 200, slow: 5, others: 2, requests: 20})
}

// TestStreamManyNeighbours is TestStreamNeighbours with 10,000 idle connections.
func TestStreamManyNeighbours(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	testNeighbours(t, neighbourhood{idle: 10_000, slow: 20, others: 4, requests: 200})
}

// neighbourhood says how many clients there are beside 8 that each send some valid requests.
type neighbourhood struct {
	idle   int // connections without a whole request
	slow   int // clients that send slowly, and as many that read no answers
	others int // clients that send huge bodies, and as many that send garbage

	requests int
}

func testNeighbours(t *testing.T, n neighbourhood) {
	t.Helper()
	db := storetest.PostgresDatabase(t, postgres.Get(t))
	s := db.ServeReadings(t, &binary, endless+apptest.Readings)
	good := &goodClients{}
	without := good.run(t, s, n.requests)

	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for _, c := range idleConnections(t, s, n.idle) {
		defer c.Close()
	}
	var slow, huge, unread clientCounts
	var garbage atomic.Int64
	for range n.slow {
		others.Go(func() { repeat(ctx, s, &slow, dripBody) })
		others.Go(func() { repeat(ctx, s, &unread, ignoreAnswers) })
	}
	for range n.others {
		others.Go(func() { repeat(ctx, s, &huge, sendHugeBody) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range n.others {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		others.Go(func() { sendGarbage(ctx, t, s, random, &garbage) })
	}
	apptest.Await(t, "the other clients send", func() bool {
		return min(slow.sent.Load(), unread.sent.Load(), garbage.Load()) > 0 && huge.sent.Load() > 1<<20
	})
	beside := good.run(t, s, n.requests)
	ended := slow.ended.Load() + unread.ended.Load()
	stop()
	others.Wait()
	t.Logf("99th percentile %v without other clients, %v with them: %d bytes sent slowly, %d bytes of huge bodies, %d bytes of requests with unread answers, %d garbage requests",
		without, beside, slow.sent.Load(), huge.sent.Load(), unread.sent.Load(), garbage.Load())
	if ended > 0 {
		t.Errorf("%d slow clients and clients that read no answers were disconnected, want none: they did not last as long as the valid requests", ended)
	}
	stored := db.Query(t, "SELECT count(*), count(DISTINCT id) FROM readings WHERE device = 1")[0]
	if want := fmt.Sprint(good.next.Load()); stored[0] != want || stored[1] != want {
		t.Errorf("%s records stored, %s distinct ids, %s acknowledged", stored[0], stored[1], want)
	}
}

// goodClients post valid records and check the answers.
type goodClients struct{ next atomic.Int64 }

// run posts with 8 clients and returns the 99th percentile of the latency. An answer that does
// not come within a minute is an error.
func (g *goodClients) run(t *testing.T, s *apptest.Spillway, requests int) time.Duration {
	t.Helper()
	var mu sync.Mutex
	var times []time.Duration
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
			defer client.CloseIdleConnections()
			for range requests {
				id := g.next.Add(1)
				start := time.Now()
				a, err := apptest.TryPost(t.Context(), client, s.URL("readings"), fmt.Sprintf(`[{"id":%d,"device":1},{"id":"no"}]`, id))
				took := time.Since(start)
				if err != nil || a.Status != 200 || !strings.HasPrefix(string(a.Body), `{"stored":1,"ack":"database`) || !strings.Contains(string(a.Body), `"refused":[{"index":1,"field":"id"`) {
					t.Errorf("%d %s %v, want 200, one record stored and one refused", a.Status, a.Body, err)
					return
				}
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(times)
	if len(times) == 0 {
		t.Fatal("no valid request was answered")
	}
	return times[len(times)*99/100]
}

// idleConnections opens n connections. Every tenth has an incomplete request.
func idleConnections(t *testing.T, s *apptest.Spillway, n int) []net.Conn {
	t.Helper()
	var all []net.Conn
	for i := range n {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatalf("open idle connection %d (this test needs %d descriptors: ulimit -n): %v", i, n+1000, err)
		}
		if i%10 == 0 {
			_, _ = io.WriteString(c, "POST /readings HTTP/1.1\r\n") // the server may close it
		}
		all = append(all, c)
	}
	return all
}

const postHead = "POST /readings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"

// clientCounts are the bytes that clients of a kind have sent, and how many of their connections
// the server has closed.
type clientCounts struct{ sent, ended atomic.Int64 }

// repeat opens a connection and abuses it, again and again until ctx ends.
func repeat(ctx context.Context, s *apptest.Spillway, counts *clientCounts, abuse func(context.Context, net.Conn, *atomic.Int64)) {
	for ctx.Err() == nil {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		abuse(ctx, c, &counts.sent)
		if stop() { // ctx has not ended
			counts.ended.Add(1)
		}
		_ = c.Close()
	}
}

// dripBody sends a body of 100 kB, one byte at a time.
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

// sendHugeBody sends a body of 1 GiB, chunked or not, until the server closes the connection.
func sendHugeBody(ctx context.Context, c net.Conn, sent *atomic.Int64) {
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

// ignoreAnswers sends requests and does not read the answers.
func ignoreAnswers(ctx context.Context, c net.Conn, sent *atomic.Int64) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4096) // the server's writes soon block
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

// sendGarbage posts random, truncated or corrupted bodies, some of them gzipped. Each must
// be answered with 200 or a client error.
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
		a, err := apptest.TryPost(ctx, client, s.URL("readings"), string(body), headers...)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			t.Errorf("%q %v: %v", body, headers, err)
		case a.Status != 200 && a.Status/100 != 4:
			t.Errorf("%q %v: %d %s", body, headers, a.Status, a.Body)
		}
		sent.Add(1)
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
