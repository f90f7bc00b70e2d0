package server

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"

	"github.com/valyala/fasthttp"
)

// requestIDs makes request ids: eight random hex digits per process, then a counter of the
// requests that needed an id.
type requestIDs struct {
	boot uint32
	last atomic.Uint64
}

// next returns a new request id.
func (r *requestIDs) next() string {
	var room [32]byte
	id := strconv.AppendUint(room[:0], uint64(r.boot)|1<<32, 16)[1:] // with leading zeros
	return string(strconv.AppendUint(append(id, '-'), r.last.Add(1), 16))
}

// idKey is the user value of a request's new id.
type idKey struct{}

const idMax = 128 // bytes of a client's own request id

// id returns the request's id: the client's X-Request-Id if it is valid, else a new one.
func (s *Server) id(ctx *fasthttp.RequestCtx) string {
	if id := ctx.Request.Header.PeekBytes(headerRequestID); isID(id) {
		return string(id)
	}
	if id, ok := ctx.UserValue(idKey{}).(string); ok {
		return id
	}
	id := s.ids.next()
	ctx.SetUserValue(idKey{}, id)
	return id
}

// isID reports whether a client's id may be copied to headers and logs.
func isID(id []byte) bool {
	if len(id) == 0 || len(id) > idMax {
		return false
	}
	for _, c := range id {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return true
}

// unchanged reports whether an If-None-Match line of a request is "*" or lists tag, weak or
// strong. tag is quoted and of fixed length, so searching for its bytes is enough.
func unchanged(h *fasthttp.RequestHeader, tag []byte) bool {
	for _, line := range h.PeekAll(fasthttp.HeaderIfNoneMatch) {
		if bytes.Contains(line, tag) || string(line) == "*" {
			return true
		}
	}
	return false
}

// cors adds the headers that let pages of the configured origins read the response. e is nil
// if the path is not known.
func (s *Server) cors(ctx *fasthttp.RequestCtx, e *entry) {
	if len(s.cfg.CORSOrigins) == 0 {
		return
	}
	h := &ctx.Response.Header
	allowed := "*"
	if !s.anyOrigin {
		allowed = string(ctx.Request.Header.PeekBytes(headerOrigin))
		if !slices.ContainsFunc(s.cfg.CORSOrigins, func(o string) bool { return strings.EqualFold(o, allowed) }) {
			return
		}
		if e != nil && e.read != nil && e.read.cookie != "" && !ctx.IsPost() {
			h.Set("Access-Control-Allow-Credentials", "true")
		}
	}
	h.Set("Access-Control-Allow-Origin", allowed)
	h.Set("Access-Control-Expose-Headers", "ETag, Age, Link, Retry-After, Spillway-Detail, Spillway-Next-At, Spillway-Offset, "+
		"Spillway-Reason, Spillway-Show, Spillway-Source, X-Request-Id")
	if ctx.IsOptions() && e != nil {
		h.Set("Access-Control-Allow-Methods", e.allow)
		h.Set("Access-Control-Allow-Headers", s.allowHeaders(e))
		h.Set("Access-Control-Max-Age", "600")
	}
}

// loggedURI returns the path of a request and the parameters that select a page. The values
// of others may be tokens. They are left out, and "…" stands for them.
func (s *Server) loggedURI(ctx *fasthttp.RequestCtx) string {
	uri := []byte(s.loggedPath(ctx))
	separator, hidden := byte('?'), false
	for name, value := range ctx.QueryArgs().All() {
		switch string(name) {
		case "limit", "offset", "before":
			uri = append(append(append(append(uri, separator), name...), '='), value...)
			separator = '&'
		default:
			hidden = true
		}
	}
	if hidden {
		uri = append(append(uri, separator), "…"...)
	}
	return string(uri)
}

// loggedPath returns the path of a request as its client has written it, but with the names of its parameters.
func (s *Server) loggedPath(ctx *fasthttp.RequestCtx) string {
	if at := s.pathParams(ctx); at != nil {
		return at.Text
	}
	return string(ctx.URI().PathOriginal())
}

// client returns the client's address. Behind trusted proxies it is the last address in
// X-Forwarded-For that is not a trusted proxy.
func (s *Server) client(ctx *fasthttp.RequestCtx) string {
	if address := s.clientAddress(ctx); address.IsValid() {
		return address.String()
	}
	return ctx.RemoteAddr().String()
}

// clientAddress returns the client's address, without a zone. It is not valid if the peer has
// no address.
func (s *Server) clientAddress(ctx *fasthttp.RequestCtx) netip.Addr {
	peer, ok := netip.AddrFromSlice(ctx.RemoteIP())
	if !ok {
		return netip.Addr{}
	}
	peer = peer.Unmap()
	if !s.trusts(peer) {
		return peer
	}
	lines := ctx.Request.Header.PeekAll("X-Forwarded-For") // a proxy may add a line of its own
	hops := strings.Split(string(bytes.Join(lines, []byte(","))), ",")
	for i := len(hops) - 1; i >= 0 && s.trusts(peer); i-- {
		hop, ok := parseHop(strings.TrimSpace(hops[i]))
		if !ok {
			break
		}
		peer = hop.Unmap().WithZone("")
	}
	return peer
}

// network names the client of a request by its address. It returns "" for the machine itself and for proxies, behind which are many.
func (s *Server) network(ctx *fasthttp.RequestCtx) string {
	a := s.clientAddress(ctx)
	if !a.IsValid() || a.IsLoopback() || s.trusts(a) {
		return ""
	}
	return networkOf(a).String()
}

// parseHop reads an address of X-Forwarded-For, which some proxies write with a port, and in brackets.
func parseHop(text string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr(), true
	}
	inner, bracketed := strings.CutPrefix(text, "[")
	if bracketed {
		inner, bracketed = strings.CutSuffix(inner, "]")
	}
	hop, err := netip.ParseAddr(inner)
	return hop, err == nil && bracketed == (inner != text)
}

func (s *Server) trusts(a netip.Addr) bool {
	for _, p := range s.cfg.Proxies {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Names and values of headers. fasthttp uses them without allocation or normalization.
var (
	headerAge           = []byte("Age")
	headerAuthorization = []byte("Authorization")
	headerCacheControl  = []byte("Cache-Control")
	headerETag          = []byte("ETag") // canonical in HTTP's own spelling
	headerLink          = []byte("Link")
	headerNextAt        = []byte("Spillway-Next-At")
	headerOffset        = []byte("Spillway-Offset")
	headerOrigin        = []byte("Origin")
	headerReason        = []byte("Spillway-Reason")
	headerRequestID     = []byte("X-Request-Id")
	headerSource        = []byte("Spillway-Source")
	headerTraceparent   = []byte("Traceparent")
	headerVary          = []byte("Vary")

	typeBytes = []byte("application/octet-stream")
	typeJSON  = []byte("application/json")
	typeText  = []byte("text/plain; charset=utf-8")

	noStore        = []byte("no-store")
	privateNoStore = []byte("private, no-store")

	feedSources  = [...][]byte{feed.FromWindow: []byte("window"), feed.FromDatabase: []byte("database")}
	querySources = [...][]byte{query.FromDatabase: []byte("database"), query.FromMemory: []byte("memory"), query.FromShared: []byte("redis")}
)
