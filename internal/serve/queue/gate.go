package queue

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Gate limits the statements that run at once on one database, so that a connection stays
// free for what must not wait, such as the refreshes of feeds. Each feed and each query has an
// Entrance of its own. Entrances with waiting statements take turns, so that a crowd at one
// of them does not hold up the others. While several are in use, one whose statements are slow
// leaves one place to the others. Use NewGate. Gates and entrances may be used concurrently.
type Gate struct {
	places int

	mu     sync.Mutex // guards what follows and the entrances
	passes []*pass    // of the statements that run; at most places
	turns  []*Entrance
	last   *Entrance // that was entered
	mixed  time.Time // when last was another one the last time
	lender *Entrance // of Lend
}

// NewGate returns a gate for a pool of that many connections. It admits one statement fewer,
// but at least one.
func NewGate(connections int) *Gate {
	g := &Gate{places: max(connections-1, 1)}
	g.lender = g.Entrance()
	return g
}

// Entrance is where the statements of one feed or query wait. They are admitted in the order
// of their arrival. A nil Entrance is always open.
type Entrance struct {
	gate *Gate

	// Guarded by Gate.mu:
	waiting list.List // of *pass
	inside  int       // statements that run
	inTurns bool      // it is in Gate.turns, perhaps without waiting statements
	mean    time.Duration
	late    time.Time // since when statements are predicted to be late; zero: they are not
	latest  time.Time // when one was the last time
}

// pass is one statement, waiting or running.
type pass struct {
	entrance *Entrance
	arrived  time.Time
	within   time.Duration // from arrival to end; 0: any time
	began    time.Time     // when it was admitted
	turn     chan struct{} // closed when it is admitted or refused; nil: it need not wait
	refusal  error         // set before turn is closed; nil: it is admitted
	reclaim  func()        // of Lend
}

// Entrance returns a new entrance.
func (g *Gate) Entrance() *Entrance { return &Entrance{gate: g} }

// Enter waits until the statement may run. The caller then must call leave, once. If ctx has
// ended by then, the statement counts as cancelled.
//
// within is the time for waiting and running together; 0 means any time. If statements are
// predicted to need more, for an eighth of that time, Enter returns an *Overload: at once, or
// when the statements before it prove to be slower than they were. A statement that is the
// only one of its entrance is never refused, so that the prediction does not rest on old
// observations forever. If ctx ends before the statement runs, the error wraps ctx's.
func (e *Entrance) Enter(ctx context.Context, within time.Duration) (leave func(), err error) {
	if e == nil {
		return func() {}, nil
	}
	now := time.Now()
	return e.enter(ctx, now, &pass{entrance: e, arrived: now, within: within})
}

// Lend is Enter for a connection whose statements pass no gate. While statements wait that do, half of the places at most are lent, and
// they call reclaim, which must not call the gate.
func (e *Entrance) Lend(ctx context.Context, reclaim func()) (giveBack func(), err error) {
	if e == nil {
		return func() {}, nil
	}
	return e.gate.lender.enter(ctx, time.Now(), &pass{entrance: e.gate.lender, reclaim: reclaim})
}

// Reclaimed returns how many places are lent that statements wait for: negative if more could be, math.MinInt if none waits.
func (e *Entrance) Reclaimed() int {
	if e == nil {
		return 0
	}
	e.gate.mu.Lock()
	defer e.gate.mu.Unlock()
	return e.gate.reclaimedLocked()
}

func (g *Gate) reclaimedLocked() int {
	if slices.ContainsFunc(g.turns, func(e *Entrance) bool { return e != g.lender && e.waiting.Len() > 0 }) {
		return g.lender.inside - g.places/2
	}
	return math.MinInt
}

func (e *Entrance) enter(ctx context.Context, now time.Time, p *pass) (leave func(), err error) {
	g := e.gate
	leave = func() { g.leave(p, ctx.Err() == nil) }
	g.mu.Lock()
	if e != g.lender {
		if g.last != e && g.last != nil {
			g.mixed = now
		}
		g.last = e
	}
	if e.waiting.Len() == 0 && e.roomLocked(now) {
		g.admitLocked(p, now)
		g.mu.Unlock()
		return leave, nil
	}
	if wait := e.predictLocked(now, e.waiting.Len()); e.overloadedLocked(now, p, wait) && e.inside+e.waiting.Len() > 0 {
		g.mu.Unlock()
		return nil, Overtime(wait, p.within)
	}
	p.turn = make(chan struct{})
	place := e.waiting.PushBack(p)
	g.lineUpLocked(e)
	for _, other := range g.passes {
		if other.reclaim != nil && g.reclaimedLocked() > 0 {
			other.reclaim()
		}
	}
	g.mu.Unlock()

	select {
	case <-p.turn:
		if p.refusal != nil {
			return nil, p.refusal
		}
		if ctx.Err() == nil {
			return leave, nil
		}
	case <-ctx.Done():
	}
	g.withdraw(p, place)
	return nil, fmt.Errorf("wait for a free connection: %w", ctx.Err())
}

const (
	slowStatement = 100 * time.Millisecond // the mean time from which the statements of an entrance are slow
	mixedFor      = 10 * time.Second       // for so long, slow ones leave a place to another entrance
)

// roomLocked reports whether there is a place for one more statement of the entrance.
func (e *Entrance) roomLocked(now time.Time) bool {
	g := e.gate
	switch free := g.places - len(g.passes); {
	case e == g.lender && g.reclaimedLocked() >= 0:
		return false
	case free != 1 || e.inside == 0:
		return free > 0
	default:
		fast := e.mean > 0 && e.mean < slowStatement
		return fast || now.Sub(g.mixed) > mixedFor
	}
}

// late reports whether a statement that needs so long from its arrival is not to be run.
func (p *pass) late(needs time.Duration) bool { return p.within > 0 && needs > p.within }

// overloadedLocked notes how long a statement needs from its arrival, and reports whether it and
// those before it were predicted to be late for an eighth of their time. A moment in which all
// statements are slow, as on new connections, is too short for that.
func (e *Entrance) overloadedLocked(now time.Time, p *pass, needs time.Duration) bool {
	late := p.late(needs)
	switch {
	case !late && needs < p.within/2:
		e.late = time.Time{}
	case late && (e.late.IsZero() || now.Sub(e.latest) > p.within):
		e.late = now
	}
	if late {
		e.latest = now
	}
	return late && e.overloadedFor(now, p.within/8)
}

// overloadedFor reports whether statements have been predicted to be late for so long.
func (e *Entrance) overloadedFor(now time.Time, d time.Duration) bool {
	return !e.late.IsZero() && now.Sub(e.late) >= d
}

// Lateness notes since when statements that pass no gate are predicted to be late.
type Lateness struct{ since time.Time }

// Overloaded reports whether a statement is predicted to be late, and those before it were for an eighth of their time.
func (l *Lateness) Overloaded(now time.Time, wait, within time.Duration) bool {
	if wait <= within {
		l.since = time.Time{}
	} else if l.since.IsZero() {
		l.since = now
	}
	return wait > within && now.Sub(l.since) >= within/8
}

// Overtime returns the error of a statement that is predicted to take too long.
func Overtime(wait, within time.Duration) *Overload {
	return &Overload{Limit: LimitTimeout, Wait: wait, RetryAfter: Limits{Wait: within}.retryAfter(wait)}
}

// PredictedWait returns how long a statement that arrives now would wait and run, as far as
// earlier ones show.
func (e *Entrance) PredictedWait() time.Duration {
	if e == nil {
		return 0
	}
	e.gate.mu.Lock()
	defer e.gate.mu.Unlock()
	return e.predictLocked(time.Now(), e.waiting.Len())
}

// predictLocked returns how long a statement will wait and run if ahead others wait before it
// at its entrance. It adds up the work that comes first: the rest of what runs, what waits
// ahead, and what other entrances get in as many turns.
func (e *Entrance) predictLocked(now time.Time, ahead int) time.Duration {
	g := e.gate
	if ahead == 0 && e.roomLocked(now) {
		return e.mean
	}
	var work time.Duration
	for _, p := range g.passes {
		work += p.rest(now)
	}
	work += time.Duration(ahead) * e.mean
	for _, other := range g.turns {
		if other != e {
			work += time.Duration(min(other.waiting.Len(), ahead+1)) * other.mean
		}
	}
	return work/time.Duration(g.places) + e.mean
}

// rest returns how long a running statement is expected to go on. One that has exceeded the
// mean is expected to take as long again: the database may be slow now.
func (p *pass) rest(now time.Time) time.Duration {
	age := now.Sub(p.began)
	if p.reclaim != nil {
		return 0
	}
	if age < p.entrance.mean {
		return p.entrance.mean - age
	}
	return age
}

func (g *Gate) admitLocked(p *pass, now time.Time) {
	p.began = now
	p.entrance.inside++
	g.passes = append(g.passes, p)
	if p.turn != nil {
		close(p.turn)
	}
}

// lineUpLocked has an entrance with waiting statements take turns with the others.
func (g *Gate) lineUpLocked(e *Entrance) {
	if !e.inTurns {
		e.inTurns = true
		g.turns = append(g.turns, e)
	}
}

// leave frees a place. completed is false if the statement was cancelled.
func (g *Gate) leave(p *pass, completed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if p.reclaim == nil {
		p.entrance.observeLocked(now.Sub(p.began), completed)
	}
	p.entrance.inside--
	i := slices.Index(g.passes, p)
	g.passes = slices.Delete(g.passes, i, i+1)
	g.fillLocked(now)
	p.entrance.shedLocked(now)
}

// gateWeight is the weight of the newest statement in the mean of an entrance.
const gateWeight = 0.2

// observeLocked adds the time of a statement to the mean. A statement that was cancelled
// early says only that it would have taken longer.
func (e *Entrance) observeLocked(took time.Duration, completed bool) {
	switch {
	case !completed && took < cmp.Or(e.mean, slowStatement):
	case e.mean == 0:
		e.mean = took
	default:
		e.mean += time.Duration(gateWeight * float64(took-e.mean))
	}
}

// fillLocked admits waiting statements to the free places.
func (g *Gate) fillLocked(now time.Time) {
	for i := 0; i < len(g.turns) && len(g.passes) < g.places; {
		e := g.turns[i]
		if !e.roomLocked(now) {
			i++
			continue
		}
		g.turns = slices.Delete(g.turns, i, i+1)
		e.inTurns = false
		if p := e.nextLocked(now); p != nil {
			g.admitLocked(p, now)
		}
		if e.waiting.Len() > 0 {
			g.lineUpLocked(e)
		}
	}
}

// nextLocked removes the first waiting statement and returns it; nil if there is none. While the
// entrance is overloaded, it refuses those that would not end in time, unless no other statement
// of the entrance runs.
func (e *Entrance) nextLocked(now time.Time) *pass {
	for first := e.waiting.Front(); first != nil; first = e.waiting.Front() {
		p := e.waiting.Remove(first).(*pass)
		needs := now.Sub(p.arrived) + e.mean
		if !p.late(needs) || e.inside == 0 || !e.overloadedFor(now, p.within/8) {
			return p
		}
		p.refuse(needs)
	}
	return nil
}

// shedLocked refuses waiting statements, the last one first, until the last one is predicted
// to end in time.
func (e *Entrance) shedLocked(now time.Time) {
	for last := e.waiting.Back(); last != nil; last = e.waiting.Back() {
		p, ahead := last.Value.(*pass), e.waiting.Len()-1
		needs := now.Sub(p.arrived) + e.predictLocked(now, ahead)
		if !e.overloadedLocked(now, p, needs) || e.inside+ahead == 0 {
			return
		}
		e.waiting.Remove(last)
		p.refuse(needs)
	}
}

func (p *pass) refuse(needs time.Duration) {
	p.refusal = Overtime(needs, p.within)
	close(p.turn)
}

// withdraw removes a statement whose caller has left while it waited, or frees its place if
// it was admitted at the same time.
func (g *Gate) withdraw(p *pass, place *list.Element) {
	g.mu.Lock()
	select {
	case <-p.turn:
		admitted := p.refusal == nil
		g.mu.Unlock()
		if admitted {
			g.leave(p, false)
		}
	default:
		p.entrance.waiting.Remove(place)
		g.mu.Unlock()
	}
}
