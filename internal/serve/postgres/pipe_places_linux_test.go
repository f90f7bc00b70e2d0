//go:build linux && !portable

package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/storetest"
)

// TestLoopPlaces: a query that becomes slow for all arguments has no more connections in loops and elsewhere than the gate has places.
// All of them can be elsewhere: a loop gives its connections back when it has not used them, and on a busy machine it may wait for
// another one too long.
func TestLoopPlaces(t *testing.T) {
	t.Parallel()
	t.Run("usual", func(t *testing.T) {
		t.Parallel()
		testLoopPlaces(t, false)
	})
	t.Run("without connections of the loop", func(t *testing.T) {
		t.Parallel()
		testLoopPlaces(t, true)
	})
}

func testLoopPlaces(t *testing.T, elsewhere bool) {
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE FUNCTION pause(a int) RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN IF a >= 100 THEN PERFORM pg_sleep(600); END IF; RETURN a; END $$")
	p := []param.Param{{Name: "a", Type: param.Integer}}
	db, loop := open(t, url, database.Pool{Max: 3, StatementTimeout: time.Hour}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT pause(:a::int) AS x", Params: p})
	other := loopSource(t, db, feed.Definition{Name: "/feed", SQL: "SELECT 1 AS x"})
	gate := queue.NewGate(3).Entrance()
	q := query.Open(query.Config{
		Definition: feed.Definition{Name: "/q", Params: p}, Limit: wide, Timeout: time.Hour, WaitersMax: 1000, Log: slog.New(slog.DiscardHandler), Gate: gate,
	}, s)
	for fast := 0; fast < 100; { // so often it was
		r := storetest.BeginReads(t, loop, s, gate, wide, []string{"1"})[0]
		switch err := apptest.Receive(t, "the rows", r.Ended); {
		case err == nil:
			fast++
		case !errors.Is(err, feed.ErrElsewhere):
			t.Fatal(err)
		}
	}
	var waits []*query.Wait
	storetest.OnLoop(t, loop, func() {
		if p := db.pipesOf(loop); elsewhere {
			p.after = p.loop.Now().Add(time.Hour)
			for _, c := range p.open {
				c.leaving = true
			}
		}
		for i := range 8 {
			w, later := new(query.Wait), new(front.Later)
			later.Respond, later.Left = func(dst []byte, _ bool) ([]byte, bool) { return dst, true }, func() {}
			if !q.Begin(loop, w, later, []string{fmt.Sprint(100 + i)}) {
				t.Error("not begun")
			}
			waits = append(waits, w)
		}
	})
	running := func() string {
		return queryText(t, url, "SELECT count(*)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pause(%' AND pid <> pg_backend_pid() AND datname = current_database()")
	}
	end := sync.OnceFunc(func() {
		storetest.OnLoop(t, loop, func() {
			for _, w := range waits {
				_, _, _ = q.Answered(w.Answer(true))
			}
		})
		q.Close()
	})
	t.Cleanup(end)
	apptest.AwaitState(t, "the others wait at the gate", func() (string, bool) {
		active, reclaimed := running(), gate.Reclaimed()
		return fmt.Sprintf("%s run, %d places are reclaimed", active, reclaimed), active == "2" && reclaimed > math.MinInt
	})
	if reclaimed := gate.Reclaimed(); elsewhere && reclaimed >= 0 {
		t.Errorf("%d places are reclaimed of a loop that has none", reclaimed)
	}
	for range 20 {
		if err := other.Read(t.Context(), feed.Range{}, &feed.Rows{Limit: wide}); err != nil || running() != "2" {
			t.Fatalf("%s slow statements run beside: %v", running(), err)
		}
	}
	end()
	for range 2 { // all places are free again
		giveBack, err := gate.Lend(t.Context(), func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer giveBack()
	}
}
