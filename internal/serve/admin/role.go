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

// Caller is who sends a request.
type Caller struct {
	Name string // "" without a token
	Role Role
}

type callerKey struct{}

// callerOf returns who sends a request that has passed checkToken. Without tokens it may do
// everything.
func callerOf(r *http.Request) Caller {
	if c, ok := r.Context().Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{Role: RoleAdmin}
}

// withCaller returns a request of a caller.
func withCaller(r *http.Request, c Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// identify returns whose token it is. The time that it takes does not depend on the tokens.
func (s *Server) identify(token string) (c Caller, known bool) {
	got := sha256.Sum256([]byte(token))
	for _, t := range s.cfg.Tokens {
		if want := sha256.Sum256([]byte(t.Token)); subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			c, known = Caller{t.Name, t.Role}, true
		}
	}
	return c, known
}

// checkToken requires one of the tokens, if there are any.
func (s *Server) checkToken(next http.Handler) http.Handler {
	if len(s.cfg.Tokens) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		who, known := s.identify(strings.TrimSpace(token))
		if !known || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="spillway admin"`)
			newProblem(http.StatusUnauthorized, "send the header \"Authorization: Bearer TOKEN\" with admin.token or one of admin.tokens").write(w)
			return
		}
		next.ServeHTTP(w, withCaller(r, who))
	})
}

// PagesPath begins the paths of pages.
const PagesPath = "/console/"

// Access is the API for pages. Without Tokens a caller may do everything.
type Access struct {
	Config
	server *Server
	api    http.Handler
}

// Identify returns whose token it is.
func (a *Access) Identify(token string) (c Caller, known bool) { return a.server.identify(token) }

// Serve answers a request of a caller to the API. It checks the caller's role.
func (a *Access) Serve(w http.ResponseWriter, r *http.Request, c Caller) {
	a.api.ServeHTTP(w, withCaller(r, c))
}

// Figures returns what GET /figures answers.
func (a *Access) Figures() Figures { return a.server.figures() }

// require returns a handler that refuses callers without a role.
func (role Role) require(handle handler) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		if c := callerOf(r); c.Role < role {
			return nil, newProblem(http.StatusForbidden, fmt.Sprintf("this requires a token with the role %s; that of %s has the role %s", role,
				c.Name, c.Role))
		}
		return handle(w, r)
	}
}
