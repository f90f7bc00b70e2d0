package doctor

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"spillway/internal/database"
)

const (
	connectTimeout = 5 * time.Second
	closeTimeout   = 5 * time.Second
)

// value is a parameter of a statement: text, or a number written as text.
type value struct {
	text   string
	number bool
}

// bound returns the value as MySQL takes it: an int64, a float64 or the text.
func (v value) bound() any {
	if n, err := strconv.ParseInt(v.text, 10, 64); v.number && err == nil {
		return n
	}
	if x, err := strconv.ParseFloat(v.text, 64); v.number && err == nil {
		return x
	}
	return v.text
}

// session is one connection, which runs one statement at a time. NULL is read as
// "".
type session interface {
	query(ctx context.Context, sql string, args ...value) ([][]string, error)
	close() error
}

// open connects to a database. The session is read-only. The caller closes it.
func open(ctx context.Context, url database.URL) (session, error) {
	connect := openPostgres
	if url.Driver == database.MySQL {
		connect = openMySQL
	}
	s, err := connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	return s, nil
}

// run executes statements without rows, one after the other.
func run(ctx context.Context, s session, statements ...string) error {
	for _, text := range statements {
		if _, err := s.query(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

type postgresSession struct{ conn *pgconn.PgConn }

func openPostgres(ctx context.Context, url database.URL) (session, error) {
	config, err := database.PostgresConfig(url, "spillway doctor")
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = connectTimeout
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		// Closing the connection alone would not stop the statement.
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: closeTimeout}
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s := postgresSession{conn}
	if err := run(ctx, s, postgresDialect().readOnly); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s postgresSession) query(ctx context.Context, text string, args ...value) ([][]string, error) {
	params := make([]string, len(args))
	for i, a := range args {
		params[i] = a.text
	}
	return database.PostgresTexts(ctx, s.conn, text, params...)
}

func (s postgresSession) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = run(ctx, s, "DISCARD TEMP") // the server would do it later
	return s.conn.Close(ctx)
}

type mysqlSession struct{ opened *database.MySQLSession }

func openMySQL(ctx context.Context, url database.URL) (session, error) {
	config, err := database.MySQLConfig(url, "")
	if err != nil {
		return nil, err
	}
	config.InterpolateParams = true // the same text for every server, also for EXPLAIN
	config.MultiStatements = false
	config.Timeout = connectTimeout
	opened, err := database.ConnectMySQL(ctx, config)
	if err != nil {
		return nil, err
	}
	s := mysqlSession{opened}
	if err := run(ctx, s, mysqlDialect().readOnly); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s mysqlSession) query(ctx context.Context, text string, args ...value) ([][]string, error) {
	params := make([]driver.Value, len(args))
	for i, a := range args {
		params[i] = a.bound()
	}
	return s.opened.Query(ctx, text, params...)
}

func (s mysqlSession) close() error { return s.opened.Close() }
