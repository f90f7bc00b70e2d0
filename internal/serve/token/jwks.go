package token

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
)

// jwk is one key of a key set (RFC 7517, 7518 and 8037).
type jwk struct {
	Type       string   `json:"kty"`
	ID         string   `json:"kid"`
	Use        string   `json:"use"`
	Operations []string `json:"key_ops"`
	Algorithm  string   `json:"alg"`
	Curve      string   `json:"crv"`
	N          octets   `json:"n"`
	E          octets   `json:"e"`
	X          octets   `json:"x"`
	Y          octets   `json:"y"`
}

// octets are bytes in base64url. Padding is accepted, because some issuers write it.
type octets []byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *octets) UnmarshalText(text []byte) (err error) {
	*o, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(string(text), "="))
	return err
}

// parseSet returns the keys of a key set that verify signatures. Others are left out: keys for
// encryption, of unknown types or other algorithms, secret ones, damaged ones, and repeated
// ones. A set without any usable key is an error.
func parseSet(data []byte) (map[keyID]any, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("parse key set: %w", err)
	}
	keys := make(map[keyID]any)
	for _, raw := range set.Keys {
		var one jwk
		if json.Unmarshal(raw, &one) != nil {
			continue
		}
		algorithm, key, err := one.public()
		id := keyID{one.ID, algorithm}
		if _, twice := keys[id]; err != nil || twice {
			continue
		}
		keys[id] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no key for RS256, ES256 or EdDSA")
	}
	return keys, nil
}

// public returns the key and its only algorithm.
func (k *jwk) public() (algorithm string, key any, err error) {
	switch {
	case k.Use != "" && k.Use != "sig", len(k.Operations) > 0 && !slices.Contains(k.Operations, "verify"):
		return "", nil, errors.New("it is not for signatures")
	case k.Type == "RSA":
		algorithm = RS256
		key, err = k.rsa()
	case k.Type == "EC" && k.Curve == "P-256":
		algorithm = ES256
		key, err = k.ecdsa()
	case k.Type == "OKP" && k.Curve == "Ed25519":
		algorithm = EdDSA
		key, err = k.ed25519()
	default: // oct too: who reads the set could sign
		return "", nil, errors.New("its type is not supported")
	}
	if k.Algorithm != "" && k.Algorithm != algorithm && (k.Algorithm != "Ed25519" || algorithm != EdDSA) { // RFC 9864
		return "", nil, errors.New("its algorithm is not supported")
	}
	return algorithm, key, err
}

func (k *jwk) rsa() (*rsa.PublicKey, error) {
	exponent := new(big.Int).SetBytes(k.E)
	if !exponent.IsInt64() || exponent.Int64() > math.MaxInt32 {
		return nil, errors.New("its exponent is too large")
	}
	key := &rsa.PublicKey{N: new(big.Int).SetBytes(k.N), E: int(exponent.Int64())}
	return key, checkRSA(key)
}

func (k *jwk) ecdsa() (*ecdsa.PublicKey, error) {
	const size = 32 // bytes of a coordinate
	if len(k.X) != size || len(k.Y) != size {
		return nil, errors.New("its coordinates must have 32 bytes")
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, k.X, k.Y))
}

func (k *jwk) ed25519() (ed25519.PublicKey, error) {
	if len(k.X) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("it must have %d bytes", ed25519.PublicKeySize)
	}
	return ed25519.PublicKey(k.X), nil
}
