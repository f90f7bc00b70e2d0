package storetest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/serve/stream"
)

// orphans is a body of n records, none of which has a parent in the table devices.
func orphans(first, n int) string {
	var body strings.Builder
	for i := range n {
		fmt.Fprintf(&body, "{\"id\":%d,\"device\":99}\n", first+i)
	}
	return body.String()
}

// refusedMax is the number of records in the largest request.
const refusedMax = 10000

// shortTimeout returns a commit timeout that one statement of a batch meets on this
// machine under its current load, and that a batch of refusedMax refused records exceeds.
// It is the time that a fifth of them takes, which is returned too.
func shortTimeout(t *testing.T, db StreamDB) (timeout, fifth time.Duration) {
	t.Helper()
	s := db.stream(t, readings(), nil)
	start := time.Now()
	send(t, s, "", orphans(200000, refusedMax/5))
	fifth = time.Since(start)
	return max(250*time.Millisecond, fifth), fifth
}

// testStreamAllRefused sends the largest request, in which the database refuses every
// record, while other requests continue.
func testStreamAllRefused(t *testing.T, b StreamBackend) {
	db := b.open(t)
	timeout, fifth := shortTimeout(t, db)
	s := db.stream(t, readings(), func(c *stream.Config) { c.Committers, c.CommitTimeout = 2, timeout })
	const n = refusedMax
	r := request(t, s, "all refused", orphans(100000, n))
	done := make(chan struct{})
	start := time.Now()
	go func() {
		defer close(done)
		o, err := s.Commit(t.Context(), r)
		if err != nil || o.Stored != 0 || len(o.Refused) != n || o.Refused[n-1].Index != n-1 || o.Refused[n-1].Reason == "" {
			t.Errorf("%d stored, %d refused, %v", o.Stored, len(o.Refused), err)
		}
	}()
	neighbours, worst := 0, time.Duration(0)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for running := true; running; neighbours++ {
		began := time.Now()
		if o := send(t, s, "", fmt.Sprintf("{\"id\":%d}", neighbours)); o.Stored != 1 {
			t.Errorf("a neighbour: %+v", o)
		}
		worst = max(worst, time.Since(began))
		select {
		case <-done:
			running = false
		case <-tick.C:
		}
	}
	took := time.Since(start)
	if most := 20 * max(fifth, 100*time.Millisecond); took > most {
		t.Errorf("%d refused records took %v, a fifth of them %v: want at most %v", n, took, fifth, most)
	}
	t.Logf("%d refused records took %v and %d more attempts with a timeout of %v, %d neighbours meanwhile, the slowest %v",
		n, took, s.Stats().Retries, timeout, neighbours, worst)
	if got := db.column(t, "SELECT count(*) FROM readings"); got != fmt.Sprint(neighbours) {
		t.Errorf("%s rows, want %d", got, neighbours)
	}
}

// testStreamDrainAllRefused drains such a request and the one after it.
func testStreamDrainAllRefused(t *testing.T, b StreamBackend) {
	db := b.open(t)
	timeout, _ := shortTimeout(t, db)
	d := db.spooledWith(t, readings(), filepath.Join(t.TempDir(), "s.db"), false, immortal, func(c *stream.Config) { c.CommitTimeout = timeout })
	defer d.close(t)
	const n = refusedMax
	start := time.Now()
	d.send(t, "", orphans(100000, n))
	d.send(t, "", `{"id":1}`)
	d.empty(t)
	t.Logf("drained after %v", time.Since(start))
	stats := d.spool.Stats().Names[0]
	if got := db.column(t, "SELECT id FROM readings"); got != "1" || stats.Dead != n {
		t.Errorf("stored %s, %d dead letters", got, stats.Dead)
	}
}

// blockedTimeout is the commit timeout of tests with a lock. A batch waits a tenth of it
// for a lock; the rest is for slow machines.
const blockedTimeout = 20 * time.Second

// testStreamBlocked sends a record whose parent is locked by another session. The records
// in its batch and later ones are stored without it, and it is stored once the lock is
// free.
func testStreamBlocked(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Hold == nil {
		return // there is no lock that one record waits for
	}
	s := db.stream(t, readings(), func(c *stream.Config) {
		c.Committers, c.CommitTimeout, c.WaitMax, c.RetryFor = 2, blockedTimeout, blockedTimeout/5, patience
	})
	send(t, s, "", `{"id":1}`) // the mean is known
	release := db.Hold(t, "SELECT id FROM devices WHERE id = 8 FOR UPDATE")
	defer release()
	var late, group sync.WaitGroup
	const clients = 200
	took := make([]time.Duration, clients)
	for client := range clients {
		group.Go(func() {
			if client == clients/3 {
				late.Go(func() { send(t, s, "blocked", `{"id":5000,"device":8}`) })
			}
			began := time.Now()
			send(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":%d}", 100+client, client%7+1))
			took[client] = time.Since(began)
		})
	}
	group.Wait()
	t.Logf("beside it: the slowest %v, half of them within %v", slices.Max(took), median(took))
	limit := blockedTimeout * 4 / 5
	if b.SlowLocks {
		limit = blockedTimeout * 3 / 2
	}
	if worst := slices.Max(took); worst > limit {
		t.Errorf("a neighbour waited %v", worst)
	}
	for n := range 50 {
		began := time.Now()
		send(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":1}", 1000+n))
		if waited := time.Since(began); waited > blockedTimeout*2/5 || s.Ready() != nil {
			t.Errorf("a later one waited %v, ready: %v", waited, s.Ready())
		}
	}
	if got := db.column(t, "SELECT count(*) FROM readings WHERE id = 5000"); got != "0" {
		t.Errorf("%s rows have got past the lock", got)
	}
	release()
	late.Wait()
	if got := db.column(t, "SELECT count(*) FROM readings"); got != fmt.Sprint(1+clients+50+1) {
		t.Errorf("%s rows", got)
	}
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// testStreamBlockedInOrder does the same for ordered records. The records of the locked
// device are stored in order, and so are those of the others.
func testStreamBlockedInOrder(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Hold == nil {
		return
	}
	def := readings()
	def.OrderBy = "device"
	s := db.stream(t, def, func(c *stream.Config) {
		c.Committers, c.CommitTimeout, c.WaitMax, c.RetryFor = 2, blockedTimeout, patience, patience
	})
	release := db.Hold(t, "SELECT id FROM devices WHERE id = 8 FOR UPDATE")
	defer release()
	const each = 20
	for n := range each {
		for device := range 8 {
			if err := s.Accept(request(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":%d}", device*100+n, device+1))); err != nil {
				t.Fatal(err)
			}
		}
	}
	late := time.After(patience)
	for s.Stats().Stored < each { // a lane without the lock continues
		select {
		case <-late:
			t.Fatalf("nothing goes on: %+v", s.Stats())
		case <-time.After(time.Millisecond):
		}
	}
	release()
	for s.Stats().Stored < 8*each {
		select {
		case <-late:
			t.Fatalf("the rest does not go on: %+v", s.Stats())
		case <-time.After(time.Millisecond):
		}
	}
	for device := range 8 {
		rows := db.rows(t, fmt.Sprintf("SELECT id FROM readings WHERE device = %d ORDER BY seq", device+1))
		for n, row := range rows {
			if row[0] != fmt.Sprint(device*100+n) {
				t.Fatalf("device %d: record %d is %s", device+1, n, row[0])
			}
		}
	}
}

// testStreamDrainOtherColumns kills the process between the commit of a batch and its
// deletion from the spool, and starts it with other columns. Refusals are still reported
// for the right records.
func testStreamDrainOtherColumns(t *testing.T, b StreamBackend) {
	db := b.open(t)
	path := filepath.Join(t.TempDir(), "s.db")
	d := db.spooled(t, readings(), path, true, immortal)
	d.send(t, "", "{\"id\":1,\"note\":\"x\"}\n{\"id\":2}\n{\"id\":3,\"device\":99}\n{\"id\":4}")
	d.send(t, "", `{"id":5,"note":"y"}`)
	d.send(t, "", "{\"id\":6}\n{\"id\":7,\"device\":98}")
	d.close(t)
	d = db.spooled(t, readings(), path, false, 0)
	<-d.sink.dead
	d.sink.shut.Store(true)
	d.close(t)

	def := readings()
	def.Columns = def.Columns[:2] // without the note
	d = db.spooled(t, def, path, false, immortal)
	defer d.close(t)
	if ack := d.Ack(); !strings.HasPrefix(ack, "spool") {
		t.Errorf("ack %q", ack)
	}
	d.empty(t)
	if got := db.column(t, "SELECT id FROM readings ORDER BY id"); got != "1,2,4,5,6" {
		t.Errorf("stored %s", got)
	}
	letters := d.deadLetters(t)
	if len(letters) != 2 || !strings.Contains(letters[0], `"id":3`) || !strings.Contains(letters[1], `"id":7`) {
		t.Errorf("dead letters %q", letters)
	}
	// After a failed batch the settings are read again, and the ack shows them.
	d.sink.unsafe.Store(true)
	d.sink.shut.Store(true)
	d.send(t, "", `{"id":8}`)
	late := time.After(patience)
	for d.Ack() != "spool, then a database not fsynced: fsync=off" {
		select {
		case <-late:
			t.Fatalf("ack %q", d.Ack())
		case <-time.After(time.Millisecond):
		}
	}
}
