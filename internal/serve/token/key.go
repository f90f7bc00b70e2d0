package token

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"

	"github.com/golang-jwt/jwt/v5"
)

// SecretBytesMin is the minimum length of a key for HS256.
const SecretBytesMin = 32

// Sizes of keys for RS256. RFC 7518 has the minimum. Larger keys cost much CPU time.
const (
	rsaBitsMin = 2048
	rsaBitsMax = 8192
)

// Key verifies the tokens of one algorithm. Use NewKey.
type Key struct {
	Kid       string // "": tokens need no kid
	Algorithm string
	key       any // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// keyID is what a token names a key by.
type keyID struct{ kid, algorithm string }

// NewKey returns a key. text is the key itself for HS256, otherwise the public key in PEM.
func NewKey(kid, algorithm string, text []byte) (Key, error) {
	key := Key{Kid: kid, Algorithm: algorithm}
	var err error
	switch algorithm {
	case HS256:
		if key.key = text; len(text) < SecretBytesMin {
			err = fmt.Errorf("it must have %d bytes or more", SecretBytesMin)
		} else if bytes.HasPrefix(text, []byte("-----BEGIN ")) { // everybody could sign with a public key
			err = errors.New("it must not be in PEM")
		}
	case RS256:
		var public *rsa.PublicKey
		if public, err = jwt.ParseRSAPublicKeyFromPEM(text); err == nil {
			err = checkRSA(public)
		}
		key.key = public
	case ES256:
		var public *ecdsa.PublicKey
		if public, err = jwt.ParseECPublicKeyFromPEM(text); err == nil && public.Curve != elliptic.P256() {
			err = errors.New("its curve must be P-256")
		}
		key.key = public
	case EdDSA:
		var public any
		if public, err = jwt.ParseEdPublicKeyFromPEM(text); err == nil {
			if _, ok := public.(ed25519.PublicKey); !ok {
				err = errors.New("its curve must be Ed25519")
			}
		}
		key.key = public
	default:
		err = errors.New("the algorithm must be HS256, RS256, ES256 or EdDSA")
	}
	if err != nil {
		return Key{}, fmt.Errorf("read the key for %s: %w", algorithm, err)
	}
	return key, nil
}

func checkRSA(key *rsa.PublicKey) error {
	if bits := key.N.BitLen(); bits < rsaBitsMin || bits > rsaBitsMax {
		return fmt.Errorf("it has %d bits and must have from %d to %d", bits, rsaBitsMin, rsaBitsMax)
	}
	if key.E < 3 || key.E%2 == 0 {
		return errors.New("its exponent must be odd and at least 3")
	}
	return nil
}
