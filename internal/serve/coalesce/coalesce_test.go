package coalesce

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestThousandCallersShareOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[int](Limits{Callers: 2000})
		defer g.Close()
		var calls, sharers atomic.Int64
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				v, shared, err := g.Do(t.Context(), "k", func(context.Context) (int, error) {
					calls.Add(1)
					<-time.After(time.Second) // virtual: every caller is waiting by then
					return 42, nil
				})
				if v != 42 || err != nil {
					t.Errorf("Do = %d, %v; want 42", v, err)
				}
				if shared {
					sharers.Add(1)
				}
			})
		}
		all.Wait()
		if calls.Load() != 1 || sharers.Load() != 999 {
			t.Errorf("%d calls, %d sharers; want 1 and 999", calls.Load(), sharers.Load())
		}
		if now, shared := g.Waiting(); now != 0 || shared != 999 {
			t.Errorf("Waiting = %d, %d; want 0, 999", now, shared)
		}
	})
}

func TestKeysDoNotShare(t *testing.T) {
	t.Parallel()
	g := New[string](Limits{Callers: 10})
	defer g.Close()
	for i := range 5 {
		key := strconv.Itoa(i)
		v, shared, err := g.Do(t.Context(), key, func(context.Context) (string, error) { return key, nil })
		if v != key || shared || err != nil {
			t.Errorf("Do(%q) = %q, %v, %v", key, v, shared, err)
		}
	}
}

func TestLastWaiterLeavingCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[int](Limits{Callers: 10})
		defer g.Close()
		cancelled := make(chan struct{})
		fn := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			close(cancelled)
			return 0, ctx.Err()
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		long, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for _, ctx := range []context.Context{short, long} {
			all.Go(func() {
				if _, _, err := g.Do(ctx, "k", fn); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("err = %v, want the caller's deadline", err)
				}
			})
		}
		<-time.After(1500 * time.Millisecond)
		select {
		case <-cancelled:
			t.Error("cancelled while a caller still waits")
		default:
		}
		all.Wait()
		<-cancelled
	})
}

// TestNewcomerWaitsForTheCancelled: a caller that arrives while a cancelled call still runs
// waits for its end and starts a new one. It never joins the cancelled call.
func TestNewcomerWaitsForTheCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[int](Limits{Callers: 100})
		defer g.Close()
		var running, calls atomic.Int64
		fn := func(ctx context.Context) (int, error) {
			if running.Add(1) > 1 {
				t.Error("two calls at once")
			}
			defer running.Add(-1)
			calls.Add(1)
			select {
			case <-ctx.Done():
				<-time.After(300 * time.Millisecond) // the database takes time to cancel
				return 0, ctx.Err()
			case <-time.After(time.Second):
				return 42, nil
			}
		}
		first, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, _, err := g.Do(first, "k", fn); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			if _, _, err := g.Do(short, "k", fn); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller that left before the cancelled call had ended: %v", err)
			}
		})
		for range 10 {
			all.Go(func() {
				if v, _, err := g.Do(t.Context(), "k", fn); v != 42 || err != nil {
					t.Errorf("a newcomer: %d, %v", v, err)
				}
			})
		}
		all.Wait()
		if now, shared := g.Waiting(); calls.Load() != 2 || now != 0 || shared != 9 {
			t.Errorf("%d calls, %d wait, %d shared; want 2, 0, 9", calls.Load(), now, shared)
		}
	})
}

func TestFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[int](Limits{Callers: 1})
		release := make(chan struct{})
		var first sync.WaitGroup
		first.Go(func() {
			_, _, _ = g.Do(t.Context(), "a", func(context.Context) (int, error) { <-release; return 0, nil })
		})
		synctest.Wait()
		if _, _, err := g.Do(t.Context(), "b", nil); !errors.Is(err, ErrFull) {
			t.Errorf("err = %v, want ErrFull", err)
		}
		close(release)
		first.Wait()
		g.Close()
		if _, _, err := g.Do(t.Context(), "a", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("after Close: err = %v, want Canceled", err)
		}
	})
}

// TestShort: the first caller runs the call itself, with its own context, and others share its result. If its context ends it, they
// start another call.
func TestShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[int](Limits{Callers: 11})
		g.Took(0, nil)
		calls := 0
		fn := func(ctx context.Context) (int, error) {
			calls++
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Second):
				return 42, nil
			}
		}
		for _, limit := range []time.Duration{time.Hour, time.Millisecond} {
			calls = 0
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			var all sync.WaitGroup
			all.Go(func() {
				if v, shared, err := g.Do(ctx, "k", fn); shared || (err == nil) != (v == 42) || !errors.Is(err, ctx.Err()) {
					t.Errorf("the first: %d, %v, %v", v, shared, err)
				}
			})
			synctest.Wait()
			for range 10 {
				all.Go(func() {
					if v, _, err := g.Do(t.Context(), "k", fn); v != 42 || err != nil {
						t.Errorf("another one: %d, %v", v, err)
					}
				})
			}
			synctest.Wait()
			if _, _, err := g.Do(t.Context(), "l", fn); !errors.Is(err, ErrFull) {
				t.Errorf("one more than may wait: %v", err)
			}
			all.Wait()
			cancel()
			if now, _ := g.Waiting(); now != 0 || (calls == 1) != (limit == time.Hour) || calls > 2 || len(g.calls) != 0 {
				t.Errorf("%d calls, %d wait; %d are left", calls, now, len(g.calls))
			}
		}
		var last sync.WaitGroup
		last.Go(func() { _, _, _ = g.Do(t.Context(), "k", fn) })
		synctest.Wait()
		start := time.Now()
		if g.Close(); time.Since(start) != time.Second {
			t.Errorf("Close has waited for %v", time.Since(start))
		}
		last.Wait()
		if _, _, err := g.Do(t.Context(), "k", fn); !errors.Is(err, context.Canceled) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// One class fills its own room only, and its calls take turns.
func TestClassesAreBoundedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New[int](Limits{Callers: 10, Calls: 2})
		defer g.Close()
		var all sync.WaitGroup
		var mu sync.Mutex
		var running, most int
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		var full atomic.Int64
		for i := range 15 {
			all.Go(func() {
				_, _, err := g.DoClass(t.Context(), "bad", "bad"+strconv.Itoa(i), func(context.Context) (int, error) {
					count(1)
					defer count(-1)
					<-time.After(time.Second)
					return 0, nil
				})
				if errors.Is(err, ErrFull) {
					full.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		if v, _, err := g.DoClass(t.Context(), "good", "good", func(context.Context) (int, error) { return 7, nil }); v != 7 || err != nil || time.Since(start) > 0 {
			t.Errorf("the other class: %d, %v after %v", v, err, time.Since(start))
		}
		all.Wait()
		if full.Load() != 5 || most != 2 || time.Since(start) != 5*time.Second {
			t.Errorf("%d refused, %d at once, %v; want 5, 2, 5s", full.Load(), most, time.Since(start))
		}
		if len(g.classes) != 0 {
			t.Errorf("%d classes are left", len(g.classes))
		}
	})
}
