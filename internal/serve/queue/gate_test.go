package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// crowd has clients run statements that take the same time through an entrance, one after
// the other, until a point in time. A refused client retries after RetryAfter.
type crowd struct {
	entrance *Entrance
	takes    time.Duration
	within   time.Duration

	answered, refused, late atomic.Int64

	mu      sync.Mutex
	longest time.Duration // wait of a refused statement
}

func (c *crowd) run(group *sync.WaitGroup, clients int, until time.Time) {
	for range clients {
		group.Go(func() {
			for time.Now().Before(until) {
				begin := time.Now()
				pause := c.ask()
				if pause > 0 {
					c.refused.Add(1)
					c.mu.Lock()
					c.longest = max(c.longest, time.Since(begin))
					c.mu.Unlock()
					<-time.After(pause)
				}
			}
		})
	}
}

// ask runs one statement and returns how long to pause.
func (c *crowd) ask() time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), max(c.within, time.Nanosecond))
	if c.within == 0 {
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	leave, err := c.entrance.Enter(ctx, c.within)
	var over *Overload
	switch {
	case errors.As(err, &over):
		return over.RetryAfter
	case err != nil:
		c.late.Add(1)
		return time.Millisecond
	}
	defer leave()
	select {
	case <-time.After(c.takes):
		c.answered.Add(1)
	case <-ctx.Done():
		c.late.Add(1)
	}
	return 0
}

// TestGateUnderCrowd: 400 clients on a statement of 50 ms use all places and waste none of
// them on statements that are cancelled. Those that cannot be answered in time are refused
// before it is over. One client of another entrance waits for one turn only.
func TestGateUnderCrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := NewGate(5)
		many := &crowd{entrance: gate.Entrance(), takes: 50 * time.Millisecond, within: 2 * time.Second}
		one := &crowd{entrance: gate.Entrance(), takes: 5 * time.Millisecond, within: 2 * time.Second}
		const lasts = 20 * time.Second
		until := time.Now().Add(lasts)
		var group sync.WaitGroup
		many.run(&group, 400, until)
		one.run(&group, 1, until)
		group.Wait()
		// 4 places, of which the single client has at most one for 5 of 17.5 ms.
		if n := many.answered.Load(); n < 70*20 {
			t.Errorf("%d answers in %v", n, lasts)
		}
		if n := many.late.Load(); n > 0 {
			t.Errorf("%d statements were too late", n)
		}
		if many.longest >= many.within {
			t.Errorf("a refused statement waited %v, want less than %v", many.longest, many.within)
		}
		if many.refused.Load() == 0 || one.refused.Load()+one.late.Load() != 0 {
			t.Errorf("refused: %d of the crowd, %d and %d of the client beside it", many.refused.Load(), one.refused.Load(), one.late.Load())
		}
		if n := one.answered.Load(); n < int64(lasts/(60*time.Millisecond)) {
			t.Errorf("%d answers to the client beside the crowd", n)
		}
		if len(gate.passes) != 0 || len(gate.turns) != 0 {
			t.Errorf("afterwards: %d places taken, %d entrances in turns", len(gate.passes), len(gate.turns))
		}
	})
}

// TestGateRefusesAtOnce fills the gate and its queue. As soon as statements have been late for an
// eighth of their time, one that cannot end in time is refused without a wait, and says when to
// retry.
func TestGateRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := NewGate(2).Entrance()
		e.late, e.latest = time.Now().Add(-time.Minute), time.Now()
		run := &crowd{entrance: e, takes: 100 * time.Millisecond, within: time.Second}
		run.ask() // its time is known now
		var group sync.WaitGroup
		for range 9 { // the last one ends after 900 ms
			group.Go(func() { run.ask() })
		}
		synctest.Wait()
		if wait := e.PredictedWait(); wait != time.Second {
			t.Errorf("the predicted wait is %v", wait)
		}
		_, err := e.Enter(t.Context(), 999*time.Millisecond)
		var over *Overload
		if !errors.As(err, &over) || !errors.Is(err, ErrOverloaded) || over.Limit != LimitTimeout || over.Wait != time.Second || over.RetryAfter != 500*time.Millisecond {
			t.Errorf("%v, %+v", err, over)
		}
		group.Wait()
		if n := run.answered.Load(); n != 10 {
			t.Errorf("%d of 10 answered", n)
		}
	})
}

// TestGateForgivesAMoment: 1000 clients on a statement of 1 ms are all answered within their time,
// although the first statement on each connection, and all in a moment now and then, take 300 ms.
func TestGateForgivesAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		e := NewGate(5).Entrance()
		var group sync.WaitGroup
		for range 1000 {
			group.Go(func() {
				for time.Since(start) < 20*time.Second {
					leave, err := e.Enter(t.Context(), 2*time.Second)
					if err != nil {
						t.Error(err)
						return
					}
					pause := time.Since(start) % (5 * time.Second)
					<-time.After(max(time.Millisecond, 300*time.Millisecond-pause))
					leave()
				}
			})
		}
		group.Wait()
	})
}

// TestGateLeavesAPlace: an entrance whose statements are slow, or whose first ones run, leaves one
// place to another that is in use. Alone, or if they are fast, it takes all places.
func TestGateLeavesAPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := NewGate(5)
		until := time.Now().Add(time.Minute)
		slow := &crowd{entrance: gate.Entrance(), takes: 5 * time.Second}
		fast := &crowd{entrance: gate.Entrance(), takes: 5 * time.Millisecond, within: 10 * time.Millisecond}
		var group sync.WaitGroup
		fast.ask()
		slow.run(&group, 60, until)
		synctest.Wait()
		if n := gate.running(); n != 3 {
			t.Errorf("slow statements hold %d of 4 places", n)
		}
		fast.run(&group, 1, until.Add(-20*time.Second))
		<-time.After(time.Until(until) - 3*time.Second)
		if n := gate.running(); n != 4 {
			t.Errorf("alone again, slow statements hold %d of 4 places", n)
		}
		group.Wait()
		if n := fast.answered.Load(); n < 8000 {
			t.Errorf("%d answers beside slow statements; %d refused, %d late", n, fast.refused.Load(), fast.late.Load())
		}
		until = time.Now().Add(time.Second)
		fast.within = time.Second
		fast.run(&group, 60, until)
		synctest.Wait()
		if n := gate.running(); n != 4 {
			t.Errorf("fast statements have %d of 4 places", n)
		}
		group.Wait()
	})
}

// running returns how many statements run.
func (g *Gate) running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.passes)
}

// TestGateDropsTheAbandoned: a statement whose caller has left does not run when its turn comes.
func TestGateDropsTheAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := NewGate(2).Entrance()
		leave, _ := e.Enter(t.Context(), 0)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if _, err := e.Enter(ctx, 0); !errors.Is(err, context.Canceled) {
					t.Errorf("admitted, or %v", err)
				}
			})
		}
		synctest.Wait()
		cancel() // both may be chosen
		leave()
		group.Wait()
		if len(e.gate.passes) != 0 || e.waiting.Len() != 0 {
			t.Errorf("afterwards: %d inside, %d waiting", len(e.gate.passes), e.waiting.Len())
		}
	})
}

// TestGateLearnsAgain: statements that took longer than they may are not refused forever
// once they are fast, although others keep the gate full.
func TestGateLearnsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := NewGate(3)
		until := time.Now().Add(time.Minute)
		var group sync.WaitGroup
		(&crowd{entrance: gate.Entrance(), takes: 10 * time.Millisecond}).run(&group, 20, until)
		slow := &crowd{entrance: gate.Entrance(), takes: time.Hour, within: time.Second}
		for range 5 {
			slow.ask()
		}
		fast := &crowd{entrance: slow.entrance, takes: 5 * time.Millisecond, within: time.Second}
		fast.run(&group, 5, until)
		group.Wait()
		if n := fast.answered.Load(); n < 1000 {
			t.Errorf("%d answers in a minute", n)
		}
	})
}

// TestGateProperty has callers of several entrances enter, leave and withdraw at random
// times. Never are more inside than there are places, nobody waits beside a free place, each
// entrance keeps the order of its callers, and no place is lost.
func TestGateProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		connections := rapid.IntRange(0, 5).Draw(rt, "connections")
		callers := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) caller {
			return caller{
				entrance: rapid.IntRange(0, 2).Draw(t, "entrance"),
				arrives:  time.Duration(rapid.IntRange(0, 30).Draw(t, "arrives")) * time.Millisecond,
				patience: time.Duration(rapid.IntRange(0, 30).Draw(t, "patience")) * time.Millisecond,
				takes:    time.Duration(rapid.IntRange(0, 9).Draw(t, "takes")) * time.Millisecond,
				within:   time.Duration(rapid.IntRange(0, 20).Draw(t, "within")) * time.Millisecond,
			}
		}), 0, 60).Draw(rt, "callers")
		var err error
		synctest.Test(t, func(*testing.T) { err = runCallers(NewGate(connections), callers) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

type caller struct {
	entrance                         int
	arrives, patience, takes, within time.Duration
}

// admission is when a caller was admitted and when it had arrived.
type admission struct{ at, arrived time.Duration }

func runCallers(gate *Gate, callers []caller) error {
	entrances := []*Entrance{gate.Entrance(), gate.Entrance(), gate.Entrance()}
	var inside atomic.Int64
	var mu sync.Mutex
	var faults []error
	fault := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, fmt.Errorf(format, args...))
	}
	admitted := make([][]admission, len(entrances))
	start := time.Now()
	var group sync.WaitGroup
	for i, c := range callers {
		c.arrives += time.Duration(i) * time.Microsecond // distinct
		group.Go(func() {
			<-time.After(c.arrives)
			ctx, cancel := context.WithTimeout(context.Background(), c.patience)
			defer cancel()
			leave, err := entrances[c.entrance].Enter(ctx, c.within)
			if err != nil {
				if time.Since(start) < c.arrives+c.patience && !errors.Is(err, ErrOverloaded) || c.within == 0 && errors.Is(err, ErrOverloaded) {
					fault("%+v: %w", c, err)
				}
				return
			}
			mu.Lock()
			admitted[c.entrance] = append(admitted[c.entrance], admission{time.Since(start), c.arrives})
			mu.Unlock()
			if n := inside.Add(1); n > int64(gate.places) {
				fault("%d inside, %d places", n, gate.places)
			}
			<-time.After(c.takes)
			inside.Add(-1)
			leave()
			gate.mu.Lock()
			for _, e := range entrances {
				if e.roomLocked(time.Now()) && e.waiting.Len() > 0 {
					fault("%d wait beside a free place", e.waiting.Len())
				}
			}
			gate.mu.Unlock()
		})
	}
	group.Wait()
	for i, e := range entrances {
		if e.inside != 0 || e.waiting.Len() != 0 {
			fault("afterwards: %d inside and %d waiting", e.inside, e.waiting.Len())
		}
		slices.SortFunc(admitted[i], func(a, b admission) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.arrived, b.arrived)) })
		if !slices.IsSortedFunc(admitted[i], func(a, b admission) int { return cmp.Compare(a.arrived, b.arrived) }) {
			fault("admitted out of order: %v", admitted[i])
		}
	}
	if len(gate.passes) != 0 {
		fault("%d places are lost", len(gate.passes))
	}
	return errors.Join(faults...)
}
