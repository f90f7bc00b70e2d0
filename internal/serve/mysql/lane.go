package mysql

import (
	"context"
	"slices"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/queue"
)

const (
	argsMax   = 4 << 10               // bytes of arguments that a socket takes at once
	slowMean  = 10 * time.Millisecond // of reads that run elsewhere
	slowProbe = time.Second           // after which one of them runs in the loop again
	lateAfter = 20 * time.Millisecond
	goneAfter = 100 * time.Millisecond // of a read whose clients have left, or closed only their sending half
	lookEvery = 5 * time.Millisecond
	heldFor   = 5 * time.Second // after which a connection is given back, so that the pool can replace it
	lineKept  = time.Minute     // after which a query is forgotten
	largeRows = 64 << 10        // bytes of a result that holds up the loop
	largeFor  = 64
)

// lane is what an event loop has of a pool: connections on which the driver runs in coroutines of the loop, and reads that wait for one.
// Its fields are for the thread of the loop.
type lane struct {
	db      *DB
	loop    *front.Loop
	gate    *queue.Entrance
	never   context.Context // has ended: who uses it does not wait
	held    []*laneConn
	lines   []*line // by turns
	waiting int     // reads
	stuck   bool    // all connections are late
	due     bool    // flush is
	flush   func()
	done    []laneRead
	alarm   front.Alarm
}

// line is the reads of one query in a lane.
type line struct {
	source  *source
	waiting []laneRead
	mean    time.Duration // of a read, rather less than the average
	probeAt time.Time     // if they are slow
	late    queue.Lateness
	large   int // so many run elsewhere, because a result was large
	usedAt  time.Time
}

// laneRead is a read that waits, or one that is done.
type laneRead struct {
	*feed.LoopRead
	since time.Time
	err   error
}

// Begin implements feed.LoopReader.
func (s *source) Begin(loop *front.Loop, r *feed.LoopRead) error {
	if s.known.Load() == nil || s.stale.Load() || s.db.bounds.Max < 2 || len(r.Name) > argsMax {
		return feed.ErrElsewhere
	}
	l, now := s.db.laneOf(loop), loop.Now()
	q := l.line(s)
	q.usedAt, l.gate = now, r.Gate
	if q.large > 0 {
		q.large--
		return feed.ErrElsewhere
	}
	if q.mean >= slowMean {
		if now.Before(q.probeAt) {
			return feed.ErrElsewhere
		}
		q.probeAt = now.Add(slowProbe)
	}
	if wait := q.mean * time.Duration(len(q.waiting)) / time.Duration(max(1, len(l.held))); q.late.Overloaded(now, wait, r.Within) {
		return queue.Overtime(wait, r.Within)
	}
	q.waiting = append(q.waiting, laneRead{LoopRead: r, since: now})
	l.waiting++
	l.plan()
	return nil
}

// Drop implements feed.LoopReader.
func (s *source) Drop(loop *front.Loop, r *feed.LoopRead) (sent bool) {
	l := s.db.laneOf(loop)
	for _, c := range l.held {
		if c.read == r {
			c.read = nil
			return true
		}
	}
	q := l.line(s)
	switch i := slices.IndexFunc(q.waiting, func(w laneRead) bool { return w.LoopRead == r }); i {
	case -1:
		return true
	case 0: // usually, because the first one has waited longest
		q.take()
	default:
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	l.waiting--
	return false
}

// laneOf returns what a loop has of the pool.
func (db *DB) laneOf(loop *front.Loop) *lane {
	if l, ok := db.lanes.Load(loop); ok {
		return l.(*lane)
	}
	never, end := context.WithCancel(db.closing)
	end()
	l := &lane{db: db, loop: loop, never: never}
	l.flush, l.alarm.Ring = l.send, l.look
	loop.Add(&l.alarm)
	db.lanes.Store(loop, l)
	db.looping.Add(1)
	return l
}

// line returns the reads of a query.
func (l *lane) line(s *source) *line {
	for _, q := range l.lines {
		if q.source == s {
			return q
		}
	}
	q := &line{source: s}
	l.lines = append(l.lines, q)
	return q
}

// plan has flush called at the end of the round.
func (l *lane) plan() {
	if !l.due {
		l.due = true
		l.loop.After(l.flush)
	}
}

// send gives what waits to connections, as far as there are some.
func (l *lane) send() {
	l.due = false
	for l.waiting > 0 {
		c := l.free()
		if c == nil {
			break
		}
		if c.resume(); c.line == nil && (l.waiting > 0 || l.leaves(c)) {
			l.giveBack(c)
		}
	}
	elsewhere := 0
	switch {
	case len(l.held) == 0 || l.stuck:
		elsewhere = l.waiting
	case l.waiting > 0 && len(l.held) < l.limit() && l.db.pool.Stats().OpenConnections < l.db.slots.Limit():
		elsewhere = 1 // which opens a connection
	}
	for range elsewhere {
		if _, r := l.next(); r != nil {
			l.done = append(l.done, laneRead{LoopRead: r, err: feed.ErrElsewhere})
		}
	}
	l.settle()
	if len(l.held) == 0 && l.db.closing.Err() != nil {
		l.loop.Remove(&l.alarm)
	}
}

// next takes the read whose turn it is; nil: none waits.
func (l *lane) next() (*line, *feed.LoopRead) {
	for i := 0; i < len(l.lines); {
		q := l.lines[i]
		if len(q.waiting) == 0 {
			i++
			continue
		}
		first := q.take()
		l.waiting--
		if first.Unwanted && l.loop.Now().Sub(first.since) > lateAfter {
			l.done = append(l.done, laneRead{LoopRead: first.LoopRead, err: context.Canceled})
			continue
		}
		l.lines = append(slices.Delete(l.lines, i, i+1), q)
		return q, first.LoopRead
	}
	return nil, nil
}

// take takes the read that has waited longest.
func (q *line) take() laneRead {
	first := q.waiting[0]
	q.waiting[0] = laneRead{}
	q.waiting = q.waiting[1:]
	return first
}

// settle tells the answers that have come.
func (l *lane) settle() {
	for i := 0; i < len(l.done); i++ {
		l.done[i].Done(l.done[i].err)
	}
	clear(l.done)
	l.done = l.done[:0]
}

// limit is how many connections the loop may have.
func (l *lane) limit() int {
	loops := int(l.db.looping.Load())
	return (l.db.bounds.Max - 2 + loops) / loops
}

// look looks for what takes long, and for what is not used any more.
func (l *lane) look() {
	now, late := l.loop.Now(), 0
	for _, c := range slices.Clone(l.held) {
		age := now.Sub(c.since)
		switch {
		case c.line == nil:
			if age >= lookEvery || l.leaves(c) {
				l.giveBack(c)
			}
		case age <= lateAfter:
		case c.read == nil || c.read.Unwanted && age > goneAfter:
			c.fail(context.Canceled)
		case age > l.db.statementLimit():
			c.fail(context.DeadlineExceeded)
		default:
			late++
		}
	}
	l.stuck = late > 0 && late == len(l.held)
	l.lines = slices.DeleteFunc(l.lines, func(q *line) bool { return len(q.waiting) == 0 && now.Sub(q.usedAt) > lineKept })
	if len(l.held) > 0 {
		l.alarm.At = now.Add(lookEvery)
	}
	l.settle() // before one of them can be dropped
	l.plan()
}

// observe notes what a read has needed. Few that are slow do not count.
func (q *line) observe(took time.Duration) {
	switch {
	case q.mean >= slowMean:
		q.mean = took
	case took > q.mean:
		q.mean += min(took-q.mean, max(q.mean/8, slowMean/64))
	default:
		q.mean -= (q.mean - took) / 4
	}
}
