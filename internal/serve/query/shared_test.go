package query

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// memory is a shared cache in memory, to test only the protocol. internal/serve/redis tests it
// on a real server.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	until  map[string]time.Time
	down   bool
}

func (m *memory) shared() *Shared {
	m.values, m.until = make(map[string][]byte), make(map[string]time.Time)
	locked := func() error {
		m.mu.Lock()
		if m.down {
			return errors.New("down")
		}
		return nil
	}
	live := func(key string) bool { return time.Now().Before(m.until[key]) }
	return &Shared{
		Get: func(_ context.Context, key string) ([]byte, bool, error) {
			err := locked()
			defer m.mu.Unlock()
			return m.values[key], err == nil && live(key), err
		},
		Put: func(_ context.Context, key string, value []byte, ttl time.Duration) error {
			err := locked()
			defer m.mu.Unlock()
			m.values[key], m.until[key] = value, time.Now().Add(ttl)
			return err
		},
		Claim: func(_ context.Context, key, owner string, ttl time.Duration) (bool, error) {
			err := locked()
			defer m.mu.Unlock()
			if err != nil || live(key) {
				return false, err
			}
			m.values[key], m.until[key] = []byte(owner), time.Now().Add(ttl)
			return true, nil
		},
		Hold: func(_ context.Context, key, owner string, ttl time.Duration) (bool, error) {
			err := locked()
			defer m.mu.Unlock()
			if err != nil || !live(key) || string(m.values[key]) != owner {
				return false, err
			}
			m.until[key] = time.Now().Add(ttl)
			return true, nil
		},
		Release: func(_ context.Context, key, owner string) error {
			err := locked()
			defer m.mu.Unlock()
			if live(key) && string(m.values[key]) == owner {
				delete(m.until, key)
			}
			return err
		},
	}
}

func TestReplicasShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var store memory
		source := &counting{takes: 50 * time.Millisecond}
		cfg := testConfig()
		cfg.TTL, cfg.Stale, cfg.Shared = time.Second, time.Second, store.shared()
		var replicas []*Query
		for range 3 {
			replicas = append(replicas, Open(cfg, source))
		}
		var group sync.WaitGroup
		for i := range 3000 {
			group.Go(func() {
				if _, _, err := replicas[i%3].Ask(t.Context(), time.Now(), []string{"1"}); err != nil {
					t.Error(err)
				}
			})
			<-time.After(time.Millisecond)
		}
		group.Wait()
		if n := source.executions.Load(); source.twice.Load() || n > 4 {
			t.Errorf("%d executions in 3 s by 3 replicas, two at once: %v", n, source.twice.Load())
		}
		store.mu.Lock()
		store.down = true
		store.mu.Unlock()
		if _, from, err := replicas[0].Ask(t.Context(), time.Now(), []string{"2"}); err != nil || from != FromDatabase {
			t.Errorf("with the shared cache down: from %d, %v", from, err)
		}
		for _, q := range replicas {
			q.Close()
		}
	})
}

// TestAnswerBeforeClaim: if another replica stores its answer between a lookup and the claim,
// the statement is not executed again.
func TestAnswerBeforeClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnswerBeforeClaim)
}

func testAnswerBeforeClaim(t *testing.T) {
	var store memory
	source := &counting{}
	cfg := testConfig()
	cfg.TTL, cfg.Shared = time.Hour, store.shared()
	other := open(t, cfg, source)
	late := *cfg.Shared
	late.Claim = func(ctx context.Context, key, owner string, ttl time.Duration) (bool, error) {
		if _, _, err := other.Ask(ctx, time.Now(), []string{"1"}); err != nil {
			t.Error(err)
		}
		return cfg.Shared.Claim(ctx, key, owner, ttl)
	}
	lateConfig := cfg
	lateConfig.Shared = &late
	if _, from, err := open(t, lateConfig, source).Ask(t.Context(), time.Now(), []string{"1"}); err != nil || from != FromShared {
		t.Errorf("from %d, %v", from, err)
	}
	if n := source.executions.Load(); n != 1 {
		t.Errorf("%d executions", n)
	}
}

// TestSlowStatementIsClaimed: if a statement takes longer than the claim's and the answer's
// TTL, only one of three replicas executes it.
func TestSlowStatementIsClaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var store memory
		source := &counting{takes: 2*claimLease + claimHold/2}
		cfg := testConfig()
		cfg.TTL, cfg.Timeout, cfg.Shared = time.Second, time.Minute, store.shared()
		var group sync.WaitGroup
		var replicas []*Query
		for i := range 3 {
			q := Open(cfg, source)
			replicas = append(replicas, q)
			group.Go(func() {
				<-time.After(time.Duration(i) * 100 * time.Millisecond)
				if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if _, from, err := replicas[2].Ask(t.Context(), time.Now(), []string{"1"}); err != nil || from != FromMemory {
			t.Errorf("an answer slower than its TTL is not kept: from %d, %v", from, err)
		}
		if n := source.executions.Load(); n != 1 || source.twice.Load() {
			t.Errorf("%d executions by 3 replicas, two at once: %v", n, source.twice.Load())
		}
		for _, q := range replicas {
			q.Close()
		}
	})
}

// TestFailedOwnerIsFollowedByOne: if the execution fails, the waiting replicas execute the
// statement one by one.
func TestFailedOwnerIsFollowedByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var store memory
		source := &counting{takes: 100 * time.Millisecond, err: errors.New("broken")}
		cfg := testConfig()
		cfg.TTL, cfg.Shared = time.Second, store.shared()
		var group sync.WaitGroup
		for range 5 {
			q := Open(cfg, source)
			group.Go(func() {
				if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); !errors.Is(err, source.err) {
					t.Error(err)
				}
				q.Close()
			})
		}
		group.Wait()
		if n := source.executions.Load(); n != 5 || source.twice.Load() {
			t.Errorf("%d executions, two at once: %v", n, source.twice.Load())
		}
	})
}

// TestClockOfAnotherReplica: an answer from a replica whose clock is ahead is not served for
// longer than others.
func TestClockOfAnotherReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var store memory
		cfg := testConfig()
		cfg.TTL, cfg.Shared = time.Second, store.shared()
		q := Open(cfg, &counting{})
		defer q.Close()
		args := []string{"1"}
		name := string(param.AppendArgs(nil, args))
		ahead := time.Now().Add(time.Hour)
		b := encodeAnswer(name, newAnswer([]byte("{}"), 1, ahead, ahead, FromDatabase))
		if err := cfg.Shared.Put(t.Context(), sharedKey(&cfg, cfg.Database(), name), b, cfg.TTL); err != nil {
			t.Fatal(err)
		}
		if a, from, err := q.Ask(t.Context(), time.Now(), args); err != nil || from != FromShared || a.ReadAt.After(time.Now()) {
			t.Errorf("%+v from %d, %v", a, from, err)
		}
		<-time.After(2 * cfg.TTL)
		if _, from, err := q.Ask(t.Context(), time.Now(), args); err != nil || from != FromDatabase {
			t.Errorf("after twice the TTL from %d, %v", from, err)
		}
	})
}

// TestReleaseIsTheOwners: an owner whose claim expired cannot release the claim of the next owner.
func TestReleaseIsTheOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var store memory
		cfg := testConfig()
		cfg.TTL, cfg.Shared = time.Second, store.shared()
		q := Open(cfg, sourceFunc(func(ctx context.Context) error {
			store.mu.Lock()
			defer store.mu.Unlock()
			for key := range store.values {
				store.values[key] = []byte("another")
			}
			return errors.New("broken")
		}))
		defer q.Close()
		if _, _, err := q.Ask(t.Context(), time.Now(), []string{"1"}); err == nil {
			t.Error("no error")
		}
		if len(store.until) != 1 {
			t.Error("the claim of another is gone")
		}
	})
}

type sourceFunc func(context.Context) error

func (f sourceFunc) Read(ctx context.Context, _ feed.Range, _ *feed.Rows) error { return f(ctx) }

// TestNamesInSharedCache: each difference between two queries gives another name.
func TestNamesInSharedCache(t *testing.T) {
	t.Parallel()
	base := testConfig()
	base.SQL = "SELECT :a"
	with := func(change func(*Config)) Config {
		cfg := base
		change(&cfg)
		return cfg
	}
	seen := map[string]int{}
	for i, cfg := range []Config{
		base,
		with(func(c *Config) { c.Name = "/r" }),
		with(func(c *Config) { c.SQL = "SELECT :a + 1" }),
		with(func(c *Config) { c.Params = []param.Param{{Name: "a", Type: param.Text}} }),
		with(func(c *Config) { c.Params = []param.Param{{Name: "b", Type: param.Integer}} }),
		with(func(c *Config) { c.Params = []param.Param{{Name: "a", Type: param.Integer, ListMax: 9}} }),
		with(func(c *Config) { c.Name, c.SQL = "/qS", "ELECT :a" }),
		with(func(c *Config) { c.Limit.Rows = 1 }),
	} {
		key := shareKey(&cfg, "one")
		if was, ok := seen[key]; ok {
			t.Errorf("configurations %d and %d share answers", was, i)
		}
		seen[key] = i
	}
	if same := base; shareKey(&same, "one") != shareKey(&base, "one") || shareKey(&base, "two") == shareKey(&base, "one") {
		t.Error("one configuration has two names, or two databases have one")
	}
}

// TestUnknownDatabaseSharesNothing: until the database is known, and while another one is, a
// query gets no answer from the shared cache. Later it gets its own there.
func TestUnknownDatabaseSharesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var store memory
		database := "first"
		cfg := testConfig()
		cfg.TTL, cfg.Shared, cfg.Database = time.Hour, store.shared(), func() string { return database }
		args := []string{"1"}
		for _, c := range []struct {
			database string
			want     From
		}{{"", FromDatabase}, {"first", FromDatabase}, {"", FromDatabase}, {"second", FromDatabase}, {"first", FromShared}} {
			database = c.database
			q := Open(cfg, &counting{})
			if _, from, err := q.Ask(t.Context(), time.Now(), args); err != nil || from != c.want {
				t.Errorf("database %q: from %d, want %d; %v", c.database, from, c.want, err)
			}
			q.Close()
		}
	})
}

// TestRenewalsBackOff serves a stale answer while the database fails quickly. Not every request
// may cause an execution.
func TestRenewalsBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{}
		cfg := testConfig()
		cfg.TTL, cfg.Stale = time.Second, time.Hour
		q := Open(cfg, source)
		defer q.Close()
		ask := func() (n int64) {
			before := source.executions.Load()
			for range 20_000 {
				if _, from, err := q.Ask(t.Context(), time.Now(), []string{"1"}); err != nil || source.executions.Load() > 1 && from != FromMemory {
					t.Fatal(from, err)
				}
				<-time.After(time.Millisecond)
			}
			return source.executions.Load() - before
		}
		ask()
		source.err = errors.New("refused")
		if n := ask(); n < 5 || n > 12 {
			t.Errorf("%d renewals in 20 s that failed", n)
		}
		source.err = nil
		if n := ask(); n < 13 || n > 20 {
			t.Errorf("%d renewals in 20 s, a TTL of 1 s, once the database answers", n)
		}
	})
}

func TestLogLimit(t *testing.T) {
	t.Parallel()
	var c LogLimit
	now := time.Unix(1000, 0)
	var lines atomic.Int64
	var silent uint64
	for range 10_000 {
		now = now.Add(time.Millisecond)
		if n, due := c.Error(now); due {
			lines.Add(1)
			silent += n
		}
		if _, over := c.Success(now); over {
			t.Fatal("over just after an error")
		}
	}
	if n := lines.Load(); n != 10 || silent != 9*999 {
		t.Errorf("%d lines in 10 s, which count %d more", n, silent)
	}
	if n, over := c.Success(now.Add(time.Second)); !over || n != 999 {
		t.Errorf("over: %v, %d", over, n)
	}
	if _, over := c.Success(now.Add(time.Hour)); over {
		t.Error("over twice")
	}
}
