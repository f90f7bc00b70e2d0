package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// testStreamFoundAgain commits batches and groups that the database has. Before it
// acknowledges them, the sink commits a write of its own.
func testStreamFoundAgain(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	sink := db.Sink(t, s.Schema())
	writes := func() int {
		n, err := strconv.Atoi(db.column(t, "SELECT count(*) FROM spillway_batches"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	again := func(name string, first, second *stream.Batch) {
		t.Helper()
		commitBatch(t, sink, first)
		before := writes()
		commitBatch(t, sink, second)
		if writes() != before+1 {
			t.Errorf("%s: %d writes of its own, want one", name, writes()-before)
		}
	}
	again("a batch id", batchOf(t, s, 1, "", `{"id":1}`), batchOf(t, s, 1, "", `{"id":1}`))
	again("an idempotency key", batchOf(t, s, 2, "found", `{"id":2}`), batchOf(t, s, 3, "found", `{"id":2}`))
	m := marks{epoch: [16]byte{1}}
	again("groups", m.batch(t, s, 1, []byte{1, 2}, `{"id":3}`), m.batch(t, s, 1, []byte{1, 2}, `{"id":3}`))
	if got := db.column(t, "SELECT id FROM readings ORDER BY id"); got != "1,2,3" {
		t.Errorf("stored %s", got)
	}
}

// testStreamTrips counts the round trips of batches that follow others.
func testStreamTrips(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Proxy == nil {
		return // there is no server
	}
	s := db.stream(t, readings(), nil)
	sink := db.Sink(t, s.Schema())
	m := marks{epoch: [16]byte{1}}
	batches := []struct {
		name    string
		trips   int
		batchOf func(id byte) *stream.Batch
	}{
		{"ack: database", b.Trips.Database, func(id byte) *stream.Batch {
			return batchOf(t, s, id, fmt.Sprint(id), fmt.Sprintf(`{"id":%d}`, id))
		}},
		{"drained", b.Trips.Drained, func(id byte) *stream.Batch {
			return m.batch(t, s, uint64(id), []byte{1}, fmt.Sprintf(`{"id":%d}`, 100+int(id)))
		}},
		{"drained with 300 keys", b.Trips.DrainedKeys, func(id byte) *stream.Batch {
			batch := m.batch(t, s, 3+uint64(id), []byte{1}, fmt.Sprintf(`{"id":%d}`, 1000*int(id)))
			batch.Requests = nil
			for i := range 300 {
				more := batchOf(t, s, id, fmt.Sprintf("%d of %d", i, id), fmt.Sprintf(`{"id":%d}`, 1000*int(id)+i))
				batch.Requests = append(batch.Requests, more.Requests...)
			}
			return batch
		}},
		{"repeated", b.Trips.Repeated, func(byte) *stream.Batch { return batchOf(t, s, 1, "1", `{"id":1}`) }},
	}
	for _, test := range batches {
		for id := range byte(3) { // at first, tables are created and statements are prepared
			before := db.Proxy.Trips()
			commitBatch(t, sink, test.batchOf(id+1))
			if trips := db.Proxy.Trips() - before; id == 2 && trips != test.trips {
				t.Errorf("%s: %d round trips, want %d", test.name, trips, test.trips)
			}
		}
	}
}

// marks makes batches of groups of one epoch.
type marks struct{ spool, epoch [16]byte }

// batch returns a batch of one request and as many groups as there are sums.
func (m marks) batch(t testing.TB, s *stream.Stream, first uint64, sums []byte, body string) *stream.Batch {
	batch := batchOf(t, s, 1, "", body)
	batch.Mark = &queue.Mark{Spool: m.spool, Name: "/readings", Epoch: m.epoch, First: first}
	for _, sum := range sums {
		batch.Mark.Sums = append(batch.Mark.Sums, [16]byte{0, '\'', '\\', 255, sum})
	}
	return batch
}

// known returns what a mark says of each group: same, other, or unknown.
func known(m *queue.Mark) string {
	var words []string
	for _, k := range m.Known {
		switch {
		case k.Stored == nil:
			words = append(words, "unknown")
		case k.Same:
			words = append(words, "same")
		default:
			words = append(words, "other")
		}
	}
	return strings.Join(words, " ")
}

// testStreamMark commits groups of a spool again, overlapping ones, others under the same
// numbers, and some after a gap.
func testStreamMark(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	sink := db.Sink(t, s.Schema())
	one := marks{spool: [16]byte{7, 0, '\'', '\\', 255}, epoch: [16]byte{1, 0, '\'', '\\', 255}}
	two := marks{spool: one.spool, epoch: [16]byte{2}}
	three := marks{spool: [16]byte{8}, epoch: one.epoch}
	first := one.batch(t, s, 1, []byte{1, 2, 3, 4}, "{\"id\":1}\n{\"id\":2,\"note\":\"bad\"}")
	commitBatch(t, sink, first)
	results, err := first.Results()
	if err != nil || len(first.Requests[0].Result.Refused) != 1 || first.Mark.Known != nil {
		t.Fatalf("the first batch: %+v, known %v, %v", first.Requests[0].Result, first.Mark.Known, err)
	}
	again := one.batch(t, s, 1, []byte{1, 2, 3, 4}, `{"id":99}`)
	commitBatch(t, sink, again)
	if stored := again.Mark.Known[0].Stored; string(stored.Results) != string(results) || stored.First != 1 || stored.Last != 4 ||
		again.Mark.Last != 4 {
		t.Errorf("the same again: %+v with %q, want %q", stored, stored.Results, results)
	}
	for _, step := range []struct {
		marks  marks
		first  uint64
		sums   []byte
		want   string
		behind string
	}{
		{one, 1, []byte{1, 2, 3, 4}, "same same same same", ""},
		{one, 1, []byte{1, 2}, "same same", ""},
		{one, 3, []byte{3, 4, 5}, "same same", ""},
		{one, 4, []byte{9, 5}, "other", ""},
		{one, 1, []byte{1, 9, 3, 4}, "same other same same", ""},
		{one, 5, []byte{5, 6}, "", ""}, // stored
		{one, 4, []byte{4, 5, 6}, "same same same", ""},
		{one, 9, []byte{9}, "", "6"}, // stored
		{one, 8, []byte{8}, "unknown", ""},
		{two, 1, []byte{1, 2}, "", ""}, // stored
		{three, 1, []byte{1}, "", ""},  // stored
		{two, 2, []byte{2, 3}, "same", ""},
		{one, 0, nil, "", ""}, // asks
		{marks{spool: one.spool, epoch: [16]byte{3}}, 0, nil, "", ""},
	} {
		batch := step.marks.batch(t, s, step.first, step.sums,
			fmt.Sprintf("{\"id\":%d}", 100*int(step.marks.epoch[0])+int(step.marks.spool[0])*1000+int(step.first)))
		if len(step.sums) == 0 {
			batch.Requests = nil
		}
		commitBatch(t, sink, batch)
		if want := uint64(9); step.first == 0 && step.marks == one && batch.Mark.Last != want {
			t.Errorf("asked for the last group: %d, want %d", batch.Mark.Last, want)
		}
		behind := ""
		if batch.Mark.Behind != nil {
			behind = fmt.Sprint(*batch.Mark.Behind)
		}
		if got := known(batch.Mark); got != step.want || behind != step.behind {
			t.Errorf("groups %d with sums %v: %q, behind %q, want %q and %q", step.first, step.sums, got, behind, step.want, step.behind)
		}
	}
	if got := db.column(t, "SELECT id FROM readings ORDER BY id"); got != "1,7105,7109,7201,8101" {
		t.Errorf("stored %s", got)
	}
	if got := db.column(t, "SELECT last FROM spillway_epochs ORDER BY last"); got != "1,2,9" {
		t.Errorf("the epochs are at %s", got)
	}
}

// testStreamMarkRace commits the same groups through two sinks at once, as two copies of a
// spool do. They are stored once.
func testStreamMarkRace(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	sinks := []stream.Sink{db.Sink(t, s.Schema()), db.Sink(t, s.Schema())}
	m := marks{epoch: [16]byte{1}}
	for round := range 10 {
		batches := make([]*stream.Batch, len(sinks))
		var group sync.WaitGroup
		for i, sink := range sinks {
			batches[i] = m.batch(t, s, uint64(round+1), []byte{byte(round)}, fmt.Sprintf("{\"id\":%d}", round))
			group.Go(func() {
				if err := tryCommit(t, sink, batches[i]); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if found := known(batches[0].Mark) + known(batches[1].Mark); found != "same" {
			t.Errorf("round %d: found %q, want once", round, found)
		}
	}
	if got := db.column(t, "SELECT count(*) FROM readings"); got != "10" {
		t.Errorf("%s rows, want 10", got)
	}
}

// testStreamKeyTimes stores requests with one key in any order of their acceptance. Two are
// the same request if they were accepted within the time that a key is kept.
func testStreamKeyTimes(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	sink := db.Sink(t, s.Schema())
	base := time.Now().Truncate(time.Microsecond).Add(-6 * time.Hour)
	id := byte(0)
	send := func(key string, at time.Time, body string) stream.Result {
		t.Helper()
		id++
		batch := batchOf(t, s, id, key, body)
		batch.Requests[0].Accepted = at
		commitBatch(t, sink, batch)
		return batch.Requests[0].Result
	}
	n := 0
	for _, step := range []struct {
		after  time.Duration
		stored bool
	}{
		{0, true},
		{30 * time.Minute, false},
		{2 * time.Hour, true},
		{90 * time.Minute, false},
		{10 * time.Minute, false},
		{-2 * time.Hour, true},
		{-90 * time.Minute, false},
		{-30 * time.Minute, false},
		{5 * time.Hour, true},
		{0, false},
	} {
		n++
		r := send("times é", base.Add(step.after), fmt.Sprintf("{\"id\":%d}", n))
		if stored := r.Stored == nil && !r.Reused; stored != step.stored {
			t.Errorf("accepted after %v: stored %v, want %v", step.after, stored, step.stored)
		}
	}
	if got := db.column(t, "SELECT id FROM readings ORDER BY id"); got != "1,3,6,9" {
		t.Errorf("stored %s", got)
	}
}

// testStreamSpoiled stores records among which one fails with an error that may be the
// server's.
func testStreamSpoiled(t *testing.T, b StreamBackend) {
	if len(b.Spoil) == 0 {
		return
	}
	db := b.open(t)
	for _, sql := range b.Spoil {
		db.exec(t, sql)
	}
	s := db.stream(t, readings(), nil)
	const clients = 60
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			bad := client%20 == 7
			note := "good"
			if bad {
				note = "spoil"
			}
			key := ""
			if client%2 == 0 {
				key = fmt.Sprint("spoil ", client)
			}
			o, err := trySend(t, s, key, fmt.Sprintf("{\"id\":%d,\"note\":%q}", client, note))
			if !bad && (err != nil || o.Stored != 1) || bad &&
				(err == nil || errors.Is(err, stream.ErrUnavailable) || errors.Is(err, queue.ErrUnknown)) {
				t.Errorf("record %d: %+v, %v", client, o, err)
			}
		})
	}
	group.Wait()
	if got := db.column(t, "SELECT count(*) FROM readings"); got != fmt.Sprint(clients-3) {
		t.Errorf("%s rows, want %d", got, clients-3)
	}
	sink := db.Sink(t, s.Schema())
	m := marks{epoch: [16]byte{1}}
	held := m.batch(t, s, 1, []byte{1}, "{\"id\":100}\n{\"id\":101,\"note\":\"spoil\"}\n{\"id\":102,\"note\":\"bad\"}")
	var h *stream.Held
	if err := tryCommit(t, sink, held); !errors.Is(err, stream.ErrHeld) || !errors.As(err, &h) || h.Row != 1 || h.Reason == "" {
		t.Errorf("no record is stored behind it: %v", err)
	}
	if got := db.column(t, "SELECT count(*) FROM readings WHERE id >= 100"); got != "0" {
		t.Errorf("%s rows of a batch that is held", got)
	}
	good := m.batch(t, s, 1, []byte{1}, "{\"id\":100}\n{\"id\":101,\"note\":\"spoil\"}\n{\"id\":102,\"note\":\"bad\"}\n{\"id\":103}")
	commitBatch(t, sink, good)
	refused := good.Requests[0].Result.Refused
	if len(refused) != 2 || refused[0].Row != 1 || !refused[0].Unsure || refused[1].Row != 2 || refused[1].Unsure {
		t.Errorf("refused %+v", refused)
	}
	if got := db.column(t, "SELECT id FROM readings WHERE id >= 100 ORDER BY id"); got != "100,103" {
		t.Errorf("stored %s", got)
	}
	for _, step := range []struct {
		trial string
		held  bool
	}{{"{\"id\":202,\"note\":\"spoil\"}\n{\"id\":203,\"note\":\"bad\"}", true}, {"{\"id\":204,\"note\":\"bad\"}\n{\"id\":205}", false}} {
		last := m.batch(t, s, 2, []byte{2}, "{\"id\":200}\n{\"id\":201,\"note\":\"spoil\"}")
		last.Trial = m.batch(t, s, 3, []byte{3}, step.trial).Requests
		if err := tryCommit(t, sink, last); errors.Is(err, stream.ErrHeld) != step.held || !step.held && err != nil {
			t.Errorf("with %s behind it: %v", step.trial, err)
		}
	}
	if got := db.column(t, "SELECT id FROM readings WHERE id >= 200 ORDER BY id"); got != "200" {
		t.Errorf("stored %s; records behind the batch are only tried", got)
	}
}

// testStreamSpoiledFound stores such records into a table with a key. A record whose key the
// table has was not inserted, and so does not show that the table takes records.
func testStreamSpoiledFound(t *testing.T, b StreamBackend) {
	if len(b.Spoil) == 0 {
		return
	}
	db := b.open(t)
	for _, sql := range b.Spoil {
		db.exec(t, sql)
	}
	var existing strings.Builder
	var ids []string
	for id := range 300 {
		ids = append(ids, fmt.Sprintf("(%d)", id))
		fmt.Fprintf(&existing, "\n{\"id\":%d}", id)
	}
	db.exec(t, "INSERT INTO readings (id) VALUES "+strings.Join(ids, ", "))
	def := readings()
	def.Key = []string{"id"}
	s := db.stream(t, def, nil)
	sink := db.Sink(t, s.Schema())
	m := marks{epoch: [16]byte{1}}
	number, spoil := uint64(1), "{\"id\":1000,\"note\":\"spoil\"}"
	for _, step := range []struct {
		name, body, trial string
		rowByRow, held    bool
	}{
		{"an existing one", "\n{\"id\":1}", "", false, true},
		{"many existing ones", existing.String(), "", false, true},
		{"many existing ones, row by row", existing.String(), "", true, true},
		{"an existing one to try", "", "{\"id\":1}", false, true},
		{"many existing ones to try", "", existing.String()[1:], false, true},
		{"existing and refused ones to try", "\n{\"id\":1}", "{\"id\":1}\n{\"id\":1001,\"note\":\"bad\"}", true, true},
		{"a new one to try", "\n{\"id\":1}", "{\"id\":1}\n{\"id\":1001}", true, false},
		{"an existing and a new one", "\n{\"id\":1}\n{\"id\":1002}", "", false, false},
		{"many existing ones and a new one, row by row", existing.String() + "\n{\"id\":1003}", "", true, false},
		{"the same again", existing.String() + "\n{\"id\":1003}", "", true, true},
	} {
		batch := m.batch(t, s, number, []byte{1}, spoil+step.body)
		batch.RowByRow = step.rowByRow
		if step.trial != "" {
			batch.Trial = m.batch(t, s, number+1, []byte{1}, step.trial).Requests
		}
		err := tryCommit(t, sink, batch)
		if errors.Is(err, stream.ErrHeld) != step.held || !step.held && err != nil {
			t.Errorf("%s behind it: %v", step.name, err)
		}
		if err != nil {
			continue
		}
		number++
		if refused := batch.Requests[0].Result.Refused; len(refused) != 1 || refused[0].Row != 0 || !refused[0].Unsure {
			t.Errorf("%s behind it: refused %+v", step.name, refused)
		}
	}
	if got := db.column(t, "SELECT id FROM readings WHERE id >= 300 ORDER BY id"); got != "1002,1003" {
		t.Errorf("stored %s", got)
	}
}
