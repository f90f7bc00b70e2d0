package queue

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

const scopePrefix = "subject/"

// ScopeKey returns the idempotency key that a subject's key is stored as. A subject contains
// no colon. A key that is too long then is hashed.
func ScopeKey(subject, key string) string {
	scope := scopePrefix + subject + ":"
	if len(scope)+len(key) <= KeyMax {
		return scope + key
	}
	return scope + fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key)))
}

// UnscopedKey returns the key that was given to ScopeKey, under which earlier versions stored
// it; "" for any other key. A key that was hashed is not recovered.
func UnscopedKey(scoped string) string {
	rest, ok := strings.CutPrefix(scoped, scopePrefix)
	if !ok {
		return ""
	}
	_, key, _ := strings.Cut(rest, ":")
	return key
}
