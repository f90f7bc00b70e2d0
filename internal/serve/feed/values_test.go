package feed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// byCity returns testConfig with a parameter and room for a number of windows.
func byCity(windows int) Config {
	cfg := testConfig()
	cfg.Params = []param.Param{{Name: "city", Type: param.Text}}
	cfg.WindowsMax, cfg.ValueCalls = windows, 1
	return cfg
}

// windowOf returns the window of a city, or nil.
func windowOf(f *Feed, city string) *window {
	return (*f.windows.Load())[string(param.AppendArgs(nil, []string{city}))]
}

func TestWindowsPerParameter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := Open(byCity(3), newTable(500))
		defer f.Close()
		for _, city := range []string{"a", "b", "a", "c", "a", "d", "d", "d"} { // b goes
			get(t, f, Request{Args: []string{city}})
			<-time.After(time.Second)
		}
		if s := f.Stats(); s.Windows != 3 || s.Evictions != 1 || s.WindowPages != 6 || s.DatabasePages != 2 {
			t.Errorf("%+v; want 3 windows, 1 eviction, 6 pages from windows", s)
		}
		if windowOf(f, "b") != nil {
			t.Error("b is still there, the window least asked for")
		}
		if _, err := f.Page(t.Context(), time.Now(), Request{}); !errors.Is(err, ErrRequest) {
			t.Errorf("without the parameter: %v", err)
		}
	})
}

// More values than windows are asked for in turn. The windows stay, the value that is asked
// for most gets one, and the others are read from the database.
func TestFrequentValuesKeepWindows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := Open(byCity(3), newTable(500))
		defer f.Close()
		for range 50 {
			for city := range 6 {
				get(t, f, Request{Args: []string{strconv.Itoa(city)}})
			}
			<-time.After(10 * time.Millisecond)
		}
		if s := f.Stats(); s.Evictions > 0 || windowOf(f, "0") == nil {
			t.Errorf("%d evictions among values asked for equally often", s.Evictions)
		}
		for range 200 {
			get(t, f, Request{Args: []string{"5"}})
			<-time.After(10 * time.Millisecond)
		}
		_, p := get(t, f, Request{Args: []string{"5"}})
		if s := f.Stats(); p.Source != FromWindow || s.Evictions != 1 {
			t.Errorf("the value asked for most: source %v, %d evictions", p.Source, s.Evictions)
		}
	})
}

// Pages of a value without a window are the same as with one, and requests that come together
// share a statement.
func TestPagesWithoutWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(byCity(1), tab)
		defer f.Close()
		for range 100 {
			get(t, f, Request{Args: []string{"hot"}})
		}
		for _, r := range []Request{{}, {Limit: 37}, {Offset: 120, Limit: 100}, {Offset: 200}, {Before: string(appendCursor(nil, f.fingerprint, key(tab.newest()[9])))}} {
			first, limit := r.Offset, r.Limit
			if r.Before != "" {
				first = 10
			}
			if limit == 0 {
				limit = 10
			}
			r.Args = []string{"cold"}
			got, p := get(t, f, r)
			if want := tab.newest()[first : first+limit]; fmt.Sprint(got) != fmt.Sprint(want) || p.Source != FromDatabase || p.Next == "" {
				t.Errorf("%+v: %v, want %v; next %q", r, got, want, p.Next)
			}
		}
		if _, err := f.Page(t.Context(), time.Now(), Request{Args: []string{"cold"}, Offset: 201}); !errors.Is(err, ErrCounting) {
			t.Errorf("an offset that needs a window: %v", err)
		}
		before := f.Stats().Refreshes
		tab.set(func(tab *table) { tab.latency, tab.reads = time.Second, 0 })
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				if _, err := f.Page(t.Context(), time.Now(), Request{Args: []string{"shared"}, Offset: i % 5}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := tab.reads - int(f.Stats().Refreshes-before); n != 1 {
			t.Errorf("%d statements for 300 requests", n)
		}
	})
}

// A window with waiting requests is never evicted, however often others are asked for.
func TestWaitingRequestsKeepTheirWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.values = func(ctx context.Context, args []string) error {
			if args[0] == "slow" {
				select {
				case <-time.After(1900 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}
		f := Open(byCity(1), tab)
		defer f.Close()
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, p := get(t, f, Request{Args: []string{"slow"}}); p.Source != FromWindow {
				t.Errorf("answered from %v", p.Source)
			}
		})
		synctest.Wait()
		for range 180 {
			get(t, f, Request{Args: []string{"hot"}})
			<-time.After(10 * time.Millisecond)
		}
		if windowOf(f, "slow") == nil || f.Stats().Evictions > 0 {
			t.Error("the window is gone while a request waits for it")
		}
		waiting.Wait()
	})
}

// One value whose statement hangs gets as many requests as may wait. Other values are
// answered, theirs are not refused, and an unused window goes to rest.
func TestBadValueRefusesNobodyElse(t *testing.T) {
	t.Parallel()
	for name, windows := range map[string]int{"with a window": 3, "without a window": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tab := newTable(500)
				tab.values = func(ctx context.Context, args []string) error {
					if args[0] == "bad" {
						<-ctx.Done()
					}
					return ctx.Err()
				}
				f := Open(byCity(windows), tab)
				defer f.Close()
				for _, city := range []string{"a", "b"} {
					get(t, f, Request{Args: []string{city}})
				}
				ctx, leave := context.WithCancel(t.Context())
				var bad sync.WaitGroup
				var busy atomic.Int64
				flood := func() {
					for i := range 1100 {
						bad.Go(func() {
							if _, err := f.Page(ctx, time.Now(), Request{Args: []string{"bad"}, Offset: 7 * (i % 20)}); errors.Is(err, ErrBusy) {
								busy.Add(1)
							}
						})
					}
				}
				flood()
				synctest.Wait()
				if busy.Load() != 100 {
					t.Errorf("%d of 1100 are refused at once, 1000 may wait", busy.Load())
				}
				for round := range 30 { // each with a statement of its own
					get(t, f, Request{Args: []string{"a"}, Before: string(appendCursor(nil, f.fingerprint, key(tab.newest()[300])))})
					<-time.After(110 * time.Millisecond)
					if round%5 == 4 { // for those who have waited for 2 s and left
						flood()
					}
				}
				if s := windowOf(f, "b").current.Load(); !s.parked {
					t.Error("the window of b is refreshed, although nobody asks for it")
				}
				leave()
				bad.Wait()
			})
		})
	}
}

// A value that the database rejects is the client's mistake and leaves nothing behind.
func TestRejectedValue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.values = func(_ context.Context, args []string) error {
			if args[0] == "bad" {
				return fmt.Errorf("%w: out of range", param.ErrValue)
			}
			return nil
		}
		f := Open(byCity(1), tab)
		defer f.Close()
		ask := func(city string) error {
			_, err := f.Page(t.Context(), time.Now(), Request{Args: []string{city}})
			return err
		}
		for range 3 {
			if err := ask("bad"); !errors.Is(err, param.ErrValue) {
				t.Errorf("with a free window: %v", err)
			}
			synctest.Wait()
			if s := f.Stats(); s.Windows > 0 || s.Refused > 0 || f.Ready(time.Now()) != nil {
				t.Errorf("left: %+v, ready %v", s, f.Ready(time.Now()))
			}
		}
		if err := ask("good"); err != nil {
			t.Error(err)
		}
		for range 100 {
			if err := ask("bad"); !errors.Is(err, param.ErrValue) {
				t.Errorf("without a free window: %v", err)
			}
		}
		if windowOf(f, "good") == nil {
			t.Error("a value that is never answered has taken a window")
		}
		// Rows that were read earlier are served for a while, as after other errors.
		tab.set(func(tab *table) {
			tab.values = func(context.Context, []string) error { return fmt.Errorf("%w: division by zero", param.ErrValue) }
		})
		start := time.Now()
		for ask("good") == nil {
			<-time.After(100 * time.Millisecond)
		}
		if served := time.Since(start); served < 9*time.Second || served > 11*time.Second {
			t.Errorf("served for %v after the first error, stale_max is 10s", served)
		}
		<-time.After(time.Second)
		if err := ask("good"); !errors.Is(err, param.ErrValue) {
			t.Errorf("past stale_max: %v", err)
		}
	})
}

// A value whose statement always fails makes the feed unready only while the database does
// not answer, and is forgotten when nobody asks for it.
func TestFailingValueAndReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		tab.values = func(_ context.Context, args []string) error {
			if args[0] == "bad" {
				return context.DeadlineExceeded
			}
			return nil
		}
		var down atomic.Bool
		cfg := byCity(3)
		cfg.Down = down.Load
		f := Open(cfg, tab)
		defer f.Close()
		request := func(city string) {
			_, _ = f.Page(t.Context(), time.Now(), Request{Args: []string{city}})
			<-time.After(100 * time.Millisecond)
		}
		for range 200 {
			request("bad")
			request("good")
			if err := f.Ready(time.Now()); err != nil {
				t.Fatalf("not ready while the database answers: %v", err)
			}
		}
		down.Store(true)
		tab.set(func(tab *table) { tab.down = errDown })
		for range 200 {
			request("good")
		}
		if err := f.Ready(time.Now()); err == nil {
			t.Error("ready although rows are too old and the database does not answer")
		}
		down.Store(false)
		tab.set(func(tab *table) { tab.down = nil })
		<-time.After(2 * time.Second)
		if err := f.Ready(time.Now()); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		<-time.After(5 * time.Second)
		if windowOf(f, "bad") != nil {
			t.Error("the window of a value that was never read stays without requests")
		}
		before := f.Stats().Refreshes
		<-time.After(time.Hour)
		if n := f.Stats().Refreshes - before; n > 0 {
			t.Errorf("%d refreshes in an idle hour", n)
		}
	})
}

// A crowd that reads older pages faster than the database can does not keep it busy with pages
// for which nobody waits any more.
func TestOverloadedOlderPages(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{"all statements": testConfig(), "those of a value": byCity(1)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tab, args, calls := newTable(100_000), []string(nil), 3 // of the gate
				cfg.Refresh, cfg.IdleAfter, cfg.Gate = time.Second, time.Hour, queue.NewGate(4).Entrance()
				if len(cfg.Params) > 0 {
					args, calls = []string{"a"}, cfg.ValueCalls
				}
				f := Open(cfg, tab)
				defer f.Close()
				get(t, f, Request{Args: args})
				tab.set(func(tab *table) { tab.latency = 150 * time.Millisecond })
				capacity := calls * int(20*time.Second/tab.latency)
				if n := crowdOfPages(t, f, args, 20*time.Second); n < capacity*8/10 {
					t.Errorf("%d pages of %d that the database can read", n, capacity)
				}
			})
		})
	}
}

// crowdOfPages returns how many different older pages 100 clients get in a time.
func crowdOfPages(t *testing.T, f *Feed, args []string, during time.Duration) int {
	end := time.Now().Add(during)
	var good atomic.Int64
	var crowd sync.WaitGroup
	for client := range 100 {
		crowd.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				cursor := string(appendCursor(nil, f.fingerprint, key(10*(1+client*500+n%500))))
				switch _, err := f.Page(t.Context(), time.Now(), Request{Args: args, Before: cursor}); {
				case err == nil:
					good.Add(1)
				case errors.Is(err, ErrBusy):
					<-time.After(500 * time.Millisecond)
				default:
					t.Error(err)
				}
			}
		})
	}
	crowd.Wait()
	return int(good.Load())
}

// A page of a value without a window does not keep the memory of all rows that were read for
// it and its neighbours, because a client can be slow to take it.
func TestPageKeepsItsRowsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := Open(byCity(1), newTable(500))
		defer f.Close()
		get(t, f, Request{Args: []string{"a"}})
		_, p := get(t, f, Request{Args: []string{"b"}, Offset: 190})
		if p.Source != FromDatabase || p.Rows != 10 || cap(p.Data) > 2*len(p.Data) {
			t.Errorf("a page of %d rows and %d bytes from %d keeps %d bytes", p.Rows, len(p.Data), p.Source, cap(p.Data))
		}
	})
}

// TestSlowValuesOfAnotherFeed has clients ask one feed for values whose statements time out. They
// leave after Timeout. Another feed on the same connections keeps its rows fresh and answers new
// values all the time, and no statement begins for a client that has left.
func TestSlowValuesOfAnotherFeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := queue.NewGate(5)
		slow, fast := newTable(500), newTable(500)
		slow.values = func(ctx context.Context, _ []string) error {
			<-ctx.Done() // after refreshMax
			return ctx.Err()
		}
		fast.latency = time.Millisecond
		open := func(tab *table) *Feed {
			cfg := byCity(1000)
			cfg.Refreshes = gate.Entrance()
			return Open(cfg, tab)
		}
		attacked, other := open(slow), open(fast)
		defer attacked.Close()
		defer other.Close()
		get(t, other, Request{Args: []string{"busy"}})
		var attack sync.WaitGroup
		for i := range 60 {
			attack.Go(func() {
				if _, err := attacked.Page(t.Context(), time.Now(), Request{Args: []string{fmt.Sprint(i)}}); !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		for i := range 200 { // 20 s
			get(t, other, Request{Args: []string{fmt.Sprint(i)}})
			if _, p := get(t, other, Request{Args: []string{"busy"}}); time.Since(p.ReadAt) > time.Second {
				t.Fatalf("after %d rounds, rows of %v", i, time.Since(p.ReadAt))
			}
			<-time.After(100 * time.Millisecond)
		}
		attack.Wait()
		if n := attacked.Stats().Refreshes; n != 3 {
			t.Errorf("%d statements of slow values; 3 began before their clients left", n)
		}
		synctest.Wait()
		if s := attacked.Stats(); s.Windows != 0 {
			t.Errorf("%d windows that were never read are left", s.Windows)
		}
	})
}

// TestFreshAfterALock locks the table of 40 values in use. When it is free again, all rows are fresh
// after retryMax, whatever the statements have waited for: a turn, a connection, or the lock.
func TestFreshAfterALock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var locked atomic.Pointer[chan struct{}]
		free := make(chan struct{})
		close(free)
		locked.Store(&free)
		tab := newTable(500)
		tab.latency = time.Millisecond
		tab.values = func(ctx context.Context, _ []string) error {
			select {
			case <-*locked.Load():
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		cfg := byCity(1000)
		cfg.Refreshes, cfg.StaleMax = queue.NewGate(5).Entrance(), time.Minute
		f := Open(cfg, tab)
		defer f.Close()
		oldest := func() (age time.Duration) {
			for i := range 40 {
				_, p := get(t, f, Request{Args: []string{fmt.Sprint(i)}})
				age = max(age, time.Since(p.ReadAt))
			}
			<-time.After(100 * time.Millisecond)
			return age
		}
		oldest()
		lock := make(chan struct{})
		locked.Store(&lock)
		for range 247 { // cuts none of the statements now
			oldest()
		}
		close(lock)
		<-time.After(retryMax + cfg.Refresh)
		if age := oldest(); age > time.Second {
			t.Errorf("rows of %v", age)
		}
	})
}
