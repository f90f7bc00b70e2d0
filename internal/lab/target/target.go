// Package target is what a load is put on: HTTP, PostgreSQL, MySQL, SQLite and
// Redis servers. Open reads an address and what to send there; the package then
// sends one request at a time on each connection and tells when each was due,
// sent, first answered and done, and how it ended.
//
// http:// and redis:// are driven by Worker, an epoll loop on one thread that
// costs little per request; https:// and SQL by Session, whose requests block. Both
// keep two promises: nothing is sent a second time in secret, and nothing is
// sent to a host that is neither loopback nor private unless it was allowed.
//
// When requests are sent is not decided here: see package load.
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
	"golang.org/x/sys/unix"
)

// Config says what is loaded and how. URL, Timeout and Clock are required.
type Config struct {
	URL           string        // http:, https:, http+unix:, postgres:, mysql:, sqlite:, redis: or rediss:
	Socket        string        // a Unix socket to connect to in place of the URL's host
	Sources       []netip.Addr  // local addresses to connect from, in turn
	Allow         []string      // hosts that may be loaded though they are not private
	Timeout       time.Duration // of one request, connecting included
	PerConnection int           // requests on one connection; 0: for ever
	Seed          uint64        // of random values
	Clock         Clock

	Requests []HTTPRequest // HTTP; none: GET the URL's path
	Method   string        // HTTP: of the URL's own request
	Body     Template      // HTTP: of the URL's own request
	Headers  []Header      // HTTP
	Checks   Checks        // HTTP
	HTTP2    bool          // https: speak HTTP/2
	Insecure bool          // https:, rediss:: take any certificate

	SQL      string           // postgres:, mysql:, sqlite:
	Params   map[string]Value // of SQL
	Commands []string         // redis:; drawn with equal chances

	path string // sqlite: the file
}

// Target is a configured target. It may be used concurrently.
type Target struct {
	config   Config
	kind     kind
	host     string // HTTP: of the Host header
	network  network
	address  netip.AddrPort // unless network is a Unix socket
	tls      *tls.Config    // nil: plain
	sequence atomic.Int64
	plain    atomic.Bool // PostgreSQL, MySQL: connections are not encrypted

	mysqlSession atomic.Pointer[mysqlSession] // what every connection of the lean engine has agreed on

	mix       *httpMix
	commands  []command
	greeting  []byte
	greets    int
	statement statement
	postgres  *pgconn.Config
	mysql     *mysql.Config
}

// kind is the protocol of a target.
type kind uint8

const (
	kindHTTP kind = iota
	kindRedis
	kindPostgres
	kindMySQL
	kindSQLite
)

// Open reads the address and everything to be sent, and looks its host up. It
// connects to nothing. The errors are the user's mistakes, one line each.
func Open(ctx context.Context, config Config) (*Target, error) {
	if config.Timeout <= 0 {
		return nil, errors.New("the timeout must be longer than nothing")
	}
	t := &Target{config: config}
	place, err := t.parse()
	if err != nil {
		return nil, err
	}
	if t.kind == kindSQLite {
		return t, nil
	}
	return t, t.locate(ctx, place)
}

// place is where a target is: a host and port, or a Unix socket.
type place struct {
	host, port string
	socket     string
}

// locate resolves the place and refuses hosts that may not be loaded.
func (t *Target) locate(ctx context.Context, p place) error {
	if t.config.Socket != "" {
		p.socket = t.config.Socket
	}
	t.network = network{kind: "tcp", sources: t.config.Sources, timeout: t.config.Timeout}
	if p.socket != "" {
		if len(t.config.Sources) > 0 {
			return errors.New("a local address (--source) means nothing on a Unix socket")
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
			return fmt.Errorf("local address %s and target %s are not of one kind (IPv4, IPv6)", source, address.Addr())
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

// ErrNotAllowed says that a host may not be loaded without the user's word.
var ErrNotAllowed = errors.New("not allowed")

// mayLoad refuses an address on the open network that the user has not named.
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
	return fmt.Errorf("%w: %s is neither this machine nor a private address; load takes a service away from its users: if it is yours to load, say so with --allow %s",
		ErrNotAllowed, where, host)
}

// Lean says whether Worker drives this target; otherwise Session does. Of
// PostgreSQL and MySQL it is known once Check has seen whether connections are
// encrypted.
func (t *Target) Lean() bool {
	if t.kind == kindPostgres || t.kind == kindMySQL {
		return t.plain.Load() && t.config.PerConnection == 0
	}
	return (t.kind == kindHTTP || t.kind == kindRedis) && t.tls == nil
}

// SQL says whether the target runs SQL statements.
func (t *Target) SQL() bool { return t.kind >= kindPostgres }

// Address returns where connections go: an address and port, a socket or a file.
func (t *Target) Address() string {
	if t.kind == kindSQLite {
		return t.config.path
	}
	return t.network.address
}

// Check opens one connection and closes it: whether there is a target at all,
// and whether it takes the statement.
func (t *Target) Check(ctx context.Context) error {
	switch t.kind {
	case kindMySQL:
		plain, err := t.checkMySQLWire(ctx)
		if err != nil {
			return fmt.Errorf("connect to the target: %w", err)
		}
		t.plain.Store(plain)
		return nil
	case kindPostgres:
		fd, err := t.dialPostgresWire(ctx, 0)
		if err == nil {
			t.plain.Store(true)
			return unix.Close(fd)
		}
		if !errors.Is(err, errNotPlain) {
			return fmt.Errorf("connect to the target: %w", err)
		}
		return nil
	}
	if t.Lean() {
		conn, err := t.network.dial(ctx, 0)
		if err != nil {
			return fmt.Errorf("connect to the target: %w", err)
		}
		return conn.Close()
	}
	l, err := t.dialer(t.source(0))(ctx, 0)
	if err != nil {
		return fmt.Errorf("connect to the target: %w", err)
	}
	l.close()
	return nil
}

func (t *Target) source(number int) *Source {
	return NewSource(t.config.Seed, number, &t.sequence)
}

// NewWorker returns a worker of a lean target with its share of connections;
// number tells the workers of a run apart. None of the connections is open yet.
func (t *Target) NewWorker(number, connections int, observe func(*Outcome)) (*Worker, error) {
	p, err := newPoller()
	if err != nil {
		return nil, err
	}
	w := &Worker{
		clock: t.config.Clock, endpoint: t.endpoint(), perConnection: t.config.PerConnection, timeout: int64(t.config.Timeout),
		observe: observe, poller: p, connections: make([]connection, connections), free: make([]*connection, 0, connections),
		buffer: make([]byte, readBytes), turn: number, changed: t.config.Clock.Now(),
	}
	dial := t.dialPostgresWire
	if t.kind == kindMySQL {
		dial = t.dialMySQLWire
	}
	if t.SQL() {
		if w.handshakes, err = newHandshakes(p, connections, dial); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	source, memory := t.source(number), new(scratch)
	for i := range w.connections {
		c := &w.connections[len(w.connections)-1-i] // the first is used first
		c.fd = -1
		c.key.connection = int32(len(w.connections) - 1 - i)
		c.protocol = t.newProtocol(source, memory)
		w.free = append(w.free, c)
	}
	return w, nil
}

// endpoint returns where raw connections go, for one thread.
func (t *Target) endpoint() endpoint {
	if t.network.kind == "unix" {
		return unixEndpoint(t.network.address)
	}
	return tcpEndpoint(t.address, t.config.Sources)
}

func (t *Target) newProtocol(source *Source, memory *scratch) protocol {
	switch t.kind {
	case kindPostgres:
		return &postgresProtocol{statement: &t.statement, source: source, scratch: memory}
	case kindMySQL:
		return &mysqlProtocol{statement: &t.statement, session: t.mysqlSession.Load(), source: source, scratch: memory}
	case kindRedis:
		return &redisProtocol{commands: t.commands, greeting: t.greeting, greets: t.greets, source: source, scratch: memory}
	}
	return &httpProtocol{mix: t.mix, checks: &t.config.Checks, source: source, scratch: memory}
}

// NewSession returns session number of sessions of a target that is not lean.
// Its connection is not open yet.
func (t *Target) NewSession(number, sessions int) *Session {
	return &Session{clock: t.config.Clock, dial: t.dialer(t.source(number)), perConnection: t.config.PerConnection, connection: number, stride: sessions}
}

func (t *Target) dialer(source *Source) dialer {
	with := func(dial func(*Target, context.Context, int, *Source) (link, error)) dialer {
		return func(ctx context.Context, turn int) (link, error) { return dial(t, ctx, turn, source) }
	}
	switch {
	case t.kind == kindPostgres:
		return with((*Target).dialPostgres)
	case t.kind == kindMySQL:
		return with((*Target).dialMySQL)
	case t.kind == kindSQLite:
		return with((*Target).dialSQLite)
	case t.config.HTTP2:
		return with((*Target).dialHTTP2)
	}
	return with((*Target).dialStream)
}

// dialStream opens a TLS connection for a protocol of the lean engine.
func (t *Target) dialStream(ctx context.Context, turn int, source *Source) (link, error) {
	conn, err := t.network.dialTLS(ctx, turn, t.tls)
	if err != nil {
		return nil, err
	}
	return &streamLink{
		conn: conn, clock: t.config.Clock, timeout: t.config.Timeout,
		protocol: t.newProtocol(source, new(scratch)), buffer: make([]byte, readBytes/4),
	}, nil
}
