package stream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// closedLoop has clients store a record each, again after a pause, until each has stored so many.
func closedLoop(t *testing.T, s *Stream, clients, times int, pause time.Duration) {
	t.Helper()
	var group sync.WaitGroup
	for n := range clients {
		group.Go(func() {
			for range times {
				if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(n))); err != nil {
					t.Error(err)
				}
				<-time.After(pause)
			}
		})
	}
	group.Wait()
}

// TestFewWriters: clients that send again soon after their answers share a transaction, each time.
// One client alone never waits. If the clients return late, the batches hardly wait for them.
func TestFewWriters(t *testing.T) {
	for _, test := range []struct {
		name           string
		clients, times int
		pause          time.Duration
		batchesMost    int
		lastsMost      time.Duration
	}{
		{"one", 1, 100, 0, 100, 100 * time.Millisecond},
		{"four", 4, 100, 50 * time.Microsecond, 110, 115 * time.Millisecond},
		{"four that return late", 4, 100, 700 * time.Microsecond, 400, 100 * 2800 * time.Microsecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := newMemory(time.Millisecond)
				s := openTest(t, sink, func(c *Config, _ *Definition) { c.Committers = 2 })
				start := time.Now()
				closedLoop(t, s, test.clients, test.times, test.pause)
				lasted := time.Since(start)
				closeTest(t, s)
				if lasted > test.lastsMost {
					t.Errorf("%v, want at most %v", lasted, test.lastsMost)
				}
				if len(sink.batches) > test.batchesMost {
					t.Errorf("%d batches, want at most %d", len(sink.batches), test.batchesMost)
				}
			})
		})
	}
}

// computing is a Sink on one core: commits that run at once take as much longer.
type computing struct {
	*memory
	running atomic.Int64
}

func (c *computing) Commit(ctx context.Context, b *Batch) error {
	defer c.running.Add(-1)
	<-time.After(time.Duration(c.running.Add(1)-1) * c.takes)
	return c.memory.Commit(ctx, b)
}

// TestSideBySide: batches of few clients run side by side while the database waits for something, and
// not while it computes.
func TestSideBySide(t *testing.T) {
	for _, computes := range []bool{false, true} {
		t.Run(fmt.Sprintf("computes=%v", computes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sink Sink = newMemory(time.Millisecond)
				if computes {
					sink = &computing{memory: newMemory(time.Millisecond)}
				}
				s := openTest(t, sink, func(c *Config, _ *Definition) { c.Committers = 4 })
				start := time.Now()
				closedLoop(t, s, 2, 1000, 600*time.Microsecond)
				lasted := time.Since(start)
				closeTest(t, s)
				if want := 1800 * time.Millisecond; !computes && lasted > want {
					t.Errorf("%v, want at most %v", lasted, want)
				}
				if want := 3500 * time.Millisecond; computes && lasted > want {
					t.Errorf("%v, want at most %v", lasted, want)
				}
			})
		})
	}
}

// overlaps is a Sink that notes values which are in two commits at once.
type overlaps struct {
	*memory
	lock    sync.Mutex
	current map[int64]bool
	found   []int64
}

func (o *overlaps) Commit(ctx context.Context, b *Batch) error {
	rows := b.Rows(nil)
	o.lock.Lock()
	mine := map[int64]bool{}
	for _, r := range rows {
		n := r.Value(r.Row, 0).N
		if o.current[n] && !mine[n] {
			o.found = append(o.found, n)
		}
		mine[n] = true
	}
	for n := range mine {
		o.current[n] = true
	}
	o.lock.Unlock()
	defer func() {
		o.lock.Lock()
		defer o.lock.Unlock()
		for n := range mine {
			delete(o.current, n)
		}
	}()
	return o.memory.Commit(ctx, b)
}

// TestEqualKeysOneByOne has clients store records with few keys at random times. Equal values of the
// key, or of the column that orders the records, are never in two transactions at once.
func TestEqualKeysOneByOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ordered := rapid.Bool().Draw(rt, "ordered")
		committers := rapid.IntRange(1, 5).Draw(rt, "committers")
		pauses := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 2000), 1, 10), 1, 12).Draw(rt, "pauses in µs")
		sink := &overlaps{memory: newMemory(time.Millisecond), current: map[int64]bool{}}
		synctest.Test(t, func(t *testing.T) {
			s := openTest(t, sink, func(c *Config, d *Definition) {
				c.Committers, c.BatchRows = committers, 3
				if ordered {
					d.OrderBy = "n"
				} else {
					d.Key = []string{"n"}
				}
			})
			var group sync.WaitGroup
			for client, all := range pauses {
				group.Go(func() {
					for i, pause := range all {
						<-time.After(time.Duration(pause) * time.Microsecond)
						_, err := s.Commit(t.Context(), testRequest(t, s, "", number((client+i)%4)))
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
			closeTest(t, s)
		})
		if len(sink.found) > 0 {
			rt.Fatalf("at once in two transactions: %v", sink.found)
		}
	})
}
