//go:build linux && !portable

package postgres

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

// TestLoopRows: an execution that is run again has its rows once.
func TestLoopRows(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 6, StatementTimeout: time.Hour}), storetest.StartLoop(t)
	mustExecute(t, url, `CREATE TABLE t (a int, id int, pad text);
		INSERT INTO t SELECT a, i, repeat('x', 1000) FROM generate_series(0, 9) AS a(a), generate_series(1, 30) AS s(i);
		CREATE FUNCTION pause(a int, id int) RETURNS int STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF a = 7 AND id = 30 THEN PERFORM pg_sleep(0.3); END IF; RETURN id; END $$`)
	s := loopSource(t, db, feed.Definition{
		Name: "/slow", SQL: "SELECT pause(a, id) AS id, pad FROM t WHERE a = :a ORDER BY t.id", Params: []param.Param{{Name: "a", Type: param.Integer}},
	})
	for range 200 {
		if got, err := inLoop(t, loop, s, wide, "1"); strings.Count(got, `"id"`) != 30 || err != nil {
			t.Fatal(got, err)
		}
	}
	reads := storetest.BeginReads(t, loop, s, nil, wide, []string{"1"}, []string{"7"}, []string{"2"}, []string{"3"})
	for i, r := range reads {
		err := apptest.Receive(t, "an answer", r.Ended)
		t.Log(i, err, strings.Count(string(r.Rows.Data), `"id"`))
		if n := strings.Count(string(r.Rows.Data), `"id"`); err == nil && n != 30 {
			t.Errorf("%v: %d rows, %v", r.Args, n, err)
		}
	}
}

// splitter forwards connections to a server. When armed, the last message of an answer (ReadyForQuery) comes later than the rest, as on
// a network that lost a segment.
type splitter struct {
	net.Listener
	armed atomic.Bool
	hangs atomic.Bool // nothing is forwarded on new connections
	dials atomic.Int32
}

func newSplitter(t *testing.T, server string) *splitter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &splitter{Listener: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.dials.Add(1)
			if s.hangs.Load() {
				t.Cleanup(func() { c.Close() })
				continue
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				c.Close()
				continue
			}
			go func() { io.Copy(up, c); up.Close() }()
			go func() {
				defer c.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := up.Read(buf)
					if err != nil {
						return
					}
					if s.armed.Load() && n > 6 && string(buf[n-6:n]) == "Z\x00\x00\x00\x05I" && s.armed.CompareAndSwap(true, false) {
						c.Write(buf[:n-6])
						<-time.After(200 * time.Millisecond) // the rest comes in a read of its own
						c.Write(buf[n-6 : n])
						continue
					}
					c.Write(buf[:n])
				}
			}()
		}
	}()
	return s
}

// TestLoopReady: a connection that a loop gives back has nothing left to read.
func TestLoopReady(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE payments (id int);
		CREATE FUNCTION pause(a int) RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN a; END $$`)
	proxy := newSplitter(t, pg.Addr())
	db, loop := open(t, strings.Replace(url, pg.Addr(), proxy.Addr().String(), 1), database.Pool{Max: 2}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT pause(:a::int) AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	if got, err := inLoop(t, loop, s, wide, "1"); got != `{"x":1}` || err != nil {
		t.Fatal(got, err)
	}
	apptest.Await(t, "the loop has a connection", func() bool { return db.Stats().InUse == 1 })
	held, err := db.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	proxy.armed.Store(true)
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"2"})[0]
	conn, err := db.acquire(t.Context()) // a writer needs a connection
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := apptest.Receive(t, "an answer", r.Ended); err != nil {
		t.Error(err)
	}
	c := conn.Conn().PgConn()
	results, err := c.Exec(t.Context(), "BEGIN; INSERT INTO payments VALUES (1); COMMIT; SELECT 42").ReadAll()
	stored := queryText(t, url, "SELECT count(*)::text FROM payments")
	if len(results) != 4 || err != nil {
		t.Errorf("the next statement on the connection: %d results, error %v (stored by then: %s)", len(results), err, stored)
	}
	results, err = c.Exec(t.Context(), "SELECT 43").ReadAll()
	if len(results) != 1 || string(results[0].Rows[0][0]) != "43" {
		t.Errorf("SELECT 43 has the answer of what was before: %d results, %v", len(results), err)
	}
}

// TestLoopCommit: an error of the end of a transaction is not that of an execution of the next one.
func TestLoopCommit(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE TABLE seen (a int);
		CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'late'; END $$;
		CREATE CONSTRAINT TRIGGER bad AFTER INSERT ON seen DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bad();
		CREATE FUNCTION write_it(a int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (a); RETURN a; END $$;
		CREATE FUNCTION find(a int) RETURNS int STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF a = 7 THEN PERFORM write_it(a); PERFORM pg_sleep(0.012); END IF; RETURN a; END $$`)
	db, loop := open(t, url, database.Pool{Max: 2}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT find(:a::int) AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	for range 300 {
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
	}
	var reads []*storetest.LoopRead
	for _, a := range []string{"7", "11", "12", "13", "14", "15"} {
		reads = append(reads, storetest.BeginReads(t, loop, s, nil, wide, []string{a})...)
	}
	for _, r := range reads {
		err := apptest.Receive(t, "an answer", r.Ended)
		t.Log(r.Args, string(r.Rows.Data), err)
		if err == nil && string(r.Rows.Data) != `{"x":`+r.Args[0]+`}` {
			t.Errorf("%v: %s", r.Args, r.Rows.Data)
		}
	}
}

// TestLoopDropped: a read that is dropped is not told of.
func TestLoopDropped(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db, loop := open(t, url, database.Pool{Max: 4, StatementTimeout: time.Hour}), storetest.StartLoop(t)
	s := pausing(t, db, url)
	if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
		t.Fatal(err)
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"7"})[0]
	apptest.AwaitState(t, "it runs", func() (string, bool) {
		n := queryText(t, url, "SELECT count(*)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pause(%' AND datname = current_database()")
		return n, n == "1"
	})
	// In one round of the loop: the connection ends without a message, as a crashed backend's does, and then the request's time is over.
	storetest.OnLoop(t, loop, func() {
		for _, c := range s.db.pipesOf(loop).open {
			if len(c.sent) > 0 {
				_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
				c.Ready()
			}
		}
		if len(r.Ended) == 0 { // otherwise the request has its answer
			s.Drop(loop, &r.LoopRead)
		} else {
			<-r.Ended
		}
	})
	storetest.OnLoop(t, loop, func() {}) // in the next round
	if len(r.Ended) > 0 {
		t.Errorf("Done was called after Drop: %v", <-r.Ended)
	}
}

// TestLoopVolatile: what a plan does not show.
func TestLoopVolatile(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	db := open(t, url, database.Pool{Max: 4})
	mustExecute(t, url, `CREATE SEQUENCE tickets; CREATE SEQUENCE seq2;
		CREATE TABLE log (a int);
		CREATE FUNCTION noted(a int) RETURNS int VOLATILE LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (a); RETURN a; END $$;
		CREATE DOMAIN dom AS int CHECK (nextval('seq2') > 0);
		CREATE VIEW ticket AS SELECT n FROM generate_series(1, 10) AS s(n) OFFSET nextval('tickets') - 1;
		CREATE VIEW "All" AS SELECT n FROM ticket WHERE n > 1`)
	p := []param.Param{{Name: "a", Type: param.Integer}}
	for _, sql := range []string{
		"SELECT * FROM (VALUES (noted(:a::int)), (noted(:a::int))) AS v(n)",
		"SELECT n FROM generate_series(1, 10) AS s(n) WHERE n > :a LIMIT noted(5)",
		"SELECT n FROM generate_series(1, 10) AS s(n) WHERE n > :a OFFSET nextval('tickets') - 1",
		"SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN noted(1) PRECEDING AND CURRENT ROW) FROM generate_series(1, 10) AS s(n) WHERE n > :a",
		"SELECT n FROM ticket WHERE n > :a",
		`SELECT n FROM "All" WHERE n > :a`,
		"SELECT n::int::dom AS n FROM generate_series(1, 10) AS s(n) WHERE n > :a",
	} {
		s := loopSource(t, db, feed.Definition{Name: "/q", SQL: sql, Params: p})
		if s.statement(shape{}).harmless.Load() {
			t.Errorf("harmless: %s", sql)
		}
	}
}

// TestLoopReplaced: a loop stops running a query whose functions, views or policies have become volatile.
func TestLoopReplaced(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	role := fmt.Sprintf("bound_%x", rand.Uint64()) // by policies
	mustExecute(t, url, `CREATE SEQUENCE tickets;
		CREATE ROLE `+role+` LOGIN; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO `+role+`; GRANT USAGE ON SEQUENCE tickets TO `+role+`;
		CREATE TABLE kept AS SELECT 1 AS n; ALTER TABLE kept ENABLE ROW LEVEL SECURITY; CREATE POLICY positive ON kept USING (n > 0);
		CREATE FUNCTION calm(a int) RETURNS int STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN a; END $$;
		CREATE VIEW plain AS SELECT n FROM generate_series(1, 10) AS s(n)`)
	db, loop := open(t, strings.Replace(url, "postgres@", role+"@", 1), database.Pool{Max: 4}), storetest.StartLoop(t)
	for sql, change := range map[string]string{
		"SELECT calm(:a::int) AS n":        "CREATE OR REPLACE FUNCTION calm(a int) RETURNS int VOLATILE LANGUAGE plpgsql AS $$ BEGIN RETURN a; END $$",
		"SELECT n FROM plain WHERE n = :a": "CREATE OR REPLACE VIEW plain AS SELECT n FROM generate_series(1, 10) AS s(n) LIMIT nextval('tickets') + 10",
		"SELECT n FROM kept WHERE n = :a":  "ALTER POLICY positive ON kept USING (nextval('tickets') > 0)",
	} {
		s := loopSource(t, db, feed.Definition{Name: "/q", SQL: sql, Params: []param.Param{{Name: "a", Type: param.Integer}}})
		if got, err := inLoop(t, loop, s, wide, "1"); got != `{"n":1}` || err != nil || !s.statement(shape{}).harmless.Load() {
			t.Fatal(got, err)
		}
		mustExecute(t, url, change)
		apptest.Await(t, "it runs elsewhere", func() bool {
			_ = apptest.Receive(t, "an answer", storetest.BeginReads(t, loop, s, nil, wide, []string{"1"})[0].Ended)
			return !s.statement(shape{}).harmless.Load()
		})
	}
}

// TestLoopFrozen: a connection whose backend hangs is given up, as elsewhere.
func TestLoopFrozen(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	proxy := newSplitter(t, pg.Addr())
	db, loop := open(t, strings.Replace(url, pg.Addr(), proxy.Addr().String(), 1), database.Pool{Max: 2, StatementTimeout: 500 * time.Millisecond}), storetest.StartLoop(t)
	s := pausing(t, db, url)
	if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
		t.Fatal(err)
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"7"})[0]
	pid := 0
	apptest.Await(t, "it runs", func() bool {
		fmt.Sscan(queryText(t, url, "SELECT coalesce(max(pid), 0)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pause(%' AND datname = current_database()"), &pid)
		return pid > 0
	})
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(pid, unix.SIGCONT)
	before := proxy.dials.Load()
	storetest.OnLoop(t, loop, func() { s.Drop(loop, &r.LoopRead) })
	apptest.Await(t, "the connection is given up", func() bool { return db.Stats().InUse == 0 })
	if n := proxy.dials.Load() - before; n > 3 {
		t.Errorf("%d connections for one cancellation", n)
	}
	closed := make(chan error, 1)
	go func() { closed <- db.Close() }()
	_ = apptest.Receive(t, "the end of Close", closed)
}

// TestLoopTimeout: behind a pooler that refuses statement_timeout, a statement in a loop ends all the same.
func TestLoopTimeout(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "session")
	url := pg.CreateDatabase(t)
	db, loop := open(t, strings.Replace(url, pg.Addr(), bouncer.Addr(), 1), database.Pool{Max: 2, StatementTimeout: 300 * time.Millisecond}), storetest.StartLoop(t)
	s := pausing(t, db, url)
	if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
		t.Fatal(err)
	}
	if got := queryText(t, strings.Replace(url, pg.Addr(), bouncer.Addr(), 1), "SHOW statement_timeout"); got != "0" {
		t.Log("statement_timeout", got)
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"7"})[0]
	if err := apptest.Receive(t, "the end of a statement with a limit of 0.3 s", r.Ended); err == nil {
		t.Error("the statement has no limit")
	}
}

// TestLoopRaise: an error of the statement's own does not cost a connection.
func TestLoopRaise(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, `CREATE FUNCTION find(a int) RETURNS int STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF a = 0 THEN RAISE EXCEPTION 'no such thing'; END IF; RETURN a; END $$`)
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, feed.Definition{Name: "/q", SQL: "SELECT find(:a::int) AS x", Params: []param.Param{{Name: "a", Type: param.Integer}}})
	if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
		t.Fatal(err)
	}
	before, elsewhere := db.Stats().Connects, 0
	for range 20 {
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
		if err := apptest.Receive(t, "an answer", storetest.BeginReads(t, loop, s, nil, wide, []string{"0"})[0].Ended); errors.Is(err, feed.ErrElsewhere) {
			elsewhere++
		}
	}
	if n := db.Stats().Connects - before; n > 3 {
		t.Errorf("20 errors cost %d connections, and %d statements were run twice", n, elsewhere)
	}
}
