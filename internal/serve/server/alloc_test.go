//go:build !race

package server

import (
	"testing"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
)

// TestHitAllocatesNothing holds for the whole handler, as fasthttp calls it.
func TestHitAllocatesNothing(t *testing.T) {
	for _, envelope := range []feed.Envelope{feed.EnvelopeData, feed.EnvelopeNone} {
		_, s := startShaped(t, &rows{n: 5000}, envelope, nil)
		hitAllocatesNothing(t, s)
	}
}

func hitAllocatesNothing(t *testing.T, s *Server) {
	for _, uri := range []string{"/list", "/list?offset=20&limit=50", "/openapi/nothing"} {
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
