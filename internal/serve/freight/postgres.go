package freight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"spillway/internal/database"
	"spillway/internal/progress"
)

const (
	connectTimeout = 10 * time.Second
	lockWait       = 10 * time.Second       // for another load to end and for the tables to be free
	cancelWait     = 700 * time.Millisecond // for the server to confirm that a statement was cancelled
)

func postgresDialect() dialect {
	return dialect{
		relations: `SELECT c.relname, coalesce(string_agg(a.attname, ',' ORDER BY a.attnum), '')
			FROM pg_catalog.pg_class c
			JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			WHERE n.nspname = current_schema() AND c.relname IN (%s)
			GROUP BY c.relname`,
		indexes: "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND tablename = '%s'",
		finish: func(table string, counted bool) []string {
			analyze := "ANALYZE " + table
			if !counted {
				return []string{analyze}
			}
			return []string{
				fmt.Sprintf("SELECT setval(pg_get_serial_sequence('%[1]s', 'id'), coalesce(max(id), 0) + 1, false) FROM %[1]s", table),
				analyze,
			}
		},
		dropIndex: func(_, index string) string { return "DROP INDEX " + index },
		elsewhere: "use another database, or another schema (append search_path=NAME to the parameters of the URL)",
		within:    withinPostgres,
		vacuum:    vacuumPostgres,
	}
}

// postgresTx is a transaction on PostgreSQL. It prepares nothing, so that it works through a pooler
// in transaction mode.
type postgresTx struct {
	conn *pgconn.PgConn
}

// withinPostgres runs work in a transaction that holds the database's advisory lock.
func withinPostgres(ctx context.Context, url database.URL, work func(transaction) error) error {
	conn, err := connectPostgres(ctx, url)
	if err != nil {
		return err
	}
	defer closePostgres(conn) // rolls back unless committed
	tx := postgresTx{conn: conn}
	if err := beginPostgres(ctx, tx); err != nil {
		return explainPostgres(fmt.Errorf("begin: %w", err))
	}
	if err := work(tx); err != nil {
		return explainPostgres(err)
	}
	if err := tx.exec(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func beginPostgres(ctx context.Context, tx postgresTx) error {
	statements := []string{
		"BEGIN",
		"SET LOCAL statement_timeout = 0",
		fmt.Sprintf("SET LOCAL lock_timeout = %d", lockWait.Milliseconds()),
		// The server notices within a second that this process has ended, even while it
		// builds an index (PostgreSQL 14 and later).
		"SELECT set_config('client_connection_check_interval', '1s', true)" +
			" WHERE current_setting('client_connection_check_interval', true) IS NOT NULL",
		"SELECT pg_advisory_xact_lock(hashtext('spillway_schema'))",
	}
	for _, sql := range statements {
		if err := tx.exec(ctx, sql); err != nil {
			return err
		}
	}
	rows, err := tx.query(ctx, "SELECT current_schema()")
	if err == nil && rows[0][0] == "" {
		err = errors.New("no schema of the search_path exists; create one, or set another search_path in the URL")
	}
	return err
}

func connectPostgres(ctx context.Context, url database.URL) (*pgconn.PgConn, error) {
	config, err := database.PostgresConfig(url, "spillway")
	if err != nil {
		return nil, err
	}
	if config.ConnectTimeout <= 0 {
		config.ConnectTimeout = connectTimeout
	}
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelWait}
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// closePostgres closes the connection quickly in any state.
func closePostgres(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	conn.Close(ctx)
}

func (tx postgresTx) exec(ctx context.Context, sql string) error {
	return tx.conn.Exec(ctx, sql).Close()
}

func (tx postgresTx) query(ctx context.Context, sql string) ([][]string, error) {
	return database.PostgresTexts(ctx, tx.conn, sql)
}

// load uses COPY. With FREEZE the rows need no second visit by VACUUM. The server processes
// one chunk while the next is generated.
func (tx postgresTx) load(ctx context.Context, t table, meter *progress.Meter) (err error) {
	task := meter.Start(t.name, "rows", int64(t.total))
	next, stop := iter.Pull(t.lines())
	defer func() {
		stop()
		task.End(err)
	}()
	source := &lineReader{ctx: ctx, next: next, task: task}
	_, err = tx.conn.CopyFrom(ctx, source, fmt.Sprintf("COPY %s (%s) FROM STDIN (FREEZE)", t.name, strings.Join(t.columns, ", ")))
	return err
}

// lineReader reads chunks.
type lineReader struct {
	ctx  context.Context
	next func() (chunk, bool)
	task *progress.Task
	rest []byte
}

// Read fails once the context is done, so that no rows follow a cancel request.
func (r *lineReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.rest) == 0 {
		c, ok := r.next()
		if !ok {
			return 0, io.EOF
		}
		r.rest = c.data
		r.task.Add(int64(c.rows))
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// vacuumPostgres vacuums the tables, which is not possible in a transaction.
func vacuumPostgres(ctx context.Context, url database.URL, tables []string, meter *progress.Meter) error {
	conn, err := connectPostgres(ctx, url)
	if err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	defer closePostgres(conn)
	var statements []string
	for _, name := range tables {
		statements = append(statements, "VACUUM "+name)
	}
	return execMetered(ctx, postgresTx{conn: conn}, "vacuum", statements, meter)
}

// explainPostgres adds the fix to errors that have a known one.
func explainPostgres(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w; grant the role CREATE on the schema, and make it the owner of the tables it is to replace", err)
	case "55P03": // lock_not_available
		return fmt.Errorf("%w; another load is running in this database, or its tables are in use; try again later", err)
	case "2BP01": // dependent_objects_still_exist
		return fmt.Errorf("%w; drop what depends on the tables first", err)
	}
	return err
}
