//go:build linux && !portable

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/storetest"
)

var (
	wide    = feed.Limit{Rows: 1000, Bytes: 1 << 20}
	number1 = param.Param{Name: "a", Type: param.Integer}
)

// endlessFrom is a statement that never ends if a is 100 or more.
const endlessFrom = "SELECT :a AS x WHERE :a < 100 OR (WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT max(n) FROM s)"

func loopSource(t *testing.T, db *sqlite.DB, sql string, params ...param.Param) feed.LoopReader {
	t.Helper()
	s := source(t, db, feed.Definition{Name: "/q", SQL: sql, Params: params})
	if err := s.Check(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return s.(feed.LoopReader)
}

// inLoop reads in a loop, and outside of it while the loop cannot.
func inLoop(t *testing.T, loop *front.Loop, s feed.LoopReader, args ...string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		r := storetest.BeginReads(t, loop, s, nil, wide, args)[0]
		err := apptest.Receive(t, "the rows", r.Ended)
		switch {
		case err == nil:
			return string(r.Rows.Data)
		case !errors.Is(err, feed.ErrElsewhere):
			t.Fatal(err)
		case time.Now().After(deadline):
			t.Fatalf("the loop cannot read %.60q", args)
		}
		if err := s.Read(t.Context(), feed.Range{Args: args}, &feed.Rows{Limit: wide}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLaneReadsAsRead: an event loop reads the same rows as Read, whatever their types and numbers, and leaves errors to it.
func TestLaneReadsAsRead(t *testing.T) {
	t.Parallel()
	db, run := openFreight(t, 200)
	sqlite.NeverSlow(db)
	loop := storetest.StartLoop(t)
	run("CREATE TABLE kinds (flag BOOLEAN, price DECIMAL, doc JSON, at TIMESTAMP, raw BLOB); INSERT INTO kinds VALUES (1, '1.50', '{\"a\":1}', '2026-01-02', x'00ff')")
	var params []param.Param
	for _, p := range []param.Type{param.Text, param.Integer, param.Real, param.Boolean, param.Timestamp, param.Bytes} {
		params = append(params, param.Param{Name: string(p), Type: p})
	}
	s := loopSource(t, db, `SELECT id, goods_name, :text AS a, id + :integer AS i, id / :real AS f, :boolean AS b, :timestamp AS t, :bytes AS r,
		NULL AS n, kinds.* FROM orders, kinds WHERE id <= :integer`, params...)
	for i := range 60 {
		args := []string{strings.Repeat(`ä'\`, i%20), strconv.Itoa(i - 3), fmt.Sprint(float64(i) / 7), strconv.FormatBool(i%2 == 0), "2026-01-02T03:04:05.678901Z", "AP8="}
		if i%5 == 0 {
			args[i/5%len(args)] = param.Absent
		}
		rows := feed.Rows{Limit: wide}
		if err := s.Read(t.Context(), feed.Range{Args: args}, &rows); err != nil {
			t.Fatal(err)
		}
		if got := inLoop(t, loop, s, args...); got != string(rows.Data) {
			t.Fatalf("%.100q: %.300s; want %.300s", args, got, rows.Data)
		}
	}
	small := feed.Limit{Rows: 1, Bytes: 1 << 20}
	for _, args := range [][]string{{"x", "2", "1", "true", "2026-01-02T03:04:05Z", ""}, {"x", "9223372036854775808", "1", "true", "2026-01-02T03:04:05Z", ""}} {
		r := storetest.BeginReads(t, loop, s, nil, small, args)[0]
		if err := apptest.Receive(t, "the error", r.Ended); err != feed.ErrElsewhere || len(r.Rows.Data) != 0 {
			t.Errorf("%q: %v, %q", args, err, r.Rows.Data)
		}
	}
}

// TestLanePages: a loop reads the pages of feeds as Read does.
func TestLanePages(t *testing.T) {
	t.Parallel()
	storetest.FeedInLoops(t, backend(func(t testing.TB, pool database.Pool) (*sqlite.DB, *driver.Conn) {
		db, writer := open(t, pool)
		return sqlite.NeverSlow(db), writer
	}))
}

// TestLaneSlowRead: a read that does not end is interrupted and runs elsewhere, as the next ones of its query do. Others go on.
func TestLaneSlowRead(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{StatementTimeout: time.Hour})
	loop := storetest.StartLoop(t)
	slow, quick := loopSource(t, db, endlessFrom, number1), loopSource(t, db, "SELECT :a AS x", number1)
	for range 2 {
		for _, s := range []feed.LoopReader{slow, quick} {
			if got := inLoop(t, loop, s, "5"); got != `{"x":5}` {
				t.Fatal(got)
			}
		}
	}
	for _, next := range []int{64, 128, 256} {
		r := storetest.BeginReads(t, loop, slow, nil, wide, []string{"100"})[0]
		if err := apptest.Receive(t, "the interruption", r.Ended); err != feed.ErrElsewhere {
			t.Fatal(err)
		}
		for i := range next {
			r := storetest.BeginReads(t, loop, slow, nil, wide, []string{"1"})[0]
			if err := apptest.Receive(t, "the next one", r.Ended); err != feed.ErrElsewhere {
				t.Fatalf("%d of %d: %v", i, next, err)
			}
		}
	}
	inLoop(t, loop, slow, "1")
}

// TestLaneSlowBurst: of many slow reads that have begun at once, one holds up the loop.
func TestLaneSlowBurst(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{StatementTimeout: time.Hour})
	loop := storetest.StartLoop(t)
	s := loopSource(t, db, endlessFrom, number1)
	inLoop(t, loop, s, "5")
	var all [][]string
	for i := range 100 {
		all = append(all, []string{strconv.Itoa(100 + i)})
	}
	held := 0
	for _, r := range storetest.BeginReads(t, loop, s, nil, wide, all...) {
		if err := apptest.Receive(t, "the answer", r.Ended); err != feed.ErrElsewhere {
			t.Fatal(err)
		}
		if r.Took > 0 {
			held++
		}
	}
	if held > 1 {
		t.Errorf("%d reads held up the loop", held)
	}
	for range 7 { // not often enough
		if err := s.Read(t.Context(), feed.Range{Args: []string{"1"}}, &feed.Rows{Limit: wide}); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			r := storetest.BeginReads(t, loop, s, nil, wide, []string{"1"})[0]
			if err := apptest.Receive(t, "the answer", r.Ended); err != feed.ErrElsewhere {
				t.Fatal("the loop reads what was slow")
			}
		}
	}
}

// TestLaneAnswersAll: of many reads of two queries, some of which are dropped, each gets its own rows once, and the queries take turns.
func TestLaneAnswersAll(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{})
	sqlite.NeverSlow(db)
	loop := storetest.StartLoop(t)
	many, one := loopSource(t, db, "SELECT :a AS x", number1), loopSource(t, db, "SELECT :a AS y", number1)
	read := 0
	for range 20 {
		inLoop(t, loop, many, "1")
		inLoop(t, loop, one, "1")
		var order []string
		reads := make([]*storetest.LoopRead, 301)
		storetest.OnLoop(t, loop, func() {
			for i := range reads {
				s, r := many, storetest.NewLoopRead(nil, wide, []string{strconv.Itoa(i)})
				if i == len(reads)-1 {
					s = one
				}
				r.Done = func(err error) { order = append(order, string(r.Name)); r.Ended <- err }
				if reads[i] = r; s.Begin(loop, &r.LoopRead) != nil {
					r.Ended <- feed.ErrElsewhere
				}
			}
			for i := 0; i < 300; i += 13 {
				if len(reads[i].Ended) > 0 {
					<-reads[i].Ended // it has not begun
				} else if many.Drop(loop, &reads[i].LoopRead) {
					t.Error("a read that waits was sent")
				}
			}
		})
		for i, r := range reads {
			if i < 300 && i%13 == 0 {
				continue
			}
			err, want := apptest.Receive(t, "the rows", r.Ended), fmt.Sprintf(`{"x":%d}`, i)
			if i == 300 {
				want = `{"y":300}`
			}
			if err == nil && string(r.Rows.Data) != want || err != nil && err != feed.ErrElsewhere {
				t.Fatalf("%d: %s, %v", i, r.Rows.Data, err)
			}
			if err == nil {
				read++
			}
		}
		storetest.OnLoop(t, loop, func() {
			if len(order) == 277 && !strings.Contains(strings.Join(order[:3], " "), string(reads[300].Name)) {
				t.Errorf("the other query is not among the first: %q", order[:10])
			}
			for i := 0; i < 300; i += 13 {
				if len(reads[i].Ended) > 0 {
					t.Errorf("%d was dropped and answered", i)
				}
			}
		})
	}
	if read < 100 {
		t.Errorf("the loop has read %d times", read)
	}
}

// TestLaneYields: while no connection or no place is free, or somebody waits for one, a loop reads nothing.
func TestLaneYields(t *testing.T) {
	t.Parallel()
	db, _ := open(t, database.Pool{Max: 2, AcquireTimeout: time.Hour, StatementTimeout: time.Hour})
	sqlite.NeverSlow(db)
	loop := storetest.StartLoop(t)
	s := loopSource(t, db, endlessFrom, number1)
	inLoop(t, loop, s, "1")
	elsewhere := func(gate *queue.Entrance) {
		t.Helper()
		for range 20 {
			r := storetest.BeginReads(t, loop, s, gate, wide, []string{"1"})[0]
			if err := apptest.Receive(t, "the answer", r.Ended); err != feed.ErrElsewhere {
				t.Fatal(err)
			}
		}
	}
	gate := queue.NewGate(2).Entrance()
	leave, err := gate.Enter(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere(gate)
	leave()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- s.Read(ctx, feed.Range{Args: []string{"100"}}, &feed.Rows{Limit: wide}) }()
	}
	apptest.Await(t, "both connections are in use", func() bool { return db.Stats().InUse == 2 })
	elsewhere(nil)
	cancel()
	for range 2 {
		if err := apptest.Receive(t, "the end", ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	inLoop(t, loop, s, "2")
	if s := db.Stats(); s.InUse != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLaneFollows: a loop reads the columns that a table has got, and not from a file that was replaced.
func TestLaneFollows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"now", "next"} {
		script(t, openWriter(t, path(name)), fmt.Sprintf("PRAGMA journal_mode = DELETE; CREATE TABLE t (x TEXT); INSERT INTO t VALUES ('%s')", name))
	}
	db, loop := sqlite.NeverSlow(openFile(t, path("now"), database.Pool{})), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT * FROM t")
	if got := inLoop(t, loop, s); got != `{"x":"now"}` {
		t.Fatal(got)
	}
	script(t, openWriter(t, path("now")), "ALTER TABLE t ADD COLUMN y INTEGER DEFAULT 2")
	if got := inLoop(t, loop, s); got != `{"x":"now","y":2}` {
		t.Fatal(got)
	}
	past := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(path("next"), past, past), os.Rename(path("next"), path("now"))); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the other file is read", func() bool { return inLoop(t, loop, s) == `{"x":"next"}` })
}
