package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

// epochKey is a row of the fake database's table of epochs.
type epochKey struct{ spool, epoch [16]byte }

// fakeDatabase keeps marks as a stream's database does.
type fakeDatabase struct {
	last    map[epochKey]uint64
	batches map[epochKey][]queue.StoredBatch
	rows    []string
	doubt   []string // of groups whose number belongs to another one
	older   bool     // the database is ahead of a file
}

func newDatabase() *fakeDatabase {
	return &fakeDatabase{last: make(map[epochKey]uint64), batches: make(map[epochKey][]queue.StoredBatch)}
}

// StoreGroups stores the groups of the first one's epoch.
func (db *fakeDatabase) StoreGroups(_ context.Context, groups []queue.Group) (queue.Stored, error) {
	first := groups[0]
	n := 1
	for n < len(groups) && groups[n].Epoch == first.Epoch {
		n++
	}
	groups = groups[:n]
	k := epochKey{first.Spool, first.Epoch}
	mark := queue.Mark{Spool: first.Spool, Epoch: first.Epoch, First: first.Number}
	for _, g := range groups {
		mark.Sums = append(mark.Sums, g.Sum)
		db.older = db.older || db.last[k] > g.EpochLast || db.last[epochKey{g.Spool, g.PreviousEpoch}] > g.PreviousLast && g.PreviousLast > 0
	}
	if mark.Judge(db.last[k], db.batches[k]) {
		for i, known := range mark.Known {
			if !known.Same {
				db.doubt = append(db.doubt, payloads(groups[i])...)
			}
		}
		return queue.Stored{Groups: len(mark.Known)}, nil
	}
	for _, g := range groups {
		db.rows = append(db.rows, payloads(g)...)
	}
	last := groups[n-1].Number
	db.last[k] = last
	db.batches[k] = append(db.batches[k], queue.StoredBatch{First: first.Number, Last: last, Sums: mark.Sums})
	return queue.Stored{Groups: n}, nil
}

func payloads(g queue.Group) []string {
	var texts []string
	for _, e := range g.Entries {
		texts = append(texts, string(e.Payload))
	}
	return texts
}

// drainAll drains a name until nothing waits.
func drainAll(t *testing.T, s *Spool, name string, to queue.Destination) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Drain(ctx, name, 1<<20, to) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting && ctx.Err() == nil; {
		<-tick.C
		waiting = slices.ContainsFunc(s.Stats().Names, func(n NameStats) bool { return n.Name == name && n.Groups > 0 })
	}
	if ctx.Err() != nil {
		t.Errorf("%s is not drained: %+v", name, s.Stats().Names)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// copySpool copies the file of a spool that no process has open.
func copySpool(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func waitingGroups(t *testing.T, s *Spool, name string) []queue.Group {
	t.Helper()
	var groups []queue.Group
	err := s.Waiting(t.Context(), name, func(g queue.Group) error {
		groups = append(groups, g)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// A group keeps the epoch of the open that wrote it, and its number in it. Epochs that were
// drained are forgotten.
func TestEpochs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	for open := range 3 {
		s := openAt(t, file, testConfig())
		for i := range open + 1 {
			put(t, s, "/a", fmt.Sprint(open, i))
		}
		put(t, s, "/b", "x")
		closeSpool(t, s)
	}
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	var got []queue.Group
	drainAll(t, s, "/a", destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		got = append(got, groups...)
		return queue.Stored{Groups: len(groups)}, nil
	}))
	var places []string
	epochs, sums := map[[16]byte]bool{{}: true}, map[[16]byte]bool{{}: true}
	for _, g := range got {
		places = append(places, fmt.Sprintf("%d/%d", g.Number, g.EpochLast))
		epochs[g.Epoch], sums[g.Sum] = true, true
	}
	if want := "1/1 1/2 2/2 1/3 2/3 3/3"; strings.Join(places, " ") != want || len(epochs) != 4 || len(sums) != 7 {
		t.Errorf("numbers and last numbers %s, want %s; %d epochs, %d sums", places, want, len(epochs)-1, len(sums)-1)
	}
	if b := waitingGroups(t, s, "/b"); len(b) != 3 || b[0].Epoch != got[0].Epoch || b[0].Number != 1 {
		t.Errorf("another name: %+v", b)
	}
	if rows, err := number(s.file.writer, "SELECT count(*) FROM epochs"); err != nil || rows != 1+3 {
		t.Errorf("%d rows of epochs, %v", rows, err)
	}
	put(t, s, "/a", "new")
	if a := waitingGroups(t, s, "/a"); len(a) != 1 || a[0].Number != 1 || epochs[a[0].Epoch] {
		t.Errorf("a fourth epoch: %+v", a)
	}
}

// Two copies of a file that are open at the same time lose nothing, double nothing and make
// no dead letters.
func TestCopies(t *testing.T) {
	t.Parallel()
	dir, db := t.TempDir(), newDatabase()
	files := []string{filepath.Join(dir, "1.db"), filepath.Join(dir, "2.db")}
	s := openAt(t, files[0], testConfig())
	put(t, s, "/a", "before 1")
	put(t, s, "/a", "before 2")
	closeSpool(t, s)
	copySpool(t, files[0], files[1])
	var copies []*Spool
	for i, file := range files {
		s := openAt(t, file, testConfig())
		defer closeSpool(t, s)
		for n := range 3 {
			put(t, s, "/a", fmt.Sprintf("copy %d %d", i, n))
		}
		copies = append(copies, s)
	}
	for _, s := range copies {
		drainAll(t, s, "/a", db)
	}
	for i, s := range copies {
		put(t, s, "/a", fmt.Sprintf("later %d", i))
		drainAll(t, s, "/a", db)
		if n := s.Stats().Names[0]; n.Dead != 0 {
			t.Errorf("copy %d has dead letters: %+v", i, n)
		}
	}
	slices.Sort(db.rows)
	want := "before 1|before 2|copy 0 0|copy 0 1|copy 0 2|copy 1 0|copy 1 1|copy 1 2|later 0|later 1"
	if got := strings.Join(db.rows, "|"); got != want || len(db.doubt) > 0 || db.older {
		t.Errorf("stored %s, want %s; in doubt %s, older %v", got, want, db.doubt, db.older)
	}
}

// A file that was put back to an older state is told from the newer one: its new groups are
// stored, its old ones are recognized, and the database is ahead of its epoch.
func TestRestored(t *testing.T) {
	t.Parallel()
	dir, db := t.TempDir(), newDatabase()
	file, backup := filepath.Join(dir, "s.db"), filepath.Join(dir, "backup.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "1")
	if err := sqlitex.ExecuteTransient(s.file.writer, "VACUUM INTO '"+backup+"'", nil); err != nil {
		t.Fatal(err)
	}
	put(t, s, "/a", "2")
	drainAll(t, s, "/a", db)
	closeSpool(t, s)
	if db.older {
		t.Error("the database is ahead of the file that wrote it")
	}

	s = openAt(t, backup, testConfig())
	defer closeSpool(t, s)
	put(t, s, "/a", "3")
	drainAll(t, s, "/a", db)
	if got := strings.Join(db.rows, " "); got != "1 2 3" || len(db.doubt) > 0 || !db.older {
		t.Errorf("stored %s, in doubt %s, older %v", got, db.doubt, db.older)
	}
}

// The same if nothing waited in the older state.
func TestRestoredDrained(t *testing.T) {
	t.Parallel()
	dir, db := t.TempDir(), newDatabase()
	file, backup := filepath.Join(dir, "s.db"), filepath.Join(dir, "backup.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "1")
	drainAll(t, s, "/a", db)
	if err := sqlitex.ExecuteTransient(s.file.writer, "VACUUM INTO '"+backup+"'", nil); err != nil {
		t.Fatal(err)
	}
	put(t, s, "/a", "2")
	drainAll(t, s, "/a", db)
	for i, path := range []string{file, file, backup} {
		closeSpool(t, s)
		s = openAt(t, path, testConfig())
		put(t, s, "/a", fmt.Sprint(3+i))
		drainAll(t, s, "/a", db)
		if db.older != (path == backup) {
			t.Errorf("open %d: older %v", i, db.older)
		}
	}
	closeSpool(t, s)
	if got := strings.Join(db.rows, " "); got != "1 2 3 4 5" || len(db.doubt) > 0 {
		t.Errorf("stored %s, in doubt %s", got, db.doubt)
	}
}

// Two groups with one place, as after the state of a machine was rolled back with the
// process in it, have different sums.
func TestSamePlace(t *testing.T) {
	t.Parallel()
	at := place{epoch: [16]byte{1}, number: 4}
	groups := []sealedGroup{
		seal("/a", 9, at, []queue.Entry{{Payload: []byte("x")}}), seal("/a", 9, at, []queue.Entry{{Payload: []byte("y")}}),
		seal("/b", 9, at, []queue.Entry{{Payload: []byte("x")}}), seal("/a", 8, at, []queue.Entry{{Payload: []byte("x")}}),
	}
	var sums [][16]byte
	for _, g := range groups {
		opened, err := g.open()
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, opened.Sum)
	}
	if sums[0] == sums[1] || sums[0] == sums[2] || sums[0] != sums[3] {
		t.Errorf("sums %x", sums)
	}
}

// Copies of a file are opened, filled, drained, copied again and closed in any order, and
// what was stored is sometimes not deleted. Everything that was acknowledged is stored once,
// in the order of its copy, and nothing is in doubt.
func TestModelCopies(t *testing.T) {
	t.Parallel()
	dir, runs, most := t.TempDir(), 0, 30
	if testing.Short() {
		most = 10
	}
	rapid.Check(t, func(rt *rapid.T) {
		if runs++; runs > most {
			return
		}
		m := &copies{t: t, dir: dir, run: runs, db: newDatabase()}
		m.open(m.file(0), nil)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			c := rapid.IntRange(0, len(m.spools)-1).Draw(rt, "copy")
			switch rapid.SampledFrom([]string{"append", "append", "append", "drain", "copy", "reopen"}).Draw(rt, "step") {
			case "append":
				m.next++
				text := fmt.Sprint(m.next)
				put(t, m.spools[c], "/a", text)
				m.want[c] = append(m.want[c], text)
			case "drain":
				m.drain(c, rapid.IntRange(0, 2).Draw(rt, "not deleted"))
			case "copy":
				closeSpool(t, m.spools[c])
				to := m.file(len(m.spools))
				copySpool(t, m.file(c), to)
				m.spools[c] = openAt(t, m.file(c), testConfig())
				m.open(to, m.want[c])
			case "reopen":
				closeSpool(t, m.spools[c])
				m.spools[c] = openAt(t, m.file(c), testConfig())
			}
		}
		m.check()
	})
}

// copies are the copies of a spool, and the payloads that each has acknowledged, with those
// of the copy that it was made from.
type copies struct {
	t      *testing.T
	dir    string
	run    int
	next   int
	db     *fakeDatabase
	spools []*Spool
	want   [][]string
}

func (m *copies) file(n int) string { return filepath.Join(m.dir, fmt.Sprintf("%d-%d.db", m.run, n)) }

func (m *copies) open(file string, want []string) {
	m.spools = append(m.spools, openAt(m.t, file, testConfig()))
	m.want = append(m.want, slices.Clone(want))
}

// drain drains a copy. The first attempts are stored, but the spool gets an error.
func (m *copies) drain(c, notDeleted int) {
	drainAll(m.t, m.spools[c], "/a", destination(func(ctx context.Context, groups []queue.Group) (queue.Stored, error) {
		stored, err := m.db.StoreGroups(ctx, groups)
		if notDeleted > 0 {
			notDeleted--
			return queue.Stored{}, errors.New("the connection broke after the commit")
		}
		return stored, err
	}))
}

func (m *copies) check() {
	m.t.Helper()
	for c, s := range m.spools {
		m.drain(c, 0)
		closeSpool(m.t, s)
	}
	at := make(map[string]int)
	for i, text := range m.db.rows {
		if _, twice := at[text]; twice {
			m.t.Errorf("%s is stored twice", text)
		}
		at[text] = i
	}
	if len(at) != m.next || len(m.db.doubt) > 0 || m.db.older {
		m.t.Errorf("%d of %d stored, in doubt %s, older %v", len(at), m.next, m.db.doubt, m.db.older)
	}
	for c, want := range m.want {
		if !slices.IsSortedFunc(want, func(a, b string) int { return at[a] - at[b] }) {
			m.t.Errorf("copy %d acknowledged %s, stored were %s", c, want, m.db.rows)
		}
	}
}

// A file of a later version is refused, for writing and for reading.
func TestLaterVersion(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "x")
	closeSpool(t, s)
	damage(t, file, "PRAGMA user_version = 2")
	_, err := openFile(t.Context(), file, "")
	_, errInspect := inspectFile(file)
	for _, err := range []error{err, errInspect} {
		if err == nil || !strings.Contains(err.Error(), "the file has version 2, this program supports version 1") {
			t.Errorf("a later version: %v", err)
		}
	}
}

// A repair keeps epochs and numbers, also of what it gives up.
func TestRepairEpochs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	for range 2 {
		s := openAt(t, file, testConfig())
		put(t, s, "/a", "1")
		put(t, s, "/a", "2")
		closeSpool(t, s)
	}
	s := openAt(t, file, testConfig())
	before := waitingGroups(t, s, "/a")
	closeSpool(t, s)
	damage(t, file, "DELETE FROM groups WHERE id & 0xff = 4")
	s = openAt(t, file, testConfig())
	put(t, s, "/a", "3")
	closeSpool(t, s)
	repairSpool(t, file, "/a 4-4 missing kept 0")
	s = openAt(t, file, testConfig())
	defer closeSpool(t, s)
	after := waitingGroups(t, s, "/a")
	if len(after) != 5 {
		t.Fatalf("groups %+v", after)
	}
	for i, b := range before {
		if a := after[i]; a.Epoch != b.Epoch || a.Number != b.Number || (a.Sum == b.Sum) != (i != 3) {
			t.Errorf("group %d: %+v, before %+v", i+1, a, b)
		}
	}
}
