package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
	"spillway/internal/serve/token"
)

// bothLanes answers requests as an event loop does, or else as the regular server does.
type bothLanes struct {
	answerer *answerer
	server   *Server
	peer     netip.AddrPort
}

// newLanes returns the lanes of a server that is not running.
func newLanes(t *testing.T, cfg Config) *bothLanes {
	t.Helper()
	s := New(cfg)
	t.Cleanup(s.stop)
	return &bothLanes{newAnswerer(s.live, cfg.HeaderBytes, nil), s, netip.MustParseAddrPort("127.0.0.1:4711")}
}

// quick answers a request in the event loop, if it can.
func (l *bothLanes) quick(t *testing.T, target string, lines ...string) (response answer, ok bool) {
	t.Helper()
	text := "GET " + target + " HTTP/1.1\r\nHost: a.example\r\n" + strings.Join(append(lines, ""), "\r\n") + "\r\n"
	if _, _, plain := front.Plain([]byte(text)); !plain {
		t.Fatalf("%q is not plain", text)
	}
	raw, keep, ok, _ := l.answerer.Answer([]byte("before"), []byte(text), 0, l.peer)
	if !ok {
		if string(raw) != "before" {
			t.Errorf("%s: %q is left of a response", target, raw)
		}
		return answer{}, false
	}
	return parse(t, bytes.TrimPrefix(raw, []byte("before")), keep), true
}

func parse(t *testing.T, raw []byte, keep bool) answer {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Close == keep {
		t.Fatalf("%q: closes %v, keeps %v, %v", raw, resp.Close, keep, err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// regular answers a request in the regular server.
func (l *bothLanes) regular(t *testing.T, target string, lines ...string) answer {
	t.Helper()
	var ctx fasthttp.RequestCtx
	text := "GET " + target + " HTTP/1.1\r\nHost: a.example\r\n" + strings.Join(append(lines, ""), "\r\n") + "\r\n"
	ctx.Init2(&loopConn{peer: l.peer}, discardLogger{}, false)
	if err := ctx.Request.Header.Read(bufio.NewReader(strings.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	ctx.Response.Header.SetNoDefaultContentType(true)
	l.server.serve(&ctx)
	var raw bytes.Buffer
	w := bufio.NewWriter(&raw)
	if err := ctx.Response.Write(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return parse(t, raw.Bytes(), true)
}

// quickConfig is the configuration of a server with one of each part, of which each has an answer without waiting.
func quickConfig(t *testing.T, change func(*Config)) Config {
	t.Helper()
	list := listConfig()
	list.Envelope = feed.EnvelopeNone
	f := feed.Open(list, &rows{n: 500, pad: orderPad})
	t.Cleanup(f.Close)
	if err := f.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	cached, none := openQuery(t, &answers{rows: 40}, nil), openQuery(t, &answers{}, nil)
	for _, q := range []*query.Query{cached, none} {
		if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); err != nil {
			t.Fatal(err)
		}
	}
	campaign := popupCampaign(1)
	campaign.Target = "age > 99"
	route := popupRouteOf(t, popup.Config{Store: popup.NewMemory(10, nil)}, campaign)
	cfg := probing(nil)
	cfg.CompressBytes, cfg.HeaderBytes, cfg.Popup = 1<<20, 8192, &route
	cfg.Files = []File{{Path: "/openapi.json", Type: "application/json", Read: func() []byte { return []byte(`{"openapi":"3.1.0"}`) }}}
	cfg.Feeds = []FeedRoute{{Paths: []string{"/list", "/alias"}, Feed: f, Columns: feed.Columns{"id", "name"}}}
	cfg.Queries = []QueryRoute{
		{Paths: []string{"/q"}, Query: cached, Columns: feed.Columns{"id", "of"}, Caching: SharedCaching{MaxAge: time.Minute}},
		{Paths: []string{"/none"}, Query: none, Envelope: feed.EnvelopeOne},
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// quickTargets are answered without waiting.
var quickTargets = []string{
	"/hello", "/openapi.json", "/list", "/list?limit=3", "/list?offset=7&fields=id", "/alias?limit=100", "/q?a=1", "/q?a=1&fields=id", "/none?a=1",
	"/popup?user=1", "/popup?user=1&country=CN&placement=home",
}

// TestQuickHeaders: a response of an event loop has the headers and the body of the regular one.
func TestQuickHeaders(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"plain":        nil,
		"any origin":   func(c *Config) { c.CORSOrigins = []string{"*"} },
		"some origins": func(c *Config) { c.CORSOrigins = []string{"https://a.example", "https://b.example"} },
		"hosts":        func(c *Config) { c.Hosts = []string{"a.example"} },
		"rate":         func(c *Config) { c.RatePerMinute, c.RateBurst, c.RateClients = 60_000, 10_000, 100 },
		"not coded":    func(c *Config) { c.CompressBytes = 0 },
	} {
		l := newLanes(t, quickConfig(t, change))
		for _, target := range quickTargets {
			first := l.regular(t, target)
			for _, lines := range [][]string{
				nil,
				{"Origin: https://b.example"},
				{"Origin: https://c.example", "X-Request-Id: abc"},
				{"Accept-Encoding: gzip, deflate, br, zstd"},
				{"Accept-Encoding: gzip", "Accept: text/html", "Cookie: session=1", "Authorization: Bearer key"},
				{"If-None-Match: " + first.header.Get("ETag")},
				{"X-Request-Id: not valid", "X-Forwarded-For: 192.0.2.1"},
			} {
				want := l.regular(t, target, lines...)
				got, ok := l.quick(t, target, lines...)
				for ok { // until no second of an Age has begun in between
					after := l.regular(t, target, lines...)
					if after.header.Get("Age") == want.header.Get("Age") {
						break
					}
					want = after
					got, ok = l.quick(t, target, lines...)
				}
				if !ok {
					t.Errorf("%s: %s %v is left to the regular server", name, target, lines)
					continue
				}
				if got.status == http.StatusNotFound { // each problem has an id of its own
					got.body, want.body = problemCode(got.body), problemCode(want.body)
					if !slices.Contains(lines, "X-Request-Id: abc") {
						got.header.Del("X-Request-Id")
						want.header.Del("X-Request-Id")
					}
				}
				got.header.Del("Date")
				want.header.Del("Date")
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %s %v\n%v\nwant\n%v", name, target, lines, got, want)
				}
			}
		}
	}
}

// TestQuickProof: an event loop answers what requires a key, a token or a cookie only to requests that have it.
func TestQuickProof(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef0123456789abcdef")
	key, err := token.NewKey("", token.HS256, secret)
	if err != nil {
		t.Fatal(err)
	}
	verifier := token.NewVerifier(token.Config{Keys: []token.Key{key}})
	jwt := signedHS256(secret, fmt.Sprintf(`{"sub":"1","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	identity := &Identity{Header: "Authorization", Claim: "sub"}
	for _, perMinute := range []int{0, 1} {
		for _, access := range []Access{Key, Token, Any} {
			l := newLanes(t, quickConfig(t, func(c *Config) {
				c.Tokens, c.ReadKeys, c.Cookie = verifier, []string{"key"}, "session"
				c.RatePerMinute, c.RateBurst, c.RateClients = perMinute, 1, 10
				c.Feeds[0].Access, c.Queries[0].Access, c.Queries[1].Access, c.Popup.Identity = access, access, access, identity
				claimed := listConfig()
				claimed.Params = []param.Param{{Name: "claim.sub", Type: param.Text}}
				f := feed.Open(claimed, &rows{n: 9})
				t.Cleanup(f.Close)
				c.Feeds = append(c.Feeds, FeedRoute{Paths: []string{"/own"}, Feed: f, Access: Token})
				c.Down = []DownRoute{{Reads: []string{"/down"}, Access: access, Retry: func() time.Duration { return time.Second }}}
			}))
			for _, target := range append([]string{"/own", "/down", "/nothing", "/popup/click"}, quickTargets[2:]...) {
				for _, lines := range [][]string{nil, {"Authorization: Bearer key"}, {"Authorization: Bearer " + jwt}, {"Cookie: session=key"}} {
					a, ok := l.quick(t, target, lines...)
					if ok && a.status < 400 && (len(lines) == 0 || lines[0] == "Authorization: Bearer "+jwt && access == Key ||
						lines[0] != "Authorization: Bearer "+jwt && (access == Token || target == "/own")) {
						t.Errorf("%d: %s %v: %v", access, target, lines, a)
					}
					if !ok || perMinute > 0 {
						continue
					}
					if b := l.regular(t, target, lines...); a.status != b.status || a.status < 400 && a.body != b.body {
						t.Errorf("%d: %s %v: %v, regularly %v", access, target, lines, a, b)
					}
				}
			}
			if a := l.regular(t, "/popup?user=1", "Authorization: Bearer "+jwt); perMinute == 0 && a.status != http.StatusNoContent {
				t.Errorf("the JWT proves nothing: %v", a)
			}
		}
	}
}

// TestQuickCountsOnce: a request is counted once, whether it is answered in an event loop or handed over.
func TestQuickCountsOnce(t *testing.T) {
	t.Parallel()
	large := openQuery(t, &answers{rows: 800}, func(c *query.Config) { c.Limit.Bytes, c.CacheBytes = 1<<20, 4<<20 })
	l := newLanes(t, quickConfig(t, func(c *Config) {
		c.Queries = append(c.Queries, QueryRoute{Paths: []string{"/large"}, Query: large})
	}))
	if a, _, err := large.Ask(t.Context(), time.Now(), []string{"1"}); err != nil || len(a.Data) <= quickBytes {
		t.Fatal(len(a.Data), err)
	}
	f, q, p := l.server.cfg.Feeds[0].Feed, l.server.cfg.Queries[0].Query, l.server.cfg.Popup.Popup
	counts := func() [5]uint64 {
		return [5]uint64{f.Stats().WindowPages, f.Stats().DatabasePages, q.Stats().Hits, large.Stats().Hits, p.Stats().Nones}
	}
	for _, c := range []struct {
		target string
		quick  bool
		counts [5]uint64
	}{
		{"/list", true, [5]uint64{1, 0, 0, 0, 0}},
		{"/list?offset=190&limit=20", false, [5]uint64{0, 1, 0, 0, 0}},
		{"/list?offset=x", false, [5]uint64{}},
		{"/list?fields=nothing", false, [5]uint64{}},
		{"/q?a=1", true, [5]uint64{0, 0, 1, 0, 0}},
		{"/q?a=1&fields=nothing", false, [5]uint64{}},
		{"/large?a=1", false, [5]uint64{0, 0, 0, 1, 0}},
		{"/popup?user=1", true, [5]uint64{0, 0, 0, 0, 1}},
		{"/popup?user=1&age=100", false, [5]uint64{}},
		{"/popup", false, [5]uint64{}},
	} {
		before := counts()
		_, ok := l.quick(t, c.target)
		if !ok {
			if got := counts(); got != before {
				t.Errorf("%s is counted before it is answered: %v after %v", c.target, got, before)
			}
			l.regular(t, c.target)
		}
		for i := range before {
			before[i] += c.counts[i]
		}
		if got := counts(); ok != c.quick || got != before {
			t.Errorf("%s: %v, %v, want %v", c.target, ok, got, before)
		}
	}
}

// TestQuickRefused: a client beyond its rate gets the regular refusal, and no engine learns of the request.
func TestQuickRefused(t *testing.T) {
	t.Parallel()
	l := newLanes(t, quickConfig(t, func(c *Config) {
		c.RatePerMinute, c.RateBurst, c.RateClients, c.CORSOrigins = 1, len(quickTargets), 100, []string{"*"}
	}))
	l.server.rate.neverRefill()
	for _, target := range quickTargets {
		for _, wrong := range []string{"/list?offset=x", "/popup", "/q?a=2"} { // they are handed over
			if a, ok := l.quick(t, wrong); ok {
				t.Errorf("%s: %v", wrong, a)
			}
		}
		if a, ok := l.quick(t, target); !ok || a.status == http.StatusTooManyRequests {
			t.Errorf("%s: %v, %v", target, ok, a)
		}
	}
	f, q, p := l.server.cfg.Feeds[0].Feed, l.server.cfg.Queries[0].Query, l.server.cfg.Popup.Popup
	pages, answers, nones := f.Stats().WindowPages, q.Stats(), p.Stats()
	for _, target := range append([]string{"/list?offset=x", "/popup"}, quickTargets...) {
		got, ok := l.quick(t, target)
		want := l.regular(t, target)
		for _, a := range []answer{got, want} {
			for _, name := range []string{"Date", "X-Request-Id", "Content-Length", "Retry-After"} {
				if a.header.Get(name) == "" && name != "Date" {
					t.Errorf("%s: no %s in %v", target, name, a.header)
				}
				a.header.Del(name)
			}
		}
		if !ok || got.status != http.StatusTooManyRequests || want.status != got.status || problemCode(got.body) != "rate-limited" || fmt.Sprint(got.header) != fmt.Sprint(want.header) {
			t.Errorf("%s: %v, %v, want %v", target, ok, got, want)
		}
	}
	if f.Stats().WindowPages != pages || q.Stats() != answers || p.Stats() != nones {
		t.Errorf("refused requests are counted: %+v %+v %+v", f.Stats(), q.Stats(), p.Stats())
	}
	l.peer = netip.MustParseAddrPort("127.0.0.2:4711")
	if a, ok := l.quick(t, "/list"); !ok || a.status != http.StatusOK {
		t.Errorf("another client: %v %v", ok, a)
	}
}

// TestRateOfBothLanes: each client gets its burst, however its requests are answered and whatever connections they use.
func TestRateOfBothLanes(t *testing.T) {
	t.Parallel()
	const burst, clients = 40, 3
	for _, trusted := range []bool{true, false} {
		url, _ := start(t, &rows{n: 5000}, func(c *Config) {
			c.RatePerMinute, c.RateBurst, c.RateClients = 1, burst, 10*rateShards
			if trusted {
				c.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			}
		})
		began := time.Now()
		var passed [clients]atomic.Int64
		var group sync.WaitGroup
		for i := range clients {
			for worker := range 4 {
				group.Go(func() {
					if err := hurry(url, fmt.Sprintf("192.0.2.%d", i), worker, burst, &passed[i]); err != nil {
						t.Error(err)
					}
				})
			}
		}
		group.Wait()
		refill := int64(time.Since(began) / time.Minute)
		sum := int64(0)
		for i := range clients {
			n := passed[i].Load()
			sum += n
			if trusted && (n < burst || n > burst+refill) {
				t.Errorf("client %d: %d requests passed, want %d", i, n, burst)
			}
		}
		if !trusted && (sum < burst || sum > burst+refill) {
			t.Errorf("%d requests of one address passed, want %d", sum, burst)
		}
	}
}

// hurry sends requests for a client, on open connections and on short ones, of which some are handed over, and counts those that
// pass.
func hurry(url, client string, worker, n int, passed *atomic.Int64) error {
	transport := &http.Transport{DisableKeepAlives: worker%2 == 0}
	defer transport.CloseIdleConnections()
	targets := []string{"/list", "/list?offset=150&limit=100", "/hello", "/list?offset=x"}
	for i := range n {
		req, err := http.NewRequest(http.MethodGet, url+targets[(i+worker)%len(targets)], http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("X-Forwarded-For", "198.51.100.9, "+client)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests {
			passed.Add(1)
		}
	}
	return nil
}

// versioned is a server's feed and query with a version in each row.
type versioned struct {
	feed  *feed.Feed
	query *query.Query
}

func newVersioned(t *testing.T, n int) versioned {
	t.Helper()
	v := versioned{
		feed:  feed.Open(listConfig(), &rows{n: 50, pad: fmt.Sprintf(`,"version":%d`, n)}),
		query: openQuery(t, &answers{rows: 1}, func(c *query.Config) { c.TTL, c.Stale = time.Millisecond, time.Hour }),
	}
	t.Cleanup(v.feed.Close)
	if err := v.feed.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v versioned) config() Config {
	cfg := probing(func(context.Context) error { return nil })
	cfg.Feeds = []FeedRoute{{Paths: []string{"/list"}, Feed: v.feed}}
	cfg.Queries = []QueryRoute{{Paths: []string{"/q"}, Query: v.query}}
	return cfg
}

// TestSwitchEngines replaces and closes the engines while event loops answer from them. No request is lost or refused, and none
// gets an answer of engines that were replaced before it began.
func TestSwitchEngines(t *testing.T) {
	t.Parallel()
	engines := newVersioned(t, 0)
	s := New(engines.config())
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(running, ln, func() {}) }()
	asking, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var answered, version atomic.Int64
	for i := range 6 {
		clients.Go(func() {
			if err := follow(asking, ln.Addr().String(), i, &answered, &version); err != nil {
				t.Error(err)
			}
		})
	}
	for n := 1; n <= 12; n++ {
		before := answered.Load()
		apptest.Await(t, "60 more requests are answered", func() bool { return answered.Load() > before+60 || t.Failed() })
		fresh := newVersioned(t, n)
		next := s.Next(fresh.config())
		s.Switch(next)
		version.Store(int64(n))
		if !s.AwaitRetired(t.Context()) {
			t.Fatal("the requests do not end")
		}
		engines.feed.Close()
		engines.query.Close()
		engines = fresh
	}
	stop()
	clients.Wait()
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// follow sends requests until ctx ends, on one connection or on short ones.
func follow(ctx context.Context, address string, client int, answered, version *atomic.Int64) error {
	var c net.Conn
	var r *bufio.Reader
	defer func() {
		if c != nil {
			_ = c.Close()
		}
	}()
	for n := 0; ctx.Err() == nil; n++ {
		if c == nil {
			var err error
			if c, err = net.Dial("tcp", address); err != nil {
				return err
			}
			r = bufio.NewReader(c)
		}
		target, connection := []string{"/list", "/q?a=1", "/list?limit=3"}[n%3], "keep-alive"
		if client%2 == 1 {
			connection = "close"
		}
		least := version.Load()
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: %s\r\n\r\n", target, connection); err != nil {
			return err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || resp.Close != (connection == "close") {
			return fmt.Errorf("%s: %d %s, %v", target, resp.StatusCode, body, err)
		}
		var got int64
		if _, after, ok := strings.Cut(string(body), `"version":`); ok {
			if _, err := fmt.Sscanf(after, "%d", &got); err != nil {
				return err
			}
		}
		if strings.HasPrefix(target, "/list") && got < least {
			return fmt.Errorf("%s has version %d after %d: %s", target, got, least, body)
		}
		if resp.Close {
			_ = c.Close()
			c = nil
		}
		answered.Add(1)
	}
	return nil
}

// TestAwaitRetiredOfLoops: AwaitRetired waits for an answer of an event loop that began before Switch.
func TestAwaitRetiredOfLoops(t *testing.T) {
	t.Parallel()
	l := newLanes(t, probing(nil))
	began, end := make(chan struct{}), make(chan struct{})
	l.server.routes["/hello"].read.handle = func(*fasthttp.RequestCtx, *loopRequest) handled {
		close(began)
		<-end
		return slow
	}
	answered := make(chan bool)
	go func() {
		_, _, ok, _ := l.answerer.Answer(nil, []byte("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"), 0, l.peer)
		answered <- ok
	}()
	<-began
	next := l.server.Next(probing(nil))
	l.server.Switch(next)
	short, cancel := context.WithTimeout(t.Context(), 4*retiredCheck)
	defer cancel()
	if l.server.AwaitRetired(short) {
		t.Error("the answer is not waited for")
	}
	close(end)
	if ok := <-answered; ok || !l.server.AwaitRetired(t.Context()) {
		t.Error("the answer does not end")
	}
	if a, ok := l.quick(t, "/hello"); !ok || a.status != http.StatusOK {
		t.Errorf("the next generation: %v, %v", ok, a)
	}
}
