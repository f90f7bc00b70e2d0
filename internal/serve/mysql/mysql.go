// Package mysql reads feeds, runs queries and commits streams on MySQL and MariaDB, and on what speaks
// their protocol, through a pool of connections with prepared statements. Parameters
// are bound, never text.
//
// Only streams write. It knows no HTTP and keeps no rows: every call asks the
// database.
package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

const (
	// clientGrace is how much later than the server this side gives a statement up:
	// normally the server is first, and names the reason.
	clientGrace = 500 * time.Millisecond
	// killPatience is how long an abandoned statement's connection waits for the
	// server to end it.
	killPatience = 2 * time.Second
)

// errClosed answers statements that come after Close.
var errClosed = errors.New("the database is closed")

// DB is a pool of connections to one database. Its methods may be called
// concurrently.
type DB struct {
	connector *connector
	pool      *sql.DB
	bounds    database.Pool // no field zero
	log       *slog.Logger

	acquiring atomic.Int64 // statements that wait for a connection

	stopKeeping context.CancelFunc
	keeper      sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // statements under way; added to under mu while not closed
}

// Open returns a DB for the server at url. It connects in the background and on
// demand, so a server that is down is no error here. The caller calls Close.
//
// Of the pool's bounds Min is kept as well as it can be: connections beyond it are
// closed after MaxIdleTime, and those that the server ends are opened again
// within half that time.
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
	db.pool.SetConnMaxLifetime(bounds.MaxLifetime)
	db.pool.SetConnMaxIdleTime(bounds.MaxIdleTime)
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	db.stopKeeping = stop
	db.keeper.Go(func() { db.keepMin(keeping) })
	return db, nil
}

// Close waits for the statements under way and closes all connections.
func (db *DB) Close() error {
	db.mu.Lock()
	db.closed = true
	db.mu.Unlock()
	db.stopKeeping()
	db.keeper.Wait()
	db.running.Wait()
	if err := db.pool.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// begin registers a statement; the caller calls db.running.Done.
func (db *DB) begin() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return errClosed
	}
	db.running.Add(1)
	return nil
}

// Ping returns nil when the server answers.
func (db *DB) Ping(ctx context.Context) error {
	err := db.withSession(ctx, func(ctx context.Context, se *session) error { return se.Ping(ctx) })
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Probe runs one trivial prepared statement through the pool: the cost of a
// round trip to the database and nothing else.
func (db *DB) Probe(ctx context.Context) error {
	s := &statement{sql: "SELECT 1", columns: func(driver.Rows) (*columns, error) { return nil, nil }}
	if err := db.query(ctx, s, nil, feed.Discard[driver.Value]{}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Lag returns how far a replica is behind its source, and false where the server
// does not tell.
func (db *DB) Lag(ctx context.Context) (lag time.Duration, known bool, err error) {
	err = db.withSession(ctx, func(ctx context.Context, se *session) (err error) {
		lag, known, err = se.ReplicaLag(ctx)
		return err
	})
	return lag, known, err
}

// Stats returns the pool's figures.
func (db *DB) Stats() database.Stats {
	s := db.pool.Stats()
	return database.Stats{
		InUse:    s.InUse,
		Idle:     s.Idle,
		Max:      db.bounds.Max,
		Waiting:  int(db.acquiring.Load()),
		Waits:    s.WaitCount,
		WaitTime: s.WaitDuration,
		Connects: db.connector.connects.Load(),
	}
}

// Durability returns the server's settings as the newest connection read them, and
// false before the first.
func (db *DB) Durability() (database.MySQLDurability, bool) {
	d := db.connector.durability.Load()
	if d == nil {
		return database.MySQLDurability{}, false
	}
	return *d, true
}

// acquire returns a connection of the pool, waiting at most AcquireTimeout.
func (db *DB) acquire(ctx context.Context) (*sql.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, db.bounds.AcquireTimeout)
	defer cancel()
	db.acquiring.Add(1)
	conn, err := db.pool.Conn(limited)
	db.acquiring.Add(-1)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("wait for a connection: %w", errors.Join(context.Cause(ctx), db.waitedFor()))
	case limited.Err() != nil:
		return nil, fmt.Errorf("no connection within %v, %d of %d in use: %w",
			db.bounds.AcquireTimeout, db.pool.Stats().InUse, db.bounds.Max, errors.Join(err, db.waitedFor()))
	default:
		return nil, err
	}
}

// waitedFor returns database.ErrBusy where a wait for a connection was one for others
// to give theirs back.
func (db *DB) waitedFor() error {
	if db.pool.Stats().InUse < db.bounds.Max {
		return nil
	}
	return database.ErrBusy
}

// withSession runs a statement's work on one connection, for the statement timeout.
func (db *DB) withSession(ctx context.Context, work func(context.Context, *session) error) error {
	return db.onSession(ctx, func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, db.bounds.StatementTimeout+clientGrace)
	}, work)
}

// onSession runs work on one connection within the limit, which begins once there is
// one. When that or ctx ends the server is told to end the statement, and the connection
// is given up.
func (db *DB) onSession(ctx context.Context, limit func(context.Context) (context.Context, context.CancelFunc), work func(context.Context, *session) error) error {
	if err := db.begin(); err != nil {
		return err
	}
	defer db.running.Done()
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	limited, cancel := limit(ctx)
	defer cancel()
	var work1 error
	err = conn.Raw(func(raw any) error {
		se := raw.(*session) // the connector makes no other
		work1 = work(limited, se)
		if work1 != nil && limited.Err() != nil {
			work1 = fmt.Errorf("%w: %w", context.Cause(limited), errors.Join(work1, db.abandon(se)))
		}
		if !se.IsValid() {
			return driver.ErrBadConn // the pool drops it
		}
		return nil
	})
	if work1 == nil && err != nil && !errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return work1
}

// abandon ends a connection whose statement the server may still run: closing it
// from here alone would leave the statement running. It returns database.ErrEnded
// once the server has confirmed.
func (db *DB) abandon(se *session) error {
	_ = se.Close()
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	if err := db.connector.opener.Kill(ctx, se.ID); err != nil {
		db.log.Debug("an abandoned statement may run on until the server's timeout", "error", err)
		return nil
	}
	return database.ErrEnded
}

// query runs s and passes its rows to the handler. It runs it a second time when the
// connection turns out to be dead, or when a prepared statement has been outdated
// by a change of a table.
func (db *DB) query(ctx context.Context, s *statement, args []driver.NamedValue, to feed.RowHandler[driver.Value]) error {
	run := func(ctx context.Context, se *session) error { return se.run(ctx, s, args, to) }
	err := db.withSession(ctx, run)
	if err == nil || ctx.Err() != nil || !worthRetrying(err) {
		return err
	}
	to.Reset()
	return db.withSession(ctx, run)
}

// The server's error numbers that this package tells apart.
const (
	numUnknownColumn     = 1054
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
)

// worthRetrying reports whether the same statement may succeed at once.
func worthRetrying(err error) bool {
	var refused *mysql.MySQLError
	if errors.As(err, &refused) {
		switch refused.Number {
		case numShutdown, numUnknownStatement, numNeedsPreparing, numKilled, numDisconnectedIdle:
			return true // run has dropped the statement or the server the connection
		}
		return false
	}
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn)
}

// keepMin keeps Min connections open: at start, and by using them before they are
// idle for too long.
func (db *DB) keepMin(ctx context.Context) {
	ticker := time.NewTicker(max(time.Second, db.bounds.MaxIdleTime/2))
	defer ticker.Stop()
	for {
		db.touch(ctx, min(db.bounds.Min, db.bounds.Max))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// touch takes up to n connections, of those that nobody uses, and gives them back.
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
			return // whoever needs a connection says what is wrong
		}
	}
}
