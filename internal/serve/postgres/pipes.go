package postgres

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/queue"
)

const (
	depthMax   = 128                       // executions under way on one connection
	depthTime  = 5 * time.Millisecond      // that they take together, as far as earlier ones show
	groupsMax  = 2                         // sends under way on one connection; what comes meanwhile goes together
	fewDepth   = 16                        // executions that may follow each other, from which on two connections are enough
	flowsMax   = preparedPerConnection / 2 // statements of a loop
	lateAfter  = 20 * time.Millisecond     // without an answer, besides some times what the executions usually take
	lateTimes  = 4
	lookEvery  = 5 * time.Millisecond   // while executions are under way
	pipeIdle   = time.Second            // after which a connection is given back
	pipeKept   = 5 * time.Second        // after which another one takes its place
	cancelFor  = 2 * time.Second        // that a cancellation may take
	flowKept   = time.Minute            // after which a statement is forgotten
	openPause  = 100 * time.Millisecond // after there was none to have
	openWait   = 100 * time.Millisecond // for one that is being opened
	unfitFor   = time.Minute            // after there was one that a loop cannot use
	slowMax    = 256                    // arguments that a flow remembers
	largeBytes = 64 << 10
	largeFor   = 64
	rowMax     = 16 * largeBytes // that a loop reads
	inBytes    = 64 << 10
)

// pipes are the connections that one event loop has of a pool, and what waits for them. Its fields are for the thread of the loop,
// but for the last two.
type pipes struct {
	db      *DB
	loop    *front.Loop
	open    []*pipe
	flows   map[*statement]*flow
	turns   []*flow // all flows; the one whose turn it is first
	due     bool    // flush is
	flush   func()
	opens   bool // a connection is being opened
	opensAt time.Time
	closed  bool
	after   time.Time // when another one may be opened
	gate    *queue.Entrance
	alarm   front.Alarm
	in      []byte
	row     row
	free    []*job
	done    []finished

	held  atomic.Int32 // connections
	asked atomic.Bool  // for one of them
}

// flow is the executions of one statement in one event loop.
type flow struct {
	source    *source
	statement *statement
	pending   []*job
	mean      time.Duration       // of an execution, rather less than the average
	slow      map[string]struct{} // arguments of executions that took long
	moved     int                 // executions that run again elsewhere, because something before them was late
	large     int                 // so many are read elsewhere, because a result was large: encoding it would hold up the loop
	usedAt    time.Time
	refused   time.Time // until when the server is not asked again to prepare it
	late      queue.Lateness
}

// job is an execution on its way.
type job struct {
	read  *feed.LoopRead // nil: nobody waits for it
	flow  *flow
	sent  bool // once
	last  bool // a Sync follows
	lone  bool // it gets one of its own
	solo  bool // it needs a connection of its own
	moved bool // it is counted in flow.moved
	since time.Time
}

// finished is a job that has an answer.
type finished struct {
	job
	err error
}

// Begin implements feed.LoopReader.
func (s *source) Begin(loop *front.Loop, r *feed.LoopRead) error {
	st := s.statement(s.shape(r.Range, false))
	if st.harmful() || s.db.bounds.Max < 2 || s.db.unprepared.active() {
		return feed.ErrElsewhere
	}
	p := s.db.pipesOf(loop)
	p.gate = r.Gate
	f := p.flow(s, st)
	switch {
	case f != nil && f.large > 0:
		f.large--
		return feed.ErrElsewhere
	case f == nil || !p.expects(f):
		return feed.ErrElsewhere
	}
	if wait := f.mean * time.Duration(len(f.pending)) / time.Duration(max(1, len(p.open))); f.late.Overloaded(p.loop.Now(), wait, r.Within) {
		return queue.Overtime(wait, r.Within)
	}
	_, solo := f.slow[string(r.Name)]
	f.pending = append(f.pending, p.newJob(job{read: r, flow: f, solo: solo, since: p.loop.Now()}))
	p.plan()
	return nil
}

// Drop implements feed.LoopReader.
func (s *source) Drop(loop *front.Loop, r *feed.LoopRead) (sent bool) {
	j := r.Handle.(*job)
	j.read = nil
	s.db.pipesOf(loop).plan()
	return j.sent
}

// pipesOf returns the connections of a loop.
func (db *DB) pipesOf(loop *front.Loop) *pipes {
	if p, ok := db.loops.Load(loop); ok {
		return p.(*pipes)
	}
	p := &pipes{db: db, loop: loop, flows: make(map[*statement]*flow), in: make([]byte, inBytes)}
	p.flush = p.send
	p.alarm.Ring = p.look
	loop.Add(&p.alarm)
	db.loops.Store(loop, p)
	db.looping.Add(1)
	return p
}

// flow returns the flow of a statement; nil: there are too many.
func (p *pipes) flow(s *source, st *statement) *flow {
	f := p.flows[st]
	if f == nil && len(p.flows) < flowsMax {
		f = &flow{source: s, statement: st, slow: make(map[string]struct{})}
		p.flows[st], p.turns = f, append(p.turns, f)
		for _, c := range p.open {
			_, known := c.statements[f.statement]
			c.leaving = c.leaving || !known // the next ones have it
		}
		p.plan()
	}
	if f != nil {
		f.usedAt = p.loop.Now()
	}
	return f
}

func (p *pipes) newJob(of job) *job {
	j := new(job)
	if n := len(p.free); n > 0 {
		j, p.free = p.free[n-1], p.free[:n-1]
	}
	*j = of
	if of.read != nil {
		of.read.Handle = j
	}
	return j
}

// limit is how many connections the loop may have.
func (p *pipes) limit() int {
	loops := int(p.db.looping.Load())
	return (p.db.bounds.Max - 2 + loops) / loops
}

// expects reports whether there is a connection for the flow, or will be soon.
func (p *pipes) expects(f *flow) bool {
	switch {
	case slices.ContainsFunc(p.open, func(c *pipe) bool { return c.serves(f) }):
		return true
	case p.loop.Now().Before(f.refused):
		return false
	case p.opens:
		return p.loop.Now().Sub(p.opensAt) < openWait
	}
	return p.grow(p.limit())
}

// plan has flush called at the end of the round.
func (p *pipes) plan() {
	if !p.due {
		p.due = true
		p.loop.After(p.flush)
	}
}

// send sends what waits, as far as there is room, and gives connections back.
func (p *pipes) send() {
	p.due = false
	for _, f := range p.turns {
		p.place(f)
	}
	if n := len(p.turns); n > 1 {
		first := p.turns[0]
		copy(p.turns, p.turns[1:])
		p.turns[n-1] = first
	}
	for _, c := range p.open {
		c.send()
	}
	p.settle()
	p.leave()
}

// place gives what waits in a flow to connections.
func (p *pipes) place(f *flow) {
	left := 0
	for i, j := range f.pending {
		switch c := p.choose(f, j.solo); {
		case j.read == nil || j.read.Unwanted && p.loop.Now().Sub(j.since) > lateAfter:
			p.finish(j, context.Canceled)
		case c != nil:
			c.put(j)
		case f.statement.harmful(), !p.expects(f):
			p.finish(j, feed.ErrElsewhere)
		case j.solo:
			f.pending[left] = j
			left++
		default:
			left += copy(f.pending[left:], f.pending[i:])
			if len(p.open) < 2 || f.depth() < fewDepth {
				p.grow(p.limit())
			}
			clear(f.pending[left:])
			f.pending = f.pending[:left]
			return
		}
	}
	clear(f.pending[left:])
	f.pending = f.pending[:left]
}

// choose returns a connection with room for an execution, or nil. A query that is slow leaves one connection to others.
func (p *pipes) choose(f *flow, solo bool) *pipe {
	depth, stuck := f.depth(), 0
	if solo {
		depth = 1
	}
	var free *pipe
	for _, c := range p.open {
		switch {
		case c.stuck:
			if len(c.sent) > 0 && c.sent[0].flow.source == f.source {
				stuck++
			}
		case c.serves(f) && !c.solo && len(c.sent) < depth && c.syncs < groupsMax && free == nil:
			free = c
		}
	}
	if stuck >= max(1, p.limit()-1) && p.shared(f) {
		return nil
	}
	return free
}

// shared reports whether other queries or feeds use the connections too.
func (p *pipes) shared(f *flow) bool {
	return slices.ContainsFunc(p.turns, func(o *flow) bool { return o.source != f.source && p.loop.Now().Sub(o.usedAt) < pipeKept })
}

// depth is how many executions of a flow may be under way on one connection.
func (f *flow) depth() int {
	if f.mean == 0 {
		return 1 // it is not known
	}
	return max(1, min(int(depthTime/f.mean), depthMax))
}

// observe notes what executions have needed that were answered together. Few that are slow do not count: they are noted by their
// arguments.
func (f *flow) observe(took time.Duration) {
	switch {
	case f.mean == 0:
		f.mean = took
	case took > f.mean:
		f.mean += min(took-f.mean, f.mean/8+time.Microsecond)
	default:
		f.mean -= (f.mean - took) / 4
	}
}

// note notes that an execution is slow. From now on it has a connection of its own.
func (f *flow) note(r *feed.LoopRead) {
	if len(f.slow) >= slowMax {
		clear(f.slow)
	}
	f.slow[string(r.Name)] = struct{}{}
}

// finish ends a job. Its answer is told by settle.
func (p *pipes) finish(j *job, err error) {
	if j.moved {
		j.flow.moved--
	}
	if j.read != nil {
		if len(j.read.Rows.Data) > largeBytes {
			j.flow.large = largeFor
		}
		p.done = append(p.done, finished{*j, err})
	}
	*j = job{}
	p.free = append(p.free, j)
}

// settle tells the answers that have come.
func (p *pipes) settle() {
	for i := 0; i < len(p.done); i++ {
		p.done[i].read.Done(p.done[i].err)
	}
	clear(p.done)
	p.done = p.done[:0]
}

// look looks for what takes long, and for what is not used any more.
func (p *pipes) look() {
	now := p.loop.Now()
	p.alarm.At = now.Add(pipeIdle)
	p.yield()
	for _, c := range p.open {
		switch {
		case len(c.sent) > 0:
			p.alarm.At = now.Add(lookEvery)
			if now.Sub(c.usedAt) > lateAfter+lateTimes*time.Duration(len(c.sent))*c.sent[0].flow.mean {
				c.late()
			}
		case now.Sub(c.usedAt) >= pipeIdle:
			if c.leaving = true; c.syncs+len(c.rest) > 0 {
				c.fail()
			}
		}
		if age := now.Sub(c.openedAt); age > pipeKept && !c.leaving && !p.grow(p.limit()+1) {
			c.leaving = age > 2*pipeKept // what it runs is checked when another one is opened
		}
	}
	for st, f := range p.flows {
		if len(f.pending) == 0 && now.Sub(f.usedAt) > flowKept {
			delete(p.flows, st)
			p.turns = slices.DeleteFunc(p.turns, func(other *flow) bool { return other == f })
		}
	}
	if len(p.open) == 0 && len(p.flows) == 0 {
		p.alarm.At = time.Time{}
	}
	p.plan()
}
