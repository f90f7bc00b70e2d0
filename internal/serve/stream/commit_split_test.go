package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
)

// locked is a Sink in which records from 1,000,000 wait for a lock or, with slow, take long.
type locked struct {
	*memory
	slow     bool
	released chan struct{}
}

func newLocked() *locked {
	return &locked{memory: newMemory(10 * time.Millisecond), released: make(chan struct{})}
}

func (l *locked) Commit(ctx context.Context, b *Batch) error {
	waits := slices.ContainsFunc(b.Rows(nil), func(r Row) bool { return r.Value(r.Row, 0).N >= 1000000 })
	if !waits {
		return l.memory.Commit(ctx, b)
	}
	var timeout <-chan time.Time
	if b.LockWait > 0 && !l.slow {
		timeout = time.After(b.LockWait)
	}
	select {
	case <-l.released:
		return l.memory.Commit(ctx, b)
	case <-timeout:
		return fmt.Errorf("%w: %w", ErrBlocked, ErrTransient)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrTransient, ctx.Err())
	}
}

// If one committer is blocked and the other is fast, new requests are predicted and committed
// with the fast one. Only the blocked lanes refuse requests.
func TestStuckCommitter(t *testing.T) {
	for _, orderBy := range []string{"", "lane"} {
		synctest.Test(t, func(t *testing.T) {
			sink := newLocked()
			sink.slow = true
			s := openTest(t, sink, func(c *Config, d *Definition) {
				c.Committers, c.CommitTimeout, c.RetryFor, c.QueueRows, d.OrderBy = 2, time.Minute, time.Minute, 100000, orderBy
			})
			lanes := [2]int{-1, -1} // a value of the column in each of the two lanes
			for n := range 20 {
				r := testRequest(t, s, "", fmt.Sprintf("{\"n\":0,\"lane\":%d}", n))
				lanes[r.Records.lanes(len(s.queue.lanes), s.schema.orderBy)>>1&1] = n
				if orderBy == "" {
					lanes[1] = n
				}
			}
			send := func(lane, n int) error {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err := s.Commit(ctx, testRequest(t, s, "", fmt.Sprintf("{\"n\":%d,\"lane\":%d}", n, lane)))
				return err
			}
			for lane := range lanes {
				if err := send(lanes[lane], 1); err != nil { // the mean is known
					t.Fatal(err)
				}
			}
			if err := s.Accept(testRequest(t, s, "", fmt.Sprintf("{\"n\":1000000,\"lane\":%d}", lanes[0]))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // it goes alone
			for range 300 { // half a second and more
				if err := send(lanes[1], 2); err != nil || s.Ready() != nil {
					t.Fatalf("order %q, beside it, predicting %v: %v, ready: %v", orderBy, s.Stats().PredictedWait, err, s.Ready())
				}
			}
			if err := send(lanes[0], 3); orderBy != "" && !errors.Is(err, queue.ErrOverloaded) {
				t.Errorf("behind it: %v", err)
			}
			close(sink.released)
			closeTest(t, s)
		})
	}
}

// If one request waits for a lock, the others of its batch and later ones are stored without
// it. It is stored when the lock is released.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newLocked()
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.BatchRows, c.QueueRows, c.RetryFor = 1000, 10000, time.Minute })
		start := time.Now()
		var group, late sync.WaitGroup
		for n := range 500 {
			late.Go(func() {
				if n == 100 {
					if o, err := s.Commit(t.Context(), testRequest(t, s, "the key", number(1000000))); err != nil || o.Stored != 1 {
						t.Errorf("%+v, %v", o, err)
					}
				}
			})
			group.Go(func() {
				if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(n))); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if took := time.Since(start); took > 2*s.lockWait()+10*s.pieceWait()+time.Second/2 {
			t.Errorf("the neighbours took %v", took)
		}
		for n := range 100 {
			began := time.Now()
			if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(n))); err != nil || time.Since(began) > 2*s.lockWait() || s.Ready() != nil {
				t.Errorf("later: %v after %v, ready: %v", err, time.Since(began), s.Ready())
			}
		}
		close(sink.released)
		late.Wait()
		closeTest(t, s)
		if len(sink.rows) != 601 || s.Stats().QueueRows != 0 || len(s.keys) != 0 {
			t.Errorf("%d rows, stats %+v", len(sink.rows), s.Stats())
		}
	})
}

// A lock that is never released fails only the requests that need it. A lock on the whole
// table fails all requests after RetryFor, and stores none of them.
func TestBlockedForGood(t *testing.T) {
	for _, orderBy := range []string{"", "lane"} {
		for _, all := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				sink := newLocked()
				s := openTest(t, sink, func(c *Config, d *Definition) {
					c.Committers, c.BatchRows, c.QueueRows, c.WaitMax, d.OrderBy = 2, 1000, 1000, time.Hour, orderBy
				})
				var group sync.WaitGroup
				for n := range 60 {
					group.Go(func() {
						id := n
						if all || n%30 == 7 {
							id = 1000000 + n
						}
						_, err := s.Commit(t.Context(), testRequest(t, s, "", fmt.Sprintf("{\"n\":%d,\"lane\":%d}", id, n%5)))
						if (id >= 1000000) != errors.Is(err, ErrUnavailable) || id < 1000000 && err != nil {
							t.Errorf("record %d: %v", id, err)
						}
					})
				}
				start := time.Now()
				group.Wait()
				took := time.Since(start)
				if most := 3 * s.cfg.RetryFor; (orderBy == "" || !all) && took > most {
					t.Errorf("order %q, all %v: it took %v", orderBy, all, took)
				}
				close(sink.released)
				closeTestLost(t, s)
			})
		}
	}
}

// closeTestLost closes a stream that has no requests left.
func closeTestLost(t *testing.T, s *Stream) {
	t.Helper()
	start := time.Now()
	closeTest(t, s)
	if time.Since(start) > time.Second || s.Stats().QueueRows != 0 {
		t.Errorf("closed after %v, stats %+v", time.Since(start), s.Stats())
	}
}

// Close fails requests that wait for a lock.
func TestCloseBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, newLocked(), func(c *Config, _ *Definition) { c.RetryFor = time.Hour })
		for n := range 3 {
			if err := s.Accept(testRequest(t, s, "", number(1000000+n))); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(ctx); err == nil {
			t.Error("closed, and stored what it could not")
		}
	})
}

// crawling is a Sink that stores one row per second.
type crawling struct{ *memory }

func (c *crawling) Commit(ctx context.Context, b *Batch) error {
	for range b.Rows(nil) {
		select {
		case <-time.After(900 * time.Millisecond):
			b.Progress()
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrTransient, ctx.Err())
		}
	}
	return c.memory.Commit(ctx, b)
}

// A batch may take longer than CommitTimeout while the database answers.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, &crawling{newMemory(0)}, func(c *Config, _ *Definition) { c.RetryFor = 0 })
		o, err := s.Commit(t.Context(), testRequest(t, s, "", number(1)+"\n"+number(2)+"\n"+number(3)))
		if err != nil || o.Stored != 3 {
			t.Errorf("%+v, %v", o, err)
		}
		closeTest(t, s)
		sink := newMemory(2 * time.Second)
		s = openTest(t, sink, func(c *Config, _ *Definition) { c.RetryFor = 0 })
		if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(1))); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errNoAnswer) {
			t.Errorf("no answer: %v", err)
		}
		closeTest(t, s)
	})
}

// turncoat is a Sink whose settings differ after a failover.
type turncoat struct {
	*memory
	session uint64
	unsafe  []string
}

func (c *turncoat) Commit(ctx context.Context, b *Batch) error {
	b.Session = c.session
	return c.memory.Commit(ctx, b)
}

func (c *turncoat) Durability(context.Context) (Durability, error) {
	return Durability{Unsafe: c.unsafe}, nil
}

// A failover is detected by the first batch that fails or uses a new session.
func TestMaintenanceFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &turncoat{memory: newMemory(time.Millisecond), session: 1}
		s := openTest(t, sink, nil)
		if err := s.Start(t.Context(), &testDatabase{}); err != nil {
			t.Fatal(err)
		}
		expect := func(want string) {
			t.Helper()
			if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(1))); err != nil {
				t.Error(err)
			}
			<-time.After(2 * time.Second)
			if d, ok := s.Durability(); !ok || d.String() != want {
				t.Errorf("%v, %v, want %s", d, ok, want)
			}
		}
		expect("database")
		sink.unsafe = []string{"fsync=off"}
		expect("database") // it is the same session
		sink.session = 2
		expect("database, not fsynced: fsync=off")
		sink.unsafe = nil
		sink.fail(false, ErrTransient)
		expect("database")
		closeTest(t, s)
	})
}

// poisoned is a Sink in which a batch with a record from 1,000,000 fails for good.
type poisoned struct {
	*memory
	attempts int
}

var errPoison = errors.New("a trigger uses a table that does not exist")

func (p *poisoned) Commit(ctx context.Context, b *Batch) error {
	p.attempts++
	if slices.ContainsFunc(b.Rows(nil), func(r Row) bool { return r.Value(r.Row, 0).N >= 1000000 }) {
		<-time.After(p.takes)
		return errPoison
	}
	return p.memory.Commit(ctx, b)
}

// Requests that make the transaction fail get the error; the others of their batch are
// stored.
func TestPoison(t *testing.T) {
	for _, orderBy := range []string{"", "lane"} {
		synctest.Test(t, func(t *testing.T) {
			sink := &poisoned{memory: newMemory(10 * time.Millisecond)}
			s := openTest(t, sink, func(c *Config, d *Definition) { c.BatchRows, c.QueueRows, d.OrderBy = 1000, 10000, orderBy })
			var group sync.WaitGroup
			for n := range 500 {
				group.Go(func() {
					id := n
					if n == 1 || n == 2 || n%100 == 99 {
						id = 1000000 + n
					}
					_, err := s.Commit(t.Context(), testRequest(t, s, fmt.Sprint(n), number(id)))
					if id == n && err != nil || id != n && !errors.Is(err, errPoison) {
						t.Errorf("record %d: %v", id, err)
					}
				})
			}
			group.Wait()
			if len(sink.rows) != 493 || s.Ready() != nil || len(s.keys) != 0 {
				t.Errorf("order %q: %d rows in %d attempts, ready: %v", orderBy, len(sink.rows), sink.attempts, s.Ready())
			}
			closeTest(t, s)
		})
	}
}

// Many bad requests side by side do not fail the good ones around them.
func TestPoisonRun(t *testing.T) {
	for _, bad := range []int{15, 20, 60, 100} {
		synctest.Test(t, func(t *testing.T) {
			sink := &poisoned{memory: newMemory(10 * time.Millisecond)}
			s := openTest(t, sink, func(c *Config, _ *Definition) { c.BatchRows, c.QueueRows, c.Committers = 1000, 10000, 1 })
			for n := range 500 + bad {
				id := n
				if n < bad {
					id = 1000000 + n
				}
				if err := s.Accept(testRequest(t, s, "", number(id))); err != nil {
					t.Error(err)
				}
			}
			closeTestFailed(t, s)
			if len(sink.rows) != 500 || s.Stats().Failed != uint64(bad) {
				t.Errorf("%d bad: %d rows in %d attempts, stats %+v", bad, len(sink.rows), sink.attempts, s.Stats())
			}
		})
	}
}

// If every request fails, the batch is not split to the end.
func TestPoisonEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &poisoned{memory: newMemory(10 * time.Millisecond)}
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.BatchRows, c.QueueRows = 1000, 10000 })
		for n := range 500 {
			if err := s.Accept(testRequest(t, s, "", number(1000000+n))); err != nil {
				t.Error(err)
			}
		}
		closeTestFailed(t, s)
		if sink.attempts > 3*failedMost || s.Stats().Failed != 500 || len(sink.rows) != 0 {
			t.Errorf("%d attempts, stats %+v", sink.attempts, s.Stats())
		}
	})
}

// refusing is a Sink that refuses a batch with a record from 1,000,000 for what no client has sent.
type refusing struct {
	*memory
	attempts int
}

func (r *refusing) Commit(ctx context.Context, b *Batch) error {
	r.attempts++
	if slices.ContainsFunc(b.Rows(nil), func(r Row) bool { return r.Value(r.Row, 0).N >= 1000000 }) {
		<-time.After(r.takes)
		return fmt.Errorf("%w: %w: out of range", ErrTransient, ErrRefused)
	}
	return r.memory.Commit(ctx, b)
}

// A request that the database refuses for what no client has sent waits alone for RetryFor. The others of
// its batch are stored at once.
func TestRefusedForServer(t *testing.T) {
	for _, c := range []struct{ every, refused, attempts int }{{100, 5, 1000}, {3, 166, 50_000}, {1, 500, 10_000}} {
		synctest.Test(t, func(t *testing.T) {
			sink := &refusing{memory: newMemory(time.Millisecond)}
			s := openTest(t, sink, func(cfg *Config, _ *Definition) {
				cfg.BatchRows, cfg.QueueRows, cfg.WaitMax, cfg.RetryFor = 1000, 10000, time.Hour, 10*time.Second
			})
			var good, all sync.WaitGroup
			start := time.Now()
			for n := range 500 {
				id, group := n, &good
				if n%c.every == c.every-1 {
					id, group = 1000000+n, &all
				}
				group.Go(func() {
					_, err := s.Commit(t.Context(), testRequest(t, s, "", number(id)))
					if id == n && err != nil || id != n && !errors.Is(err, ErrUnavailable) {
						t.Errorf("record %d: %v", id, err)
					}
				})
			}
			good.Wait()
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("one of %d: the others waited for %v", c.every, took)
			}
			all.Wait()
			if took := time.Since(start); took > 3*s.cfg.RetryFor || s.Ready() == nil {
				t.Errorf("one of %d: after %v, ready: %v", c.every, took, s.Ready())
			}
			if len(sink.rows) != 500-c.refused || sink.attempts > c.attempts || s.Stats().QueueRows != 0 {
				t.Errorf("one of %d: %d rows in %d attempts, stats %+v", c.every, len(sink.rows), sink.attempts, s.Stats())
			}
			closeTest(t, s)
		})
	}
}

// closeTestFailed closes a stream whose requests cannot be stored.
func closeTestFailed(t *testing.T, s *Stream) {
	t.Helper()
	if err := s.Close(t.Context()); err == nil {
		t.Error("closed without an error")
	}
}

// A deferred request that becomes due while a committer is about to wait wakes it.
func TestDeferredWakes(t *testing.T) {
	s := &Stream{core: core{cfg: testConfig(), base: t.Context()}}
	s.wake.L = &s.mu
	s.deferRequest(&Batch{}, &ticket{}, time.Now(), 1)
	woken := make(chan struct{})
	go func() {
		s.mu.Lock()
		for s.takeDeferred(time.Now(), 0) == nil {
			<-time.After(200 * time.Millisecond) // it becomes due now
			s.wake.Wait()
		}
		s.mu.Unlock()
		close(woken)
	}()
	apptest.Receive(t, "the wake-up of the committer", woken)
}
