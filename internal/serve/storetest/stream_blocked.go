package storetest

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
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

// refusedMax returns the number of records in the largest request, or fewer with go test
// -short.
func refusedMax() int {
	if testing.Short() {
		return 2000
	}
	return 10000
}

// refusedFifth returns the time that a fifth of refusedMax refused records takes alone.
func refusedFifth(t *testing.T, s *stream.Stream) time.Duration {
	t.Helper()
	start := time.Now()
	send(t, s, "", orphans(200000, refusedMax()/5))
	return time.Since(start)
}

// testStreamAllRefused sends the largest request, in which the database refuses every
// record, while other requests continue. It may take longer than commit_timeout, which bounds
// each statement alone.
//
// How long a statement takes depends on the machine. The timeout is doubled after a round in
// which one exceeded it, and is shorter after a round in which the whole request did not. A
// round during which the machine became slower is repeated.
func testStreamAllRefused(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if testing.Short() {
		if r := refuseAll(t, db, 1000000, time.Minute); r.late {
			t.Error("a request was not answered in time")
		}
		return
	}
	alone := db.stream(t, readings(), nil)
	timeout, why := 100*time.Millisecond, ""
	for round, began := 1, time.Now(); time.Since(began) < patience; round++ {
		before := refusedFifth(t, alone)
		var r refusedRound
		t.Run(timeout.String(), func(t *testing.T) { r = refuseAll(t, db, 1000000*round, timeout) })
		most := 20 * max(before, refusedFifth(t, alone), 100*time.Millisecond)
		switch {
		case t.Failed():
			return
		case r.late:
			why = fmt.Sprintf("a statement took more than %v", timeout)
			timeout *= 2
		case r.took <= timeout:
			why = fmt.Sprintf("all records took %v, no more than the timeout of %v", r.took, timeout)
			timeout = max(r.took/4, time.Millisecond)
		case r.took > most:
			why = fmt.Sprintf("all records took %v: want at most 20 times as long as a fifth, %v", r.took, most)
		default:
			t.Logf("%d refused records took %v with a timeout of %v, %d neighbours meanwhile, the slowest %v", refusedMax(), r.took, timeout,
				r.neighbours, r.slowest)
			return
		}
	}
	t.Errorf("no round in %v was as it must be; the last: %s", patience, why)
}

// refusedRound is a round of testStreamAllRefused.
type refusedRound struct {
	late       bool // a request was not answered in time
	took       time.Duration
	neighbours int
	slowest    time.Duration // of them
}

// refuseAll sends a request of refusedMax records that are all refused, and meanwhile others
// with ids from first on.
func refuseAll(t *testing.T, db StreamDB, first int, timeout time.Duration) (r refusedRound) {
	t.Helper()
	s := db.stream(t, readings(), func(c *stream.Config) { c.Committers, c.CommitTimeout, c.RetryFor = 2, timeout, 20*timeout })
	isLate := func(err error) bool { return errors.Is(err, queue.ErrUnknown) || errors.Is(err, stream.ErrUnavailable) }
	n := refusedMax()
	all := request(t, s, fmt.Sprintf("all refused %d", first), orphans(100000, n))
	done := make(chan bool, 1)
	start := time.Now()
	go func() {
		o, err := store(t.Context(), s, all)
		late := isLate(err)
		if !late && (err != nil || o.Stored != 0 || len(o.Refused) != n || o.Refused[n-1].Index != n-1 || o.Refused[n-1].Reason == "") {
			t.Errorf("want all %d refused; %d stored, %d refused, %v", n, o.Stored, len(o.Refused), err)
		}
		done <- late
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late, running := false, true
	for ; running; r.neighbours++ {
		began := time.Now()
		o, err := trySend(t, s, "", fmt.Sprintf("{\"id\":%d}", first+r.neighbours))
		late = late || isLate(err)
		if o.Stored != 1 && !isLate(err) {
			t.Errorf("a neighbour: %+v, %v", o, err)
		}
		r.slowest = max(r.slowest, time.Since(began))
		select {
		case r.late = <-done:
			running = false
		case <-tick.C:
		}
	}
	r.took, r.late = time.Since(start), r.late || late
	if r.late {
		_ = s.Close(t.Context()) // the request that was answered too early may fail in the end
		return r
	}
	if got := db.column(t, fmt.Sprintf("SELECT count(*) FROM readings WHERE id >= %d", first)); got != fmt.Sprint(r.neighbours) {
		t.Errorf("%s rows, want %d", got, r.neighbours)
	}
	if got := db.column(t, "SELECT count(*) FROM readings WHERE device = 99"); got != "0" {
		t.Errorf("%s refused records are stored", got)
	}
	return r
}

// testStreamDrainAllRefused drains such a request and the one after it.
func testStreamDrainAllRefused(t *testing.T, b StreamBackend) {
	db := b.open(t)
	// A statement of the batch meets this on most machines, and the whole does not.
	timeout := max(250*time.Millisecond, refusedFifth(t, db.stream(t, readings(), nil)))
	d := db.spooledWith(t, readings(), filepath.Join(t.TempDir(), "s.db"), false, immortal,
		func(c *stream.Config) { c.CommitTimeout = timeout })
	defer d.close(t)
	n := refusedMax()
	d.send(t, "", orphans(100000, n))
	d.send(t, "", `{"id":1}`)
	d.empty(t)
	stats := d.spool.Stats().Names[0]
	if got := db.column(t, "SELECT id FROM readings"); got != "1" || stats.Dead != int64(n) {
		t.Errorf("stored %s, %d dead letters", got, stats.Dead)
	}
}

// blockedTimeout is the commit timeout of tests with a lock. A batch waits a tenth of it
// for a lock; the rest is for slow machines.
const blockedTimeout = 20 * time.Second

// blockedWait is the wait_max of tests with a lock. A request that would have to wait for
// the lock is not answered within it.
const blockedWait = time.Minute

// testStreamBlocked sends a record whose parent is locked by another session, until they have
// all been answered. The records in its batch and later ones are stored without it, and it is
// stored once the lock is free.
func testStreamBlocked(t *testing.T, b StreamBackend) {
	db := b.open(t)
	if db.Hold == nil {
		return // there is no lock that one record waits for
	}
	s := db.stream(t, readings(), func(c *stream.Config) {
		c.Committers, c.CommitTimeout, c.WaitMax, c.RetryFor = 2, blockedTimeout, blockedWait, patience
	})
	send(t, s, "", `{"id":1}`) // the mean is known
	release := db.Hold(t, "SELECT id FROM devices WHERE id = 8 FOR UPDATE")
	defer release()
	var late, group sync.WaitGroup
	const clients = 200
	for client := range clients {
		group.Go(func() {
			if client == clients/3 {
				late.Go(func() { send(t, s, "blocked", `{"id":5000,"device":8}`) })
			}
			send(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":%d}", 100+client, client%7+1))
		})
	}
	group.Wait()
	for n := range 50 {
		send(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":1}", 1000+n))
		if err := s.Ready(); err != nil {
			t.Errorf("later ones: %v", err)
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
			r := request(t, s, "", fmt.Sprintf("{\"id\":%d,\"device\":%d}", device*100+n, device+1))
			if _, _, err := s.Begin(t.Context(), r, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	stored := func(what string, n uint64) {
		t.Helper()
		apptest.AwaitState(t, what, func() (string, bool) {
			stats := s.Stats()
			return fmt.Sprintf("%+v", stats), stats.Stored >= n
		})
	}
	stored("a lane without the lock goes on", each)
	release()
	stored("the rest is stored", 8*each)
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
	apptest.Receive(t, "the end of the process behind a commit", d.sink.dead)
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
	apptest.AwaitState(t, "the ack shows the settings", func() (string, bool) {
		ack := d.Ack()
		return ack, ack == "spool, then a database not fsynced: fsync=off"
	})
}
