package load

import (
	"context"
	"errors"
	"testing"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// TestNext decides the steps of a run one by one, each from the total of the one before.
func TestNext(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	const warmup = 50 * time.Millisecond
	next := func(_ context.Context, previous *result.Total) (Step, bool, error) {
		switch {
		case previous == nil:
			return Step{Name: "first", Requests: 200, Warmup: warmup}, true, nil
		case previous.Step == 0:
			return Step{Connections: 5, Requests: previous.Done + 1}, true, nil
		case previous.Step == 1:
			return Step{Connections: 2, Rate: 500, Requests: 50, Name: "third"}, true, nil
		}
		return Step{}, false, nil
	}
	r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Next: next, Connections: 3})
	if len(r.totals) != 3 || r.interrupted {
		t.Fatalf("%d steps, interrupted %v, want 3", len(r.totals), r.interrupted)
	}
	for i, want := range []struct {
		name        string
		connections int
		done        int64
		warmup      time.Duration
	}{{"first", 3, 200, warmup}, {"3 connections", 3, 201, 0}, {"third", 2, 50, 0}} {
		s, total := &r.steps[i], &r.totals[i]
		if s.Index != i || s.Name != want.name || s.Connections != want.connections || total.Done != want.done || s.Warmup != want.warmup.Seconds() {
			t.Errorf("step %d: %+v with %d answered, want %+v", i, *s, total.Done, want)
		}
	}
}

// TestNextEnds ends a run where the next step is decided: by an interrupt, and by an error.
func TestNextEnds(t *testing.T) {
	t.Parallel()
	_, tg, clock := nullTarget(t, target.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	r := runLoad(t, ctx, Config{Target: tg, Clock: clock, Connections: 1, Next: func(ctx context.Context, previous *result.Total) (Step, bool, error) {
		if previous == nil {
			return Step{Requests: 100}, true, nil
		}
		cancel()
		return Step{}, false, ctx.Err()
	}})
	if len(r.totals) != 1 || !r.interrupted {
		t.Errorf("%d steps, interrupted %v, want an interrupt after 1", len(r.totals), r.interrupted)
	}
	broken := errors.New("broken")
	interrupted, err := Run(t.Context(), Config{Target: tg, Clock: clock, Next: func(context.Context, *result.Total) (Step, bool, error) {
		return Step{}, true, broken
	}}, Listener{})
	if interrupted || !errors.Is(err, broken) {
		t.Errorf("interrupted %v: %v", interrupted, err)
	}
}
