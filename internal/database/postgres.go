package database

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// lifetimeJitter spreads the replacement of connections opened together.
	lifetimeJitter = 0.1
	// cancelTimeout is how long the server may take to confirm that it cancels a
	// statement. Then the connection is closed.
	cancelTimeout = 2 * time.Second
	// protocolViolation is PgBouncer's SQLSTATE for a refused startup parameter.
	protocolViolation = "08P01"
)

// PostgresPool is a pool of connections from OpenPostgres.
type PostgresPool struct {
	*pgxpool.Pool
	cancels *cancels
	renewal *renewal
	logins  *Logins
}

// Logins counts the changes of the user of the connections.
func (p *PostgresPool) Logins() uint64 { return p.logins.Count() }

// Renew replaces the connections of a server that says that it is read-only: after a failover the name of the host leads to
// another one. Idle connections are closed at once, the others when they are free. Within renewEvery only the first call does
// anything.
func (p *PostgresPool) Renew() { p.renewal.now(time.Now()) }

// Renewed identifies the last renewal.
func (p *PostgresPool) Renewed() int64 { return p.renewal.last.Load() }

// renewEvery is how often connections to a server that stays read-only are replaced.
const renewEvery = 5 * time.Second

// stateReadOnly is the SQLSTATE of a server that accepts no writes.
const stateReadOnly = "25006"

// renewal resets a pool, at most once per renewEvery.
type renewal struct {
	pool atomic.Pointer[pgxpool.Pool] // nil while it is opened
	last atomic.Int64                 // Unix ns
}

func (r *renewal) now(now time.Time) {
	last := r.last.Load()
	if pool := r.pool.Load(); pool != nil && now.UnixNano()-last >= int64(renewEvery) && r.last.CompareAndSwap(last, now.UnixNano()) {
		pool.Reset()
	}
}

// Close waits for running statements and closes all connections.
func (p *PostgresPool) Close() {
	p.Pool.Close()
	p.cancels.close()
}

// OpenPostgres returns a pool of connections to a PostgreSQL server, or to a pooler or
// server that speaks its protocol. It connects in the background and on demand, so it
// succeeds even if the server is down. The zero fields of p take their defaults.
//
// Sessions are in UTC with ISO dates. Intervals and floating-point numbers have the server's default forms, unless a pooler
// refuses to set these. The server cancels a statement after
// p.StatementTimeout, unless a pooler refuses the setting. When a statement's context
// ends, the server is asked to cancel the statement, except for what a CommitGuard guards.
// A connection whose network is dead fails within a minute. The URL's sslmode decides about
// TLS; the default is "prefer".
func OpenPostgres(ctx context.Context, url URL, p Pool, log *slog.Logger) (*PostgresPool, error) {
	config, err := pgxpool.ParseConfig(url.Raw())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err) // pgx omits the password
	}
	p = p.WithDefaults(runtime.GOMAXPROCS(0))
	config.MinConns = int32(min(p.Min, p.Max))
	config.MaxConns = int32(p.Max)
	config.MaxConnLifetime = p.MaxLifetime
	config.MaxConnLifetimeJitter = time.Duration(lifetimeJitter * float64(p.MaxLifetime))
	config.MaxConnIdleTime = p.MaxIdleTime
	config.PingTimeout = p.ConnectTimeout

	conn := config.ConnConfig
	conn.ConnectTimeout = p.ConnectTimeout
	conn.DialFunc = newDialer(p.ConnectTimeout).DialContext
	setDefaults(conn.RuntimeParams, map[string]string{
		"application_name": "spillway",
		"client_encoding":  "UTF8",
		"timezone":         "UTC",
		"datestyle":        "ISO",
	})
	limit := &optionalParams{log: log, values: map[string]string{
		timeoutParam:         strconv.FormatInt(max(1, p.StatementTimeout.Milliseconds()), 10),
		"intervalstyle":      "postgres",
		"extra_float_digits": "1", // all that are significant
	}}
	requests := new(cancels)
	requests.ctx, requests.stop = context.WithCancel(context.WithoutCancel(ctx))
	config.BeforeConnect = func(ctx context.Context, config *pgx.ConnConfig) error {
		if err := renewLogin(&config.Config, url); err != nil {
			return err
		}
		if err := limit.beforeConnect(ctx, config); err != nil {
			return err
		}
		(&CommitGuard{cancels: requests}).install(&config.Config)
		return nil
	}

	renewal, logins, judge := new(renewal), new(Logins), conn.OnPgError
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		logins.Opened(conn.Config().User, func() {
			if pool := renewal.pool.Load(); pool != nil {
				pool.Reset()
			}
		})
		return nil
	}
	conn.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == stateReadOnly {
			renewal.now(time.Now())
		}
		return judge(conn, err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		requests.stop()
		return nil, fmt.Errorf("open %s: %w", url, err)
	}
	renewal.pool.Store(pool)
	return &PostgresPool{pool, requests, renewal, logins}, nil
}

// renewLogin sets user, password and certificates as the files of the address hold them now.
func renewLogin(config *pgconn.Config, url URL) error {
	now, err := url.current()
	if err != nil {
		return err
	}
	current, err := pgconn.ParseConfig(now.Raw())
	if err != nil {
		return fmt.Errorf("read %s: %w", now, err) // pgx omits the password
	}
	config.User, config.Password, config.TLSConfig = current.User, current.Password, current.TLSConfig
	if len(config.Fallbacks) == len(current.Fallbacks) {
		for i, fallback := range current.Fallbacks {
			config.Fallbacks[i].TLSConfig = fallback.TLSConfig
		}
	}
	return nil
}

// PostgresConfig returns the configuration of one connection to a PostgreSQL server, for a client that keeps the server's
// own settings: a load, a watch or doctor. The server shows name for its sessions; "" means what the URL says.
// pgconn.ConnectConfig tries the hosts of the URL in order.
func PostgresConfig(url URL, name string) (*pgconn.Config, error) {
	config, err := pgconn.ParseConfig(url.Raw())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err) // pgx omits the password
	}
	if name != "" {
		config.RuntimeParams["application_name"] = name
		config.RuntimeParams["client_encoding"] = "UTF8"
	}
	return config, nil
}

// silentMost is how long a server may acknowledge nothing, before the connection is closed.
// No other timeout ends a COMMIT that waits for its answer.
const silentMost = time.Minute

// newDialer returns a dialer of connections that notice a dead network.
func newDialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: setUserTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: silentMost / 4, Interval: silentMost / 12, Count: 9,
	}}
}

// setDefaults adds the defaults that the URL has not set, whatever their case.
func setDefaults(params, defaults map[string]string) {
	given := make(map[string]bool, len(params))
	for name := range params {
		given[strings.ToLower(name)] = true
	}
	for name, value := range defaults {
		if !given[name] {
			params[name] = value
		}
	}
}

// timeoutParam is the startup parameter that limits a statement.
const timeoutParam = "statement_timeout"

// optionalParams are set at connect, unless a pooler refuses them. The first connection finds out for the
// later ones.
type optionalParams struct {
	log *slog.Logger

	mu     sync.Mutex
	values map[string]string // without those that were refused
	known  bool              // the server accepts them
}

// beforeConnect adds the settings to the configuration of a new connection. Until it knows which ones the
// server accepts, it tries on connections of its own.
func (o *optionalParams) beforeConnect(ctx context.Context, config *pgx.ConnConfig) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		tried := config.Config.Copy()
		setDefaults(tried.RuntimeParams, o.values)
		if !o.known && len(o.values) > 0 {
			conn, err := pgconn.ConnectConfig(ctx, tried)
			if o.forget(err) {
				continue
			}
			if err == nil {
				err = conn.Close(ctx)
			}
			if err != nil {
				return err
			}
			o.known = true
		}
		config.RuntimeParams = tried.RuntimeParams
		return nil
	}
}

// forget removes the setting that the pooler refuses. It reports whether there is one.
func (o *optionalParams) forget(err error) bool {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != protocolViolation {
		return false
	}
	for name := range o.values {
		if !strings.Contains(strings.ToLower(refusal.Message), name) {
			continue
		}
		if name == timeoutParam {
			o.log.Warn("the pooler refuses statement_timeout; statements are cancelled by this process instead", "error", err)
		}
		delete(o.values, name)
		return true
	}
	return false
}

// PostgresTexts returns the rows of a small result as text, NULL as "". The arguments are text. Nothing stays
// prepared.
func PostgresTexts(ctx context.Context, conn *pgconn.PgConn, sql string, args ...string) ([][]string, error) {
	params := make([][]byte, len(args))
	for i, arg := range args {
		params[i] = []byte(arg)
	}
	result := conn.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	rows := make([][]string, len(result.Rows))
	for i, row := range result.Rows {
		for _, cell := range row {
			rows[i] = append(rows[i], string(cell))
		}
	}
	return rows, result.Err
}
