package server

import (
	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
)

// fieldsOf returns the columns that a request selects. The error wraps feed.ErrRequest.
func fieldsOf(ctx *fasthttp.RequestCtx, columns feed.Columns) (feed.Fields, error) {
	args := ctx.QueryArgs()
	if !args.Has("fields") {
		return feed.Fields{}, nil
	}
	var lists []string
	for _, list := range args.PeekMulti("fields") {
		lists = append(lists, text(list))
	}
	return columns.Select(lists...)
}

// link names the next page in a header (RFC 8288). The reference is relative to the request's
// own path, so that it also holds for an alias and behind a proxy that changes the path.
func (s *Server) link(ctx *fasthttp.RequestCtx, next string) {
	var room [512]byte
	ctx.Response.Header.SetCanonical(s.names.link, appendLink(room[:0], ctx.QueryArgs(), next))
}

// appendLink appends the value of the header Link to the page that begins at a cursor. The
// request's other parameters stay.
func appendLink(dst []byte, args *fasthttp.Args, next string) []byte {
	dst = append(dst, "<?"...)
	for name, value := range args.All() {
		switch string(name) {
		case "before", "offset":
			continue
		}
		dst = append(fasthttp.AppendQuotedArg(dst, name), '=')
		dst = append(fasthttp.AppendQuotedArg(dst, value), '&')
	}
	dst = append(append(dst, "before="...), next...)
	return append(dst, `>; rel="next"`...)
}
