package spool

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

// fill appends to a name until it is refused, and returns how many entries were stored.
func fill(t *testing.T, s *Spool, name string, e queue.Entry) (int, error) {
	t.Helper()
	for n := range 100_000 {
		if e.Key != "" {
			e.Key = fmt.Sprintf("%0200d", n)
		}
		if _, err := s.Append(t.Context(), name, e); err != nil {
			return n, err
		}
	}
	t.Fatalf("%s is never full", name)
	return 0, nil
}

// A name that is not drained fills its share. The others, and names without a share, are
// accepted.
func TestShares(t *testing.T) {
	t.Parallel()
	const share = 1 << 20
	now := time.Now()
	tests := map[string]queue.Entry{
		"small": {Payload: []byte(strings.Repeat("x", 1000))},
		"large": {Payload: []byte(strings.Repeat("x", 100<<10))},
		"keyed": {Payload: []byte(strings.Repeat("x", 2000)), At: now, Key: "k", Expires: now.Add(time.Hour)},
	}
	for name, e := range tests {
		t.Run(name, func(t *testing.T) { testShares(t, share, e) })
	}
}

func testShares(t *testing.T, share int64, e queue.Entry) {
	file := filepath.Join(t.TempDir(), "s.db")
	cfg := testConfig()
	cfg.Bytes, cfg.Shares = 2*share+share/4, map[string]int64{"/a": share, "/b": share}
	s := openAt(t, file, cfg)
	kept, err := fill(t, s, "/a", e)
	var over *queue.Overload
	if !errors.As(err, &over) || over.Limit != queue.LimitSpool || !strings.Contains(err.Error(), "/a") {
		t.Fatalf("%d kept, then %v", kept, err)
	}
	stats := s.Stats()
	if used := stats.Names[0].UsedBytes; used < share/10*8 || used > share || stats.UsedBytes > share*11/10 {
		t.Errorf("%d bytes are counted of a share of %d, the file has %d", used, share, stats.UsedBytes)
	}
	if err := s.Ready("/a"); err == nil || !strings.Contains(err.Error(), "/a") {
		t.Errorf("ready: %v", err)
	}
	if err := s.Ready("/b"); err != nil {
		t.Errorf("the neighbour is not ready: %v", err)
	}
	if other, err := fill(t, s, "/b", e); other < kept/10*9 || !strings.Contains(err.Error(), "/b") {
		t.Errorf("the other name stored %d, the first %d: %v", other, kept, err)
	}
	put(t, s, "/c", "without a share")
	if s.Stats().Overloaded[queue.LimitSpool] != 2 {
		t.Errorf("overloads %v", s.Stats().Overloaded)
	}
	closeSpool(t, s)

	// What waits counts after a start too, and dead letters do.
	s = openAt(t, file, cfg)
	defer closeSpool(t, s)
	if got := s.Stats().Names[0].UsedBytes; float64(got)/float64(stats.Names[0].UsedBytes) < 0.9 {
		t.Errorf("%d bytes after a start, %d before", got, stats.Names[0].UsedBytes)
	}
	again := e
	again.Key = ""
	if _, err := s.Append(t.Context(), "/a", again); !errors.Is(err, queue.ErrOverloaded) {
		t.Errorf("after a start: %v", err)
	}
	refuseAll(t, s, "/a")
	if n, err := fill(t, s, "/a", again); n > kept/2 || err == nil {
		t.Errorf("%d beside the dead letters, %d before: %v", n, kept, err)
	}
	drainAll(t, s, "/a", newDatabase())
	drainAll(t, s, "/b", newDatabase())
	command, _ := testCommand(file)
	command.Remote = sameProcess{s}
	if err := command.Discard(t.Context(), Filter{Stream: "/a"}, true); err != nil {
		t.Error(err)
	}
	if n := s.Stats().Names[0]; n.UsedBytes != 0 {
		t.Errorf("empty: %+v", n)
	}
	if err := s.Ready(""); err != nil {
		t.Errorf("ready: %v", err)
	}
	put(t, s, "/a", "again")
}

// An entry that is larger than its share is refused for good.
func TestShareTooLarge(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Shares = map[string]int64{"/a": 1000}
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), cfg)
	defer closeSpool(t, s)
	if _, err := s.Append(t.Context(), "/a", queue.Entry{Payload: make([]byte, 2000)}); !errors.Is(err, queue.ErrTooLarge) {
		t.Errorf("larger than its share: %v", err)
	}
	put(t, s, "/a", "small")
}

// Two requests with a key are the same if their acceptance times differ by less than the
// time that the key is kept, whatever the clock says when they are compared.
func TestKeyAcceptance(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	defer func() { closeSpool(t, s) }()
	start := time.Now().Add(-100 * time.Hour)
	keyed := func(after, ttl time.Duration, want bool) {
		t.Helper()
		e := queue.Entry{At: start.Add(after), Payload: []byte("x"), Rows: 1, Key: "k", Fingerprint: sha256.Sum256([]byte("x"))}
		e.Expires = e.At.Add(ttl)
		if replayed, err := s.Append(t.Context(), "/a", e); replayed != want || err != nil {
			t.Errorf("%v after the first: replayed %v, want %v; %v", after, replayed, want, err)
		}
	}
	keyed(0, time.Hour, false)
	keyed(time.Hour-time.Second, time.Hour, true) // long expired by the clock
	keyed(-time.Hour+time.Second, time.Hour, true)
	keyed(30*time.Minute, 2*time.Hour, true)
	closeSpool(t, s)
	s = openAt(t, file, testConfig())
	keyed(time.Hour-time.Second, time.Hour, true)
	keyed(time.Hour, time.Hour, false)
	keyed(90*time.Minute, time.Hour, true)
	start = time.Now()
	keyed(48*time.Hour, time.Hour, false) // the clock is ahead
	keyed(0, time.Hour, true)
}

// A request does not join one with its key that is accepted at another time.
func TestKeyAcceptanceConcurrent(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	now := time.Now().Add(-10 * time.Hour)
	results := make(chan error)
	for i := range 10 {
		go func() {
			at := now.Add(time.Duration(i) * time.Hour)
			_, err := s.Append(t.Context(), "/a", queue.Entry{At: at, Payload: []byte("x"), Key: "k", Expires: at.Add(time.Hour), Fingerprint: [32]byte{byte(i)}})
			results <- err
		}()
	}
	for range 10 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := s.Stats().Entries; n != 10 {
		t.Errorf("%d entries stored, want 10", n)
	}
}

// After an error about a record that is held, the destination gets later groups too, even
// if the first one alone fills the batch.
func TestHeld(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	for i := range 4 {
		put(t, s, "/a", fmt.Sprintf("%d %s", i, strings.Repeat("x", 300)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var calls []int
	err := s.Drain(ctx, "/a", 700, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		calls = append(calls, len(groups))
		switch len(calls) {
		case 1:
			return queue.Stored{}, errors.New("the database is away")
		case 2:
			return queue.Stored{}, fmt.Errorf("held: %w", queue.ErrHeld)
		case 3:
			return queue.Stored{}, queue.ErrHeld
		}
		cancel()
		return queue.Stored{Groups: len(groups)}, nil
	}))
	if err != nil || fmt.Sprint(calls) != "[2 1 2 4]" {
		t.Errorf("groups of each call %v, %v", calls, err)
	}
}

// A record is held, and all records but the newest prove nothing.
func TestHeldNewest(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	const n = heldMost + 20
	for range n {
		put(t, s, "/a", strings.Repeat("x", 1000))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := s.Drain(ctx, "/a", 1000, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		if groups[len(groups)-1].Sequence < n {
			return queue.Stored{}, queue.ErrHeld
		}
		cancel()
		if len(groups) != heldMost+2 || groups[heldMost-1].Sequence != heldMost {
			t.Errorf("%d groups, the last in order %d", len(groups), groups[heldMost-1].Sequence)
		}
		return queue.Stored{Groups: heldMost}, nil
	}))
	if left := s.Stats().Names[0].Groups; err != nil || left != n-heldMost {
		t.Errorf("%d groups are left, %v", left, err)
	}
}

// heldDrain returns a drain that gives as many groups as it can because a record is held.
// Of n groups between those and the newest, it picks the one that pick returns.
func heldDrain(s *Spool, pick func(n uint64) uint64) *drain {
	return &drain{spool: s, name: "/a", bytes: 1000, limit: 1000, least: heldMost, pick: pick}
}

// While a record is held, any group behind it may be given to the destination.
func TestHeldPicks(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	for range heldMost + 20 {
		put(t, s, "/a", strings.Repeat("x", 1000))
	}
	picked := map[uint64]bool{}
	for i := range uint64(19) {
		groups, err := heldDrain(s, func(n uint64) uint64 {
			if n != 19 {
				t.Errorf("one of %d groups, want 19", n)
			}
			return i
		}).next(t.Context())
		if err != nil || len(groups) != heldMost+2 || groups[heldMost+1].Sequence != heldMost+20 {
			t.Fatalf("%d groups, %v", len(groups), err)
		}
		picked[groups[heldMost].Sequence] = true
	}
	if len(picked) != 19 || !picked[heldMost+1] || !picked[heldMost+19] {
		t.Errorf("picked %v", picked)
	}
	if _, err := s.file.write(change{drained: []drained{{name: "/a", upto: 19}}}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.name("/a").head.drained = 19
	s.mu.Unlock()
	groups, err := heldDrain(s, nil).next(t.Context()) // only the newest is left
	if err != nil || len(groups) != heldMost+1 {
		t.Errorf("%d groups, %v", len(groups), err)
	}
}

// A group that is damaged behind one that is held is reported.
func TestHeldDamaged(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	for range 20 {
		put(t, s, "/a", "x")
	}
	if err := sqlitex.ExecuteTransient(s.file.writer, "UPDATE groups SET sum = sum + 1 WHERE id & 15 = 10", nil); err != nil {
		t.Fatal(err)
	}
	d := heldDrain(s, nil)
	if groups, err := d.next(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("held: %d groups, %v", len(groups), err)
	}
	d.least = 1
	if groups, err := d.next(t.Context()); len(groups) != 9 || err != nil {
		t.Errorf("not held: %d groups, %v", len(groups), err)
	}
}

// The group behind one that is held is handed over although both exceed the limit.
func TestHeldLarge(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	for range 3 {
		put(t, s, "/a", strings.Repeat("x", 3000))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var calls []int
	err := s.Drain(ctx, "/a", 1000, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		if calls = append(calls, len(groups)); len(calls) == 1 {
			return queue.Stored{}, queue.ErrHeld
		}
		if len(calls) == 3 {
			cancel()
		}
		return queue.Stored{Groups: len(groups)}, nil
	}))
	if err != nil || fmt.Sprint(calls) != "[1 2 1]" {
		t.Errorf("groups of each call %v, %v", calls, err)
	}
}
