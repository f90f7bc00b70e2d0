package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// preparedPerConnection is the number of statements that one connection keeps prepared. The least recently used one is dropped first.
const preparedPerConnection = 128

// connector opens the pool's connections. It is a driver.Connector.
type connector struct {
	opener   *database.MySQLConnector
	connects atomic.Int64
	open     atomic.Int64 // connections
	logins   database.Logins
	renewed  atomic.Int64 // Unix ns: sessions that began before are replaced when they are used again
}

// renewEvery is how often connections to a server that stays read-only are replaced.
const renewEvery = 5 * time.Second

// renew replaces the sessions of a server that says that it is read-only: after a failover the name of the host leads to another one.
func (c *connector) renew(se *session) {
	if now := time.Now(); now.Sub(se.began) >= renewEvery {
		c.renewed.Store(now.UnixNano())
	}
}

// idleOnly is a context with which Connect fails at once.
type idleOnly struct{ context.Context }

// atOnce is a context that has ended when the pool asks for the second time: the first time it only looks whether it should begin, and
// then it would wait.
type atOnce struct {
	context.Context // has ended
	asked           bool
}

// Done implements context.Context.
func (a *atOnce) Done() <-chan struct{} {
	if !a.asked {
		a.asked = true
		return nil
	}
	return a.Context.Done()
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if _, ok := ctx.(idleOnly); ok {
		return nil, errors.New("no connection is idle")
	}
	s, err := c.opener.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c.connects.Add(1)
	c.open.Add(1)
	c.logins.Opened(s.User, func() { c.renewed.Store(time.Now().UnixNano()) })
	se := newSession(s)
	se.renewed, se.began, se.opened = &c.renewed, time.Now(), &c.open
	return se, nil
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// session is one connection and the statements prepared on it. It belongs to the holder of
// the connection. It is a driver.Conn only so that database/sql pools it.
type session struct {
	*database.MySQLSession
	prepared *simplelru.LRU[string, driver.Stmt] // by text, which feeds share
	values   []driver.Value                      // of the current row
	row      row
	altered  map[*checkedTable]string // see commitQuick

	committing bool // a COMMIT was sent and not answered
	work       unwatched
	interrupt  func()      // Interrupt
	guard      func() bool // has interrupt not be called when the context of the work ends; nil: it is not
	timer      *time.Timer // calls interrupt when the work has taken too long

	began   time.Time
	renewed *atomic.Int64 // of the connector; nil: never
	opened  *atomic.Int64 // of the connector; nil: not counted
}

// Close implements driver.Conn. It may be called again.
func (se *session) Close() error {
	if se.opened != nil {
		se.opened.Add(-1)
		se.opened = nil
	}
	return se.MySQLSession.Close()
}

func newSession(s *database.MySQLSession) *session {
	// The server sends no answer when a statement is closed.
	kept, err := simplelru.NewLRU(preparedPerConnection, func(_ string, stmt driver.Stmt) { _ = stmt.Close() })
	if err != nil {
		panic("bug: a connection keeps no statements: " + err.Error())
	}
	se := &session{MySQLSession: s, prepared: kept, altered: map[*checkedTable]string{}, interrupt: s.Interrupt}
	se.timer = time.AfterFunc(forever, se.interrupt)
	se.timer.Stop()
	return se
}

// unguard ends the guard of the work. It returns false if the connection is closed, or about to be.
func (se *session) unguard() bool {
	if se.guard == nil {
		return true
	}
	stopped := se.guard()
	se.guard = nil
	return se.timer.Stop() && stopped
}

// outdated reports whether the session began before the last renewal.
func (se *session) outdated() bool {
	return se.renewed != nil && se.began.UnixNano() < se.renewed.Load()
}

// ResetSession implements driver.SessionResetter: the pool takes no session that is to be replaced.
func (se *session) ResetSession(ctx context.Context) error {
	if se.outdated() {
		return driver.ErrBadConn
	}
	return se.MySQLSession.ResetSession(ctx)
}

// commit commits the transaction. No timeout of the server ends it, and no other context. If ctx ends, the
// connection is closed and the server goes on.
func (se *session) commit(ctx context.Context) error {
	if _, guarded := ctx.(*unwatched); !guarded && !se.unguard() {
		return errors.Join(context.DeadlineExceeded, se.Close()) // the server rolls back
	}
	sql := "COMMIT"
	if se.Server.MariaDB {
		sql = "SET STATEMENT max_statement_time = 0 FOR COMMIT"
	}
	se.committing = true
	err := se.Exec(ctx, sql)
	se.committing = err != nil && !se.IsValid()
	return err
}

// prepare returns the statement prepared on the connection.
func (se *session) prepare(ctx context.Context, sql string) (driver.StmtQueryContext, error) {
	stmt, ok := se.prepared.Get(sql)
	if !ok {
		var err error
		if stmt, err = se.PrepareContext(ctx, sql); err != nil {
			return nil, err
		}
		se.prepared.Add(sql, stmt)
	}
	return stmt.(driver.StmtQueryContext), nil
}

// run runs a statement and passes its rows to the handler.
func (se *session) run(ctx context.Context, s statement, args []driver.NamedValue, to feed.RowHandler) error {
	stmt, err := se.prepare(ctx, s.sql)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, args)
	if err != nil {
		return se.forget(s.sql, err)
	}
	err = se.takeRows(rows, s, to)
	if err != nil && s.endless {
		_ = se.Close() // the server notices at the next rows
		return err
	}
	return errors.Join(err, rows.Close())
}

// takeRows passes all rows to the handler.
func (se *session) takeRows(rows driver.Rows, s statement, to feed.RowHandler) error {
	c, err := s.columns(rows)
	if err != nil {
		return err
	}
	n := len(rows.Columns())
	if cap(se.values) < n {
		se.values = make([]driver.Value, n)
	}
	se.row = row{columns: c, values: se.values[:n]}
	current := &se.row
	for {
		if err := rows.Next(current.values); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := to.Row(current); err != nil {
			return err
		}
	}
}

// texts returns the rows of a small result with parameters as text, NULL as "".
func (se *session) texts(ctx context.Context, sql string, args ...any) (all [][]string, err error) {
	stmt, err := se.prepare(ctx, sql)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(ctx, namedValues(args))
	if err != nil {
		return nil, se.forget(sql, err)
	}
	all, err = database.ReadTexts(rows)
	return all, errors.Join(err, rows.Close())
}

// forget drops a statement if the error says that the server no longer knows it, or that it
// got too large a value, which makes every later execution fail too.
func (se *session) forget(sql string, err error) error {
	var refused *mysql.MySQLError
	if errors.As(err, &refused) && (refused.Number == numNeedsPreparing || refused.Number == numUnknownStatement || isTooLarge(refused)) {
		se.prepared.Remove(sql)
	}
	return err
}

func namedValues(args []any) []driver.NamedValue {
	named := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return named
}
