package popup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// failingReader is a database that fails, or hangs until the context of a read ends.
type failingReader struct {
	mu    sync.Mutex
	err   error
	hangs bool
	reads int
	keys  int
}

func (r *failingReader) set(err error, hangs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.hangs = err, hangs
}

func (r *failingReader) count() (reads, keys int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads, r.keys
}

func (r *failingReader) States(ctx context.Context, keys []Key) ([]State, error) {
	r.mu.Lock()
	r.reads++
	r.keys += len(keys)
	err, hangs := r.err, r.hangs
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	states := make([]State, len(keys))
	for i, key := range keys {
		states[i].Version = uint64(len(key.User))
	}
	return states, err
}

// While the database refuses or hangs, new users are answered at once, except for the first
// ones. They are answered again soon after it is back.
func TestLookupsDuringOutage(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]bool{"refuses": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reader := &failingReader{}
				l := NewLookups(reader, 5*time.Second)
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { l.Run(ctx) })
				ask := func(user string) (time.Duration, error) {
					begin := time.Now()
					state, err := l.Read(t.Context(), Key{User: user, Placement: "home"})
					if err == nil && state.Version != uint64(len(user)) {
						t.Errorf("user %s got the state of another: %+v", user, state)
					}
					return time.Since(begin), err
				}
				if _, err := ask("known"); err != nil {
					t.Fatal(err)
				}
				reader.set(errors.New("connection refused"), hangs)
				begin := time.Now()
				slow := make(chan time.Duration, 100_000)
				for i := 0; time.Since(begin) < 10*time.Second; i++ {
					running.Go(func() {
						took, err := ask(fmt.Sprint("user ", i))
						if err == nil {
							t.Error("a state without a database")
						}
						if took > 0 {
							slow <- took
						}
					})
					<-time.After(10 * time.Millisecond)
				}
				<-time.After(5 * time.Second)
				most := 0
				if hangs { // those of the first half second, of 1,000
					most = 50
				}
				if len(slow) > most {
					t.Errorf("%d users waited", len(slow))
				}
				for range len(slow) {
					if took := <-slow; took > readOverdue {
						t.Errorf("a user waited %s, more than %s", took, readOverdue)
					}
				}
				if n, _ := reader.count(); n < 5 || n > 32 {
					t.Errorf("%d reads in 15 s", n)
				}
				reader.set(nil, false)
				<-time.After(lookupTimeout + probeEvery)
				synctest.Wait()
				if took, err := ask("back"); err != nil {
					t.Errorf("after the outage: %v within %s", err, took)
				}
				stop()
				running.Wait()
			})
		})
	}
}

// Those that wait are bounded, and concurrent requests of one user are one key.
func TestLookupsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := &failingReader{hangs: true}
		l := NewLookups(reader, 100*time.Millisecond)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { l.Run(ctx) })
		crowd := Key{User: "crowd", Placement: "home"}
		running.Go(func() { _, _ = l.Read(t.Context(), crowd) })
		synctest.Wait()
		begin := time.Now()
		var refused atomic.Int32
		for range lookupsMax + 10 {
			running.Go(func() {
				if _, err := l.Read(t.Context(), crowd); err == nil {
					t.Error("a state without a database")
				} else if time.Now().Equal(begin) {
					refused.Add(1)
				}
			})
		}
		<-time.After(3 * time.Second)
		if n := refused.Load(); n != 10 {
			t.Errorf("%d refused at once, want 10", n)
		}
		reader.set(nil, false)
		<-time.After(lookupTimeout + probeEvery)
		synctest.Wait()
		if _, err := l.Read(t.Context(), crowd); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		stop()
		running.Wait()
		_, before := reader.count()
		var batch []*lookup
		for i := range 400 {
			batch = append(batch, &lookup{key: Key{User: fmt.Sprint(i % 2), Placement: "home"}, done: make(chan struct{})})
		}
		l.readAll(t.Context(), batch)
		if _, keys := reader.count(); keys != before+2 || batch[399].err != nil || batch[399].state.Version != 1 {
			t.Errorf("two users were read %d times for 400 requests", keys-before)
		}
	})
}
