package load

import (
	"context"
	"errors"
	"fmt"
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
	share := (s.step.Connections + workers - 1) / workers
	threads := make([]*thread, workers)
	for i := range threads {
		threads[i] = &thread{number: i, threads: workers, clock: c.Clock}
	}
	defer closeWorkers(threads)
	for i, t := range threads {
		end := t.endClosed
		if s.step.Open() {
			end = t.endOpen
			t.arrivals = s.arrivals()
			t.backlog = newBacklog(max(s.step.backlogLimit(c.Backlog)/workers, 1))
		}
		var err error
		connections := min(share, s.step.Connections-i*share)
		if t.worker, err = c.Target.NewWorker(i, connections, end); err != nil {
			return err
		}
	}
	var connects []time.Duration
	for _, t := range threads {
		connects = append(connects, t.worker.Connect(ctx)...)
	}
	finish, err := s.start(ctx, workers, share)
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

// thread drives one worker with a share of the connections and, in an open loop,
// every n-th arrival.
type thread struct {
	number, threads int
	clock           target.Clock
	phase           *phase
	worker          *target.Worker
	observer        *observer
	arrivals        *Arrivals
	backlog         *backlog
	next            int64 // intended start of its next arrival
	paused          bool  // connections wait until resume
	resume          int64
	report          threadReport

	marked, counting bool // mark was called; the warm-up is over
	before           usage
	start            int64
	baseline         target.Counters
}

// run executes the step. It locks its goroutine to a thread.
func (t *thread) run(open bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if open {
		restore := minimizeTimerSlack()
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
	if t.phase.exhausted() {
		t.sum()
	}
	t.report.elapsed = t.phase.elapsed(t.report.stopped, t.clock.Now())
	t.observer.finish(t.gauges())
}

// mark stores the baseline of the counters at the start, and once more at the
// end of the warm-up.
func (t *thread) mark(now int64) {
	if t.marked && now < t.phase.from || t.counting {
		return
	}
	t.before, t.start, t.baseline = threadUsage(), now, t.worker.Counters(now)
	if !t.marked {
		t.baseline.Connects = 0 // connections opened before the step belong to it
	}
	t.counting = now >= t.phase.from
	t.marked = true
}

// sum writes the usage and counters since mark to the report.
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

// roll hands the current second over if it has ended, and samples the receive
// queues then.
func (t *thread) roll(now int64) {
	if t.observer.roll(now, t.gauges) {
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

// closedLoop keeps every connection busy: a request begins when the previous one
// has ended.
func (t *thread) closedLoop() error {
	t.fill(t.clock.Now())
	for {
		now := t.clock.Now()
		if t.phase.over(now) || t.phase.exhausted() {
			return nil
		}
		until := min(now+tick, t.phase.until)
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
	for t.worker.Free() > 0 && !t.phase.stopped.Load() && t.phase.take(now) {
		t.begin(now)
		now = t.clock.Now()
	}
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
		t.paused, t.resume = true, now+retryPause
		return
	}
	if t.paused || t.phase.stopped.Load() || !t.phase.take(now) {
		return
	}
	t.begin(now)
}

// openLoop starts every arrival when it is due, independently of the target.
func (t *thread) openLoop() error {
	t.advance(t.number)
	for {
		now := t.startDue(t.clock.Now())
		exhausted := t.phase.exhausted()
		if t.phase.over(now) || exhausted && t.backlog.count == 0 {
			t.dropRest(now)
			return nil
		}
		until := min(now+tick, t.phase.until)
		if !exhausted {
			until = min(until, t.next)
		}
		t.mark(now)
		t.roll(now)
		if err := t.worker.Wait(until); err != nil {
			return err
		}
	}
}

// startMax is the number of arrivals started between two looks at the sockets.
const startMax = 64

// startDue sends the arrivals that are due or adds them to the backlog. It
// returns the time.
func (t *thread) startDue(now int64) int64 {
	for started := 0; t.next <= now && t.next < t.phase.until && started < startMax; started++ {
		if !t.phase.take(t.next) {
			return now
		}
		t.observer.due(t.next, now)
		if t.backlog.count > 0 || !t.worker.Start(t.next, now) {
			t.enqueue(t.next, now)
		}
		t.advance(t.threads - 1)
		now = t.clock.Now()
	}
	return now
}

// enqueue adds an arrival to the backlog. If that is full, it is unsent.
func (t *thread) enqueue(intended, now int64) {
	if !t.backlog.push(intended) {
		t.observer.unsent(intended, now)
	}
}

// advance skips the arrivals of other threads.
func (t *thread) advance(others int) {
	for range others {
		t.arrivals.Next()
	}
	t.next = t.phase.begin + int64(t.arrivals.Next())
}

// endOpen observes outcomes in an open loop and gives the free connection to the
// arrival that has waited longest.
func (t *thread) endOpen(o *target.Outcome) {
	t.observer.observe(o)
	if t.backlog.count == 0 || t.phase.stopped.Load() || o.Done >= t.phase.until {
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
	for !t.phase.stopped.Load() && t.next <= now && t.phase.take(t.next) {
		t.observer.due(t.next, now)
		t.observer.unsent(t.next, now)
		t.report.late++
		t.advance(t.threads - 1)
	}
}

// drain waits for the requests in flight: a slow one is part of the result.
func (t *thread) drain() error {
	deadline, shortened := t.clock.Now()+t.phase.drain, false
	for t.worker.Busy() > 0 {
		now := t.clock.Now()
		if !shortened && t.phase.stopped.Load() {
			deadline, shortened = min(deadline, now+int64(interruptGrace)), true
		}
		if now >= deadline {
			t.report.abandoned = int64(t.worker.Busy())
			return nil
		}
		t.roll(now)
		if err := t.worker.Wait(now + tick); err != nil {
			return fmt.Errorf("wait for the last answers: %w", err)
		}
	}
	return nil
}
