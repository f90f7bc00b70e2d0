package target

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/database"
	"spillway/internal/plans"
)

// parse reads the address and the requests. It sets the host and port of the network, or its socket.
func (t *Target) parse() error {
	scheme, _, found := strings.Cut(t.config.URL, ":")
	if !found {
		return fmt.Errorf("target %q has no scheme; write http://HOST:PORT/PATH, postgres://…, mysql://… or redis://…",
			t.config.URL)
	}
	if err := t.checkForeignOptions(scheme); err != nil {
		return err
	}
	switch scheme {
	case "http", "https", "http+unix":
		return t.parseHTTP(scheme)
	case "redis", "rediss":
		return t.parseRedis(scheme)
	case "postgres", "postgresql", "mysql", "mariadb":
		return t.parseDatabase()
	}
	return fmt.Errorf("target: unknown scheme %q; write http://, https://, http+unix://, postgres://, mysql://, redis:// "+
		"or rediss://", scheme)
}

// checkForeignOptions rejects options that do not apply to the scheme.
func (t *Target) checkForeignOptions(scheme string) error {
	c := &t.config
	c.HTTP2 = c.HTTP2 || c.GRPC != ""
	isHTTP := strings.HasPrefix(scheme, "http")
	isRedis := strings.HasPrefix(scheme, "redis")
	switch {
	case !isHTTP && (len(c.Requests) > 0 || c.Method != "" || len(c.Headers) > 0 || len(c.Body.parts) > 0 || len(c.Checks.statuses) > 0 ||
		c.Checks.wantBody()):
		return fmt.Errorf("method, headers, body, requests file and checks are for HTTP, not for scheme %s", scheme)
	case (isHTTP || isRedis) && (c.SQL != "" || len(c.Params) > 0):
		return fmt.Errorf("--sql and --param are for postgres: and mysql:, not for scheme %s", scheme)
	case !isRedis && len(c.Commands) > 0:
		return fmt.Errorf("--command is for redis:, not for scheme %s", scheme)
	case !isHTTP && len(c.Calls) > 0:
		return fmt.Errorf("--flow is for HTTP, not for scheme %s", scheme)
	case !isHTTP && c.GRPC != "" || c.GRPC == "" && c.Proto != "":
		return errors.New("--grpc METHOD --proto FILE: both are needed, for an https: or http: target")
	case scheme != "https" && scheme != "rediss" && c.CACert+c.Cert+c.Key != "":
		return fmt.Errorf("--cacert, --cert and --key are for https: and rediss:, not for scheme %s", scheme)
	case !isHTTP && c.HTTP2:
		return errors.New("--http2 requires an https: or http: target")
	case c.Streams < 0 || c.Streams > 1 && !c.HTTP2:
		return errors.New("--streams is the number of requests in flight per HTTP/2 connection; it requires --http2")
	case c.Streams > 1 && len(c.Calls) > 0:
		return errors.New("--streams has no effect with --flow, whose users have a connection each; remove one of them")
	case c.Streams > 1 && c.PerConnection > 0:
		return errors.New("--streams and --per-connection: give one of them")
	}
	return nil
}

// parseHTTP splits the address without package url, because the path may hold templates.
func (t *Target) parseHTTP(scheme string) error {
	_, rest, found := strings.Cut(t.config.URL, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, path := rest[:end], rest[end:]
	path, _, _ = strings.Cut(path, "#")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if !found || authority == "" {
		return fmt.Errorf("target %q: write %s://HOST:PORT/PATH", t.config.URL, scheme)
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		if err := t.addBasicAuth(authority[:at]); err != nil {
			return err
		}
		authority = authority[at+1:]
	}
	if err := t.placeHTTP(scheme, authority); err != nil {
		return err
	}
	if t.config.GRPC != "" {
		return t.parseGRPC(path)
	}
	return t.parseRequests(path)
}

func (t *Target) placeHTTP(scheme, authority string) (err error) {
	n := &t.network
	if scheme == "http+unix" {
		n.socket, err = url.PathUnescape(authority)
		if err != nil || !strings.HasPrefix(n.socket, "/") {
			return errors.New("target: write the socket percent-encoded, http+unix://%2Frun%2Fapp.sock/PATH, or use --socket")
		}
		t.host = "localhost"
		return nil
	}
	t.host = authority
	port := "80"
	if scheme == "https" {
		port = "443"
	}
	protocol := "http/1.1"
	if t.config.HTTP2 {
		protocol = "h2"
	}
	if n.host, n.port, err = splitAuthority(authority, port); err == nil && scheme == "https" {
		t.tls, err = t.config.tls(n.host, protocol)
	}
	return err
}

// splitAuthority splits HOST, HOST:PORT, [IPV6] and [IPV6]:PORT. port is the default.
func splitAuthority(authority, port string) (string, uint16, error) {
	host := authority
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		host, port = authority[:i], authority[i+1:]
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || n == 0 {
		return "", 0, fmt.Errorf("target: %q is not HOST or HOST:PORT", authority)
	}
	return host, uint16(n), nil
}

func (t *Target) addBasicAuth(userinfo string) error {
	plain, err := url.PathUnescape(userinfo)
	if err != nil {
		return errors.New("target: the user or password has a % without two hexadecimal digits after it")
	}
	t.config.Headers = append(t.config.Headers, Header{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(plain))})
	return nil
}

// parseRequests builds the requests: those of the configuration, or the URL's own.
func (t *Target) parseRequests(path string) (err error) {
	requests := t.config.Requests
	switch {
	case len(t.config.Calls) > 0:
		return t.parseCalls(path)
	case len(requests) == 0:
		template, err := ParseTemplate(path)
		if err != nil {
			return fmt.Errorf("target: %w", err)
		}
		requests = []HTTPRequest{{Method: t.config.Method, Path: template, Body: t.config.Body}}
	case path != "/" || t.config.Method != "" || len(t.config.Body.parts) > 0:
		return errors.New("with --requests-file, write the target without a path, and the method and body in the file")
	}
	if t.http, err = newHTTPMix(requests, t.host, t.config.Headers); err != nil {
		return err
	}
	t.mix = t.http.mix
	return nil
}

// parseCalls prepares the target for Session.Call.
func (t *Target) parseCalls(path string) error {
	c := &t.config
	if path != "/" || c.Method != "" || len(c.Body.parts) > 0 || c.GRPC != "" || len(c.Requests) > 0 || len(c.Checks.statuses) > 0 ||
		c.Checks.wantBody() {
		return errors.New("with --flow, write the target without a path, and methods, bodies and checks in the file")
	}
	headers, err := compileHeaders(c.Headers)
	t.http = &httpMix{headers: headers}
	t.mix.names = c.Calls
	return err
}

func (t *Target) parseRedis(scheme string) error {
	t.kind = kindRedis
	u, err := url.Parse(t.config.URL)
	if err != nil || u.Opaque != "" {
		return errors.New("target: write redis://USER:PASSWORD@HOST:PORT/DATABASE")
	}
	if len(t.config.Commands) == 0 {
		return errors.New("redis: requires a --command 'GET key:{random(1,100)}'")
	}
	var entries []mixEntry
	for _, text := range t.config.Commands {
		c, err := parseCommand(text)
		if err != nil {
			return err
		}
		t.commands = append(t.commands, c)
		verb, _ := cutWord(c.text)
		entries = append(entries, mixEntry{1, c.name, c.text, verb})
	}
	if t.mix, err = newMix(entries); err != nil {
		return err
	}
	if password, ok := u.User.Password(); ok {
		words := []string{"AUTH", password}
		if user := u.User.Username(); user != "" {
			words = []string{"AUTH", user, password}
		}
		t.setup = appendWords(t.setup, words...)
		t.setupReplies++
	}
	if number := strings.Trim(u.Path, "/"); number != "" {
		if _, err := strconv.ParseUint(number, 10, 16); err != nil {
			return fmt.Errorf("redis: database %q is not a number; write redis://HOST:PORT/0", number)
		}
		t.setup = appendWords(t.setup, "SELECT", number)
		t.setupReplies++
	}
	n := &t.network
	n.host, n.port, err = splitAuthority(net.JoinHostPort(cmp.Or(u.Hostname(), "127.0.0.1"), cmp.Or(u.Port(), "6379")), "")
	if err == nil && scheme == "rediss" {
		t.tls, err = t.config.tls(n.host)
	}
	return err
}

func (t *Target) parseDatabase() error {
	u, err := database.Parse(t.config.URL)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if t.config.SQL == "" {
		return fmt.Errorf("%s: requires a statement: --sql 'SELECT …'", u.Driver)
	}
	dialect := plans.Postgres
	if u.Driver == database.MySQL {
		dialect = plans.MySQL | plans.BackslashEscapes
	}
	if t.statement, err = parseSQL(t.config.SQL, dialect, t.config.Params); err != nil {
		return err
	}
	if u.Driver == database.MySQL {
		return t.parseMySQL(u)
	}
	return t.parsePostgres(u)
}

func (t *Target) parsePostgres(u database.URL) error {
	t.kind = kindPostgres
	config, err := database.PostgresConfig(u, "")
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	t.postgres = config
	n := &t.network
	n.host, n.port = config.Host, config.Port
	servers := map[string]bool{net.JoinHostPort(n.host, strconv.Itoa(int(n.port))): true}
	for _, fallback := range config.Fallbacks {
		server := net.JoinHostPort(fallback.Host, strconv.Itoa(int(fallback.Port))) // again, for another kind of TLS
		if !servers[server] {
			servers[server] = true
			n.others = append(n.others, fallback.Host)
		}
	}
	isSocket := func(host string) bool { return strings.HasPrefix(host, "/") }
	switch {
	case len(n.others) > 0 && (isSocket(n.host) || slices.ContainsFunc(n.others, isSocket)):
		return fmt.Errorf("target %s: several hosts, and one is a Unix socket; name one, or only TCP hosts", u)
	case isSocket(n.host):
		n.socket = fmt.Sprintf("%s/.s.PGSQL.%d", n.host, n.port)
	}
	return nil
}

func (t *Target) parseMySQL(u database.URL) error {
	t.kind = kindMySQL
	config, err := database.MySQLConfig(u, "")
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	t.mysql = config
	if config.Net == "unix" {
		t.network.socket = config.Addr
		return nil
	}
	t.network.host, t.network.port, err = splitAuthority(config.Addr, "3306")
	return err
}
