package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/token"
)

// IdentityConfig describes the JSON Web Token that identifies the user of popups. Only one
// algorithm is accepted, so that a token cannot choose a weaker one.
type IdentityConfig struct {
	Header    string // of the request; in Authorization the token follows Bearer
	Algorithm string // HS256, RS256, ES256 or EdDSA
	Key       []byte // the key for HS256, otherwise the public key in PEM
	Claim     string // with the user's id, as text or a whole number
	Issuer    string // "": any
	Audience  string // "": any
}

// allowedHeaders are the request headers that CORS permits.
const allowedHeaders = "Authorization, Content-Encoding, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Request-Id"

// allowHeaders returns the request headers that CORS permits for e. Those of popups include
// the header of the user's token.
func (s *Server) allowHeaders(e *entry) string {
	p := s.cfg.Popup
	if p == nil || p.Identity == nil || !slices.ContainsFunc(popupPaths, func(path string) bool { return e == s.routes[p.Path+path] }) {
		return allowedHeaders
	}
	for name := range strings.SplitSeq(allowedHeaders, ", ") {
		if strings.EqualFold(name, p.Identity.cfg.Header) {
			return allowedHeaders
		}
	}
	return allowedHeaders + ", " + p.Identity.cfg.Header
}

// identityLeeway is the permitted difference between the issuer's clock and ours.
const identityLeeway = 30 * time.Second

// errIdentity: the token is missing or not valid.
var errIdentity = errors.New("not identified")

// errNamesAnother: the token is valid, but the request names another user.
var errNamesAnother = errors.New("the request names another user than its token")

// Identity identifies users by a signed token (JWT, RFC 7519). It is immutable.
type Identity struct {
	cfg      IdentityConfig
	verifier *token.Verifier
}

// NewIdentity checks a configuration and its key.
func NewIdentity(cfg IdentityConfig) (*Identity, error) {
	key, err := token.NewKey("", cfg.Algorithm, cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	verifier := token.NewVerifier(token.Config{Keys: []token.Key{key}, Issuer: cfg.Issuer, Audience: cfg.Audience, Leeway: identityLeeway})
	return &Identity{cfg: cfg, verifier: verifier}, nil
}

// user returns the user's id from the token of a request. Errors wrap errIdentity.
func (d *Identity) user(h *fasthttp.RequestHeader) (string, error) {
	text := h.Peek(d.cfg.Header)
	if strings.EqualFold(d.cfg.Header, fasthttp.HeaderAuthorization) {
		scheme, rest, _ := bytes.Cut(text, []byte(" "))
		if len(text) > 0 && !bytes.EqualFold(scheme, []byte("Bearer")) {
			return "", refused("the header Authorization must be Bearer TOKEN")
		}
		text = rest
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return "", refused("send a JWT in the header " + d.cfg.Header)
	}
	return d.claimed(string(text))
}

// claimed verifies a token and returns the user's id.
func (d *Identity) claimed(text string) (string, error) {
	claims, err := d.verifier.Verify(context.Background(), text) // its key is known: it never waits
	if err != nil {
		return "", refused(err.Error())
	}
	user := claims.Text(d.cfg.Claim)
	if user == "" {
		return "", refused("the JWT has no claim " + d.cfg.Claim + " with text or a whole number")
	}
	return user, nil
}

func refused(why string) error { return fmt.Errorf("%w: %s", errIdentity, why) }
