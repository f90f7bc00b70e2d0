package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's goroutine for the Date header runs until the process ends.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// rows is a feed of the numbers n, n-1, … 1.
type rows struct {
	mu   sync.Mutex
	n    int
	pad  string // more of each row, from a comma on
	down error
}

func numberKey(i int) feed.Key {
	return feed.Key(feed.AppendKey(nil, feed.KeyInteger, strconv.AppendInt(nil, int64(i), 10)))
}

// span returns the numbers that r selects, from first down to after last.
func (s *rows) span(r feed.Range) (first, last int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = s.n
	if r.After != "" {
		first = number(r.After) - 1
	}
	first -= r.Skip
	last = max(0, first-r.Limit)
	if r.Until != "" {
		last = max(last, number(r.Until)-1)
	}
	return first, last, s.down
}

func number(k feed.Key) int {
	v, err := k.Values(1)
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(v[0].Text)
	if err != nil {
		panic(err)
	}
	return n
}

func (s *rows) Read(_ context.Context, r feed.Range, to *feed.Rows) error {
	first, last, err := s.span(r)
	for i := first; err == nil && i > last; i-- {
		to.Begin()
		to.Data = fmt.Appendf(to.Data, `{"id":%d%s}`, i, s.pad)
		to.End(numberKey(i))
	}
	return err
}

func (s *rows) Keys(_ context.Context, r feed.Range, every int) (feed.Walk, error) {
	first, last, err := s.span(r)
	var w feed.Walk
	for i := first; err == nil && i > last; i-- {
		w.Count++
		if w.Last = numberKey(i); w.Count%every == 0 {
			w.Keys = append(w.Keys, w.Last)
		}
	}
	return w, err
}

func (s *rows) Check(context.Context, int) error { return nil }

func (s *rows) Columns() []feed.Column { return nil }

// listConfig returns the configuration of the feed of start. Its window is read once.
func listConfig() feed.Config {
	return feed.Config{
		Definition: feed.Definition{Name: "/list", Key: []feed.KeyColumn{{Name: "id"}}},
		Window:     200, Refresh: time.Hour, IdleAfter: 2 * time.Hour, StaleMax: 2 * time.Hour, Timeout: time.Hour,
		Limit: 10, LimitMax: 100, OffsetMax: 1_000_000, WaitersMax: 100, WindowsMax: 10, SweepShare: 0.1, SweepBytes: 1 << 20,
		Gate: queue.NewGate(4).Entrance(), Log: slog.New(slog.DiscardHandler),
	}
}

// start serves n rows at /list and returns the base URL and the server.
func start(t *testing.T, source *rows, change func(*Config)) (string, *Server) {
	t.Helper()
	return startShaped(t, source, feed.EnvelopeData, change)
}

// startShaped is start with an envelope of the answers.
func startShaped(t *testing.T, source *rows, envelope feed.Envelope, change func(*Config)) (string, *Server) {
	t.Helper()
	list := listConfig()
	list.Envelope = envelope
	return startList(t, source, list, change)
}

// startRefreshing is start with a window that is read again and again.
func startRefreshing(t *testing.T, source *rows, change func(*Config)) (string, *Server) {
	t.Helper()
	list := listConfig()
	list.Refresh = 20 * time.Millisecond
	return startList(t, source, list, change)
}

func startList(t *testing.T, source *rows, list feed.Config, change func(*Config)) (string, *Server) {
	t.Helper()
	f := feed.Open(list, source)
	t.Cleanup(f.Close)
	cfg := Config{
		Feeds:  []FeedRoute{{Paths: []string{"/list", "/alias/list"}, Feed: f, Columns: feed.Columns{"id"}}},
		Probes: &Probes{Database: func(context.Context) error { return nil }},
		HTTP: config.HTTP{
			Connections: 1000, HeaderBytes: 8192, BodyBytes: 1000, BodiesBytes: 1 << 20, CompressBytes: 1 << 20,
			ReadTimeout: time.Hour, WriteTimeout: time.Hour, IdleTimeout: time.Hour, DrainTimeout: time.Minute,
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, ln, func() {
			if !s.Serving() {
				t.Error("the server is told to serve before it does")
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		http.DefaultClient.CloseIdleConnections()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return "http://" + ln.Addr().String(), s
}

type answer struct {
	status int
	header http.Header
	body   string
}

func request(t *testing.T, method, url string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

type page struct {
	Data []struct{ ID int }
	Next string
}

func decode(t *testing.T, a answer) page {
	t.Helper()
	var p page
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 200 || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %q: %v", a.status, a.body, err)
	}
	return p
}

func TestPages(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 5000}, nil)
	for _, c := range []struct {
		query         string
		first, count  int
		source, exact string
	}{
		{"", 5000, 10, "window", ""},
		{"?offset=", 5000, 10, "window", ""},
		{"?offset=190&limit=10", 4810, 10, "window", ""},
		{"?offset=195&limit=10", 4805, 10, "database", "exact"},
		{"?offset=3000&limit=3", 2000, 3, "database", "counted; age="},
		{"?offset=4998", 2, 2, "database", "counted; age="},
	} {
		for _, path := range []string{"/list", "/alias/list"} {
			a := request(t, "GET", url+path+c.query)
			p := decode(t, a)
			if len(p.Data) != c.count || p.Data[0].ID != c.first {
				t.Errorf("%s%s: %+v", path, c.query, p)
			}
			if a.header.Get("Spillway-Source") != c.source || !strings.HasPrefix(a.header.Get("Spillway-Offset"), c.exact) {
				t.Errorf("%s%s: headers %v", path, c.query, a.header)
			}
		}
	}
	if a := request(t, "GET", url+"/list?offset=5000"); a.body != `{"data":[]}` || a.status != 200 {
		t.Errorf("behind the end: %d %s", a.status, a.body)
	}
	want := `{"data":[{"id":5000},{"id":4999}],"next":"`
	if a := request(t, "GET", url+"/list?limit=2"); !strings.HasPrefix(a.body, want) {
		t.Errorf("shape: %s", a.body)
	}
}

func TestWalkByCursor(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 450}, nil)
	want, query := 450, "?limit=100"
	for query != "" {
		p := decode(t, request(t, "GET", url+"/list"+query))
		for _, r := range p.Data {
			if r.ID != want {
				t.Fatalf("row %d, want %d", r.ID, want)
			}
			want--
		}
		if query = ""; p.Next != "" {
			query = "?limit=100&before=" + p.Next
		}
	}
	if want != 0 {
		t.Errorf("the walk ended before row %d", want)
	}
}

func TestEntityTag(t *testing.T) {
	t.Parallel()
	source := &rows{n: 5000}
	url, s := startRefreshing(t, source, nil)
	first := request(t, "GET", url+"/list")
	tag := first.header.Get("ETag")
	if a := request(t, "GET", url+"/list", "If-None-Match", `W/"x", `+tag); a.status != 304 || a.body != "" || a.header.Get("ETag") != tag {
		t.Errorf("unchanged: %d %q", a.status, a.body)
	}
	source.mu.Lock()
	source.n++
	source.mu.Unlock()
	apptest.Await(t, "the page of the new rows is served", func() bool {
		a := request(t, "GET", url+"/list", "If-None-Match", tag)
		return a.status == 200 && a.header.Get("ETag") != tag
	})
	if a := request(t, "GET", url+"/list?offset=7"); a.header.Get("ETag") == tag {
		t.Error("another page has the first page's tag")
	}
	if n := s.cfg.Feeds[0].Feed.Stats().NotModified; n < 1 {
		t.Errorf("%d answers of 304 counted", n)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 5000}, nil)
	for path, want := range map[string]int{
		"/list?offset=-1":                           400,
		"/list?offset=abc":                          400,
		"/list?offset=1e9":                          400,
		"/list?offset=99999999999999999999":         400,
		"/list?offset=1000001":                      400,
		"/list?offset=0%3Bdrop%20table%20users":     400,
		"/list?offset=%00":                          400,
		"/list?offset=+1":                           400,
		"/list?limit=101":                           400,
		"/list?limit=0":                             400,
		"/list?limit=-5":                            400,
		"/list?before=abc":                          400,
		"/list?before=%00":                          400,
		"/list?before=" + strings.Repeat("A", 3000): 400,
		"/list?offset=1&before=abc":                 400,
		"/nothing":                                  404,
		"/list/":                                    404,
		"/list%00":                                  404,
		"/../etc/passwd":                            404,
		"/probe/redis?key=a":                        503,
	} {
		a := request(t, "GET", url+path)
		var p struct {
			Type, Title, Detail, Instance string
			Status                        int
		}
		if err := json.Unmarshal([]byte(a.body), &p); err != nil {
			t.Errorf("%s: %d %q: %v", path, a.status, a.body, err)
			continue
		}
		if a.status != want || p.Status != want || a.header.Get("Content-Type") != "application/problem+json" || p.Detail == "" ||
			!strings.HasPrefix(p.Type, "urn:spillway:problem:") || p.Instance != "urn:spillway:request:"+a.header.Get("X-Request-Id") {
			t.Errorf("%s: %d %q, want %d", path, a.status, a.body, want)
		}
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 5000}, func(c *Config) { c.CORSOrigins = []string{"https://app.example"} })
	if a := request(t, "POST", url+"/list"); a.status != 405 || a.header.Get("Allow") != "GET, HEAD, OPTIONS" {
		t.Errorf("POST: %d, Allow %q", a.status, a.header.Get("Allow"))
	}
	if a := request(t, "HEAD", url+"/list"); a.status != 200 || a.body != "" || a.header.Get("ETag") == "" {
		t.Errorf("HEAD: %d %q %v", a.status, a.body, a.header)
	}
	a := request(t, "OPTIONS", url+"/list", "Origin", "https://app.example")
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "https://app.example" || a.header.Get("Vary") != "Accept-Encoding, Accept, Origin" {
		t.Errorf("preflight: %d %v", a.status, a.header)
	}
	if a := request(t, "GET", url+"/list", "Origin", "https://evil.example"); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a foreign origin is allowed: %v", a.header)
	}
	if a := request(t, "GET", url+"/hello", "X-Request-Id", "trace-1"); a.header.Get("X-Request-Id") != "trace-1" || a.body != "hello world!!" {
		t.Errorf("hello: %q %v", a.body, a.header)
	}
	if a := request(t, "GET", url+"/nothing", "X-Request-Id", `"><script>`); strings.Contains(a.body, "script") {
		t.Errorf("an unsafe request id came back: %s", a.body)
	}
}

// raw sends text over a new connection and returns the response.
func raw(t *testing.T, url, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	go io.WriteString(c, text) // the server may have closed the connection
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	return resp.Status
}

func TestBadHTTP(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 5000}, nil)
	for name, c := range map[string]struct{ text, want string }{
		"huge header": {"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "431"},
		"no host":     {"GET /list HTTP/1.0\r\n\r\n", "200"},
		"no HTTP":     {"\x16\x03\x01 this is not HTTP\r\n\r\n", "400"},
		"huge body":   {"POST /list HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n", "413"},
	} {
		if got := raw(t, url, c.text); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	hasty, _ := start(t, &rows{n: 5000}, func(c *Config) { c.ReadTimeout = 50 * time.Millisecond })
	if got := raw(t, hasty, "GET /list HTTP/1.1\r\nHost:"); !strings.HasPrefix(got, "408") {
		t.Errorf("slow client: %s, want 408", got)
	}
	if a := request(t, "GET", url+"/list"); a.status != 200 {
		t.Errorf("afterwards: %d", a.status)
	}
}

func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, -1} {
		url, s := start(t, &rows{n: 10}, func(c *Config) { c.Connections, c.Loops = 2, loops })
		for range 2 {
			c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "G"); err != nil { // the kernel holds back connections that send nothing
				t.Fatal(err)
			}
		}
		apptest.Await(t, "both connections are open", func() bool { return s.Serving() && s.listener.Load().open.Load() == 2 })
		if got := raw(t, url, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(got, "503") {
			t.Errorf("loops %d: a third connection gets %q, want 503", loops, got)
		}
		if n := s.listener.Load().refused.Load(); n != 1 {
			t.Errorf("loops %d: %d refused, want 1", loops, n)
		}
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	url, _ := startRefreshing(t, &rows{down: io.ErrUnexpectedEOF}, func(c *Config) {
		c.Probes.Database = func(context.Context) error { return io.ErrUnexpectedEOF }
		c.Probes.Redis = func(context.Context, string) ([]byte, bool, error) { return nil, false, io.ErrUnexpectedEOF }
	})
	for path, code := range map[string]string{"/list": "stale", "/probe/database": "database-down", "/probe/redis?key=a": "redis-down"} {
		a := request(t, "GET", url+path)
		if a.status != 503 || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, "urn:spillway:problem:"+code) || strings.Contains(a.body, "EOF") {
			t.Errorf("%s: %d %v %s", path, a.status, a.header, a.body)
		}
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 10}, func(c *Config) {
		c.Probes.Redis = func(_ context.Context, key string) ([]byte, bool, error) {
			return []byte("value of " + key), key == "spillway:probe:a", nil
		}
	})
	if a := request(t, "GET", url+"/probe/redis?key=a"); a.status != 200 || a.body != "value of spillway:probe:a" {
		t.Errorf("redis: %d %q", a.status, a.body)
	}
	if a := request(t, "GET", url+"/probe/redis?key=b"); a.status != 204 {
		t.Errorf("missing key: %d", a.status)
	}
	if a := request(t, "GET", url+"/probe/redis"); a.status != 400 {
		t.Errorf("no key: %d", a.status)
	}
	if a := request(t, "GET", url+"/probe/database"); a.status != 200 {
		t.Errorf("database: %d %q", a.status, a.body)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	url, s := start(t, &rows{n: 10}, nil)
	for range 3 {
		request(t, "GET", url+"/alias/list")
	}
	request(t, "GET", url+"/list?offset=x")
	request(t, "GET", url+"/nothing")
	request(t, "OPTIONS", url+"/list")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	want := `# HELP spillway_http_requests_total Responses by route and status.
# TYPE spillway_http_requests_total counter
spillway_http_requests_total{code="200",route="/list"} 3
spillway_http_requests_total{code="204",route="OPTIONS"} 1
spillway_http_requests_total{code="400",route="/list"} 1
spillway_http_requests_total{code="404",route="unknown"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "spillway_http_requests_total"); err != nil {
		t.Error(err)
	}
	var m meter
	for _, d := range []time.Duration{0, 50 * time.Microsecond, 51 * time.Microsecond, time.Second, time.Hour} {
		m.observe(200, d)
	}
	if m.buckets[0].Load() != 2 || m.buckets[1].Load() != 1 || m.buckets[13].Load() != 1 || m.buckets[durationBuckets].Load() != 1 {
		t.Error("durations are in the wrong buckets")
	}
}

// orderPad makes a row as large as one of the freight app.
const orderPad = `,"createtime":"2016-11-30 23:51:36","name":"Ann","from":"Chengdu","to":"Chongqing","goods":"steel","tons":12.5,"phone":"13800138000"`

// BenchmarkServe measures only the handler, as fasthttp calls it. The kernel adds several
// microseconds per request.
func BenchmarkServe(b *testing.B) {
	f := feed.Open(feed.Config{
		Definition: feed.Definition{Name: "/list", Key: []feed.KeyColumn{{Name: "id"}}},
		Window:     200, Refresh: time.Hour, IdleAfter: 2 * time.Hour, StaleMax: time.Hour, Timeout: time.Second,
		Limit: 10, LimitMax: 100, OffsetMax: 1000, WaitersMax: 100, WindowsMax: 10, SweepShare: 0.1, SweepBytes: 1 << 20,
		Gate: queue.NewGate(4).Entrance(), Log: slog.New(slog.DiscardHandler),
	}, &rows{n: 5000, pad: orderPad})
	defer f.Close()
	s := New(Config{
		Feeds: []FeedRoute{{Paths: []string{"/list"}, Feed: f}}, Probes: &Probes{},
		HTTP: config.HTTP{Connections: 1, CompressBytes: 1 << 20},
		Log:  slog.New(slog.DiscardHandler),
	})
	for _, c := range []struct{ path, accept string }{
		{"/list", ""},
		{"/list", "gzip, deflate, br, zstd"},
		{"/list", "gzip;q=0.8, zstd;q=0.9, *;q=0"},
		{"/hello", ""},
	} {
		b.Run("path="+c.path+"/accept="+strings.ReplaceAll(c.accept, " ", ""), func(b *testing.B) {
			var ctx fasthttp.RequestCtx
			ctx.Init(&fasthttp.Request{}, nil, nil)
			ctx.Request.SetRequestURI(c.path)
			ctx.Request.Header.Set("Host", "127.0.0.1:8080")
			if c.accept != "" {
				ctx.Request.Header.Set("Accept-Encoding", c.accept)
			}
			b.ReportAllocs()
			for b.Loop() {
				ctx.Response.Reset()
				s.serve(&ctx)
			}
			if coded := len(ctx.Response.Header.ContentEncoding()) > 0; coded != (c.accept != "") {
				b.Fatal("compressed:", coded)
			}
			if ctx.Response.StatusCode() != fasthttp.StatusOK {
				b.Fatal(ctx.Response.StatusCode())
			}
		})
	}
}

// TestSharedDeadline: the context of each call ends at the timeout or at most a sixteenth of
// it later.
func TestSharedDeadline(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(16, int64(time.Hour)).Draw(t, "timeout"))
		s := newSharedDeadline(context.Background(), timeout)
		start := time.Now()
		now := start
		made := make(map[context.Context]bool)
		steps := rapid.SliceOfN(rapid.Int64Range(0, int64(timeout)/20), 1, 50).Draw(t, "steps")
		for _, step := range steps {
			now = now.Add(time.Duration(step))
			ctx := s.Context(now)
			end, ok := ctx.Deadline()
			if left := end.Sub(now); !ok || left < timeout || left > timeout+timeout/16 {
				t.Fatalf("a call of %v has %v", timeout, left)
			}
			made[ctx] = true
		}
		if now.Sub(start) < timeout/16 && len(made) > 1 {
			t.Fatalf("%d contexts within a sixteenth of the timeout", len(made))
		}
	})
}

func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, cancel := context.WithCancel(t.Context())
		s := newSharedDeadline(base, 16*time.Second)
		first := s.Context(time.Now())
		<-first.Done()
		if first.Err() != context.DeadlineExceeded || s.Context(time.Now()) == first {
			t.Errorf("after its time: %v", first.Err())
		}
		second := s.Context(time.Now())
		cancel()
		if second.Err() != context.Canceled {
			t.Errorf("after its base: %v", second.Err())
		}
	})
}

func BenchmarkContext(b *testing.B) {
	s := newSharedDeadline(b.Context(), time.Second)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Context(time.Now())
		}
	})
}
