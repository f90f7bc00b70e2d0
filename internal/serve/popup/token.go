package popup

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"strings"
	"sync"
	"time"
)

// Bounds of tokens.
const (
	KeyBytesMin = 32 // of a signing key

	tokenFormat = 1
	tokenHead   = 1 + 4 + 8 + 8 + 1 + 1 + 1 // format, campaign, version, time, variant, lengths of the placement and the user
	tokenMAC    = 16

	// TokenBytesMax is the longest token as text.
	TokenBytesMax = (tokenHead + PlacementBytesMax + UserBytesMax + tokenMAC + 2) / 3 * 4
)

// Errors of Signer.Open.
var (
	// ErrMalformed: the text is not a complete token.
	ErrMalformed = errors.New("this is not a show token")
	// ErrForged: none of the keys signed the token.
	ErrForged = errors.New("the show token is not signed by us")
	// ErrExpired: the show is older than the time to live of tokens.
	ErrExpired = errors.New("the show token has expired")
	// ErrOtherUser: the token belongs to another user.
	ErrOtherUser = errors.New("the show token is another user's")
)

// Token identifies a show. The version of the state ensures that it is used once.
type Token struct {
	Key
	Campaign CampaignID
	Variant  uint8     // as of the event
	Version  uint64    // of the state after the show
	At       time.Time // of the show, in milliseconds
}

// Signer signs and verifies show tokens. Its methods may be called concurrently.
type Signer struct {
	keys [][]byte
	ttl  time.Duration
	macs sync.Pool // of hash.Hash, with the first key
}

// NewSigner returns a signer that signs with the first key and accepts all keys. There must be at
// least one, each of at least KeyBytesMin bytes. To replace a key, append the new one on every
// replica, then move it to the front, and remove the old one after ttl, the time to live of tokens.
func NewSigner(keys [][]byte, ttl time.Duration) *Signer {
	return &Signer{keys: keys, ttl: ttl, macs: sync.Pool{New: func() any { return hmac.New(sha256.New, keys[0]) }}}
}

// Sign returns the token as text that is safe in a URL. User and placement must have the
// sizes that Ask accepts.
func (s *Signer) Sign(t Token) string {
	b := make([]byte, 0, tokenHead+len(t.Placement)+len(t.User)+sha256.Size)
	b = append(b, tokenFormat)
	b = binary.BigEndian.AppendUint32(b, uint32(t.Campaign))
	b = binary.BigEndian.AppendUint64(b, t.Version)
	b = binary.BigEndian.AppendUint64(b, uint64(t.At.UnixMilli()))
	b = append(b, t.Variant, byte(len(t.Placement)), byte(len(t.User)))
	b = append(b, t.Placement...)
	b = append(b, t.User...)
	mac := s.macs.Get().(hash.Hash)
	defer s.macs.Put(mac)
	mac.Reset()
	mac.Write(b)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(b)[:len(b)+tokenMAC])
}

// Open verifies a token. user is who sends it; "" if only the token says. Errors:
// ErrMalformed, ErrForged, ErrExpired, ErrOtherUser.
func (s *Signer) Open(text, user string, now time.Time) (Token, error) {
	return s.open(text, user, now, s.ttl)
}

// open is Open with another time to live.
func (s *Signer) open(text, user string, now time.Time, ttl time.Duration) (Token, error) {
	if len(text) > TokenBytesMax || strings.ContainsAny(text, "\r\n") { // which base64 would skip
		return Token{}, ErrMalformed
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < tokenHead+tokenMAC {
		return Token{}, ErrMalformed
	}
	body, mac := b[:len(b)-tokenMAC], b[len(b)-tokenMAC:]
	names, cut := body[tokenHead:], int(body[tokenHead-2])
	if body[0] != tokenFormat || len(names) != cut+int(body[tokenHead-1]) {
		return Token{}, ErrMalformed
	}
	if !s.signed(body, mac) {
		return Token{}, ErrForged
	}
	t := Token{
		Key:      Key{Placement: string(names[:cut]), User: string(names[cut:])},
		Campaign: CampaignID(binary.BigEndian.Uint32(body[1:])),
		Variant:  body[tokenHead-3],
		Version:  binary.BigEndian.Uint64(body[5:]),
		At:       instant(int64(binary.BigEndian.Uint64(body[13:]))),
	}
	switch {
	case user != "" && user != t.User:
		return Token{}, ErrOtherUser
	case now.Sub(t.At) > ttl:
		return Token{}, ErrExpired
	}
	return t, nil
}

// signed reports whether one of the keys made mac, in constant time.
func (s *Signer) signed(body, mac []byte) bool {
	ok := false
	for _, key := range s.keys {
		ok = hmac.Equal(sum(key, body), mac) || ok
	}
	return ok
}

func sum(key, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(body)
	return h.Sum(nil)[:tokenMAC]
}
