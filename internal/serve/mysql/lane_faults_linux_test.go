//go:build linux && !portable

package mysql

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/storetest"
)

// TestLaneKeepsNoClosedConnection: a connection whose write fails is given back before its descriptor can be another one's.
func TestLaneKeepsNoClosedConnection(t *testing.T) {
	t.Parallel()
	db, loop := open(t, freshDatabase(t, plainServer(t)), database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT :a AS x", number1)
	var r *storetest.LoopRead
	apptest.Await(t, "a write fails", func() bool {
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
		r = storetest.NewLoopRead(nil, wide, []string{"1"})
		broken := false
		storetest.OnLoop(t, loop, func() {
			l := db.laneOf(loop)
			for _, c := range l.held {
				broken = unix.Shutdown(c.fd, unix.SHUT_WR) == nil
			}
			if err := s.Begin(loop, &r.LoopRead); err != nil {
				t.Error(err)
			}
			l.alarm.At = time.Now().Add(time.Hour)
		})
		return broken
	})
	if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
		t.Fatal(err)
	}
	storetest.OnLoop(t, loop, func() {
		l := db.laneOf(loop)
		if slices.ContainsFunc(l.held, func(c *laneConn) bool { return !c.se.IsValid() }) {
			t.Error("a closed connection is held")
		}
		l.alarm.At = time.Now()
	})
}

// TestLaneAnswersBeforeDrop: a read that was ended for its time has its answer at once, so that it cannot be dropped before.
func TestLaneAnswersBeforeDrop(t *testing.T) {
	t.Parallel()
	db, loop := open(t, freshDatabase(t, plainServer(t)), database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT :a + SLEEP(IF(:a = 7, 600, 0)) AS x", number1)
	if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
		t.Fatal(err)
	}
	var r *storetest.LoopRead
	apptest.Await(t, "it runs in the loop", func() bool {
		r = storetest.BeginReads(t, loop, s, nil, wide, []string{"7"})[0]
		late := false
		storetest.OnLoop(t, loop, func() {
			l := db.laneOf(loop)
			for _, c := range l.held {
				if c.read != &r.LoopRead {
					continue
				}
				r.Unwanted, c.since, late = true, loop.Now().Add(-goneAfter/2), true
				if l.look(); len(r.Ended) > 0 {
					t.Error("its client may have closed only its sending half")
				}
				c.since = loop.Now().Add(-time.Minute)
				break
			}
			if l.look(); late && len(r.Ended) == 0 {
				t.Error("its answer waits")
			}
		})
		return late || db.Probe(t.Context()) != nil
	})
}

// TestLaneNeverWaitsForPool: a loop does not wait for a connection, even if the pool has fewer than there are slots.
func TestLaneNeverWaitsForPool(t *testing.T) {
	t.Parallel()
	db, loop := open(t, freshDatabase(t, plainServer(t)), database.Pool{Max: 3}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT :a AS x", number1)
	for range 3 {
		conn, err := db.pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"1"})[0]
	if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
		t.Fatal(err)
	}
}

// TestLaneLargeResults: after a large result, reads of the query run elsewhere for some time, and then in the loop again.
func TestLaneLargeResults(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, "CREATE TABLE big (n int PRIMARY KEY, x longtext) SELECT seq AS n, REPEAT('x', seq) AS x FROM seq_1_to_2000001_step_100000")
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT x FROM big WHERE n = :a", number1)
	for _, size := range []string{"100001", "2000001"} {
		if _, err := inLoop(t, loop, s, wide, size); err != nil && !errors.Is(err, feed.ErrTooLarge) {
			t.Fatal(err)
		}
		for i, r := range storetest.BeginReads(t, loop, s, nil, wide, slices.Repeat([][]string{{"1"}}, largeFor)...) {
			if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
				t.Fatal(size, i, err)
			}
		}
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
	}
}
