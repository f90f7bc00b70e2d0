// Package sqlite reads feeds, runs queries and stores streams and popups in a SQLite file,
// through a bounded pool of read-only connections.
//
// A missing file is created, and every file is put in WAL mode, in which readers and the
// one writer do not wait for each other. WAL mode keeps two more files in the same
// directory, so the directory must be writable. Only streams and popups write, each over a
// connection of its own.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
)

// preparedPerConnection is the number of statements of feeds and queries that one connection
// keeps prepared. The least recently used one is dropped first.
const preparedPerConnection = 128

// conn is a connection of the pool.
type conn struct {
	*sqlite.Conn
	file  *dataFile
	kept  *simplelru.LRU[string, *sqlite.Stmt] // prepared statements of feeds and queries
	guard *guard
}

// errClosed is the error of calls after Close.
var errClosed = errors.New("the database is closed")

// DB is one SQLite file and its pool of read-only connections. Its methods can be called
// concurrently.
//
// Of database.Pool it uses Min, Max, ConnectTimeout, AcquireTimeout and StatementTimeout.
// Idle connections cost nothing, so they are kept.
type DB struct {
	file   string
	limits database.Pool
	late   error // of a statement that the statement timeout has stopped
	log    *slog.Logger
	slots  chan struct{} // one token per connection in use
	closed chan struct{}

	opening sync.Mutex
	opened  bool                     // guarded by opening
	current atomic.Pointer[dataFile] // that connections are opened for; nil: it is not open
	looked  atomic.Int64             // when the pool looked last, in nanoseconds

	mu   sync.Mutex
	idle []conn // the most recently used one is last and used next

	waiting  atomic.Int64
	waits    atomic.Int64
	waitTime atomic.Int64 // nanoseconds
	connects atomic.Int64
	lanes    sync.Map // *lane by *front.Loop

	proofs               int64 // of a query before event loops read it
	quickRead, loopLimit time.Duration
}

// New returns the database of the file of url. The first Ping opens the file, or a later one if
// that fails. Before, other methods may return errors.
func New(url database.URL, pool database.Pool, log *slog.Logger) (*DB, error) {
	if url.Path() == "" {
		return nil, fmt.Errorf("open %s: not the address of a SQLite file; write sqlite:PATH", url)
	}
	limits := pool.WithDefaults(runtime.GOMAXPROCS(0))
	return &DB{
		file:   url.Path(),
		limits: limits,
		late:   fmt.Errorf("the statement was stopped after the statement timeout of %s", limits.StatementTimeout),
		log:    log,
		slots:  make(chan struct{}, limits.Max),
		closed: make(chan struct{}),

		proofs: proofs, quickRead: quickRead, loopLimit: loopLimit,
	}, nil
}

// open creates the file if it is missing, puts it in WAL mode and opens pool.Min connections,
// unless that was done. Errors name the file.
func (db *DB) open(ctx context.Context) error {
	db.opening.Lock()
	defer db.opening.Unlock()
	if db.opened {
		return nil
	}
	err := db.prepare(ctx, true)
	var now os.FileInfo
	if err == nil {
		now, err = os.Stat(db.file)
	}
	if err != nil {
		return fmt.Errorf("open sqlite:%s: %w", db.file, err)
	}
	db.current.Store(&dataFile{main: now})
	var idle []conn
	for range min(db.limits.Min, db.limits.Max) {
		conn, err := db.connect()
		if err != nil {
			for _, c := range idle {
				_ = c.Close()
			}
			return fmt.Errorf("open sqlite:%s: %w", db.file, err)
		}
		idle = append(idle, conn)
	}
	db.mu.Lock()
	db.idle = append(db.idle, idle...)
	db.mu.Unlock()
	db.opened = true
	return nil
}

// prepare puts the file in WAL mode, which stays with the file. It can create the file.
func (db *DB) prepare(ctx context.Context, create bool) (err error) {
	if _, err := os.Stat(filepath.Dir(db.file)); err != nil {
		return fmt.Errorf("find its directory: %w", err)
	}
	_, err = os.Stat(db.file)
	created := errors.Is(err, os.ErrNotExist)
	mode := sqlite.OpenReadWrite
	if create {
		mode |= sqlite.OpenCreate
	}
	conn, err := sqlite.OpenConn(db.file, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, db.limits.ConnectTimeout)
	defer cancel()
	conn.SetInterrupt(ctx.Done()) // bounds the wait for another process's lock
	journal, err := texts(conn, "PRAGMA journal_mode = WAL")
	switch {
	case ctx.Err() != nil && stopped(err):
		return fmt.Errorf("set WAL mode while another process locks the file: %w", ctx.Err())
	case err != nil:
		return err
	case journal[0][0] != "wal":
		return fmt.Errorf("the file system does not support WAL mode, which needs shared memory (the journal mode is %s)", journal[0][0])
	}
	if created {
		db.log.Info("created a database file", "file", db.file)
	}
	return nil
}

// connect opens a read-only connection. If another connection holds a lock that reading
// needs, which is rare in WAL mode, statements wait until their timeout.
func (db *DB) connect() (conn, error) {
	file := db.current.Load()
	opened, err := db.openConn(file, sqlite.OpenReadOnly)
	if err != nil {
		return conn{}, err
	}
	kept, err := simplelru.NewLRU(preparedPerConnection, func(_ string, stmt *sqlite.Stmt) { _ = stmt.Finalize() })
	if err != nil {
		panic("bug: a connection keeps no statements: " + err.Error())
	}
	db.connects.Add(1)
	return conn{opened, file, kept, newGuard(db, opened)}, nil
}

// prepare returns the statement of a feed or a query, and keeps it.
func (c conn) prepare(sql string) (*sqlite.Stmt, error) {
	stmt, err := c.Prepare(sql)
	if err == nil {
		c.kept.Add(sql, stmt)
	}
	return stmt, err
}

// read runs work on a connection of the pool. It interrupts work when ctx ends or after
// the statement timeout; the error says which.
func (db *DB) read(ctx context.Context, work func(conn) error) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(conn)
	return conn.guard.run(ctx, db.limits.StatementTimeout, conn, work)
}

// stopped reports whether err means that a statement was interrupted or timed out waiting
// for a lock.
func stopped(err error) bool {
	if err == nil {
		return false
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultInterrupt, sqlite.ResultBusy:
		return true
	case sqlite.ResultError: // of a statement that SQLite itself parses, such as that of a view
		return strings.HasSuffix(err.Error(), "interrupted")
	}
	return false
}

// acquire returns a connection of the pool, opens one if there are fewer than Max, or
// waits for one.
func (db *DB) acquire(ctx context.Context) (conn, error) {
	select {
	case <-db.closed:
		return conn{}, errClosed
	default:
	}
	if err := db.watch(ctx); err != nil {
		return conn{}, err
	}
	select {
	case db.slots <- struct{}{}:
	default:
		if err := db.wait(ctx); err != nil {
			return conn{}, err
		}
	}
	for last, ok := db.takeIdle(); ok; last, ok = db.takeIdle() {
		if last.file == db.current.Load() {
			return last, nil
		}
		_ = last.Close() // the file was replaced
	}
	opened, err := db.connect()
	if err != nil {
		<-db.slots
	}
	return opened, err
}

func (db *DB) takeIdle() (last conn, ok bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	n := len(db.idle) - 1
	if n < 0 {
		return conn{}, false
	}
	last, db.idle = db.idle[n], db.idle[:n]
	return last, true
}

// wait waits for a slot.
func (db *DB) wait(ctx context.Context) error {
	start := time.Now()
	db.waits.Add(1)
	db.waiting.Add(1)
	defer func() {
		db.waiting.Add(-1)
		db.waitTime.Add(int64(time.Since(start)))
	}()
	select {
	case db.slots <- struct{}{}:
		return nil
	case <-db.closed:
		return errClosed
	case <-ctx.Done():
		return fmt.Errorf("wait for a connection: %w", errors.Join(context.Cause(ctx), database.ErrBusy))
	case <-time.After(db.limits.AcquireTimeout):
		return fmt.Errorf("no connection became free within the acquire timeout of %s; all %d of the pool are in use: %w",
			db.limits.AcquireTimeout, db.limits.Max, database.ErrBusy)
	}
}

func (db *DB) release(c conn) {
	c.file.noteLogs(db.file)
	db.mu.Lock()
	db.idle = append(db.idle, c)
	db.mu.Unlock()
	<-db.slots
}

// Stats returns the current state of the pool.
func (db *DB) Stats() database.Stats {
	db.mu.Lock()
	idle := len(db.idle)
	db.mu.Unlock()
	return database.Stats{
		InUse:    len(db.slots),
		Idle:     idle,
		Max:      db.limits.Max,
		Waiting:  int(db.waiting.Load()),
		Waits:    db.waits.Load(),
		WaitTime: time.Duration(db.waitTime.Load()),
		Connects: db.connects.Load(),
	}
}

// Close refuses new statements, waits for running ones (at most the statement timeout) and
// closes the connections. It is called once.
func (db *DB) Close() error {
	close(db.closed)
	for range cap(db.slots) {
		db.slots <- struct{}{} // never returned, so a late waiter cannot get it
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	var errs []error
	for _, conn := range db.idle {
		errs = append(errs, conn.Close())
	}
	db.idle = nil
	return errors.Join(errs...)
}

// Ping returns nil if the file can be read.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.open(ctx); err != nil {
		return err
	}
	err := db.read(ctx, func(conn conn) error {
		_, err := schemaVersion(conn.Conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Probe runs one trivial statement through the pool. The statement reads no table and
// takes no lock, so ctx bounds only the wait for a connection.
func (db *DB) Probe(ctx context.Context) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer db.release(conn)
	one, err := integer(conn.Conn, "SELECT 1")
	if err == nil && one != 1 {
		err = fmt.Errorf("SELECT 1 is %d", one)
	}
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// selectVersion selects a number that every change of the schema, by any process, changes.
const selectVersion = "PRAGMA schema_version"

// schemaVersion returns that number.
func schemaVersion(conn *sqlite.Conn) (int64, error) { return integer(conn, selectVersion) }

// integer returns the one integer that query yields. The statement stays prepared.
func integer(conn *sqlite.Conn, query string) (int64, error) {
	stmt, err := conn.Prepare(query)
	if err != nil {
		return 0, err
	}
	return sqlitex.ResultInt64(stmt)
}

// texts returns the rows of a small result as text. The arguments are text.
func texts(conn *sqlite.Conn, sql string, args ...string) ([][]string, error) {
	stmt, _, err := conn.PrepareTransient(sql)
	if err != nil {
		return nil, err
	}
	for i, arg := range args {
		stmt.BindText(i+1, arg)
	}
	var rows [][]string
	for {
		found, err := stmt.Step()
		if err != nil || !found {
			return rows, errors.Join(err, stmt.Finalize())
		}
		row := make([]string, stmt.ColumnCount())
		for i := range row {
			row[i] = stmt.ColumnText(i)
		}
		rows = append(rows, row)
	}
}
