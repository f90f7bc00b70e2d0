// Package load generates load on a target. In an open loop, requests arrive by
// the clock, independently of the target. In a closed loop, each connection sends
// its next request after the previous answer. The package counts every request
// and decides for each step whether it measured the target or something else.
//
// Latency counts from the intended start, also for an arrival that has to wait
// for a connection. The number of waiting arrivals is limited; the rest count as
// unsent errors. No slow request is left out of the figures.
//
// Package target decides what is sent and over which protocol. Run reports its
// results as records of package result. Execute is `spillway load`: it parses the
// options, runs, shows the progress and writes the result file. Of a load that several
// processes make in parts, Merge puts the results together.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"spillway/internal/lab/cores"
	"spillway/internal/lab/flow"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// Config describes a run. Target, Clock and Steps or Next are required.
type Config struct {
	Target        *target.Target
	Clock         target.Clock // the clock of Target
	Zero          int64        // time on Clock from which the starts of steps count; 0: when Run begins
	Steps         []Step
	Next          Next // decides the steps after these; nil: there are none
	Connections   int  // limit of a step from Next, and the number of one that names none
	Poisson       bool // open loops: Poisson arrivals instead of evenly spaced ones
	PerConnection int  // as in the target.Config
	Timeout       time.Duration
	Backlog       int // arrivals that may wait for a connection; 0: those of 10 s
	Workers       int // threads, for a target with an event loop; 0: DefaultWorkers
	Seed          uint64
	SLO           result.SLO
	Awake         bool         // idle CPUs of this host do not sleep
	Hosts         *cores.Meter // of the hosts on this machine, if they have cores of their own; nil: they have not
	Flow          *flow.Flow   // what users do; nil: they send the requests of Target

	simulate func() (caller, func(time.Duration) bool) // tests: users that send and wait in other ways

	abort   *abort      // of Execute; nil: no condition
	Part    target.Part // of the load that Steps were split from
	StartAt time.Time   // of a part: when the first step begins in all parts, see plannedBegin
}

// Next decides the next step of a run. previous is the total of the last step, nil for the first one, and the listener has
// seen it. more is false at the end of the run. It may wait until the target has recovered. If previous has the reason
// result.DataUsedUp, the step that it returns does not run.
type Next func(ctx context.Context, previous *result.Total) (step Step, more bool, err error)

// DefaultWorkers is half of the cores, at most 8. The other half is for programs
// on the same machine, and one thread generates more load than most targets take.
func DefaultWorkers() int { return max(1, min(runtime.GOMAXPROCS(0)/2, workersMax)) }

// workersMax is the highest default.
const workersMax = 8

// Listener receives the records of a run as they are made, from one goroutine at
// a time. Fields may be nil. An error ends the run.
type Listener struct {
	Step   func(*result.Step) error
	Second func(*Second) error       // as it passes, to show it
	Slice  func(*result.Slice) error // to record it: at once, or before the total of its step
	Total  func(*result.Total) error
	// Message receives remarks for the user. It is safe for concurrent use.
	Message func(text string)
	// Border is told when a step begins to count and when it ends, before these times as far as they are known. It is safe for
	// concurrent use and returns at once.
	Border func(time.Time)
}

func (l *Listener) message(text string) {
	if l.Message != nil {
		l.Message(text)
	}
}

// gcPercent makes the garbage collector run less often during a load. The heap is
// small and steady, so this costs a few megabytes and disturbs the pacer less.
const gcPercent = 400

// Run runs every step. When ctx ends, the current step ends early and is reported
// with the data so far, and interrupted is true.
func Run(ctx context.Context, config Config, listener Listener) (interrupted bool, err error) {
	if listener.Step == nil {
		listener.Step = func(*result.Step) error { return nil }
	}
	if listener.Total == nil {
		listener.Total = func(*result.Total) error { return nil }
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	if config.Zero == 0 {
		config.Zero = config.Clock.Now()
	}
	var previous *result.Total
	for i := 0; ; i++ {
		more, err := config.extend(ctx, i, previous)
		if ctx.Err() != nil {
			return true, nil
		}
		if err != nil || !more {
			return false, err
		}
		s := &stepRun{config: &config, step: &config.Steps[i], number: i, listener: listener}
		previous, err = s.run(ctx)
		switch {
		case errors.Is(err, errNotBegun):
			return true, nil
		case err != nil:
			return ctx.Err() != nil, fmt.Errorf("step %d: %w", i+1, err)
		}
	}
}

// extend makes sure that there is step i, if there is to be one.
func (c *Config) extend(ctx context.Context, i int, previous *result.Total) (more bool, err error) {
	usedUp := c.Flow != nil && c.Flow.UsedUp() != ""
	if i < len(c.Steps) || c.Next == nil || ctx.Err() != nil {
		return i < len(c.Steps) && !usedUp, nil
	}
	step, more, err := c.Next(ctx, previous)
	if err != nil || !more || usedUp {
		return false, err
	}
	step.Connections = min(cmp.Or(step.Connections, c.Connections), c.Connections)
	c.Steps = append(c.Steps, step)
	return true, nil
}

// tick bounds every wait, and so the delay until a thread notices the end.
const tick = int64(20_000_000)

// retryPause is how long a closed loop waits after a connection could not be
// opened. It limits the load on a dead target.
const retryPause = int64(10_000_000)

// stepRun is the state of the current step.
type stepRun struct {
	config    *Config
	step      *Step
	number    int
	listener  Listener
	delay     time.Duration // how long after its planned time the step of a part began
	collector *collector
	observers []*observer
	phase     *phase
	trend     trend         // of all threads
	pressure  time.Duration // on the host's CPUs during the step
	host      contention
	hosts     hostReading
	reports   []threadReport

	interrupted func()      // called after an interrupt has ended the phase; nil: nothing to do
	iterations  *iterations // with a flow
}

func (s *stepRun) run(ctx context.Context) (*result.Total, error) {
	c := s.config
	pressure := cpuPressure()
	var err error
	if c.Target.EventLoop() {
		err = s.runWorkers(ctx)
	} else {
		err = s.runSessions(ctx)
	}
	if err != nil {
		return nil, err
	}
	if c.Clock.Now() < s.phase.until {
		s.border(c.Clock.Now()) // the step ended by requests
	}
	after := cpuPressure()
	s.pressure, s.host = after-pressure, s.observers[0].host
	total, err := s.total()
	if err != nil {
		return nil, err
	}
	return total, s.listener.Total(total)
}

// threadReport is the result of one thread, or of all sessions, for a step.
type threadReport struct {
	usage    usage
	wall     int64 // length of the window: nanoseconds that usage, counters and paused cover
	counters target.Counters
	paused   int64 // connection-nanoseconds between a failed attempt to connect and the next
	late     int64 // arrivals that the thread could not start before the end
	err      error
}

// describe returns the record that begins the step.
func (s *stepRun) describe(start time.Duration) *result.Step {
	r := &result.Step{
		Index: s.number, Name: s.step.title(), Loop: result.LoopClosed,
		Connections: s.step.Connections, PerConnection: s.config.PerConnection,
		Duration: s.step.Duration.Seconds(), Requests: s.step.Requests, Start: start.Seconds(),
		Warmup: s.step.Warmup.Seconds(), TimeoutLimit: s.config.Timeout.Seconds(),
		ThinkTimes: s.config.Flow != nil && s.config.Flow.Thinks(), Late: s.delay.Seconds(),
	}
	if !s.step.Open() {
		return r
	}
	r.Loop, r.Arrival = result.LoopOpen, "constant"
	r.OfferedHz = s.step.Rate / float64(s.config.Part.Count())
	r.BacklogLimit = int64(s.step.backlogLimit(s.config.Backlog, s.config.Part))
	if s.config.Poisson {
		r.Arrival = "poisson"
	}
	return r
}

// arrivals returns the arrivals of the warm-up and the step, the same for every caller.
func (s *stepRun) arrivals() *Arrivals {
	if s.config.Poisson {
		return Poisson(s.step.Rate, rand.New(rand.NewPCG(s.config.Seed, uint64(s.number)+1<<32))).Part(s.config.Part)
	}
	return Even(s.step.Rate).Part(s.config.Part)
}

func (s *stepRun) report(second *Second) error {
	if s.listener.Second != nil {
		if err := s.listener.Second(second); err != nil {
			return err
		}
	}
	if s.listener.Slice == nil {
		return nil
	}
	return s.listener.Slice(&second.Slice)
}

// start creates an observer per driver and the collector, and begins the step. slots
// are the numbers of connections of the drivers. finish stops the collector.
func (s *stepRun) start(ctx context.Context, drivers []driver, slots []int) (finish func(), err error) {
	c := s.config
	s.collector = newCollector(len(drivers))
	s.collector.step, s.collector.report = s.number, s.report
	for i, d := range drivers {
		s.collector.empty <- newTally()
		s.observers = append(s.observers, &observer{
			number: i, driver: d, open: s.step.Open(), now: newTally(), served: make([]int64,
				slots[i]), full: s.collector.full, empty: s.collector.empty,
			labels: newLabels(len(c.Target.Names()), c.Seed+uint64(i)),
		})
	}
	// The clock starts after all memory is allocated.
	begin, err := s.awaitBegin(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.listener.Step(s.describe(time.Duration(begin + int64(s.step.Warmup) - c.Zero))); err != nil {
		return nil, err
	}
	if c.Part.Whole() {
		begin = c.Clock.Now()
	}
	s.phase = newPhase(begin, s.step, s.step.Warmup, len(drivers))
	if c.Flow != nil {
		s.phase.reserve = c.Flow.Take
	}
	s.collector.phase = s.phase
	for _, r := range s.observers {
		r.start(s.phase)
	}
	var collecting sync.WaitGroup
	collecting.Go(s.collector.run)
	s.border(s.phase.from)
	if s.phase.until != math.MaxInt64 {
		s.border(s.phase.until)
	}
	stopWatching := context.AfterFunc(ctx, func() {
		now := c.Clock.Now()
		s.phase.stop(now)
		if s.interrupted != nil {
			s.interrupted()
		}
		s.border(now)
	})
	stopMeter := s.meterHosts()
	return func() {
		stopWatching()
		stopMeter()
		close(s.collector.full)
		collecting.Wait()
	}, nil
}

// border tells the listener of a border of the step. at is on the run's clock.
func (s *stepRun) border(at int64) {
	if s.listener.Border != nil {
		s.listener.Border(time.Now().Add(time.Duration(at - s.config.Clock.Now())))
	}
}
