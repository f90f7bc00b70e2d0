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

// keyring holds the bearer keys of the write paths by their hashes: equal lengths, so
// that comparing tells nothing of a key's.
type keyring [][sha256.Size]byte

func newKeyring(keys []string) keyring {
	var ring keyring
	for _, key := range keys {
		ring = append(ring, sha256.Sum256([]byte(key)))
	}
	return ring
}

// opens reports whether an Authorization header holds one of the keys. It takes the
// same time whichever that is.
func (k keyring) opens(header []byte) bool {
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

// mayWrite reports whether a request may store anything. If not, it has been
// answered. Without keys anybody who reaches the listener may, but a web page of
// another origin: it could use a browser on this machine to write.
func (s *Server) mayWrite(ctx *fasthttp.RequestCtx) bool {
	header := &ctx.Request.Header
	if len(s.keys) > 0 {
		if !s.keys.opens(header.PeekBytes(s.names.authorization)) {
			s.unauthorized(ctx)
			return false
		}
		return true
	}
	if origin := header.PeekBytes(s.names.originHeader); len(origin) > 0 && !s.allowsOrigin(string(origin)) {
		s.problem(ctx, badOrigin, "without keys, pages of this origin may not write: list it in http.cors_origins, or set keys")
		return false
	}
	return true
}

func (s *Server) unauthorized(ctx *fasthttp.RequestCtx) {
	s.problem(ctx, noKey, `send the header "Authorization: Bearer KEY" with one of the configured keys`)
	ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="spillway"`)
}

// allowsOrigin reports whether pages of an origin may write: those that are listed,
// and those of this machine.
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

// locked reports whether a route asks for a key that a request does not have.
func (s *Server) locked(r *route, h *fasthttp.RequestHeader) bool {
	return r.keyed && len(s.keys) > 0 && !s.keys.opens(h.PeekBytes(s.names.authorization))
}
