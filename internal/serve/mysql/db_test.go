package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

func TestMySQL(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t, append(hostileSettings(), "--log-bin=binlog", "--sync-binlog=0")...)
	tests := []struct {
		name string
		run  func(*testing.T, *apptest.Server, string)
	}{
		{"Session", testSession},
		{"Statements", testStatements},
		{"TableChanged", testTableChanged},
		{"ShownParameter", testShownParameter},
		{"Abandoned", testAbandoned},
		{"Guard", testGuard},
		{"PoolBusy", testPoolBusy},
		{"FilterOfFloat", testFilterOfFloat},
		{"Unreachable", testUnreachable},
		{"Probe", testProbe},
		{"Close", testClose},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, server, freshDatabase(t, server)) })
	}
}

// value returns the single value of a query on a new connection.
func value(t testing.TB, url, sql string) string {
	t.Helper()
	s := connect(t, url)
	defer s.Close()
	rows, err := s.Query(t.Context(), sql)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%s: %v, %v", sql, rows, err)
	}
	return rows[0][0]
}

// sleeping is a statement that takes an hour for the one row of table one.
const sleeping = "SELECT id, SLEEP(3600) AS slept FROM one"

// A session has the documented settings, regardless of the server's defaults.
func testSession(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{StatementTimeout: 1500 * time.Millisecond})
	f := mustFeed(t, db, `SELECT 1 AS id, @@time_zone AS zone, @@character_set_client AS client, @@character_set_connection AS conn, @@character_set_results AS results,
		@@default_storage_engine AS engine, @@tx_isolation AS isolation, CAST(@@max_statement_time AS CHAR) AS timeout, @@sql_mode AS mode`, "id")
	got := readAll(t, f, feed.Range{Limit: 1})
	want := `{"id":1,"zone":"+00:00","client":"utf8mb4","conn":"utf8mb4","results":"utf8mb4","engine":"InnoDB","isolation":"READ-COMMITTED","timeout":"1.500000",` +
		`"mode":"ANSI_QUOTES,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES,STRICT_TRANS_TABLES"}`
	if got != want {
		t.Errorf("session:\n%s, want\n%s", got, want)
	}
}

// A filter finds the number that the feed shows, although the server has another one.
func testFilterOfFloat(t *testing.T, _ *apptest.Server, url string) {
	mustExecute(t, url, "CREATE TABLE floats (id bigint NOT NULL PRIMARY KEY, v float)", "INSERT INTO floats VALUES (1, 0.1), (2, 16777216), (3, 0.2)")
	filter := param.Filter("v", param.Real)
	source, err := open(t, url, database.Pool{}).source(feed.Definition{Name: "/floats", SQL: "SELECT id, v FROM floats", Key: keyOf("id"), Params: []param.Param{filter}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"0.1": `{"id":1,"v":0.1}`, "16777216": `{"id":2,"v":16777216}`, "0.11": "", "1e300": ""} {
		arg, err := param.Argument(filter, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, source, feed.Range{Args: []string{arg}, Limit: 10}); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A connection keeps a bounded number of statements prepared.
func testStatements(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{Max: 1})
	for n := range preparedPerConnection + 20 {
		sql := fmt.Sprintf("SELECT 1 AS id, %d AS n", n)
		for range 2 {
			if got := readAll(t, mustFeed(t, db, sql, "id"), feed.Range{Limit: 1}); got != fmt.Sprintf(`{"id":1,"n":%d}`, n) {
				t.Fatalf("%s: %s", sql, got)
			}
		}
	}
	err := db.withSession(t.Context(), func(ctx context.Context, se *session) error {
		if se.prepared.Len() != preparedPerConnection {
			t.Errorf("%d statements prepared here, want %d", se.prepared.Len(), preparedPerConnection)
		}
		var err error
		apptest.AwaitState(t, "the server has as many statements", func() (string, bool) { // it may not have ended other sessions yet
			var rows [][]string
			rows, err = se.Query(ctx, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'PREPARED_STMT_COUNT'")
			return fmt.Sprint(rows), err != nil || len(rows) == 1 && rows[0][0] == fmt.Sprint(preparedPerConnection)
		})
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A change of a table's columns invalidates prepared statements. Callers get no error.
func testTableChanged(t *testing.T, _ *apptest.Server, url string) {
	mustExecute(t, url, "CREATE TABLE items (id int PRIMARY KEY, v int)", "INSERT INTO items VALUES (1, 2)")
	db := open(t, url, database.Pool{Max: 3})
	source := mustFeed(t, db, "SELECT * FROM items", "id")
	steps := []struct{ sql, want string }{
		{"SELECT 1", `{"id":1,"v":2}`},
		{"ALTER TABLE items MODIFY v text", `{"id":1,"v":"2"}`},
		{"ALTER TABLE items ADD COLUMN w boolean", `{"id":1,"v":"2","w":null}`},
		{"ALTER TABLE items DROP COLUMN v", `{"id":1,"w":null}`},
		{"ALTER TABLE items MODIFY id bigint unsigned", `{"id":1,"w":null}`},
		{"ALTER TABLE items CHANGE w v json DEFAULT '[]'", `{"id":1,"v":null}`},
		{"UPDATE items SET v = '[]'", `{"id":1,"v":[]}`},
	}
	for _, step := range steps {
		mustExecute(t, url, step.sql)
		for range 4 {
			if got := readAll(t, source, feed.Range{Limit: 5}); got != step.want {
				t.Errorf("%s: %s, want %s", step.sql, got, step.want)
			}
		}
	}
}

// A column that shows a parameter has a type that depends on its value.
func testShownParameter(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{})
	f, err := db.source(feed.Definition{Name: "/test", SQL: "SELECT :s AS s, :i AS id, :t AS at", Key: keyOf("id"), Params: []param.Param{
		{Name: "s", Type: param.Text}, {Name: "i", Type: param.Integer}, {Name: "t", Type: param.Timestamp},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"", "x", strings.Repeat("x", 300), strings.Repeat("x", 70_000), strings.Repeat("x", 200_000), "🚚", "x"} {
		r := feed.Range{Args: []string{text, fmt.Sprint(int64(1) << (9 * i)), "2016-12-01T23:59:57.5Z"}, Limit: 1}
		want := fmt.Sprintf(`{"s":"%s","id":%s,"at":"2016-12-01 23:59:57.5"}`, text, r.Args[1])
		if got := readAll(t, f, r); got != want {
			t.Errorf("%.80s, want %.80s", got, want)
		}
	}
}

// A statement whose caller has gone does not run on, on the server.
func testAbandoned(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{StatementTimeout: time.Hour})
	mustExecute(t, url, "CREATE TABLE one (id int PRIMARY KEY)", "INSERT INTO one VALUES (1)")
	slow := mustFeed(t, db, sleeping, "id")
	if _, err := slow.describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	const running = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%SLEEP(3600)%' AND ID <> CONNECTION_ID()"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan error, 1)
	go func() { read <- slow.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)) }()
	apptest.Await(t, "the statement runs on the server", func() bool { return value(t, url, running) == "1" })
	cancel()
	if err := apptest.Receive(t, "the end of the read", read); !errors.Is(err, context.Canceled) {
		t.Fatalf("read: %v, want %v", err, context.Canceled)
	}
	apptest.Await(t, "the statement has ended on the server", func() bool { return value(t, url, running) == "0" })
	apptest.AwaitState(t, "the connection is free", func() (string, bool) {
		s := db.Stats()
		return fmt.Sprintf("%+v", s), s.InUse == 0 && s.Waiting == 0
	})
}

// A connection whose time is over is not used again, even if work has ended well. One whose COMMIT has a context of its own is.
func testGuard(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{Max: 1, StatementTimeout: time.Hour})
	for name, test := range map[string]struct {
		work func(context.Context, *session) error
		used bool
	}{
		"work":   {func(context.Context, *session) error { return nil }, false},
		"COMMIT": {func(_ context.Context, se *session) error { return se.commit(t.Context()) }, true},
	} {
		ctx, end := context.WithCancel(t.Context())
		var first, next uint64
		err := db.onSession(ctx, forever, func(ctx context.Context, se *session) error {
			defer end()
			first = se.ID
			return test.work(ctx, se)
		})
		if err == nil {
			err = db.withSession(t.Context(), func(ctx context.Context, se *session) error {
				next = se.ID
				return se.Exec(ctx, "DO 1")
			})
		}
		if err != nil || (first == next) != test.used {
			t.Errorf("%s: connection %d after %d: %v", name, next, first, err)
		}
	}
}

// A statement waits for a connection no longer than AcquireTimeout.
func testPoolBusy(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{Max: 1, StatementTimeout: time.Hour})
	mustExecute(t, url, "CREATE TABLE one (id int PRIMARY KEY)", "INSERT INTO one VALUES (1)")
	slow := mustFeed(t, db, sleeping, "id")
	if _, err := slow.describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		if err := slow.Read(ctx, feed.Range{Limit: 1}, new(feed.Rows)); !errors.Is(err, context.Canceled) {
			t.Errorf("slow: %v", err)
		}
	})
	apptest.Await(t, "the slow statement has the connection", func() bool { return db.Stats().InUse == 1 })
	db.bounds.AcquireTimeout = 50 * time.Millisecond
	err := db.Probe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no connection within 50ms, 1 of 1 in use") {
		t.Errorf("probe: %v", err)
	}
	cancel()
	busy.Wait()
	if s := db.Stats(); s.Waiting != 0 || s.Max != 1 {
		t.Errorf("stats: %+v, want 0 waiting and 1 at most", s)
	}
}

// A server that is down is no error at Open; calls say so, and work once it is up.
func testUnreachable(t *testing.T, server *apptest.Server, url string) {
	mustExecute(t, url, "GRANT ALL ON *.* TO app@'127.0.0.1' IDENTIFIED BY 's3cret'")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	db := open(t, strings.Replace(url, "root@", "app:s3cret@", 1), database.Pool{})
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
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s shows the password: %v", name, err)
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := source.Check(t.Context(), 10); err != nil {
		t.Error(err)
	}
	wrong := open(t, strings.Replace(url, "root@", "app:s3cret_@", 1), database.Pool{})
	if err := wrong.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "Access denied") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("wrong password: %v", err)
	}
}

func testProbe(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{Max: 2, AcquireTimeout: patience})
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

// Close lets a statement end first and refuses later ones. Min connections are open
// before anybody asks.
func testClose(t *testing.T, _ *apptest.Server, url string) {
	db := open(t, url, database.Pool{Min: 3, Max: 4})
	apptest.Await(t, "Min connections are open", func() bool { return db.Stats().Connects >= 3 })
	mustExecute(t, url, "CREATE TABLE one (id int PRIMARY KEY)", "INSERT INTO one VALUES (1)")
	release := holdLock(t, url, "SELECT GET_LOCK('close', 0)")
	defer release()
	slow := mustFeed(t, db, "SELECT id, GET_LOCK('close', 3600) AS locked FROM one", "id")
	if _, err := slow.describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := slow.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows)); err != nil {
			t.Errorf("under way: %v", err)
		}
	})
	apptest.Await(t, "the statement has a connection", func() bool { return db.Stats().InUse == 1 })
	closed := make(chan error, 1)
	go func() { closed <- db.Close() }()
	apptest.AwaitState(t, "later statements are refused", func() (string, bool) {
		err := db.Probe(t.Context())
		return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), "closed")
	})
	select {
	case err := <-closed:
		t.Errorf("closed while a statement was under way: %v", err)
	default:
	}
	release()
	if err := apptest.Receive(t, "the end of Close", closed); err != nil {
		t.Error(err)
	}
	running.Wait()
}

func TestWrite(t *testing.T) {
	mixed := keyOf("a", "b asc", "c")
	tests := []struct {
		name  string
		key   []feed.KeyColumn
		shape shape
		want  string
	}{
		{"window", keyOf("id"), shape{straight: true}, "SELECT STRAIGHT_JOIN * FROM (\nbody\n) AS feed ORDER BY `id` DESC LIMIT ? OFFSET ?"},
		{"after and until", keyOf("at", "id"), shape{after: true, until: true}, "feed WHERE (`at` < ? OR (`at` = ? AND `id` < ?)) AND (`at` > ? OR (`at` = ? AND `id` >= ?)) ORDER BY `at` DESC, `id` DESC LIMIT"},
		{"ascending", keyOf("id asc"), shape{after: true, until: true}, "WHERE `id` > ? AND `id` <= ? ORDER BY `id` LIMIT"},
		{"mixed, after", mixed, shape{after: true}, "WHERE (`a` < ? OR (`a` = ? AND (`b` > ? OR (`b` = ? AND `c` < ?)))) ORDER BY `a` DESC, `b`, `c` DESC LIMIT"},
		{"keys only", keyOf("at", "i`d"), shape{keysOnly: true}, "SELECT `at`, `i``d` FROM ("},
	}
	for _, test := range tests {
		w := writer{def: feed.Definition{Key: test.key}, body: "body"}
		for range test.key {
			w.key = append(w.key, keyColumn{placeholder: "?"})
		}
		if got := w.write(test.shape); !strings.Contains(got, test.want) {
			t.Errorf("%s:\n%s\ndoes not hold\n%s", test.name, got, test.want)
		}
	}
}
