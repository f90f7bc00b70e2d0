//go:build !race

package server

import (
	"testing"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestHitAllocatesNothing holds for the whole handler, as fasthttp calls it.
func TestHitAllocatesNothing(t *testing.T) {
	_, s := start(t, &rows{n: 5000}, nil)
	hitAllocatesNothing(t, s, "/list", "/list?offset=20&limit=50", "/openapi/nothing")
	_, s = start(t, &rows{n: 5000}, func(c *Config) {
		filtered := listConfig()
		filtered.Params = []feed.Param{{Name: "city", Type: feed.Text, Optional: true}, {Name: "at", Type: feed.Integer}, param.Filter("status", feed.Text)}
		f := feed.Open(filtered, &rows{n: 5000})
		t.Cleanup(f.Close)
		c.Feeds = append(c.Feeds, FeedRoute{Paths: []string{"/filtered"}, Feed: f})
	})
	hitAllocatesNothing(t, s, "/filtered?at=7", "/filtered?at=7&city=x&status=open&limit=20", "/openapi/nothing")
}

func hitAllocatesNothing(t *testing.T, s *Server, uris ...string) {
	for _, uri := range uris {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, nil, nil)
		ctx.Request.SetRequestURI(uri)
		ctx.Request.Header.Set("If-None-Match", `"0123456789abcdef"`)
		allocs := testing.AllocsPerRun(1000, func() {
			ctx.Response.Reset()
			s.serve(&ctx)
		})
		if miss := ctx.Response.StatusCode() == 404; allocs != 0 && !miss {
			t.Errorf("%s: %v allocations", uri, allocs)
		} else if miss && allocs == 0 {
			t.Error("a problem allocates nothing: the test measures nothing")
		}
	}
}
