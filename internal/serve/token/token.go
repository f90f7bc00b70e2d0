// Package token verifies JSON Web Tokens (RFC 7519) against configured keys and a JSON Web
// Key Set (RFC 7517) that rotates.
//
// Each key has one algorithm: RS256, ES256, EdDSA or HS256. A token selects a key by kid and
// algorithm together, so it cannot use a key with another algorithm. Keys with HS256 are
// configured. They never come from a key set, because a key set is public.
//
// Failures:
//
//   - While the server of the key set does not answer, the known keys stay valid.
//   - A token with an unknown kid has the key set fetched again, at most once per
//     SetConfig.Pause. It waits for that fetch; tokens with known keys never wait.
//   - If the key set has never been fetched, or the last fetch failed, a token with an
//     unknown key is ErrUnavailable and not ErrInvalid.
//
// The package contains no HTTP.
package token

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// The algorithms of tokens.
const (
	HS256 = "HS256"
	RS256 = "RS256"
	ES256 = "ES256"
	EdDSA = "EdDSA"
)

// BytesMax is the maximum size of a token.
const BytesMax = 8 << 10

// Errors of Verify.
var (
	// ErrInvalid means that the token must not be trusted. The text says why.
	ErrInvalid = errors.New("the JWT is not valid")
	// ErrUnavailable means that the key of the token is not known and cannot be fetched now.
	// Retry later.
	ErrUnavailable = errors.New("the keys of JWTs cannot be fetched now")
)

// Config says which tokens are accepted.
type Config struct {
	Keys []Key
	Set  *Set // nil: only Keys

	Issuer            string        // required iss; "": any
	Audience          string        // required in aud; "": any
	Leeway            time.Duration // permitted difference between the issuer's clock and ours
	ExpiryOptional    bool          // accept tokens without exp
	NotBeforeRequired bool          // refuse tokens without nbf
}

// Verifier verifies tokens. It does not change and may be used concurrently.
type Verifier struct {
	keys   map[keyID]Key
	only   *Key // the only key, for tokens with any kid; else nil
	set    *Set
	parser *jwt.Parser
	leeway time.Duration
}

// NewVerifier returns a verifier. Keys for the same algorithm must have different kids, and there must be a key or a set.
func NewVerifier(cfg Config) *Verifier {
	v := &Verifier{keys: make(map[keyID]Key), set: cfg.Set, leeway: cfg.Leeway}
	for _, key := range cfg.Keys {
		v.keys[keyID{key.Kid, key.Algorithm}] = key
	}
	if len(cfg.Keys) == 1 && cfg.Set == nil && cfg.Keys[0].Kid == "" {
		v.only = &cfg.Keys[0]
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods([]string{HS256, RS256, ES256, EdDSA}), jwt.WithLeeway(cfg.Leeway), jwt.WithStrictDecoding(),
	}
	if !cfg.ExpiryOptional {
		options = append(options, jwt.WithExpirationRequired())
	}
	if cfg.NotBeforeRequired {
		options = append(options, jwt.WithNotBeforeRequired())
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	v.parser = jwt.NewParser(options...)
	return v
}

// Verify returns the claims of a valid token. It waits only for a fetch of the key set, until
// ctx ends; if it has ended, no fetch begins. Errors wrap ErrInvalid or ErrUnavailable. The claims keep no part of text.
func (v *Verifier) Verify(ctx context.Context, text string) (Claims, error) {
	if len(text) > BytesMax {
		return Claims{}, fmt.Errorf("%w: it is longer than %d bytes", ErrInvalid, BytesMax)
	}
	claims := Claims{}
	_, err := v.parser.ParseWithClaims(text, &claims, func(t *jwt.Token) (any, error) { return v.keyOf(ctx, t) })
	switch {
	case errors.Is(err, ErrUnavailable):
		return Claims{}, ErrUnavailable
	case err != nil:
		return Claims{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return claims, nil
}

// Expiry returns when Verify begins to refuse the token of claims; zero if never.
func (v *Verifier) Expiry(claims Claims) time.Time {
	exp, err := claims.GetExpirationTime()
	if err != nil || exp == nil {
		return time.Time{}
	}
	return exp.Add(v.leeway)
}

// keyOf returns the key that must have signed a token. It refuses tokens with extensions
// (crit), as RFC 7515 requires and the parser does not.
func (v *Verifier) keyOf(ctx context.Context, t *jwt.Token) (any, error) {
	if _, asks := t.Header["crit"]; asks {
		return nil, errors.New("no extensions are known, and it asks for some (crit)")
	}
	algorithm := t.Method.Alg()
	if v.only != nil {
		if v.only.Algorithm != algorithm {
			return nil, fmt.Errorf("it must be signed with %s", v.only.Algorithm)
		}
		return v.only.key, nil
	}
	kid, isText := t.Header["kid"].(string)
	if _, given := t.Header["kid"]; given && (!isText || kid == "") {
		return nil, errors.New("its kid is not a text")
	}
	if kid == "" {
		return v.single(ctx, algorithm)
	}
	if key, ok := v.keys[keyID{kid, algorithm}]; ok {
		return key.key, nil
	}
	if v.set == nil || algorithm == HS256 {
		return nil, errNoKey
	}
	return v.set.key(ctx, keyID{kid, algorithm})
}

// errNoKey: no key fits a token.
var errNoKey = errors.New("no key has its kid and algorithm")

// single returns the only key of an algorithm, for a token without kid.
func (v *Verifier) single(ctx context.Context, algorithm string) (any, error) {
	var found []any
	for id, key := range v.keys {
		if id.algorithm == algorithm {
			found = append(found, key.key)
		}
	}
	if v.set != nil && algorithm != HS256 {
		if !v.set.fetched(ctx) {
			return nil, ErrUnavailable
		}
		found = append(found, v.set.all(algorithm)...)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return nil, errors.New("it has no kid")
}

// Claims are the claims of a verified token.
type Claims struct {
	jwt.MapClaims
}

// UnmarshalJSON implements json.Unmarshaler. A claim that is there twice is an error, because
// others may read the other one (RFC 7519, section 4).
func (c *Claims) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return errors.New("the claims are not an object")
	}
	c.MapClaims = make(jwt.MapClaims)
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return errors.New("a claim has no name")
		}
		if _, twice := c.MapClaims[name]; twice {
			return errors.New("a claim is there twice")
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return err // json's own error
		}
		c.MapClaims[name] = value
	}
	return nil
}

// Text returns a claim that is a text or a whole number, as text; otherwise "".
func (c Claims) Text(name string) string {
	switch claim := c.MapClaims[name].(type) {
	case string:
		return claim
	case json.Number:
		if digits := strings.TrimPrefix(claim.String(), "-"); strings.Trim(digits, "0123456789") == "" {
			return claim.String()
		}
	}
	return ""
}

// Subject identifies the user among all issuers; "" if the token does not.
func (c Claims) Subject() string {
	subject := c.Text("sub")
	if subject == "" {
		return ""
	}
	return c.Text("iss") + "\x00" + subject
}
