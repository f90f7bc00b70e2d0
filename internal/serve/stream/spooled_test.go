package stream

import (
	"bytes"
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

// quietSpool takes entries and drains nothing by itself. It keeps the clock.
type quietSpool struct {
	mu      sync.Mutex
	entries []queue.Entry
}

func (q *quietSpool) Begin(_ context.Context, _ string, e queue.Entry, ready func() func()) (queue.Appending, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries = append(q.entries, e)
	t := new(appended)
	t.Open(ready, false)
	queue.Wake(t.Answer(nil, nil))
	return t, nil
}

// appended is an entry that a quietSpool has taken.
type appended struct{ queue.Ticket }

func (t *appended) Appended(ctx context.Context) (bool, error) { return false, t.Wait(ctx) }

func (q *quietSpool) Drain(ctx context.Context, _ string, _ int, _ queue.Destination) error {
	<-ctx.Done()
	return nil
}

func (q *quietSpool) Ready(string) error { return nil }

func (q *quietSpool) SetClock(string, time.Duration) {}

// epochRows is what a database has of an epoch.
type epochRows struct {
	last    uint64
	batches []queue.StoredBatch
}

// marked is a Sink that keeps marks. It refuses records below 0. Those from 1,000,000 it
// refuses too, and does not know whether that is due to the record.
type marked struct {
	mu       sync.Mutex
	rows     []int64
	epochs   map[[16]byte]*epochRows
	keys     map[string][]StoredKey
	attempts int
	ahead    time.Duration // of the clock
	away     error
	keyed    bool // a number is stored once
	rowByRow bool // as the last batch had it
}

func newMarked() *marked {
	return &marked{epochs: map[[16]byte]*epochRows{}, keys: map[string][]StoredKey{}}
}

func (m *marked) Commit(_ context.Context, b *Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attempts++
	m.rowByRow = b.RowByRow
	if m.away != nil {
		return m.away
	}
	epoch := m.epochs[b.Mark.Epoch]
	if epoch == nil {
		epoch = &epochRows{}
	}
	if b.Mark.Judge(epoch.last, epoch.batches) {
		return nil
	}
	for _, e := range b.Keyed(nil) {
		b.FindKey(e, m.keys[e.Key], time.Now().Add(m.ahead))
	}
	stored := m.insert(b.Rows(nil))
	if err := b.Verify(); err != nil {
		m.insert(b.TrialRows())
		if err := b.VerifyTrial(err); err != nil {
			return err
		}
	}
	results, err := b.Results()
	if err != nil {
		return err
	}
	b.Committing()
	for _, e := range b.Keyed(nil) {
		outcome, _ := e.OutcomeNow()
		m.keys[e.Key] = append(m.keys[e.Key], StoredKey{Accepted: e.Accepted, Fingerprint: e.Fingerprint[:], Outcome: outcome})
	}
	m.rows = append(m.rows, stored...)
	epoch.last = b.Mark.First + uint64(len(b.Mark.Sums)) - 1
	epoch.batches = append(epoch.batches, queue.StoredBatch{First: b.Mark.First, Sums: b.Mark.Sums, Last: epoch.last, Results: results})
	m.epochs[b.Mark.Epoch] = epoch
	return nil
}

// insert returns the rows that are stored, and refuses the others. With keyed, it inserts the
// rows that are not refused in one statement, or row by row.
func (m *marked) insert(rows []Row) (stored []int64) {
	var accepted, found []Row
	for _, r := range rows {
		switch n := r.Value(r.Row, 0).N; {
		case n < 0:
			r.Entry.Result.Refused = append(r.Entry.Result.Refused, RowRefusal{Row: r.Row, Reason: "negative"})
		case n >= 1000000:
			r.Entry.Result.Refused = append(r.Entry.Result.Refused, RowRefusal{Row: r.Row, Reason: "no such table", Unsure: true})
		case m.keyed && (slices.Contains(m.rows, n) || slices.Contains(stored, n)):
			accepted, found = append(accepted, r), append(found, r)
		default:
			accepted, stored = append(accepted, r), append(stored, n)
		}
	}
	if len(found) > 0 && !m.rowByRow {
		found = accepted
	}
	NoteFound(found)
	return stored
}

func (m *marked) Durability(context.Context) (Durability, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Durability{Clock: m.ahead}, nil
}

func (m *marked) Sweep(context.Context, Keep, int) (int, error) { return 0, nil }

func (m *marked) stored() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Trim(fmt.Sprint(m.rows), "[]")
}

// spooledTest is a Spooled without a drain of its own, and its log.
type spooledTest struct {
	*Spooled
	sink  *marked
	spool *quietSpool
	log   *bytes.Buffer
}

func openSpooledTest(t *testing.T, sink *marked, spool *quietSpool) *spooledTest {
	t.Helper()
	log := &bytes.Buffer{}
	cfg := Config{BatchRows: 10, BatchBytes: 1 << 20, CommitTimeout: time.Second, KeyTTL: 24 * time.Hour, Log: slog.New(slog.NewTextHandler(log, nil))}
	s := OpenSpooled(cfg, spooledSchema(t, "n integer"), spool, sink)
	return &spooledTest{Spooled: s, sink: sink, spool: spool, log: log}
}

func (s *spooledTest) close(t *testing.T) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// group returns a group with one entry per list of numbers.
func (s *spooledTest) group(t *testing.T, epoch byte, number uint64, entries ...[]int) queue.Group {
	t.Helper()
	g := queue.Group{Spool: [16]byte{9}, Name: "/s", Sequence: 100 + number, Number: number, Epoch: [16]byte{epoch}, EpochLast: 1000}
	for _, numbers := range entries {
		body := ""
		for _, n := range numbers {
			body += fmt.Sprintf("{\"n\":%d}\n", n)
		}
		g.Entries = append(g.Entries, queue.Entry{Payload: spooledPayload(t, s.schema, body), Rows: len(numbers), At: time.Now()})
		g.Rows += len(numbers)
	}
	copy(g.Sum[:], fmt.Sprint(entries))
	return g
}

// store stores groups until all are stored, and returns the dead letters as text.
func (s *spooledTest) store(t *testing.T, groups ...queue.Group) string {
	t.Helper()
	var letters []string
	for len(groups) > 0 {
		stored, err := s.StoreGroups(t.Context(), groups)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range stored.Dead {
			records, _ := SpooledJSON(d.Payload)
			doubt := ""
			if d.InDoubt {
				doubt = "?"
			}
			letters = append(letters, fmt.Sprintf("%d%s%s", d.Sequence, doubt, bytes.Join(rawBytes(records), nil)))
		}
		groups = groups[stored.Groups:]
	}
	return strings.Join(letters, " ")
}

func rawBytes[T ~[]byte](in []T) [][]byte {
	out := make([][]byte, len(in))
	for i := range in {
		out[i] = in[i]
	}
	return out
}

// A group that the database has is not stored again, whichever copy of the file it comes
// from. Another group under the same number becomes dead letters in doubt; another epoch is
// stored.
func TestSpooledEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		first := []queue.Group{s.group(t, 1, 1, []int{1, -2}), s.group(t, 1, 2, []int{3}), s.group(t, 1, 3, []int{-4})}
		if dead := s.store(t, first...); dead != `101{"n":-2} 103{"n":-4}` {
			t.Errorf("dead letters %s", dead)
		}
		// After a crash the same groups come again, alone or with others.
		if dead := s.store(t, first...); dead != `101{"n":-2} 103{"n":-4}` {
			t.Errorf("the same again: %s", dead)
		}
		if dead := s.store(t, first[1], first[2], s.group(t, 1, 4, []int{5})); dead != `103{"n":-4}` || s.sink.stored() != "1 3 5" {
			t.Errorf("an overlap: %s, stored %s", dead, s.sink.stored())
		}
		// An older copy of the file was written further, in the same epoch or in its own.
		if dead := s.store(t, first[2], s.group(t, 1, 4, []int{6, 7})); dead != `103{"n":-4} 104?{"n":6}{"n":7}` {
			t.Errorf("other content: %s", dead)
		}
		if dead := s.store(t, s.group(t, 2, 1, []int{8}), s.group(t, 3, 1, []int{9})); dead != "" || s.sink.stored() != "1 3 5 8 9" {
			t.Errorf("other epochs: %s, stored %s", dead, s.sink.stored())
		}
		if err := s.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
		s.close(t)
		if log := s.log.String(); strings.Count(log, "became dead letters:") != 1 || !strings.Contains(log, "letters=2 reason=negative") {
			t.Errorf("dead letters are logged once in a minute, not as\n%s", log)
		}
		if !strings.Contains(s.log.String(), "dead letters in doubt") {
			t.Errorf("log %s", s.log)
		}
	})
}

// If the database has more of an epoch than the file ever had, the file is an older copy:
// nothing is dropped, and the stream is not ready until the process ends.
func TestSpooledOlderCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		s.store(t, s.group(t, 1, 1, []int{1}), s.group(t, 1, 2, []int{2}))
		older := s.group(t, 1, 1, []int{1})
		older.EpochLast = 1
		if dead := s.store(t, older); dead != "" || s.sink.stored() != "1 2" {
			t.Errorf("dead letters %s, stored %s", dead, s.sink.stored())
		}
		s.store(t, s.group(t, 2, 1, []int{3}))
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "the spool file is older than what the database has of it") {
			t.Errorf("ready: %v", err)
		}
		s.close(t)
	})
}

// The same if all that the copy has of the epoch was drained before it was made.
func TestSpooledOlderCopyDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		s.store(t, s.group(t, 1, 1, []int{1}), s.group(t, 1, 2, []int{2}))
		for _, step := range []struct {
			epoch    byte
			previous uint64
			ready    bool
		}{{2, 2, true}, {3, 3, true}, {4, 1, false}} {
			g := s.group(t, step.epoch, 1, []int{int(step.epoch)})
			g.PreviousEpoch, g.PreviousLast = [16]byte{1}, step.previous
			s.asked = [16]byte{}
			s.sink.away = ErrTransient
			if _, err := s.StoreGroups(t.Context(), []queue.Group{g}); !errors.Is(err, ErrTransient) {
				t.Errorf("away: %v", err)
			}
			s.sink.away = nil
			if s.store(t, g); (s.Ready() == nil) != step.ready {
				t.Errorf("the file has had %d groups: ready: %v", step.previous, s.Ready())
			}
		}
		if s.sink.stored() != "1 2 2 3 4" || s.sink.epochs[[16]byte{1}].last != 2 {
			t.Errorf("stored %s", s.sink.stored())
		}
		s.close(t)
	})
}

// The database forgets old batches. Of their groups, which an older copy of the file may have, it
// cannot tell.
func TestSpooledForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMarked()
		s := openSpooledTest(t, sink, &quietSpool{})
		groups := []queue.Group{s.group(t, 1, 2, []int{1}), s.group(t, 1, 3, []int{2, -3}), s.group(t, 1, 4, []int{4}), s.group(t, 1, 5, []int{5})}
		sink.epochs[groups[0].Epoch] = &epochRows{last: 4, batches: []queue.StoredBatch{{
			First: 3, Last: 4, Sums: [][16]byte{groups[1].Sum, groups[2].Sum}, Results: []byte(`{"dead":[{"sequence":3,"entry":0,"row":1,"reason":"negative"}]}`),
		}}}
		dead := s.store(t, groups...)
		if dead != `102?{"n":1} 103{"n":-3}` || s.sink.stored() != "5" {
			t.Errorf("dead letters %s, stored %s", dead, s.sink.stored())
		}
		s.close(t)
	})
}

// A batch whose results cannot be decoded becomes dead letters in doubt.
func TestSpooledResultsUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newMarked()
		s := openSpooledTest(t, sink, &quietSpool{})
		g := s.group(t, 1, 1, []int{1}, []int{2})
		sink.epochs[g.Epoch] = &epochRows{last: 1, batches: []queue.StoredBatch{{First: 1, Last: 1, Sums: [][16]byte{g.Sum}, Results: []byte("{")}}}
		if dead := s.store(t, g); dead != `101?{"n":1} 101?{"n":2}` {
			t.Errorf("dead letters %s", dead)
		}
		s.close(t)
	})
}

// A record that is refused for a reason that may be the database's is held until a later one
// is stored. The groups before it are stored.
func TestSpooledHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		groups := []queue.Group{s.group(t, 1, 1, []int{1}), s.group(t, 1, 2, []int{2}, []int{1000000}), s.group(t, 1, 3, []int{1000001})}
		stored, err := s.StoreGroups(t.Context(), groups)
		if err != nil || stored.Groups != 1 || len(stored.Dead) != 0 || s.Ready() != nil {
			t.Errorf("the groups before it: %+v, %v, ready: %v", stored, err, s.Ready())
		}
		for range 3 {
			_, err := s.StoreGroups(t.Context(), groups[1:])
			if !errors.Is(err, queue.ErrHeld) || s.Ready() == nil || !strings.Contains(s.Ready().Error(), "no such table") {
				t.Errorf("held: %v, ready: %v", err, s.Ready())
			}
		}
		// A later group fills a batch alone, and is taken nevertheless.
		large := s.group(t, 1, 4, []int{4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
		if dead := s.store(t, groups[1], groups[2], large); dead != `102{"n":1000000} 103{"n":1000001}` || s.Ready() != nil {
			t.Errorf("dead letters %s, ready: %v", dead, s.Ready())
		}
		if got := s.sink.stored(); got != "1 2 4 5 6 7 8 9 10 11 12 13" {
			t.Errorf("stored %s", got)
		}
		s.close(t)
	})
}

// A record that is held may be the last of its epoch. A record of the next epoch then shows
// whether the database stores any, and is stored behind it.
func TestSpooledHeldAtEndOfEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		held, bad, good := s.group(t, 1, 1, []int{1}, []int{1000000}), s.group(t, 2, 1, []int{1000001}), s.group(t, 2, 2, []int{2})
		for _, groups := range [][]queue.Group{{held}, {held}, {held, bad}} {
			if _, err := s.StoreGroups(t.Context(), groups); !errors.Is(err, queue.ErrHeld) || s.Ready() == nil {
				t.Errorf("held: %v, ready: %v", err, s.Ready())
			}
		}
		if got := s.sink.stored(); got != "" {
			t.Errorf("stored %s while a record is held", got)
		}
		if dead := s.store(t, held, bad, good); dead != `101{"n":1000000} 101{"n":1000001}` || s.Ready() != nil {
			t.Errorf("dead letters %s, ready: %v", dead, s.Ready())
		}
		if got := s.sink.stored(); got != "1 2" {
			t.Errorf("stored %s", got)
		}
		s.close(t)
	})
}

// A record whose key is in the table shows nothing. While a record is held, the sink inserts
// row by row, so that it can tell which later record is new.
func TestSpooledHeldFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		s.sink.keyed = true
		s.store(t, s.group(t, 1, 1, []int{1, 2, 3}))
		bad, existing, other := s.group(t, 1, 2, []int{1000000}), s.group(t, 1, 3, []int{1}, []int{2, 3}), s.group(t, 2, 1, []int{3})
		for i, groups := range [][]queue.Group{{bad}, {bad, existing}, {bad, existing}, {bad, existing, other}} {
			if _, err := s.StoreGroups(t.Context(), groups); !errors.Is(err, queue.ErrHeld) || s.sink.rowByRow != (i > 0) {
				t.Errorf("existing records behind it, attempt %d: %v, row by row: %v", i, err, s.sink.rowByRow)
			}
		}
		fresh := s.group(t, 2, 2, []int{4})
		if dead := s.store(t, bad, existing, other, fresh); dead != `102{"n":1000000}` || s.sink.rowByRow {
			t.Errorf("dead letters %s, row by row: %v", dead, s.sink.rowByRow)
		}
		mixed := []queue.Group{s.group(t, 1, 4, []int{1000001}, []int{1, 5})}
		if _, err := s.StoreGroups(t.Context(), mixed); !errors.Is(err, queue.ErrHeld) {
			t.Errorf("one statement: %v", err)
		}
		if dead := s.store(t, mixed...); dead != `104{"n":1000001}` || s.sink.stored() != "1 2 3 4 5" {
			t.Errorf("dead letters %s, stored %s", dead, s.sink.stored())
		}
		s.close(t)
	})
}

// If the database refuses every record, no dead letter is made, and few statements are.
func TestSpooledAllHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		var groups []queue.Group
		for n := range 10 {
			groups = append(groups, s.group(t, 1, uint64(n+1), []int{1000000 + n}))
		}
		if _, err := s.StoreGroups(t.Context(), groups); !errors.Is(err, queue.ErrHeld) || s.sink.attempts != 1 || s.Ready() == nil {
			t.Errorf("%d attempts, %v, ready: %v", s.sink.attempts, err, s.Ready())
		}
		s.sink.away = ErrTransient
		if _, err := s.StoreGroups(t.Context(), groups); !errors.Is(err, ErrTransient) {
			t.Errorf("away: %v", err)
		}
		s.close(t)
	})
}

// Readiness does not depend on whether the database is there, but says if it refuses the
// batch.
func TestSpooledReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		g := s.group(t, 1, 1, []int{1})
		for _, step := range []struct {
			err   error
			ready bool
		}{{ErrTransient, true}, {ErrUnconfirmed, true}, {errors.New("permission denied for table spillway_drained"), false}, {ErrTransient, false}} {
			s.sink.away = step.err
			if _, err := s.StoreGroups(t.Context(), []queue.Group{g}); !errors.Is(err, step.err) || (s.Ready() == nil) != step.ready {
				t.Errorf("%v: %v, ready: %v", step.err, err, s.Ready())
			}
		}
		s.sink.away = nil
		if s.store(t, g); s.Ready() != nil {
			t.Errorf("ready: %v", s.Ready())
		}
		s.close(t)
	})
}

// Requests with one key are the same if they were accepted within key_ttl, whichever is
// drained first and whenever. After spool.max_age they are in doubt.
func TestSpooledKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		number := uint64(0)
		keyed := func(at time.Time, n int) queue.Group {
			number++
			g := s.group(t, 1, number, []int{n})
			g.Entries[0].Key, g.Entries[0].At, g.Entries[0].Fingerprint = "key", at, [32]byte{1}
			return g
		}
		start := time.Now()
		s.store(t, keyed(start, 1))
		<-time.After(5 * 24 * time.Hour)
		s.store(t, keyed(start.Add(time.Hour), 2))                      // the same
		s.store(t, keyed(start.Add(30*time.Hour), 3))                   // another
		s.store(t, keyed(start.Add(29*time.Hour), 4), keyed(start, 5))  // the same as these
		s.store(t, keyed(start.Add(-30*time.Hour), 6))                  // another, before them
		s.store(t, keyed(start.Add(-10*time.Hour), 7), keyed(start, 8)) // the same again
		dead := s.store(t, keyed(start.Add(-3*24*time.Hour), 9))        // too old
		if s.sink.stored() != "1 3 6" || dead != `109?{"n":9}` {
			t.Errorf("stored %s, dead letters %s", s.sink.stored(), dead)
		}
		s.close(t)
	})
}

// Requests with a key are accepted by the time of the database. While it is away, the last
// measured difference counts.
func TestSpooledClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, spool := newMarked(), &quietSpool{}
		sink.ahead = 26 * time.Hour
		s := openSpooledTest(t, sink, spool)
		synctest.Wait()
		records, _, err := s.Schema().Parse([]byte(`{"n":1}`), FormLines, time.Now(), testLimits)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"", "key"} {
			_, w, err := s.Begin(t.Context(), Request{Records: records, Key: key}, nil)
			if err == nil {
				_, err = w.Receipt(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}
		now := time.Now()
		if e := spool.entries; !e[0].At.Equal(now) || !e[1].At.Equal(now.Add(sink.ahead)) || !e[1].Expires.Equal(e[1].At.Add(s.cfg.KeyTTL)) {
			t.Errorf("accepted at %v and %v, expires %v", e[0].At, e[1].At, e[1].Expires)
		}
		s.close(t)
	})
}

// A key that belonged to many requests takes another one when these are no longer kept.
func TestKeyUsesAge(t *testing.T) {
	now, records := time.Now(), &Records{}
	b := &Batch{KeyTTL: time.Hour, KeyKeep: 24 * time.Hour}
	var stored []StoredKey
	for i := range keyUsesMax {
		stored = append(stored, StoredKey{Accepted: now.Add(-time.Duration(i+2) * time.Hour), Fingerprint: []byte{byte(i)}})
	}
	e := &Entry{Records: records, Key: "k"}
	if b.FindKey(e, stored, now) {
		t.Errorf("refused although most requests have aged out: %+v", e.Result)
	}
	newest, earlier, err := b.AddKey(e, stored, now)
	if err != nil || !newest.Accepted.Equal(now) || len(earlier) != 24 || !earlier[0].Accepted.Equal(now.Add(-2*time.Hour)) {
		t.Errorf("%d requests are kept behind %v, %v", len(earlier), newest.Accepted, err)
	}
	late := &Entry{Records: records, Key: "k", Accepted: now.Add(-30 * time.Minute)}
	if newest, earlier, err = b.AddKey(late, []StoredKey{newest}, now); err != nil || !newest.Accepted.Equal(now) || len(earlier) != 1 {
		t.Errorf("an earlier request: %+v before %+v, %v", newest, earlier, err)
	}
	b.KeyKeep = 0 // unknown
	if !b.FindKey(e, stored, now) || !e.Result.Reused {
		t.Errorf("not refused: %+v", e.Result)
	}
}

// A key whose time lies in the future, because the clock was ahead, is not older than KeyTTL.
func TestKeyOfTheFuture(t *testing.T) {
	now := time.Now()
	b := &Batch{KeyTTL: time.Hour}
	for ahead, found := range map[time.Duration]bool{-2 * time.Hour: false, 30 * time.Minute: true, 48 * time.Hour: true} {
		e := &Entry{Records: &Records{}, Key: "k"}
		if got := b.FindKey(e, []StoredKey{{Accepted: now.Add(ahead), Fingerprint: e.Fingerprint[:]}}, now); got != found {
			t.Errorf("stored %v ahead: found %v", ahead, got)
		}
	}
}

// A row that does not fit the columns makes no dead letter of its own if its request was
// stored before, or belongs to another body.
func TestSpooledUnfitFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openSpooledTest(t, newMarked(), &quietSpool{})
		keyed := func(number uint64, fingerprint byte, schema *Schema, body string) queue.Group {
			g := s.group(t, 1, number)
			g.Sum[0] = byte(number)
			g.Entries = []queue.Entry{{Payload: spooledPayload(t, schema, body), Rows: 2, At: time.Now(), Key: "key", Fingerprint: [32]byte{fingerprint}}}
			return g
		}
		texts := spooledSchema(t, "n text")
		s.store(t, keyed(1, 1, s.schema, "{\"n\":1}\n{\"n\":2}"))
		if dead := s.store(t, keyed(2, 1, texts, "{\"n\":\"1\"}\n{\"n\":\"unfit\"}")); dead != "" {
			t.Errorf("stored before: dead letters %s", dead)
		}
		if dead := s.store(t, keyed(3, 2, texts, "{\"n\":\"1\"}\n{\"n\":\"unfit\"}")); dead != `103{"n":"1"}{"n":"unfit"}` {
			t.Errorf("another body: dead letters %s", dead)
		}
		if s.sink.stored() != "1 2" {
			t.Errorf("stored %s", s.sink.stored())
		}
		s.close(t)
	})
}
