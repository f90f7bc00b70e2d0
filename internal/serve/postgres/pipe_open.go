package postgres

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/queue"
)

// grow has another connection opened, unless the loop has as many as most. It reports whether it has.
func (p *pipes) grow(most int) bool {
	if p.opens || p.closed || len(p.open) >= most || p.loop.Now().Before(p.after) {
		return false
	}
	p.opens, p.opensAt = true, p.loop.Now()
	if at := p.opensAt.Add(openWait); p.alarm.At.IsZero() || at.Before(p.alarm.At) {
		p.alarm.At = at
	}
	flows, leave, gate := slices.Clone(p.turns), min(1, len(p.open)), p.gate // otherwise others could keep all from a loop that has none
	p.db.openings.Go(func() {
		c, err := p.db.openPipe(flows, leave, gate, p.ask)
		if !p.loop.Post(func() { p.adopt(c, err) }) && err == nil {
			c.giveBack()
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
		c.giveBack()
	} else if err == nil {
		if err = p.loop.Watch(c.fd, c); err != nil {
			c.giveBack()
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
		prepared, known := c.statements[f.statement]
		c.leaving = c.leaving || !known
		if known && prepared == nil {
			f.refused = now.Add(unfitFor)
		}
	}
	p.yield() // somebody may have begun to wait meanwhile
	if p.alarm.At.IsZero() {
		p.alarm.At = now.Add(pipeIdle)
	}
}

var errUnfit = errors.New("an event loop cannot use the connection")

// openPipe takes a place at the gate and a connection that nobody else waits for, if that leaves so many free, and prepares
// the statements of flows on it.
func (db *DB) openPipe(flows []*flow, leave int, gate *queue.Entrance, reclaim func()) (*pipe, error) {
	ctx, cancel := context.WithTimeout(db.life, db.bounds.StatementTimeout)
	defer cancel()
	leaveGate, err := gate.Lend(ctx, reclaim)
	if err != nil {
		return nil, err
	}
	conn, err := database.AcquireSpare(ctx, &db.slots, leave, db.pool.Acquire)
	if err != nil {
		leaveGate()
		return nil, err
	}
	c := &pipe{conn: conn.Conn().PgConn(), statements: make(map[*statement]*prepared)}
	c.giveBack = func() {
		lease{conn, &db.slots}.Release()
		leaveGate()
	}
	if err := c.prepare(ctx, flows); err != nil {
		c.giveBack()
		return nil, err
	}
	return c, nil
}

// prepare prepares statements, finds whether they still are harmless, and learns the connection's descriptor.
func (c *pipe) prepare(ctx context.Context, flows []*flow) error {
	catalog, err := texts(ctx, c.conn, catalogQuery)
	if err != nil {
		return err
	}
	for _, f := range flows {
		s := f.statement
		p, err := sessionOf(c.conn).prepare(ctx, c.conn, s)
		if _, refused := errors.AsType[*pgconn.PgError](err); refused && !c.conn.IsClosed() {
			c.statements[s] = nil // such as of a table that is gone
			continue
		}
		if err != nil {
			return err
		}
		if known := s.catalog.Load(); known == nil || *known != catalog[0][0] {
			if err := f.source.checkHarmless(ctx, c.conn, s, len(p.description.ParamOIDs)); err != nil {
				return err
			}
		}
		c.statements[s] = p
	}
	if err := c.conn.SyncConn(ctx); err != nil { // a reader in the background would take the loop's answers
		return err
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
		if c.leaving && (c.dead || len(c.sent)+c.syncs+len(c.rest) == 0) && !c.cancels {
			p.loop.Unwatch(c.fd)
			c.end()
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

// end returns a connection to the pool, or closes it.
func (c *pipe) end() {
	c.of.held.Add(-1)
	if !c.spoilt && !c.dead {
		c.giveBack()
		return
	}
	c.of.db.openings.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // the server may not notice that nobody reads
		_ = c.conn.Close(ctx)         // it is of no use
		c.giveBack()
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
	now := c.of.loop.Now()
	if !c.askedAt.IsZero() {
		if !c.cancels && now.Sub(c.askedAt) > cancelFor {
			c.fail() // the server does not react
		}
		return
	}
	c.askedAt, c.cancels, c.leaving = now, true, true
	c.of.db.openings.Go(func() {
		// PgBouncer 1.18 can end when the client of a cancel request leaves early.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.of.db.life), cancelFor)
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
	c.dead = c.dead || c.cancels || len(c.sent)+c.syncs+len(c.rest) > 0
	c.end()
}

// yield gives back connections that somebody else waits for, the least busy ones first.
func (p *pipes) yield() {
	p.asked.Store(false)
	wanted := max(p.db.slots.Waiting(), p.gate.Reclaimed())
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
		v.(*pipes).ask()
		return true
	})
}

// ask has the loop give back connections, if it has some.
func (p *pipes) ask() {
	if p.held.Load() > 0 && p.asked.CompareAndSwap(false, true) {
		p.loop.Post(p.yield)
	}
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
