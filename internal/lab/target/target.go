// Package target sends requests to HTTP, PostgreSQL, MySQL, MariaDB, SQLite and
// Redis servers. Open parses an address and the requests. Each connection then carries
// one request at a time, and an Outcome reports its times and its result.
//
// On Linux, Worker drives http://, redis:// and unencrypted postgres:// with an
// epoll loop on one thread, which costs little CPU per request. Session, whose
// requests block, drives all other targets. Neither sends a request twice, and
// neither connects to a public address that the user has not allowed.
//
// Package load decides when requests are sent.
package target

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// Config describes a target and its requests. URL, Timeout and Clock are required.
type Config struct {
	URL           string        // http:, https:, http+unix:, postgres:, mysql:, sqlite:, redis: or rediss:
	Socket        string        // Unix socket to connect to instead of the URL's host
	Sources       []netip.Addr  // local addresses to connect from, in rotation
	Allow         []string      // public hosts that may be loaded
	Timeout       time.Duration // of one request, including connecting
	PerConnection int           // requests per connection; 0: unlimited
	Seed          uint64        // of random values
	Share         Share         // of the values of sequence and of files
	Clock         Clock
	Files         Files // that requests may name; nil: none

	Requests []HTTPRequest // HTTP; empty: GET the URL's path
	Method   string        // HTTP: of the URL's own request
	Body     Template      // HTTP: of the URL's own request
	Headers  []Header      // HTTP
	Checks   Checks        // HTTP
	HTTP2    bool          // https: use HTTP/2
	Insecure bool          // https:, rediss:: accept any certificate

	SQL      string           // postgres:, mysql:, sqlite:
	Params   map[string]Value // of SQL
	Commands []string         // redis:; drawn with equal probability

	path string // sqlite: file name
}

// Target is a parsed Config. It is safe for concurrent use.
type Target struct {
	config   Config
	kind     kind
	host     string // HTTP: of the Host header
	network  network
	address  netip.AddrPort // unless network is a Unix socket
	tls      *tls.Config    // nil: plain
	sequence atomic.Int64
	plain    atomic.Bool // PostgreSQL: connections are not encrypted, as Check found

	mix          *httpMix
	commands     []command
	setup        []byte // Redis: AUTH and SELECT, sent before the first command
	setupReplies int
	statement    statement
	postgres     *pgconn.Config
	mysql        *mysql.Config
}

// kind is the type of a target.
type kind uint8

const (
	kindHTTP kind = iota
	kindRedis
	kindPostgres
	kindMySQL
	kindSQLite
)

// Parse reads the address, the requests and the files that they name, without
// looking up the host. It reports whether the requests are SQL statements, and
// whether only programs of this host reach the target, because it is a Unix socket
// or a file. Its errors are those of Open.
func Parse(config Config) (sql, thisHost bool, err error) {
	t := &Target{config: config}
	where, err := t.parse()
	return t.SQL(), t.kind == kindSQLite || where.socket != "" || config.Socket != "", err
}

// Open parses the address and the requests and resolves the host. It does not
// connect. Its errors are mistakes of the user, one line each.
func Open(ctx context.Context, config Config) (*Target, error) {
	if config.Timeout <= 0 {
		return nil, errors.New("the timeout must be positive")
	}
	t := &Target{config: config}
	where, err := t.parse()
	if err != nil {
		return nil, err
	}
	if t.kind == kindSQLite {
		return t, nil
	}
	return t, t.locate(ctx, where)
}

// location is a host and port, or a Unix socket.
type location struct {
	host, port string
	socket     string
}

// locate resolves the location and rejects hosts that may not be loaded.
func (t *Target) locate(ctx context.Context, p location) error {
	if t.config.Socket != "" {
		p.socket = t.config.Socket
	}
	t.network = network{kind: "tcp", sources: t.config.Sources, timeout: t.config.Timeout}
	if p.socket != "" {
		if len(t.config.Sources) > 0 {
			return errors.New("--source has no effect on a Unix socket; remove one of the two")
		}
		t.network.kind, t.network.address = "unix", p.socket
		return nil
	}
	address, err := resolve(ctx, p.host, p.port, t.config.Timeout)
	if err != nil {
		return err
	}
	if err := mayLoad(p.host, address.Addr(), t.config.Allow); err != nil {
		return err
	}
	for _, source := range t.config.Sources {
		if source.Unmap().Is4() != address.Addr().Is4() {
			return fmt.Errorf("--source %s and target %s must both be IPv4 or both be IPv6", source, address.Addr())
		}
	}
	t.network.address = address.String()
	t.address = address
	return nil
}

func resolve(ctx context.Context, host, port string, timeout time.Duration) (netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port %q: %w", port, err)
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look up %s: %w", host, err)
	}
	chosen := addresses[0].Unmap()
	for _, a := range addresses {
		if a = a.Unmap(); a.Is4() {
			chosen = a
			break
		}
	}
	return netip.AddrPortFrom(chosen, uint16(number)), nil
}

// mayLoad rejects a public address that is not in allow.
func mayLoad(host string, address netip.Addr, allow []string) error {
	if address.IsLoopback() || address.IsPrivate() || address.IsLinkLocalUnicast() {
		return nil
	}
	for _, allowed := range allow {
		if allowed == host || allowed == address.String() {
			return nil
		}
	}
	where := host
	if where != address.String() {
		where += " (" + address.String() + ")"
	}
	return fmt.Errorf("not allowed: %s is neither this machine nor a private address; a load test can take a service down: if you may test this host, add --allow %s",
		where, host)
}

// EventLoop reports whether a Worker drives this target; otherwise a Session
// does. For PostgreSQL the answer is known after Check.
func (t *Target) EventLoop() bool {
	switch t.kind {
	case kindHTTP, kindRedis:
		return hasWorkers && t.tls == nil
	case kindPostgres:
		return t.plain.Load() && t.config.PerConnection == 0
	}
	return false
}

// SQL reports whether the target runs SQL statements.
func (t *Target) SQL() bool { return t.kind >= kindPostgres }

// Check opens one connection and closes it. It fails if there is no such target or
// the target rejects the statement.
func (t *Target) Check(ctx context.Context) error {
	if err := t.tryConnection(ctx); err != nil {
		return fmt.Errorf("connect to the target: %w", err)
	}
	return nil
}

func (t *Target) tryConnection(ctx context.Context) error {
	if t.kind == kindPostgres && hasWorkers {
		return t.checkWorker(ctx)
	}
	conn, err := t.dialer(t.source(0))(ctx, 0)
	if err != nil {
		return err
	}
	conn.close()
	return nil
}

func (t *Target) source(number int) *Source {
	source := NewSource(t.config.Seed, number, &t.sequence)
	source.share = t.config.Share
	return source
}

func (t *Target) newProtocol(source *Source, memory *scratch) protocol {
	switch t.kind {
	case kindPostgres:
		return &postgresProtocol{statement: &t.statement, source: source, scratch: memory}
	case kindRedis:
		return &redisProtocol{commands: t.commands, setup: t.setup, setupReplies: t.setupReplies, source: source, scratch: memory}
	}
	return &httpProtocol{mix: t.mix, checks: &t.config.Checks, source: source, scratch: memory}
}

// NewSession returns session number of that many sessions. Its connection is not
// open. EventLoop must be false.
func (t *Target) NewSession(number, sessions int) *Session {
	return &Session{clock: t.config.Clock, dial: t.dialer(t.source(number)), perConnection: t.config.PerConnection, connection: number, stride: sessions}
}

func (t *Target) dialer(source *Source) dialer {
	with := func(dial func(*Target, context.Context, int, *Source) (blockingConn, error)) dialer {
		return func(ctx context.Context, number int) (blockingConn, error) { return dial(t, ctx, number, source) }
	}
	switch {
	case t.kind == kindMySQL:
		return with((*Target).dialMySQL)
	case t.kind == kindSQLite:
		return with((*Target).dialSQLite)
	case t.config.HTTP2:
		return with((*Target).dialHTTP2)
	}
	return with((*Target).dialStream)
}
