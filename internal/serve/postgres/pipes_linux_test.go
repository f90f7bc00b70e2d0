//go:build linux && !portable

package postgres

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

var wide = feed.Limit{Rows: 1000, Bytes: 1 << 20}

// inLoop reads in a loop, again until it could.
func inLoop(t *testing.T, loop *front.Loop, s *source, limit feed.Limit, args ...string) (string, error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		r := storetest.BeginReads(t, loop, s, nil, limit, args)[0]
		err := apptest.Receive(t, "the rows", r.Ended)
		if !errors.Is(err, feed.ErrElsewhere) {
			return string(r.Rows.Data), err
		}
		if time.Now().After(deadline) {
			t.Fatal("the loop cannot read")
		}
		<-time.After(time.Millisecond)
	}
}

func loopSource(t *testing.T, db *DB, def feed.Definition) *source {
	t.Helper()
	s, err := db.source(def)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return s
}

// typed are parameters of every type.
func typed() []param.Param {
	var params []param.Param
	for _, p := range []param.Type{
		param.Text, param.Integer, param.Real, param.Boolean, param.Timestamp, param.UUID, param.Decimal, param.Date, param.Time, param.Bytes,
	} {
		params = append(params, param.Param{Name: string(p), Type: p})
	}
	return append(params, param.Param{Name: "list", Type: param.Text, ListMax: 10})
}

// everyType selects columns of every type that has a form of its own, and some that have none.
const everyType = `SELECT n, :text AS "a ""text", :integer AS i8, :real AS f8, :boolean AS b, :timestamp AS tz, :uuid AS u, :decimal AS dec, :date AS d,
	:time AS tm, :bytes AS bytes, :list AS list, :integer::int4 AS i4, :integer::int2 AS i2, :real::float4 AS f4, :timestamp::timestamp(3) AS ts,
	'-infinity'::timestamptz AS early, 'NaN'::numeric AS nan, 'Infinity'::float8 AS inf, ('{"a":[' || n || ']}')::json AS j,
	'{"b": 1}'::jsonb AS jb, interval '1 day 2 s' AS iv, 'sad'::mood AS e, ARRAY['sad', NULL]::mood[] AS es, ARRAY[ARRAY[n, 2], ARRAY[3, NULL]] AS ns,
	ROW(n, :text) AS pair, int4range(1, 5) AS r, '10.0.0.1'::inet AS ip, NULL::int AS nothing, '\x00ff'::bytea AS raw, repeat(:text, 300) AS long
	FROM generate_series(1, :integer % 40) AS s(n)`

// TestLoopReadsAsRead: an event loop reads the same rows and the same errors as Read, whatever their types, sizes and numbers.
func TestLoopReadsAsRead(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TYPE mood AS ENUM ('sad', 'ok')")
	db, loop := open(t, url, database.Pool{Max: 6}), storetest.StartLoop(t)
	list, err := param.Argument(typed()[10], "a", `b"\`, "NULL")
	if err != nil {
		t.Fatal(err)
	}
	for _, def := range []feed.Definition{{Name: "/a"}, {Name: "/b", RFC3339: true, NumbersAsText: true}} {
		def.SQL, def.Params = everyType, typed()
		s := loopSource(t, db, def)
		for i := range 60 {
			args := []string{
				strings.Repeat("ä'\\", i), strconv.Itoa(i - 3), fmt.Sprint(float64(i) / 7), strconv.FormatBool(i%2 == 0), "2026-01-02T03:04:05.678901Z",
				"00000000-0000-0000-0000-0000000000" + fmt.Sprintf("%02d", i), "1.50", "2026-02-03", "04:05:06", "AP8=", list,
			}
			if i%5 == 0 && i%len(args) < 10 {
				args[i%len(args)] = param.Absent
			}
			if i == 7 {
				args[1] = "99999" // smallint out of range
			}
			rows := feed.Rows{Limit: feed.Limit{Rows: 35, Bytes: 1 << 20}}
			wanted := s.Read(t.Context(), feed.Range{Args: args}, &rows)
			got, err := inLoop(t, loop, s, rows.Limit, args...)
			if fmt.Sprint(err) != fmt.Sprint(wanted) || wanted == nil && got != string(rows.Data) {
				t.Fatalf("%q: %s, %v; want %s, %v", args, got, err, rows.Data, wanted)
			}
			if errors.Is(wanted, feed.ErrTooLarge) != errors.Is(err, feed.ErrTooLarge) || errors.Is(wanted, param.ErrValue) != errors.Is(err, param.ErrValue) {
				t.Fatalf("%q: %v, want %v", args, err, wanted)
			}
		}
	}
}

// TestPagesInLoop: an event loop reads the pages of feeds as Read does.
func TestPagesInLoop(t *testing.T) {
	storetest.FeedInLoops(t, backend(shared.Get(t), func(url string) string { return url }))
}

// TestLoopErrorsAreTheirOwn: of executions sent together, those that the server refuses fail, and the others do not.
func TestLoopErrorsAreTheirOwn(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{
		Name: "/q", SQL: "SELECT 100 / :a AS x", Params: []param.Param{{Name: "a", Type: param.Integer}},
	})
	if got, err := inLoop(t, loop, s, wide, "5"); got != `{"x":20}` || err != nil {
		t.Fatal(got, err)
	}
	var all [][]string
	for i := range 200 {
		all = append(all, []string{strconv.Itoa(i % 4)})
	}
	for i, r := range storetest.BeginReads(t, loop, s, nil, wide, all...) {
		err := apptest.Receive(t, "an answer", r.Ended)
		if errors.Is(err, feed.ErrElsewhere) { // on a busy machine
			continue
		}
		if i%4 == 0 != errors.Is(err, param.ErrValue) || i%4 > 0 && string(r.Rows.Data) != fmt.Sprintf(`{"x":%d}`, 100/(i%4)) {
			t.Fatalf("%d: %s, %v", i, r.Rows.Data, err)
		}
	}
	if n := db.Stats().InUse; n < 1 || n > 3 {
		t.Errorf("%d connections in use", n)
	}
}

// pausing returns a source whose statement takes ten minutes for the argument 7.
func pausing(t *testing.T, db *DB, url string) *source {
	t.Helper()
	mustExecute(t, url, `CREATE TABLE slow (id int PRIMARY KEY, seconds float8 NOT NULL);
		INSERT INTO slow SELECT i, CASE WHEN i = 7 THEN 600 ELSE 0 END FROM generate_series(0, 99) AS s(i);
		CREATE FUNCTION pause(id int, seconds float8) RETURNS int STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF seconds > 0 THEN PERFORM pg_sleep(seconds); END IF; RETURN id; END $$`)
	return loopSource(t, db, feed.Definition{
		Name: "/slow", SQL: "SELECT pause(id, seconds) AS id FROM slow WHERE id = :a", Params: []param.Param{{Name: "a", Type: param.Integer}},
	})
}

// TestLoopSlowExecution: what follows a slow execution is answered without it, the slow one is cancelled when nobody waits for it, and
// later it has a connection of its own.
func TestLoopSlowExecution(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 6, StatementTimeout: time.Hour}), storetest.StartLoop(t)
	s := pausing(t, db, url)
	if got, err := inLoop(t, loop, s, wide, "1"); got != `{"id":1}` || err != nil {
		t.Fatal(got, err)
	}
	for range 2 {
		var all [][]string
		for i := range 20 {
			all = append(all, []string{strconv.Itoa(i)})
		}
		reads := storetest.BeginReads(t, loop, s, nil, wide, all...)
		for i, r := range reads {
			if i == 7 {
				continue
			}
			if err := apptest.Receive(t, "an answer", r.Ended); err != nil && !errors.Is(err, feed.ErrElsewhere) ||
				err == nil && string(r.Rows.Data) != fmt.Sprintf(`{"id":%d}`, i) {
				t.Fatalf("%d: %s, %v", i, r.Rows.Data, err)
			}
		}
		elsewhere := 0 // on a busy machine there may be no connection in time
		storetest.OnLoop(t, loop, func() {
			if elsewhere = len(reads[7].Ended); elsewhere == 0 {
				s.Drop(loop, &reads[7].LoopRead)
			}
		})
		apptest.AwaitState(t, "the slow statement is cancelled", func() (string, bool) {
			n := queryText(t, url, "SELECT count(*)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pause(%' AND datname = current_database()")
			return n, n == "0"
		})
		if len(reads[7].Ended) > elsewhere || elsewhere > 0 && !errors.Is(<-reads[7].Ended, feed.ErrElsewhere) {
			t.Fatal("the slow one has an answer")
		}
	}
}

// TestLoopLosesConnections: executions under way on a connection that ends are read elsewhere, and later ones in the loop again.
func TestLoopLosesConnections(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 4, StatementTimeout: time.Hour}), storetest.StartLoop(t)
	s := pausing(t, db, url)
	for range 3 {
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
		reads := storetest.BeginReads(t, loop, s, nil, wide, []string{"7"}, []string{"2"})
		apptest.AwaitState(t, "the slow one is alone and killed", func() (string, bool) {
			n := queryText(t, url, "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pause(%' AND datname = current_database()")
			return n, len(reads[0].Ended) > 0
		})
		for i, r := range reads {
			if err := apptest.Receive(t, "an answer", r.Ended); i == 0 && !errors.Is(err, feed.ErrElsewhere) || err != nil && !errors.Is(err, feed.ErrElsewhere) {
				t.Fatal(i, err)
			}
		}
	}
}

// TestLoopAlteredTable: rows are those of the columns that the table has when they are read.
func TestLoopAlteredTable(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE items (id int PRIMARY KEY, a int, b text); INSERT INTO items VALUES (1, 2, 'x')")
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{
		Name: "/q", SQL: "SELECT * FROM items WHERE id = :a", Params: []param.Param{{Name: "a", Type: param.Integer}},
	})
	for _, change := range []struct{ sql, rows string }{
		{"SELECT 1", `{"id":1,"a":2,"b":"x"}`},
		{"ALTER TABLE items RENAME a TO c", `{"id":1,"c":2,"b":"x"}`},
		{"ALTER TABLE items ALTER c TYPE text", `{"id":1,"c":"2","b":"x"}`},
		{"ALTER TABLE items DROP c", `{"id":1,"b":"x"}`},
		{"ALTER TABLE items ADD d bool DEFAULT true", `{"id":1,"b":"x","d":true}`},
	} {
		mustExecute(t, url, change.sql)
		for range 3 {
			// The other connections learn of it as they are used.
			if err := s.Read(t.Context(), feed.Range{Args: []string{"1"}}, &feed.Rows{Limit: wide}); err != nil {
				t.Fatal(err)
			}
			if got, err := inLoop(t, loop, s, wide, "1"); got != change.rows || err != nil {
				t.Fatalf("after %s: %s, %v", change.sql, got, err)
			}
		}
	}
}

// TestLoopUnpreparedStatement: a statement that the server does not prepare any more keeps no other one out of the loop.
func TestLoopUnpreparedStatement(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE gone (id int PRIMARY KEY)")
	db, loop := open(t, url, database.Pool{Max: 6}), storetest.StartLoop(t)
	params := []param.Param{{Name: "a", Type: param.Integer}}
	other := loopSource(t, db, feed.Definition{Name: "/other", SQL: "SELECT id FROM gone WHERE id = :a", Params: params})
	s := loopSource(t, db, feed.Definition{Name: "/s", SQL: "SELECT :a + 1 AS x", Params: params})
	mustExecute(t, url, "DROP TABLE gone")
	for range 3 {
		r := storetest.BeginReads(t, loop, other, nil, wide, []string{"1"})[0]
		if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
			t.Fatal(err)
		}
		if got, err := inLoop(t, loop, s, wide, "5"); got != `{"x":6}` || err != nil {
			t.Fatal(got, err)
		}
	}
}

// TestLoopYieldsConnections: connections of a loop are there for others who need them, and for the end of the pool.
func TestLoopYieldsConnections(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 3}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT :a AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for !stop.Load() {
			if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for range 5 {
		apptest.Await(t, "the loop has a connection", func() bool { return db.Stats().InUse > 0 })
		var held []lease
		for range 3 {
			conn, err := db.acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
		for _, conn := range held {
			conn.Release()
		}
	}
	stop.Store(true)
	if err := apptest.Receive(t, "the end", ended); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	storetest.OnLoop(t, loop, func() {
		r := feed.LoopRead{Range: feed.Range{Args: []string{"1"}}, Within: time.Hour}
		if err := s.Begin(loop, &r); !errors.Is(err, feed.ErrElsewhere) {
			t.Error(err)
		}
	})
}

// TestLoopAnswersAll: whatever is slow, refused or cancelled meanwhile, every execution is answered once, with its own rows.
func TestLoopAnswersAll(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE FUNCTION pause(id bigint) RETURNS bigint STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF id % 97 = 0 THEN PERFORM pg_sleep(0.04); END IF; RETURN id / (id % 89); END $$`)
	db, loop := open(t, url, database.Pool{Max: 6}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT pause(:a) AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	const wave = 150
	waves := 40
	if testing.Short() {
		waves = 10
	}
	elsewhere := 0
	for n := 1; n <= waves*wave; n += wave {
		var all [][]string
		for i := range wave {
			all = append(all, []string{strconv.Itoa(n + i)})
		}
		for i, r := range storetest.BeginReads(t, loop, s, nil, wide, all...) {
			a := n + i
			if i%13 == 0 {
				storetest.OnLoop(t, loop, func() {
					if len(r.Ended) == 0 && r.Handle != nil {
						s.Drop(loop, &r.LoopRead)
						r.Ended <- nil
					}
				})
				continue
			}
			err := apptest.Receive(t, "an answer", r.Ended)
			switch {
			case errors.Is(err, feed.ErrElsewhere):
				elsewhere++
			case a%89 == 0 && !errors.Is(err, param.ErrValue), a%89 != 0 && string(r.Rows.Data) != fmt.Sprintf(`{"x":%d}`, a/(a%89)):
				t.Fatalf("%d: %s, %v", a, r.Rows.Data, err)
			}
		}
	}
	t.Log("elsewhere:", elsewhere)
}

// TestLoopHarmfulPages: the pages of a feed that calls a volatile function are not read in loops.
func TestLoopHarmfulPages(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE SEQUENCE tickets")
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s, err := db.source(feed.Definition{
		Name: "/f", SQL: "SELECT n, nextval('tickets') AS ticket FROM generate_series(1, 9) AS s(n)", Key: []feed.KeyColumn{{Name: "n"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := feed.Range{Limit: 3}
	apptest.Await(t, "the statement is known", func() bool {
		read := storetest.NewLoopRead(nil, feed.Limit{}, nil)
		read.Range = r
		storetest.OnLoop(t, loop, func() {
			if err := s.Begin(loop, &read.LoopRead); err != nil {
				read.Ended <- err
			}
		})
		if err := apptest.Receive(t, "the end", read.Ended); !errors.Is(err, feed.ErrElsewhere) {
			t.Errorf("it was read: %v", err)
		}
		return s.statement(s.shape(r, false)).harmful()
	})
}
