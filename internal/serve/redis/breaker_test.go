package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A request that could wait longer than a command waits no longer.
func TestBound(t *testing.T) {
	db := &DB{timeout: time.Minute}
	for given, most := range map[time.Duration]time.Duration{30 * time.Second: 30 * time.Second, 2*time.Minute - time.Second: time.Minute, time.Hour: time.Minute} {
		ctx, cancel := context.WithTimeout(t.Context(), given)
		bound, end := db.bound(ctx)
		if until, ok := bound.Deadline(); !ok || time.Until(until) > most {
			t.Errorf("%s: waits until %s", given, until)
		}
		end()
		cancel()
	}
}

// TestBreaker has a server hang and answer again. Only the calls that were sent before it was known
// to hang wait for the timeout. Errors that come at once open nothing.
func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		var pings atomic.Int64
		serve := func(ctx context.Context) error {
			if !hangs.Load() {
				return nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return context.DeadlineExceeded
		}
		b := &breaker{timeout: time.Second, ping: func(ctx context.Context) error { pings.Add(1); return serve(ctx) }}
		defer b.wait()
		call := func() (took time.Duration, err error) {
			began := time.Now()
			if err = b.begin(began); err == nil {
				err = serve(t.Context())
				b.end(began, err)
			}
			return time.Since(began), err
		}
		refused := errors.New("refused at once")
		b.end(time.Now(), refused)
		if took, err := call(); took > 0 || err != nil {
			t.Fatalf("%v, %v", took, err)
		}
		hangs.Store(true)
		if took, err := call(); took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first call: %v, %v", took, err)
		}
		for range 600 { // a minute
			if took, err := call(); took > 0 || !errors.Is(err, errHangs) {
				t.Fatalf("%v, %v", took, err)
			}
			<-time.After(100 * time.Millisecond)
		}
		if n := pings.Load(); n < 25 || n > 31 { // each takes a second, and pauses as long
			t.Errorf("%d pings in a minute", n)
		}
		hangs.Store(false)
		<-time.After(2 * time.Second)
		_, _ = call() // starts a ping
		synctest.Wait()
		if took, err := call(); took > 0 || err != nil {
			t.Errorf("the server answers again: %v, %v", took, err)
		}
	})
}
