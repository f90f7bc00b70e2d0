package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/valyala/fasthttp"
)

// IdentityConfig describes the JSON Web Token that identifies a user. Only one algorithm is
// accepted, so that a token cannot choose a weaker one.
type IdentityConfig struct {
	Header    string // of the request; in Authorization the token follows Bearer
	Algorithm string // HS256, RS256 or EdDSA
	Key       []byte // the key for HS256, otherwise the public key in PEM
	Claim     string // with the user's id, as text or a whole number
	Issuer    string // "": any
	Audience  string // "": any
}

// allowedHeaders are the request headers that CORS permits.
const allowedHeaders = "Authorization, Content-Encoding, Content-Type, Idempotency-Key, If-None-Match, X-Request-Id"

// allowHeaders returns the request headers that CORS permits for e. Those of popups include
// the header of the user's token.
func (s *Server) allowHeaders(e *entry) string {
	p := s.cfg.Popup
	if p == nil || p.Identity == nil || e != s.routes[p.Path] && e != s.routes[p.Path+"/click"] && e != s.routes[p.Path+"/dismiss"] {
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

// rsaBitsMin is the minimum key size for RS256 (RFC 7518).
const rsaBitsMin = 2048

// errIdentity: the token is missing or not valid.
var errIdentity = errors.New("not identified")

// errNamesAnother: the token is valid, but the request names another user.
var errNamesAnother = errors.New("the request names another user than its token")

// Identity identifies users by a signed token (JWT, RFC 7519). It is immutable.
type Identity struct {
	cfg    IdentityConfig
	key    any
	parser *jwt.Parser
}

// NewIdentity checks a configuration and its key.
func NewIdentity(cfg IdentityConfig) (*Identity, error) {
	key, err := verificationKey(cfg)
	if err != nil {
		return nil, fmt.Errorf("identity: read the key for %s: %w", cfg.Algorithm, err)
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods([]string{cfg.Algorithm}), jwt.WithExpirationRequired(), jwt.WithLeeway(identityLeeway),
		jwt.WithJSONNumber(), jwt.WithStrictDecoding(),
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	return &Identity{cfg: cfg, key: key, parser: jwt.NewParser(options...)}, nil
}

// verificationKey parses the key for the algorithm.
func verificationKey(cfg IdentityConfig) (any, error) {
	switch cfg.Algorithm {
	case "HS256":
		if len(cfg.Key) < sha256.Size {
			return nil, fmt.Errorf("it must have %d bytes or more", sha256.Size)
		}
		return cfg.Key, nil
	case "RS256":
		key, err := jwt.ParseRSAPublicKeyFromPEM(cfg.Key)
		if err == nil && key.N.BitLen() < rsaBitsMin {
			err = fmt.Errorf("it has %d bits and must have %d or more", key.N.BitLen(), rsaBitsMin)
		}
		return key, err
	case "EdDSA":
		return jwt.ParseEdPublicKeyFromPEM(cfg.Key)
	}
	return nil, errors.New("the algorithm must be HS256, RS256 or EdDSA")
}

// user returns the user's id from the token of a request. Errors wrap errIdentity.
func (d *Identity) user(h *fasthttp.RequestHeader) (string, error) {
	token := h.Peek(d.cfg.Header)
	if strings.EqualFold(d.cfg.Header, fasthttp.HeaderAuthorization) {
		scheme, rest, _ := bytes.Cut(token, []byte(" "))
		if len(token) > 0 && !bytes.EqualFold(scheme, []byte("Bearer")) {
			return "", refused("the header Authorization must be Bearer TOKEN")
		}
		token = rest
	}
	token = bytes.TrimSpace(token)
	if len(token) == 0 {
		return "", refused("send a JWT in the header " + d.cfg.Header)
	}
	return d.claimed(string(token))
}

// claimed verifies a token and returns the user's id.
func (d *Identity) claimed(token string) (string, error) {
	claims := jwt.MapClaims{}
	if _, err := d.parser.ParseWithClaims(token, claims, d.keyOf); err != nil {
		return "", refused("the JWT is not valid: " + err.Error())
	}
	user := idText(claims[d.cfg.Claim])
	if user == "" {
		return "", refused("the JWT has no claim " + d.cfg.Claim + " with text or a whole number")
	}
	return user, nil
}

// keyOf returns the key. It refuses tokens with extensions (crit), as RFC 7515 requires and
// the parser does not.
func (d *Identity) keyOf(token *jwt.Token) (any, error) {
	if _, asks := token.Header["crit"]; asks {
		return nil, errors.New("no extensions are known, and it asks for some (crit)")
	}
	return d.key, nil
}

// idText returns the text of a claim, or the digits of a whole number; otherwise "".
func idText(claim any) string {
	switch claim := claim.(type) {
	case string:
		return claim
	case json.Number:
		if digits := strings.TrimPrefix(claim.String(), "-"); strings.Trim(digits, "0123456789") == "" {
			return claim.String()
		}
	}
	return ""
}

func refused(why string) error { return fmt.Errorf("%w: %s", errIdentity, why) }
