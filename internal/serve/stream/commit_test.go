package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/queue"
)

// memory is a Sink in memory with a configurable commit time.
type memory struct {
	takes time.Duration

	mu       sync.Mutex
	rows     []int64 // the first column, as it was stored
	batches  []int   // the rows of each
	ids      map[[16]byte]bool
	keys     map[string]Entry
	outcomes map[string][]byte
	failures []error // of the next attempts; for ErrUnconfirmed, silent says whether the batch was stored
	silent   bool    // an unconfirmed attempt was stored
	swept    int
	parallel int
	most     int // commits at once
}

func newMemory(takes time.Duration) *memory {
	return &memory{takes: takes, ids: map[[16]byte]bool{}, keys: map[string]Entry{}, outcomes: map[string][]byte{}}
}

func (m *memory) Commit(ctx context.Context, b *Batch) error {
	m.mu.Lock()
	m.parallel++
	m.most = max(m.most, m.parallel)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.parallel--
		m.mu.Unlock()
	}()
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrTransient, ctx.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.failures) > 0 {
		err := m.failures[0]
		m.failures = m.failures[1:]
		if errors.Is(err, ErrUnconfirmed) && m.silent {
			m.store(b)
		}
		return err
	}
	m.store(b)
	return nil
}

// store stores a batch once. It refuses negative numbers.
func (m *memory) store(b *Batch) {
	if m.ids[b.ID] {
		return
	}
	m.ids[b.ID] = true
	for _, e := range b.Requests {
		if first, ok := m.keys[e.Key]; ok && e.Key != "" {
			e.Found(first.Fingerprint[:], m.outcomes[e.Key])
		}
	}
	rows := b.Rows(nil)
	for _, r := range rows {
		n := r.Value(r.Row, 0).N
		if n < 0 {
			r.Entry.Result.Refused = append(r.Entry.Result.Refused, RowRefusal{Row: r.Row, Reason: "negative"})
			continue
		}
		m.rows = append(m.rows, n)
	}
	for _, e := range b.Keyed(nil) {
		m.keys[e.Key] = Entry{Fingerprint: e.Fingerprint}
		m.outcomes[e.Key], _ = e.OutcomeNow()
	}
	m.batches = append(m.batches, len(rows))
}

func (m *memory) Durability(context.Context) (Durability, error) { return Durability{}, nil }

func (m *memory) Sweep(context.Context, Keep, int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.swept++
	return 0, nil
}

func (m *memory) fail(silent bool, errs ...error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures, m.silent = errs, silent
}

func testConfig() Config {
	return Config{
		Committers: 1, BatchRows: 10, BatchBytes: 1 << 20, QueueRows: 100, QueueBytes: 1 << 20, WaitMax: time.Second,
		CommitTimeout: time.Second, RetryFor: 10 * time.Second, KeyTTL: time.Hour, Log: slog.New(slog.DiscardHandler),
	}
}

func openTest(t *testing.T, sink Sink, change func(*Config, *Definition)) *Stream {
	t.Helper()
	cfg := testConfig()
	def := Definition{Columns: []Column{{Name: "n", Type: Integer, Required: true}, {Name: "lane", Type: Integer}}}
	if change != nil {
		change(&cfg, &def)
	}
	return Open(cfg, mustSchema(t, def), sink)
}

func closeTest(t *testing.T, s *Stream) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func testRequest(t testing.TB, s *Stream, key, body string) Request {
	t.Helper()
	records, refused, err := s.Schema().Parse([]byte(body), FormLines, testNow, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	return Request{Records: records, Refused: refused, Key: key, Fingerprint: FingerprintOf([]byte(body))}
}

func number(n int) string { return fmt.Sprintf("{\"n\":%d}", n) }

// A single client waits for one commit. Clients that arrive during a commit share the next.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(10 * time.Millisecond)
		s := openTest(t, sink, nil)
		start := time.Now()
		for n := range 3 {
			if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(n))); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 30*time.Millisecond {
			t.Errorf("three commits one after the other took %v", took)
		}
		start = time.Now()
		var group sync.WaitGroup
		for n := range 25 {
			group.Go(func() {
				if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(10+n))); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if took := time.Since(start); took > 43*time.Millisecond { // four commits, and a wait for those that might send again
			t.Errorf("25 at once took %v", took)
		}
		closeTest(t, s)
		if total := len(sink.rows); total != 28 || slices.Max(sink.batches) != 10 || len(sink.batches) > 7 {
			t.Errorf("%d rows in batches of %v", total, sink.batches)
		}
		if s.Stats().CommitSeconds < 0.009 || s.Stats().Stored != 28 {
			t.Errorf("stats %+v", s.Stats())
		}
	})
}

// TestReady: of the requests that Begin has accepted, ready is called for those that have an answer to wait for, and for no others.
func TestReady(t *testing.T) {
	for name, want := range map[string]struct {
		memory  bool
		waiting int
		results []error
	}{
		"database": {false, 2, []error{nil, nil, nil, queue.ErrShared, queue.ErrShared}},
		"memory":   {true, 0, []error{nil, nil, nil, nil, queue.ErrKeyReused}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := openTest(t, newMemory(10*time.Millisecond), func(c *Config, _ *Definition) { c.Memory = want.memory })
			waiting, ready := 0, 0
			for i, r := range []Request{
				testRequest(t, s, "", number(1)), testRequest(t, s, "", ""), testRequest(t, s, "a", number(2)),
				testRequest(t, s, "a", number(2)), testRequest(t, s, "a", number(3)),
			} {
				_, w, err := s.Begin(t.Context(), r, func() func() {
					ready++
					return nil
				})
				if !errors.Is(err, want.results[i]) {
					t.Errorf("%s, request %d: %v, want %v", name, i, err, want.results[i])
				}
				if w != nil {
					waiting++
				}
			}
			closeTest(t, s)
			if waiting != want.waiting || ready != waiting {
				t.Errorf("%s: %d wait, want %d; %d are ready", name, waiting, want.waiting, ready)
			}
		})
	}
}

// Commits run concurrently, except those of one lane, which keep their order.
func TestCommittersAndLanes(t *testing.T) {
	for _, orderBy := range []string{"", "lane"} {
		synctest.Test(t, func(t *testing.T) {
			sink := newMemory(10 * time.Millisecond)
			s := openTest(t, sink, func(c *Config, d *Definition) {
				c.Committers, c.BatchRows, c.WaitMax = 4, 2, time.Minute
				d.OrderBy = orderBy
			})
			for n := range 80 {
				if err := s.Accept(testRequest(t, s, "", fmt.Sprintf("{\"n\":%d,\"lane\":%d}", n, n%5))); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			closeTest(t, s)
			if len(sink.rows) != 80 || sink.most < 3 {
				t.Errorf("order %q: %d rows, %d commits at once", orderBy, len(sink.rows), sink.most)
			}
			last := map[int64]int64{}
			for _, n := range sink.rows {
				if orderBy != "" && n < last[n%5] {
					t.Errorf("%d is stored behind %d of its lane", n, last[n%5])
				}
				last[n%5] = n
			}
		})
	}
}

func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(300 * time.Millisecond)
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.QueueRows = 60 })
		if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(0))); err != nil { // the mean is known
			t.Fatal(err)
		}
		var refused *queue.Overload
		accepted := 0
		for n := 1; n < 200; n++ {
			err := s.Accept(testRequest(t, s, "", number(n)))
			if err == nil {
				accepted++
			} else if !errors.As(err, &refused) || !errors.Is(err, queue.ErrOverloaded) {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		// One is under way; of 300 ms each, two more batches of ten end within a second.
		if accepted != 21 || refused.Limit != "wait_max" || refused.Wait <= time.Second || refused.RetryAfter < 100*time.Millisecond {
			t.Errorf("%d accepted, then %+v", accepted, refused)
		}
		if s.Ready() == nil {
			t.Error("ready, with a full queue")
		}
		if _, err := s.Commit(t.Context(), testRequest(t, s, "", strings.Repeat(number(1)+"\n", 61))); !errors.Is(err, queue.ErrTooLarge) {
			t.Errorf("61 records for a queue of 60: %v", err)
		}
		if stats := s.Stats(); stats.Overloaded[queue.LimitWait] != uint64(199-accepted) || stats.TooLarge != 1 {
			t.Errorf("counted as refused: %v, %d", stats.Overloaded, stats.TooLarge)
		}
		closeTest(t, s)
		if len(sink.rows) != 1+accepted {
			t.Errorf("%d rows stored of %d accepted", len(sink.rows), accepted)
		}
		if err := s.Accept(testRequest(t, s, "", number(1))); !errors.Is(err, queue.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	})
}

// A request with a key and no records is answered at once, also with order_by, and leaves
// nothing for Close to wait for.
func TestKeyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(10 * time.Millisecond)
		s := openTest(t, sink, func(c *Config, d *Definition) { c.Committers, d.OrderBy = 3, "lane" })
		for range 2 {
			for _, body := range []string{"", `{"n":"x"}`} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				o, err := s.Commit(ctx, testRequest(t, s, "key of "+body, body))
				cancel()
				if err != nil || o.Stored != 0 || len(o.Refused) != len(body)/9 {
					t.Errorf("%q: %+v, %v", body, o, err)
				}
			}
		}
		closeTest(t, s)
	})
}

// A key that is not valid text for databases is not sent to them.
func TestKeyText(t *testing.T) {
	sink := newMemory(0)
	s := openTest(t, sink, nil)
	for _, key := range []string{"\xff", "a\x00", strings.Repeat("k", queue.KeyMax+1)} {
		if _, err := s.Commit(t.Context(), testRequest(t, s, key, number(1))); !errors.Is(err, queue.ErrBadKey) {
			t.Errorf("%q: %v", key, err)
		}
		if err := s.Accept(testRequest(t, s, key, number(1))); !errors.Is(err, queue.ErrBadKey) {
			t.Errorf("%q: %v", key, err)
		}
	}
	closeTest(t, s)
	if len(sink.batches) != 0 {
		t.Errorf("%d batches", len(sink.batches))
	}
}

// After an outage, a stream detects that the database is fast again.
func TestOverloadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(900 * time.Millisecond)
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.WaitMax = 100 * time.Millisecond })
		defer closeTest(t, s)
		commit := func() error {
			_, err := s.Commit(t.Context(), testRequest(t, s, "", number(0)))
			return err
		}
		if err := commit(); err != nil {
			t.Fatal(err)
		}
		sink.takes = time.Millisecond
		for range 20 { // an empty queue accepts a request
			if err := commit(); err != nil {
				t.Fatal(err)
			}
		}
		if wait := s.Stats().PredictedWait; wait > 20*time.Millisecond || s.Ready() != nil {
			t.Errorf("predicts %v, %v", wait, s.Ready())
		}
	})
}

// If a caller leaves, Commit returns that the outcome is unknown. The record is stored.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(50 * time.Millisecond)
		s := openTest(t, sink, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := s.Commit(ctx, testRequest(t, s, "", number(1)))
		if !errors.Is(err, queue.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Millisecond {
			t.Errorf("left after %v: %v", time.Since(start), err)
		}
		closeTest(t, s)
		if len(sink.rows) != 1 {
			t.Errorf("%d rows stored", len(sink.rows))
		}
	})
}

func TestRetries(t *testing.T) {
	boom := errors.New("permission denied")
	tests := []struct {
		name     string
		failures []error
		silent   bool
		forever  bool
		want     error
		stored   int
	}{
		{"transient twice", []error{ErrTransient, ErrTransient}, false, false, nil, 1},
		{"unconfirmed, not stored", []error{ErrUnconfirmed}, false, false, nil, 1},
		{"unconfirmed, stored", []error{ErrUnconfirmed}, true, false, nil, 1},
		{"unconfirmed, stored, then transient", []error{ErrUnconfirmed, ErrTransient, ErrUnconfirmed}, true, false, nil, 1},
		{"down for good", slices.Repeat([]error{ErrTransient}, 1000), false, true, ErrUnavailable, 0},
		{"unconfirmed, then down for good", append([]error{ErrUnconfirmed}, slices.Repeat([]error{ErrTransient}, 1000)...), true, true, queue.ErrUnknown, 1},
		{"a mistake", []error{boom}, false, false, boom, 0},
		{"unconfirmed, then a mistake", []error{ErrUnconfirmed, boom}, true, false, queue.ErrUnknown, 1},
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			sink := newMemory(time.Millisecond)
			s := openTest(t, sink, nil)
			sink.fail(test.silent, test.failures...)
			start := time.Now()
			o, err := s.Commit(t.Context(), testRequest(t, s, "", number(1)))
			if test.want == nil && (err != nil || o.Stored != 1) || !errors.Is(err, test.want) {
				t.Errorf("%s: %+v, %v", test.name, o, err)
			}
			took := time.Since(start)
			if test.forever && (took < 8*time.Second || took > 10*time.Second) {
				t.Errorf("%s: given up after %v", test.name, took)
			}
			if (s.Ready() != nil) != (err != nil) {
				t.Errorf("%s: ready: %v", test.name, s.Ready())
			}
			sink.fail(false)
			closeTest(t, s)
			if len(sink.rows) != test.stored {
				t.Errorf("%s: %d rows stored", test.name, len(sink.rows))
			}
		})
	}
}

// A batch is not retried if no caller waits for it.
func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(time.Millisecond)
		s := openTest(t, sink, nil)
		sink.fail(false, slices.Repeat([]error{ErrTransient}, 1000)...)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.Commit(ctx, testRequest(t, s, "", number(1))); !errors.Is(err, queue.ErrUnknown) {
			t.Errorf("left: %v", err)
		}
		<-time.After(2 * time.Second)
		if stats := s.Stats(); stats.Committing != 0 || stats.Failed != 1 {
			t.Errorf("stats %+v", stats)
		}
		closeTest(t, s)
	})
}

// Close returns an error when its context ends, and answers all requests.
func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(time.Millisecond)
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.RetryFor = time.Hour })
		sink.fail(false, slices.Repeat([]error{ErrTransient}, 100000)...)
		var group sync.WaitGroup
		for n := range 30 {
			group.Go(func() {
				if _, err := s.Commit(t.Context(), testRequest(t, s, "", number(n))); !errors.Is(err, ErrUnavailable) {
					t.Errorf("closed: %v", err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := s.Close(ctx); err == nil || !strings.Contains(err.Error(), "30 accepted records") {
			t.Errorf("close: %v", err)
		}
		group.Wait()
	})
}

// Concurrent requests with the same key wait for the first and get its outcome.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(10 * time.Millisecond)
		s := openTest(t, sink, func(c *Config, _ *Definition) { c.Committers = 3 })
		body := "{\"n\":1}\n{\"n\":-2}\n{}\n{\"n\":3}"
		var group sync.WaitGroup
		var mu sync.Mutex
		replayed := 0
		for n := range 20 {
			group.Go(func() {
				if n%5 == 4 {
					<-time.After(15 * time.Millisecond) // by now the first is stored
				}
				o, err := s.Commit(t.Context(), testRequest(t, s, "key", body))
				if err != nil || o.Stored != 2 || len(o.Refused) != 2 || o.Refused[0].Reason != "negative" || o.Refused[1].Index != 2 {
					t.Errorf("%+v, %v", o, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if o.Replayed {
					replayed++
				}
			})
		}
		group.Wait()
		if _, err := s.Commit(t.Context(), testRequest(t, s, "key", number(5))); !errors.Is(err, queue.ErrKeyReused) {
			t.Errorf("another body: %v", err)
		}
		closeTest(t, s)
		if len(sink.rows) != 2 || replayed != 19 {
			t.Errorf("%d rows, %d replayed", len(sink.rows), replayed)
		}
	})
}

// Every minute the settings are read and expired rows are deleted.
func TestMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMemory(time.Millisecond)
		s := openTest(t, sink, nil)
		if err := s.Start(t.Context(), &testDatabase{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(3*time.Minute + time.Second)
		closeTest(t, s)
		if d, ok := s.Durability(); !ok || d.String() != "database" || sink.swept != 4 {
			t.Errorf("%v, %v, swept %d times", d, ok, sink.swept)
		}
	})
	unsafe := Durability{Unsafe: []string{"fsync=off", "synchronous_commit=off"}}
	if got := unsafe.String(); got != "database, not fsynced: fsync=off, synchronous_commit=off" {
		t.Error(got)
	}
}

func BenchmarkCommit(b *testing.B) {
	s := Open(Config{
		Committers: 2, BatchRows: 1000, BatchBytes: 1 << 20, QueueRows: 100000, QueueBytes: 64 << 20, WaitMax: time.Minute,
		CommitTimeout: time.Second, RetryFor: time.Second, KeyTTL: time.Hour, Log: slog.New(slog.DiscardHandler),
	}, mustSchema(b, Definition{Columns: []Column{{Name: "n", Type: Integer}}}), newMemory(0))
	r := testRequest(b, s, "", number(1))
	b.SetParallelism(500)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Commit(b.Context(), r); err != nil {
				b.Error(err)
			}
		}
	})
	if err := s.Close(b.Context()); err != nil {
		b.Error(err)
	}
}
