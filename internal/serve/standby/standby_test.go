package standby

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Answers of the test's replica.
var (
	errOwn       = errors.New("own")
	errStatement = errors.New("division by zero")
	errConflict  = errors.New("conflict with recovery")
	errDown      = errors.New("down")
	errConfirmed = errors.New("cancelled")
)

func judge(err error) (down, elsewhere bool) {
	switch {
	case errors.Is(err, errStatement), errors.Is(err, errConfirmed), errors.Is(err, context.Canceled):
		return false, false
	case errors.Is(err, errConflict):
		return false, true
	}
	return true, false
}

// bench is a switch whose replica gives configured answers after a delay.
type bench struct {
	*Switch
	err        error
	takes      time.Duration
	hangs      time.Duration // how long it ignores its context
	replica    atomic.Int64  // reads of it
	primaryErr error

	written, replayed       atomic.Uint64
	writtenErr, replayedErr atomic.Pointer[error]
	samples                 atomic.Int64
}

// Written implements Primary.
func (b *bench) Written(context.Context) (Position, error) {
	b.samples.Add(1)
	if err := b.writtenErr.Load(); err != nil {
		return Position{}, *err
	}
	return log(b.written.Load()), nil
}

// Replayed implements Replica.
func (b *bench) Replayed(context.Context) (Position, error) {
	if err := b.replayedErr.Load(); err != nil {
		return Position{}, *err
	}
	return log(b.replayed.Load()), nil
}

const (
	benchLag   = 10 * time.Second
	benchStale = time.Minute
)

func (b *bench) ask(ctx context.Context, timeout time.Duration) (string, error) {
	answer, _, err := b.read(ctx, timeout)
	return answer, err
}

func (b *bench) read(ctx context.Context, timeout time.Duration) (string, time.Time, error) {
	return Read(ctx, b.Switch, Bounds{Timeout: timeout, StaleMax: benchStale, Own: func(err error) bool { return errors.Is(err, errOwn) }},
		func(ctx context.Context) (string, error) {
			b.replica.Add(1)
			<-time.After(b.hangs)
			select {
			case <-ctx.Done():
				if b.hangs == 0 {
					return "", errors.Join(ctx.Err(), errConfirmed)
				}
				return "", ctx.Err()
			case <-time.After(b.takes):
				return "replica", b.err
			}
		},
		func(context.Context) (string, error) { return "primary", b.primaryErr })
}

func open(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{Switch: New("replica", benchLag, judge, slog.New(slog.DiscardHandler))}
		defer b.Close()
		b.written.Store(10)
		b.replayed.Store(10)
		ctx, stop := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { b.Watch(ctx, b, b) })
		defer watch.Wait()
		defer stop()
		b.Lag()
		<-time.After(2*SampleEvery + SampleEvery/2) // the replica is confirmed, and the test looks between samples
		test(t, b)
	})
}

func (b *bench) expect(t *testing.T, want string, wantErr error, down bool) {
	t.Helper()
	got, err := b.ask(t.Context(), 3*time.Second)
	if !errors.Is(err, wantErr) || err == nil && got != want || b.Down() != down {
		t.Errorf("%s, %v, down %v; want %s, %v, %v", got, err, b.Down(), want, wantErr, down)
	}
}

func TestErrorsAreJudged(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		b.expect(t, "replica", nil, false)
		b.err = errOwn
		b.expect(t, "", errOwn, false)
		b.err = errStatement
		b.expect(t, "", errStatement, false)
		b.err = errConflict
		b.expect(t, "primary", nil, false)
		b.err = errDown
		b.expect(t, "primary", nil, true)
		b.expect(t, "primary", nil, true)
		if b.replica.Load() != 5 || b.Fallbacks() != 3 {
			t.Errorf("%d reads of the replica, %d fallbacks", b.replica.Load(), b.Fallbacks())
		}
		<-time.After(Pause)
		b.expect(t, "primary", nil, true)
		b.err = nil
		b.expect(t, "primary", nil, true)
		<-time.After(Pause)
		b.expect(t, "replica", nil, false)
	})
}

// TestCallerLeavesHangingReplica: a caller that leaves while the replica has to confirm the end
// of its statement gets an error, not an empty answer.
func TestCallerLeavesHangingReplica(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		b.hangs = time.Hour
		ctx, leave := context.WithCancel(t.Context()) // a shared call has no deadline
		time.AfterFunc(2*time.Second+confirmation/2, leave)
		if answer, err := b.ask(ctx, 3*time.Second); err == nil {
			t.Errorf("the answer %q without an error", answer)
		}
	})
}

// TestHang: a replica that does not answer costs one request two thirds of its timeout. One
// that reports a cancelled statement is slow, not down.
func TestHang(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		b.takes = time.Hour
		begin := time.Now()
		b.expect(t, "", context.DeadlineExceeded, false)
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("a slow statement took %v", took)
		}
		b.hangs = 10 * time.Second
		begin = time.Now()
		b.expect(t, "primary", nil, false) // not settled yet
		if took := time.Since(begin); took != 2*time.Second+confirmation {
			t.Errorf("a hanging replica took %v", took)
		}
		<-time.After(b.hangs)
		if !b.Down() {
			t.Error("a hanging replica is not down")
		}
		b.expect(t, "primary", nil, true)
	})
}

// TestOneProbe sends concurrent requests when the pause is over and the replica still hangs.
// Only one of them waits for the replica.
func TestOneProbe(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		b.err = errDown
		b.expect(t, "primary", nil, true)
		<-time.After(Pause)
		b.err, b.takes = nil, time.Second
		var group sync.WaitGroup
		var replica, primary atomic.Int64
		for range 100 {
			group.Go(func() {
				switch got, err := b.ask(t.Context(), 3*time.Second); {
				case err != nil:
					t.Error(err)
				case got == "replica":
					replica.Add(1)
				default:
					primary.Add(1)
				}
			})
		}
		group.Wait()
		if replica.Load() != 1 || primary.Load() != 99 {
			t.Errorf("%d asked the replica, %d the primary", replica.Load(), primary.Load())
		}
		b.expect(t, "replica", nil, false)
	})
}

func TestCallerLeaves(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		b.takes = time.Hour
		left, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if got, err := b.ask(left, time.Minute); !errors.Is(err, context.Canceled) || got != "" {
			t.Errorf("%s, %v", got, err)
		}
		synctest.Wait()
		if b.Down() || b.Fallbacks() != 0 {
			t.Error("down because the caller left")
		}
	})
}

// TestLag: the metric's value while the replica stops and goes on, and while either server
// does not tell.
func TestLag(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		expect := func(what string, least, most time.Duration, wantKnown bool) {
			t.Helper()
			if lag, known := b.Lag(); lag < least || lag > most || known != wantKnown {
				t.Errorf("%s: %v, %v; want %v to %v, %v", what, lag, known, least, most, wantKnown)
			}
		}
		wait := func(samples int) { <-time.After(time.Duration(samples) * SampleEvery) }
		expect("idle", 0, 0, true)
		b.written.Store(20)
		wait(5)
		expect("the replica stopped", 3*time.Second, 5*time.Second, true)
		b.replayed.Store(20)
		wait(1)
		expect("it caught up", 0, 0, true)
		for _, failing := range []*atomic.Pointer[error]{&b.writtenErr, &b.replayedErr} {
			for _, err := range []error{errStatement, errDown, context.DeadlineExceeded} {
				failing.Store(&err)
				wait(1)
				expect(err.Error(), 0, 0, false)
			}
			failing.Store(nil)
			wait(2)
			b.Switch.downUntil.Store(0)
			wait(1)
			expect("both answer again", 0, 0, true)
		}
	})
}

// TestLate: while the replica is late, the primary answers; while the primary is away too, the
// replica, with the age of its rows, up to StaleMax.
func TestLate(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		expect := func(what, want string, age time.Duration, wantErr error) {
			t.Helper()
			answer, readAt, err := b.read(t.Context(), 3*time.Second)
			if answer != want || !errors.Is(err, wantErr) {
				t.Errorf("%s: %q, %v; want %q, %v", what, answer, err, want, wantErr)
			}
			if got := time.Since(readAt); err == nil && (got < age || got > age+2*SampleEvery) {
				t.Errorf("%s: %v old, want %v", what, got, age)
			}
		}
		away := func(err error) {
			b.primaryErr = err
			if b.writtenErr.Store(nil); err != nil {
				b.writtenErr.Store(&err)
			}
		}
		expect("up to date", "replica", 0, nil)
		b.written.Store(20)
		<-time.After(benchLag - 2*SampleEvery)
		expect("not yet late", "replica", benchLag-3*SampleEvery, nil)
		<-time.After(3 * SampleEvery)
		expect("late", "primary", 0, nil)
		if err := b.State(); !b.Late() || b.Down() || b.Fallbacks() != 1 || !errors.Is(err, ErrLate) {
			t.Errorf("late %v, down %v, %d fallbacks, %v", b.Late(), b.Down(), b.Fallbacks(), err)
		}

		b.primaryErr = errStatement
		expect("an error of a statement is the answer", "primary", 0, errStatement)
		b.primaryErr = errDown
		expect("the primary goes away", "replica", benchLag, nil)
		b.primaryErr = nil
		<-time.After(SampleEvery)
		expect("a sample shows the primary", "primary", 0, nil)
		away(errDown)
		<-time.After(benchStale - benchLag - 6*SampleEvery)
		expect("the primary is away", "replica", benchStale-5*SampleEvery, nil)
		if !b.Usable(time.Now(), benchStale) || b.Usable(time.Now(), benchStale/2) {
			t.Error("usable does not follow the age of the rows")
		}
		<-time.After(4 * SampleEvery)
		expect("rows beyond StaleMax", "primary", 0, errDown)
		away(nil)
		<-time.After(SampleEvery)
		expect("the primary is back", "primary", 0, nil)
		b.replayed.Store(20)
		<-time.After(2 * SampleEvery)
		expect("caught up", "replica", 0, nil)
		if b.Late() {
			t.Error("still late")
		}
	})
}

// TestUnknown: without a position of either server, the primary answers, and nothing else
// does if it is away.
func TestUnknown(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		refused := errStatement
		b.replayedErr.Store(&refused)
		<-time.After(SampleEvery)
		b.expect(t, "primary", nil, false)
		if err := b.State(); !b.Late() || !errors.Is(err, ErrUnknown) || b.Usable(time.Now(), benchStale) {
			t.Errorf("late %v, %v, or usable", b.Late(), err)
		}
		b.primaryErr = errDown
		b.expect(t, "", errDown, false)
	})
}

// TestSamplingStops: nothing is sampled while nobody asks, and a read starts it again.
func TestSamplingStops(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		<-time.After(time.Hour)
		n := b.samples.Load()
		if most := int64(IdleAfter/SampleEvery) + 3; n > most {
			t.Errorf("%d samples after the last question, want at most %d", n, most)
		}
		if _, known := b.Lag(); known { // asks
			t.Error("known after an hour without samples")
		}
		<-time.After(SampleEvery)
		b.expect(t, "replica", nil, false)
		<-time.After(time.Hour)
		if b.expect(t, "primary", nil, false); b.samples.Load() == n {
			t.Error("no samples")
		}
	})
}
