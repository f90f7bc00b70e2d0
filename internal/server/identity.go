package server

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// IdentityConfig says what a JSON Web Token must be to tell who the user is. There is
// one algorithm, so that a token cannot choose another.
type IdentityConfig struct {
	Header    string // of the request; Authorization: the token stands behind Bearer
	Algorithm string // HS256, RS256 or EdDSA
	Key       []byte // HS256: the key; else the public key in PEM
	Claim     string // that holds the user's id: text, or a whole number
	Issuer    string // "": any
	Audience  string // "": any
}

// identityLeeway is how much the clock of who signs may differ from ours.
const identityLeeway = 30 * time.Second

// rsaBitsMin is the smallest RSA key that RFC 7518 lets sign.
const rsaBitsMin = 2048

// errIdentity: the token is missing or not good.
var errIdentity = errors.New("not identified")

// errNamesAnother: the token is good, but the request is about another user.
var errNamesAnother = errors.New("the request names another user than its token")

// Identity finds out from a signed token (JWT, RFC 7519) whose request it is. It does
// not change and may be used concurrently.
type Identity struct {
	cfg    IdentityConfig
	verify func(signed, signature []byte) bool
}

// NewIdentity checks the configuration and its key.
func NewIdentity(cfg IdentityConfig) (*Identity, error) {
	d := &Identity{cfg: cfg}
	if cfg.Algorithm == "HS256" {
		if len(cfg.Key) < sha256.Size {
			return nil, fmt.Errorf("identity: a key for HS256 has %d bytes or more", sha256.Size)
		}
		d.verify = func(signed, signature []byte) bool {
			mac := hmac.New(sha256.New, cfg.Key)
			mac.Write(signed)
			return hmac.Equal(signature, mac.Sum(nil))
		}
		return d, nil
	}
	key, err := publicKey(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("identity: read the public key: %w", err)
	}
	switch key := key.(type) {
	case *rsa.PublicKey:
		if cfg.Algorithm != "RS256" || key.N.BitLen() < rsaBitsMin {
			return nil, fmt.Errorf("identity: an RSA key of %d bits is for RS256, and of %d bits or more", key.N.BitLen(), rsaBitsMin)
		}
		d.verify = func(signed, signature []byte) bool {
			sum := sha256.Sum256(signed)
			return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil
		}
	case ed25519.PublicKey:
		if cfg.Algorithm != "EdDSA" {
			return nil, errors.New("identity: an Ed25519 key is for EdDSA")
		}
		d.verify = func(signed, signature []byte) bool { return ed25519.Verify(key, signed, signature) }
	default:
		return nil, fmt.Errorf("identity: a key of the kind %T cannot be used with %s", key, cfg.Algorithm)
	}
	return d, nil
}

// publicKey reads a public key or a certificate in PEM.
func publicKey(text []byte) (any, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is not in PEM")
	}
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return certificate.PublicKey, nil
	}
	return nil, fmt.Errorf("the PEM block is a %s, not a PUBLIC KEY", block.Type)
}

// user returns the user's id from the token of a request. Errors wrap errIdentity and
// say what to change.
func (d *Identity) user(h *fasthttp.RequestHeader, now time.Time) (string, error) {
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
	payload, err := d.open(token)
	if err != nil {
		return "", err
	}
	return d.claimed(payload, now)
}

// open checks a token's form and signature and returns its claims.
func (d *Identity) open(token []byte) ([]byte, error) {
	end := bytes.LastIndexByte(token, '.')
	if end < 0 || bytes.Count(token, []byte(".")) != 2 {
		return nil, refused("the JWT must be three parts with dots between them")
	}
	head, body, _ := bytes.Cut(token[:end], []byte("."))
	var header struct {
		Algorithm string   `json:"alg"`
		Critical  []string `json:"crit"`
	}
	decoded, err := decodePart(head)
	if err != nil || json.Unmarshal(decoded, &header) != nil {
		return nil, refused("the JWT's header cannot be read")
	}
	if header.Algorithm != d.cfg.Algorithm || len(header.Critical) > 0 {
		return nil, refused("the JWT must be signed with " + d.cfg.Algorithm + " and ask for no extensions")
	}
	signature, err := decodePart(token[end+1:])
	if err != nil || !d.verify(token[:end], signature) {
		return nil, refused("the JWT's signature is wrong")
	}
	if decoded, err = decodePart(body); err != nil {
		return nil, refused("the JWT's claims cannot be read")
	}
	return decoded, nil
}

// claimed checks the claims of a token that is signed well.
func (d *Identity) claimed(payload []byte, now time.Time) (string, error) {
	var times struct {
		Expires   *float64 `json:"exp"`
		NotBefore float64  `json:"nbf"`
		Issuer    string   `json:"iss"`
		Audience  audience `json:"aud"`
	}
	claims := map[string]json.RawMessage{}
	if json.Unmarshal(payload, &times) != nil || json.Unmarshal(payload, &claims) != nil {
		return "", refused("the JWT's claims cannot be read")
	}
	seconds, leeway := float64(now.UnixMilli())/1000, identityLeeway.Seconds()
	switch {
	case times.Expires == nil:
		return "", refused("the JWT must say when it expires (exp)")
	case seconds >= *times.Expires+leeway:
		return "", refused("the JWT has expired")
	case seconds < times.NotBefore-leeway:
		return "", refused("the JWT is not good yet (nbf)")
	case d.cfg.Issuer != "" && times.Issuer != d.cfg.Issuer:
		return "", refused("the JWT is of another issuer (iss)")
	case d.cfg.Audience != "" && !slices.Contains(times.Audience, d.cfg.Audience):
		return "", refused("the JWT is for another audience (aud)")
	}
	user := idText(claims[d.cfg.Claim])
	if user == "" {
		return "", refused("the JWT has no claim " + d.cfg.Claim + " with text or a whole number")
	}
	return user, nil
}

// audience is the claim aud: one text or a list of them.
type audience []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audience) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// idText returns a claim's text, or the digits of a whole number as they stand there;
// "" for anything else.
func idText(claim json.RawMessage) string {
	var s string
	if json.Unmarshal(claim, &s) == nil {
		return s
	}
	if digits := strings.TrimPrefix(string(claim), "-"); digits != "" && strings.Trim(digits, "0123456789") == "" {
		return string(claim)
	}
	return ""
}

func decodePart(part []byte) ([]byte, error) {
	return base64.RawURLEncoding.Strict().AppendDecode(nil, part)
}

func refused(why string) error { return fmt.Errorf("%w: %s", errIdentity, why) }
