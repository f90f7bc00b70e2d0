package database

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// guardKey is the key of the CommitGuard in a connection's custom data.
const guardKey = "spillway.commit"

// errNotCancelled is the error of a cancel request that is not sent.
var errNotCancelled = errors.New("a COMMIT is not cancelled")

// CommitGuard keeps a COMMIT on one connection from being cancelled. A server that waits for
// a synchronous standby would otherwise give up the wait and report success with a warning.
//
// Between Begin and End the server is never asked to cancel what the connection runs. If a
// context ends or the connection fails, its socket is closed.
type CommitGuard struct {
	conn    *pgconn.PgConn // set when the connection is open
	running atomic.Bool

	mu      sync.Mutex
	warning string // the first one since ClearWarning
}

// CommitGuardOf returns the guard of a connection from OpenPostgres.
func CommitGuardOf(conn *pgconn.PgConn) *CommitGuard {
	g, _ := conn.CustomData()[guardKey].(*CommitGuard)
	return g
}

// Begin is called before COMMIT is sent.
func (g *CommitGuard) Begin() { g.running.Store(true) }

// End is called when the connection is no longer used. A closed connection stays guarded,
// because pgconn sends a cancel request while it closes one.
func (g *CommitGuard) End() {
	if !g.conn.IsClosed() {
		g.running.Store(false)
	}
}

// ClearWarning forgets the warnings so far.
func (g *CommitGuard) ClearWarning() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.warning = ""
}

// Warning returns the first warning that was received since ClearWarning, "" for none.
func (g *CommitGuard) Warning() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.warning
}

// install adds the guard to the configuration of one connection.
func (g *CommitGuard) install(config *pgconn.Config) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if g.running.Load() { // pgconn dials to send a cancel request
			_ = g.conn.Conn().Close() // it is being closed
			return nil, errNotCancelled
		}
		return dial(ctx, network, addr)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized != "WARNING" {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.warning == "" {
			g.warning = n.Message
		}
	}
	config.AfterConnect = func(_ context.Context, conn *pgconn.PgConn) error {
		g.conn = conn
		conn.CustomData()[guardKey] = g
		return nil
	}
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &canceller{conn: conn, guard: g}
	}
}

// canceller sends a cancel request to the server when a statement's context ends. Closing
// the connection alone would leave the statement running. It closes the socket of a
// connection whose guard says that a COMMIT runs.
//
// Unlike pgx's own handler it always waits for the answer to the request. The server has
// then signalled the session, so the request cannot hit the next statement. PgBouncer
// before 1.20 ends with a fatal error if the client leaves early (pgbouncer issue 801).
type canceller struct {
	conn  *pgconn.PgConn
	guard *CommitGuard
	sent  chan struct{} // closed when the request has been answered; nil: none was sent
}

// HandleCancel implements ctxwatch.Handler.
func (c *canceller) HandleCancel(context.Context) {
	c.sent = nil
	if c.guard.running.Load() {
		_ = c.conn.Conn().SetDeadline(time.Now()) // pgconn then closes the connection
		return
	}
	// Without a confirmation in time the connection is closed.
	_ = c.conn.Conn().SetDeadline(time.Now().Add(cancelTimeout))
	c.sent = make(chan struct{})
	go func() {
		defer close(c.sent)
		ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // if it fails, the deadline ends the statement
	}()
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler.
func (c *canceller) HandleUnwatchAfterCancel() {
	if c.sent != nil {
		<-c.sent
	}
	_ = c.conn.Conn().SetDeadline(time.Time{})
}
