package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// testStreamOrder has several clients per device that send one record after the other, and
// some that send for two devices at once. Records of a device are stored in the order in
// which they were answered.
func testStreamOrder(t *testing.T, b StreamBackend) {
	db := b.open(t)
	def := readings()
	def.OrderBy = "device"
	s := db.stream(t, def, nil)
	const devices, each = 8, 40
	var group sync.WaitGroup
	for device := range devices {
		group.Go(func() {
			next := device * 1000
			for range each / 4 {
				for range 3 { // several are pending; the order is that of acceptance
					body := fmt.Sprintf("{\"id\":%d,\"device\":%d,\"note\":\"%d\"}", next, device+1, next)
					if device%4 == 0 { // of two devices
						body += fmt.Sprintf("\n{\"id\":%d,\"device\":%d}", next+100000, (device+1)%devices+1)
					}
					if _, _, err := s.Begin(t.Context(), request(t, s, "", body), nil); err != nil {
						t.Error(err)
					}
					next++
				}
				send(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":%d,\"note\":\"%d\"}", next, device+1, next))
				next++
			}
		})
	}
	group.Wait()
	last := map[string]int{}
	rows := db.rows(t, "SELECT device, note FROM readings WHERE note IS NOT NULL ORDER BY seq")
	for _, row := range rows {
		n, _ := strconv.Atoi(row[1])
		if before, ok := last[row[0]]; ok && n != before+1 {
			t.Errorf("device %s: %d is stored behind %d", row[0], n, before)
		}
		last[row[0]] = n
	}
	if len(rows) != devices*each {
		t.Errorf("%d rows, want %d", len(rows), devices*each)
	}
	if len(rows) > 0 {
		t.Logf("%d requests in %d batches", s.Stats().Stored, s.Stats().Batches)
	}
}

// testStreamForget commits more batches than their table keeps.
func testStreamForget(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	const batches = 300
	for id := range batches {
		send(t, s, "", fmt.Sprintf("{\"id\":%d}", id))
	}
	kept, _ := strconv.Atoi(db.column(t, "SELECT count(*) FROM spillway_batches"))
	if stats := s.Stats(); stats.Batches != batches || kept == 0 || kept > 150 {
		t.Errorf("%d ids kept of %d batches", kept, stats.Batches)
	}
}

// batchOf returns a batch of one request, as a stream creates it.
func batchOf(t testing.TB, s *stream.Stream, id byte, key, body string) *stream.Batch {
	r := request(t, s, key, body)
	return &stream.Batch{ID: [16]byte{id, 0, '\'', '\\', 255}, KeyTTL: time.Hour, Requests: []*stream.Entry{
		{Records: r.Records, Key: key, Fingerprint: r.Fingerprint},
	}}
}

// commitBatch commits a batch as a stream does.
func commitBatch(t testing.TB, sink stream.Sink, b *stream.Batch) {
	t.Helper()
	if err := tryCommit(t, sink, b); err != nil {
		t.Fatal(err)
	}
}

// tryCommit commits a batch, with up to three retries, as streams do. A pooler may lose a prepared
// statement.
func tryCommit(t testing.TB, sink stream.Sink, b *stream.Batch) error {
	t.Helper()
	err := sink.Commit(t.Context(), b)
	for range 3 {
		if !errors.Is(err, stream.ErrTransient) && !errors.Is(err, stream.ErrUnconfirmed) {
			break
		}
		b.Reset()
		err = sink.Commit(t.Context(), b)
	}
	return err
}

// testStreamSweep sweeps keys and ids, a few at a time.
func testStreamSweep(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	sink := db.Sink(t, s.Schema())
	for i := range byte(5) {
		commitBatch(t, sink, batchOf(t, s, i, fmt.Sprint("sweep", i), fmt.Sprintf("{\"id\":%d}", i)))
	}
	sweep := func(keys, batches time.Duration, want int) {
		t.Helper()
		if n, err := sink.Sweep(t.Context(), stream.Keep{Keys: keys, Batches: batches, Marks: time.Hour}, 2); err != nil || n != want {
			t.Errorf("swept %d, %v, want %d", n, err, want)
		}
	}
	sweep(0, time.Hour, 0)
	sweep(-2*time.Hour, time.Hour, 2)
	sweep(-2*time.Hour, -time.Hour, 4)
	sweep(-2*time.Hour, -time.Hour, 3)
	sweep(-2*time.Hour, -time.Hour, 1)
	sweep(-2*time.Hour, -time.Hour, 0)
	commitBatch(t, sink, marks{epoch: [16]byte{1}}.batch(t, s, 1, []byte{1}, `{"id":10}`))
	sweep(-2*time.Hour, -time.Hour, 0)
	if n, err := sink.Sweep(t.Context(), stream.Keep{Keys: time.Hour, Batches: time.Hour, Marks: -time.Hour}, 2); err != nil || n != 2 {
		t.Errorf("swept %d marks, %v, want an epoch and a batch", n, err)
	}
}

// testStreamSameBatch commits a batch twice under one id.
func testStreamSameBatch(t *testing.T, b StreamBackend) {
	db := b.open(t)
	s := db.stream(t, readings(), nil)
	sink := db.Sink(t, s.Schema())
	bodies := []string{
		`{"id":1}`, "{\"id\":2}\n{\"id\":3,\"note\":\"bad\"}\n{\"id\":4}", "{\"id\":5}\n{\"id\":6,\"device\":99}",
	}
	for i, body := range bodies {
		for _, key := range []string{"", fmt.Sprint("same", i)} {
			if key != "" {
				body = strings.ReplaceAll(body, `"id":`, `"id":10`)
			}
			batch := batchOf(t, s, byte(2*i+len(key)), key, body)
			commitBatch(t, sink, batch)
			first := fmt.Sprintf("%+v", batch.Requests[0].Result)
			batch.Reset()
			commitBatch(t, sink, batch)
			if second := fmt.Sprintf("%+v", batch.Requests[0].Result); first != second {
				t.Errorf("%s: result %s, then %s", body, first, second)
			}
		}
	}
	if got := db.column(t, "SELECT id FROM readings ORDER BY id"); got != "1,2,4,5,101,102,104,105" {
		t.Errorf("stored %s", got)
	}
}

// testStreamCommitCut cuts the connection between a COMMIT and its answer, and before
// the COMMIT arrives, for batches of every kind.
func testStreamCommitCut(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Proxy == nil {
		return // there is no connection to cut
	}
	s := db.stream(t, readings(), nil)
	send(t, s, "", `{"id":1000}`) // prepares the statements
	id := 0
	for _, where := range []Cut{CutBefore, CutAfter} {
		for _, bad := range []string{"", `{"id":1000}`} {
			for _, key := range []string{"", "cut"} {
				id++
				if key != "" {
					key += fmt.Sprint(id)
				}
				cuts := db.Proxy.Cuts()
				db.Proxy.Arm(where)
				o := send(t, s, key, fmt.Sprintf("{\"id\":%d}\n%s", id, bad))
				if db.Proxy.Cuts() != cuts+1 {
					t.Fatalf("cut %d, %q, %q: nothing was cut", where, bad, key)
				}
				if o.Stored != 1 || (len(o.Refused) == 1) != (bad != "") || o.Replayed {
					t.Errorf("cut %d, %q, %q: %+v", where, bad, key, o)
				}
			}
		}
	}
	// The sink reports an unknown outcome, and the next attempt finds it out.
	sink := db.Sink(t, s.Schema())
	batch := batchOf(t, s, 1, "", `{"id":9}`)
	db.Proxy.Arm(CutAfter)
	if err := sink.Commit(t.Context(), batch); !errors.Is(err, stream.ErrUnconfirmed) {
		t.Errorf("an answer was lost: %v", err)
	}
	commitBatch(t, sink, batch)
	if got := db.column(t, "SELECT id FROM readings ORDER BY id"); got != "1,2,3,4,5,6,7,8,9,1000" {
		t.Errorf("stored %s", got)
	}
	if stats := s.Stats(); stats.Retries < 8 || stats.Unknown != 0 {
		t.Errorf("stats %+v", stats)
	}
}

// testStreamCrash kills the server several times under load. Acknowledged records are
// stored, other stored records belong to requests without an answer, nothing is stored
// twice, and a client's records are in order.
func testStreamCrash(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Kill == nil {
		return // there is no server to kill
	}
	def := readings()
	def.OrderBy = "device"
	s := db.stream(t, def, func(c *stream.Config) { c.CommitTimeout = 2 * time.Second })
	ctx, stop := context.WithCancel(t.Context())
	ledger := &ledger{acked: map[int]bool{}, unknown: map[int]bool{}}
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() { ledger.run(ctx, t, s, client) })
	}
	rounds, each := 3, 300
	if testing.Short() {
		rounds, each = 1, 150
	}
	for range rounds {
		ledger.await(t, each)
		db.Kill()
		if err := db.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ledger.await(t, each)
	stop()
	clients.Wait()
	apptest.AwaitState(t, "requests of the last clients have ended", func() (string, bool) {
		stats := s.Stats()
		return fmt.Sprintf("%+v", stats), stats.QueueRows == 0 && stats.Committing == 0
	})
	ledger.check(t, db)
	t.Logf("%d acknowledged, %d unknown, %d retries", len(ledger.acked), len(ledger.unknown), s.Stats().Retries)
}

// ledger holds what clients know of their records.
type ledger struct {
	mu      sync.Mutex
	acked   map[int]bool
	unknown map[int]bool
	count   int
}

// run sends records one after the other, some with short timeouts. The ids of client c
// start at c*1e6.
func (l *ledger) run(ctx context.Context, t testing.TB, s *stream.Stream, client int) {
	for n := 0; ctx.Err() == nil; n++ {
		id := client*1000000 + n
		key := ""
		if n%3 == 0 {
			key = fmt.Sprint("crash", id)
		}
		limited, cancel := context.WithTimeout(ctx, time.Duration(1+rand.IntN(5000))*time.Millisecond)
		_, err := store(limited, s, request(t, s, key, fmt.Sprintf("{\"id\":%d,\"device\":%d,\"note\":\"%d\"}", id, client+1, n)))
		if key != "" && errors.Is(err, queue.ErrUnknown) { // it may be sent again
			_, err = store(ctx, s, request(t, s, key, fmt.Sprintf("{\"id\":%d,\"device\":%d,\"note\":\"%d\"}", id, client+1, n)))
		}
		cancel()
		l.mu.Lock()
		switch {
		case err == nil:
			l.acked[id] = true
			l.count++
		case errors.Is(err, queue.ErrUnknown):
			l.unknown[id] = true
		case !errors.Is(err, stream.ErrUnavailable):
			t.Errorf("record %d: %v", id, err)
		}
		l.mu.Unlock()
	}
}

// await waits until n more records have been acknowledged.
func (l *ledger) await(t testing.TB, n int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.count
	}
	before := count()
	apptest.AwaitState(t, fmt.Sprintf("%d more records are acknowledged", n), func() (string, bool) {
		more := count() - before
		return fmt.Sprint(more), more >= n
	})
}

// check compares the table with the ledger.
func (l *ledger) check(t testing.TB, db StreamDB) {
	t.Helper()
	stored, last := map[int]bool{}, map[string]int{}
	for _, row := range db.rows(t, "SELECT id, device, note FROM readings ORDER BY seq") {
		id, _ := strconv.Atoi(row[0])
		n, _ := strconv.Atoi(row[2])
		if before, ok := last[row[1]]; stored[id] || ok && n <= before && !l.unknown[id] {
			t.Errorf("record %d of device %s is there twice, or behind %d", id, row[1], before)
		}
		last[row[1]] = max(n, last[row[1]])
		stored[id] = true
		if !l.acked[id] && !l.unknown[id] {
			t.Errorf("record %d is there, and was said not to be", id)
		}
	}
	for id := range l.acked {
		if !stored[id] {
			t.Errorf("record %d was acknowledged and is not there", id)
		}
	}
}
