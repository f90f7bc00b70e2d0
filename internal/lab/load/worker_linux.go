package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"spillway/internal/lab/target"
)

// runWorkers runs the step on threads that each drive a target.Worker.
func (s *stepRun) runWorkers(ctx context.Context) error {
	c := s.config
	workers := min(c.Workers, s.step.Connections)
	// A thread keeps its place in the Go scheduler while it waits for a short time, and the collector needs one too.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), workers+1)))
	slots := sharesOf(s.step.Connections, workers)
	waiting := sharesOf(s.step.backlogLimit(c.Backlog, c.Part), workers)
	threads := make([]*thread, workers)
	for i := range threads {
		threads[i] = &thread{number: i, threads: workers, connections: s.step.Connections, clock: c.Clock, held: newBacklog(slots[i])}
	}
	defer closeWorkers(threads)
	for i, t := range threads {
		end := t.endClosed
		if s.step.Open() {
			end = t.endOpen
			t.arrivals = s.arrivals()
			t.backlog = newBacklog(waiting[i])
		}
		var err error
		if t.worker, err = c.Target.NewWorker(i, slots[i], end); err != nil {
			return err
		}
	}
	var connects []time.Duration
	for _, t := range threads {
		connects = append(connects, t.worker.Connect(ctx)...)
	}
	drivers := make([]driver, workers)
	for i, t := range threads {
		drivers[i] = t
	}
	finish, err := s.start(ctx, drivers, slots)
	if err != nil {
		return err
	}
	for _, took := range connects {
		s.observers[0].now.latency.connect.Record(took)
	}
	var running sync.WaitGroup
	for i, t := range threads {
		t.phase, t.observer = s.phase, s.observers[i]
		running.Go(func() { t.run(s.step.Open()) })
	}
	running.Wait()
	finish()
	var errs []error
	for _, t := range threads {
		s.reports = append(s.reports, t.report)
		errs = append(errs, t.report.err)
	}
	return errors.Join(append(errs, s.collector.err)...)
}

func closeWorkers(threads []*thread) {
	for _, t := range threads {
		if t.worker != nil {
			t.worker.Close()
		}
	}
}

// thread drives one worker with a share of the connections. In an open loop, the
// arrivals are dealt to the connections in rotation.
type thread struct {
	number, threads int
	connections     int // of all threads
	clock           target.Clock
	phase           *phase
	worker          *target.Worker
	observer        *observer
	arrivals        *Arrivals
	arrival         int // number of arrivals so far, modulo connections
	backlog         *backlog
	next            int64    // intended start of its next arrival
	held            *backlog // when the connections that could not be opened are tried again
	report          threadReport

	before   usage
	baseline target.Counters
}

// run executes the step. It locks its goroutine to a thread.
func (t *thread) run(open bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if open {
		restore := beginPromptly()
		defer restore()
	}
	t.observer.roll(t.clock.Now())
	if open {
		t.report.err = t.openLoop()
	} else {
		t.report.err = t.closedLoop()
	}
	t.observer.roll(t.clock.Now())
	if t.report.err == nil {
		t.report.err = t.drain()
	}
	t.closeWindow(t.clock.Now())
	t.observer.finish()
}

// mark stores the counters at the start of the window.
func (t *thread) mark(now int64) {
	t.before, t.baseline = threadUsage(), t.worker.Counters(now)
	if t.phase.from == t.phase.begin {
		t.baseline.Connects = 0 // connections opened before the step belong to it
	}
}

// closeWindow writes the usage and counters within the window to the report. Later
// calls do nothing.
func (t *thread) closeWindow(now int64) {
	if !t.observer.closeWindow(now) {
		return
	}
	t.report.usage = threadUsage().since(t.before)
	t.report.wall = now - t.observer.window.from
	for t.held.count > 0 {
		t.release(now)
	}
	c := t.worker.Counters(now)
	c.Connects -= t.baseline.Connects
	c.Reconnects -= t.baseline.Reconnects
	c.InFlight -= t.baseline.InFlight
	c.Open -= t.baseline.Open
	c.Unread -= t.baseline.Unread
	c.Reads -= t.baseline.Reads
	t.report.counters = c
}

// threadUsage reads the usage of the calling thread.
func threadUsage() usage {
	u := readUsage(unix.RUSAGE_THREAD)
	if proc, err := procfs.NewDefaultFS(); err == nil {
		if thread, err := proc.Thread(os.Getpid(), unix.Gettid()); err == nil {
			u.wait = runQueueWait(thread)
		}
	}
	return u
}

func (t *thread) gauges() gauges {
	g := gauges{open: int64(t.worker.Open()), inFlight: int64(t.worker.Busy())}
	if t.backlog != nil {
		g.backlog = int64(t.backlog.count)
	}
	return g
}

// closedLoop keeps every connection busy: a request begins when the previous one
// has ended.
func (t *thread) closedLoop() error {
	t.fill(t.clock.Now())
	for {
		now := t.clock.Now()
		if t.phase.over(now) || t.phase.exhausted() {
			return nil
		}
		t.observer.roll(now)
		for t.held.count > 0 && t.held.oldest() <= now {
			t.release(now)
			t.fill(now)
		}
		until := min(now+tick, t.observer.border)
		if t.held.count > 0 {
			until = min(until, t.held.oldest())
		}
		if err := t.worker.Wait(until); err != nil {
			return err
		}
	}
}

// fill starts a request on every free connection that is not held.
func (t *thread) fill(now int64) {
	for t.worker.Free() > t.held.count && t.phase.take(now) {
		t.begin(now)
		now = t.clock.Now()
	}
}

// release ends the pause of the connection that has been held longest. The target
// caused the pause.
func (t *thread) release(now int64) {
	resume, _ := t.held.pop()
	t.report.paused += max(now-max(resume-retryPause, t.observer.window.from), 0)
}

func (t *thread) begin(now int64) {
	t.observer.due(now, now)
	t.worker.Start(now, now)
}

// endClosed observes outcomes in a closed loop and starts the next request.
func (t *thread) endClosed(o *target.Outcome) {
	t.observer.observe(o)
	now := o.Done
	if o.Err != nil && o.Sent == 0 {
		t.held.push(now + retryPause)
		return
	}
	if t.phase.take(now) {
		t.begin(now)
	}
}

// openLoop starts every arrival when it is due, independently of the target.
func (t *thread) openLoop() error {
	t.advance()
	for {
		now := t.startDue(t.clock.Now())
		exhausted := t.phase.exhausted()
		if t.phase.over(now) || exhausted && t.backlog.count == 0 {
			t.dropRest(now)
			return nil
		}
		t.observer.roll(now)
		until := min(now+tick, t.observer.border)
		if !exhausted {
			until = min(until, t.next)
		}
		if err := t.worker.Wait(until); err != nil {
			return err
		}
	}
}

// startMax is the number of arrivals started between two looks at the sockets.
const startMax = 64

// startDue sends the arrivals that are due or adds them to the backlog. If that is full, they are unsent. It returns the time.
func (t *thread) startDue(now int64) int64 {
	for started := 0; t.next <= now && started < startMax; started++ {
		if !t.phase.take(t.next) {
			return now
		}
		t.observer.due(t.next, now)
		if (t.backlog.count > 0 || !t.worker.Start(t.next, now)) && !t.backlog.push(t.next) {
			t.observer.unsent(t.next, now)
		}
		t.advance()
		now = t.clock.Now()
	}
	return now
}

// advance skips the arrivals of other threads.
func (t *thread) advance() {
	for mine := false; !mine; {
		mine = t.arrival%t.threads == t.number
		t.next = t.phase.at(t.arrivals.Next())
		if t.arrival++; t.arrival == t.connections {
			t.arrival = 0
		}
	}
}

// endOpen observes outcomes in an open loop and gives the free connection to the
// arrival that has waited longest.
func (t *thread) endOpen(o *target.Outcome) {
	t.observer.observe(o)
	if t.backlog.count == 0 || t.phase.over(o.Done) {
		return
	}
	intended, _ := t.backlog.pop()
	t.worker.Start(intended, o.Done)
}

// dropRest counts the arrivals that were due before the end as unsent.
func (t *thread) dropRest(now int64) {
	for t.backlog.count > 0 {
		intended, _ := t.backlog.pop()
		t.observer.unsent(intended, now)
	}
	for t.phase.take(t.next) { // due before the end
		t.observer.due(t.next, now)
		t.observer.unsent(t.next, now)
		t.report.late++
		t.advance()
	}
}

// drain waits for the requests in flight: a slow one is part of the result. After an
// interrupt it gives them up when the grace period is over.
func (t *thread) drain() error {
	deadline := int64(math.MaxInt64)
	for {
		now := t.clock.Now()
		t.observer.roll(now)
		if t.phase.over(now) {
			t.closeWindow(now)
		}
		if t.phase.stopped.Load() {
			deadline = min(deadline, now+int64(interruptGrace))
		}
		switch {
		case t.worker.Busy() == 0:
			return nil
		case now >= deadline:
			t.worker.Abandon()
			return nil
		}
		if err := t.worker.Wait(min(now+tick, t.observer.border)); err != nil {
			return fmt.Errorf("wait for the last answers: %w", err)
		}
	}
}
