package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/config"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// streamSink keeps records in memory.
type streamSink struct {
	mu    sync.Mutex
	rows  int
	error error
}

func (s *streamSink) Commit(_ context.Context, b *stream.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range b.Requests {
		s.rows += e.Records.Len()
	}
	return s.error
}

func (s *streamSink) Durability(context.Context) (stream.Durability, error) {
	return stream.Durability{}, nil
}

func (s *streamSink) Sweep(context.Context, stream.Keep, int) (int, error) { return 0, nil }

// storeFunc is a function as a Stream.
type storeFunc func(ctx context.Context, r stream.Request) (stream.Receipt, error)

func (f storeFunc) Begin(_ context.Context, r stream.Request, ready func() func()) (stream.Receipt, stream.Waiting, error) {
	if ready != nil {
		if wake := ready(); wake != nil {
			wake()
		}
	}
	return stream.Receipt{}, storing{f, r}, nil
}

// storing is a request to a storeFunc.
type storing struct {
	storeFunc
	request stream.Request
}

func (s storing) Receipt(ctx context.Context) (stream.Receipt, error) {
	return s.storeFunc(ctx, s.request)
}

func (storing) Abandon() {}

// openStream returns the route of a stream at /things that writes to a sink.
func openStream(tb testing.TB, sink *streamSink) StreamRoute {
	tb.Helper()
	return openStreamOn(tb, sink, false)
}

// openStreamOn is openStream. With memory, requests do not wait for the sink.
func openStreamOn(tb testing.TB, sink stream.Sink, memory bool) StreamRoute {
	tb.Helper()
	schema, err := stream.NewSchema(stream.Definition{Name: "/things", Table: "things", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "speed", Type: stream.Real}, {Name: "name", Type: stream.Text, MaxLength: 5},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	s := stream.Open(stream.Config{
		Committers: 2, BatchRows: 1000, BatchBytes: 1 << 20, QueueRows: 100_000, QueueBytes: 64 << 20, WaitMax: time.Hour,
		CommitTimeout: time.Hour, RetryFor: time.Millisecond, KeyTTL: time.Hour, Log: slog.New(slog.DiscardHandler), Memory: memory,
	}, schema, sink)
	tb.Cleanup(func() { _ = s.Close(context.Background()) })
	return StreamRoute{
		Paths: []string{"/things", "/v1/things"}, Schema: schema, Timeout: time.Hour,
		Limits: stream.Limits{Bytes: 700, Records: 10, Depth: 8, Fields: 8},
		Stream: s,
	}
}

// send posts a body, as JSON unless the headers say otherwise.
func send(t *testing.T, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func TestStream(t *testing.T) {
	t.Parallel()
	sink := &streamSink{}
	route := openStream(t, sink)
	var unreadable atomic.Int64
	route.Unreadable = func() { unreadable.Add(1) }
	url, s := start(t, &rows{n: 5}, func(c *Config) { c.Streams = []StreamRoute{route}; c.CORSOrigins = []string{"https://a.example"} })
	f := func(a answer, status int, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if a.status != status || !strings.Contains(a.body, part) {
				t.Errorf("%d %s, want %d with %s", a.status, a.body, status, part)
			}
		}
	}
	f(send(t, url+"/things", `{"id":1}`), 200, `{"stored":1,"ack":"database"}`)
	f(send(t, url+"/v1/things", `[{"id":1},{"id":2,"name":"too long"},{"id":"<3"}]`), 200,
		`{"stored":1,"ack":"database","refused":[{"index":1,"field":"name","reason":"must be no longer than 5 characters"},{"index":2,"field":"id"`)
	f(send(t, url+"/things", `[]`), 200, `{"stored":0,"ack":"database"}`)
	f(send(t, url+"/things", "{\"id\":1}\n{\"id\":2}\n", "Content-Type", "application/x-ndjson"), 200, `{"stored":2,`)
	f(send(t, url+"/things", `{"id":1}{"id":2}`), 400, "bad-body", "NDJSON")
	f(send(t, url+"/things", "["+strings.Repeat(`{"id":1},`, 10)+`{"id":1}]`), 413, "body-too-large", "more than 10 records (records_max)")
	f(send(t, url+"/things", strings.Repeat("{\"id\":1}\n", 11), "Content-Type", "application/x-ndjson"), 413, "body-too-large", "records_max")
	f(send(t, url+"/things", `{"id":null}`), 422, "records-refused", `"refused":[{"index":0,"field":"id"`)
	f(send(t, url+"/things", strings.Repeat(" ", 701)), 413, "body-too-large", "700 bytes")
	f(send(t, url+"/things", `{}`, "Content-Type", ""), 415, "application/json")
	f(send(t, url+"/things", `{}`, "Idempotency-Key", strings.Repeat("k", 256)), 400, "bad-request", "255")
	f(send(t, url+"/things", `{"id":1}`, "Idempotency-Key", ""), 400, "bad-request", "Idempotency-Key is empty")
	f(send(t, url+"/things", `{"id":1}`, "Idempotency-Key", "\xff"), 400, "bad-request", "Idempotency-Key must be UTF-8")
	f(send(t, url+"/list", `{}`), 405, "GET, HEAD, OPTIONS")
	f(send(t, url+"/nothing", strings.Repeat(" ", 999)), 404, "not-found")
	if a := request(t, "OPTIONS", url+"/things", "Origin", "https://a.example"); a.status != 204 || a.header.Get("Allow") != "POST, OPTIONS" ||
		a.header.Get("Access-Control-Allow-Methods") != "POST, OPTIONS" || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
		t.Errorf("OPTIONS: %d %v", a.status, a.header)
	}
	f(send(t, url+"/things", `{"id":1}`, "Origin", "https://a.example"), 200, "stored")
	f(send(t, url+"/things", `{"id":1}`, "Origin", "http://localhost:3000"), 200, "stored")
	f(send(t, url+"/things", `{"id":1}`, "Origin", "https://b.example"), 403, "origin-not-allowed", "cors_origins")
	f(send(t, url+"/things", `{"id":1}`, "Origin", "null"), 403, "origin-not-allowed")
	if got := s.entry("/things").write.meter.statuses[2].codes[0].Load(); got != 6 {
		t.Errorf("%d answers with 200 are counted", got)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if n := unreadable.Load(); n != 3 { // one was too large to be read
		t.Errorf("%d bodies are counted as not readable", n)
	}
	if sink.rows != 6 {
		t.Errorf("%d records reached the sink", sink.rows)
	}
}

// A stream and a feed may share a path: records are posted to it, pages read from it.
func TestStreamBesideFeed(t *testing.T) {
	t.Parallel()
	route := openStream(t, &streamSink{})
	route.Paths = []string{"/list"}
	url, _ := start(t, &rows{n: 5}, func(c *Config) { c.Streams = []StreamRoute{route} })
	if a := send(t, url+"/list", `{"id":1}`); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if p := decode(t, request(t, "GET", url+"/list")); len(p.Data) != 5 {
		t.Errorf("%+v", p)
	}
	if a := request(t, "OPTIONS", url+"/list"); a.header.Get("Allow") != "GET, HEAD, POST, OPTIONS" {
		t.Errorf("%v", a.header)
	}
	if a := send(t, url+"/alias/list", `{"id":1}`); a.status != 405 {
		t.Errorf("the feed's alias: %d %s", a.status, a.body)
	}
}

func TestStreamKeys(t *testing.T) {
	t.Parallel()
	route := openStream(t, &streamSink{})
	url, _ := start(t, &rows{n: 5}, func(c *Config) { c.Streams = []StreamRoute{route}; c.Keys = []string{"first", "second"} })
	for _, c := range []struct {
		header string
		status int
	}{{"", 401}, {"first", 401}, {"Bearer", 401}, {"Bearer third", 401}, {"Bearer firs", 401}, {"Basic first", 401}, {"Bearer first", 200}, {"BEARER  second ", 200}} {
		a := send(t, url+"/things", `{"id":1}`, "Authorization", c.header)
		if a.status != c.status || a.status == 401 && a.header.Get("Www-Authenticate") == "" {
			t.Errorf("%q: %d %s", c.header, a.status, a.body)
		}
	}
	// The body of an unauthorized request is not read.
	if a := send(t, url+"/things", strings.Repeat(" ", 300)); a.status != 401 || !strings.Contains(a.body, "unauthorized") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := send(t, url+"/things", `{"id":1}`, "Authorization", "Bearer first", "Origin", "https://b.example"); a.status != 200 {
		t.Errorf("with a key from another origin: %d %s", a.status, a.body)
	}
	decode(t, request(t, "GET", url+"/list"))
}

func TestStreamErrors(t *testing.T) {
	t.Parallel()
	route := openStream(t, &streamSink{})
	var failure atomic.Pointer[error]
	route.Stream = storeFunc(func(context.Context, stream.Request) (stream.Receipt, error) {
		return stream.Receipt{}, *failure.Load()
	})
	url, _ := start(t, &rows{n: 5}, func(c *Config) { c.Streams = []StreamRoute{route} })
	for _, c := range []struct {
		err    error
		status int
		kind   string
		retry  string
		says   string
	}{
		{&queue.Overload{Limit: "wait_max", RetryAfter: 2300 * time.Millisecond}, 503, "busy", "3", "(wait_max): nothing was stored"},
		{fmt.Errorf("%w: x", stream.ErrUnavailable), 503, "database-down", "1", "nothing was stored"},
		{queue.ErrClosed, 503, "stopping", "1", "nothing was stored"},
		{fmt.Errorf("%w: x", queue.ErrUnknown), 504, "unknown-outcome", "", "with an Idempotency-Key a repeated request"},
		{queue.ErrKeyReused, 409, "key-reused", "", "use a new key"},
		{queue.ErrTooLarge, 413, "body-too-large", "", "queue_rows"},
		{errors.New("permission denied for table secrets"), 500, "not-stored", "", "nothing was stored"},
	} {
		failure.Store(&c.err)
		a := send(t, url+"/things", `{"id":1}`)
		if a.status != c.status || !strings.Contains(a.body, "problem:"+c.kind+`"`) || a.header.Get("Retry-After") != c.retry || !strings.Contains(a.body, c.says) || strings.Contains(a.body, "secrets") {
			t.Errorf("%v: %d %s, Retry-After %q", c.err, a.status, a.body, a.header.Get("Retry-After"))
		}
	}
	unknown := queue.ErrUnknown
	failure.Store(&unknown)
	if a := send(t, url+"/things", `{"id":1}`, "Idempotency-Key", "k"); !strings.Contains(a.body, "again with the same Idempotency-Key") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// The status is 202 if the records are not in the table yet.
func TestStreamPending(t *testing.T) {
	t.Parallel()
	route := openStream(t, &streamSink{})
	route.Stream = storeFunc(func(_ context.Context, r stream.Request) (stream.Receipt, error) {
		return stream.Receipt{Outcome: stream.Outcome{Stored: r.Records.Len(), Replayed: r.Key == "k"}, Ack: "memory", Pending: true}, nil
	})
	url, _ := start(t, &rows{n: 5}, func(c *Config) { c.Streams = []StreamRoute{route} })
	if a := send(t, url+"/things", `{"id":1}`, "Idempotency-Key", "k"); a.status != 202 || a.body != `{"stored":1,"ack":"memory","replayed":true}` {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestGunzip(t *testing.T) {
	t.Parallel()
	pack := func(n int) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(bytes.Repeat([]byte("a"), n)) // writes to memory and cannot fail
		_ = w.Close()
		return b.Bytes()
	}
	z := new(gunzip)
	for _, n := range []int{0, 1, 4095, 4096, 4097, 9999, 10_000} {
		if out, err := z.read(pack(n), 10_000); err != nil || len(out) != n {
			t.Errorf("%d bytes: %d, %v", n, len(out), err)
		}
	}
	if out, err := z.read(pack(50<<20), 10_000); err != nil || len(out) != 10_001 || cap(out) > 40_000 {
		t.Errorf("a bomb: %d bytes of %d, %v", len(out), cap(out), err)
	}
	two := append(pack(3), pack(4)...)
	if out, err := z.read(two, 10_000); err != nil || len(out) != 7 {
		t.Errorf("two members: %d bytes, %v", len(out), err)
	}
	for _, bad := range [][]byte{nil, []byte("{}"), pack(100)[:20], append(pack(3), 'x')} {
		if out, err := z.read(bad, 10_000); err == nil {
			t.Errorf("%q is read as %q", bad, out)
		}
	}
	if out, err := z.read(pack(5), 10_000); err != nil || len(out) != 5 {
		t.Errorf("after those: %d bytes, %v", len(out), err)
	}
}

// BenchmarkStreamHandler measures the handler with one position per request, as fasthttp
// calls it, without a database.
func BenchmarkStreamHandler(b *testing.B) {
	for _, c := range []struct{ name, body string }{
		{"one", `{"id":17,"speed":62.5,"name":"truck"}`},
		{"ten", "[" + strings.Repeat(`{"id":17,"speed":62.5,"name":"truck"},`, 9) + `{"id":17,"speed":62.5}]`},
	} {
		b.Run(c.name, func(b *testing.B) {
			route := openStream(b, &streamSink{})
			s := New(Config{Streams: []StreamRoute{route}, HTTP: config.HTTP{BodyBytes: 1000}, Log: slog.New(slog.DiscardHandler)})
			defer s.stop()
			b.ReportAllocs()
			b.SetParallelism(64)
			b.RunParallel(func(pb *testing.PB) {
				var ctx fasthttp.RequestCtx
				ctx.Init(&fasthttp.Request{}, nil, nil)
				ctx.Request.Header.SetMethod("POST")
				ctx.Request.SetRequestURI("/things")
				ctx.Request.Header.SetContentType("application/json")
				ctx.Request.SetBodyString(c.body)
				for pb.Next() {
					ctx.Response.Reset()
					s.serve(&ctx)
					if ctx.Response.StatusCode() != 200 {
						b.Errorf("%d %s", ctx.Response.StatusCode(), ctx.Response.Body())
						return
					}
				}
			})
		})
	}
}

// Clients with different write keys have idempotency keys of their own.
func TestStreamKeyScope(t *testing.T) {
	t.Parallel()
	route := openStream(t, &streamSink{})
	var mu sync.Mutex
	var keys []string
	route.Stream = storeFunc(func(_ context.Context, r stream.Request) (stream.Receipt, error) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Key)
		return stream.Receipt{Ack: "database"}, queue.CheckKey(r.Key)
	})
	url, _ := start(t, &rows{n: 5}, func(c *Config) {
		c.Streams = []StreamRoute{route}
		c.Keys = []string{"the-first-of-two-keys", "the-second-of-two-keys"}
	})
	long := strings.Repeat("k", queue.KeyMax)
	for _, bearer := range []string{"the-first-of-two-keys", "the-second-of-two-keys", "the-first-of-two-keys"} {
		for _, key := range []string{"a", long, long[1:] + "l"} {
			if a := send(t, url+"/things", `{"id":1}`, "Authorization", "bearer  "+bearer, "Idempotency-Key", key); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	different := map[string]bool{}
	for i, key := range keys {
		different[key] = true
		if key != keys[i%3] && i >= 6 {
			t.Errorf("request %d has the key %s, then %s", i%3, keys[i%3], key)
		}
	}
	if len(different) != 6 || !strings.HasSuffix(keys[0], ":a") {
		t.Errorf("keys %q", keys)
	}
}
