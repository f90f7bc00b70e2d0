//go:build !race

package server

import (
	"testing"

	"github.com/valyala/fasthttp"
)

// TestPopupNotDueAllocatesNothing measures the whole handler, as fasthttp calls it.
func TestPopupNotDueAllocatesNothing(t *testing.T) {
	r := popupRoute(t, nil)
	_, s := start(t, &rows{n: 10}, func(c *Config) { c.Popup = &r })
	for _, uri := range []string{"/popup?user=7&country=CN&age=18&tags=a&tags=b", "/popup?user=7&placement=checkout"} {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, nil, nil)
		ctx.Request.SetRequestURI(uri)
		s.serve(&ctx) // shows the due popup
		allocs := testing.AllocsPerRun(1000, func() {
			ctx.Response.Reset()
			s.serve(&ctx)
		})
		if allocs != 0 || ctx.Response.StatusCode() != fasthttp.StatusNoContent {
			t.Errorf("%s: %d, %v allocations", uri, ctx.Response.StatusCode(), allocs)
		}
	}
}
