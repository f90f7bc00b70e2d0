//go:build linux && !portable

package server

import (
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
)

// TestFastLaneRepeats: the lanes agree on requests that come again and again, with all settings, and while they stop. With -short,
// some of the settings are left out.
func TestFastLaneRepeats(t *testing.T) {
	try := func(t *testing.T, fast, regular *lane) {
		t.Helper()
		for _, text := range some(quickRequests()) {
			for range 4 {
				if d := difference(t, fast, regular, input{[]string{text}, true}); d != "" {
					t.Error(d)
				}
			}
			agree(t, fast, regular, text, text)
		}
		sameRequests(t, fast, regular)
	}
	variants := laneVariants(t)
	if testing.Short() {
		variants = map[string]func(*Config){"origins": variants["origins"], "rate": variants["rate"]}
	}
	variants["none"] = nil
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			fast, regular := startLanes(t, change)
			try(t, fast, regular)
			fast.draining.Store(true)
			regular.draining.Store(true)
			try(t, fast, regular)
		})
	}
}

// repeater is an event loop's answerer without a loop.
type repeater struct {
	*answerer
	t *testing.T
}

func newRepeater(t *testing.T, change func(*Config)) (*repeater, *lane) {
	l := startLane(t, -1, change)
	r := &repeater{newAnswerer(l.live, laneHeaderBytes, nil), t}
	for _, target := range []string{"/list", "/q?a=1", "/popup?user=7"} {
		l.converse(t, input{[]string{get(target)}, true}) // whoever asks first has to wait
	}
	return r, l
}

// answer has a request answered, and returns the response and when it was.
func (r *repeater) answer(request string) (response string, at time.Time) {
	r.t.Helper()
	text, _, ok, _ := r.Answer(nil, []byte(request), 0, netip.MustParseAddrPort("127.0.0.1:1"))
	if !ok {
		r.t.Fatalf("%q was not answered", request)
	}
	at = arrival(&r.now.ctx)
	if want := "\r\nDate: " + at.UTC().Format(http.TimeFormat) + "\r\n"; !strings.Contains(string(text), want) {
		r.t.Errorf("%q was answered with %q, want %q", request, text, want)
	}
	return string(text), at
}

// repeats reports whether the request is answered as before, at a time.
func (r *repeater) repeats(request string, at time.Time) bool {
	r.t.Helper()
	_, _, ok := r.repeat(nil, []byte(request), netip.AddrPort{}, at)
	return ok
}

// TestRepeat: a response is sent again within its second, if the request has come twice.
func TestRepeat(t *testing.T) {
	t.Parallel()
	r, l := newRepeater(t, nil)
	for name, request := range map[string]string{
		"page":    get("/list"),
		"part":    get("/list?offset=20&limit=5"),
		"gzip":    get("/list", "Accept-Encoding: gzip\r\n"),
		"close":   get("/list", "Connection: close\r\n"),
		"HEAD":    strings.Replace(get("/list"), "GET", "HEAD", 1),
		"browser": get("/list", browserHeaders),
	} {
		_, at := r.answer(request)
		if r.repeats(request, at) {
			t.Errorf("%s: repeated after it has come once", name)
		}
		want, at := r.answer(request)
		before := l.current.Load().routes["/list"].read.meter.statuses[2].codes[0].Load()
		got, keep, ok := r.repeat([]byte("before"), []byte(request), netip.AddrPort{}, at)
		if !ok || l.comparable(string(got)) != l.comparable("before"+want) || keep != (name != "close") {
			t.Errorf("%s: repeated as %q, %v, %v, want %q", name, got, keep, ok, want)
		}
		if n := l.current.Load().routes["/list"].read.meter.statuses[2].codes[0].Load() - before; n != 1 {
			t.Errorf("%s: counted %d times", name, n)
		}
		if r.repeats(request+" ", at) || r.repeats(request[:len(request)-1], at) {
			t.Errorf("%s: repeated for another request", name)
		}
		if r.repeats(request, at.Add(time.Second)) {
			t.Errorf("%s: repeated a second later", name)
		}
	}
}

// TestRepeatSameHash: the bytes decide.
func TestRepeatSameHash(t *testing.T) {
	t.Parallel()
	r, _ := newRepeater(t, nil)
	one, other := get("/list?limit=1"), get("/list?limit=2")
	r.answer(one)
	_, at := r.answer(one)
	from, _ := r.answerer.repeats.slot([]byte(one))
	to, hash := r.answerer.repeats.slot([]byte(other))
	*to = *from
	to.hash = hash
	if r.repeats(other, at) {
		t.Error("a request got the response to another one")
	}
}

// TestRepeatNever: what may change within a second, or is counted elsewhere, is not sent again.
func TestRepeatNever(t *testing.T) {
	t.Parallel()
	r, l := newRepeater(t, nil)
	tag := strings.SplitN(strings.SplitN(l.converse(t, input{[]string{get("/list")}, true}).text, "ETag: ", 2)[1], "\r\n", 2)[0]
	for _, request := range []string{
		get("/hello"), get("/openapi.json"), get("/q?a=1"), get("/popup?user=7"), get("/list", "If-None-Match: "+tag+"\r\n"), get("/list?limit=100"),
	} {
		for range 3 {
			if _, at := r.answer(request); r.repeats(request, at) {
				t.Errorf("%q is repeated", request)
			}
		}
	}
	r, _ = newRepeater(t, func(c *Config) { c.RatePerMinute, c.RateBurst, c.RateClients = 1, 1000, 1000 })
	for range 3 {
		if _, at := r.answer(get("/list")); r.repeats(get("/list"), at) {
			t.Error("a request is repeated that the rate limit does not see")
		}
	}
}

// TestRepeatNotAfter: a response is not sent again when the next one would differ.
func TestRepeatNotAfter(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*lane){
		"drain":  func(l *lane) { l.draining.Store(true) },
		"reload": func(l *lane) { l.reload(t) },
		"close":  func(l *lane) { l.current.Load().cfg.Feeds[0].Feed.Close() },
	} {
		r, l := newRepeater(t, nil)
		r.answer(get("/list"))
		_, at := r.answer(get("/list"))
		if !r.repeats(get("/list"), at) {
			t.Fatalf("%s: not repeated before", name)
		}
		change(l)
		if r.repeats(get("/list"), at) {
			t.Errorf("%s: repeated after it", name)
		}
	}
}

// reload replaces the generation by an equal one.
func (l *lane) reload(t *testing.T) {
	next := l.Next(l.cfg)
	l.Switch(next)
}

// TestRepeatRetainsNothing: after a reload, no event loop keeps the rows of a closed feed in memory.
func TestRepeatRetainsNothing(t *testing.T) {
	t.Parallel()
	var a *answerer
	old, s := func() (weak.Pointer[feed.Feed], *Server) {
		f := feed.Open(listConfig(), &rows{n: 5000, pad: orderPad})
		if err := f.Warm(t.Context()); err != nil {
			t.Fatal(err)
		}
		base := Config{HTTP: config.HTTP{Connections: 100, HeaderBytes: laneHeaderBytes}, Log: slog.New(slog.DiscardHandler)}
		with := base
		with.Feeds = []FeedRoute{{Paths: []string{"/list"}, Feed: f}}
		s := New(with)
		a = newAnswerer(s.live, laneHeaderBytes, nil)
		r := repeater{a, t}
		r.answer(get("/list"))
		if _, at := r.answer(get("/list")); !r.repeats(get("/list"), at) {
			t.Fatal("not repeated")
		}
		next := s.Next(base)
		s.Switch(next)
		if !s.AwaitRetired(t.Context()) {
			t.Fatal("not retired")
		}
		f.Close()
		return weak.Make(f), next
	}()
	apptest.Await(t, "the rows of the closed feed are collected", func() bool {
		runtime.GC()
		return old.Value() == nil
	})
	runtime.KeepAlive(a)
	runtime.KeepAlive(s)
}
