package database

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
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

// OpenPostgres returns a pool of connections to a PostgreSQL server, or to a pooler or
// server that speaks its protocol. It connects in the background and on demand, so it
// succeeds even if the server is down. The zero fields of p take their defaults.
//
// Sessions are in UTC with ISO dates. The server cancels a statement after
// p.StatementTimeout, unless a pooler refuses the setting. When a statement's context
// ends, the server is asked to cancel the statement. The URL's sslmode decides about TLS;
// the default is "prefer".
func OpenPostgres(ctx context.Context, url URL, p Pool, log *slog.Logger) (*pgxpool.Pool, error) {
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
	conn.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler { return &canceller{conn: conn} }
	setDefaults(conn.RuntimeParams, map[string]string{
		"application_name": "spillway",
		"client_encoding":  "UTF8",
		"timezone":         "UTC",
		"datestyle":        "ISO",
	})
	milliseconds := strconv.FormatInt(max(1, p.StatementTimeout.Milliseconds()), 10)
	startup := &startup{params: map[string]string{"statement_timeout": milliseconds}, log: log}
	config.BeforeConnect = startup.beforeConnect

	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", url, err)
	}
	return pool, nil
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

// canceller sends a cancel request to the server when a statement's context ends. Closing
// the connection alone would leave the statement running.
//
// Unlike pgx's own handler it always waits for the answer to the request. The server has
// then signalled the session, so the request cannot hit the next statement. PgBouncer
// before 1.20 ends with a fatal error if the client leaves early (pgbouncer issue 801).
type canceller struct {
	conn *pgconn.PgConn
	sent chan struct{} // closed when the request has been answered
}

// HandleCancel implements ctxwatch.Handler.
func (c *canceller) HandleCancel(context.Context) {
	// Without a confirmation in time the connection is closed.
	_ = c.conn.Conn().SetDeadline(time.Now().Add(cancelTimeout))
	c.sent = make(chan struct{})
	go func() {
		defer close(c.sent)
		ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // if it fails, the deadline ends the statement
	}()
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler.
func (c *canceller) HandleUnwatchAfterCancel() {
	<-c.sent
	_ = c.conn.Conn().SetDeadline(time.Time{})
}

// startup holds the session settings that a pooler may refuse at connect. The first
// connection finds out for the later ones.
type startup struct {
	params map[string]string
	log    *slog.Logger

	mu      sync.Mutex
	known   bool // whether the server accepts params
	refused bool
}

// beforeConnect adds the settings to the configuration of a new connection. Until it knows
// whether the server accepts them, it tries them on a connection of its own.
func (s *startup) beforeConnect(ctx context.Context, config *pgx.ConnConfig) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused {
		return nil
	}
	setDefaults(config.RuntimeParams, s.params)
	if s.known {
		return nil
	}
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err == nil {
		s.known = true
		return conn.Close(ctx)
	}
	if !s.isRefusal(err) {
		return err
	}
	s.refused = true
	s.log.Warn("the pooler refuses statement_timeout; statements are cancelled by this process instead", "error", err)
	for name := range maps.Keys(s.params) {
		delete(config.RuntimeParams, name)
	}
	return nil
}

func (s *startup) isRefusal(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != protocolViolation {
		return false
	}
	for name := range s.params {
		if strings.Contains(pgErr.Message, name) {
			return true
		}
	}
	return false
}
