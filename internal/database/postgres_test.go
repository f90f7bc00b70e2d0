package database_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// postgres has settings that differ from those of a session.
var postgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) {
	return apptest.StartPostgres("timezone=Asia/Shanghai", "datestyle=German")
}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &postgres)) }

// openPostgres gives an attempt to connect a minute, which only a hang takes.
func openPostgres(t *testing.T, url string, p database.Pool, log *slog.Logger) *database.PostgresPool {
	t.Helper()
	parsed, err := database.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	p.ConnectTimeout = time.Minute
	pool, err := database.OpenPostgres(t.Context(), parsed, p, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// setting reads a setting of a session. A statement that the server cancels for its
// own timeout, which some tests set to a millisecond, is repeated.
func setting(ctx context.Context, pool *database.PostgresPool, name string) (string, error) {
	for {
		var value string
		err := pool.QueryRow(ctx, "SELECT current_setting('"+name+"')").Scan(&value)
		var pgErr *pgconn.PgError
		if err == nil || !errors.As(err, &pgErr) || pgErr.Code != "57014" {
			return value, err
		}
	}
}

// The session has our settings, regardless of the server's defaults; what the URL
// says goes before.
func TestOpenPostgresSettings(t *testing.T) {
	t.Parallel()
	pg := postgres.Get(t)
	log := slog.New(slog.DiscardHandler)
	tests := []struct {
		query string // of the URL
		pool  database.Pool
		want  map[string]string
	}{
		{"", database.Pool{}, map[string]string{
			"application_name": "spillway", "TimeZone": "UTC", "DateStyle": "ISO, DMY", "statement_timeout": "5s", "client_encoding": "UTF8",
		}},
		{
			"&application_name=mine&statement_timeout=7s&TimeZone=Europe/Paris",
			database.Pool{StatementTimeout: time.Second},
			map[string]string{"application_name": "mine", "statement_timeout": "7s", "TimeZone": "Europe/Paris"},
		},
		{"", database.Pool{StatementTimeout: 1500 * time.Millisecond}, map[string]string{"statement_timeout": "1500ms"}},
		{"", database.Pool{StatementTimeout: time.Microsecond}, map[string]string{"statement_timeout": "1ms"}},
	}
	for _, test := range tests {
		pool := openPostgres(t, pg.URL("postgres")+test.query, test.pool, log)
		for name, want := range test.want {
			if got, err := setting(t.Context(), pool, name); err != nil || got != want {
				t.Errorf("URL%s, %+v: %s = %q, want %q: %v", test.query, test.pool, name, got, want, err)
			}
		}
		pool.Close()
	}
	refused, _, _ := strings.Cut(pg.URL("postgres"), "?") // TLS is asked for
	if got, err := setting(t.Context(), openPostgres(t, refused, database.Pool{Max: 3}, log), "TimeZone"); err != nil || got != "UTC" {
		t.Errorf("on a server that refuses TLS: TimeZone = %q, want UTC: %v", got, err)
	}
	pool := openPostgres(t, pg.SocketURL("postgres"), database.Pool{Max: 3}, log)
	if got, err := setting(t.Context(), pool, "TimeZone"); err != nil || got != "UTC" {
		t.Errorf("by socket: TimeZone = %q, want UTC: %v", got, err)
	}
	if got := pool.Config(); got.MaxConns != 3 || got.MinConns != 1 || got.MaxConnLifetimeJitter == 0 {
		t.Errorf("pool: %d to %d connections, jitter %v", got.MinConns, got.MaxConns, got.MaxConnLifetimeJitter)
	}
}

// A pooler that refuses statement_timeout is used without it, said once.
func TestOpenPostgresBehindPgBouncer(t *testing.T) {
	t.Parallel()
	pg := postgres.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	var text bytes.Buffer
	pool := openPostgres(t, bouncer.URL("postgres")+"&default_query_exec_mode=exec", database.Pool{Max: 5}, slog.New(slog.NewTextHandler(&text, nil)))
	var clients sync.WaitGroup
	for range 5 {
		clients.Go(func() {
			for range 5 {
				if got, err := setting(t.Context(), pool, "TimeZone"); err != nil || got != "UTC" {
					t.Errorf("TimeZone = %q, want UTC: %v", got, err)
				}
			}
		})
	}
	clients.Wait()
	pool.Close()
	if got := strings.Count(text.String(), "refuses statement_timeout"); got != 1 {
		t.Errorf("the refusal is logged %d times, want 1: %s", got, &text)
	}
}

// A server that is down costs no error until a connection is asked for; the
// error never shows the password.
// A server that does not answer a cancel request in time ends the connection, but not the request: PgBouncer would end with it.
func TestCancelUnanswered(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	pool := openPostgres(t, bouncer.URL("postgres"), database.Pool{Max: 1}, slog.New(slog.DiscardHandler))
	direct := openPostgres(t, pg.URL("postgres"), database.Pool{Max: 1}, slog.New(slog.DiscardHandler))
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := pool.Exec(ctx, "SELECT pg_sleep(3600)")
			ended <- err
		}()
		sleeping := func() (string, bool) {
			var n string
			err := direct.QueryRow(t.Context(), "SELECT count(*)::text FROM pg_stat_activity "+
				"WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'").Scan(&n)
			return fmt.Sprintf("%s run, %v", n, err), n == "1"
		}
		apptest.AwaitState(t, "the statement runs", sleeping)
		apptest.SignalServer(t, pg, syscall.SIGSTOP)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the statement: %v, want %v", err, context.Canceled)
		}
		apptest.SignalServer(t, pg, syscall.SIGCONT)
		apptest.AwaitState(t, "no statement runs", func() (string, bool) {
			state, one := sleeping()
			return state, !one && strings.HasPrefix(state, "0 run")
		})
		if err := pool.Ping(t.Context()); err != nil {
			t.Fatalf("the next statement: %v", err)
		}
	}
	pool.Close()
	if err := bouncer.Stop(); err != nil { // says so when the pooler has crashed
		t.Error(err)
	}
}

func TestOpenPostgresDown(t *testing.T) {
	t.Parallel()
	pool := openPostgres(t, "postgres://postgres:secret@127.0.0.1:1/postgres", database.Pool{}, slog.New(slog.DiscardHandler))
	err := pool.Ping(t.Context())
	if err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "secret") {
		t.Errorf("ping: %v", err)
	}
}

func TestOpenPostgresBadURL(t *testing.T) {
	for _, text := range []string{
		"postgres://postgres:secret@127.0.0.1/db?sslmode=sometimes",
		"postgres://postgres:secret@127.0.0.1/db?pool_max_conns=many",
		"postgres://postgres:secret@127.0.0.1/db?sslrootcert=/no/such/file&sslmode=verify-full",
	} {
		url, err := database.Parse(text)
		if err == nil {
			_, err = database.OpenPostgres(context.Background(), url, database.Pool{}, slog.New(slog.DiscardHandler))
		}
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWithDefaults(t *testing.T) {
	if got := (database.Pool{}).WithDefaults(4); got.Min != 1 || got.Max != 9 || got.StatementTimeout != 5*time.Second {
		t.Errorf("zero: %+v", got)
	}
	full := database.Pool{Min: 2, Max: 3, MaxLifetime: 4, MaxIdleTime: 5, ConnectTimeout: 6, AcquireTimeout: 7, StatementTimeout: 8}
	if got := full.WithDefaults(4); got != full {
		t.Errorf("full: %+v", got)
	}
}
