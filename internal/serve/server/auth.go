package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/netip"
	"net/url"
	"strings"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/queue"
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
	key, ok := bearer(header)
	if !ok {
		return false
	}
	got := sha256.Sum256(key)
	found := 0
	for i := range k {
		found |= subtle.ConstantTimeCompare(got[:], k[i][:])
	}
	return found == 1
}

// bearer returns the key of an Authorization header.
func bearer(header []byte) (key []byte, ok bool) {
	scheme, key, _ := bytes.Cut(header, []byte(" "))
	return bytes.TrimSpace(key), bytes.EqualFold(scheme, []byte("Bearer"))
}

// headerKey is the name of the header with an idempotency key.
const headerKey = "Idempotency-Key"

// scoped returns the idempotency key of a request that mayWrite has let through. With
// configured keys it is scoped to a hash of the client's, so that clients with different keys
// cannot see or block each other's requests.
func (s *Server) scoped(ctx *fasthttp.RequestCtx, key []byte) string {
	if len(s.keys) == 0 {
		return string(key)
	}
	client, _ := bearer(ctx.Request.Header.PeekBytes(s.names.authorization))
	subject := sha256.Sum256(append([]byte("idempotency\x00"), client...))
	return queue.ScopeKey(hex.EncodeToString(subject[:8]), string(key))
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
