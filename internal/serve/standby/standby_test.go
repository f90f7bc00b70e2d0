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
	err     error
	takes   time.Duration
	hangs   time.Duration // how long it ignores its context
	replica atomic.Int64  // reads of it
}

func (b *bench) ask(ctx context.Context, timeout time.Duration) (string, error) {
	return Read(ctx, b.Switch, Bounds{Timeout: timeout, Own: func(err error) bool { return errors.Is(err, errOwn) }},
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
		func(context.Context) (string, error) { return "primary", nil })
}

func open(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{Switch: New("replica", judge, slog.New(slog.DiscardHandler))}
		defer b.Close()
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

func TestLag(t *testing.T) {
	open(t, func(t *testing.T, b *bench) {
		if _, known := b.Lag(); known {
			t.Error("known before it was read")
		}
		var answer atomic.Pointer[func() (time.Duration, bool, error)]
		set := func(lag time.Duration, known bool, err error) {
			f := func() (time.Duration, bool, error) { return lag, known, err }
			answer.Store(&f)
		}
		set(time.Second, true, nil)
		ctx, stop := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			b.Watch(ctx, func(context.Context) (time.Duration, bool, error) { return (*answer.Load())() })
		})
		expect := func(want time.Duration, wantKnown bool) {
			t.Helper()
			<-time.After(lagEvery + 1)
			if lag, known := b.Lag(); lag != want || known != wantKnown {
				t.Errorf("%v, %v; want %v, %v", lag, known, want, wantKnown)
			}
		}
		expect(time.Second, true)
		set(0, true, nil)
		expect(0, true)
		set(0, false, nil)
		expect(0, false)
		set(time.Second, true, errDown)
		expect(0, false)
		stop()
		watch.Wait()
	})
}
