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
	t.Parallel()
	_, s := start(t, &rows{n: 1}, nil)
	var ctx fasthttp.RequestCtx
	edge := bodyKept - (&feed.Page{Rows: 1}).Size()
	for _, size := range []int{0, 10, edge - 1, edge, edge + 1, 1_000_000, 10, edge} {
		for _, next := range []string{"", "QUJD"} {
			p := &feed.Page{Data: []byte(strings.Repeat("x", size)), Rows: min(size, 1), Next: next}
			for _, method := range []string{"GET", "HEAD"} {
				testBody(t, s, &ctx, method, p)
			}
		}
	}
}

// TestSelectedBodies: a page with some of its fields is the same in both ways, too.
func TestSelectedBodies(t *testing.T) {
	t.Parallel()
	_, s := start(t, &rows{n: 1}, nil)
	var ctx fasthttp.RequestCtx
	fields, err := feed.Columns{"id", "text"}.Select("text")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{10, bodyKept - 30, bodyKept, 1_000_000} {
		rows := `{"id":1,"text":"` + strings.Repeat("x", size/2) + `"},{"id":2,"text":"` + strings.Repeat("y", size/2) + `"}`
		p := &feed.Page{Data: []byte(rows), Rows: 2, Next: "QUJD"}
		p.Select(fields)
		testBody(t, s, &ctx, "GET", p)
		if want := `{"data":[` + strings.ReplaceAll(strings.ReplaceAll(rows, `"id":1,`, ""), `"id":2,`, "") + `],"next":"QUJD"}`; string(p.Append(nil)) != want {
			t.Errorf("%d bytes are not the fields of %d", p.Size(), len(rows))
		}
	}
}

// testBody writes a page as a connection's next response and reads it again.
func testBody(t *testing.T, s *Server, ctx *fasthttp.RequestCtx, method string, p *feed.Page) {
	t.Helper()
	ctx.Response.Reset()
	ctx.Response.SkipBody = method == "HEAD"
	s.setPage(ctx, p)
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
