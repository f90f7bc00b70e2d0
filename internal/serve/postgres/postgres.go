// Package postgres reads feeds, runs queries and commits streams on PostgreSQL and from what speaks its
// protocol, through a pool of connections with prepared statements. Behind a
// pooler that cannot keep prepared statements (PgBouncer in transaction mode,
// before 1.21) it notices, goes on without them, and tries them again after a
// while: the pooler may have been replaced.
//
// Only streams write. It knows no HTTP and keeps no rows: every call asks the
// database.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// clientGrace is how much later than the server this side gives a statement up:
// normally the server is first, and names the reason.
const clientGrace = 500 * time.Millisecond

// unpreparedFor is how long statements are not prepared after the pooler in between
// has lost some.
const unpreparedFor = time.Minute

// DB is a pool of connections to one database. Its methods may be called
// concurrently.
type DB struct {
	pool   *pgxpool.Pool
	bounds database.Pool // no field zero
	log    *slog.Logger

	probe *statement

	acquiring  atomic.Int64 // statements that wait for a connection
	unprepared lapse        // the pooler in between cannot keep prepared statements
}

// Open returns a DB for the server at url. It connects in the background and on
// demand, so a server that is down is no error here. The caller calls Close.
func Open(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (*DB, error) {
	p, err := database.OpenPostgres(ctx, url, pool, log)
	if err != nil {
		return nil, err
	}
	return &DB{pool: p, bounds: pool.WithDefaults(runtime.GOMAXPROCS(0)), log: log, probe: probeStatement()}, nil
}

// Close waits for the statements under way and closes all connections.
func (db *DB) Close() { db.pool.Close() }

// Ping returns nil when the server answers.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.pool.Ping(ctx); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// probeStatement returns the trivial statement that Probe runs.
func probeStatement() *statement {
	return newStatement("SELECT 1", func(fields []pgconn.FieldDescription) (*columns, error) {
		return &columns{fields: fields, encode: make([]encoder, len(fields))}, nil
	})
}

// Probe runs one trivial prepared statement through the pool: the cost of a
// round trip to the database and nothing else.
func (db *DB) Probe(ctx context.Context) error {
	if err := db.query(ctx, db.probe, nil, feed.Discard[[]byte]{}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// lagQuery is one row: how many seconds the server is behind its primary. While it
// streams and has replayed all that it received, that is nothing, however long ago the
// last transaction was; else it is that transaction's age, which is the most it can
// be. NULL: it is no replica, or has replayed nothing yet.
const lagQuery = `SELECT CASE
	WHEN NOT pg_is_in_recovery() THEN NULL
	WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() AND EXISTS (SELECT FROM pg_stat_wal_receiver) THEN 0
	ELSE greatest(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)
END::double precision`

// Lag returns how far a replica is behind its primary, and false where the server
// does not tell: it is none, or speaks PostgreSQL's protocol only.
func (db *DB) Lag(ctx context.Context) (lag time.Duration, known bool, err error) {
	pooled, err := db.acquire(ctx)
	if err != nil {
		return 0, false, err
	}
	defer pooled.Release()
	var seconds *float64
	if err := pooled.QueryRow(ctx, lagQuery, pgx.QueryExecModeExec).Scan(&seconds); err != nil {
		return 0, false, fmt.Errorf("read the replica's lag: %w", err)
	}
	if seconds == nil {
		return 0, false, nil
	}
	return time.Duration(*seconds * float64(time.Second)), true, nil
}

// Stats returns the pool's figures.
func (db *DB) Stats() database.Stats {
	s := db.pool.Stat()
	return database.Stats{
		InUse:    int(s.AcquiredConns()),
		Idle:     int(s.IdleConns()),
		Max:      int(s.MaxConns()),
		Waiting:  int(db.acquiring.Load()),
		Waits:    s.EmptyAcquireCount(),
		WaitTime: s.EmptyAcquireWaitTime(),
		Connects: s.NewConnsCount(),
	}
}

// acquire returns a connection of the pool, waiting at most AcquireTimeout.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, db.bounds.AcquireTimeout)
	defer cancel()
	db.acquiring.Add(1)
	conn, err := db.pool.Acquire(limited)
	db.acquiring.Add(-1)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("wait for a connection: %w", errors.Join(context.Cause(ctx), db.waitedFor(err)))
	case limited.Err() != nil:
		s := db.pool.Stat()
		return nil, fmt.Errorf("no connection within %v, %d of %d in use: %w",
			db.bounds.AcquireTimeout, s.AcquiredConns(), s.MaxConns(), errors.Join(err, db.waitedFor(err)))
	default:
		return nil, fmt.Errorf("connect: %w", err)
	}
}

// waitedFor returns database.ErrBusy where a wait for a connection was one for others
// to give theirs back, and not for the server to answer.
func (db *DB) waitedFor(err error) error {
	var connect *pgconn.ConnectError
	if s := db.pool.Stat(); errors.As(err, &connect) || s.AcquiredConns() < s.MaxConns() {
		return nil
	}
	return database.ErrBusy
}

// query runs s and passes its rows to the handler. It runs it a second time when
// the connection turns out to be dead, when a prepared statement has been
// outdated by a change of a table, and when prepared statements turn out not to
// work.
func (db *DB) query(ctx context.Context, s *statement, args [][]byte, to feed.RowHandler[[]byte]) error {
	err := db.queryOnce(ctx, s, args, to)
	if err == nil || ctx.Err() != nil || !db.worthRetrying(err) {
		return err
	}
	to.Reset()
	return db.queryOnce(ctx, s, args, to)
}

func (db *DB) queryOnce(ctx context.Context, s *statement, args [][]byte, to feed.RowHandler[[]byte]) error {
	pooled, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	limited, cancel := context.WithTimeout(ctx, db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	conn := pooled.Conn().PgConn()
	r := &execution{conn: conn, giveUp: cancel, to: to}
	if db.unprepared.Load() {
		err = r.unprepared(limited, s, args)
	} else {
		err = r.prepared(limited, s, args)
	}
	var refused *handlerError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return refused.err
	case limited.Err() != nil:
		return fmt.Errorf("%w: %w", context.Cause(limited), err)
	case conn.IsClosed():
		return &brokenError{err}
	default:
		return err
	}
}

// brokenError is an error that cost the connection.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return "connection lost: " + e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// The SQLSTATEs that this package tells apart.
const (
	stateFeatureNotSupported = "0A000" // also: cached plan must not change result type
	stateProtocolViolation   = "08P01"
	stateNoPreparedStatement = "26000"
	stateDuplicateStatement  = "42P05"
	stateUndefinedColumn     = "42703"
	stateAmbiguousColumn     = "42702"
	stateDivisionByZero      = "22012"
	classDataException       = "22"
)

// isOutdated reports whether a prepared statement's columns have changed since
// it was prepared. The message may be translated, the server's routine is not.
func isOutdated(err *pgconn.PgError) bool {
	return err.Code == stateFeatureNotSupported && err.Routine == "RevalidateCachedQuery"
}

// worthRetrying reports whether the same statement may succeed at once, and
// prepares for that.
func (db *DB) worthRetrying(err error) bool {
	var broken *brokenError
	if errors.As(err, &broken) {
		db.pool.Reset() // the server was restarted: the other idle connections are dead too
		return true
	}
	var connect *pgconn.ConnectError
	var pgErr *pgconn.PgError
	if errors.As(err, &connect) || !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case stateFeatureNotSupported:
		return isOutdated(pgErr) // prepared has dropped it
	case stateNoPreparedStatement, stateDuplicateStatement, stateProtocolViolation:
		if db.unprepared.begin(time.Now()) {
			db.log.Warn("the pooler loses prepared statements: going on without them, which costs planning each time",
				"again", unpreparedFor, "error", pgErr)
		}
		return true
	}
	return false
}

// lapse is a state that passes by itself after unpreparedFor.
type lapse struct{ until atomic.Int64 } // Unix ns

// Load reports whether it lasts now.
func (l *lapse) Load() bool {
	until := l.until.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// begin starts it anew and reports whether that is the first time.
func (l *lapse) begin(now time.Time) bool {
	return l.until.Swap(now.Add(unpreparedFor).UnixNano()) == 0
}
