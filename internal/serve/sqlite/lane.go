package sqlite

import (
	"context"
	"errors"
	"slices"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/queue"
)

const (
	quickRead = time.Millisecond     // a read of more holds up the loop
	loopLimit = 2 * time.Millisecond // after which it is interrupted, and runs elsewhere
	proofs    = 8                    // quick reads elsewhere in a row, after which the loop reads
	roundMost = time.Millisecond     // of reads, after which the loop does something else
	slowFor   = 64                   // reads of a query or a feed that run elsewhere after one that held up the loop
	slowMost  = 1 << 16              // after several that did: each time twice as many
	lineKept  = time.Minute          // after which a query is forgotten
)

// lane is the reads of an event loop, which run one after the other in its thread at the end of a round. A connection is taken only for
// that time. What fails or takes long runs elsewhere once more. The fields are for the thread of the loop.
type lane struct {
	db      *DB
	loop    *front.Loop
	never   context.Context // has ended: who uses it does not wait
	lines   []*line         // by turns
	waiting int             // reads
	gate    *queue.Entrance
	due     bool // flush is
	flush   func()
}

// line is the reads of one query or feed in a lane.
type line struct {
	source  *source
	waiting []*feed.LoopRead
	mean    time.Duration // of a read
	slow    int           // so many run elsewhere
	pause   int           // slow after the next one that holds up the loop
	late    queue.Lateness
	usedAt  time.Time
}

// Begin implements feed.LoopReader.
func (s *source) Begin(loop *front.Loop, r *feed.LoopRead) error {
	if s.shape.Load() == nil || s.quick.Load() < s.db.proofs {
		return feed.ErrElsewhere
	}
	l := s.db.laneOf(loop)
	q := l.line(s)
	if q.usedAt, l.gate = loop.Now(), r.Gate; q.slow > 0 {
		q.slow--
		return feed.ErrElsewhere
	}
	if wait := q.mean * time.Duration(len(q.waiting)); q.late.Overloaded(q.usedAt, wait, r.Within) {
		return queue.Overtime(wait, r.Within)
	}
	q.waiting = append(q.waiting, r)
	l.waiting++
	if !l.due {
		l.due = true
		loop.After(l.flush)
	}
	return nil
}

// Drop implements feed.LoopReader.
func (s *source) Drop(loop *front.Loop, r *feed.LoopRead) (sent bool) {
	l := s.db.laneOf(loop)
	q := l.line(s)
	if i := slices.Index(q.waiting, r); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		l.waiting--
	}
	return false
}

// laneOf returns the reads of a loop.
func (db *DB) laneOf(loop *front.Loop) *lane {
	if l, ok := db.lanes.Load(loop); ok {
		return l.(*lane)
	}
	l := &lane{db: db, loop: loop}
	var end context.CancelFunc
	l.never, end = context.WithCancel(context.Background())
	end()
	l.flush = l.run
	db.lanes.Store(loop, l)
	return l
}

// line returns the reads of a query.
func (l *lane) line(s *source) *line {
	if i := slices.IndexFunc(l.lines, func(q *line) bool { return q.source == s }); i >= 0 {
		return l.lines[i]
	}
	l.lines = slices.DeleteFunc(l.lines, func(q *line) bool { return len(q.waiting) == 0 && l.loop.Now().Sub(q.usedAt) > lineKept })
	l.lines = append(l.lines, &line{source: s, pause: slowFor})
	return l.lines[len(l.lines)-1]
}

// next takes the read whose turn it is. There must be one.
func (l *lane) next() (*line, *feed.LoopRead) {
	i := slices.IndexFunc(l.lines, func(q *line) bool { return len(q.waiting) > 0 })
	q := l.lines[i]
	l.lines = append(slices.Delete(l.lines, i, i+1), q)
	r := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	l.waiting--
	return q, r
}

// run runs what waits, as far as there is time in the round.
func (l *lane) run() {
	defer func() {
		l.due = l.waiting > 0 && l.loop.Post(l.flush)
	}()
	if l.waiting == 0 {
		return
	}
	leave, err := l.gate.Lend(l.never, func() {})
	var conn conn
	free := err == nil
	if free {
		defer leave()
		if conn, free = l.db.spare(); free {
			defer l.db.release(conn)
		}
	}
	for end := time.Now().Add(roundMost); l.waiting > 0; {
		began := time.Now()
		if began.After(end) {
			return
		}
		q, r := l.next()
		if !free || q.slow > 0 {
			r.Done(feed.ErrElsewhere)
			continue
		}
		err := q.source.readOn(conn, r)
		r.Took = time.Since(began)
		q.mean += (r.Took - q.mean) / 8
		if r.Took > l.db.quickRead || errors.Is(err, feed.ErrTooLarge) {
			q.slow, q.pause = q.pause, min(2*q.pause, slowMost)
			q.source.quick.Store(0)
		} else {
			q.pause = max(q.pause/2, slowFor)
		}
		if err != nil {
			err = feed.ErrElsewhere
		}
		r.Done(err)
	}
}

// readOn is Read on one connection, for a short time.
func (s *source) readOn(c conn, r *feed.LoopRead) error {
	err := feed.Collect(&s.def, &r.Rows, func(to feed.RowHandler) error {
		work := func(c conn) error { return s.runOn(c, r.Range, 0, to) }
		return c.guard.run(context.Background(), min(s.db.loopLimit, s.db.limits.StatementTimeout), c, work)
	})
	if err == nil && s.nulls.Matter(r.Range, r.Rows.Len()) {
		return feed.ErrElsewhere
	}
	return err
}

// spare returns a connection that is idle and that nobody waits for.
func (db *DB) spare() (conn, bool) {
	if db.waiting.Load() > 0 || !db.sameFile() {
		return conn{}, false
	}
	select {
	case db.slots <- struct{}{}:
	default:
		return conn{}, false
	}
	c, ok := db.takeIdle()
	switch {
	case !ok:
		<-db.slots
	case c.file != db.current.Load(): // the next one who acquires it closes it
		db.release(c)
		ok = false
	}
	return c, ok
}
