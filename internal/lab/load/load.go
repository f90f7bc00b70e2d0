// Package load drives a target: open loops, in which requests arrive by the
// clock whatever the target does, and closed loops, in which each connection asks
// again when it is answered. It keeps the books of what happened and says of each
// step whether it measured the target or something else.
//
// Latency counts from the intended start. An arrival that has to wait for a
// connection keeps its intended start, the wait is bounded in number, and what
// overflows is counted as unsent: nothing slow is left out of the figures.
//
// What is sent, and over which protocol, is decided in package target. Results
// are told as records of package result; this package writes no file and prints
// nothing.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// Config is a run. Target, Clock and Steps are required.
type Config struct {
	Target        *target.Target
	Clock         target.Clock // the target's
	Steps         []Step
	Poisson       bool // open loops: arrivals of independent users; else evenly spaced
	PerConnection int  // as the target has it
	Timeout       time.Duration
	Warmup        time.Duration // before each step, counted nowhere
	Backlog       int           // arrivals that may wait for a connection; 0: 10 s of them
	Workers       int           // threads that drive a lean target; 0: DefaultWorkers
	Seed          uint64
	SLO           SLO
}

// DefaultWorkers is half of the cores: the other half is for whoever shares the
// machine, and one thread makes more load than most targets bear.
func DefaultWorkers() int { return max(1, min(runtime.GOMAXPROCS(0)/2, 8)) }

// Listener is told of a run while it goes on, from one goroutine at a time. A
// field may be nil. An error ends the run.
type Listener struct {
	Step   func(*result.Step) error
	Second func(*Second) error
	Total  func(*result.Total) error
}

// Run runs every step. When ctx ends, the step under way ends early and is told
// with what was measured so far; interrupted is true then.
func Run(ctx context.Context, config Config, listener Listener) (interrupted bool, err error) {
	if listener.Step == nil {
		listener.Step = func(*result.Step) error { return nil }
	}
	if listener.Second == nil {
		listener.Second = func(*Second) error { return nil }
	}
	if listener.Total == nil {
		listener.Total = func(*result.Total) error { return nil }
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers()
	}
	start := config.Clock.Now()
	for i := range config.Steps {
		if ctx.Err() != nil {
			return true, nil
		}
		s := &stepRun{config: &config, step: &config.Steps[i], number: i, listener: listener, runStart: start}
		if err := s.run(ctx); err != nil {
			return ctx.Err() != nil, fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return ctx.Err() != nil, nil
}

// stepRun is one step under way.
type stepRun struct {
	config    *Config
	step      *Step
	number    int
	listener  Listener
	runStart  int64 // on the run's clock
	collector *collector
	recorders []*recorder
	stretch   *stretch
	pressure  time.Duration // of the host's CPUs, before; then during
	gcPause   time.Duration
	reports   []threadReport
}

func (s *stepRun) run(ctx context.Context) error {
	c := s.config
	pressure, _ := cpuPressure()
	pause := gcPause()
	var err error
	if c.Target.Lean() {
		err = s.runLean(ctx)
	} else {
		err = s.runBlocking(ctx)
	}
	if err != nil {
		return err
	}
	after, _ := cpuPressure()
	s.pressure, s.gcPause = after-pressure, gcPause()-pause
	total, err := s.total()
	if err != nil {
		return err
	}
	return s.listener.Total(total)
}

// describe makes the record that begins the step.
func (s *stepRun) describe(start time.Duration) *result.Step {
	r := &result.Step{
		Index: s.number, Loop: result.LoopClosed, Connections: s.step.Connections, PerConnection: s.config.PerConnection,
		Duration: s.step.Duration.Seconds(), Requests: s.step.Requests, Start: start.Seconds(),
		Warmup: s.config.Warmup.Seconds(), TimeoutLimit: s.config.Timeout.Seconds(),
	}
	r.Name = fmt.Sprintf("%d connections", s.step.Connections)
	if !s.step.Open() {
		return r
	}
	r.Loop, r.Arrival = result.LoopOpen, "constant"
	r.Name = fmt.Sprintf("%g/s", s.step.Profile.From)
	r.OfferedHz = s.step.Profile.From
	r.BacklogLimit = int64(s.step.backlogLimit(s.config.Backlog))
	if s.config.Poisson {
		r.Arrival = "poisson"
	}
	if s.step.Ramp() {
		r.Arrival = "ramp"
		r.Name = fmt.Sprintf("%g..%g/s", s.step.Profile.From, s.step.Profile.To)
		r.OfferedEndHz = s.step.Profile.To
	}
	return r
}

// arrivals returns the arrivals of the step; every caller gets the same ones.
// During the warm-up they come at the step's first rate.
func (s *stepRun) arrivals() *Arrivals {
	p := s.step.Profile
	p.Lead = s.config.Warmup
	if s.config.Poisson {
		return Poisson(p, rand.New(rand.NewPCG(s.config.Seed, uint64(s.number)+1<<32)))
	}
	return Even(p)
}

// start prepares the books of so many recorders and the watch on ctx; finish
// closes both.
func (s *stepRun) start(ctx context.Context, recorders, slots int) (finish func(), err error) {
	c := s.config
	s.collector = newCollector(recorders)
	s.collector.step, s.collector.duration, s.collector.tell = s.number, s.step.Duration, s.listener.Second
	for i := range recorders {
		s.collector.empty <- newTally()
		s.recorders = append(s.recorders, &recorder{
			number: i, open: s.step.Open(), now: newTally(), served: make([]served, slots), full: s.collector.full, empty: s.collector.empty,
		})
	}
	if err := s.listener.Step(s.describe(time.Duration(c.Clock.Now() + int64(c.Warmup) - s.runStart))); err != nil {
		return nil, err
	}
	// The time starts when all memory is there.
	s.stretch = newStretch(c.Clock.Now(), s.step, c.Warmup, c.Timeout)
	s.collector.stretch = s.stretch
	for _, r := range s.recorders {
		r.from, r.lastSecond, r.ends = s.stretch.from, s.stretch.lastSecond(), s.stretch.from+second
	}
	var collecting sync.WaitGroup
	collecting.Go(s.collector.run)
	stopWatching := context.AfterFunc(ctx, func() { s.stretch.stopped.Store(true) })
	return func() {
		stopWatching()
		close(s.collector.full)
		collecting.Wait()
	}, nil
}

func (s *stepRun) runLean(ctx context.Context) error {
	c := s.config
	workers := min(c.Workers, s.step.Connections)
	share := (s.step.Connections + workers - 1) / workers
	threads := make([]*thread, workers)
	for i := range threads {
		threads[i] = &thread{number: i, threads: workers, clock: c.Clock}
	}
	defer closeWorkers(threads)
	for i, t := range threads {
		end := t.closedEnd
		if s.step.Open() {
			end = t.openEnd
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
		s.recorders[0].now.latency.connect.Record(took)
	}
	var running sync.WaitGroup
	for i, t := range threads {
		t.stretch, t.recorder = s.stretch, s.recorders[i]
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

// connectAtOnce is how many connections of a database are opened side by side
// before a step.
const connectAtOnce = 8

func (s *stepRun) runBlocking(ctx context.Context) error {
	c := s.config
	b := &blocking{clock: c.Clock, arrivals: s.arrivals(), backlog: newBacklog(s.step.backlogLimit(c.Backlog))}
	for i := range s.step.Connections {
		b.sessions = append(b.sessions, c.Target.NewSession(i, s.step.Connections))
	}
	var connects []time.Duration
	if c.Target.SQL() && c.PerConnection == 0 {
		connects = connectAll(ctx, b.sessions)
	}
	finish, err := s.start(ctx, 1, s.step.Connections)
	if err != nil {
		return err
	}
	b.stretch, b.recorder = s.stretch, s.recorders[0]
	for _, took := range connects {
		b.recorder.now.latency.connect.Record(took)
	}
	b.run(context.WithoutCancel(ctx), s.step.Open())
	for _, session := range b.sessions {
		n := session.Counters()
		b.report.counters.Connects += n.Connects
		b.report.counters.Reconnects += n.Reconnects
	}
	finish()
	s.reports = append(s.reports, b.report)
	return s.collector.err
}

// connectAll opens every session's connection and returns how long each took.
func connectAll(ctx context.Context, sessions []*target.Session) []time.Duration {
	var (
		mu       sync.Mutex
		connects []time.Duration
		opening  sync.WaitGroup
	)
	places := make(chan struct{}, connectAtOnce)
	for _, s := range sessions {
		places <- struct{}{}
		opening.Go(func() {
			defer func() { <-places }()
			if took, ok := s.Connect(ctx); ok {
				mu.Lock()
				connects = append(connects, took)
				mu.Unlock()
			}
		})
	}
	opening.Wait()
	return connects
}
