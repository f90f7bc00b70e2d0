package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/yaml"
)

// hidden replaces a secret in output.
const hidden = "***"

const hiddenRule = "holds ***, which stands for a secret that was left out; write the secret, ${NAME} or file:PATH"

// Secret is a value that is never printed. Formatting, logging and marshalling use String.
// Reveal returns the value.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String returns "***", or an address without its password, or "" for an empty secret. Of a
// malformed address it returns only the scheme.
func (s Secret) String() string { return shown(string(s), false) }

// shown returns an address without its secrets. With page, it may be of a page.
func shown(text string, page bool) string {
	if text == "" || strings.HasPrefix(text, "sqlite:") { // the address of a file has no password
		return text
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found || !slices.Contains(schemes, scheme) && (!page || scheme != "http" && scheme != "https") {
		return hidden
	}
	userinfo, place, found := strings.Cut(rest, "@")
	if !found {
		userinfo, place = "", rest
	}
	place, _, query := strings.Cut(place, "?")
	if strings.ContainsAny(userinfo, "/?#") || !isPlace(place) {
		return scheme + "://" + hidden
	}
	if found {
		user, _, hasPassword := strings.Cut(userinfo, ":")
		if hasPassword {
			user += ":" + hidden
		}
		place = user + "@" + place
	}
	if query {
		place += "?" + hidden
	}
	return scheme + "://" + place
}

// DecodeYAML reads the secret itself, or file:PATH.
func (s *Secret) DecodeYAML(n yaml.Node) {
	text, ok := n.Secret()
	if !ok {
		return
	}
	if strings.Contains(text, hidden) {
		n.Fail(hiddenRule)
		return
	}
	*s = Secret(text)
}

// Format writes String for every verb.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		text = strconv.Quote(text)
	}
	_, _ = f.Write([]byte(text)) // fmt.Formatter returns no error
}

// MarshalText returns String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// schemes are those of supported addresses of servers.
var schemes = []string{"postgres", "postgresql", "mysql", "redis", "rediss", "unix"}

var placePattern = regexp.MustCompile(`^[A-Za-z0-9._/,\[\]:-]*$`)

// isPlace reports whether s is HOST[:PORT][,HOST...][/NAME], so that no part of it can belong to a
// password.
func isPlace(s string) bool {
	if !placePattern.MatchString(s) {
		return false
	}
	host, _, _ := strings.Cut(s, "/")
	for _, one := range strings.Split(host, ",") {
		_, port, found := strings.Cut(one[strings.LastIndexByte(one, ']')+1:], ":")
		if _, err := strconv.ParseUint(port, 10, 16); found && err != nil {
			return false
		}
	}
	return true
}
