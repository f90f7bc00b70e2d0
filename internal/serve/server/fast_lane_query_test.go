//go:build linux && !portable

package server

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
)

// uncachedQueries are queries that are executed for each request.
func uncachedQueries(tb testing.TB) []QueryRoute {
	open := func(rows int) *query.Query {
		return openQuery(tb, &answers{rows: rows}, func(c *query.Config) { c.TTL, c.CacheBytes = 0, 0 })
	}
	return []QueryRoute{
		{Paths: []string{"/live", "/live/{a}"}, Query: open(20), Columns: feed.Columns{"id", "of"}},
		{Paths: []string{"/one"}, Query: open(1), Envelope: feed.EnvelopeOne},
		{Paths: []string{"/many"}, Query: open(2000)},
	}
}

// heldReader is a query's source whose reads end when the test says so.
type heldReader struct {
	answers
	release chan struct{} // of reads outside of loops
	ended   chan error    // those that ended early

	mu      sync.Mutex
	loop    *front.Loop
	reads   []*feed.LoopRead
	dropped int
}

func (h *heldReader) Read(ctx context.Context, r feed.Range, to *feed.Rows) error {
	select {
	case <-h.release:
		return h.answers.Read(ctx, r, to)
	case <-ctx.Done():
		h.ended <- ctx.Err()
		return ctx.Err()
	}
}

// Begin implements feed.LoopReader.
func (h *heldReader) Begin(loop *front.Loop, r *feed.LoopRead) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loop = loop; r.Args[0] == "elsewhere" {
		return feed.ErrElsewhere
	}
	h.reads = append(h.reads, r)
	return nil
}

// Drop implements feed.LoopReader.
func (h *heldReader) Drop(*front.Loop, *feed.LoopRead) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropped++
	return true
}

// post has the loop call f, once a read has begun there.
func (h *heldReader) post(f func()) {
	for {
		h.mu.Lock()
		loop := h.loop
		h.mu.Unlock()
		if loop != nil {
			loop.Post(f)
			return
		}
		runtime.Gosched()
	}
}

// state returns how many reads have begun and how many were dropped.
func (h *heldReader) state() (begun, dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.reads), h.dropped
}

// answerAll ends all reads.
func (h *heldReader) answerAll() {
	h.post(func() {
		h.mu.Lock()
		reads := h.reads
		h.reads = nil
		h.mu.Unlock()
		for _, r := range reads {
			r.Done(h.answers.Read(context.Background(), feed.Range{Args: r.Args}, &r.Rows))
		}
	})
}

// heldLane is a lane with a query at /held.
func heldLane(t *testing.T, loops int, timeout time.Duration) (*lane, *heldReader, *query.Query) {
	t.Helper()
	h := &heldReader{answers: answers{rows: 1}, release: make(chan struct{}), ended: make(chan error, 10)}
	cfg := query.Config{
		Definition: feed.Definition{Name: "/held", Params: []param.Param{{Name: "a", Type: "text"}}},
		Limit:      feed.Limit{Rows: 10, Bytes: 1 << 20}, Timeout: timeout, WaitersMax: 3,
	}
	q := query.Open(cfg, h)
	t.Cleanup(q.Close)
	l := startLane(t, loops, func(c *Config) { c.Queries = []QueryRoute{{Paths: []string{"/held"}, Query: q}} })
	return l, h, q
}

// TestFastLaneQueryLimit: a request for a query is answered when it has waited for the query's timeout, and when too many wait.
func TestFastLaneQueryLimit(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l, h, q := heldLane(t, loops, 20*time.Millisecond)
		for range 3 {
			texts[i] += l.converse(t, input{[]string{get("/held?a=1"), get("/held?a=elsewhere")}, false}).text
		}
		if _, dropped := h.state(); loops > 0 && dropped != 3 {
			t.Errorf("%d reads were dropped", dropped)
		}
		apptest.Await(t, "the last execution has ended", func() bool { return q.Stats().ExecutionErrors == 6 })
		if s := q.Stats(); s.Refused != 6 || s.Waiting != 0 || s.Executions != 6 {
			t.Errorf("%+v", s)
		}
	}
	if texts[0] != texts[1] || strings.Count(texts[0], "HTTP/1.1 503 ") != 6 {
		t.Errorf("%q\nand without loops\n%q", texts[0], texts[1])
	}
}

// TestFastLaneQueryShares: requests for the same arguments share an execution, a stop waits for it, and too many are refused.
func TestFastLaneQueryShares(t *testing.T) {
	t.Parallel()
	l, h, q := heldLane(t, 1, time.Hour)
	var clients []net.Conn
	for _, a := range []string{"1", "1", "2"} {
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, get("/held?a="+a))
		clients = append(clients, c)
	}
	apptest.Await(t, "three requests wait", func() bool { return q.Stats().Waiting == 3 })
	if text := l.converse(t, input{[]string{get("/held?a=3")}, false}).text; !strings.HasPrefix(text, "HTTP/1.1 503 ") {
		t.Errorf("one too many: %q", text)
	}
	if begun, _ := h.state(); begun != 2 || q.Stats().Coalesced != 1 {
		t.Errorf("%d reads, %+v", begun, q.Stats())
	}
	l.stopNow()
	apptest.Await(t, "it drains", l.Draining)
	h.answerAll()
	for i, a := range []string{"1", "1", "2"} {
		if text := readAll(t, clients[i]); !strings.Contains(text, `"of":"`+a+`"`) || !strings.Contains(text, "Connection: close") {
			t.Errorf("%d: %q", i, text)
		}
	}
}

// TestFastLaneQueryClientLeaves: an execution whose clients have left is not wanted any more, and one outside of the loop ends.
func TestFastLaneQueryClientLeaves(t *testing.T) {
	t.Parallel()
	l, h, q := heldLane(t, 1, time.Hour)
	wait := func(n int) {
		t.Helper()
		apptest.Await(t, "so many requests wait", func() bool { return q.Stats().Waiting == n })
	}
	var clients []*net.TCPConn
	for i, a := range []string{"1", "1", "elsewhere"} {
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, get("/held?a="+a))
		clients = append(clients, c)
		wait(i + 1)
	}
	for _, c := range clients {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	if err := apptest.Receive(t, "the end of the execution elsewhere", h.ended); err == nil {
		t.Error("it was not cancelled")
	}
	apptest.Await(t, "nobody wants the other", func() bool {
		unwanted := make(chan bool, 1)
		h.post(func() { unwanted <- h.reads[0].Unwanted })
		return <-unwanted
	})
	h.answerAll()
	wait(0)
	c := l.dialLane(t, 0)
	_, _ = io.WriteString(c, get("/held?a=1", "Connection: close\r\n"))
	wait(1)
	h.answerAll()
	if text := readAll(t, c); !strings.Contains(text, `"of":"1"`) {
		t.Errorf("%q", text)
	}
}
