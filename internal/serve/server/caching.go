package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/compress"
)

// SharedCaching says for how long caches that many clients share may keep a response. Both
// times are whole seconds. The zero value lets them keep none.
type SharedCaching struct {
	MaxAge               time.Duration // age of the rows at most, without asking this server
	StaleWhileRevalidate time.Duration // additional age while the cache asks
}

// control returns the Cache-Control of the responses of a path.
func (c SharedCaching) control(access Access) []byte {
	switch {
	case access != Open:
		return []byte("private, no-cache")
	case c.MaxAge == 0:
		return []byte("no-cache")
	}
	text := fmt.Appendf(nil, "public, max-age=0, s-maxage=%d", int64(c.MaxAge/time.Second))
	if c.StaleWhileRevalidate > 0 {
		text = fmt.Appendf(text, ", stale-while-revalidate=%d", int64(c.StaleWhileRevalidate/time.Second))
	}
	return text
}

// vary returns the Vary header of all responses at a path: the request headers that they
// depend on. e is nil if the path is not known.
func (s *Server) vary(e *entry) []byte {
	var headers []string
	if e != nil && e.read != nil && e.read.coded {
		headers = append(headers, fasthttp.HeaderAcceptEncoding)
	}
	if e != nil && e.read != nil && e.read.events {
		headers = append(headers, fasthttp.HeaderAccept)
	}
	if e.private() {
		headers = append(headers, fasthttp.HeaderAuthorization)
		if e.read.cookie != "" {
			headers = append(headers, fasthttp.HeaderCookie)
		}
	}
	if len(s.cfg.CORSOrigins) > 0 && !s.anyOrigin {
		headers = append(headers, fasthttp.HeaderOrigin)
	}
	return []byte(strings.Join(headers, ", "))
}

// private reports whether the responses to reads at a path are for one client only.
func (e *entry) private() bool { return e != nil && e.read != nil && e.read.access != Open }

// restrict tells caches what a response at a path depends on, and keeps them from giving an
// error of a protected path to somebody else. e is nil if the path is not known.
func (s *Server) restrict(ctx *fasthttp.RequestCtx, e *entry) {
	h, vary := &ctx.Response.Header, s.varyUnknown
	if e != nil {
		vary = e.vary
	}
	if len(vary) > 0 {
		h.SetCanonical(headerVary, vary)
	}
	if ctx.Response.StatusCode() >= fasthttp.StatusBadRequest && e.private() {
		h.SetCanonical(headerCacheControl, privateNoStore)
	}
}

// represent selects the form in which a response has its content, and sets ETag and
// Content-Encoding. tag is the ETag of the plain form. forms may be nil: there is only the
// plain one. plain returns it, of size bytes, to be compressed; nil: forms that do not exist are
// not made. If send is false, the client has the form, and the response is 304. Otherwise body is the
// compressed body, or nil for the plain one.
func (s *Server) represent(ctx *fasthttp.RequestCtx, tag []byte, forms *compress.Forms, size int, plain func() []byte) (body []byte,
	send bool,
) {
	coding := compress.Identity
	if forms != nil && s.compressor != nil {
		if lines := ctx.Request.Header.PeekAll(fasthttp.HeaderAcceptEncoding); len(lines) > 0 {
			coding, body = forms.Find(compress.ParseAccept(lines))
		}
	}
	// A client that has the form gets 304 even if the form does not exist here.
	if s.unmodified(ctx, tag, coding) {
		return nil, false
	}
	if coding == compress.Identity {
		return nil, true
	}
	if body == nil {
		if plain != nil {
			coding, body = forms.Prepare(s.compressor, coding, size, plain)
		}
		if body == nil {
			return nil, !s.unmodified(ctx, tag, compress.Identity)
		}
	}
	ctx.Response.Header.SetContentEncodingBytes([]byte(coding.String()))
	return body, true
}

// unmodified sets the ETag of content in a coding. It reports whether the client has that,
// and then responds with 304. tag is the ETag of the plain form.
func (s *Server) unmodified(ctx *fasthttp.RequestCtx, tag []byte, coding compress.Coding) bool {
	var room [32]byte
	if coding != compress.Identity {
		tag = append(room[:0], tag[:len(tag)-1]...)
		tag = append(append(append(tag, '-'), coding.String()...), '"')
	}
	ctx.Response.Header.SetCanonical(headerETag, tag)
	if !unchanged(&ctx.Request.Header, tag) {
		return false
	}
	ctx.SetStatusCode(fasthttp.StatusNotModified)
	return true
}
