//go:build !race

package server

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestHitAllocatesNothing holds for the whole handler, as fasthttp calls it.
func TestHitAllocatesNothing(t *testing.T) {
	for _, envelope := range []feed.Envelope{feed.EnvelopeData, feed.EnvelopeNone} {
		cached := openQuery(t, &answers{rows: 40}, nil)
		url, s := startShaped(t, &rows{n: 5000, pad: orderPad}, envelope, func(c *Config) {
			c.Queries = []QueryRoute{{Paths: []string{"/cached"}, Query: cached, Envelope: envelope}}
			filtered := listConfig()
			filtered.Envelope = envelope
			filtered.Params = []param.Param{{Name: "city", Type: param.Text, Optional: true}, {Name: "at", Type: param.Integer}, param.Filter("status", param.Text)}
			f := feed.Open(filtered, &rows{n: 5000, pad: orderPad})
			t.Cleanup(f.Close)
			c.Feeds = append(c.Feeds, FeedRoute{Paths: []string{"/filtered"}, Feed: f})
		})
		hitAllocatesNothing(t, url, s)
	}
}

// TestRefusedFormAllocatesNothing: nothing is copied for a compressed form beyond the limit.
func TestRefusedFormAllocatesNothing(t *testing.T) {
	cached := openQuery(t, &answers{rows: 40}, nil)
	url, s := start(t, &rows{n: 5000, pad: orderPad}, func(c *Config) {
		c.Queries, c.CompressBytes = []QueryRoute{{Paths: []string{"/cached"}, Query: cached}}, 1
	})
	hitAllocatesNothing(t, url, s)
	if _, refused := s.compressor.Usage(); refused == 0 {
		t.Error("no form was refused: the test measures nothing")
	}
}

// hitAllocatesNothing asks twice for each of some pages and answers, as an event loop and as fasthttp do. Windows are read once, and
// caches are filled: nothing else runs. The requests through the network also note that the windows are in use; those from memory have
// no time.
func hitAllocatesNothing(t *testing.T, url string, s *Server) {
	t.Helper()
	for _, c := range []struct{ uri, accept string }{
		{"/list", ""},
		{"/list", "gzip, deflate, br, zstd"},
		{"/list", "gzip;q=0.8, zstd;q=0.9, *;q=0"},
		{"/list?offset=20&limit=50", "gzip"},
		{"/cached?a=1", ""},
		{"/cached?a=1", "gzip"},
		{"/filtered?at=7", ""},
		{"/filtered?at=7", "gzip"},
		{"/filtered?at=7&city=x&status=open&limit=20", ""},
		{"/openapi/nothing", ""},
	} {
		uri := c.uri
		if a := request(t, "GET", url+uri); a.status != 200 && a.status != 404 { // fills windows and caches
			t.Fatalf("%s: %d %s, want 200 or 404", uri, a.status, a.body)
		}
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, nil, nil)
		ctx.Request.SetRequestURI(uri)
		if c.accept != "" {
			ctx.Request.Header.Set("Accept-Encoding", c.accept)
		}
		ctx.Request.Header.Set("If-None-Match", `"0123456789abcdef"`)
		allocs := testing.AllocsPerRun(200, func() {
			ctx.Response.Reset()
			s.serve(&ctx)
		})
		wire := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"0123456789abcdef\"\r\n", uri)
		if c.accept != "" {
			wire = fmt.Appendf(wire, "Accept-Encoding: %s\r\n", c.accept)
		}
		wire = append(wire, "\r\n"...)
		loop, quick, slow := newAnswerer(s.live, 4096, nil), 0, 0
		var out []byte
		inLoop := testing.AllocsPerRun(200, func() {
			var ok bool
			if out, _, ok, _ = loop.Answer(out[:0], wire, 0, netip.AddrPort{}); ok {
				quick++
			} else {
				slow++
			}
		})
		if miss := ctx.Response.StatusCode() == 404; miss && quick > 0 || !miss && slow > 0 || inLoop != 0 {
			t.Errorf("%s with %q in an event loop: %d responses, %d refusals, %v allocations each, want 0", uri, c.accept, quick, slow, inLoop)
		}
		if miss := ctx.Response.StatusCode() == 404; allocs != 0 && !miss {
			t.Errorf("%s with %q: %v allocations", uri, c.accept, allocs)
		} else if miss && allocs == 0 {
			t.Error("a problem allocates nothing: the test measures nothing")
		}
	}
}
