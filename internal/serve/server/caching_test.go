package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"spillway/internal/apptest"
	"spillway/internal/serve/compress"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/queue"
)

// plainOf returns the body of an answer without its content coding.
func plainOf(t *testing.T, a answer) string {
	t.Helper()
	var r io.Reader = strings.NewReader(a.body)
	switch coding := a.header.Get("Content-Encoding"); coding {
	case "":
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = z
	case "zstd":
		z, err := zstd.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	default:
		t.Fatalf("Content-Encoding %q", coding)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// ask is GET with an Accept-Encoding header.
func ask(t *testing.T, url, accept string, headers ...string) answer {
	t.Helper()
	return request(t, http.MethodGet, url, append([]string{"Accept-Encoding", accept}, headers...)...)
}

// TestCompressedPage: the first page is sent in the form that the client likes best, with an
// ETag of its own, and its form stays while the rows do.
func TestCompressedPage(t *testing.T) {
	t.Parallel()
	url, s := startRefreshing(t, &rows{n: 5000, pad: orderPad}, nil)
	url += "/list"
	plain := ask(t, url, "identity")
	if plain.header.Get("Content-Encoding") != "" || len(plain.body) < compress.Least {
		t.Fatalf("without codings: %v", plain.header)
	}
	tag := strings.Trim(plain.header.Get("ETag"), `"`)
	tags := map[string]string{"": `"` + tag + `"`, "gzip": `"` + tag + `-gzip"`, "zstd": `"` + tag + `-zstd"`}
	for accept, coding := range map[string]string{
		"gzip, deflate, br, zstd": "zstd", "gzip": "gzip", "br": "", "zstd;q=0.1, gzip;q=0.2": "gzip", "gzip;q=0.5, identity": "",
	} {
		a := ask(t, url, accept)
		if a.status != 200 || a.header.Get("Content-Encoding") != coding || a.header.Get("ETag") != tags[coding] || plainOf(t, a) != plain.body {
			t.Errorf("%q: %d %v", accept, a.status, a.header)
		}
		if coding != "" && len(a.body) >= len(plain.body)/2 {
			t.Errorf("%q: %d bytes of %d", accept, len(a.body), len(plain.body))
		}
		for other, tag := range tags {
			b := ask(t, url, accept, "If-None-Match", tag)
			if want := map[bool]int{true: 304, false: 200}[other == coding]; b.status != want {
				t.Errorf("%q with the tag of %q: %d", accept, other, b.status)
			} else if want == 304 && (b.body != "" || b.header.Get("ETag") != tag || b.header.Get("Content-Encoding") != "") {
				t.Errorf("%q: 304 with %v", accept, b.header)
			}
			if b.header.Get("Vary") != "Accept-Encoding, Accept" || b.header.Get("Cache-Control") != "no-cache" {
				t.Errorf("%q with the tag of %q: %v", accept, other, b.header)
			}
		}
		head := request(t, http.MethodHead, url, "Accept-Encoding", accept)
		if head.header.Get("Content-Length") != fmt.Sprint(len(a.body)) || head.header.Get("ETag") != tags[coding] || head.header.Get("Content-Encoding") != coding {
			t.Errorf("HEAD %q: %v, want %d bytes", accept, head.header, len(a.body))
		}
	}
	refreshes := s.cfg.Feeds[0].Feed.Stats().Refreshes
	used, _ := s.compressor.Usage()
	apptest.Await(t, "the window is refreshed three times", func() bool { return s.cfg.Feeds[0].Feed.Stats().Refreshes > refreshes+2 })
	ask(t, url, "gzip")
	if now, _ := s.compressor.Usage(); now != used || used == 0 {
		t.Errorf("%d bytes of forms, after refreshes without change %d", used, now)
	}
}

// TestFormsEndWithTheirRows: the memory of forms is free when the rows have changed, and when
// the feed is closed.
func TestFormsEndWithTheirRows(t *testing.T) {
	t.Parallel()
	source := &rows{n: 5000, pad: orderPad}
	url, s := startRefreshing(t, source, nil)
	used := func() int64 {
		n, _ := s.compressor.Usage()
		return n
	}
	ask(t, url+"/list", "zstd")
	if used() == 0 {
		t.Fatal("nothing is kept")
	}
	source.mu.Lock()
	source.n++
	source.mu.Unlock()
	apptest.Await(t, "the forms of the earlier rows are dropped", func() bool { return used() == 0 })
	ask(t, url+"/list", "gzip")
	if used() == 0 {
		t.Fatal("nothing is kept of the new rows")
	}
	s.cfg.Feeds[0].Feed.Close()
	if n := used(); n != 0 {
		t.Errorf("%d bytes are kept of a closed feed", n)
	}
}

// TestTagsNameTheirContent: while the rows change, every response has the content that its tag
// stands for, in each coding.
func TestTagsNameTheirContent(t *testing.T) {
	t.Parallel()
	source := &rows{n: 5000, pad: orderPad}
	url, s := startRefreshing(t, source, nil)
	var mu sync.Mutex
	contents := map[string]string{}
	var clients sync.WaitGroup
	for _, accept := range []string{"identity", "gzip", "zstd", "gzip, zstd;q=0.5", "zstd, gzip"} {
		clients.Go(func() {
			for range 60 {
				a := ask(t, url+"/list", accept)
				tag, _, _ := strings.Cut(strings.Trim(a.header.Get("ETag"), `"`), "-")
				plain := plainOf(t, a)
				mu.Lock()
				if known, ok := contents[tag]; ok && known != plain {
					t.Errorf("%s has two contents: %s and %s", tag, known, plain)
				}
				contents[tag] = plain
				mu.Unlock()
				source.mu.Lock()
				source.n++
				source.mu.Unlock()
			}
		})
	}
	clients.Wait()
	s.cfg.Feeds[0].Feed.Close()
	if n, _ := s.compressor.Usage(); n != 0 {
		t.Errorf("%d bytes are kept of a closed feed", n)
	}
}

// TestCompressionLimit: beyond the limit, and without one, bodies are plain.
func TestCompressionLimit(t *testing.T) {
	t.Parallel()
	url, s := start(t, &rows{n: 5000, pad: orderPad}, func(c *Config) { c.CompressBytes = 1 })
	a := ask(t, url+"/list", "gzip")
	if _, refused := s.compressor.Usage(); a.header.Get("Content-Encoding") != "" || a.header.Get("Vary") != "Accept-Encoding, Accept" || refused != 1 {
		t.Errorf("beyond the limit: %v, %d refused", a.header, refused)
	}
	// Another replica has sent the form.
	tag := strings.TrimSuffix(a.header.Get("ETag"), `"`) + `-gzip"`
	if b := ask(t, url+"/list", "gzip", "If-None-Match", tag); b.status != 304 || b.header.Get("ETag") != tag {
		t.Errorf("a client that has the form: %d %v", b.status, b.header)
	}
	if b := ask(t, url+"/list", "identity", "If-None-Match", tag); b.status != 200 {
		t.Errorf("a client that has the form and does not accept it: %d", b.status)
	}
	url, _ = start(t, &rows{n: 5000, pad: orderPad}, func(c *Config) { c.CompressBytes = 0 })
	if a := ask(t, url+"/list", "gzip"); a.header.Get("Content-Encoding") != "" || a.header.Get("Vary") != "Accept" {
		t.Errorf("switched off: %v", a.header)
	}
}

// TestEveryPageHasATag: pages of the database have ETags as well.
func TestEveryPageHasATag(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 500, pad: orderPad}, nil)
	seen := map[string]string{}
	for _, path := range []string{"/list", "/list?offset=5", "/list?offset=195", "/list?limit=20", "/list?offset=190&limit=20"} {
		a := ask(t, url+path, "gzip")
		tag := a.header.Get("ETag")
		if a.status != 200 || tag == "" || seen[tag] != "" {
			t.Errorf("%s: %d, the tag %s is that of %q", path, a.status, tag, seen[tag])
		}
		seen[tag] = path
		b := ask(t, url+path, "gzip", "If-None-Match", tag)
		if b.status != 304 || b.header.Get("Vary") != "Accept-Encoding, Accept" || b.header.Get("Spillway-Source") != a.header.Get("Spillway-Source") {
			t.Errorf("%s again: %d %v", path, b.status, b.header)
		}
	}
}

// answers is a query's source. Its rows depend on the argument.
type answers struct{ rows int }

func (a *answers) Read(_ context.Context, r feed.Range, to *feed.Rows) error {
	switch r.Args[0] {
	case "fails":
		return errors.New("the database is down")
	case "rejected":
		return param.Rejected([]param.Param{{Name: "a"}}, r.Args, errors.New("out of range"))
	case "overloaded":
		return queue.Overtime(time.Minute, time.Second)
	case "none":
		return nil
	}
	for i := range a.rows {
		to.Begin()
		to.Data = fmt.Appendf(to.Data, `{"id":%d,"of":%q%s}`, i, r.Args[0], orderPad)
		if err := to.EndUnkeyed(); err != nil {
			return err
		}
	}
	return nil
}

// Begin implements feed.LoopReader.
func (a *answers) Begin(loop *front.Loop, r *feed.LoopRead) error {
	err := a.Read(context.Background(), feed.Range{Args: r.Args}, &r.Rows)
	switch r.Args[0] {
	case "elsewhere", "fails", "rejected":
		return feed.ErrElsewhere
	case "overloaded":
		return err
	}
	loop.After(func() { r.Done(err) })
	return nil
}

// Drop implements feed.LoopReader.
func (*answers) Drop(*front.Loop, *feed.LoopRead) bool { return true }

func openQuery(tb testing.TB, source *answers, change func(*query.Config)) *query.Query {
	tb.Helper()
	cfg := query.Config{
		Definition: feed.Definition{Name: "/q", SQL: "SELECT", Params: []param.Param{{Name: "a", Type: "text"}}},
		Limit:      feed.Limit{Rows: 1000, Bytes: 1 << 20}, Timeout: time.Hour, TTL: time.Hour, CacheBytes: 1 << 20, WaitersMax: 10,
		Gate: queue.NewGate(4).Entrance(), Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	q := query.Open(cfg, source)
	tb.Cleanup(q.Close)
	return q
}

// TestCompressedAnswers: an answer is compressed when it is used again, and its form is dropped
// with it.
func TestCompressedAnswers(t *testing.T) {
	t.Parallel()
	cached := openQuery(t, &answers{rows: 40}, func(c *query.Config) { c.CacheBytes = 12 << 10 }) // one answer
	single := openQuery(t, &answers{rows: 1}, nil)
	fresh := openQuery(t, &answers{rows: 20}, func(c *query.Config) { c.TTL = 0 })
	url, s := start(t, &rows{n: 1}, func(c *Config) {
		c.Queries = []QueryRoute{
			{Paths: []string{"/q"}, Query: cached, Caching: SharedCaching{MaxAge: 2 * time.Hour, StaleWhileRevalidate: time.Minute}},
			{Paths: []string{"/one"}, Query: single, Envelope: feed.EnvelopeOne, Caching: SharedCaching{MaxAge: time.Minute}},
			{Paths: []string{"/fresh"}, Query: fresh},
		}
	})
	const control = "public, max-age=0, s-maxage=7200, stale-while-revalidate=60"
	first, second, plain := ask(t, url+"/q?a=1", "zstd"), ask(t, url+"/q?a=1", "zstd"), ask(t, url+"/q?a=1", "identity")
	if first.header.Get("Content-Encoding") != "" || second.header.Get("Content-Encoding") != "zstd" || plain.header.Get("Content-Encoding") != "" {
		t.Errorf("first %v, second %v, plain %v", first.header, second.header, plain.header)
	}
	if first.body != plain.body || plainOf(t, second) != plain.body || first.header.Get("ETag") != plain.header.Get("ETag") {
		t.Errorf("first %v, %d bytes; second %v; plain %v, %d bytes", first.header, len(first.body), second.header, plain.header, len(plain.body))
	}
	for _, a := range []answer{first, second, plain} {
		if a.header.Get("Vary") != "Accept-Encoding" || a.header.Get("Cache-Control") != control {
			t.Errorf("%v", a.header)
		}
	}
	tag := second.header.Get("ETag")
	if a := ask(t, url+"/q?a=2", "zstd", "If-None-Match", tag); a.status != 200 || a.body == first.body {
		t.Errorf("another answer: %d", a.status)
	}
	if n, _ := s.compressor.Usage(); n != 0 {
		t.Errorf("%d bytes are kept of an answer that was evicted", n)
	}
	if a := ask(t, url+"/q?a=1", "zstd", "If-None-Match", tag); a.status != 304 || a.header.Get("ETag") != tag || a.header.Get("Cache-Control") != control {
		t.Errorf("the form of an answer that is read again: %d %v", a.status, a.header)
	}
	one := ask(t, url+"/one?a=1", "gzip")
	if a := ask(t, url+"/one?a=1", "gzip", "If-None-Match", one.header.Get("ETag")); a.status != 304 || a.header.Get("Cache-Control") != "public, max-age=0, s-maxage=60" {
		t.Errorf("an object: %v, again %d %v", one.header, a.status, a.header)
	}
	ask(t, url+"/fresh?a=1", "gzip")
	a := ask(t, url+"/fresh?a=1", "gzip")
	if a.header.Get("Content-Encoding") != "" || a.header.Get("Vary") != "" {
		t.Errorf("not cached: %v", a.header)
	}
	tag = strings.TrimSuffix(a.header.Get("ETag"), `"`) + `-gzip"`
	if a = ask(t, url+"/fresh?a=1", "gzip", "If-None-Match", tag); a.status != 200 {
		t.Errorf("with the tag of a form that no replica sends: %d", a.status)
	}
}

// TestCacheHeaders: Vary names all that a response depends on, once, and no cache keeps an error.
func TestCacheHeaders(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 5000, pad: orderPad}, func(c *Config) {
		c.CORSOrigins, c.ReadKeys = []string{"https://app.example"}, []string{"0123456789abcdef"}
		closed := openQuery(t, &answers{rows: 20}, nil)
		c.Queries = []QueryRoute{{Paths: []string{"/closed"}, Access: Key, Query: closed}, {Paths: []string{"/none"}, Envelope: feed.EnvelopeOne, Query: openQuery(t, &answers{}, nil)}}
	})
	key := []string{"Authorization", "Bearer 0123456789abcdef"}
	for _, c := range []struct {
		method, path  string
		headers       []string
		status        int
		control, vary string
	}{
		{"GET", "/list", nil, 200, "no-cache", "Accept-Encoding, Accept, Origin"},
		{"GET", "/list", []string{"Origin", "https://app.example"}, 200, "no-cache", "Accept-Encoding, Accept, Origin"},
		{"GET", "/list", []string{"If-None-Match", "*"}, 304, "no-cache", "Accept-Encoding, Accept, Origin"},
		{"GET", "/list?offset=x", nil, 400, "no-store", "Accept-Encoding, Accept, Origin"},
		{"PUT", "/list", nil, 405, "no-store", "Accept-Encoding, Accept, Origin"},
		{"OPTIONS", "/list", nil, 204, "", "Accept-Encoding, Accept, Origin"},
		{"GET", "/closed?a=1", key, 200, "private, no-cache", "Accept-Encoding, Authorization, Origin"},
		{"GET", "/closed?a=1", append([]string{"If-None-Match", "*"}, key...), 304, "private, no-cache", "Accept-Encoding, Authorization, Origin"},
		{"GET", "/closed", key, 400, "private, no-store", "Accept-Encoding, Authorization, Origin"},
		{"GET", "/closed?a=1", nil, 401, "private, no-store", "Accept-Encoding, Authorization, Origin"},
		{"PUT", "/closed", nil, 405, "private, no-store", "Accept-Encoding, Authorization, Origin"},
		{"GET", "/none?a=1", nil, 404, "no-store", "Accept-Encoding, Origin"},
		{"GET", "/nothing", nil, 404, "no-store", "Origin"},
	} {
		a := request(t, c.method, url+c.path, append([]string{"Accept-Encoding", "gzip"}, c.headers...)...)
		if a.status != c.status || a.header.Get("Cache-Control") != c.control || !slices.Equal(a.header.Values("Vary"), []string{c.vary}) {
			t.Errorf("%s %s %v: %d, Cache-Control %q, Vary %q", c.method, c.path, c.headers, a.status, a.header.Get("Cache-Control"), a.header.Values("Vary"))
		}
	}
}
