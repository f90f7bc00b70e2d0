package load

import (
	"context"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"spillway/internal/lab/target"
)

// connectsMax is how many connections are opened at the same time before a step.
const connectsMax = 8

// runSessions runs the step on a goroutine per connection.
func (s *stepRun) runSessions(ctx context.Context) error {
	c := s.config
	p := &pool{
		clock: c.Clock, arrivals: s.arrivals(), backlog: newBacklog(s.step.backlogLimit(c.Backlog, c.Part)), connections: s.step.Connections,
	}
	p.sessions = c.Target.NewSessions(p.connections)
	var connects []time.Duration
	if c.Target.SQL() && c.PerConnection == 0 {
		connects = connectAll(ctx, p.sessions)
	}
	if err := p.visit(c); err != nil {
		return err
	}
	defer p.alarms.close()
	s.interrupted = p.alarms.stop
	finish, err := s.start(ctx, []driver{p}, []int{len(p.sessions)})
	if err != nil {
		for _, session := range p.sessions {
			session.Close()
		}
		return err
	}
	p.phase, p.observer, p.isOpen = s.phase, s.observers[0], s.step.Open()
	if labels := p.observer.labels; labels != nil {
		labels.flow = c.Flow != nil
	}
	for _, took := range connects {
		p.observer.now.latency.connect.Record(took)
	}
	p.run(context.WithoutCancel(ctx))
	for _, session := range p.sessions {
		n := session.Counters()
		p.report.counters.Connects += n.Connects
		p.report.counters.Reconnects += n.Reconnects
	}
	finish()
	s.reports, s.iterations = append(s.reports, p.report), &p.iterations
	return s.collector.err
}

// connectAll opens every session's connection and returns how long each took.
func connectAll(ctx context.Context, sessions []*target.Session) []time.Duration {
	var (
		mu       sync.Mutex
		connects []time.Duration
		opening  errgroup.Group
	)
	opening.SetLimit(connectsMax)
	for _, s := range sessions {
		opening.Go(func() error {
			if took, ok := s.Connect(ctx); ok {
				mu.Lock()
				defer mu.Unlock()
				connects = append(connects, took)
			}
			return nil
		})
	}
	_ = opening.Wait() // the first request of a session reports its failure
	return connects
}

// pool drives the sessions of a target, one goroutine per session. In an open
// loop, one more thread dispatches the arrivals when they are due.
type pool struct {
	clock    target.Clock
	phase    *phase
	sessions []*target.Session
	arrivals *Arrivals
	giveUp   context.CancelFunc // of the requests in flight

	connections int        // of the sessions; fewer if they share them
	users       []*visitor // of a flow, one per session; nil: no flow
	alarms      alarms     // of the users
	isOpen      bool       // an open loop

	mu       sync.Mutex    // guards all below
	idle     []idleSession // a stack: the session used last is used next
	observer *observer
	backlog  *backlog
	inFlight int
	idleOpen int // sessions without a request whose connection is open
	changed  int64
	integral int64 // of inFlight over time
	openTime int64 // of open connections over time
	openMax  int
	ended    bool // no more arrivals

	iterations iterations // of the flow

	before       usage // at the start of the window, as are the next two
	baseline     int64
	openBaseline int64
	report       threadReport
}

// idleSession waits for an arrival on work.
type idleSession struct {
	session *target.Session
	work    chan int64
}

func (p *pool) run(ctx context.Context) {
	p.changed = p.clock.Now()
	for _, s := range p.sessions {
		if s.Open() {
			p.idleOpen++
		}
	}
	ctx, p.giveUp = context.WithCancel(ctx)
	defer p.giveUp()
	p.observer.roll(p.changed)
	var running sync.WaitGroup
	for i, s := range p.sessions {
		running.Go(func() {
			if p.isOpen {
				p.openLoop(ctx, i, s)
			} else {
				p.closedLoop(ctx, i, s)
			}
			s.Close()
		})
	}
	if p.isOpen {
		running.Go(p.dispatch)
	}
	p.await(&running)
	p.observer.finish()
}

// await waits for the sessions, hands each second over when it ends, and closes the window at the end of the step. After an
// interrupt it aborts the requests in flight once the grace period is over.
func (p *pool) await(running *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	deadline := int64(math.MaxInt64)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := p.clock.Now()
		p.roll(now)
		if p.phase.over(now) {
			p.closeWindow(now)
		}
		if p.phase.stopped.Load() {
			deadline = min(deadline, now+int64(interruptGrace))
		}
		if now >= deadline {
			p.giveUp()
			for _, s := range p.sessions {
				s.Abort()
			}
		}
		wait := tick
		if end := p.phase.end.Load(); end > now {
			wait = min(wait, end-now)
		}
		timer.Reset(time.Duration(wait))
		select {
		case <-done:
			p.closeWindow(p.clock.Now())
			return
		case <-timer.C:
		}
	}
}

// mark stores the counters at the start of the window. The observer calls it with the
// pool locked.
func (p *pool) mark(now int64) {
	p.countLocked(now, 0)
	p.before, p.baseline, p.openBaseline = processUsage(), p.integral, p.openTime
}

// closeWindow writes the usage and counters within the window to the report. Later
// calls do nothing.
func (p *pool) closeWindow(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observer.roll(now)
	if !p.observer.closeWindow(now) {
		return
	}
	p.countLocked(now, 0)
	p.report.usage = processUsage().since(p.before)
	p.report.wall = now - p.observer.window.from
	p.report.counters = target.Counters{InFlight: p.integral - p.baseline, Open: p.openTime - p.openBaseline, OpenMax: p.openMax}
}

func (p *pool) roll(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observer.roll(now)
}

// open is the number of open connections. Sessions that share connections are
// spread over them evenly.
func (p *pool) open() int { return min(p.inFlight+p.idleOpen, p.connections) }

func (p *pool) gauges() gauges {
	return gauges{open: int64(p.open()), inFlight: int64(p.inFlight), backlog: int64(p.backlog.count)}
}

// closedLoop sends requests over one session, one after the other.
func (p *pool) closedLoop(ctx context.Context, number int, s *target.Session) {
	now := p.clock.Now()
	for !p.phase.over(now) && p.phase.take(now) {
		p.begin(s, now)
		o := p.serve(ctx, number, s, now)
		if now = p.clock.Now(); o.Err != nil && o.Sent == 0 {
			time.Sleep(time.Duration(retryPause))
			now = p.resumed(now)
		}
	}
}

// resumed counts the pause of a session since then. The target caused it.
func (p *pool) resumed(since int64) (now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now = p.clock.Now()
	window := &p.observer.window
	p.report.paused += max(min(now, window.to)-max(since, window.from), 0)
	return now
}

// begin counts a request on s that was due at intended.
func (p *pool) begin(s *target.Session, intended int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.observer.due(intended, now)
	p.busyLocked(s, now)
}

// busyLocked counts the start of a request on s.
func (p *pool) busyLocked(s *target.Session, now int64) {
	p.countLocked(now, +1)
	if s.Open() {
		p.idleOpen--
	}
}

// end counts the end of the request on s.
func (p *pool) end(s *target.Session, o *target.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observer.observe(o)
	p.countLocked(o.Done, -1)
	if s.Open() {
		p.idleOpen++
	}
}

func (p *pool) countLocked(now int64, change int) {
	p.integral += int64(p.inFlight) * (now - p.changed)
	p.openTime += int64(p.open()) * (now - p.changed)
	p.changed = now
	p.inFlight += change
	p.openMax = max(p.openMax, p.open())
}

// dispatch starts each arrival when it is due, from a thread of its own.
func (p *pool) dispatch() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore := beginPromptly()
	defer restore()
	next := p.phase.at(p.arrivals.Next())
	now := p.clock.Now()
	for !p.phase.over(now) && !p.phase.exhausted() {
		if wait := min(next, p.phase.end.Load()) - now; wait > 0 {
			sleep(time.Duration(min(wait, tick)))
			now = p.clock.Now()
			continue
		}
		if p.phase.take(next) {
			p.arrive(next, now)
			next = p.phase.at(p.arrivals.Next())
		}
		now = p.clock.Now()
	}
	for p.phase.take(next) { // due before the end
		p.drop(next, now)
		next = p.phase.at(p.arrivals.Next())
	}
	p.endArrivals(now)
}

// drop counts an arrival that was not sent before the end.
func (p *pool) drop(intended, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observer.due(intended, now)
	p.observer.unsent(intended, now)
	p.report.late++
}

// arrive passes an arrival to an idle session or adds it to the backlog.
func (p *pool) arrive(intended, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observer.due(intended, now)
	p.arrivedLocked(intended, len(p.idle) == 0)
	if n := len(p.idle); n > 0 {
		p.busyLocked(p.idle[n-1].session, now)
		p.idle[n-1].work <- intended
		p.idle = p.idle[:n-1]
		return
	}
	if !p.backlog.push(intended) {
		p.observer.unsent(intended, now)
	}
}

// endArrivals ends the open loop. If the time is over, the backlog is dropped; if
// the requests are used up, the backlog is still sent.
func (p *pool) endArrivals(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.phase.over(now) {
		p.dropBacklogLocked(now)
	}
	for _, session := range p.idle {
		close(session.work)
	}
	p.idle = nil
}

func (p *pool) dropBacklogLocked(now int64) {
	for p.backlog.count > 0 {
		intended, _ := p.backlog.pop()
		p.observer.unsent(intended, now)
	}
}

// openLoop sends arrivals over one session until there are no more.
func (p *pool) openLoop(ctx context.Context, number int, s *target.Session) {
	work := make(chan int64, 1)
	for {
		intended, ok := p.next(s, work)
		if !ok {
			intended, ok = <-work
		}
		if !ok {
			return
		}
		p.serve(ctx, number, s, intended)
	}
}

// serve sends the request of an arrival over session number, or all those of an
// iteration of the flow. It returns the last outcome.
func (p *pool) serve(ctx context.Context, number int, s *target.Session, intended int64) target.Outcome {
	if p.users != nil {
		return p.users[number].iterate(ctx, s, intended)
	}
	o := s.Do(ctx, intended)
	p.end(s, &o)
	return o
}

// next returns the arrival that has waited longest. If none waits, the next one
// is sent to work. After the last arrival, work is closed.
func (p *pool) next(s *target.Session, work chan int64) (intended int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if p.phase.over(now) {
		p.dropBacklogLocked(now)
	}
	if intended, ok = p.backlog.pop(); ok {
		p.busyLocked(s, now)
		return intended, true
	}
	if p.ended {
		close(work)
	} else {
		p.idle = append(p.idle, idleSession{s, work})
	}
	return 0, false
}
