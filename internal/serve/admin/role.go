package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
)

// Role says what a token permits. Each role permits what those before it do.
type Role uint8

// The roles.
const (
	RoleRead  Role = iota + 1 // all that GET returns, except profiles
	RoleEdit                  // campaigns; retry and move what is in spools
	RoleAdmin                 // everything
)

// String returns the role as the configuration names it.
func (r Role) String() string { return [...]string{"", "read", "edit", "admin"}[r&3] }

// ParseRole is the reverse of Role.String. Without a known name it returns RoleRead.
func ParseRole(name string) Role {
	for _, role := range []Role{RoleEdit, RoleAdmin} {
		if role.String() == name {
			return role
		}
	}
	return RoleRead
}

// Token is a bearer token.
type Token struct {
	Name  string // of who uses it
	Token string
	Role  Role
}

// caller is who sends a request.
type caller struct {
	name string // "" without a token
	role Role
}

type callerKey struct{}

// callerOf returns who sends a request that has passed checkToken. Without tokens it may do
// everything.
func callerOf(r *http.Request) caller {
	if c, ok := r.Context().Value(callerKey{}).(caller); ok {
		return c
	}
	return caller{role: RoleAdmin}
}

// checkToken requires one of the tokens, if there are any.
func (s *Server) checkToken(next http.Handler) http.Handler {
	if len(s.cfg.Tokens) == 0 {
		return next
	}
	want := make([][sha256.Size]byte, len(s.cfg.Tokens)) // equal lengths: the time of a comparison does not depend on the token's
	for i, t := range s.cfg.Tokens {
		want[i] = sha256.Sum256([]byte(t.Token))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got, found := sha256.Sum256([]byte(strings.TrimSpace(token))), -1
		for i := range want {
			if subtle.ConstantTimeCompare(got[:], want[i][:]) == 1 {
				found = i
			}
		}
		if found < 0 || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="spillway admin"`)
			writeProblem(w, http.StatusUnauthorized, "send the header \"Authorization: Bearer TOKEN\" with admin.token or one of admin.tokens")
			return
		}
		who := caller{s.cfg.Tokens[found].Name, s.cfg.Tokens[found].Role}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, who)))
	})
}

// require returns a handler that refuses callers without a role.
func (role Role) require(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if c := callerOf(r); c.role < role {
			writeProblem(w, http.StatusForbidden, fmt.Sprintf("this requires a token with the role %s; that of %s has the role %s", role, c.name,
				c.role))
			return
		}
		handle(w, r)
	}
}
