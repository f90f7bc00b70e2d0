package postgres

import (
	"context"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
)

func knob(name string, usual int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return usual
}

var (
	pipesMax  = knob("PIPES", 2)
	groupMax  = knob("GROUP", 32)
	depthMax  = knob("DEPTH", 64)
)

const (
	slowMean   = time.Millisecond // of a query that is read elsewhere
	sampled    = 64               // one in so many of its reads is in the loop, to measure
	pipeKept   = 5 * time.Second
	pipeIdle   = time.Second
	openPause  = 100 * time.Millisecond
	inBytes    = 64 << 10
	meanWeight = 16
)

// loopPipes are the connections that one event loop has of a pool.
type loopPipes struct {
	db      *DB
	loop    *front.Loop
	open    []*pipe
	flows   map[*source]*flow
	pending []*job
	due     bool // flush is
	flushFn func()
	opening bool
	after   time.Time // when another one may be opened
	alarm   front.Alarm
	in      []byte
	row     row
	free    []*job
	done    []*job
}

// flow is a query in one loop.
type flow struct {
	source    *source
	statement *statement
	mean      time.Duration // of an execution
	skipped   int           // since one was in the loop
	slow      map[string]struct{}
}

// job is a read on its way.
type job struct {
	read *feed.LoopRead // nil: nobody waits for it
	flow *flow
	last bool // Sync follows it
	lone bool // it has a Sync of its own
	err  error
}

// Begin implements feed.LoopReader.
func (s *source) Begin(loop *front.Loop, r *feed.LoopRead) bool {
	if !s.harmless.Load() || s.db.unprepared.active() || s.db.bounds.Max < 2 {
		return false
	}
	p := s.db.pipesOf(loop)
	f := p.flows[s]
	if f == nil {
		f = &flow{source: s, statement: s.statement(shape{}), slow: make(map[string]struct{})}
		p.flows[s] = f
		for _, c := range p.open {
			c.leaving = true
		}
	}
	if _, slow := f.slow[string(r.Name)]; slow {
		return false
	}
	if f.mean > slowMean {
		if f.skipped++; f.skipped < sampled {
			return false
		}
		f.skipped = 0
	}
	if !p.usable(f) {
		p.grow()
		return false
	}
	j := p.newJob(r, f)
	p.pending = append(p.pending, j)
	p.plan()
	return true
}

// Drop implements feed.LoopReader.
func (s *source) Drop(_ *front.Loop, r *feed.LoopRead) { r.Handle.(*job).read = nil }

func (db *DB) pipesOf(loop *front.Loop) *loopPipes {
	if p, ok := db.loops.Load(loop); ok {
		return p.(*loopPipes)
	}
	p := &loopPipes{db: db, loop: loop, flows: make(map[*source]*flow), in: make([]byte, inBytes)}
	p.flushFn = p.flush
	p.alarm.Ring = p.look
	loop.Add(&p.alarm)
	db.loops.Store(loop, p)
	return p
}

func (p *loopPipes) newJob(r *feed.LoopRead, f *flow) *job {
	var j *job
	if n := len(p.free); n > 0 {
		j, p.free = p.free[n-1], p.free[:n-1]
	} else {
		j = new(job)
	}
	*j = job{read: r, flow: f}
	r.Handle = j
	return j
}

// usable reports whether a connection can take the query.
func (p *loopPipes) usable(f *flow) bool {
	for _, c := range p.open {
		if !c.leaving && c.statements[f.statement] != nil {
			return true
		}
	}
	return false
}

// plan has flush called at the end of the round.
func (p *loopPipes) plan() {
	if !p.due {
		p.due = true
		p.loop.After(p.flushFn)
	}
}

// flush sends what waits.
func (p *loopPipes) flush() {
	p.due = false
	n := 0
	for i, j := range p.pending {
		if j.read == nil {
			p.free = append(p.free, j)
			n = i + 1
			continue
		}
		c := p.choose(j.flow)
		if c == nil {
			if p.usable(j.flow) {
				p.grow()
				break
			}
			p.report(j, feed.ErrElsewhere)
		} else if err := c.put(j); err != nil {
			p.report(j, feed.ErrElsewhere)
		}
		n = i + 1
	}
	left := copy(p.pending, p.pending[n:])
	clear(p.pending[left:])
	p.pending = p.pending[:left]
	for _, c := range p.open {
		c.send()
	}
}

// choose returns the connection for an execution; nil: there is no room.
func (p *loopPipes) choose(f *flow) *pipe {
	var best *pipe
	for _, c := range p.open {
		if !c.leaving && c.statements[f.statement] != nil && (best == nil || len(c.sent) < len(best.sent)) {
			best = c
		}
	}
	if best != nil && len(best.sent) >= f.depth() {
		return nil
	}
	return best
}

func (f *flow) depth() int { return depthMax }

// report ends a job.
func (p *loopPipes) report(j *job, err error) {
	r := j.read
	p.free = append(p.free, j)
	if r != nil {
		r.Done(err)
	}
}

// look looks at what takes long.
func (p *loopPipes) look() {
	p.alarm.At = p.loop.Now().Add(pipeIdle)
	for _, c := range p.open {
		if len(c.sent) == 0 && p.loop.Now().Sub(c.usedAt) >= pipeIdle {
			c.leaving = true
		}
	}
	p.leave()
}

// leave gives connections back.
func (p *loopPipes) leave() {
	kept := p.open[:0]
	for _, c := range p.open {
		if c.leaving && len(c.sent) == 0 {
			p.loop.Unwatch(c.fd)
			c.lease.Release()
			continue
		}
		kept = append(kept, c)
	}
	clear(p.open[len(kept):])
	p.open = kept
}

// grow opens another connection, if it may.
func (p *loopPipes) grow() {
	if p.opening || len(p.open) >= pipesMax || p.loop.Now().Before(p.after) {
		return
	}
	p.opening = true
	var statements []*statement
	for _, f := range p.flows {
		statements = append(statements, f.statement)
	}
	go func() {
		c, err := p.db.openPipe(statements)
		if !p.loop.Post(func() { p.adopt(c, err) }) && err == nil {
			c.lease.Release()
		}
	}()
}

func (p *loopPipes) adopt(c *pipe, err error) {
	p.opening = false
	if err == nil {
		if err = p.loop.Watch(c.fd, c); err != nil {
			c.lease.Release()
		}
	}
	if err != nil {
		p.after = p.loop.Now().Add(openPause)
		return
	}
	c.of, c.usedAt, c.openedAt = p, p.loop.Now(), p.loop.Now()
	p.open = append(p.open, c)
	p.alarm.At = p.loop.Now().Add(pipeIdle)
	p.plan()
}

var errUnfit = errors.New("the connection is of no use in an event loop")

func (db *DB) openPipe(statements []*statement) (*pipe, error) {
	ctx, cancel := context.WithTimeout(db.life, db.bounds.StatementTimeout)
	defer cancel()
	lease, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	c := &pipe{lease: lease, conn: lease.Conn().PgConn(), statements: make(map[*statement]*prepared)}
	for _, s := range statements {
		p, err := sessionOf(c.conn).prepare(ctx, c.conn, s)
		if err != nil {
			lease.Release()
			return nil, err
		}
		c.statements[s] = p
	}
	sc, ok := c.conn.Conn().(syscall.Conn)
	if !ok {
		lease.Release()
		return nil, errUnfit
	}
	raw, err := sc.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { c.fd = int(fd) })
	}
	if err != nil {
		lease.Release()
		return nil, err
	}
	return c, nil
}

// pipe is a connection of an event loop.
type pipe struct {
	of         *loopPipes
	lease      lease
	conn       *pgconn.PgConn
	fd         int
	statements map[*statement]*prepared
	sent       []*job
	open       int // of sent, without a Sync
	out        []byte
	rest       []byte // of a message
	usedAt     time.Time
	openedAt   time.Time
	leaving    bool
	skipping   bool
}

// put adds an execution to what is sent next.
func (c *pipe) put(j *job) error {
	out, err := appendExecute(c.out, j.flow.statement.name, j.flow.source.def.Params, j.read.Args)
	if err != nil {
		return err
	}
	c.out = out
	if len(c.sent) == 0 {
		c.usedAt = c.of.loop.Now()
	}
	c.sent = append(c.sent, j)
	if c.open++; c.open >= groupMax {
		c.sync()
	}
	return nil
}

func (c *pipe) sync() {
	if c.open > 0 {
		c.sent[len(c.sent)-1].last = true
		c.out = append(c.out, 'S', 0, 0, 0, 4)
		c.open = 0
	}
}

func (c *pipe) send() {
	c.sync()
	if len(c.out) == 0 {
		return
	}
	n, err := front.Send(c.fd, c.out)
	if err != nil || n < len(c.out) {
		c.fail()
		return
	}
	c.out = c.out[:0]
}

func (c *pipe) fail() { panic("TODO") }

// Ended implements front.Watcher.
func (c *pipe) Ended() { c.lease.Release() }

// Ready implements front.Watcher.
func (c *pipe) Ready() {
	p := c.of
	n, err := front.Receive(c.fd, p.in)
	if n < 0 {
		return
	}
	if n == 0 || err != nil {
		c.fail()
		return
	}
	data := p.in[:n]
	if len(c.rest) > 0 {
		c.rest = append(c.rest, data...)
		data = c.rest
	}
	left := c.parse(data)
	c.rest = append(c.rest[:0], left...)
	now := time.Now()
	if n := len(p.done); n > 0 {
		took := now.Sub(c.usedAt) / time.Duration(n)
		c.usedAt = now
		for _, j := range p.done {
			if j.read != nil {
				j.read.Took = took
				j.flow.observe(took)
			}
			p.report(j, j.err)
		}
		clear(p.done)
		p.done = p.done[:0]
	}
	if len(p.pending) > 0 {
		p.plan()
	}
}

func (f *flow) observe(took time.Duration) {
	switch {
	case f.mean == 0:
		f.mean = took
	case took > f.mean:
		f.mean += f.mean/64 + time.Microsecond
	default:
		f.mean -= (f.mean - took) / 4
	}
}

// parse takes the whole messages, and returns the rest.
func (c *pipe) parse(data []byte) (rest []byte) {
	for len(data) >= 5 {
		size := 1 + int(uint32(data[1])<<24|uint32(data[2])<<16|uint32(data[3])<<8|uint32(data[4]))
		if size > len(data) {
			break
		}
		body := data[5:size]
		switch data[0] {
		case 'D':
			c.takeRow(body)
		case 'C', 'I':
			c.pop(nil)
		case 'E':
			c.refused(body)
		case 'Z':
			c.skipping = false
		case '2', 'N':
		default:
			c.fail()
		}
		data = data[size:]
	}
	return data
}

func (c *pipe) pop(err error) {
	j := c.sent[0]
	j.err = err
	n := copy(c.sent, c.sent[1:])
	c.sent[n] = nil
	c.sent = c.sent[:n]
	c.of.done = append(c.of.done, j)
}

func (c *pipe) refused(body []byte) {
	var message pgproto3.ErrorResponse
	_ = message.Decode(body)
	for {
		last := c.sent[0].last
		c.pop(feed.ErrElsewhere)
		if last {
			return
		}
	}
}

func (c *pipe) takeRow(body []byte) {
	j := c.sent[0]
	if j.read == nil {
		return
	}
	r := &c.of.row
	r.columns = c.statements[j.flow.statement].columns
	r.values = r.values[:0]
	n := int(body[0])<<8 | int(body[1])
	body = body[2:]
	for range n {
		size := int32(uint32(body[0])<<24 | uint32(body[1])<<16 | uint32(body[2])<<8 | uint32(body[3]))
		body = body[4:]
		if size < 0 {
			r.values = append(r.values, nil)
			continue
		}
		r.values = append(r.values, body[:size:size])
		body = body[size:]
	}
	if err := j.read.Rows.Handler().Row(r); err != nil {
		j.read.Done(feed.ErrElsewhere)
		j.read = nil
	}
}

// appendExecute appends the messages that run a prepared statement.
func appendExecute(dst []byte, name string, params []param.Param, args []string) ([]byte, error) {
	values, err := bound(params, args)
	if err != nil {
		return dst, err
	}
	begin := len(dst)
	dst = append(dst, 'B', 0, 0, 0, 0, 0)
	dst = append(dst, name...)
	dst = append(dst, 0, 0, 0, byte(len(values)>>8), byte(len(values)))
	for _, value := range values {
		n := len(value)
		if value == nil {
			n = -1
		}
		dst = append(dst, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		dst = append(dst, value...)
	}
	dst = append(dst, 0, 0)
	n := len(dst) - begin - 1
	dst[begin+1], dst[begin+2], dst[begin+3], dst[begin+4] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return append(dst, 'E', 0, 0, 0, 9, 0, 0, 0, 0, 0), nil
}
