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
	cancels *cancels
	conn    *pgconn.PgConn // set when the connection is open
	running atomic.Bool
	asked   atomic.Bool // a cancel request has been sent

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
		if g.asked.Load() && ctx.Value(g) == nil { // pgconn asks again when it closes the connection
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
// Unlike pgx's own handler it waits until the request is answered. The server has then
// signalled the session, so the request cannot hit the next statement. Without an answer
// within cancelTimeout the connection is closed, and the request is left to its pool: PgBouncer
// before 1.20 ends with a fatal error if the client of a request leaves early (pgbouncer issue
// 801).
type canceller struct {
	conn  *pgconn.PgConn
	guard *CommitGuard
	until time.Time     // when the connection is closed
	sent  chan struct{} // closed when the request has been answered; nil: none was sent
}

// HandleCancel implements ctxwatch.Handler.
func (c *canceller) HandleCancel(context.Context) {
	c.sent = nil
	if c.guard.running.Load() {
		_ = c.conn.Conn().SetDeadline(time.Now()) // pgconn then closes the connection
		return
	}
	c.until = time.Now().Add(cancelTimeout)
	_ = c.conn.Conn().SetDeadline(c.until)
	c.sent = make(chan struct{})
	c.guard.asked.Store(true)
	c.guard.cancels.send(c.conn, c.guard, c.sent)
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler.
func (c *canceller) HandleUnwatchAfterCancel() {
	if c.sent == nil {
		_ = c.conn.Conn().SetDeadline(time.Time{})
		return
	}
	select {
	case <-c.sent:
		c.guard.asked.Store(false)
		_ = c.conn.Conn().SetDeadline(time.Time{})
	case <-time.After(time.Until(c.until)):
		_ = c.conn.Close(context.Background())
	}
}

// cancels are the cancel requests of a pool that are not answered yet.
type cancels struct {
	ctx     context.Context // of the requests
	stop    context.CancelFunc
	running sync.WaitGroup
}

// send asks the server to cancel what conn runs. It closes answered when the server has
// answered, or the request has failed.
func (c *cancels) send(conn *pgconn.PgConn, guard *CommitGuard, answered chan<- struct{}) {
	c.running.Go(func() {
		defer close(answered)
		ctx, cancel := context.WithTimeout(context.WithValue(c.ctx, guard, true), silentMost)
		defer cancel()
		_ = conn.CancelRequest(ctx) // if it fails, the deadline ends the statement
	})
}

// close waits for the answers, and for at most cancelTimeout.
func (c *cancels) close() {
	end := time.AfterFunc(cancelTimeout, c.stop)
	defer end.Stop()
	c.running.Wait()
	c.stop()
}
