// Package target sends requests to HTTP, PostgreSQL, MySQL, MariaDB and Redis
// servers. Open parses an address and the requests. Each connection then carries
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
	"cmp"
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
	URL           string        // http:, https:, http+unix:, postgres:, mysql:, redis: or rediss:
	Socket        string        // Unix socket to connect to instead of the URL's host
	Sources       []netip.Addr  // local addresses to connect from, in rotation
	Allow         []string      // public hosts that may be loaded
	Timeout       time.Duration // of one request, including its connection
	PerConnection int           // requests per connection; 0: unlimited
	Seed          uint64        // of random values
	Part          Part          // of the values of sequence and of files
	Clock         Clock

	// Lookup returns the addresses of a host; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	Requests []HTTPRequest // HTTP; empty: GET the URL's path
	Method   string        // HTTP: of the URL's own request
	Body     Template      // HTTP: of the URL's own request
	Headers  []Header      // HTTP
	Checks   Checks        // HTTP
	HTTP2    bool          // use HTTP/2; without TLS with prior knowledge (h2c)
	Streams  int           // HTTP/2: requests in flight per connection; 0: 1
	GRPC     string        // HTTP/2: unary method package.Service/Method; Body is its request in JSON
	Proto    string        // of GRPC: file with a FileDescriptorSet
	Insecure bool          // https:, rediss:: accept any certificate
	Calls    []string      // HTTP: names of the requests that the caller makes with Session.Call, instead of Requests
	CACert   string        // https:, rediss:: PEM file of the authorities to trust instead of the system's
	Cert     string        // https:, rediss:: PEM file of the client's certificate, with Key
	Key      string

	SQL      string           // postgres:, mysql:
	Params   map[string]Value // of SQL
	Commands []string         // redis:; [name=NAME] WORDS, drawn with equal probability
}

// Target is a parsed Config. It is safe for concurrent use.
type Target struct {
	config   Config
	kind     kind
	host     string // HTTP: of the Host header
	network  network
	places   []netip.AddrPort    // of the host, in the order in which Check tries them
	hosts    map[string][]string // addresses by host of a PostgreSQL URL with several; nil: one host
	notes    []string
	tls      *tls.Config // nil: plain
	sequence atomic.Int64
	plain    atomic.Bool // PostgreSQL: connections are not encrypted, as Check found

	mix          mix
	http         *httpMix
	grpc         *grpcMethod // nil: HTTP
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
)

// Open parses the address and the requests and resolves the host. It does not
// connect. Its errors are mistakes of the user, one line each.
func Open(ctx context.Context, config Config) (*Target, error) {
	if config.Timeout <= 0 {
		return nil, errors.New("the timeout must be positive")
	}
	t := &Target{config: config}
	if err := t.parse(); err != nil {
		return nil, err
	}
	return t, t.locate(ctx)
}

// locate resolves the hosts and rejects those that may not be loaded.
func (t *Target) locate(ctx context.Context) (err error) {
	n := &t.network
	n.socket = cmp.Or(t.config.Socket, n.socket)
	n.sources, n.allow, n.lookup = t.config.Sources, t.config.Allow, t.config.Lookup
	if n.lookup == nil {
		n.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	switch {
	case n.socket != "" && len(n.sources) > 0:
		return errors.New("--source has no effect on a Unix socket; remove one of the two")
	case n.socket != "":
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	if t.places, err = n.resolve(ctx, n.host); err != nil {
		return err
	}
	n.place.Store(&t.places[0])
	if len(n.others) == 0 {
		return nil
	}
	t.hosts = make(map[string][]string)
	for _, host := range append([]string{n.host}, n.others...) {
		places, err := n.resolve(ctx, host)
		if err != nil {
			return err
		}
		t.hosts[host] = nil // it may be there twice, with another port
		for _, place := range places {
			t.hosts[host] = append(t.hosts[host], place.Addr().String())
		}
	}
	return nil
}

// EventLoop reports whether a Worker drives this target; otherwise a Session
// does. For PostgreSQL the answer is known after Check.
func (t *Target) EventLoop() bool {
	switch t.kind {
	case kindHTTP, kindRedis:
		return hasWorkers && t.tls == nil && !t.config.HTTP2 && len(t.config.Calls) == 0
	case kindPostgres:
		return t.plain.Load() && t.config.PerConnection == 0
	}
	return false
}

// Address returns where connections go: "tcp" and the first address in use with its port, or "unix" and a path.
func (t *Target) Address() (network, address string) {
	if t.network.socket != "" {
		return "unix", t.network.socket
	}
	return "tcp", t.network.place.Load().String()
}

// SQL reports whether the target runs SQL statements.
func (t *Target) SQL() bool { return t.kind >= kindPostgres }

// Names returns the names of the requests; Outcome.Request is an index of it. It
// is empty for a single request without a name. The caller must not change it.
func (t *Target) Names() []string { return t.mix.names }

// Notes are sentences that a reader of the results must know, after Check.
func (t *Target) Notes() []string { return t.notes }

// Check opens one connection and closes it. It tries every address of the host
// and chooses the first that works; Notes says so. It fails if there is no such
// target or the target rejects the statement.
func (t *Target) Check(ctx context.Context) error {
	if err := t.choose(ctx, t.tryConnection); err != nil {
		return fmt.Errorf("connect to the target: %w", adviseTLS(err))
	}
	return nil
}

func (t *Target) tryConnection(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	if t.kind == kindPostgres && hasWorkers {
		return t.checkWorker(ctx)
	}
	conn, _, err := t.dialer(t.source(0))(ctx, 0)
	if err != nil {
		return err
	}
	defer conn.close()
	if stream, ok := conn.(*streamConn); ok && t.setupReplies > 0 {
		return stream.logIn(ctx, t.setup, t.setupReplies)
	}
	return nil
}

func (t *Target) source(number int) *Source {
	source := NewSource(t.config.Seed, number, &t.sequence)
	source.part = t.config.Part
	return source
}

func (t *Target) newProtocol(source *Source, memory *scratch) protocol {
	switch t.kind {
	case kindPostgres:
		return &postgresProtocol{statement: &t.statement, source: source, scratch: memory}
	case kindRedis:
		return &redisProtocol{commands: t.commands, setup: t.setup, setupReplies: t.setupReplies, source: source, scratch: memory}
	}
	return &httpProtocol{requests: t.http.requests, checks: &t.config.Checks, source: source, scratch: memory}
}

// Slots is the number of requests that may be in flight on that many connections.
func (t *Target) Slots(connections int) int { return connections * max(t.config.Streams, 1) }

// NewSessions returns the sessions of a step: one per connection, or one per
// stream of each. Their connections are not open. EventLoop must be false.
func (t *Target) NewSessions(connections int) []*Session {
	sessions := make([]*Session, t.Slots(connections))
	groups := make([]*httpGroup, connections)
	for i := range sessions {
		s := t.NewSession(i, len(sessions))
		if t.config.HTTP2 && len(t.config.Calls) == 0 {
			if groups[i%connections] == nil {
				groups[i%connections] = newHTTPGroup(t)
			}
			s.dial = groups[i%connections].dialer(s.source)
		}
		sessions[i] = s
	}
	return sessions
}

// NewSession returns session number of that many sessions, with a connection of
// its own, which is not open. EventLoop must be false.
func (t *Target) NewSession(number, sessions int) *Session {
	source := t.source(number)
	return &Session{
		clock: t.config.Clock, source: source, mix: &t.mix, dial: t.dialer(source), timeout: t.config.Timeout,
		perConnection: t.config.PerConnection, connection: number, stride: sessions,
	}
}

func (t *Target) dialer(source *Source) dialer {
	with := func(dial func(*Target, context.Context, int, *Source) (blockingConn, error)) dialer {
		return func(ctx context.Context, number int) (blockingConn, bool, error) {
			conn, err := dial(t, ctx, number, source)
			return conn, true, err
		}
	}
	switch {
	case t.kind == kindMySQL:
		return with((*Target).dialMySQL)
	case t.config.HTTP2, len(t.config.Calls) > 0:
		return newHTTPGroup(t).dialer(source)
	}
	return with((*Target).dialStream)
}
