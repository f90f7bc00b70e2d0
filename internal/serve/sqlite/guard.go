package sqlite

import (
	"context"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"
)

// guardEvery is how often a guard looks whether its read must end.
const guardEvery = 10 * time.Millisecond

// guard interrupts the reads of one connection. A read that ends before the guard looks costs no goroutine, timer or context.
type guard struct {
	db    *DB
	conn  *sqlite.Conn
	timer *time.Timer
	held  *sqlite.Stmt // is left at its row, so that the read is one transaction; nil: none is

	mu    sync.Mutex // guards what follows
	ctx   context.Context
	until time.Time
	cause error         // of the interruption; nil: there was none
	stop  chan struct{} // closed by an interruption
}

func newGuard(db *DB, conn *sqlite.Conn) *guard {
	g := &guard{db: db, conn: conn}
	g.timer = time.AfterFunc(time.Hour, g.look)
	g.renew()
	return g
}

// renew ends an interruption. It also resets statements that were left between two rows.
func (g *guard) renew() {
	g.stop = make(chan struct{})
	g.conn.SetInterrupt(g.stop)
}

// run runs work, and interrupts it when ctx ends or after the limit, which is at most the statement timeout; the error says which.
func (g *guard) run(ctx context.Context, limit time.Duration, c conn, work func(conn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	g.mu.Lock()
	g.ctx, g.until = ctx, time.Now().Add(limit)
	g.mu.Unlock()
	g.timer.Reset(min(limit, guardEvery))
	err := work(c)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer.Stop()
	cause := g.cause
	g.ctx, g.cause = nil, nil
	if g.held != nil {
		_ = g.held.Reset() // it has succeeded
		g.held = nil
	}
	if cause != nil || err != nil {
		g.renew()
	}
	if cause != nil && stopped(err) {
		return cause
	}
	return err
}

// look interrupts the read if it must end, or else looks again later.
func (g *guard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch left := time.Until(g.until); {
	case g.ctx == nil || g.cause != nil:
		return
	case g.ctx.Err() != nil:
		g.cause = context.Cause(g.ctx)
	case left <= 0:
		g.cause = g.db.late
	default:
		g.timer.Reset(min(left, guardEvery))
		return
	}
	close(g.stop)
}
