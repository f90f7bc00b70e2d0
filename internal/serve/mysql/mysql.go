// Package mysql reads feeds, runs queries and stores streams and popups on MySQL and MariaDB, through a pool of connections with prepared
// statements. Parameters are always bound, never part of the text.
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
)

const (
	// clientGrace is how much longer than the server this side waits before it gives a statement up. The server's error names the reason.
	clientGrace = 500 * time.Millisecond
	// killTimeout bounds the attempt to end an abandoned statement.
	killTimeout = 2 * time.Second
	killWait    = 100 * time.Millisecond // which whoever gave it up waits for that
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
	lanes        sync.Map    // *lane by *front.Loop
	looping      atomic.Int32

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
	db.slots.Counts = func() (open, opening int, opened int64) {
		open = int(c.open.Load())
		return open, db.pool.Stats().OpenConnections - open, c.connects.Load()
	}
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
	db.lanes.Range(func(_, l any) bool {
		l.(*lane).loop.Post(l.(*lane).look) // which gives connections back
		return true
	})
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

// Probe runs one trivial prepared statement through the pool. It measures the cost of one round trip.
func (db *DB) Probe(ctx context.Context) error {
	s := statement{sql: "SELECT 1", columns: func(driver.Rows) (*columns, error) { return nil, nil }}
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
	if conn, err := database.AcquireSpare(idleOnly{ctx}, &db.slots, 0, db.pool.Conn); err == nil {
		return conn, nil
	}
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
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && worthRetrying(err) {
		err = db.onSession(ctx, limit, work)
	}
	return err
}

// unwatched is the context of work: the session's guard ends its statements. The driver hands other contexts to a goroutine with each
// statement.
type unwatched struct {
	context.Context
	until time.Time
}

// Done implements context.Context.
func (*unwatched) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (u *unwatched) Err() error {
	if err := u.Context.Err(); err != nil || time.Now().Before(u.until) {
		return err
	}
	return context.DeadlineExceeded
}

// forever is a limit for onSession.
const forever = time.Duration(math.MaxInt64)

// onSession runs work on one connection, for at most the limit once there is a connection. After that, and if ctx ends, the server is told
// to end the statement, unless it is a COMMIT, and the connection is closed.
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
	return conn.Raw(func(raw any) error { // a session that is not valid is discarded
		se := raw.(*session) // the connector creates no other type
		se.work, se.guard = unwatched{ctx, time.Now().Add(limit)}, context.AfterFunc(ctx, se.interrupt)
		se.timer.Reset(limit)
		err := work(&se.work, se)
		cause := context.Cause(&se.work)
		if !se.unguard() {
			_ = se.Close()
		}
		if err != nil && cause != nil {
			err = fmt.Errorf("%w: %w", cause, errors.Join(err, db.abandon(se)))
		}
		if isReadOnly(err) {
			db.connector.renew(se)
		}
		return err
	})
}

// abandon ends a connection and the statement that the server may still run on it. It returns database.ErrEnded if the server confirms
// within killWait.
func (db *DB) abandon(se *session) error {
	_ = se.Close()
	if se.committing {
		return nil
	}
	select {
	case err := <-db.kill(se):
		if err == nil {
			return database.ErrEnded
		}
	case <-time.After(killWait):
	}
	return nil
}

// kill has the server end a session and its statement.
func (db *DB) kill(se *session) (ended <-chan error) {
	result := make(chan error, 1)
	db.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		err := db.connector.opener.Kill(ctx, se.ID)
		if err != nil {
			db.log.Debug("an abandoned statement may run until the server's timeout", "error", err)
		}
		result <- err
	})
	return result
}

// query runs s and passes its rows to the handler.
func (db *DB) query(ctx context.Context, s statement, args []driver.NamedValue, to feed.RowHandler) error {
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
			db.slots.Release()
		}
	}()
	for len(held) < n {
		limited, cancel := context.WithTimeout(ctx, db.bounds.ConnectTimeout)
		conn, err := database.AcquireSpare(limited, &db.slots, 0, db.pool.Conn)
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

// MySQL has a server_uuid, and the nodes of a Galera cluster have the id of its state. What other
// MariaDB servers have, two of them share only if their hosts are copies.
const (
	selectUUID    = "SELECT @@server_uuid, DATABASE(), CURRENT_USER()"
	selectCluster = "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_state_uuid' AND Value <> ''"
	selectServer  = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uid', 'server_id', 'hostname', 'port', 'datadir')"
	selectSchema  = "SELECT DATABASE(), CURRENT_USER()"
)

// Identity returns what the server says of itself, the name of the database, and the account of the session. It needs no privilege.
func (db *DB) Identity(ctx context.Context) (identity string, err error) {
	err = db.withSession(ctx, func(ctx context.Context, se *session) error {
		var rows [][]string
		if !se.Server.MariaDB {
			rows, err = se.Query(ctx, selectUUID)
		} else {
			var schema [][]string
			if rows, err = se.Query(ctx, selectCluster); err == nil && len(rows) == 0 {
				rows, err = se.Query(ctx, selectServer)
			}
			if err == nil {
				schema, err = se.Query(ctx, selectSchema)
			}
			rows = append(rows, schema...)
		}
		if err == nil && len(rows) == 0 {
			err = errors.New("the server does not say")
		}
		for _, row := range rows {
			identity += strings.Join(row, "=") + "/"
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the identity of the database: %w", err)
	}
	return identity, nil
}

// Logins counts the changes of the user of the connections.
func (db *DB) Logins() uint64 { return db.connector.logins.Count() }
