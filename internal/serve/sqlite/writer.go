package sqlite

import (
	"context"
	"errors"
	"fmt"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// writer is one connection for writing. SQLite has one writer at a time, so
// further users wait. The owner calls Close.
type writer struct {
	db   *DB
	name string // of what is written
	open func(context.Context) (*sqlite.Conn, error)
	conn chan *sqlite.Conn // holds the connection, nil before the first use

	// The holder of the connection may use these:
	file  *dataFile     // of the connection
	ended chan struct{} // closed at the end of a watched context, which interrupts the connection
	stop  func() bool   // ends the watch; nil: no context is watched
}

// newWriter returns a writer that connects at its first use, and again if the file was replaced.
func newWriter(db *DB, name string, open func(context.Context) (*sqlite.Conn, error)) *writer {
	w := &writer{db: db, name: name, open: open, conn: make(chan *sqlite.Conn, 1)}
	w.conn <- nil
	return w
}

// Close closes the connection. Later writes fail.
func (w *writer) Close() error {
	conn := <-w.conn
	close(w.conn)
	if conn == nil {
		return nil
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("close the writer of %s: %w", w.name, err)
	}
	return nil
}

// run runs work on the connection, alone. Waiting for another process's lock and
// the work end with ctx.
func (w *writer) run(ctx context.Context, work func(*sqlite.Conn) error) error {
	var conn *sqlite.Conn
	open := false
	select {
	case conn, open = <-w.conn:
	case <-ctx.Done():
		return fmt.Errorf("wait for the writer: %w", context.Cause(ctx))
	}
	if !open {
		return errClosed
	}
	defer func() { w.conn <- conn }()
	file, err := w.db.follow(ctx)
	if err = errors.Join(err, context.Cause(ctx)); err != nil { // the connection may have been free all the same
		return err
	}
	if conn != nil && file != w.file {
		_ = conn.Close() // it writes into a file that was replaced
		conn = nil
	}
	if conn == nil {
		if conn, err = w.open(ctx); err != nil {
			return err
		}
		w.file = file
		w.renew(conn)
	}
	w.watch(ctx)
	defer w.unwatch(conn)
	return work(conn)
}

// renew ends an interruption of the connection.
func (w *writer) renew(conn *sqlite.Conn) {
	w.ended = make(chan struct{})
	conn.SetInterrupt(w.ended)
}

// watch has the end of ctx interrupt the connection, until unwatch. A context that does not end costs no goroutine.
func (w *writer) watch(ctx context.Context) {
	ended := w.ended
	w.stop = context.AfterFunc(ctx, func() { close(ended) })
}

// unwatch has nothing interrupt the connection. It may be called again.
func (w *writer) unwatch(conn *sqlite.Conn) {
	if w.stop != nil && !w.stop() {
		<-w.ended
		w.renew(conn)
	}
	w.stop = nil
}

// transaction runs work in a transaction. work can end it by itself, with a
// ROLLBACK. The end of ctx interrupts work, and not the COMMIT.
func (w *writer) transaction(ctx context.Context, work func(*sqlite.Conn) error) error {
	return w.run(ctx, func(conn *sqlite.Conn) error {
		err := sqlitex.Execute(conn, "BEGIN IMMEDIATE", nil)
		if err == nil {
			err = work(conn)
		}
		if err == nil {
			err = w.db.moved(w.file)
		}
		if err == nil {
			w.unwatch(conn) // nothing ends a COMMIT
			err = sqlitex.Execute(conn, "COMMIT", nil)
		}
		if err == nil {
			err = w.db.moved(w.file)
		}
		if !conn.AutocommitEnabled() {
			w.unwatch(conn) // the end of ctx must not leave the transaction open
			err = errors.Join(err, sqlitex.Execute(conn, "ROLLBACK", nil))
		}
		return err
	})
}

// connectWriter opens a connection for writing with some settings.
func (db *DB) connectWriter(ctx context.Context, pragmas ...string) (*sqlite.Conn, error) {
	conn, err := db.openConn(db.current.Load(), sqlite.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	conn.SetInterrupt(ctx.Done())
	for _, pragma := range pragmas {
		if err := sqlitex.ExecuteTransient(conn, "PRAGMA "+pragma, nil); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}
