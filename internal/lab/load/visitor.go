package load

import (
	"context"
	"fmt"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/flow"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// caller sends the requests of a virtual user over its connection.
type caller interface {
	Call(ctx context.Context, intended int64, call *target.Call) target.Outcome
}

var _ caller = (*target.Session)(nil)

// visitor is a virtual user of a flow. It belongs to the goroutine of its session.
type visitor struct {
	pool *pool
	via  caller
	user *flow.User
	wait func(time.Duration) bool // returns false if the run was interrupted
}

// request begins a step of an iteration and waits for its answer. The first step
// was counted when the iteration began.
func (v *visitor) request(ctx context.Context, s *target.Session, call *target.Call, intended int64, first bool) target.Outcome {
	if !first {
		v.pool.begin(s, intended)
	}
	o := v.via.Call(ctx, intended, call)
	if err := v.user.Receive(o.Err == nil); err != nil {
		o.Err = target.CheckFailed(err)
	}
	v.pool.end(s, &o)
	return o
}

// iterate runs one iteration, whose first step is due at intended. A later step is
// due when the previous one has ended and the think time after it is over. It
// returns the outcome of the last request.
func (v *visitor) iterate(ctx context.Context, s *target.Session, intended int64) target.Outcome {
	began, failed := intended, false
	v.user.Begin()
	for number := 0; ; number++ {
		o := v.request(ctx, s, v.user.Call(number), intended, number == 0)
		failed = failed || o.Err != nil
		last := number+1 == v.user.Steps() || o.Err != nil && !v.user.Proceeds(number) || !v.user.Ready(number+1)
		if last {
			v.pool.iterated(began, o.Done, failed)
		}
		if last && v.pool.isOpen {
			return o
		}
		intended = o.Done + int64(v.user.Think(number))
		if !v.pause(intended, last) && !last {
			v.pool.unfinished()
			last = true
		}
		if last {
			return o
		}
	}
}

// pause waits until a think time is over, or the step. It returns false if the step
// ends first. The think time after the last request also ends when no iteration may
// follow.
func (v *visitor) pause(until int64, last bool) bool {
	p := v.pool
	for {
		end := p.phase.end.Load()
		wait := min(until, end) - p.clock.Now()
		if wait <= 0 || last && p.phase.exhausted() {
			return until < end
		}
		if last {
			wait = min(wait, second)
		}
		p.think(+1)
		ok := v.wait(time.Duration(wait))
		if p.think(-1); !ok {
			return false
		}
	}
}

// iterations counts the iterations of a step.
type iterations struct {
	result.Iterations
	duration *histogram.Histogram
	thinking int   // users that pause now
	due      int64 // in an open loop
	short    int64 // of these, iterations that no user could begin although many users paused
}

// arrivedLocked counts an iteration that is due in an open loop, and that no user can
// begin at once if waits is set.
func (p *pool) arrivedLocked(intended int64, waits bool) {
	if intended < p.phase.from {
		return
	}
	p.iterations.due++
	if waits && float64(p.iterations.thinking) > thinkingShare*float64(len(p.users)) {
		p.iterations.short++
	}
}

// think counts the users that pause.
func (p *pool) think(change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.iterations.thinking += change
}

// iterated counts an iteration that ended within the step.
func (p *pool) iterated(began, ended int64, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := &p.iterations
	switch {
	case ended < p.phase.from:
	case ended > p.phase.end.Load():
		i.Unfinished++
	case failed:
		i.Failed++
	default:
		i.Completed++
		i.duration.Record(time.Duration(ended - began))
	}
}

// unfinished counts an iteration that the end of the step cut off.
func (p *pool) unfinished() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.iterations.Unfinished++
}

// total returns the counts for the step's total.
func (i *iterations) total() (*result.Iterations, error) {
	text, err := i.duration.Encode()
	if err != nil {
		return nil, err
	}
	i.Duration = result.HDR(text)
	return &i.Iterations, nil
}

// thinkingShare is the share of users that pause above which a lack of users is not
// the target's fault.
const thinkingShare = 0.10

// usersShort reports whether an open loop with think times had too few users.
func (s *stepRun) usersShort() bool {
	return s.config.Flow != nil && float64(s.iterations.short) > (1-sendRateMin)*float64(s.iterations.due)
}

func (s *stepRun) judgeUsers(*result.Total, *threadReport) *problem {
	if !s.usersShort() {
		return nil
	}
	return &problem{result.GeneratorLimited, fmt.Sprintf(
		"%d iterations were due while none of the %d users was free, and more than a tenth of them paused; use more --connections",
		s.iterations.short, s.step.Connections)}
}

// visit gives each session a virtual user, if there is a flow.
func (p *pool) visit(c *Config) error {
	if c.Flow == nil {
		return nil
	}
	p.iterations.duration = histogram.New()
	for i, s := range p.sessions {
		v := &visitor{pool: p, via: s, user: c.Flow.NewUser(c.Target.Host(), s.Source(), c.Seed, i)}
		p.users = append(p.users, v)
		if c.simulate != nil {
			v.via, v.wait = c.simulate()
			continue
		}
		if !c.Flow.Thinks() {
			continue
		}
		a, err := newAlarm()
		if err != nil {
			p.alarms.close()
			return fmt.Errorf("prepare user %d of %d: %w", i+1, len(p.sessions), err)
		}
		p.alarms = append(p.alarms, a)
		v.wait = a.wait
	}
	return nil
}

// alarms are those of all users.
type alarms []*alarm

// stop ends all waits, also later ones.
func (all alarms) stop() {
	for _, a := range all {
		a.stop()
	}
}

func (all alarms) close() {
	for _, a := range all {
		a.close()
	}
}
