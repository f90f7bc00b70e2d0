// Package database holds what all users of a database share: the address (URL), the limits
// of the connection pool (Pool), and connections to PostgreSQL, MySQL and MariaDB with fixed
// settings. No text that it prints contains a password.
package database

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"spillway/internal/plans"
	"spillway/internal/yaml"
)

// Driver names the kind of database behind a URL.
type Driver string

// The drivers.
const (
	Postgres Driver = "postgres"
	MySQL    Driver = "mysql"
	SQLite   Driver = "sqlite"
)

// Dialect is the SQL that the driver's database reads.
func (d Driver) Dialect() plans.Dialect {
	switch d {
	case MySQL:
		return plans.MySQL
	case SQLite:
		return plans.SQLite
	}
	return plans.Postgres
}

// URL is a parsed database address. Its String never shows the password and can be logged;
// Raw is for drivers.
type URL struct {
	Driver Driver
	raw    string
	shown  string
	dsn    string
	tls    TLSFiles               // of MySQL
	local  bool                   // on another host it is another server
	read   func() (string, error) // returns the address again; nil: it does not change
}

// Errors name the expected form. None quotes the address, because any part of a malformed
// one can be the password.
var (
	errScheme = errors.New("unknown kind of database; write postgres://USER:PASSWORD@HOST:PORT/NAME, " +
		"mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH")
	errAt     = errors.New("more than one @, or an @ behind the host; in a user or password write @ as %40, / as %2F, ? as %3F and # as %23")
	errText   = errors.New("contains a space, a control character or invalid UTF-8; write such characters percent-encoded (a space is %20)")
	errEscape = errors.New("a % that two hexadecimal digits do not follow; write % itself as %25")
)

// Parse reads postgres://, postgresql://, mysql:// and sqlite:PATH addresses. Its errors
// name the mistake and the expected form, and never contain a password.
func Parse(s string) (URL, error) {
	u, err := parse(s)
	if err != nil {
		return URL{}, fmt.Errorf("parse database URL: %w", err)
	}
	return u, nil
}

// ParseAgain reads an address as Parse does. read returns it; it is called again for each new
// connection, whose user, password and certificates are then those of that moment.
func ParseAgain(read func() (string, error)) (URL, error) {
	s, err := read()
	if err != nil {
		return URL{}, err
	}
	u, err := Parse(s)
	u.read = read
	return u, err
}

// current returns the address as it is now.
func (u URL) current() (URL, error) {
	if u.read == nil {
		return u, nil
	}
	return ParseAgain(u.read)
}

// Check reads the files that the address names, and the values of its parameters. It connects to nothing.
func (u URL) Check() error {
	var err error
	switch u.Driver {
	case Postgres:
		_, err = PostgresConfig(u, "")
	case MySQL:
		_, err = NewMySQLConnector(u, 0, 0)
	}
	return err
}

func parse(s string) (URL, error) {
	if s == "" {
		return URL{}, errors.New("it is empty")
	}
	scheme, rest, _ := strings.Cut(s, ":")
	switch scheme {
	case "postgres", "postgresql":
		return parseServer(Postgres, s, rest)
	case "mysql":
		return parseServer(MySQL, s, rest)
	case "mariadb":
		return URL{}, errors.New("write mysql:// for MariaDB too")
	case "sqlite":
		return parseFile(s, rest)
	case "sqlite3", "file":
		return URL{}, errors.New("write sqlite:PATH for a SQLite file")
	}
	return URL{}, errScheme
}

// Raw returns the address as given, with its password.
func (u URL) Raw() string { return u.raw }

// Path returns the file of a SQLite address, "" for the others.
func (u URL) Path() string {
	if u.Driver != SQLite {
		return ""
	}
	return u.dsn
}

// DSN returns the address with its password in the form of the driver: go-sql-driver's for
// MySQL, the file for SQLite, Raw for PostgreSQL.
func (u URL) DSN() string { return u.dsn }

// String returns the address without its password.
func (u URL) String() string { return u.shown }

// Identity identifies the address of the database and its user, whose rights and settings can
// decide which rows a statement returns: driver, user, host, port and name, or for a file its
// path. An address that means another server on another host also has this host's identity. It
// contains no password. Two spellings of one address can have two identities.
func (u URL) Identity() string {
	if u.Driver == SQLite {
		path, err := filepath.Abs(u.dsn)
		if err != nil {
			path = u.dsn
		}
		return "sqlite:" + machine() + ":" + path
	}
	_, rest, _ := strings.Cut(u.shown, "://")
	if userinfo, host, found := strings.Cut(rest, "@"); found {
		user, _, _ := strings.Cut(userinfo, ":")
		rest = user + "@" + host
	}
	if u.local {
		rest += " on " + machine()
	}
	return string(u.Driver) + "://" + rest
}

// GoString returns the same as String, so that %#v shows no password either.
func (u URL) GoString() string { return u.shown }

func parseFile(s, path string) (URL, error) {
	switch {
	case path == "":
		return URL{}, errors.New("sqlite: without a path; write sqlite:PATH")
	case path == ":memory:":
		return URL{}, errors.New("sqlite::memory: is refused: each connection of the pool would see a database of its own; write sqlite:PATH")
	case strings.HasPrefix(path, "//"):
		return URL{}, errors.New("write sqlite:PATH without //; an absolute path is sqlite:/PATH")
	case strings.HasPrefix(path, "file:"), strings.ContainsAny(path, "?#"):
		return URL{}, errors.New("a SQLite address takes a plain path: no file:, no ? and no #")
	case strings.HasSuffix(path, "/"):
		return URL{}, errors.New("sqlite: with a directory; write sqlite:PATH of a file")
	case !utf8.ValidString(path), strings.ContainsFunc(path, unicode.IsControl):
		return URL{}, errors.New("the path contains a control character or invalid UTF-8")
	}
	return URL{Driver: SQLite, raw: s, shown: s, dsn: path, local: true}, nil
}

// server holds the parts of the address of a database server.
type server struct {
	user, password string // percent-encoded, as written
	credentials    bool   // there was an @
	hasPassword    bool
	socket         string // of MySQL, also in query
	hosts          []string
	name           string // of the database, as written
	query          []string
	tls            TLSFiles // of MySQL: ssl-ca, ssl-cert and ssl-key
}

func parseServer(driver Driver, s, rest string) (URL, error) {
	if !strings.HasPrefix(rest, "//") {
		return URL{}, fmt.Errorf("%s: is followed by //; write %s://USER:PASSWORD@HOST:PORT/NAME", driver, driver)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, isSpaceOrControl) {
		return URL{}, errText
	}
	a, err := split(driver, rest[2:])
	if err != nil {
		return URL{}, err
	}
	for _, host := range a.hosts {
		if err := checkHost(host); err != nil {
			return URL{}, err
		}
	}
	for _, text := range append([]string{a.user, a.password, a.name}, a.query...) {
		if plain, err := url.QueryUnescape(text); err != nil || strings.Contains(plain, "\x00") {
			return URL{}, errEscape
		}
	}
	if err := checkParameters(driver, a.query); err != nil {
		return URL{}, err
	}
	u := URL{Driver: driver, raw: s, dsn: s, local: a.isLocal()}
	scheme, _, _ := strings.Cut(s, ":")
	u.shown = scheme + "://" + a.redacted()
	if driver == MySQL {
		u.dsn, err = a.mysql()
		u.tls = a.tls
	}
	return u, err
}

// split splits what follows "//" in an address.
func split(driver Driver, rest string) (server, error) {
	var a server
	if strings.Contains(rest, "#") {
		return a, errors.New("contains a #; in a password write it as %23")
	}
	if strings.Count(rest, "@") > 1 {
		return a, errAt
	}
	userinfo, host, found := strings.Cut(rest, "@")
	if found {
		if strings.ContainsAny(userinfo, "/?") {
			return a, errAt
		}
		a.credentials = true
		a.user, a.password, a.hasPassword = strings.Cut(userinfo, ":")
		rest = host
	}
	rest, query, found := strings.Cut(rest, "?")
	if found {
		a.query = strings.Split(query, "&")
	}
	authority, name, _ := strings.Cut(rest, "/")
	if strings.Contains(name, "/") {
		return a, errors.New("more than one / behind the host; the database's name is one word (write / in it as %2F)")
	}
	a.name = name
	if authority != "" {
		a.hosts = strings.Split(authority, ",")
	}
	if driver != MySQL {
		return a, nil
	}
	if len(a.hosts) > 1 {
		return a, errors.New("mysql:// takes one host")
	}
	if err := a.readSocket(); err != nil {
		return a, err
	}
	return a, a.takeTLS()
}

// takeTLS takes the parameters that name files of certificates, as in the options of MySQL's clients.
func (a *server) takeTLS() error {
	files := map[string]*string{"ssl-ca": &a.tls.CA, "ssl-cert": &a.tls.Cert, "ssl-key": &a.tls.Key}
	var err error
	a.query = slices.DeleteFunc(a.query, func(pair string) bool {
		name, value, _ := strings.Cut(pair, "=")
		file := files[name]
		if file == nil {
			return false
		}
		path, problem := url.PathUnescape(value)
		if problem != nil || path == "" {
			err = fmt.Errorf("%s must name a file, as %s=/PATH", name, name)
		}
		*file = path
		return true
	})
	return err
}

func isSocket(pair string) bool { return strings.HasPrefix(pair, "socket=") }

// readSocket reads the parameter socket, which other clients of MySQL know too.
func (a *server) readSocket() error {
	i := slices.IndexFunc(a.query, isSocket)
	if i < 0 {
		return nil
	}
	path, err := url.PathUnescape(strings.TrimPrefix(a.query[i], "socket="))
	switch {
	case err != nil:
		return errEscape
	case len(a.hosts) > 0:
		return errors.New("write socket in place of the host: mysql://USER:PASSWORD@/NAME?socket=/PATH")
	case !strings.HasPrefix(path, "/") || strings.Contains(path, ")") || strings.ContainsFunc(path, isSpaceOrControl):
		return errors.New("socket must be an absolute path without blanks and ), as ?socket=/run/mysqld/mysqld.sock")
	}
	a.socket = path
	return nil
}

func isSpaceOrControl(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

func checkHost(hostport string) error {
	host, port, hasPort := hostport, "", false
	if strings.HasPrefix(hostport, "[") {
		end := strings.IndexByte(hostport, ']')
		if end < 0 || end+1 < len(hostport) && hostport[end+1] != ':' {
			return errors.New("an IPv6 host is written [ADDRESS] or [ADDRESS]:PORT")
		}
		host, port, hasPort = hostport[1:end], strings.TrimPrefix(hostport[end+1:], ":"), end+1 < len(hostport)
	} else if host, port, hasPort = strings.Cut(hostport, ":"); strings.Contains(port, ":") {
		return errors.New("more than one : in the host; an IPv6 host is written [ADDRESS]:PORT")
	}
	if host == "" || strings.ContainsAny(host, "()[]\\\"<>^`{|}%") {
		return errors.New("the host is missing or holds a character that no host has; write HOST:PORT")
	}
	if !hasPort {
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("the port is not a number from 1 to 65535 (a password that holds / or : or @ must be percent-encoded)")
	}
	return nil
}

// redacted writes the address again, with *** for every secret.
func (a server) redacted() string {
	shown := strings.Join(a.hosts, ",") + "/" + a.name
	switch {
	case a.hasPassword:
		shown = a.user + ":***@" + shown
	case a.credentials:
		shown = a.user + "@" + shown
	}
	separator := "?"
	for _, pair := range a.query {
		name, _, found := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		plain = strings.ToLower(plain)
		if found && (err != nil || strings.Contains(plain, "pass") || strings.Contains(plain, "secret")) {
			pair = name + "=***"
		}
		shown, separator = shown+separator+pair, "&"
	}
	return shown
}

// mysql returns the address in go-sql-driver's form: user and password plain, name and
// parameters percent-encoded.
func (a server) mysql() (string, error) {
	user, _ := url.PathUnescape(a.user) // checked by parseServer, as the password
	password, _ := url.PathUnescape(a.password)
	if strings.Contains(user, ":") {
		return "", errors.New("a MySQL user with a : in its name cannot be written as an address")
	}
	where := "unix(" + a.socket + ")"
	if a.socket == "" {
		host := "127.0.0.1:3306"
		if len(a.hosts) == 1 {
			host = a.hosts[0]
		}
		if strings.LastIndexByte(host, ':') <= strings.LastIndexByte(host, ']') {
			host += ":3306"
		}
		where = "tcp(" + host + ")"
	}
	dsn := where + "/" + a.name
	if a.credentials {
		dsn = user + ":" + password + "@" + dsn
	}
	if query := slices.DeleteFunc(slices.Clone(a.query), isSocket); len(query) > 0 {
		// go-sql-driver takes the last / of all as the one before the name.
		dsn += "?" + strings.ReplaceAll(strings.Join(query, "&"), "/", "%2F")
	}
	return dsn, nil
}

// machine identifies this host: by /etc/machine-id, if there is one, and by its name, because a
// copy of a host can have the same machine-id.
func machine() string {
	id, _ := os.ReadFile("/etc/machine-id") // the name is enough
	name, _ := os.Hostname()
	return strings.TrimSpace(string(id)) + "@" + name
}

// Local reports whether the address is one of this host: a file, a socket, a loopback address, or no host at all.
func (u URL) Local() bool { return u.local }

// Here identifies what an address on this host means now, better than Identity, but for as long as
// the host runs: its copies have another identity, and each network in it. It is empty if the
// address means the same everywhere.
func (u URL) Here() string {
	if !u.local {
		return ""
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // both are Linux's; elsewhere Identity must do
	network, _ := os.Readlink("/proc/self/ns/net")
	return string(boot) + network
}

// isLocal reports whether the address can mean another server on another host: it has a socket,
// a loopback address, or no host at all.
func (a server) isLocal() bool {
	hosts := slices.Clone(a.hosts)
	for _, pair := range a.query {
		if name, value, _ := strings.Cut(pair, "="); name == "host" || name == "hostaddr" {
			plain, _ := url.QueryUnescape(value) // checked by parseServer
			hosts = append(hosts, strings.Split(plain, ",")...)
		}
	}
	return len(hosts) == 0 || slices.ContainsFunc(hosts, isLoopback)
}

// isLoopback reports whether a host, with or without a port, is a socket or a loopback address.
func isLoopback(host string) bool {
	host = strings.ToLower(host)
	if host == "" || strings.ContainsAny(host[:1], "/@") || strings.HasPrefix(host, "127.") || strings.Contains(host, "localhost") {
		return true
	}
	if place, err := netip.ParseAddrPort(host); err == nil {
		host = place.Addr().String()
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && (addr.Unmap().IsLoopback() || addr.IsUnspecified())
}

// clientParameters are those parameters of an address that are not settings of the server.
func clientParameters(driver Driver) []string {
	if driver == MySQL {
		return strings.Fields("socket ssl-ca ssl-cert ssl-key tls allowAllFiles allowCleartextPasswords allowFallbackToPlaintext " +
			"allowNativePasswords allowOldPasswords charset checkConnLiveness clientFoundRows collation columnsWithAlias compress " +
			"connectionAttributes interpolateParams loc maxAllowedPacket multiStatements parseTime readTimeout rejectReadOnly serverPubKey " +
			"strict timeTruncate timeout writeTimeout")
	}
	return strings.Fields("host hostaddr port database dbname user password passfile connect_timeout sslmode sslkey sslcert sslcertmode " +
		"sslrootcert sslnegotiation sslpassword sslsni krbspn krbsrvname target_session_attrs service servicefile " +
		"min_protocol_version max_protocol_version channel_binding require_auth")
}

// checkParameters refuses what looks like a misspelled parameter of the client or one of another program. It would otherwise be
// taken for a setting of the server.
func checkParameters(driver Driver, query []string) error {
	known := clientParameters(driver)
	for _, pair := range query {
		name, _, _ := strings.Cut(pair, "=")
		name, _ = url.QueryUnescape(name) // checked by parseServer
		if slices.Contains(known, name) {
			continue
		}
		lower := strings.ToLower(name)
		for _, meant := range known {
			if yaml.Distance(lower, strings.ToLower(meant)) <= 1 {
				return fmt.Errorf("a parameter looks like %s, and is not; write %s", meant, meant)
			}
		}
		ofTLS := func(word string) bool { return strings.Contains(lower, word) }
		if lower == "ca" || lower == "key" || slices.ContainsFunc([]string{"ssl", "tls", "cert"}, ofTLS) {
			tls := map[Driver]string{MySQL: "tls, ssl-ca, ssl-cert and ssl-key", Postgres: "sslmode, sslrootcert, sslcert and sslkey"}
			return fmt.Errorf("a parameter looks like one of TLS, and is none; TLS has %s", tls[driver])
		}
	}
	return nil
}
