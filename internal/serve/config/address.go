package config

import (
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"spillway/internal/yaml"
)

// Address is the URL of a database with the user and the password that the file gives beside
// it, percent-encoded. It is printed like a Secret.
type Address string

// credentials is an address that is written as a block.
type credentials struct {
	URL      Secret `yaml:"url"`
	User     Secret `yaml:"user"`
	Password Secret `yaml:"password"`
}

// DecodeYAML reads a URL, or a block of url, user and password. Each is the text itself or
// file:PATH.
func (a *Address) DecodeYAML(n yaml.Node) {
	if n.IsScalar() {
		var text Secret
		text.DecodeYAML(n)
		*a = Address(text)
		return
	}
	var c credentials
	if !n.Decode(&c) {
		return
	}
	address, problem := c.address()
	if problem != "" {
		n.Reject(problem, "")
		return
	}
	*a = address
}

// address returns the URL with user and password in it, or what is wrong with the block.
func (c credentials) address() (a Address, problem string) {
	scheme, rest, found := strings.Cut(c.URL.Reveal(), "://")
	authority, query, _ := strings.Cut(rest, "?")
	authority, _, _ = strings.Cut(authority, "/")
	user, password, hasPassword := "", "", false
	if before, _, hasUser := strings.Cut(authority, "@"); hasUser {
		user, password, hasPassword = strings.Cut(before, ":")
		rest = rest[len(before)+1:]
	}
	switch {
	case c.URL == "":
		return "", "must have a url beside user and password, as url: postgres://HOST/NAME"
	case c.User == "" && c.Password == "":
		return Address(c.URL), ""
	case !found:
		return "", "must have a url such as postgres://HOST/NAME or mysql://HOST/NAME; SQLite has neither user nor password"
	case c.User != "" && (user != "" || hasParameter(query, "user")):
		return "", "has a user in url and in user; write it once"
	case c.Password != "" && (hasPassword || hasParameter(query, "password")):
		return "", "has a password in url and in password; write it once"
	case c.User == "" && user == "":
		return "", "must have a user beside password"
	}
	if c.User != "" {
		user = encode(c.User.Reveal())
	}
	if c.Password != "" {
		password, hasPassword = encode(c.Password.Reveal()), true
	}
	if hasPassword {
		user += ":" + password
	}
	return Address(scheme + "://" + user + "@" + rest), ""
}

// hasParameter reports whether the query of an address has a parameter.
func hasParameter(query, name string) bool {
	for pair := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(key); err == nil && strings.EqualFold(plain, name) {
			return true
		}
	}
	return false
}

// encode percent-encodes all that has a meaning in an address.
func encode(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }

// Reveal returns the address with its password.
func (a Address) Reveal() string { return string(a) }

// IsUnknown reports whether a variable or a file that the address needs is missing, which only
// a partial Load accepts.
func (a Address) IsUnknown() bool {
	_, rest, _ := strings.Cut(string(a), "://")
	userinfo, _, _ := strings.Cut(rest, "@")
	user, password, _ := strings.Cut(userinfo, ":")
	for _, escaped := range []string{user, password} { // see credentials.address
		if plain, err := url.PathUnescape(escaped); err == nil && isMissing(plain) {
			return true
		}
	}
	return isMissing(string(a))
}

// isMissing reports whether a text names a variable, or a file of a secret.
func isMissing(text string) bool {
	_, name, named := strings.Cut(text, "${")
	return named && strings.Contains(name, "}") || strings.HasPrefix(text, "file:")
}

// String returns the address as Secret.String shows it.
func (a Address) String() string { return Secret(a).String() }

// GoString returns String, quoted.
func (a Address) GoString() string { return Secret(a).GoString() }

// Format writes String for every verb.
func (a Address) Format(f fmt.State, verb rune) { Secret(a).Format(f, verb) }

// MarshalJSON returns String as JSON.
func (a Address) MarshalJSON() ([]byte, error) { return Secret(a).MarshalJSON() }

// MarshalYAML returns String.
func (a Address) MarshalYAML() (any, error) { return Secret(a).MarshalYAML() }

// LogValue returns String.
func (a Address) LogValue() slog.Value { return Secret(a).LogValue() }
