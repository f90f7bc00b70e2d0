package postgres

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// grow has another connection opened, unless the loop has as many as most. It reports whether it has.
func (p *pipes) grow(most int) bool {
	if p.opens || p.closed || len(p.open) >= most || p.loop.Now().Before(p.after) {
		return false
	}
	p.opens = true
	statements := make([]*statement, 0, len(p.turns))
	for _, f := range p.turns {
		statements = append(statements, f.statement)
	}
	leave := min(1, len(p.open)) // otherwise others could keep all from a loop that has none
	p.db.openings.Go(func() {
		c, err := p.db.openPipe(statements, leave)
		if !p.loop.Post(func() { p.adopt(c, err) }) && err == nil {
			c.lease.Release()
		}
	})
	return true
}

// adopt uses a connection that was opened, in place of those that were used for long.
func (p *pipes) adopt(c *pipe, err error) {
	p.opens = false
	p.plan()
	now := p.loop.Now()
	if err == nil && p.closed {
		err = database.ErrNoSpare
		c.lease.Release()
	} else if err == nil {
		if err = p.loop.Watch(c.fd, c); err != nil {
			c.lease.Release()
		}
	}
	if err != nil {
		p.after = now.Add(openPause)
		if errors.Is(err, errUnfit) {
			p.after = now.Add(unfitFor)
		}
		return
	}
	for _, other := range p.open {
		other.leaving = other.leaving || now.Sub(other.openedAt) > pipeKept
	}
	c.of, c.usedAt, c.openedAt = p, now, now
	p.open = append(p.open, c)
	p.held.Add(1)
	for _, f := range p.turns { // there may be more than when it was opened
		c.leaving = c.leaving || c.statements[f.statement] == nil
	}
	p.yield() // somebody may have begun to wait meanwhile
	if p.alarm.At.IsZero() {
		p.alarm.At = now.Add(pipeIdle)
	}
}

var errUnfit = errors.New("an event loop cannot use the connection")

// openPipe takes a connection that nobody else waits for, if that leaves so many free, and prepares statements on it.
func (db *DB) openPipe(statements []*statement, leave int) (*pipe, error) {
	ctx, cancel := context.WithTimeout(db.life, db.bounds.StatementTimeout)
	defer cancel()
	conn, err := database.AcquireSpare(ctx, &db.slots, leave, db.pool.Acquire)
	if err != nil {
		return nil, err
	}
	c := &pipe{lease: lease{conn, &db.slots}, conn: conn.Conn().PgConn(), statements: make(map[*statement]*prepared)}
	if err := c.prepare(ctx, statements); err != nil {
		c.lease.Release()
		return nil, err
	}
	return c, nil
}

// prepare prepares statements, and learns the connection's descriptor.
func (c *pipe) prepare(ctx context.Context, statements []*statement) error {
	for _, s := range statements {
		p, err := sessionOf(c.conn).prepare(ctx, c.conn, s)
		if err != nil {
			return err
		}
		c.statements[s] = p
	}
	socket, ok := c.conn.Conn().(syscall.Conn) // not with TLS
	if !ok {
		return errUnfit
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { c.fd = int(fd) })
	}
	return err
}

// leave gives back the connections that are not to be used any more.
func (p *pipes) leave() {
	kept := p.open[:0]
	for _, c := range p.open {
		if c.leaving && len(c.sent) == 0 && !c.cancels {
			p.loop.Unwatch(c.fd)
			c.giveBack()
			continue
		}
		kept = append(kept, c)
	}
	clear(p.open[len(kept):])
	p.open = kept
	if p.closed && len(kept) == 0 {
		p.loop.Remove(&p.alarm)
	}
}

// giveBack returns a connection to the pool, or closes it.
func (c *pipe) giveBack() {
	c.of.held.Add(-1)
	if !c.spoilt && !c.dead {
		c.lease.Release()
		return
	}
	c.of.db.openings.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.conn.Close(ctx) // it is of no use
		c.lease.Release()
	})
}

// fail ends a connection that does not work. What was under way is read elsewhere.
func (c *pipe) fail() {
	c.dead, c.leaving = true, true
	for len(c.sent) > 0 {
		c.pop(feed.ErrElsewhere)
	}
	c.out, c.open = c.out[:0], 0
	c.of.plan()
}

// cancel has the server cancel what is under way, for which nobody waits.
func (c *pipe) cancel() {
	if c.cancels {
		return
	}
	c.cancels, c.leaving = true, true
	c.of.db.openings.Go(func() {
		ctx, cancel := context.WithTimeout(c.of.db.life, c.of.db.bounds.StatementTimeout)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // if it fails, the statement timeout ends the statement
		c.of.loop.Post(func() {
			c.cancels = false
			c.of.plan()
		})
	})
}

// Ended implements front.Watcher.
func (c *pipe) Ended() {
	c.dead = c.dead || len(c.sent) > 0
	c.giveBack()
}

// yield gives back connections that somebody else waits for, the least busy ones first.
func (p *pipes) yield() {
	p.asked.Store(false)
	wanted := p.db.slots.Waiting()
	if wanted == 0 {
		return
	}
	p.after = p.loop.Now().Add(openPause)
	for _, c := range slices.SortedFunc(slices.Values(p.open), func(c, d *pipe) int { return len(c.sent) - len(d.sent) }) {
		if wanted > 0 && !c.leaving {
			c.leaving = true
			wanted--
		}
	}
	p.plan()
}

// askLoops has the loops give back connections, because there is no other.
func (db *DB) askLoops() {
	db.loops.Range(func(_, v any) bool {
		p := v.(*pipes)
		if p.held.Load() > 0 && p.asked.CompareAndSwap(false, true) {
			p.loop.Post(p.yield)
		}
		return true
	})
}

// closeLoops has the loops give back all connections for good.
func (db *DB) closeLoops() {
	db.loops.Range(func(_, v any) bool {
		p := v.(*pipes)
		told := make(chan struct{})
		if p.loop.Post(func() {
			p.closed = true
			for _, c := range p.open {
				c.leaving = true
			}
			p.send()
			close(told)
		}) {
			<-told
		}
		return true
	})
}
