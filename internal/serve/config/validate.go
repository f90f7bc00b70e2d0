package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"spillway/internal/netstat"
	"spillway/internal/yaml"
)

// Mistake is a value that breaks a rule, found by Validate or a Check.
type Mistake struct {
	Path  string // of the value, as feeds[0].window
	Rule  string // the rule: "must be from 1 to 100000"
	Value string // the value found; empty: left out of the message, as for secrets
}

// Mistakes are all values that break a rule.
type Mistakes []Mistake

// Error returns one line for each mistake: PATH: RULE, not VALUE.
func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i, one := range m {
		lines[i] = one.Path + ": " + one.Rule + yaml.Quote(one.Value)
	}
	return strings.Join(lines, "\n")
}

// Check is a rule that needs knowledge outside of this package, such as SQL. It gets the
// whole configuration with defaults filled in.
type Check func(Config) []Mistake

// minToken is the minimum length of the admin token.
const minToken = 16

// Validate returns nil, or Mistakes with every value that breaks a rule. SQL and database
// addresses need Checks.
func (c Config) Validate(checks ...Check) error {
	found := c.mistakes()
	for _, check := range checks {
		found = append(found, check(c)...)
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// mistakes checks the rules that need only the configuration.
func (c Config) mistakes() Mistakes {
	v := &validator{}
	v.bounds("", reflect.ValueOf(c))
	v.addresses(c)
	v.pool(c.Pool)
	v.http(c.HTTP)
	if strings.TrimSpace(c.Data) == "" {
		v.add("data", "must name a directory", "")
	}
	if redis := c.Redis.Reveal(); redis != "" && !hasScheme(redis, "redis", "rediss", "unix") {
		v.add("redis", "must be redis://[USER:PASSWORD@]HOST:PORT[/NUMBER], rediss://... or unix://PATH", "")
	}
	if c.RedisPrefix != "" && !isPlain(c.RedisPrefix) {
		v.add("redis_prefix", plainRule, c.RedisPrefix)
	}
	paths := c.ownPaths()
	for i, feed := range c.Feeds {
		v.feed(yaml.Index("feeds", i), feed, paths)
	}
	for i, query := range c.Queries {
		v.query(yaml.Index("queries", i), query, paths)
	}
	v.popups(c, paths)
	v.streams(c)
	v.auth(c)
	return v.found
}

type validator struct {
	found Mistakes
}

func (v *validator) add(path, rule, value string) {
	v.found = append(v.found, Mistake{Path: path, Rule: rule, Value: value})
}

// bounds checks the range and enum tags of every field.
func (v *validator) bounds(path string, value reflect.Value) {
	for i := range value.NumField() {
		field, tag := value.Field(i), value.Type().Field(i).Tag
		at := yaml.Join(path, tag.Get("yaml"))
		if field.Kind() == reflect.Struct {
			v.bounds(at, field)
		}
		if allowed, ok := tag.Lookup("enum"); ok && !slices.Contains(strings.Split(allowed, ","), field.String()) {
			v.add(at, "must be "+orList(allowed), field.String())
		}
		if bounds, ok := tag.Lookup("range"); ok {
			v.within(at, bounds, field)
		}
		if field.Kind() == reflect.Slice && IsBlock(field.Type().Elem()) {
			for j := range field.Len() {
				v.bounds(yaml.Index(at, j), field.Index(j))
			}
		}
	}
}

func (v *validator) within(path, bounds string, field reflect.Value) {
	low, high, _ := strings.Cut(bounds, "..")
	shown := fmt.Sprint(field.Interface())
	x, least, most := number(shown), number(low), number(high)
	if !(x >= least && x <= most) {
		v.add(path, "must be from "+low+" to "+high, shown)
	}
}

// number parses a number, or a duration in nanoseconds.
func number(text string) float64 {
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return x
	}
	d, _ := time.ParseDuration(text) // a test checks that every bound is one of the two
	return float64(d)
}

func (v *validator) addresses(c Config) {
	v.address("listen", c.Listen)
	host := v.address("admin.listen", c.Admin.Listen)
	v.adminTokens(c.Admin, host == "" || netstat.IsLoopback(host))
	if c.Listen == c.Admin.Listen && !strings.HasSuffix(c.Listen, ":0") {
		v.add("admin.listen", "must differ from listen", c.Admin.Listen)
	}
}

// adminTokens checks the tokens of the admin listener. Without any, it must be on loopback.
func (v *validator) adminTokens(a Admin, loopback bool) {
	if a.Token == "" && len(a.Tokens) == 0 && !loopback {
		v.add("admin.token", "must be set, unless admin.listen is a loopback address such as 127.0.0.1:9090", "")
	}
	check := func(path string, token Secret) {
		if text := token.Reveal(); len(text) < minToken || strings.ContainsFunc(text, notTokenRune) {
			v.add(path, fmt.Sprintf("must have at least %d characters: letters, digits and signs without spaces", minToken), "")
		}
	}
	names, tokens := map[string]bool{}, map[Secret]bool{}
	if a.Token != "" {
		check("admin.token", a.Token)
		names["admin"], tokens[a.Token] = true, true
	}
	for i, one := range a.Tokens {
		path := yaml.Index("admin.tokens", i)
		check(yaml.Join(path, "token"), one.Token)
		if tokens[one.Token] {
			v.add(yaml.Join(path, "token"), "must not be repeated", "")
		}
		switch {
		case !isTitle(one.Name):
			v.add(yaml.Join(path, "name"), "must be 1 to 64 printable characters", one.Name)
		case names[one.Name]:
			v.add(yaml.Join(path, "name"), "must not be repeated; admin is the name of admin.token", one.Name)
		}
		names[one.Name], tokens[one.Token] = true, true
	}
	for i, link := range a.Links {
		path := yaml.Index("admin.links", i)
		if u, err := url.Parse(link.URL.Reveal()); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			v.add(yaml.Join(path, "url"), "must be a URL with http or https", link.URL.String())
		}
		if !isTitle(link.Name) {
			v.add(yaml.Join(path, "name"), "must be 1 to 64 printable characters", link.Name)
		}
	}
}

// isTitle reports whether a name can be shown on one line.
func isTitle(name string) bool {
	unprintable := strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
	return strings.TrimSpace(name) != "" && utf8.RuneCountInString(name) <= 64 && !unprintable
}

func notTokenRune(r rune) bool { return r <= ' ' || r > '~' }

// UnixPrefix begins the address of a Unix socket; its path follows.
const UnixPrefix = "unix:"

// address checks HOST:PORT or unix:PATH and returns the host. No host means 0.0.0.0, all
// addresses of this machine. The host of a Unix socket is localhost.
func (v *validator) address(path, text string) string {
	if file, ok := strings.CutPrefix(text, UnixPrefix); ok {
		if file == "" {
			v.add(path, "must name the file of the socket, as unix:/run/spillway/http.sock", text)
		}
		return "localhost"
	}
	host, port, err := net.SplitHostPort(text)
	if _, number := strconv.ParseUint(port, 10, 16); err != nil || number != nil || strings.ContainsFunc(host, unicode.IsSpace) {
		v.add(path, "must be HOST:PORT, :PORT for all addresses of this machine, or unix:PATH", text)
		return ""
	}
	if host == "" {
		return "0.0.0.0"
	}
	return host
}

// openToOthers reports whether other hosts can reach a valid listen address.
func openToOthers(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && !strings.HasPrefix(listen, UnixPrefix) && !netstat.IsLoopback(host)
}

func (v *validator) pool(p Pool) {
	if p.Min > p.Max {
		v.add("pool.min", fmt.Sprintf("must not be larger than pool.max, which is %d", p.Max), strconv.Itoa(p.Min))
	}
}

func (v *validator) http(h HTTP) {
	if h.BodiesBytes < h.BodyBytes {
		v.add("http.bodies_bytes", fmt.Sprintf("must not be smaller than http.body_bytes, which is %d", h.BodyBytes), strconv.Itoa(h.BodiesBytes))
	}
	if (h.TLSCert == "") != (h.TLSKey == "") {
		given, missing := "tls_cert", "tls_key"
		if h.TLSCert == "" {
			given, missing = missing, given
		}
		v.add("http."+given, "requires http."+missing, "")
	}
	if d, err := time.ParseDuration(h.StopDelay); h.StopDelay != "auto" && (err != nil || d < 0 || d > stopDelayMax) {
		v.add("http.stop_delay", "must be auto, or from 0s to "+shortDuration(stopDelayMax), h.StopDelay)
	}
	for i, host := range h.Hosts {
		if !isHost(host) {
			v.add(yaml.Index("http.hosts", i), "must be a host name or an address, without scheme and port, as api.example.com or [::1]", host)
		}
	}
	for i, origin := range h.CORSOrigins {
		if origin != "*" && !isOrigin(origin) {
			v.add(yaml.Index("http.cors_origins", i), "must be SCHEME://HOST, SCHEME://HOST:PORT or *", origin)
		}
	}
	for i, proxy := range h.TrustedProxies {
		_, addressError := netip.ParseAddr(proxy)
		_, prefixError := netip.ParsePrefix(proxy)
		if addressError != nil && prefixError != nil {
			v.add(yaml.Index("http.trusted_proxies", i), "must be an address or a CIDR, as 10.0.0.0/8", proxy)
		}
	}
}

func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && text == u.Scheme+"://"+u.Host
}

// isHost reports whether text is a host as the header Host has it, without a port.
func isHost(text string) bool {
	u, err := url.Parse("http://" + text)
	return err == nil && text != "" && u.Host == text && u.Port() == "" && !strings.HasSuffix(text, ":") && u.User == nil
}

func hasScheme(text string, schemes ...string) bool {
	scheme, rest, found := strings.Cut(text, "://")
	return found && rest != "" && slices.Contains(schemes, scheme)
}

// orList writes "a,b,c" as "a, b or c".
func orList(list string) string {
	i := strings.LastIndexByte(list, ',')
	return strings.ReplaceAll(list[:i], ",", ", ") + " or " + list[i+1:]
}
