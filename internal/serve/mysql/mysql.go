// Package mysql reads feeds, runs queries and stores streams and popups on MySQL and
// MariaDB, through a pool of connections with prepared statements. Parameters are always
// bound, never part of the text.
//
// Only streams and popups write. The package caches no rows: every call asks the database.
package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
)

const (
	// clientGrace is how much longer than the server this side waits before it gives a
	// statement up. The server's error names the reason.
	clientGrace = 500 * time.Millisecond
	// killTimeout bounds the attempt to end an abandoned statement.
	killTimeout = 2 * time.Second
)

// errClosed is the error of calls after Close.
var errClosed = errors.New("the database is closed")

// DB is a pool of connections to one database. Its methods can be called concurrently.
type DB struct {
	connector *connector
	pool      *sql.DB
	bounds    database.Pool // all fields are set
	log       *slog.Logger

	acquiring    atomic.Int64 // statements waiting for a connection
	slots        database.Slots
	withoutGTIDs atomic.Bool // MySQL has written transactions without GTIDs

	closing context.Context // ends when Close is called
	stop    context.CancelFunc
	keeper  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // running statements; increased under mu while not closed
}

// Open returns a DB for the server at url. It connects in the background and on demand, so
// it succeeds even if the server is down. The caller calls Close.
//
// The pool tries to keep Min connections open. It closes those beyond Min after
// MaxIdleTime, and replaces those that the server ends within half that time.
func Open(ctx context.Context, url database.URL, pool database.Pool, log *slog.Logger) (*DB, error) {
	bounds := pool.WithDefaults(runtime.GOMAXPROCS(0))
	opener, err := database.NewMySQLConnector(url, bounds.ConnectTimeout, bounds.StatementTimeout)
	if err != nil {
		return nil, err
	}
	c := &connector{opener: opener}
	db := &DB{connector: c, pool: sql.OpenDB(c), bounds: bounds, log: log}
	db.pool.SetMaxOpenConns(bounds.Max)
	db.pool.SetMaxIdleConns(bounds.Max)
	db.slots.Log = log
	db.slots.Refuses = func(err error) bool { return isRefusal(err, numConnections, numUserConnections, numUserLimit) }
	db.slots.Counts = func() (int, int64) { return db.pool.Stats().OpenConnections, c.connects.Load() }
	db.slots.Fill(bounds.Max)
	db.pool.SetConnMaxLifetime(bounds.MaxLifetime)
	db.pool.SetConnMaxIdleTime(bounds.MaxIdleTime)
	db.closing, db.stop = context.WithCancel(context.WithoutCancel(ctx))
	db.keeper.Go(func() { db.keepMin(db.closing) })
	return db, nil
}

// Close waits for running statements and closes all connections.
func (db *DB) Close() error {
	db.mu.Lock()
	db.closed = true
	db.mu.Unlock()
	db.stop()
	db.keeper.Wait()
	db.running.Wait()
	if err := db.pool.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// begin registers a statement. The caller calls db.running.Done.
func (db *DB) begin() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return errClosed
	}
	db.running.Add(1)
	return nil
}

// Ping returns nil if the server answers.
func (db *DB) Ping(ctx context.Context) error {
	err := db.withSession(ctx, func(ctx context.Context, se *session) error { return se.Ping(ctx) })
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Probe runs one trivial prepared statement through the pool. It measures the cost of one
// round trip.
func (db *DB) Probe(ctx context.Context) error {
	s := &statement{sql: "SELECT 1", columns: func(driver.Rows) (*columns, error) { return nil, nil }}
	if err := db.query(ctx, s, nil, feed.Discard{}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Stats returns the current state of the pool.
func (db *DB) Stats() database.Stats {
	s := db.pool.Stats()
	waits, waitTime := db.slots.Waited()
	return database.Stats{
		InUse:    s.InUse,
		Idle:     s.Idle,
		Max:      db.bounds.Max,
		Waiting:  int(db.acquiring.Load()),
		Waits:    s.WaitCount + waits,
		WaitTime: s.WaitDuration + waitTime,
		Connects: db.connector.connects.Load(),
	}
}

// acquire returns a connection of the pool, waiting at most AcquireTimeout. The caller closes it, and releases its slot.
func (db *DB) acquire(ctx context.Context) (*sql.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, db.bounds.AcquireTimeout)
	defer cancel()
	db.acquiring.Add(1)
	conn, err := database.Acquire(limited, &db.slots, db.pool.Conn)
	db.acquiring.Add(-1)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("wait for a connection: %w", errors.Join(context.Cause(ctx), db.waitedFor()))
	case limited.Err() != nil:
		return nil, fmt.Errorf("no connection within %v, %d of %d in use: %w",
			db.bounds.AcquireTimeout, db.pool.Stats().InUse, db.slots.Limit(), errors.Join(err, db.waitedFor()))
	default:
		return nil, err
	}
}

// waitedFor returns database.ErrBusy if the pool is full.
func (db *DB) waitedFor() error {
	if db.pool.Stats().InUse < db.slots.Limit() {
		return nil
	}
	return database.ErrBusy
}

// statementLimit is the time that one statement may take.
func (db *DB) statementLimit() time.Duration { return db.bounds.StatementTimeout + clientGrace }

// withSession runs work on one connection for at most the statement timeout.
func (db *DB) withSession(ctx context.Context, work func(context.Context, *session) error) error {
	return db.onSession(ctx, db.statementLimit(), work)
}

// again is onSession, and runs work once more if the connection was dead or a change of a table
// has made a prepared statement invalid: work must be repeatable.
func (db *DB) again(ctx context.Context, limit time.Duration, work func(context.Context, *session) error) error {
	err := db.onSession(ctx, limit, work)
	if err != nil && ctx.Err() == nil && worthRetrying(err) {
		err = db.onSession(ctx, limit, work)
	}
	return err
}

// forever is a limit for onSession.
const forever = time.Duration(math.MaxInt64)

// onSession runs work on one connection, for at most the limit once there is a connection. After
// that, and if ctx ends, the server is told to end the statement, unless it is a COMMIT, and the
// connection is closed.
func (db *DB) onSession(ctx context.Context, limit time.Duration, work func(context.Context, *session) error) error {
	if err := db.begin(); err != nil {
		return err
	}
	defer db.running.Done()
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.slots.Release()
	defer conn.Close()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var result error
	err = conn.Raw(func(raw any) error {
		se := raw.(*session) // the connector creates no other type
		result = work(limited, se)
		if result != nil && limited.Err() != nil {
			result = fmt.Errorf("%w: %w", context.Cause(limited), errors.Join(result, db.abandon(se)))
		}
		if isReadOnly(result) {
			db.connector.renew(se)
		}
		if !se.IsValid() {
			return driver.ErrBadConn // the pool discards it
		}
		return nil
	})
	if result == nil && err != nil && !errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return result
}

// unlimited returns a context for a COMMIT: it ends when ctx is cancelled, but not at ctx's
// deadline. After the deadline, it ends when the DB is closed.
func (db *DB) unlimited(ctx context.Context) (context.Context, context.CancelFunc) {
	free, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopFirst := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || db.closing.Err() != nil {
			cancel()
		}
	})
	stopSecond := context.AfterFunc(db.closing, func() {
		if ctx.Err() != nil {
			cancel()
		}
	})
	return free, func() {
		stopFirst()
		stopSecond()
		cancel()
	}
}

// abandon ends a connection and the statement that the server may still run on it. It
// returns database.ErrEnded if the server confirms.
func (db *DB) abandon(se *session) error {
	_ = se.Close()
	if se.committing {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := db.connector.opener.Kill(ctx, se.ID); err != nil {
		db.log.Debug("an abandoned statement may run until the server's timeout", "error", err)
		return nil
	}
	return database.ErrEnded
}

// query runs s and passes its rows to the handler.
func (db *DB) query(ctx context.Context, s *statement, args []driver.NamedValue, to feed.RowHandler) error {
	return db.again(ctx, db.statementLimit(), func(ctx context.Context, se *session) error {
		to.Start()
		return se.run(ctx, s, args, to)
	})
}

// Error numbers of the server that this package distinguishes.
const (
	numShutdown          = 1053
	numDuplicateColumn   = 1060
	numUnknownStatement  = 1243
	numCollationMix2     = 1267
	numCollationMix3     = 1270
	numCollationMix      = 1271
	numInterrupted       = 1317
	numNeedsPreparing    = 1615
	numKilled            = 1927
	numStatementTimeout  = 1969 // MariaDB
	numQueryTimeout      = 3024 // MySQL
	numCannotConvert     = 3988 // MySQL: a text that the column's character set lacks
	numDisconnectedIdle  = 4031
	numInvalidCharacters = 1300

	// A function or a comparison does not accept a value.
	numRegexp             = 1139
	numWrongArguments     = 1210
	numWrongFunctionValue = 1411
	numWrongTime          = 1525
	numJSONPath           = 3143
	numRegexpFirst        = 3685 // MySQL 8
	numRegexpLast         = 3700
)

// worthRetrying reports whether the same statement may succeed at once.
func worthRetrying(err error) bool {
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch refused.Number {
		case numShutdown, numUnknownStatement, numNeedsPreparing, numKilled, numDisconnectedIdle:
			return true // the statement or the connection is gone
		}
		return false
	}
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
}

// keepMin keeps Min connections open by using them before they are idle for too long.
func (db *DB) keepMin(ctx context.Context) {
	n := min(db.bounds.Min, db.bounds.Max)
	db.touch(ctx, n)
	for range queue.Ticks(ctx, max(time.Second, db.bounds.MaxIdleTime/2)) {
		db.touch(ctx, n)
	}
}

// touch acquires up to n free connections and returns them.
func (db *DB) touch(ctx context.Context, n int) {
	var held []*sql.Conn
	defer func() {
		for _, conn := range held {
			conn.Close()
		}
	}()
	for len(held) < n && db.pool.Stats().InUse < db.bounds.Max {
		limited, cancel := context.WithTimeout(ctx, db.bounds.ConnectTimeout)
		conn, err := db.pool.Conn(limited)
		if err == nil {
			held = append(held, conn)
			err = conn.PingContext(limited)
		}
		cancel()
		if err != nil {
			return // the next user of a connection reports the error
		}
	}
}
