package config

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"spillway/internal/yaml"
)

// Address is the URL of a server, with the user and the password that the file gives beside it,
// percent-encoded. All of it, the user or the password can be file:PATH, which Read reads. It is
// printed like a Secret.
type Address string

// credentials is an address that is written as a block.
type credentials struct {
	URL      Secret `yaml:"url"`
	User     source `yaml:"user"`
	Password source `yaml:"password"`
}

// source is a secret itself, or file:PATH.
type source string

// DecodeYAML keeps file:PATH.
func (s *source) DecodeYAML(n yaml.Node) {
	text, ok := n.SecretSource()
	if strings.Contains(text, hidden) {
		n.Fail(hiddenRule)
		return
	}
	if ok {
		*s = source(text)
	}
}

// DecodeYAML reads a URL, or a block of url, user and password. Each is the text itself or
// file:PATH.
func (a *Address) DecodeYAML(n yaml.Node) {
	if n.IsScalar() {
		(*source)(a).DecodeYAML(n)
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
		user = encode(string(c.User))
	}
	if c.Password != "" {
		password, hasPassword = encode(string(c.Password)), true
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

// Read returns the address with what its files hold now. No error quotes a secret.
func (a Address) Read() (string, error) {
	text, err := readSource(string(a))
	if err != nil {
		return "", err
	}
	scheme, rest, _ := strings.Cut(text, "://")
	userinfo, place, found := strings.Cut(rest, "@")
	if !found {
		return text, nil
	}
	user, password, hasPassword := strings.Cut(userinfo, ":")
	for _, escaped := range []*string{&user, &password} { // see credentials.address
		plain, err := url.PathUnescape(*escaped)
		if err != nil || !strings.HasPrefix(plain, filePrefix) {
			continue
		}
		if plain, err = readSource(plain); err != nil {
			return "", err
		}
		*escaped = encode(plain)
	}
	if hasPassword {
		user += ":" + password
	}
	return scheme + "://" + user + "@" + place, nil
}

// filePrefix begins a secret that is the content of a file.
const filePrefix = "file:"

// readSource returns a text, or the content of the file that it names without the white space
// around it.
func readSource(text string) (string, error) {
	path, isFile := strings.CutPrefix(text, filePrefix)
	if !isFile {
		return text, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a secret: %w", err)
	}
	if text = strings.TrimSpace(string(content)); text == "" {
		return "", fmt.Errorf("read a secret: %s is empty", path)
	}
	return text, nil
}

// Reveal returns the address with what its files hold now, or as it is written if one cannot be read.
func (a Address) Reveal() string {
	if text, err := a.Read(); err == nil {
		return text
	}
	return string(a)
}

// IsUnknown reports whether a variable or a file that the address needs is missing, which only
// a partial Load accepts.
func (a Address) IsUnknown() bool {
	_, rest, _ := strings.Cut(string(a), "://")
	userinfo, _, _ := strings.Cut(rest, "@")
	user, password, _ := strings.Cut(userinfo, ":")
	for _, escaped := range []string{user, password, encode(string(a))} {
		plain, err := url.PathUnescape(escaped)
		_, name, named := strings.Cut(plain, "${")
		if err == nil && named && strings.Contains(name, "}") {
			return true
		}
	}
	_, err := a.Read()
	return err != nil
}

// String returns the address as Secret.String shows it, and that of a page without its parameters.
func (a Address) String() string { return shown(string(a), true) }

// Format writes String for every verb.
func (a Address) Format(f fmt.State, verb rune) { Secret(a).Format(f, verb) }

// MarshalText returns String.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }
