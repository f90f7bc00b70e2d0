package server

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
)

// TestPageBodies: a page is the same whether it is copied or written from shared bytes, and a
// connection keeps no large buffer.
func TestPageBodies(t *testing.T) {
	_, s := start(t, &rows{n: 1}, nil)
	var ctx fasthttp.RequestCtx
	edge := bodyKept - (&feed.Page{Rows: 1}).Size()
	for _, size := range []int{0, 10, edge - 1, edge, edge + 1, 1_000_000, 10, edge} {
		for _, next := range []string{"", "QUJD"} {
			p := &feed.Page{Data: []byte(strings.Repeat("x", size)), Rows: min(size, 1), Next: next}
			for _, method := range []string{"GET", "HEAD"} {
				ctx.Response.Reset()
				ctx.Response.SkipBody = method == "HEAD"
				s.setPage(&ctx, p)
				length := bodySize(&ctx.Response)
				var out bytes.Buffer
				w := bufio.NewWriter(&out)
				if err := ctx.Response.Write(w); err != nil {
					t.Fatal(err)
				}
				if err := w.Flush(); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(&out), &http.Request{Method: method})
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				want := string(p.Append(nil))
				if method == "HEAD" {
					want = ""
				}
				if err != nil || string(body) != want || resp.ContentLength != int64(p.Size()) || length != p.Size() {
					t.Errorf("%s of %d bytes: %d bytes of %d, %d in the log, %v", method, p.Size(), len(body), resp.ContentLength, length, err)
				}
				ctx.Response.Reset()
				if kept := cap(ctx.Response.SwapBody(nil)); kept > bodyKept {
					t.Errorf("%d bytes are kept after a page of %d", kept, p.Size())
				}
			}
		}
	}
}
