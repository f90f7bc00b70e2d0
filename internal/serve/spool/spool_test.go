package spool

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

func testConfig() Config {
	return Config{Bytes: 1 << 30, QueueBytes: 64 << 20, GroupBytes: 1 << 20, Log: slog.New(slog.DiscardHandler), Admin: "127.0.0.1:9"}
}

// openAt opens a spool. The test closes it, or its process ends.
func openAt(t testing.TB, path string, cfg Config) *Spool {
	t.Helper()
	s, err := Open(context.Background(), path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeSpool(t testing.TB, s *Spool) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func put(t testing.TB, s *Spool, name, payload string) {
	t.Helper()
	if _, err := s.Append(context.Background(), name, queue.Entry{Payload: []byte(payload), Rows: 1}); err != nil {
		t.Fatalf("append %.20q: %v", payload, err)
	}
}

// destination is a function as a queue.Destination.
type destination func(ctx context.Context, groups []queue.Group) (queue.Stored, error)

func (d destination) StoreGroups(ctx context.Context, groups []queue.Group) (queue.Stored, error) {
	return d(ctx, groups)
}

// drainSome drains a name until it has n payloads, and returns them.
func drainSome(t testing.TB, s *Spool, name string, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var got []string
	err := s.Drain(ctx, name, 1<<20, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		taken := 0
		for _, g := range groups {
			if len(got) >= n {
				break
			}
			taken++
			for _, e := range g.Entries {
				got = append(got, string(e.Payload))
			}
		}
		if len(got) >= n {
			cancel()
		}
		return queue.Stored{Groups: taken}, nil
	}))
	if err != nil || len(got) < n {
		t.Fatalf("drained %d of %d: %v", len(got), n, err)
	}
	return got
}

func TestOrderAndNames(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spool", "s.db")
	s := openAt(t, file, testConfig())
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := range 25 {
				put(t, s, fmt.Sprint("/", w%2), fmt.Sprintf("%d %d", w, i))
			}
		})
	}
	writers.Wait()
	stats := s.Stats()
	if stats.Entries != 200 || stats.Syncs >= 200 || len(stats.Names) != 2 || stats.Names[0].Rows != 100 || stats.UsedBytes == 0 {
		t.Errorf("stats %+v", stats)
	}
	t.Logf("200 entries in %d fsyncs", stats.Syncs)
	closeSpool(t, s)

	s = openAt(t, file, testConfig())
	defer closeSpool(t, s)
	for n := range 2 {
		got := drainSome(t, s, fmt.Sprint("/", n), 100)
		last := map[string]int{}
		for _, text := range got {
			var w, i int
			if _, err := fmt.Sscan(text, &w, &i); err != nil || w%2 != n {
				t.Fatalf("%q in /%d: %v", text, n, err)
			}
			if next := last[fmt.Sprint(w)]; i != next {
				t.Fatalf("writer %d: %d behind %d", w, i, next)
			}
			last[fmt.Sprint(w)] = i + 1
		}
	}
	if stats := s.Stats(); stats.Names[0].Groups != 0 || stats.Names[1].Bytes != 0 || stats.Names[0].Records != 100 {
		t.Errorf("stats of an empty spool: %+v", stats)
	}
}

// TestDeletionFails lets the file refuse the deletion of groups that were stored. They are
// handed over again until it succeeds, and new entries are refused meanwhile.
func TestDeletionFails(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "spool.db"), testConfig())
	defer closeSpool(t, s)
	put(t, s, "a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	writable := func(yes bool) { // the writer waits for the destination
		if err := sqlitex.ExecuteTransient(s.file.writer, fmt.Sprintf("PRAGMA query_only = %t", !yes), nil); err != nil {
			t.Error(err)
		}
	}
	times := 0
	err := s.Drain(ctx, "a", 1<<20, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		times++
		if len(groups) != 1 || string(groups[0].Entries[0].Payload) != "1" {
			t.Errorf("handed over %+v", groups)
		}
		switch times {
		case 1:
			writable(false)
		case 3:
			if n := s.Stats().Names[0]; n.State != DrainRetrying || n.Reason == "" || s.Ready("") == nil {
				t.Errorf("after two attempts: %+v, ready: %v", n, s.Ready(""))
			}
			writable(true)
			cancel()
		}
		return queue.Stored{Groups: len(groups)}, nil
	}))
	if n := s.Stats().Names[0]; err != nil || times != 3 || n.Groups != 0 {
		t.Errorf("handed over %d times, %d groups left, %v", times, n.Groups, err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Bytes, cfg.QueueBytes = 1<<20, 600<<10
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), cfg)
	defer closeSpool(t, s)
	payload, kept := strings.Repeat("x", 50<<10), 0
	var err error
	for ; kept < 100 && err == nil; kept++ {
		_, err = s.Append(t.Context(), "/a", queue.Entry{Payload: []byte(payload)})
	}
	kept--
	var over *queue.Overload
	if !errors.As(err, &over) || over.Limit != "spool_bytes" || over.RetryAfter <= 0 || kept < 15 {
		t.Fatalf("%d kept, then %v", kept, err)
	}
	if err := s.Ready(""); err == nil || !strings.Contains(err.Error(), "spool.bytes") {
		t.Errorf("ready: %v", err)
	}
	if _, err := s.Append(t.Context(), "/a", queue.Entry{Payload: make([]byte, 700<<10)}); !errors.Is(err, queue.ErrTooLarge) {
		t.Errorf("larger than the queue: %v", err)
	}
	if got := drainSome(t, s, "/a", kept); len(got) != kept {
		t.Errorf("drained %d, want %d", len(got), kept)
	}
	put(t, s, "/a", payload)
	if err := s.Ready(""); err != nil {
		t.Errorf("ready: %v", err)
	}
	stats := s.Stats()
	if stats.Overloaded[queue.LimitSpool] != 1 || stats.UsedBytes > 200<<10 {
		t.Errorf("stats %+v", stats)
	}
}

// If the size cannot be read, stored entries are kept.
func TestMeasure(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	put(t, s, "/a", "first")
	before := s.Stats()
	refuse := sqlite.AuthorizeFunc(func(a sqlite.Action) sqlite.AuthResult {
		if a.Type() == sqlite.OpPragma && a.Pragma() == "page_count" {
			return sqlite.AuthResultDeny
		}
		return sqlite.AuthResultOK
	})
	if err := s.file.writer.SetAuthorizer(refuse); err != nil {
		t.Fatal(err)
	}
	const groups = measureEvery + 1 // one of them is followed by a measurement, which fails
	for i := range groups {
		put(t, s, "/a", fmt.Sprint("more ", i))
	}
	after := s.Stats()
	want := before.UsedBytes + after.Names[0].Bytes - before.Names[0].Bytes + groups*groupBytes
	if after.UsedBytes != want {
		t.Errorf("%d bytes, want what was measured before and what was added, %d", after.UsedBytes, want)
	}
	if _, err := s.file.write(change{}); err == nil {
		t.Error("the size is read all the same")
	}
	if err := s.file.writer.SetAuthorizer(nil); err != nil {
		t.Fatal(err)
	}
	put(t, s, "/a", "last")
	if got := s.Stats().UsedBytes; got == want || got%pageBytes != 0 {
		t.Errorf("%d bytes, want those of pages: measured again", got)
	}
	if got := drainSome(t, s, "/a", groups+2); len(got) != groups+2 || got[0] != "first" || got[groups+1] != "last" {
		t.Errorf("drained %q", got)
	}
}

// A key that databases do not accept as text is refused.
func TestKeyText(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	for _, key := range []string{"\xff", "a\x00"} {
		if _, err := s.Append(t.Context(), "/a", queue.Entry{Payload: []byte("x"), Key: key}); !errors.Is(err, queue.ErrBadKey) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	expires := time.Now().Add(time.Hour)
	keyed := func(name, key, body string, expires time.Time) (bool, error) {
		return s.Append(t.Context(), name, queue.Entry{
			At: expires.Add(-time.Hour), Payload: []byte(body), Key: key, Fingerprint: sha256.Sum256([]byte(body)), Expires: expires,
		})
	}
	check := func(want bool, wantErr error, name, key, body string, expires time.Time) {
		t.Helper()
		if replayed, err := keyed(name, key, body, expires); replayed != want || !errors.Is(err, wantErr) {
			t.Errorf("%s %s %s: replayed %v, %v", name, key, body, replayed, err)
		}
	}
	check(false, nil, "/a", "k", "one", expires)
	check(true, nil, "/a", "k", "one", expires)
	check(false, queue.ErrKeyReused, "/a", "k", "two", expires)
	check(false, nil, "/b", "k", "two", expires)
	check(false, nil, "/a", "old", "one", expires.Add(-time.Hour))
	check(false, nil, "/a", "old", "two", expires) // an hour later
	check(false, queue.ErrBadKey, "/a", strings.Repeat("k", 256), "one", expires)
	closeSpool(t, s)

	s = openAt(t, file, testConfig())
	defer func() { closeSpool(t, s) }()
	check(true, nil, "/a", "k", "one", expires)
	drainSome(t, s, "/a", 2) // k, and old as it was first
	check(false, nil, "/a", "k", "two", expires)
	check(true, nil, "/a", "old", "two", expires) // it is in a later group
	// Of concurrent appends with one key, one is stored.
	var group sync.WaitGroup
	before := s.Stats().Entries
	for range 20 {
		group.Go(func() {
			if _, err := keyed("/c", "same", "body", expires); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := s.Stats().Entries - before; n != 1 {
		t.Errorf("%d entries kept, want 1", n)
	}
}

func TestInUse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "one")
	_, err := openFile(t.Context(), file, "")
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("a second time: %v", err)
	}
	if _, _, err := Repair(t.Context(), file, time.Now()); !errors.Is(err, ErrInUse) {
		t.Errorf("repair: %v", err)
	}
	// The spool can be inspected while it is open.
	look, err := inspectFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if heads, err := look.heads(t.Context()); err != nil || len(heads) != 1 || heads[0].groups != 1 {
		t.Errorf("heads %+v, %v", heads, err)
	}
	if err := look.close(); err != nil {
		t.Error(err)
	}
	put(t, s, "/a", "two")
	closeSpool(t, s)
	other := filepath.Join(t.TempDir(), "other.db")
	if err := os.WriteFile(other, []byte(strings.Repeat("no database ", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFile(t.Context(), other, ""); !errors.Is(err, ErrDamaged) {
		t.Errorf("no database: %v", err)
	}
}

// damage runs SQL on the file of a closed spool.
func damage(t *testing.T, file, sql string) {
	t.Helper()
	f, err := openFile(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.ExecuteScript(f.writer, sql, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
}

// A missing or changed group stops the drain permanently, but new entries are stored. A repair
// reports the lost groups, and the drain continues after them.
func TestDamage(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, sql, want, flaw, drained string }{
		{"a gap", "DELETE FROM groups WHERE id & 0xff IN (3, 4)", "groups 3 to 4 of /a are missing", "/a 3-4 missing kept 0", "1 2 5 6 7"},
		{"the first is gone", "DELETE FROM groups WHERE id & 0xff = 1", "groups 1 to 1 of /a are missing", "/a 1-1 missing kept 0", "2 3 4 5 6 7"},
		{"the last is gone", "DELETE FROM groups WHERE id & 0xff = 6", "groups 6 to 6 of /a are missing", "/a 6-6 missing kept 0", "1 2 3 4 5 7"},
		{"a bad checksum", "UPDATE groups SET payload = substr(payload, 1, length(payload) - 1) || x'00' WHERE id & 0xff = 2", "group 2 of /a has the checksum", "/a 2-2 bad checksum kept 31", "1 3 4 5 6 7"},
		{"two that changed places", "UPDATE groups SET id = -id WHERE id & 0xff IN (2, 5); UPDATE groups SET id = -id + 3 WHERE id < 0 AND -id & 0xff = 2; UPDATE groups SET id = -id - 3 WHERE id < 0", "group 2 of /a has the checksum", "/a 2-2 bad checksum kept 31, /a 5-5 bad checksum kept 31", "1 3 4 6 7"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { testDamage(t, test.sql, test.want, test.flaw, test.drained) })
	}
}

func testDamage(t *testing.T, sql, want, wantFlaws, wantDrained string) {
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	for i := range 6 {
		put(t, s, "/a", fmt.Sprint(i+1))
	}
	closeSpool(t, s)
	damage(t, file, sql)

	s = openAt(t, file, testConfig())
	var got []string
	collect := func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		for _, g := range groups {
			for _, e := range g.Entries {
				got = append(got, string(e.Payload))
			}
		}
		return queue.Stored{Groups: len(groups)}, nil
	}
	err := s.Drain(t.Context(), "/a", 1<<20, destination(collect))
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), want) {
		t.Errorf("drain: %v, want %s", err, want)
	}
	if err := s.Ready(""); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("ready: %v", err)
	}
	if name := s.Stats().Names[0]; name.State != DrainStopped || !strings.Contains(name.Reason, want) {
		t.Errorf("stats %+v", name)
	}
	put(t, s, "/a", "7")
	closeSpool(t, s)
	repairSpool(t, file, wantFlaws)

	s = openAt(t, file, testConfig())
	defer closeSpool(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	err = s.Drain(ctx, "/a", 1<<20, destination(func(ctx context.Context, groups []queue.Group) (queue.Stored, error) {
		if groups[len(groups)-1].Sequence == 7 {
			cancel()
		}
		return collect(ctx, groups)
	}))
	if err != nil || strings.Join(got, " ") != wantDrained {
		t.Errorf("drained %v, %v, want %s", got, err, wantDrained)
	}
	raw := 0
	err = s.file.deadLetters(t.Context(), Filter{}, func(l queue.DeadLetter) error {
		if raw++; !l.Raw || l.Reason != "bad checksum" {
			t.Errorf("dead letter %+v", l)
		}
		return nil
	})
	if want := strings.Count(wantFlaws, "bad checksum"); err != nil || raw != want {
		t.Errorf("%d damaged groups kept, %v, want %d", raw, err, want)
	}
}

// repairSpool inspects a spool, compares its flaws, and repairs it.
func repairSpool(t *testing.T, file, wantFlaws string) {
	t.Helper()
	look, err := inspectFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flaws, err := look.flaws(t.Context())
	if err != nil || describe(flaws) != wantFlaws {
		t.Errorf("flaws %s, %v, want %s", describe(flaws), err, wantFlaws)
	}
	if err := look.close(); err != nil {
		t.Error(err)
	}
	kept, repaired, err := Repair(t.Context(), file, time.Now())
	if err != nil || describe(repaired) != wantFlaws {
		t.Fatalf("repair: %s, %v", describe(repaired), err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the old file is not kept: %v", err)
	}
}

func describe(flaws []Flaw) string {
	var texts []string
	for _, f := range flaws {
		texts = append(texts, fmt.Sprintf("%s %d-%d %s kept %d", f.Name, f.First, f.Last, f.Reason, len(f.Kept)))
	}
	return strings.Join(texts, ", ")
}

// If SQLite cannot read a page, the drain stops too, and a repair saves the groups on the
// other pages.
func TestDamagedPages(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	for i := range 40 {
		put(t, s, "/a", fmt.Sprintf("%d %s", i, strings.Repeat("x", 1500)))
	}
	closeSpool(t, s) // checkpoints the WAL
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	hit := 0
	for page := 10; page*pageBytes < len(data) && hit == 0; page++ {
		if p := data[page*pageBytes : (page+1)*pageBytes]; p[0] == 0x0d && strings.Contains(string(p), "xxxx") { // a leaf
			clear(p)
			hit = page
		}
	}
	if hit == 0 {
		t.Fatal("no page of groups found")
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, file, testConfig())
	err = s.Drain(t.Context(), "/a", 1<<10, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		return queue.Stored{Groups: len(groups)}, nil
	}))
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("drain: %v", err)
	}
	closeSpool(t, s)
	_, flaws, err := Repair(t.Context(), file, time.Now())
	if err != nil || len(flaws) != 1 || flaws[0].Reason != "missing" || flaws[0].Last-flaws[0].First > 3 {
		t.Errorf("flaws %+v, %v", flaws, err)
	}
	s = openAt(t, file, testConfig())
	defer closeSpool(t, s)
	if stats := s.Stats(); stats.Names[0].Groups < 10 {
		t.Errorf("saved %+v", stats.Names)
	}
	drainSome(t, s, "/a", 5)
}

// A group of a name that the file has lost is refused: it would become a group of another name.
func TestLostName(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	put(t, s, "/a", "1")
	put(t, s, "/b", "2")
	if err := sqlitex.ExecuteTransient(s.file.writer, "UPDATE names SET name = '/c' WHERE name = '/a'", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(t.Context(), "/a", queue.Entry{Payload: []byte("3"), Rows: 1}); !errors.Is(err, ErrDamaged) {
		t.Errorf("append: %v", err)
	}
	if n, err := number(s.file.writer, "SELECT count(*) FROM groups"); n != 2 || err != nil {
		t.Errorf("%d groups, %v", n, err)
	}
}

// The file may be a link: SQLite's log is then beside the file itself.
func TestLink(t *testing.T) {
	t.Parallel()
	file, link := filepath.Join(t.TempDir(), "s.db"), filepath.Join(t.TempDir(), "s.db")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s := openAt(t, link, testConfig())
		put(t, s, "/a", "1")
		closeSpool(t, s)
	}
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	if got := s.Stats().Names[0].Rows; got != 2 {
		t.Errorf("%d records", got)
	}
}
