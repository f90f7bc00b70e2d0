package server

import (
	"github.com/cespare/xxhash/v2"
	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
)

// documentPath is where the OpenAPI document is served.
const documentPath = "/openapi.json"

// addDocument serves the OpenAPI document to everybody.
func (s *Server) addDocument(text []byte) {
	tag := feed.AppendETag(nil, xxhash.Sum64(text))
	s.add(documentPath, func(ctx *fasthttp.RequestCtx) {
		header := &ctx.Response.Header
		header.SetCanonical(s.names.etag, tag)
		header.SetCanonical(s.names.cacheControl, []byte("no-cache"))
		if unchanged(&ctx.Request.Header, tag) {
			ctx.SetStatusCode(fasthttp.StatusNotModified)
			return
		}
		header.SetContentTypeBytes(s.names.json)
		ctx.Response.SetBodyRaw(text)
	})
}
