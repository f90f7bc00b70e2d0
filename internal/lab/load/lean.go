package load

import (
	"fmt"
	"runtime"

	"spillway/internal/lab/target"
)

// tick bounds every wait: how late a thread sees that it is to stop.
const tick = int64(20_000_000)

// retryPause is how long a closed loop leaves a connection alone that could not
// be opened, so that a dead target is not asked as fast as the machine can.
const retryPause = int64(10_000_000)

// thread drives one worker: a share of the connections, and in an open loop
// every share-th arrival.
type thread struct {
	number, threads int
	clock           target.Clock
	stretch         *stretch
	worker          *target.Worker
	recorder        *recorder
	arrivals        *Arrivals
	backlog         *backlog
	next            int64 // intended start of the next own arrival
	paused          bool  // connections wait for resume
	resume          int64
	report          threadReport

	marked, counting bool // mark was called; the warm-up is over
	before           usage
	start            int64
	baseline         target.Counters
}

// threadReport is what a thread tells at the end of a step.
type threadReport struct {
	usage    usage
	wall     int64 // nanoseconds that usage and counters cover
	stopped  int64 // when sending ended
	elapsed  int64 // length of the step
	counters target.Counters
	late     int64 // arrivals that were never taken up in time: the thread could not keep up
	unread   []int // bytes in receive queues, sampled
	abandon  int64 // requests still in flight when the wait for them ended
	err      error
}

// run drives the step to its end; it holds its thread.
func (t *thread) run(open bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if open {
		restore := beTimely()
		defer restore()
	}
	t.mark(t.clock.Now())
	if open {
		t.report.err = t.openLoop()
	} else {
		t.report.err = t.closedLoop()
	}
	t.report.stopped = t.clock.Now()
	t.sum()
	if t.report.err == nil {
		t.report.err = t.drain()
	}
	if t.stretch.spent() {
		t.sum()
	}
	t.report.elapsed = t.stretch.elapsed(t.report.stopped, t.clock.Now())
	t.recorder.finish(t.gauges())
}

// mark notes how things stand when the warm-up is over; a later call than that
// changes nothing.
func (t *thread) mark(now int64) {
	if t.marked && now < t.stretch.from || t.counting {
		return
	}
	t.before, t.start, t.baseline = threadUsage(), now, t.worker.Counters(now)
	if !t.marked {
		t.baseline.Connects = 0 // opened ahead of the step, for it
	}
	t.counting = now >= t.stretch.from
	t.marked = true
}

// sum fills in what the thread used and did since the mark.
func (t *thread) sum() {
	now := t.clock.Now()
	t.report.usage = threadUsage().since(t.before)
	t.report.wall = now - t.start
	c := t.worker.Counters(now)
	c.Connects -= t.baseline.Connects
	c.Reconnects -= t.baseline.Reconnects
	c.InFlight -= t.baseline.InFlight
	c.Open -= t.baseline.Open
	c.Unread -= t.baseline.Unread
	c.Reads -= t.baseline.Reads
	t.report.counters = c
}

// roll ends the second when it is over, and looks at the receive queues then.
func (t *thread) roll(now int64) {
	if t.recorder.roll(now, t.gauges) {
		t.report.unread = t.worker.ReceiveQueues(t.report.unread)
	}
}

func (t *thread) gauges() gauges {
	g := gauges{open: int64(t.worker.Open()), inFlight: int64(t.worker.Busy())}
	if t.backlog != nil {
		g.backlog = int64(t.backlog.count)
	}
	return g
}

// closedLoop keeps every connection busy: a request begins when the one before
// it has ended.
func (t *thread) closedLoop() error {
	t.fill(t.clock.Now())
	for {
		now := t.clock.Now()
		if t.stretch.over(now) || t.stretch.spent() {
			return nil
		}
		until := min(now+tick, t.stretch.until)
		if t.paused && now >= t.resume {
			t.paused = false
			t.fill(now)
		}
		if t.paused {
			until = min(until, t.resume)
		}
		t.mark(now)
		t.roll(now)
		if err := t.worker.Wait(until); err != nil {
			return err
		}
	}
}

// fill starts a request on every free connection.
func (t *thread) fill(now int64) {
	for t.worker.Free() > 0 && !t.stretch.stopped.Load() && t.stretch.take(now) {
		t.begin(now)
		now = t.clock.Now()
	}
}

func (t *thread) begin(now int64) {
	t.recorder.due(now, now)
	t.worker.Start(now, now)
}

// closedEnd is told of every end in a closed loop.
func (t *thread) closedEnd(o *target.Outcome) {
	t.recorder.observe(o)
	now := o.Done
	if o.Err != nil && o.Sent == 0 {
		t.paused, t.resume = true, now+retryPause
		return
	}
	if t.paused || t.stretch.stopped.Load() || !t.stretch.take(now) {
		return
	}
	t.begin(now)
}

// openLoop takes every arrival up when it is due, whatever the target does.
func (t *thread) openLoop() error {
	t.advance(t.number)
	for {
		now := t.takeUp(t.clock.Now())
		spent := t.stretch.spent()
		if t.stretch.over(now) || spent && t.backlog.count == 0 {
			return t.endOpen(now)
		}
		until := min(now+tick, t.stretch.until)
		if !spent {
			until = min(until, t.next)
		}
		t.mark(now)
		t.roll(now)
		if err := t.worker.Wait(until); err != nil {
			return err
		}
	}
}

// takeUpMax bounds the arrivals taken up between two looks at the sockets.
const takeUpMax = 64

// takeUp sends what is due, or puts it into the backlog. It returns the time.
func (t *thread) takeUp(now int64) int64 {
	for taken := 0; t.next <= now && t.next < t.stretch.until && taken < takeUpMax; taken++ {
		if !t.stretch.take(t.next) {
			return now
		}
		t.recorder.due(t.next, now)
		if t.backlog.count > 0 || !t.worker.Start(t.next, now) {
			t.wait(t.next)
		}
		t.advance(t.threads - 1)
		now = t.clock.Now()
	}
	return now
}

// wait puts an arrival behind those that wait for a connection.
func (t *thread) wait(intended int64) {
	if !t.backlog.push(intended) {
		t.recorder.unsent(intended)
	}
}

// advance passes over the arrivals of other threads to the next own one.
func (t *thread) advance(others int) {
	for range others {
		t.arrivals.Next()
	}
	t.next = t.stretch.begin + int64(t.arrivals.Next())
}

// openEnd is told of every end in an open loop: the connection is free for the
// arrival that waits longest.
func (t *thread) openEnd(o *target.Outcome) {
	t.recorder.observe(o)
	if t.backlog.count == 0 || t.stretch.stopped.Load() || o.Done >= t.stretch.until {
		return
	}
	intended, _ := t.backlog.pop()
	t.worker.Start(intended, o.Done)
}

// endOpen gives up what was due and could not be sent before the end.
func (t *thread) endOpen(now int64) error {
	for t.backlog.count > 0 {
		intended, _ := t.backlog.pop()
		t.recorder.unsent(intended)
	}
	for !t.stretch.stopped.Load() && t.next <= now && t.stretch.take(t.next) {
		t.recorder.due(t.next, now)
		t.recorder.unsent(t.next)
		t.report.late++
		t.advance(t.threads - 1)
	}
	return nil
}

// drain waits for the requests in flight: a slow one is part of the result.
func (t *thread) drain() error {
	deadline, hurried := t.clock.Now()+t.stretch.drain, false
	for t.worker.Busy() > 0 {
		now := t.clock.Now()
		if !hurried && t.stretch.stopped.Load() {
			deadline, hurried = min(deadline, now+int64(impatience)), true
		}
		if now >= deadline {
			t.report.abandon = int64(t.worker.Busy())
			return nil
		}
		t.roll(now)
		if err := t.worker.Wait(now + tick); err != nil {
			return fmt.Errorf("wait for the last answers: %w", err)
		}
	}
	return nil
}
