// Package postgres reads feeds, runs queries and stores streams and popups on PostgreSQL,
// and on servers and poolers that speak its protocol. It keeps a pool of connections with
// prepared statements.
//
// A pooler may not be able to keep prepared statements (PgBouncer in transaction mode
// before 1.21). The package then runs statements without preparing them, and tries again
// after a while.
//
// Only streams and popups write. The package caches no rows: every call asks the database.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// clientGrace is how much longer than the server this side waits before it gives a
// statement up. The server's error names the reason.
const clientGrace = 500 * time.Millisecond

// unpreparedFor is how long statements are not prepared after a pooler has lost some.
const unpreparedFor = time.Minute

// DB is a pool of connections to one database. Its methods can be called concurrently.
type DB struct {
	pool   *database.PostgresPool
	bounds database.Pool // all fields are set
	log    *slog.Logger

	slots database.Slots // of connections in use
	probe *statement     // of Probe
	types *catalog

	loops    sync.Map       // *pipes by *front.Loop
	looping  atomic.Int32   // how many
	openings sync.WaitGroup // what opens and closes connections for them

	// writers has an element for each connection whose COMMIT may wait for a standby. One
	// connection is left for reads.
	writers chan struct{}

	life context.Context // ends with Close
	stop context.CancelFunc

	acquiring  atomic.Int64 // statements waiting for a connection
	unprepared cooldown     // a pooler loses prepared statements
}

// Open returns a DB for the server at url. It connects in the background and on demand, so
// it succeeds even if the server is down. The caller calls Close.
func Open(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (*DB, error) {
	p, err := database.OpenPostgres(ctx, url, pool, log)
	if err != nil {
		return nil, err
	}
	db := &DB{pool: p, bounds: pool.WithDefaults(runtime.GOMAXPROCS(0)), log: log}
	db.types = &catalog{builtIn: pgtype.NewMap(), elements: make(map[uint32]uint32)}
	db.probe = newStatement("SELECT 1", func(fields []pgconn.FieldDescription) (*columns, error) {
		return &columns{fields: fields, forms: make([]form, len(fields))}, nil
	})
	db.slots.Log, db.slots.Refuses, db.slots.Wanted = log, isTooMany, db.askLoops
	db.slots.Counts = func() (open, opening int, opened int64) {
		s := p.Stat()
		return int(s.AcquiredConns() + s.IdleConns()), int(s.ConstructingConns()), s.NewConnsCount()
	}
	db.slots.Fill(db.bounds.Max)
	db.writers = make(chan struct{}, max(1, db.bounds.Max-1))
	db.life, db.stop = context.WithCancel(context.WithoutCancel(ctx))
	return db, nil
}

// Close waits for running statements and closes all connections. It closes those of
// campaigns whose COMMIT was not answered.
func (db *DB) Close() error {
	db.stop()
	db.closeLoops()
	db.pool.Close()
	db.openings.Wait()
	return nil
}

// Ping returns nil if the server answers. The error wraps database.ErrBusy if all connections
// stay in use until ctx ends.
func (db *DB) Ping(ctx context.Context) error {
	pooled, err := db.acquire(ctx)
	if err == nil {
		err = pooled.Ping(ctx)
		pooled.Release()
	}
	switch {
	case err == nil:
		return nil
	case pgconn.Timeout(err): // the server has not answered in time
	case ctx.Err() != nil && db.waitedFor(err) != nil:
		err = errors.Join(err, database.ErrBusy)
	default:
		db.pool.Reset() // other idle connections may be broken too
	}
	return fmt.Errorf("ping: %w", err)
}

// Probe runs one trivial prepared statement through the pool. It measures the cost of one
// round trip.
func (db *DB) Probe(ctx context.Context) error {
	if err := db.query(ctx, db.probe, nil, feed.Discard{}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Stats returns the current state of the pool.
func (db *DB) Stats() database.Stats {
	s := db.pool.Stat()
	waits, waitTime := db.slots.Waited()
	return database.Stats{
		InUse:    int(s.AcquiredConns()),
		Idle:     int(s.IdleConns()),
		Max:      int(s.MaxConns()),
		Waiting:  int(db.acquiring.Load()),
		Waits:    s.EmptyAcquireCount() + waits,
		WaitTime: s.EmptyAcquireWaitTime() + waitTime,
		Connects: s.NewConnsCount(),
	}
}

// acquire returns a connection of the pool, waiting at most AcquireTimeout. A server that grants no further connection is
// a full pool.
func (db *DB) acquire(ctx context.Context) (lease, error) {
	limited, cancel := context.WithTimeout(ctx, db.bounds.AcquireTimeout)
	defer cancel()
	db.acquiring.Add(1)
	conn, err := database.Acquire(limited, &db.slots, db.pool.Acquire)
	db.acquiring.Add(-1)
	switch {
	case err == nil:
		return lease{conn, &db.slots}, nil
	case ctx.Err() != nil:
		return lease{}, fmt.Errorf("wait for a connection: %w", errors.Join(context.Cause(ctx), db.waitedFor(err)))
	case limited.Err() != nil:
		return lease{}, fmt.Errorf("no connection within %v, %d of %d in use: %w",
			db.bounds.AcquireTimeout, db.pool.Stat().AcquiredConns(), db.slots.Limit(), errors.Join(err, db.waitedFor(err)))
	default:
		return lease{}, fmt.Errorf("connect: %w", err)
	}
}

// acquireWriter is acquire for a transaction whose COMMIT may wait for a standby. All of these
// together leave one connection of the pool. The caller calls releaseWriter.
func (db *DB) acquireWriter(ctx context.Context) (lease, error) {
	select {
	case db.writers <- struct{}{}:
	default:
		if err := db.waitToWrite(ctx); err != nil {
			return lease{}, err
		}
	}
	conn, err := db.acquire(ctx)
	if err != nil {
		<-db.writers
	}
	return conn, err
}

// waitToWrite waits at most AcquireTimeout until another transaction has ended.
func (db *DB) waitToWrite(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, db.bounds.AcquireTimeout)
	defer cancel()
	db.acquiring.Add(1)
	defer db.acquiring.Add(-1)
	select {
	case db.writers <- struct{}{}:
		return nil
	case <-limited.Done():
		return fmt.Errorf("%d transactions run, as many as leave a connection of the pool: %w", cap(db.writers),
			errors.Join(context.Cause(limited), database.ErrBusy))
	}
}

func (db *DB) releaseWriter(conn lease) {
	conn.Release()
	<-db.writers
}

// waitedFor returns database.ErrBusy if err is due to a full pool and not to a server that
// does not answer.
func (db *DB) waitedFor(err error) error {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) || int(db.pool.Stat().AcquiredConns()) < db.slots.Limit() {
		return nil
	}
	return database.ErrBusy
}

// withConn runs work on one connection of the pool. The server bounds each of its statements.
func (db *DB) withConn(ctx context.Context, work func(context.Context, *pgconn.PgConn) error) error {
	pooled, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	return work(ctx, pooled.Conn().PgConn())
}

// ask is withConn for at most the statement timeout.
func (db *DB) ask(ctx context.Context, work func(context.Context, *pgconn.PgConn) error) error {
	return db.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		limited, cancel := context.WithTimeout(ctx, db.bounds.StatementTimeout+clientGrace)
		defer cancel()
		return work(limited, conn)
	})
}

// askAgain is ask, and asks once more if the connection was dead: work must be repeatable.
func (db *DB) askAgain(ctx context.Context, work func(context.Context, *pgconn.PgConn) error) error {
	return db.again(func() (dead bool, err error) {
		err = db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
			err := work(ctx, conn)
			dead = conn.IsClosed() && ctx.Err() == nil
			return err
		})
		return dead, err
	})
}

// again calls once, and again after an error if the connection was dead.
func (db *DB) again(once func() (dead bool, err error)) error {
	dead, err := once()
	if dead && err != nil {
		db.pool.Reset() // after a restart the other idle connections are dead too
		_, err = once()
	}
	return err
}

// query runs s and passes its rows to the handler. It retries if the connection is dead, if a
// change of a table has made the prepared statement invalid, or if prepared statements do not
// work: twice, because the next connection can be one that was opened before the server ended all.
func (db *DB) query(ctx context.Context, s *statement, args [][]byte, to feed.RowHandler) error {
	err := db.queryOnce(ctx, s, args, to)
	for retries := 0; retries < 2 && err != nil && ctx.Err() == nil && db.worthRetrying(err); retries++ {
		err = db.queryOnce(ctx, s, args, to)
	}
	return err
}

func (db *DB) queryOnce(ctx context.Context, s *statement, args [][]byte, to feed.RowHandler) error {
	pooled, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	limited, cancel := context.WithTimeout(ctx, db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	conn := pooled.Conn().PgConn()
	r := &execution{conn: conn, giveUp: cancel, to: to}
	to.Start()
	if db.unprepared.active() {
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

// brokenError is an error after which the connection is closed.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return "connection lost: " + e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// SQLSTATEs that this package distinguishes.
const (
	stateFeatureNotSupported = "0A000" // also: cached plan must not change result type
	stateProtocolViolation   = "08P01"
	stateNoPreparedStatement = "26000"
	stateDuplicateStatement  = "42P05"
	stateUndefinedColumn     = "42703"
	stateAmbiguousColumn     = "42702"
	stateUndefinedFunction   = "42883" // also: operator does not exist
	stateDivisionByZero      = "22012"
	stateCanceled            = "57014"
	classDataException       = "22"
)

// isOutdated reports whether the columns of a prepared statement have changed since it was
// prepared. The server's routine is compared because the message can be translated.
func isOutdated(err *pgconn.PgError) bool {
	return err.Code == stateFeatureNotSupported && err.Routine == "RevalidateCachedQuery"
}

// isStale reports whether a session must prepare a statement again: the server no longer has
// it, or its columns have changed.
func isStale(err *pgconn.PgError) bool {
	return err.Code == stateNoPreparedStatement || isOutdated(err)
}

// worthRetrying reports whether the same statement may succeed at once, and prepares the
// pool for the retry.
func (db *DB) worthRetrying(err error) bool {
	var broken *brokenError
	if errors.As(err, &broken) {
		db.pool.Reset() // after a restart the other idle connections are dead too
		return true
	}
	var connect *pgconn.ConnectError
	var pgErr *pgconn.PgError
	if errors.As(err, &connect) || !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case stateFeatureNotSupported:
		return isOutdated(pgErr) // session.prepared has dropped it
	case stateNoPreparedStatement, stateDuplicateStatement, stateProtocolViolation:
		if db.unprepared.start(time.Now()) {
			db.log.Warn("the pooler loses prepared statements; running without them, which costs planning time",
				"again", unpreparedFor, "error", pgErr)
		}
		return true
	}
	return false
}

// cooldown is a state that ends by itself after unpreparedFor.
type cooldown struct{ until atomic.Int64 } // Unix ns

// active reports whether the state lasts now.
func (c *cooldown) active() bool {
	until := c.until.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// start begins or extends the state. It reports whether this is the first time.
func (c *cooldown) start(now time.Time) bool {
	return c.until.Swap(now.Add(unpreparedFor).UnixNano()) == 0
}
