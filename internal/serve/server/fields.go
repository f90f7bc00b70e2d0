package server

import (
	"slices"

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
func (h *feedHandler) link(ctx *fasthttp.RequestCtx, fields feed.Fields, next string) {
	var room [512]byte
	ctx.Response.Header.SetCanonical(h.server.names.link, appendLink(room[:0], ctx.QueryArgs(), h.params, fields, next))
}

// appendLink appends the value of the header Link to the page that begins at a cursor. The
// request's parameters stay if the feed reads them. Others may be secret, and a cache could give
// them to somebody else; proxies refuse responses with a long header.
func appendLink(dst []byte, args *fasthttp.Args, params []feed.Param, fields feed.Fields, next string) []byte {
	dst = append(dst, "<?"...)
	used := make([]bool, len(params)+1) // the last one is limit
	for name, value := range args.All() {
		i := slices.IndexFunc(params, func(p feed.Param) bool { return p.Name == string(name) })
		if string(name) == "limit" {
			i = len(params)
		}
		if i < 0 || used[i] && (i == len(params) || params[i].ListMax == 0) {
			continue
		}
		used[i] = true
		dst = append(fasthttp.AppendQuotedArg(dst, name), '=')
		dst = append(fasthttp.AppendQuotedArg(dst, value), '&')
	}
	if !fields.All() {
		dst = append(dst, "fields="...)
		dst = append(fasthttp.AppendQuotedArg(dst, []byte(fields.String())), '&')
	}
	dst = append(append(dst, "before="...), next...)
	return append(dst, `>; rel="next"`...)
}
