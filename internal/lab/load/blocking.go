package load

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/target"
)

// blocking drives the sessions of a target that is not lean: a goroutine each.
// In an open loop one thread deals the arrivals out when they are due.
type blocking struct {
	clock    target.Clock
	stretch  *stretch
	sessions []*target.Session
	arrivals *Arrivals

	mu       sync.Mutex    // guards all below
	idle     []idleSession // a stack: the last one is used next
	recorder *recorder
	backlog  *backlog
	inFlight int
	idleOpen int // sessions without a request whose connection is open
	changed  int64
	integral int64 // of inFlight over time
	openTime int64 // of open connections over time
	openMax  int
	closing  bool // no arrival comes any more

	marked, counting bool // markLocked was called; the warm-up is over
	before           usage
	start            int64
	baseline         int64
	openBaseline     int64
	report           threadReport
}

// idleSession waits for an arrival on work.
type idleSession struct {
	session *target.Session
	work    chan int64
}

func (b *blocking) run(ctx context.Context, open bool) {
	b.changed = b.clock.Now()
	for _, s := range b.sessions {
		if s.Open() {
			b.idleOpen++
		}
	}
	b.markLocked(b.changed)
	stopRolling := b.startRolling()
	var sessions sync.WaitGroup
	for _, s := range b.sessions {
		sessions.Go(func() {
			if open {
				b.serve(ctx, s)
			} else {
				b.repeat(ctx, s)
			}
			s.Close()
		})
	}
	if open {
		b.deal()
	}
	b.waitFor(&sessions)
	stopRolling()
	now := b.clock.Now()
	b.report.elapsed = b.stretch.elapsed(b.report.stopped, now)
	if b.stretch.spent() {
		b.sum(now)
	}
	b.recorder.finish(b.gauges())
}

// waitFor waits for the sessions to end, and sums up when sending has. Once the
// user has stopped the run, requests in flight are given up after a while.
func (b *blocking) waitFor(sessions *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		sessions.Wait()
		close(done)
	}()
	ticker := time.NewTicker(time.Duration(tick))
	defer ticker.Stop()
	deadline := int64(0)
	for {
		ended := false
		select {
		case <-done:
			ended = true
		case <-ticker.C:
		}
		now := b.clock.Now()
		if b.report.stopped == 0 && (ended || b.stretch.over(now)) {
			b.report.stopped = now
			b.sum(now)
		}
		if ended {
			return
		}
		if deadline == 0 && b.stretch.stopped.Load() {
			deadline = now + min(int64(impatience), b.stretch.drain)
		}
		if deadline != 0 && now >= deadline {
			b.abort()
		}
	}
}

func (b *blocking) abort() {
	for _, s := range b.sessions {
		s.Abort()
	}
}

// markLocked notes how things stand when the warm-up is over; a later call than
// that changes nothing.
func (b *blocking) markLocked(now int64) {
	if b.marked && now < b.stretch.from || b.counting {
		return
	}
	b.counting = now >= b.stretch.from
	b.marked = true
	b.countLocked(now, 0)
	b.before, b.start, b.baseline, b.openBaseline = processUsage(), now, b.integral, b.openTime
}

// sum fills in what the process used and did since the mark.
func (b *blocking) sum(now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countLocked(now, 0)
	b.report.usage = processUsage().since(b.before)
	b.report.wall = now - b.start
	b.report.counters = target.Counters{
		InFlight: b.integral - b.baseline, Open: b.openTime - b.openBaseline, OpenMax: b.openMax,
	}
}

// startRolling hands the seconds over on time, and returns what ends that.
func (b *blocking) startRolling() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Duration(tick))
		defer ticker.Stop()
		for {
			select {
			case <-end:
				return
			case <-ticker.C:
				b.mu.Lock()
				now := b.clock.Now()
				b.markLocked(now)
				b.recorder.roll(now, b.gauges)
				b.mu.Unlock()
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

func (b *blocking) gauges() gauges {
	g := gauges{open: int64(b.inFlight + b.idleOpen), inFlight: int64(b.inFlight)}
	if b.backlog != nil {
		g.backlog = int64(b.backlog.count)
	}
	return g
}

// repeat is a closed loop over one session.
func (b *blocking) repeat(ctx context.Context, s *target.Session) {
	now := b.clock.Now()
	for !b.stretch.over(now) && b.stretch.take(now) {
		b.begin(s, now)
		o := s.Do(ctx, now)
		b.end(s, &o)
		if o.Err != nil && o.Sent == 0 {
			b.pause(ctx)
		}
		now = b.clock.Now()
	}
}

func (b *blocking) pause(ctx context.Context) {
	timer := time.NewTimer(time.Duration(retryPause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (b *blocking) begin(s *target.Session, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recorder.due(now, now)
	b.busyLocked(s, now)
}

// busyLocked counts that s has a request.
func (b *blocking) busyLocked(s *target.Session, now int64) {
	b.countLocked(now, +1)
	if s.Open() {
		b.idleOpen--
	}
}

// end counts that s's request has ended.
func (b *blocking) end(s *target.Session, o *target.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recorder.observe(o)
	b.countLocked(o.Done, -1)
	if s.Open() {
		b.idleOpen++
	}
}

func (b *blocking) countLocked(now int64, change int) {
	b.integral += int64(b.inFlight) * (now - b.changed)
	b.openTime += int64(b.inFlight+b.idleOpen) * (now - b.changed)
	b.changed = now
	b.inFlight += change
	b.openMax = max(b.openMax, b.inFlight+b.idleOpen)
}

// deal puts each arrival into the backlog when it is due, from a thread of its
// own that sleeps to the nanosecond.
func (b *blocking) deal() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore := beTimely()
	defer restore()
	next := b.stretch.begin + int64(b.arrivals.Next())
	now := b.clock.Now()
	for !b.stretch.over(now) && !b.stretch.spent() {
		if wait := min(next, b.stretch.until) - now; wait > 0 {
			ts := unix.NsecToTimespec(min(wait, tick))
			_ = unix.Nanosleep(&ts, nil) // a signal ends it early: the loop looks again
			now = b.clock.Now()
			continue
		}
		if b.stretch.take(next) {
			b.arrive(next, now)
			next = b.stretch.begin + int64(b.arrivals.Next())
		}
		now = b.clock.Now()
	}
	for !b.stretch.stopped.Load() && b.stretch.take(next) { // due, and nobody had the time to send it
		b.miss(next, now)
		next = b.stretch.begin + int64(b.arrivals.Next())
	}
	b.closeDoor(now)
}

// miss counts an arrival that was not sent before the end.
func (b *blocking) miss(intended, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recorder.due(intended, now)
	b.recorder.unsent(intended)
}

// arrive gives an arrival to a session without work, or has it wait for one.
func (b *blocking) arrive(intended, now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recorder.due(intended, now)
	if n := len(b.idle); n > 0 {
		b.busyLocked(b.idle[n-1].session, now)
		b.idle[n-1].work <- intended
		b.idle = b.idle[:n-1]
		return
	}
	if !b.backlog.push(intended) {
		b.recorder.unsent(intended)
	}
}

// closeDoor ends the arrivals. When the time is over, those that wait are given
// up; when the requests are used up, they are still sent.
func (b *blocking) closeDoor(now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	if b.stretch.over(now) {
		b.giveUpLocked()
	}
	for _, session := range b.idle {
		close(session.work)
	}
	b.idle = nil
}

func (b *blocking) giveUpLocked() {
	for b.backlog.count > 0 {
		intended, _ := b.backlog.pop()
		b.recorder.unsent(intended)
	}
}

// serve sends the arrivals that wait, one after the other.
func (b *blocking) serve(ctx context.Context, s *target.Session) {
	work := make(chan int64, 1)
	for {
		intended, ok := b.next(s, work)
		if !ok {
			intended, ok = <-work
		}
		if !ok {
			return
		}
		o := s.Do(ctx, intended)
		b.end(s, &o)
	}
}

// next returns the arrival that waits longest. When none waits, the next one is
// sent to work; when none will come, work is closed.
func (b *blocking) next(s *target.Session, work chan int64) (intended int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	if b.stretch.over(now) {
		b.giveUpLocked()
	}
	if intended, ok = b.backlog.pop(); ok {
		b.busyLocked(s, now)
		return intended, true
	}
	if b.closing {
		close(work)
	} else {
		b.idle = append(b.idle, idleSession{s, work})
	}
	return 0, false
}
