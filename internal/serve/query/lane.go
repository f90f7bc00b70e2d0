package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
)

// lane is what a query does in one event loop. It belongs to the thread of the loop.
type lane struct {
	query   *Query
	reader  feed.LoopReader
	loop    *front.Loop
	running map[string]*run // by arguments
	name    []byte
	free    []*run
}

// run is one execution in an event loop, and the requests that share it.
type run struct {
	lane    *lane
	read    feed.LoopRead
	key     string
	waits   []*Wait
	waiting int // waits whose clients have not left
	began   time.Time
	cancel  context.CancelFunc // of an execution elsewhere; nil: it is in the loop
	answer  *Answer
	err     error
}

// Wait is a request that waits in an event loop. Its methods are for the thread of the loop.
type Wait struct {
	run   *run
	later *front.Later
	gone  bool // its client has left
}

// Begin has a request wait for an execution in its event loop. Then later is answered, and Answer follows. It returns false if Ask must
// be called instead; then nothing has happened.
func (q *Query) Begin(loop *front.Loop, w *Wait, later *front.Later, args []string) bool {
	if !q.InLoops() || loop == nil || len(args) != len(q.cfg.Params) {
		return false
	}
	l := q.lane(loop)
	l.name = param.AppendArgs(l.name[:0], args)
	if q.pauses.Has(string(l.name)) {
		return false
	}
	r := l.running[string(l.name)]
	if r == nil || r.waiting == 0 && r.cancel != nil || q.counters.waiting.Load() >= int64(q.cfg.WaitersMax) {
		r = l.start(args)
	} else {
		q.counters.coalesced.Add(1)
	}
	q.counters.waiting.Add(1)
	*w = Wait{run: r, later: later}
	later.Limit, later.Inside = q.cfg.Timeout, true
	r.waits, r.read.Unwanted = append(r.waits, w), false
	r.waiting++
	return true
}

// InLoops reports whether Begin may have requests wait.
func (q *Query) InLoops() bool { return q.reader != nil && q.cache == nil }

// lane returns what the query does in a loop.
func (q *Query) lane(loop *front.Loop) *lane {
	if l, ok := q.lanes.Load(loop); ok {
		return l.(*lane)
	}
	l := &lane{query: q, reader: q.reader, loop: loop, running: make(map[string]*run)}
	q.lanes.Store(loop, l)
	return l
}

// start begins an execution for the arguments that name has.
func (l *lane) start(args []string) *run {
	var r *run
	if n := len(l.free); n > 0 {
		r, l.free = l.free[n-1], l.free[:n-1]
	} else {
		r = &run{lane: l}
		r.read.Done = r.done
	}
	r.key, r.began = string(l.name), l.loop.Now()
	r.read.Name = append(r.read.Name[:0], l.name...)
	r.read.Args, r.read.Within, r.read.Rows.Limit = param.CloneArgs(args), l.query.cfg.Timeout, l.query.cfg.Limit
	r.read.Gate = l.query.cfg.Gate
	if l.query.counters.waiting.Load() >= int64(l.query.cfg.WaitersMax) {
		r.refuse(coalesce.ErrFull)
		return r
	}
	switch err := l.reader.Begin(l.loop, &r.read); err {
	case nil:
	case feed.ErrElsewhere:
		r.elsewhere()
	default:
		r.refuse(err)
	}
	l.running[r.key] = r
	return r
}

// refuse ends the execution after the round.
func (r *run) refuse(err error) {
	r.cancel = func() {}
	r.lane.loop.After(func() { r.finish(nil, fmt.Errorf("%w: query %s: %w", ErrBusy, r.lane.query.cfg.Name, err)) })
}

// done is told that the loop has read the rows.
func (r *run) done(err error) {
	q := r.lane.query
	if err == feed.ErrElsewhere {
		r.elsewhere()
		return
	}
	q.counters.executed(r.read.Took, err)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if err != nil {
		r.finish(nil, err)
		return
	}
	rows := &r.read.Rows
	r.finish(newAnswer(rows.Data, rows.Len(), r.began, r.lane.loop.Now(), FromDatabase), nil)
}

// elsewhere has the execution run as those of requests outside of loops.
func (r *run) elsewhere() {
	q := r.lane.query
	var ctx context.Context
	ctx, r.cancel = context.WithTimeout(q.base, max(0, q.cfg.Timeout-time.Since(r.began)))
	if r.waiting == 0 && len(r.waits) > 0 { // they have left
		time.AfterFunc(goneAfter, r.cancel)
	}
	q.renewals.Go(func() {
		q.counters.elsewhere.Add(1)
		a, err := q.share(ctx, r.key, r.read.Args)
		q.counters.elsewhere.Add(-1)
		r.lane.loop.Post(func() { r.finish(a, err) })
	})
}

// finish answers the requests.
func (r *run) finish(a *Answer, err error) {
	if r.lane.running[r.key] == r {
		delete(r.lane.running, r.key)
	}
	r.answer, r.err = a, err
	for _, w := range r.waits {
		if w != nil {
			r.lane.loop.Answered(w.later)
		}
	}
	if r.cancel != nil {
		r.cancel()
		return
	}
	r.recycle()
}

const rowsKept = 64 << 10 // bytes

// recycle keeps the memory of an execution in the loop whose requests are answered.
func (r *run) recycle() {
	data := r.read.Rows.Data
	if cap(data) > rowsKept {
		data = nil
	}
	clear(r.waits)
	*r = run{lane: r.lane, waits: r.waits[:0], read: feed.LoopRead{Name: r.read.Name[:0], Done: r.read.Done}}
	r.read.Rows.Data = data[:0]
	r.lane.free = append(r.lane.free, r)
}

// Answer returns what Ask would. With over, the request has waited for the timeout.
func (w *Wait) Answer(over bool) (*Answer, From, error) {
	r, q := w.run, w.run.lane.query
	q.counters.waiting.Add(-1)
	err := r.err
	if over {
		r.waits[slices.Index(r.waits, w)] = nil // it may be used again
		w.Abandon()
		r.drop()
		err = fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded)
	}
	if w.gone {
		q.counters.left.Add(-1)
	}
	if err != nil {
		q.counters.refused.Add(1)
		return nil, 0, err
	}
	q.counters.misses.Add(1)
	return r.answer, r.answer.from, nil
}

// goneAfter is how long an execution goes on whose clients seem to have left. They may have closed only their sending half.
const goneAfter = 100 * time.Millisecond

// Abandon says that the client has left.
func (w *Wait) Abandon() {
	r := w.run
	if w.gone {
		return
	}
	w.gone = true
	r.lane.query.counters.left.Add(1)
	if r.waiting--; r.waiting == 0 {
		r.read.Unwanted = true
		if r.cancel != nil {
			time.AfterFunc(goneAfter, r.cancel)
		}
	}
}

// drop ends the execution unless somebody waits for it.
func (r *run) drop() {
	switch {
	case r.waiting > 0 || r.answer != nil || r.err != nil:
	case r.cancel != nil:
		r.cancel()
	default:
		if r.lane.reader.Drop(r.lane.loop, &r.read) {
			r.lane.query.counters.executed(r.lane.loop.Now().Sub(r.began), context.DeadlineExceeded)
		}
		r.finish(nil, fmt.Errorf("%w: %w", ErrBusy, context.DeadlineExceeded))
	}
}
