package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/config"
	"spillway/internal/serve/token"
)

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
		if strings.EqualFold(name, p.Identity.Header) {
			return allowedHeaders
		}
	}
	return allowedHeaders + ", " + p.Identity.Header
}

// errIdentity: the token is missing or not valid.
var errIdentity = errors.New("not identified")

// errNamesAnother: the token is valid, but the request names another user.
var errNamesAnother = errors.New("the request names another user than its token")

// Identity says where requests have the JWT that names their user. Config.Tokens verifies it.
type Identity config.Identity

// user returns the user's id from the token of a request. Errors wrap errIdentity or token.ErrUnavailable.
func (d *Identity) user(ctx context.Context, tokens *token.Verifier, h *fasthttp.RequestHeader) (string, error) {
	text := bytes.TrimSpace(h.Peek(d.Header))
	if strings.EqualFold(d.Header, fasthttp.HeaderAuthorization) && len(text) > 0 {
		var ok bool
		if text, ok = bearer(text); !ok {
			return "", refused("the header Authorization must be Bearer TOKEN")
		}
	}
	if len(text) == 0 {
		return "", refused("send a JWT in the header " + d.Header)
	}
	return d.claimed(ctx, tokens, string(text))
}

// claimed verifies a token and returns the user's id.
func (d *Identity) claimed(ctx context.Context, tokens *token.Verifier, text string) (string, error) {
	claims, err := tokens.Verify(ctx, text)
	if errors.Is(err, token.ErrUnavailable) {
		return "", err
	}
	if err != nil {
		return "", refused(err.Error())
	}
	user := claims.Text(d.Claim)
	if user == "" {
		return "", refused("the JWT has no claim " + d.Claim + " with text or a whole number")
	}
	return user, nil
}

func refused(why string) error { return fmt.Errorf("%w: %s", errIdentity, why) }
