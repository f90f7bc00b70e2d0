package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// queryText returns the single value of a query on a new connection.
func queryText(t testing.TB, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func mustFeed(t testing.TB, db *DB, sql string, key ...string) *source {
	t.Helper()
	source, err := db.source(feed.Definition{Name: "/test", SQL: sql, Key: keyOf(key...)})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// The literal in a statement is a power of two, yet the database reads exactly
// the rows asked for.
func testReadsNoMore(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 20000)")
	mustExecute(t, url, "VACUUM ANALYZE items")
	db := open(t, url, database.Pool{})
	source := mustFeed(t, db, "SELECT id FROM items", "id")
	r := feed.Range{After: feed.Key(feed.AppendKey(nil, feed.KeyInteger, []byte("15000"))), Skip: 3, Limit: 17}
	sql := source.statement(source.shape(r, false)).sql
	if !strings.Contains(sql, "LIMIT 32)") {
		t.Fatalf("statement: %s", sql)
	}
	mustExecute(t, url, "ALTER DATABASE "+apptest.DatabaseName(url)+" SET plan_cache_mode = force_generic_plan")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	results, err := conn.PgConn().Exec(t.Context(), "PREPARE s AS "+sql+"; EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE s(15000, 17, 3)").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var plan any
	if err := json.Unmarshal(results[1].Rows[0][0], &plan); err != nil {
		t.Fatal(err)
	}
	if scanned := actualRows(plan); scanned != 20 {
		t.Errorf("%v rows scanned, want 20: %s", scanned, results[1].Rows[0][0])
	}
}

// actualRows returns the actual rows of the first scan in a plan.
func actualRows(node any) float64 {
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			if rows := actualRows(child); rows > 0 {
				return rows
			}
		}
	case map[string]any:
		if node["Relation Name"] != nil {
			return node["Actual Rows"].(float64)
		}
		return max(actualRows(node["Plan"]), actualRows(node["Plans"]))
	}
	return 0
}

// A connection keeps a bounded number of statements prepared, and uses the
// server's generic plan for them.
func testStatements(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 100)")
	db := open(t, url, database.Pool{Max: 1})
	// The feed looks at the very connection that it is read on.
	sql := func(n int) string {
		return fmt.Sprintf("SELECT i.id, (SELECT count(*) FROM pg_prepared_statements) AS n%d FROM items i", n)
	}
	for n := range preparedPerConnection + 20 {
		if err := mustFeed(t, db, sql(n), "id").Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows)); err != nil {
			t.Fatal(err)
		}
	}
	var rows feed.Rows
	for range 2 { // two feeds of one text share the statement
		last := mustFeed(t, db, sql(1000), "id")
		rows.Reset()
		if err := last.Read(t.Context(), feed.Range{Limit: 1}, &rows); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := string(rows.Data), fmt.Sprintf(`{"id":100,"n1000":%d}`, preparedPerConnection); got != want {
		t.Errorf("prepared statements: %s, want %s", got, want)
	}

	if db.unprepared.active() {
		t.Error("goes on without prepared statements")
	}

	plans := mustFeed(t, db, "SELECT i.id, (SELECT string_agg(generic_plans || '/' || custom_plans, ' ') FROM pg_prepared_statements WHERE statement LIKE '%AS plans FROM%') AS plans FROM items i", "id")
	for range 10 {
		rows.Reset()
		if err := plans.Read(t.Context(), feed.Range{Limit: 1}, &rows); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(rows.Data); !strings.HasSuffix(got, `/5"}`) {
		t.Errorf("generic/custom plans after 10 reads: %s, want no more than 5 custom", got)
	}
}

// A change of a table's columns invalidates prepared statements. Callers get no error.
func testTableChanged(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE items (id int PRIMARY KEY, v int); INSERT INTO items VALUES (1, 2)")
	db := open(t, url, database.Pool{Max: 3})
	source := mustFeed(t, db, "SELECT * FROM items", "id")
	steps := []struct{ sql, want string }{
		{"SELECT 1", `{"id":1,"v":2}`},
		{"ALTER TABLE items ALTER COLUMN v TYPE text", `{"id":1,"v":"2"}`},
		{"ALTER TABLE items ADD COLUMN w boolean", `{"id":1,"v":"2","w":null}`},
		{"ALTER TABLE items DROP COLUMN v", `{"id":1,"w":null}`},
	}
	for _, step := range steps {
		mustExecute(t, url, step.sql)
		for range 4 {
			var rows feed.Rows
			if err := source.Read(t.Context(), feed.Range{Limit: 5}, &rows); err != nil {
				t.Fatalf("%s: %v", step.sql, err)
			}
			if got := string(rows.Data); got != step.want {
				t.Errorf("%s: %s, want %s", step.sql, got, step.want)
			}
		}
	}
}

// sleeping returns how many statements with pg_sleep run in a database.
func sleeping(t testing.TB, url string) string {
	t.Helper()
	return queryText(t, url, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()")
}

// A statement whose caller has gone does not run on, on the server. Its connection is kept,
// unless the end takes long on this machine: then it is tried again.
func testAbandoned(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	db := open(t, url, database.Pool{})
	slow := mustFeed(t, db, "SELECT 1 AS id FROM pg_sleep(3600)", "id")
	abandon := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- slow.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)) }()
		apptest.Await(t, "the statement runs", func() bool { return sleeping(t, url) == "1" })
		cancel()
		if err := apptest.Receive(t, "the end of the statement", ended); !errors.Is(err, context.Canceled) {
			t.Fatalf("read: want context canceled, got %v", err)
		}
		apptest.AwaitState(t, "no statement runs on the server", func() (string, bool) {
			n := sleeping(t, url)
			return n + " run", n == "0"
		})
	}
	abandon() // opens connections
	apptest.AwaitState(t, "an abandoned statement leaves its connection in the pool", func() (string, bool) {
		before := db.Stats()
		abandon()
		after := db.Stats()
		return fmt.Sprintf("%+v, then %+v", before, after), after.InUse == 0 && after.Waiting == 0 && after.Idle > 0 && after.Connects == before.Connects
	})
}

// A cancel request that comes late must not hit the connection's next statement.
func testCancelHitsNoOther(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	db := open(t, url, database.Pool{Max: 1})
	short := mustFeed(t, db, "SELECT 1 AS id FROM pg_sleep(0.001)", "id")
	cancelled := 0
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), 800*time.Microsecond+time.Duration(i%10)*100*time.Microsecond)
		if err := short.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)); err != nil {
			cancelled++
		}
		cancel()
		if err := db.Probe(t.Context()); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	t.Logf("%d of 300 statements cancelled", cancelled)
	if cancelled == 0 {
		t.Error("no statement was cancelled: the test tests nothing")
	}
}

// A statement waits for a connection no longer than AcquireTimeout.
func testPoolBusy(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	db := open(t, url, database.Pool{Max: 1, AcquireTimeout: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := mustFeed(t, db, "SELECT 1 AS id FROM pg_sleep(3600)", "id")
	var busy sync.WaitGroup
	busy.Go(func() {
		for ctx.Err() == nil { // connecting may take longer than the timeout
			if err := slow.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)); ctx.Err() != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("slow: want context canceled, got %v", err)
			}
		}
	})
	apptest.Await(t, "the slow statement runs", func() bool { return sleeping(t, url) == "1" })
	err := db.Probe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no connection within 50ms, 1 of 1 in use") {
		t.Errorf("probe: %v", err)
	}
	limited, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := db.Ping(limited); !errors.Is(err, database.ErrBusy) {
		t.Errorf("ping: %v", err)
	}
	cancel()
	busy.Wait()
	if s := db.Stats(); s.Waiting != 0 || s.Max != 1 {
		t.Errorf("stats: %+v", s)
	}
}

// A server that is down is no error at Open; calls say so, and work once it is up.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t)
	url := pg.CreateDatabase(t)
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	db := open(t, strings.Replace(url, "postgres@", "postgres:secret@", 1), database.Pool{})
	source := mustFeed(t, db, "SELECT 1 AS id", "id")
	for name, err := range map[string]error{
		"ping":  db.Ping(t.Context()),
		"probe": db.Probe(t.Context()),
		"read":  source.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows)),
		"check": source.Check(t.Context(), 10),
	} {
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s shows the password: %v", name, err)
		}
	}
	if err := pg.Start(); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := source.Check(t.Context(), 10); err != nil {
		t.Error(err)
	}
}

func testProbe(t *testing.T, pg *apptest.PostgresServer) {
	db := open(t, pg.CreateDatabase(t), database.Pool{Max: 2})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 50 {
				if err := db.Probe(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if s := db.Stats(); s.Idle+s.InUse > 2 || s.Waits == 0 || s.Connects < 1 {
		t.Errorf("stats: %+v", s)
	}
}
