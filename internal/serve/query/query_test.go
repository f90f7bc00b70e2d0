package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is a source with a slow statement that returns one row: the arguments and the number
// of the execution.
type counting struct {
	takes      time.Duration
	executions atomic.Int64
	running    sync.Map // by arguments
	twice      atomic.Bool
	cancelled  atomic.Int64
	err        error
}

func (s *counting) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	key := fmt.Sprint(r.Args)
	if _, already := s.running.LoadOrStore(key, true); already {
		s.twice.Store(true)
	}
	defer s.running.Delete(key)
	n := s.executions.Add(1)
	timer := time.NewTimer(s.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		s.cancelled.Add(1)
		return ctx.Err()
	}
	if s.err != nil {
		return s.err
	}
	rows.Begin()
	rows.Data = append(rows.Data, fmt.Sprintf(`{"args":%q,"n":%d}`, key, n)...)
	return rows.EndUnkeyed()
}

func testConfig() Config {
	return Config{
		Definition: feed.Definition{Name: "/q", Params: []param.Param{{Name: "a", Type: param.Integer}}},
		Limit:      feed.Limit{Rows: 10, Bytes: 1000}, Timeout: 5 * time.Second, CacheBytes: 1 << 20, WaitersMax: 5000, Log: slog.New(slog.DiscardHandler),
		Database: func() string { return "one" },
	}
}

func open(t testing.TB, cfg Config, source feed.Reader) *Query {
	q := Open(cfg, source)
	t.Cleanup(q.Close)
	return q
}

func TestCrowdAsksOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{takes: time.Second}
		q := Open(testConfig(), source)
		defer q.Close()
		var group sync.WaitGroup
		for range 1000 {
			group.Go(func() {
				a, from, err := q.Ask(t.Context(), time.Now(), []string{"7"})
				if err != nil || from != FromDatabase || string(a.Data) != `{"args":"[7]","n":1}` {
					t.Errorf("%+v from %d, %v", a, from, err)
				}
			})
		}
		group.Wait()
		if n := source.executions.Load(); n != 1 {
			t.Errorf("%d executions for 1,000 who asked at once", n)
		}
		if _, _, err := q.Ask(t.Context(), time.Now(), []string{"7"}); err != nil || source.executions.Load() != 2 {
			t.Errorf("without a TTL something was kept: %d executions, %v", source.executions.Load(), err)
		}
	})
}

// TestExpiryUnderLoad requests five values each millisecond for ten seconds. No answer may be
// older than the limit. Per value there is one execution at a time, and at most one per TTL.
func TestExpiryUnderLoad(t *testing.T) {
	t.Parallel()
	for _, stale := range []time.Duration{0, 500 * time.Millisecond} {
		t.Run(stale.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &counting{takes: 30 * time.Millisecond}
				cfg := testConfig()
				cfg.TTL, cfg.Stale = 100*time.Millisecond, stale
				q := Open(cfg, source)
				defer q.Close()
				var group sync.WaitGroup
				waited := atomic.Int64{} // how long the last one that did
				for i := range 10_000 {
					group.Go(func() {
						begin := time.Now()
						a, _, err := q.Ask(t.Context(), begin, []string{strconv.Itoa(i % 5)})
						if err != nil {
							t.Error(err)
							return
						}
						if age := begin.Sub(a.CameAt); age >= cfg.TTL+cfg.Stale {
							t.Errorf("an answer %v old", age)
						}
						if took := time.Since(begin); i > 1000 && took > 0 {
							waited.Store(int64(took))
						}
					})
					<-time.After(time.Millisecond)
				}
				group.Wait()
				if source.twice.Load() {
					t.Error("two executions for one value at once")
				}
				if n := source.executions.Load(); n > 5*101 || n < 5*70 {
					t.Errorf("%d executions in 10 s for 5 values and a TTL of 100 ms", n)
				}
				if last := time.Duration(waited.Load()); (last == 0) != (stale > 0) {
					t.Errorf("once warm, the last request that waited took %v; want that some wait: %v", last, stale == 0)
				}
			})
		})
	}
}

func TestLastToLeaveCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{takes: time.Hour}
		q := Open(testConfig(), source)
		defer q.Close()
		first, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if _, _, err := q.Ask(first, time.Now(), []string{"1"}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		group.Go(func() {
			if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); !errors.Is(err, ErrBusy) { // after Timeout
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		if n := source.cancelled.Load(); n != 0 {
			t.Error("cancelled while somebody waited")
		}
		group.Wait()
		synctest.Wait()
		if n := source.cancelled.Load(); n != 1 {
			t.Errorf("%d executions cancelled, want 1", n)
		}
	})
}

// TestAfterQuickOnes: an execution that is slow although those before were short ends with its request, at its time, and is repeated for
// another request that shares it. One whose client leaves is cancelled.
func TestAfterQuickOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{takes: time.Millisecond}
		q := Open(testConfig(), source)
		defer q.Close()
		ask := func(ctx context.Context, want error, after time.Duration) {
			begin := time.Now()
			if _, _, err := q.Ask(ctx, begin, []string{"1"}); !errors.Is(err, want) || time.Since(begin) != after {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(begin), want, after)
			}
		}
		ask(t.Context(), nil, time.Millisecond)
		source.takes = 4 * time.Second
		q.cfg.Timeout = 3 * time.Second
		var group sync.WaitGroup
		group.Go(func() { ask(t.Context(), ErrBusy, 3*time.Second) })
		<-time.After(2 * time.Second)
		synctest.Wait()
		source.takes = 0
		group.Go(func() { ask(t.Context(), nil, time.Second) })
		group.Wait()
		if n := source.executions.Load(); n != 3 || source.cancelled.Load() != 1 || source.twice.Load() {
			t.Errorf("%d executions, %d cancelled", n, source.cancelled.Load())
		}
		source.takes = time.Hour
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		ask(ctx, context.DeadlineExceeded, time.Second)
		if source.cancelled.Load() != 2 {
			t.Error("an execution goes on for nobody")
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		source := &counting{err: broken}
		cfg := testConfig()
		cfg.TTL = time.Minute
		q := Open(cfg, source)
		defer q.Close()
		for range 2 {
			if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); !errors.Is(err, broken) {
				t.Error(err)
			}
		}
		if n := source.executions.Load(); n != 2 {
			t.Errorf("%d executions: an error was kept", n)
		}
		source.err = nil
		q.cfg.Limit.Bytes = 5
		if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); !errors.Is(err, feed.ErrTooLarge) {
			t.Error(err)
		}
		if _, _, err := q.Ask(t.Context(), time.Now(), nil); !errors.Is(err, ErrRequest) {
			t.Error(err)
		}
		q.cfg.Limit.Bytes = 1000
		if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); err != nil {
			t.Error(err)
		}
		source.err = broken // not executed within the TTL
		if _, from, err := q.Ask(t.Context(), time.Now(), []string{"1"}); err != nil || from != FromMemory {
			t.Error(from, err)
		}
	})
}

func TestTooManyWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.WaitersMax = 3
		q := Open(cfg, &counting{takes: time.Second})
		defer q.Close()
		var group sync.WaitGroup
		var busy atomic.Int64
		for i := range 10 {
			group.Go(func() {
				if _, _, err := q.Ask(t.Context(), time.Now(), []string{strconv.Itoa(i)}); errors.Is(err, ErrBusy) {
					busy.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if busy.Load() != 7 {
			t.Errorf("%d of 10 were told to come back, want 7", busy.Load())
		}
	})
}

// dated is a source whose rows are as old as a replica's.
type dated struct{ readAt time.Time }

func (d dated) Read(_ context.Context, _ feed.Range, rows *feed.Rows) error {
	rows.ReadAt = d.readAt
	return nil
}

// TestRowsOfReplica: an answer is as old as its source says, and cached from its arrival on.
func TestRowsOfReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRowsOfReplica)
}

func testRowsOfReplica(t *testing.T) {
	begin := time.Now()
	source := dated{begin.Add(-time.Minute)}
	a, _, err := open(t, testConfig(), source).Ask(t.Context(), begin, []string{"1"})
	if err != nil || !a.ReadAt.Equal(source.readAt) || a.CameAt.Before(begin) {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestHitAllocatesNothing(t *testing.T) {
	cfg := testConfig()
	cfg.TTL, cfg.Timeout = time.Hour, time.Hour
	q := open(t, cfg, &counting{})
	args := []string{"123"}
	ask := func() {
		if _, _, err := q.Ask(t.Context(), time.Now(), args); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n > 0 {
		t.Errorf("%v allocations a hit, want none", n)
	}
}

// TestCrowdOfValues has 400 clients ask for different values of a slow statement. All
// executions succeed; requests that cannot be answered in time are soon refused at once and told
// when to retry.
func TestCrowdOfValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{takes: 50 * time.Millisecond}
		cfg := testConfig()
		cfg.Gate, cfg.Timeout = queue.NewGate(5).Entrance(), 2*time.Second
		q := Open(cfg, source)
		defer q.Close()
		start := time.Now()
		var group sync.WaitGroup
		var answers, refused, late atomic.Int64
		for client := range 400 {
			group.Go(func() {
				for i := 0; time.Since(start) < 10*time.Second; i++ {
					begin := time.Now()
					_, _, err := q.Ask(t.Context(), begin, []string{fmt.Sprint(1000*client + i)})
					var overload *queue.Overload
					switch {
					case err == nil:
						answers.Add(1)
					case errors.As(err, &overload) && errors.Is(err, ErrBusy):
						refused.Add(1)
						if begin.Sub(start) > time.Second && time.Since(begin) > 100*time.Millisecond {
							late.Add(1)
						}
						<-time.After(overload.RetryAfter)
					default:
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		if n := answers.Load(); n < 750 || refused.Load() == 0 || late.Load() > 0 {
			t.Errorf("%d answers in 10 s of 800 possible; %d refused, %d of them late", n, refused.Load(), late.Load())
		}
		if n := source.cancelled.Load(); n > 0 {
			t.Errorf("%d executions were cancelled", n)
		}
	})
}

// FuzzNames: two lists of arguments have the same name only if they are equal. The name is
// the key of the cache and of shared executions.
func FuzzNames(f *testing.F) {
	f.Add("a\xffb", "ab\xff")
	f.Add("\x01a", "\xffa")
	// With lengths of 16 bits, one argument of 65,538 bytes would look like three.
	second, third := strings.Repeat("x", 0x7f00), strings.Repeat("x", 0x80fc)
	f.Add("ab\x7f\x00"+second+"\x80\xfc"+third, "ab\xff"+second+"\xff"+third)
	f.Fuzz(func(t *testing.T, a, b string) {
		first, second := strings.Split(a, "\xff"), strings.Split(b, "\xff")
		same := string(param.AppendArgs(nil, first)) == string(param.AppendArgs(nil, second))
		if same != slices.Equal(first, second) {
			t.Errorf("%q and %q: same name %v", first, second, same)
		}
	})
}

// TestNamesProperty compares names of arguments that are made of few short parts, lists of
// the lengths at which an encoded length grows, and of parts that look like lengths.
func TestNamesProperty(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "\x00", "\x01", "\x01a", "\x80\x01"}),
		rapid.Map(rapid.SampledFrom([]int{126, 127, 128, 255, 256, 16383, 16384, 65535, 65536, 65538}), func(n int) string { return strings.Repeat("x", n) }),
	)
	list := func(texts []string) string {
		arg, err := param.Argument(param.Param{Name: "p", Type: param.Text, ListMax: 3}, texts...)
		if err != nil {
			return strings.Join(texts, "") // with NUL, or too long
		}
		return arg
	}
	args := rapid.SliceOfN(rapid.OneOf(text, rapid.Map(rapid.SliceOfN(text, 1, 3), list)), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		a, b := args.Draw(t, "a"), args.Draw(t, "b")
		if same := string(param.AppendArgs(nil, a)) == string(param.AppendArgs(nil, b)); same != slices.Equal(a, b) {
			t.Fatalf("%.99q and %.99q: same name %v", a, b, same)
		}
	})
}

// TestNow: an answer that is not larger than asked for is counted once, and is renewed when it is stale. A larger one is
// as if it were not cached.
func TestNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{takes: time.Millisecond}
		cfg := testConfig()
		cfg.TTL, cfg.Stale = time.Second, time.Minute
		q := Open(cfg, source)
		defer q.Close()
		args := []string{"7"}
		if a, ok := q.Now(time.Now(), args, 1000); ok {
			t.Errorf("before the first execution: %s", a.Data)
		}
		first, _, err := q.Ask(t.Context(), time.Now(), args)
		if err != nil {
			t.Fatal(err)
		}
		size := len(first.Data)
		for _, stale := range []bool{false, true} {
			before := q.Stats()
			if a, ok := q.Now(time.Now(), args, size-1); ok || q.Stats() != before {
				t.Errorf("larger than asked for: %v, %+v after %+v", a, q.Stats(), before)
			}
			synctest.Wait()
			if n := source.executions.Load(); n != 1 {
				t.Errorf("%d executions", n)
			}
			if stale {
				before.Stale++
			} else {
				before.Hits++
			}
			if a, _ := q.Now(time.Now(), args, size); a != first || q.Stats().Hits != before.Hits || q.Stats().Stale != before.Stale {
				t.Errorf("as large as asked for: %v, %+v, want %+v", a, q.Stats(), before)
			}
			<-time.After(cfg.TTL)
		}
		if a, ok := q.Now(time.Now(), args, size); !ok || a == first || source.executions.Load() < 2 {
			t.Errorf("the stale answer was not renewed: %v, %d executions", a, source.executions.Load())
		}
	})
}
