package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"net/url"
	"strings"

	"github.com/valyala/fasthttp"
)

// keyring holds the hashes of the write paths' bearer keys. Hashes have equal lengths, so
// that the time of a comparison does not depend on a key's.
type keyring [][sha256.Size]byte

func newKeyring(keys []string) keyring {
	var ring keyring
	for _, key := range keys {
		ring = append(ring, sha256.Sum256([]byte(key)))
	}
	return ring
}

// accepts reports whether an Authorization header contains one of the keys. Its time does
// not depend on which.
func (k keyring) accepts(header []byte) bool {
	scheme, key, _ := bytes.Cut(header, []byte(" "))
	if !bytes.EqualFold(scheme, []byte("Bearer")) {
		return false
	}
	got := sha256.Sum256(bytes.TrimSpace(key))
	found := 0
	for i := range k {
		found |= subtle.ConstantTimeCompare(got[:], k[i][:])
	}
	return found == 1
}

// mayWrite reports whether a request may store anything; if not, it has responded. Without
// configured keys all requests may, except those of web pages from other origins: such a
// page could write through a browser on this machine.
func (s *Server) mayWrite(ctx *fasthttp.RequestCtx) bool {
	header := &ctx.Request.Header
	if len(s.keys) > 0 {
		if !s.keys.accepts(header.PeekBytes(s.names.authorization)) {
			s.unauthorized(ctx)
			return false
		}
		return true
	}
	if origin := header.PeekBytes(s.names.originHeader); len(origin) > 0 && !s.allowsOrigin(string(origin)) {
		s.problem(ctx, badOrigin, "pages of this origin may not write while no keys are set: add it to http.cors_origins, or set keys")
		return false
	}
	return true
}

func (s *Server) unauthorized(ctx *fasthttp.RequestCtx) {
	s.problem(ctx, noKey, `send the header "Authorization: Bearer KEY" with one of the configured keys`)
	ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="spillway"`)
}

// allowsOrigin reports whether pages of an origin may write: those listed, and those of
// this machine.
func (s *Server) allowsOrigin(origin string) bool {
	for _, o := range s.cfg.CORSOrigins {
		if o == "*" || strings.EqualFold(o, origin) {
			return true
		}
	}
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && address.IsLoopback()
}

// lacksKey reports whether a route requires a key that the request does not have.
func (s *Server) lacksKey(r *route, h *fasthttp.RequestHeader) bool {
	return r.keyed && len(s.keys) > 0 && !s.keys.accepts(h.PeekBytes(s.names.authorization))
}
