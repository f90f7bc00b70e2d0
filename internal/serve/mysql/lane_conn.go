package mysql

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"slices"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// laneConn is a connection of a lane. Its coroutine runs one read after the other, and rests while the server has sent nothing.
type laneConn struct {
	lane     *lane
	conn     *sql.Conn
	se       *session
	fd       int
	leave    func() // the gate
	resume   func() (struct{}, bool)
	stop     func()
	over     bool
	line     *line          // of the read under way; nil: the connection is free
	read     *feed.LoopRead // nil: nobody waits for it
	rows     feed.Rows      // of the read
	since    time.Time      // the read is under way, or the connection is free
	heldFrom time.Time
}

// free returns a connection that is free, or takes one of the pool's; nil: there is none.
func (l *lane) free() *laneConn {
	for _, c := range l.held {
		if c.line == nil && !l.leaves(c) {
			return c
		}
	}
	if len(l.held) >= l.limit() {
		return nil
	}
	leave, err := l.gate.Lend(l.never, func() {})
	if err != nil {
		return nil
	}
	c, err := l.take()
	if err != nil {
		leave()
		return nil
	}
	c.leave = leave
	l.held = append(l.held, c)
	if l.alarm.At.IsZero() {
		l.alarm.At = l.loop.Now().Add(lookEvery)
	}
	return c
}

// take takes a connection that is idle in the pool and that nobody waits for.
func (l *lane) take() (*laneConn, error) {
	if err := l.db.begin(); err != nil {
		return nil, err
	}
	conn, err := database.AcquireSpare(idleOnly{&atOnce{Context: l.never}}, &l.db.slots, 0, l.db.pool.Conn)
	if err != nil {
		l.db.running.Done()
		return nil, err
	}
	c := &laneConn{lane: l, conn: conn, since: l.loop.Now(), heldFrom: l.loop.Now()}
	err = conn.Raw(func(raw any) error {
		c.se = raw.(*session) // the connector creates no other type
		c.fd, err = c.se.Park(nil)
		return err
	})
	if err == nil {
		err = l.loop.Watch(c.fd, c)
	}
	if err != nil {
		c.end()
		return nil, err
	}
	c.resume, c.stop = iter.Pull(c.serve)
	return c, nil
}

// leaves reports whether a connection is not to be used any more, because it has ended or somebody waits for it.
func (l *lane) leaves(c *laneConn) bool {
	return !c.se.IsValid() || c.se.outdated() || l.loop.Now().Sub(c.heldFrom) > heldFor || l.db.slots.Waiting() > 0 ||
		l.gate.Reclaimed() > 0 || l.db.closing.Err() != nil
}

// serve is the coroutine.
func (c *laneConn) serve(yield func(struct{}) bool) {
	rest := func() bool { return yield(struct{}{}) }
	_, _ = c.se.Park(rest) // it has been asked
	for {
		if !c.over && !c.lane.leaves(c) {
			c.line, c.read = c.lane.next()
		}
		if c.line != nil {
			c.run()
		} else if !rest() {
			return
		}
	}
}

// run runs a read.
func (c *laneConn) run() {
	asked := c.read.Range
	c.since = time.Now()
	c.rows, c.read.Rows = c.read.Rows, feed.Rows{} // it may be dropped meanwhile
	err := c.line.source.readOn(c.se, asked, &c.rows)
	now := time.Now()
	c.line.observe(now.Sub(c.since))
	if len(c.rows.Data) > largeRows || errors.Is(err, feed.ErrTooLarge) {
		c.line.large = largeFor
	}
	if c.read != nil {
		c.read.Rows, c.read.Took = c.rows, now.Sub(c.since)
		c.lane.done = append(c.lane.done, laneRead{LoopRead: c.read, err: err})
	}
	c.line, c.read, c.rows, c.since, c.lane.stuck = nil, nil, feed.Rows{}, now, false
}

// readOn is Read on one session, without a description of the columns and without a repetition: those are feed.ErrElsewhere.
func (s *source) readOn(se *session, r feed.Range, rows *feed.Rows) error {
	err := feed.Collect(&s.def, rows, func(to feed.RowHandler) error {
		st, values, err := s.statement(s.known.Load(), r, false, false)
		if err != nil {
			return err
		}
		to.Start()
		return s.explainError(r, se.run(context.Background(), st, values, to))
	})
	switch {
	case errors.Is(err, errOutdated):
		s.stale.Store(true)
		return feed.ErrElsewhere
	case worthRetrying(err), err == nil && s.nulls.Matter(r, rows.Len()):
		return feed.ErrElsewhere
	}
	return err
}

// Ready implements front.Watcher.
func (c *laneConn) Ready() {
	l, ended := c.lane, c.line == nil // by the server
	if !ended {
		c.resume()
	}
	if ended || c.line == nil && l.leaves(c) {
		l.giveBack(c)
		l.plan()
	}
	l.settle()
}

// Ended implements front.Watcher.
func (c *laneConn) Ended() { c.lane.giveBack(c) }

// fail ends a read that takes too long, and its connection.
func (c *laneConn) fail(err error) {
	if c.read != nil {
		c.lane.done = append(c.lane.done, laneRead{LoopRead: c.read, err: err})
		c.read = nil
	}
	c.lane.giveBack(c)
}

// giveBack returns a connection to the pool, or ends it with its statement if that is under way.
func (l *lane) giveBack(c *laneConn) {
	l.held = slices.DeleteFunc(l.held, func(other *laneConn) bool { return other == c })
	l.loop.Unwatch(c.fd)
	busy := c.line != nil
	c.over = true
	c.stop()
	_, _ = c.se.Park(nil) // it has been asked
	if busy {
		_ = c.se.Close()
		l.db.kill(c.se)
	}
	c.leave()
	c.end()
}

func (c *laneConn) end() {
	_ = c.conn.Close() // an error that the server has noticed too
	c.lane.db.slots.Release()
	c.lane.db.running.Done()
}
