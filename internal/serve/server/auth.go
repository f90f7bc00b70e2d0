package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/token"
)

// Access says what a request to a path must prove.
type Access uint8

// The kinds of access.
const (
	Open    Access = iota // nothing
	Key                   // one of the keys; on a write path without configured keys, as keyless
	Token                 // a JWT
	Any                   // a key or a JWT
	keyless               // nothing, but pages of foreign origins may not write
)

// keyring holds the hashes of bearer keys. Hashes have equal lengths, so that the time of a
// comparison does not depend on a key's.
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

// bearer returns the key or the JWT of an Authorization header.
func bearer(header []byte) (key []byte, ok bool) {
	scheme, key, _ := bytes.Cut(header, []byte(" "))
	return bytes.TrimSpace(key), bytes.EqualFold(scheme, []byte("Bearer"))
}

// claimsOf returns the parameters that are claims of a JWT.
func claimsOf(params []param.Param) []param.Param {
	var claims []param.Param
	for _, p := range params {
		if _, isClaim := p.Claim(); isClaim {
			claims = append(claims, p)
		}
	}
	return claims
}

// guard has a route serve only requests that may pass, if it needs a key or a token or there is a rate limit. The others are
// answered. An event loop does not wait for keys of JWTs: such a request comes again.
func (s *Server) guard(r *route) {
	if r.access == Open && s.rate == nil {
		return
	}
	handle := r.handle
	r.handle = func(ctx *fasthttp.RequestCtx, x *loopRequest) (done handled) {
		wait := s.base
		if x != nil {
			wait = s.noWait
		}
		who, denied := s.identify(wait, ctx, r)
		if x != nil && errors.Is(denied, token.ErrUnavailable) {
			return slow
		}
		done = quick
		if s.admit(ctx, who, denied) {
			done = handle(ctx, x)
		}
		if done == slow && x != nil && s.rate != nil { // the request comes again
			s.rate.giveBack(s.rateClient(ctx, who.name))
		}
		return done
	}
}

// credential returns the Authorization header of a request to a route, or what it would be if
// the route's cookie were sent there. Only routes of GET have a cookie, because a browser adds
// it to requests of foreign pages too.
func (s *Server) credential(r *route, h *fasthttp.RequestHeader) []byte {
	header := h.PeekBytes(headerAuthorization)
	if len(header) > 0 || r.cookie == "" {
		return header
	}
	if value := h.Cookie(r.cookie); len(value) > 0 {
		return append([]byte("Bearer "), value...)
	}
	return nil
}

// admit reports whether a request may pass: it has what its path requires, and its client is
// within the rate limit. If not, admit has responded.
func (s *Server) admit(ctx *fasthttp.RequestCtx, who caller, denied error) bool {
	if s.rate != nil && !s.withinRate(ctx, who.name) {
		return false
	}
	if denied != nil {
		s.deny(ctx, denied)
		return false
	}
	if who.name != "" || who.claims.MapClaims != nil {
		ctx.SetUserValue(callerKey{}, who)
	}
	return true
}

// Errors of identify. Others are those of package token.
var (
	errNoKey    = errors.New(`send the header "Authorization: Bearer KEY" with one of the configured keys`)
	errNoToken  = errors.New(`send a JWT in the header "Authorization: Bearer JWT"`)
	errOrigin   = errors.New("pages of this origin may not write while no keys are set: add it to http.cors_origins, or set keys")
	errSmuggled = errors.New("claims come from the JWT only: omit the parameter")
	errNoClaim  = errors.New("the JWT lacks a claim")
)

// caller is who has sent a request, as far as that is verified.
type caller struct {
	claims token.Claims
	name   string // the key, or the subject and the claims that the path uses; "": not known
}

// callerKey is the user value of a request's caller.
type callerKey struct{}

// identify returns who has sent a request, and why the request must not pass, or nil. It waits for keys of JWTs until wait ends.
func (s *Server) identify(wait context.Context, ctx *fasthttp.RequestCtx, r *route) (who caller, denied error) {
	if r.access == Open {
		return who, nil
	}
	h := &ctx.Request.Header
	if r.access == keyless {
		if origin := h.PeekBytes(headerOrigin); len(origin) > 0 && !s.allowsOrigin(string(origin)) {
			return who, errOrigin
		}
		return who, nil
	}
	credential := s.credential(r, h)
	if r.access != Token && r.keys.accepts(credential) {
		key, _ := bearer(credential)
		return caller{name: string(key)}, nil
	}
	if r.access == Key {
		return who, errNoKey
	}
	claims, err := s.verify(wait, credential)
	if err != nil {
		return who, err
	}
	who = caller{claims, "jwt\x00" + strconv.Quote(claims.Subject())}
	if claims.Subject() == "" && len(r.claims) == 0 {
		who.name = ""
	}
	for _, p := range r.claims {
		name, _ := p.Claim()
		who.name += strconv.Quote(claims.Text(name))
	}
	return who, checkClaims(ctx.QueryArgs(), claims, r.claims)
}

// verify returns the claims of the JWT in an Authorization header.
func (s *Server) verify(wait context.Context, header []byte) (token.Claims, error) {
	text, ok := bearer(header)
	if !ok || len(text) == 0 {
		return token.Claims{}, errNoToken
	}
	return s.cfg.Tokens.Verify(wait, string(text))
}

// checkClaims returns why a request must not pass: it names a claim itself, or its token lacks
// one of params or has a value of another type.
func checkClaims(args *fasthttp.Args, claims token.Claims, params []param.Param) error {
	for name := range args.All() {
		if param.IsClaim(text(name)) {
			return errSmuggled
		}
	}
	for _, p := range params {
		name, _ := p.Claim()
		value := claims.Text(name)
		if value == "" {
			return fmt.Errorf("%w: %s, as text or a whole number", errNoClaim, name)
		}
		if _, err := param.Parse(p, value); err != nil {
			return fmt.Errorf("%w that can be used: %w", errNoClaim, err)
		}
	}
	return nil
}

// given returns the text of a parameter: the verified claim for claim.NAME, which identify has
// checked, and otherwise what the request says, in its path or behind it; nil if it says nothing.
func given(ctx *fasthttp.RequestCtx, at *param.Path, p param.Param) []byte {
	name, isClaim := p.Claim()
	if !isClaim {
		if at != nil {
			if value := at.Value(pathOf(&ctx.Request.Header), p.Name); value != nil {
				return value
			}
		}
		args := ctx.QueryArgs()
		value := args.Peek(p.Name)
		if value == nil && args.Has(p.Name) { // an empty value can be nil
			value = []byte{}
		}
		return value
	}
	who, _ := ctx.UserValue(callerKey{}).(caller)
	if value := who.claims.Text(name); value != "" {
		return []byte(value)
	}
	return nil
}

// arguments appends the arguments of params to args. They share the request's memory. Errors
// are for the client.
func (s *Server) arguments(ctx *fasthttp.RequestCtx, params []param.Param, args []string) ([]string, error) {
	at := s.pathParams(ctx)
	for _, p := range params {
		var arg string
		var err error
		if value := given(ctx, at, p); value == nil {
			arg, err = param.Argument(p)
		} else if p.ListMax == 0 {
			arg, err = param.Argument(p, text(value))
		} else {
			var list []string
			for _, value := range ctx.QueryArgs().PeekMulti(p.Name) {
				list = append(list, text(value))
			}
			arg, err = param.Argument(p, list...)
		}
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return args, nil
}

// deny answers a request that must not pass.
func (s *Server) deny(ctx *fasthttp.RequestCtx, why error) {
	switch {
	case errors.Is(why, errSmuggled):
		s.problem(ctx, badRequest, why.Error())
	case errors.Is(why, errOrigin):
		s.problem(ctx, badOrigin, why.Error())
	case errors.Is(why, errNoClaim):
		s.problem(ctx, noClaim, why.Error())
	case errors.Is(why, token.ErrUnavailable):
		s.unavailable(ctx, keysAway, "the keys that verify JWTs cannot be fetched now; retry later", why)
	default:
		s.problem(ctx, noKey, why.Error())
		challenge := `Bearer realm="spillway"`
		if errors.Is(why, token.ErrInvalid) {
			challenge += `, error="invalid_token"`
		}
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, challenge)
	}
}

// headerKey is the name of the header with an idempotency key.
const headerKey = "Idempotency-Key"

// scoped returns the idempotency key of a request that admit has let through. It is scoped to
// a hash of the caller, so that clients cannot see or block each other's requests. If the
// caller is not known, it is not scoped.
func (s *Server) scoped(ctx *fasthttp.RequestCtx, key []byte) string {
	who, _ := ctx.UserValue(callerKey{}).(caller)
	if who.name == "" {
		return string(key)
	}
	subject := sha256.Sum256([]byte("idempotency\x00" + who.name))
	return queue.ScopeKey(hex.EncodeToString(subject[:8]), string(key))
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

// lacksKey returns why the header of a request to a route does not have the key or the token
// that the route requires; nil if it does.
func (s *Server) lacksKey(r *route, h *fasthttp.RequestHeader) error {
	credential := h.PeekBytes(headerAuthorization)
	switch {
	case r.access == Open, r.access == keyless, r.access != Token && r.keys.accepts(credential):
		return nil
	case r.access == Key:
		return errNoKey
	case !large(h): // admit verifies the token
		return nil
	}
	_, err := s.verify(s.base, credential)
	return err
}
