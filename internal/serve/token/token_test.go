package token

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testSecret = "0123456789abcdef0123456789abcdef"

// testKeys are one key of each kind.
type testKeys struct {
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
	ed  ed25519.PrivateKey
}

// someKeys and otherKeys are made once, because RSA keys take long.
var someKeys, otherKeys = sync.OnceValues(makeKeys), sync.OnceValues(makeKeys)

func makeKeys() (keys testKeys, err error) {
	var errs [3]error
	keys.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	keys.ec, errs[1] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, keys.ed, errs[2] = ed25519.GenerateKey(rand.Reader)
	return keys, errors.Join(errs[:]...)
}

// take returns keys that were made.
func take(tb testing.TB, made func() (testKeys, error)) testKeys {
	tb.Helper()
	keys, err := made()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// set returns the public keys as a key set, with the kids rsa, ec and ed.
func (k testKeys) set(tb testing.TB) []map[string]any {
	tb.Helper()
	point, err := k.ec.PublicKey.Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	return []map[string]any{
		{"kty": "RSA", "kid": "rsa", "use": "sig", "n": text(k.rsa.N.Bytes()), "e": "AQAB"},
		{"kty": "EC", "kid": "ec", "crv": "P-256", "alg": "ES256", "x": text(point[1:33]), "y": text(point[33:])},
		{"kty": "OKP", "kid": "ed", "crv": "Ed25519", "key_ops": []string{"verify"}, "x": text(k.ed.Public().(ed25519.PublicKey))},
	}
}

func setJSON(tb testing.TB, keys ...map[string]any) []byte {
	tb.Helper()
	data, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func publicPEM(tb testing.TB, key any) []byte {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// signed makes a token with a library that is not under test for its header and claims.
func signed(tb testing.TB, algorithm, kid string, key any, claims jwt.MapClaims) string {
	tb.Helper()
	t := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), claims)
	if kid != "" {
		t.Header["kid"] = kid
	}
	text, err := t.SignedString(key)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

// forged makes a token of any texts with an HMAC.
func forged(header, payload string, key []byte) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func in(d time.Duration) int64 { return time.Now().Add(d).Unix() }

func claimsOf(change jwt.MapClaims) jwt.MapClaims {
	all := jwt.MapClaims{"sub": "ann", "exp": in(time.Hour), "iss": "us", "aud": []string{"spillway", "other"}}
	for name, value := range change {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

// fetchedVerifier returns a verifier with a key set that was fetched once, and a secret key.
func fetchedVerifier(tb testing.TB, keys testKeys) *Verifier {
	tb.Helper()
	set := NewSet(SetConfig{
		Fetch:   func(context.Context) ([]byte, error) { return setJSON(tb, keys.set(tb)...), nil },
		Refresh: time.Hour, Pause: time.Hour, Timeout: time.Hour, Log: discard(),
	})
	if !set.fetch(tb.Context()) {
		tb.Fatal("not fetched")
	}
	secret, err := NewKey("hs", HS256, []byte(testSecret))
	if err != nil {
		tb.Fatal(err)
	}
	v := NewVerifier(Config{Keys: []Key{secret}, Set: set, Issuer: "us", Audience: "spillway", Leeway: 30 * time.Second})
	return v
}

func TestVerify(t *testing.T) {
	t.Parallel()
	keys := take(t, someKeys)
	synctest.Test(t, func(t *testing.T) { testVerify(t, keys) })
}

func testVerify(t *testing.T, keys testKeys) {
	v := fetchedVerifier(t, keys)
	for name, text := range map[string]string{
		"RS256":         signed(t, RS256, "rsa", keys.rsa, claimsOf(nil)),
		"ES256":         signed(t, ES256, "ec", keys.ec, claimsOf(nil)),
		"EdDSA":         signed(t, EdDSA, "ed", keys.ed, claimsOf(nil)),
		"HS256":         signed(t, HS256, "hs", []byte(testSecret), claimsOf(nil)),
		"no kid":        signed(t, RS256, "", keys.rsa, claimsOf(nil)), // the only key for RS256
		"other clock":   signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"exp": in(-20 * time.Second), "nbf": in(20 * time.Second)})),
		"one audience":  signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"aud": "spillway"})),
		"extra header":  signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"jku": "https://evil.example", "x": strings.Repeat("x", 4000)})),
		"whole seconds": signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"exp": float64(in(time.Hour)) + 0.5})),
	} {
		claims, err := v.Verify(t.Context(), text)
		if err != nil || claims.Text("sub") != "ann" || claims.Subject() != "us\x00ann" {
			t.Errorf("%s: %v, %v", name, claims, err)
		}
	}
}

// Each of these tokens is an attack, or is not for us.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	keys, other := take(t, someKeys), take(t, otherKeys)
	synctest.Test(t, func(t *testing.T) { testVerifyRefuses(t, keys, other) })
}

func testVerifyRefuses(t *testing.T, keys, other testKeys) {
	v := fetchedVerifier(t, keys)
	rsaPEM := publicPEM(t, keys.rsa.Public())
	good := signed(t, RS256, "rsa", keys.rsa, claimsOf(nil))
	payload := fmt.Sprintf(`{"sub":"ann","exp":%d,"iss":"us","aud":"spillway"}`, in(time.Hour))
	parts := strings.Split(good, ".")
	twice := payload[:len(payload)-1] + `,"sub":"bob"}`
	for name, text := range map[string]string{
		"empty":            "",
		"two parts":        "a.b",
		"five parts":       good + ".a.b",
		"alg none":         forged(`{"alg":"none","kid":"rsa"}`, payload, nil),
		"no signature":     strings.Join(parts[:2], ".") + ".",
		"alg None":         forged(`{"alg":"NoNe","kid":"rsa"}`, payload, nil),
		"no alg":           forged(`{"kid":"rsa"}`, payload, nil),
		"alg twice":        forged(`{"alg":"RS256","kid":"rsa","alg":"HS256"}`, payload, rsaPEM),
		"public as secret": forged(`{"alg":"HS256","kid":"rsa"}`, payload, rsaPEM),
		"modulus":          forged(`{"alg":"HS256","kid":"rsa"}`, payload, keys.rsa.N.Bytes()),
		"no kid, secret":   forged(`{"alg":"HS256"}`, payload, rsaPEM),
		"secret as RSA":    signed(t, RS256, "hs", other.rsa, claimsOf(nil)),
		"other RSA":        signed(t, RS256, "rsa", other.rsa, claimsOf(nil)),
		"other EC":         signed(t, ES256, "ec", other.ec, claimsOf(nil)),
		"other Ed":         signed(t, EdDSA, "ed", other.ed, claimsOf(nil)),
		"other secret":     signed(t, HS256, "hs", []byte(strings.Repeat("x", 32)), claimsOf(nil)),
		"kid of other":     signed(t, ES256, "rsa", keys.ec, claimsOf(nil)),
		"RS512":            signed(t, "RS512", "rsa", keys.rsa, claimsOf(nil)),
		"PS256":            signed(t, "PS256", "rsa", keys.rsa, claimsOf(nil)),
		"HS512":            signed(t, "HS512", "hs", []byte(testSecret), claimsOf(nil)),
		"kid path":         forged(`{"alg":"HS256","kid":"../../dev/null"}`, payload, nil),
		"kid number":       forged(`{"alg":"HS256","kid":7}`, payload, []byte(testSecret)),
		"kid null":         forged(`{"alg":"HS256","kid":null}`, payload, []byte(testSecret)),
		"kid list":         forged(`{"alg":"HS256","kid":["hs"]}`, payload, []byte(testSecret)),
		"kid empty":        forged(`{"alg":"HS256","kid":""}`, payload, []byte(testSecret)),
		"own key":          forged(`{"alg":"HS256","jwk":{"kty":"oct","k":"AAAA"}}`, payload, make([]byte, 3)),
		"crit":             forged(`{"alg":"HS256","kid":"hs","crit":["exp"]}`, payload, []byte(testSecret)),
		"crit null":        forged(`{"alg":"HS256","kid":"hs","crit":null}`, payload, []byte(testSecret)),
		"claim twice":      forged(`{"alg":"HS256","kid":"hs"}`, twice, []byte(testSecret)),
		"claims no object": forged(`{"alg":"HS256","kid":"hs"}`, `["sub"]`, []byte(testSecret)),
		"claims null":      forged(`{"alg":"HS256","kid":"hs"}`, `null`, []byte(testSecret)),
		"expired":          signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"exp": in(-time.Minute)})),
		"no expiry":        signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"exp": nil})),
		"expiry as text":   signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"exp": fmt.Sprint(in(time.Hour))})),
		"not yet":          signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"nbf": in(time.Minute)})),
		"audience":         signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"aud": "other"})),
		"no audience":      signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"aud": nil})),
		"audience prefix":  signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"aud": []string{"spillway2"}})),
		"issuer":           signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"iss": "them"})),
		"huge":             signed(t, RS256, "rsa", keys.rsa, claimsOf(jwt.MapClaims{"x": strings.Repeat("x", BytesMax)})),
		"deep":             forged(`{"alg":"HS256","kid":"hs"}`, strings.Repeat("[", 3000), []byte(testSecret)),
		"trailing bits":    good[:len(good)-1] + string(good[len(good)-1]+1),
		"padding":          good + "=",
	} {
		if claims, err := v.Verify(t.Context(), text); !errors.Is(err, ErrInvalid) || claims.MapClaims != nil {
			t.Errorf("%s: %v, %v", name, claims, err)
		}
	}
}

// A verifier without kids has one key, and uses it for all tokens.
func TestVerifyOneKey(t *testing.T) {
	t.Parallel()
	keys := take(t, someKeys)
	key, err := NewKey("", ES256, publicPEM(t, keys.ec.Public()))
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(Config{Keys: []Key{key}, ExpiryOptional: true, NotBeforeRequired: true})
	for _, kid := range []string{"", "any"} {
		if _, err := v.Verify(t.Context(), signed(t, ES256, kid, keys.ec, jwt.MapClaims{"nbf": in(-time.Second)})); err != nil {
			t.Error(err)
		}
	}
	for name, text := range map[string]string{
		"no nbf": signed(t, ES256, "", keys.ec, jwt.MapClaims{}),
		"EdDSA":  signed(t, EdDSA, "", keys.ed, jwt.MapClaims{"nbf": in(-time.Second)}),
	} {
		if _, err := v.Verify(t.Context(), text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewKeyRefuses(t *testing.T) {
	t.Parallel()
	keys := take(t, someKeys)
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		algorithm string
		text      []byte
	}{
		{HS256, []byte("short")},
		{HS256, publicPEM(t, keys.rsa.Public())}, // everybody could sign with it
		{RS256, publicPEM(t, short.Public())},
		{RS256, publicPEM(t, keys.ec.Public())},
		{ES256, publicPEM(t, p384.Public())},
		{ES256, publicPEM(t, keys.ed.Public())},
		{EdDSA, publicPEM(t, keys.rsa.Public())},
		{"none", nil},
		{"RS512", publicPEM(t, keys.rsa.Public())},
	} {
		if _, err := NewKey("", c.algorithm, c.text); err == nil {
			t.Errorf("%s takes %.40q", c.algorithm, c.text)
		}
	}
}

func TestClaimsText(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"a b"`: "a b", `98765432109876543210`: "98765432109876543210", `-7`: "-7", `""`: "", `1.5`: "", `1e3`: "", `true`: "", `null`: "", `["a"]`: "", `{"a":1}`: "",
	} {
		var c Claims
		if err := json.Unmarshal([]byte(`{"sub":`+value+`}`), &c); err != nil || c.Text("sub") != want || c.Text("other") != "" {
			t.Errorf("%s: %q, %v", value, c.Text("sub"), err)
		}
	}
}

// FuzzVerify: no token without the key is accepted, and nothing panics.
func FuzzVerify(f *testing.F) {
	key, err := NewKey("", HS256, []byte(testSecret))
	if err != nil {
		f.Fatal(err)
	}
	v := NewVerifier(Config{Keys: []Key{key}})
	f.Add("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIiwiZXhwIjo5OTk5OTk5OTk5fQ.AAAA", `{"alg":"HS256"}`, `{"sub":"1","exp":9999999999,"aud":["a"]}`)
	f.Add("a.b.c", `{"alg":"HS256","kid":1}`, `{"sub":1,"exp":1e300,"nbf":null}`)
	f.Fuzz(func(t *testing.T, text, header, payload string) {
		if claims, err := v.Verify(t.Context(), text); err == nil {
			t.Errorf("%q is taken: %v", text, claims)
		}
		claims, err := v.Verify(t.Context(), forged(header, payload, []byte(testSecret)))
		if err == nil && claims.MapClaims["exp"] == nil {
			t.Errorf("%q has no expiry", payload)
		}
	})
}
