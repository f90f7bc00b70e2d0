//go:build linux && !portable

package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/stream"
)

// posted returns a request with a JSON body and further headers, each with its end.
func posted(target, body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", target,
		strings.Join(headers, ""), len(body), body)
}

// startedRequests are requests that wait in event loops, or that are answered there.
func startedRequests() map[string]string {
	return map[string]string{
		"record":          posted("/things", `{"id":1}`),
		"alias":           posted("/v1/things?a=b", `{"id":1}`),
		"array":           posted("/things", `[{"id":1},{"id":2,"name":"too long"},{"id":"<3"}]`),
		"none":            posted("/things", "[]"),
		"refused":         posted("/things", `{"id":null}`),
		"not JSON":        posted("/things", `{"id":1`),
		"two objects":     posted("/things", `{"id":1}{"id":2}`),
		"too many":        posted("/things", "["+strings.Repeat(`{"id":1},`, 10)+`{"id":1}]`),
		"empty body":      posted("/things", ""),
		"lines":           strings.Replace(posted("/things", "{\"id\":1}\n{\"id\":2}\n"), "application/json", "application/x-ndjson", 1),
		"another type":    strings.Replace(posted("/things", `{"id":1}`), "application/json", "text/plain", 1),
		"no type":         strings.Replace(posted("/things", `{"id":1}`), "Content-Type: application/json\r\n", "", 1),
		"two types":       posted("/things", `{"id":1}`, "Content-Type: text/plain\r\n"),
		"key":             posted("/things", `{"id":1}`, "Idempotency-Key: a\r\n"),
		"another body":    posted("/things", `{"id":2}`, "Idempotency-Key: b\r\n"),
		"two keys":        posted("/things", `{"id":1}`, "Idempotency-Key: a\r\n", "Idempotency-Key: b\r\n"),
		"empty key":       posted("/things", `{"id":1}`, "Idempotency-Key:\r\n"),
		"close":           posted("/things", `{"id":1}`, "Connection: close\r\n"),
		"1.0":             strings.Replace(posted("/things", `{"id":1}`), "HTTP/1.1", "HTTP/1.0", 1),
		"1.0, keep-alive": strings.Replace(posted("/things", `{"id":1}`, "Connection: keep-alive\r\n"), "HTTP/1.1", "HTTP/1.0", 1),
		"request id":      posted("/things", `{"id":1}`, "X-Request-Id: trace-1\r\n"),
		"own origin":      posted("/things", `{"id":1}`, "Origin: http://localhost:1\r\n"),
		"origin":          posted("/things", `{"id":1}`, "Origin: https://app.example\r\n"),
		"foreign origin":  posted("/things", `{"id":1}`, "Origin: https://evil.example\r\n"),
		"authorization":   posted("/things", `{"id":1}`, "Authorization: Bearer a\r\n"),

		"query":              get("/live?a=1"),
		"query, in its path": get("/live/%31"),
		"query, HEAD":        strings.Replace(get("/live?a=1"), "GET", "HEAD", 1),
		"query, 1.0":         "GET /live?a=1 HTTP/1.0\r\nHost: a\r\n\r\n",
		"query, close":       get("/live?a=1", "Connection: close\r\n"),
		"query, gzip":        get("/live?a=1", "Accept-Encoding: gzip\r\n"),
		"query, tag *":       get("/live?a=1", "If-None-Match: *\r\n"),
		"query, fields":      get("/live?a=1&fields=of"),
		"query, origin":      get("/live?a=1", "Origin: https://app.example\r\n", "X-Request-Id: trace-1\r\n"),
		"query, one":         get("/one?a=1"),
		"query, no row":      get("/one?a=none"),
		"query, too large":   get("/many?a=1"),
		"query, elsewhere":   get("/live?a=elsewhere"),
		"query, fails":       get("/live?a=fails"),
		"query, rejected":    get("/live?a=rejected"),
		"query, overloaded":  get("/live?a=overloaded"),
	}
}

// otherPosts are requests that event loops leave to the regular server.
func otherPosts() []string {
	long := posted("/things", `{"id":1}`+strings.Repeat(" ", 800))
	return []string{
		long, long + posted("/things", `{"id":1}`), posted("/popup/click", `{"show":"x"}`), get("/popup?user=new"), posted("/nothing", "x"), posted("/a/../%74hings", `{"id":1}`), posted("/hello", "x"), posted("/list", ""), posted("/popup", "x"),
		posted("/things", `{"id":1}`, "Content-Encoding: gzip\r\n"), posted("/things", `{"id":1}`, "Expect: 100-continue\r\n"),
		"POST /things HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"id\":1}\r\n0\r\n\r\n",
		"POST /things HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\r\n", posted("/things", `{"id":1}`) + posted("/things", `{"id":2}`),
		strings.Replace(posted("/things", `{"id":1}`), "POST", "PUT", 1), posted("/things", `{"id":1}`) + get("/hello"), posted("/things", strings.Repeat(" ", 8000)),
	}
}

// TestFastLaneWaits: requests wait in event loops, and are answered like those of the regular server.
func TestFastLaneWaits(t *testing.T) {
	fast, regular := startLanes(t, nil)
	for name, text := range startedRequests() {
		agree(t, fast, regular, text)
		before := fast.regular.Load()
		if d := difference(t, fast, regular, input{[]string{text}, true}); d != "" {
			t.Error(d)
		}
		if fast.regular.Load() != before {
			t.Errorf("%s: the regular server was asked", name)
		}
	}
	for _, text := range otherPosts() {
		agree(t, fast, regular, text)
	}
	sameRequests(t, fast, regular)
}

// TestFastLaneWaitsInPieces: it does not matter how a request with a body arrives, and what follows it.
func TestFastLaneWaitsInPieces(t *testing.T) {
	fast, regular := startLanes(t, nil)
	record := posted("/things", `{"id":1}`)
	for i := range len(record) + 1 {
		if !skipped(i, 5) || i > len(record)-10 {
			agree(t, fast, regular, record[:i], record[i:])
		}
	}
	for _, texts := range [][]string{
		{record, record, record},
		{record, get("/list"), record},
		{get("/hello"), record, get("/q?a=7"), record},
		{record, "\r\n", record},
		{record, "x"},
		{record[:len(record)-3], record[len(record)-3:] + record},
		{record[:len(record)-3], record[len(record)-3:] + "G"},
		{record + record, record},
		{posted("/things", `{"id":1}`, "Connection: close\r\n"), record},
		{record, posted("/nothing", "x"), posted("/a/../%74hings", `{"id":1}`), record},
		{record[:len(record)-3], "\x00"},
		{posted("/things", strings.Repeat("x", 701)), record},
		{record, get("/probe/database"), record},
		{get("/live?a=1"), get("/live?a=2"), record, get("/live?a=fails"), get("/live?a=elsewhere")},
		{get("/live?a=1")[:20], get("/live?a=1")[20:] + get("/live?a=2")},
		{get("/live?a=1") + "G", "ET"},
		{get("/live?a=1", "Connection: close\r\n"), get("/live?a=2")},
		{get("/live"), get("/live?a=1&a=2"), get("/live?a=1&fields=no"), get("/live?a=1")},
	} {
		agree(t, fast, regular, texts...)
		agree(t, fast, regular, strings.Join(texts, ""))
	}
	sameRequests(t, fast, regular)
}

// TestFastLaneBodiesAreNotSmuggledThrough: bodies whose end is ambiguous are read as by the regular server.
func TestFastLaneBodiesAreNotSmuggledThrough(t *testing.T) {
	fast, regular := startLanes(t, nil)
	for i, header := range smugglers() {
		for j, body := range smuggled() {
			if skipped(i+j, 7) {
				continue
			}
			head := "POST /things HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" + header + "\r\n\r\n"
			in := input{[]string{head + body}, (i/2+j)%2 == 0}
			if i%2 == 0 {
				in.pieces = []string{head, body}
			}
			if d := difference(t, fast, regular, in); d != "" {
				t.Error(d)
			}
		}
		agree(t, fast, regular, get("/live?a=1", header+"\r\n", "Y: z\r\n")+hidden)
	}
}

// TestFastLaneWaitsVariants: the lanes agree with other settings, and while they stop.
func TestFastLaneWaitsVariants(t *testing.T) {
	variants := laneVariants(t)
	variants["write keys"] = func(c *Config) { c.Keys = []string{"a", "b"} }
	variants["draining"] = nil
	variants["read keys"] = func(c *Config) { c.Queries[0].Access, c.ReadKeys = Key, []string{"a"} }
	variants["memory"] = func(c *Config) { c.Streams = []StreamRoute{openStreamOn(t, new(streamSink), true)} }
	variants["bodies"] = func(c *Config) { c.BodiesBytes = 1 }
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			fast, regular := startLanes(t, change)
			if name == "draining" {
				fast.draining.Store(true)
				regular.draining.Store(true)
			}
			for _, text := range some(startedRequests()) {
				agree(t, fast, regular, text)
			}
			agree(t, fast, regular, otherPosts()[0])
			sameRequests(t, fast, regular)
		})
	}
}

// slowSink stores nothing until it is released.
type slowSink struct {
	streamSink
	began   chan struct{}
	release chan struct{}
}

func newSlowSink() *slowSink {
	return &slowSink{began: make(chan struct{}, 1000), release: make(chan struct{})}
}

func (s *slowSink) Commit(ctx context.Context, b *stream.Batch) error {
	s.began <- struct{}{}
	select {
	case <-s.release:
		return s.streamSink.Commit(ctx, b)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slowLane is a lane whose records are stored when the test says so.
func slowLane(t *testing.T, loops int, change func(*Config, *StreamRoute)) (*lane, *slowSink) {
	t.Helper()
	sink := newSlowSink()
	return startLane(t, loops, func(c *Config) {
		route := openStreamOn(t, sink, false)
		if change != nil {
			change(c, &route)
		}
		c.Streams = []StreamRoute{route}
	}), sink
}

// TestFastLaneDrainsWhatWaits: a stop waits for the answers of requests that wait, and closes their connections.
func TestFastLaneDrainsWhatWaits(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, -1} {
		l, sink := slowLane(t, loops, nil)
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, posted("/things", `{"id":1}`))
		apptest.Receive(t, "the commit", sink.began)
		l.stopNow()
		apptest.Await(t, "it drains", l.Draining)
		close(sink.release)
		if text := readAll(t, c); !strings.Contains(text, `{"stored":1,`) {
			t.Errorf("%d loops: %q", loops, text)
		}
	}
}

// TestFastLaneLimitsWaiting: a request is answered when it has waited for the timeout of its stream.
func TestFastLaneLimitsWaiting(t *testing.T) {
	t.Parallel()
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l, sink := slowLane(t, loops, func(_ *Config, r *StreamRoute) { r.Timeout = 20 * time.Millisecond })
		texts[i] = l.converse(t, input{[]string{posted("/things", `{"id":1}`)}, true}).text
		close(sink.release)
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[0], "HTTP/1.1 504 ") {
		t.Errorf("%q, and without loops %q", texts[0], texts[1])
	}
}

// TestFastLaneClientLeaves: what a client that has left was waiting for is stored, and a later client gets its own answer.
func TestFastLaneClientLeaves(t *testing.T) {
	t.Parallel()
	l, sink := slowLane(t, 1, nil)
	for range 4 {
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, posted("/things", `[{"id":1},{"id":2}]`))
	}
	gone := l.dialLane(t, 0)
	_, _ = io.WriteString(gone, posted("/things", `{"id":1}`))
	apptest.Receive(t, "the commit", sink.began)
	_ = gone.SetLinger(0)
	_ = gone.Close()
	apptest.Await(t, "the connection is closed", func() bool { return l.listener.Load().open.Load() == 4 })
	c := l.dialLane(t, 0)
	_, _ = io.WriteString(c, posted("/things", `[{"id":1},{"id":2},{"id":3}]`, "Connection: close\r\n"))
	close(sink.release)
	if text := readAll(t, c); !strings.Contains(text, `{"stored":3,`) {
		t.Errorf("%q", text)
	}
	apptest.Await(t, "every record is stored", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return sink.rows == 12
	})
}

// TestFastLaneSlowBody: a body that does not come in time is answered like by the regular server.
func TestFastLaneSlowBody(t *testing.T) {
	t.Parallel()
	record := posted("/things", `{"id":1}`)
	var texts [2]string
	for i, loops := range []int{1, -1} {
		l := startLane(t, loops, func(c *Config) { c.ReadTimeout = 100 * time.Millisecond })
		c := l.dialLane(t, 0)
		_, _ = io.WriteString(c, record[:len(record)-3])
		texts[i] = l.comparable(readAll(t, c))
	}
	if texts[0] != texts[1] || !strings.HasPrefix(texts[0], "HTTP/1.1 408 ") {
		t.Errorf("%q, and without loops %q", texts[0], texts[1])
	}
}

// TestFastLaneWritesReturn: a connection that has left the lane returns although its requests wait, because they can do so there.
func TestFastLaneWritesReturn(t *testing.T) {
	t.Parallel()
	l := startLane(t, 1, nil)
	c := l.dialLane(t, 0)
	answers := bufio.NewReader(c)
	ask := func(text string) {
		t.Helper()
		_, _ = io.WriteString(c, text)
		answer, err := http.ReadResponse(answers, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ask(get("/probe/database"))
	for range laneStreak {
		ask(posted("/things", `{"id":1}`))
	}
	before := l.regular.Load()
	for range 10 {
		ask(posted("/things", `{"id":1}`))
	}
	if n := l.regular.Load() - before; n > 0 {
		t.Errorf("the regular server was asked %d times", n)
	}
}

// TestAccessLogOfBothLanes: they write the same lines, also for a page that is sent again.
func TestAccessLogOfBothLanes(t *testing.T) {
	var lines [2]string
	for i, loops := range []int{1, -1} {
		var log apptest.Output
		access := NewAccessLog(&log, func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) })
		l := startLane(t, loops, func(c *Config) { c.AccessLog = access })
		const trace = "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
		texts := []string{
			get("/list?limit=3&token=secret", trace), get("/list?limit=3&token=secret", trace), get("/list?limit=3&token=secret", trace),
			get("/list?limit=3&token=secret", trace), get("/hello", "X-Request-Id: mine\r\n"), posted("/things", `{"id":1}`, trace), posted("/things", `x`),
			get("/q?a=1"), get("/popup?user=new"), get("/nothing"), posted("/popup/click", "x", "Traceparent: 00-0-0-0\r\n"),
		}
		for _, text := range texts {
			l.converse(t, input{[]string{text}, true})
		}
		apptest.Await(t, "every line", func() bool { return strings.Count(log.String(), "\n") == len(texts) })
		access.Close()
		lines[i] = l.comparableLog(log.String())
	}
	if lines[0] != lines[1] || strings.Count(lines[0], `"trace_id":"0af7651916cd43dd8448eb211c80319c"`) != 5 {
		t.Errorf("%s\nand without loops\n%s", lines[0], lines[1])
	}
}

// comparableLog returns lines without what another server would write differently.
func (l *lane) comparableLog(text string) string {
	return regexp.MustCompile(`"(?:time|seconds)":[^,}]*[,}]`).ReplaceAllString(l.comparable(text), "")
}

// discardedLog returns an access log of which nothing is kept.
func discardedLog(tb testing.TB) *AccessLog {
	tb.Helper()
	l := NewAccessLog(io.Discard, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	tb.Cleanup(l.Close)
	return l
}

// stuckWriter blocks until it is released, and then fails.
type stuckWriter struct{ release chan struct{} }

func (w stuckWriter) Write(p []byte) (int, error) {
	<-w.release
	return 0, io.ErrShortWrite
}

// TestAccessLogThatIsStuck: requests are answered although the log cannot be written, and its lines are counted as lost.
func TestAccessLogThatIsStuck(t *testing.T) {
	out := stuckWriter{make(chan struct{})}
	log := NewAccessLog(out, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	l := startLane(t, 1, func(c *Config) { c.AccessLog = log })
	agent := "X-Request-Id: " + strings.Repeat("x", idMax) + "\r\n"
	c, err := net.Dial("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	n := uint64(0)
	for ; log.lost.Load() < 10; n++ {
		_, _ = io.WriteString(c, get("/hello", agent))
		answer, err := http.ReadResponse(answers, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	close(out.release)
	log.Close()
	if lost := log.lost.Load(); lost != n {
		t.Errorf("%d of %d lines are lost", lost, n)
	}
}
