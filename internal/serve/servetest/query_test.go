package servetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
)

// queries is a configuration. %[1]s is replaced by a slow statement of the database, and %[2]s
// by a comparison with the values of the list :apps.
const queries = `feeds:
  - path: /list
    aliases: [/v1/list]
    sql: SELECT app_id, score FROM records
    key: score
    envelope: none
queries:
  - path: /records
    aliases: [/v1/records]
    sql: SELECT app_id, score FROM records WHERE app_id = :app_id AND score <> -1 ORDER BY score LIMIT 50
    params: {app_id: text}
  - path: /slow
    sql: SELECT count(*) AS n FROM records, (%[1]s) AS slow WHERE score > :low
    params: {low: integer}
    timeout: 5m
  - path: /kept
    sql: SELECT score FROM records WHERE score > :low ORDER BY score
    params: {low: integer}
    ttl: 1h
    rows_max: 4
  - path: /some
    sql: SELECT score FROM records WHERE app_id %[2]s AND score > :low ORDER BY score
    params:
      apps: {type: text, list_max: 3, default: [b, a]}
      low: {type: integer, default: 0}
    ttl: 1h
  - path: /one
    sql: SELECT app_id, score FROM records WHERE score >= :low AND score <= :high
    params: {low: integer, high: {type: integer, default: 9}}
    one: true
  - path: /bare
    sql: SELECT app_id, score FROM records WHERE score > :low ORDER BY score
    params: {low: integer}
    envelope: none
  - path: /coded
    sql: SELECT app_id, score FROM records WHERE score > :low ORDER BY score
    params: {low: integer}
    envelope: return_code
`

// How the databases compare with a list.
const (
	anyApp = "= ANY(:apps)"
	inApps = "IN (:apps)"
)

const recordRows = `CREATE TABLE records (app_id text, score bigint NOT NULL);
INSERT INTO records VALUES ('a', 3), ('a', 1), ('a', -1), ('b', 2), ('o''b"--', 7), ('', 9);`

func TestQueriesOnPostgres(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, recordRows)
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf(queries, "SELECT 1 FROM pg_sleep(1)", anyApp), database)
	testQueries(t, s.URL(""))

	// A thousand concurrent requests share one execution, or one in each second if they take that long to arrive.
	start := time.Now()
	var group sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	for range 1000 {
		group.Go(func() {
			a, err := apptest.TryFetch(t.Context(), client, s.URL("slow?low=0"))
			if err != nil || a.Status != http.StatusOK || string(a.Body) != `{"data":[{"n":5}]}` {
				t.Errorf("%d %s, %v", a.Status, a.Body, err)
			}
		})
	}
	group.Wait()
	if n := apptest.Metric(t, s, `spillway_query_executions_total{query="/slow"}`); n < 1 || n > 1+time.Since(start).Seconds() {
		t.Errorf("%v executions for 1,000 requests in %v", n, time.Since(start))
	}

	// When no client waits any more, the statement is cancelled.
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		var err error
		for err == nil { // on a busy machine, one statement may end before it is seen
			_, err = apptest.TryFetch(ctx, client, s.URL("slow?low=1"))
		}
		gone <- err
	}()
	running := func() (n int) {
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	apptest.Await(t, "the slow statement runs", func() bool { return running() == 1 })
	leave()
	<-gone
	apptest.Await(t, "the slow statement is cancelled", func() bool { return running() == 0 })
}

func TestQueriesOnSQLite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlitex.ExecuteScript(conn, recordRows, nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf(queries, "SELECT 1", inApps), "sqlite:"+path)
	testQueries(t, s.URL(""))
}

// queryCase is a request of testQueries.
type queryCase struct {
	path   string
	status int
	want   string // of the body, or of the problem's detail
}

// shapes are requests for answers in other envelopes, and with fewer fields.
func shapes() []queryCase {
	return []queryCase{
		{"one?low=9&fields=score", 200, `{"score":9}`},
		{"one?low=8&high=8&fields=score", 404, "no row has these values"},
		{"one?low=9&fields=nothing", 400, "the known fields are app_id,score"},
		{"bare?low=3", 200, `[{"app_id":"o'b\"--","score":7},{"app_id":"","score":9}]`},
		{"bare?low=3&fields=app_id", 200, `[{"app_id":"o'b\"--"},{"app_id":""}]`},
		{"bare?low=99", 200, `[]`},
		{"bare?low=99&fields=nothing", 400, "the known fields are app_id,score"},
		{"coded?low=7", 200, `{"return_code":"SUCCESS","data":[{"app_id":"","score":9}]}`},
		{"coded?low=99", 200, `{"return_code":"FAIL","data":[]}`},
		{"some?fields=score&fields=", 200, `{"data":[{"score":1},{"score":2},{"score":3}]}`},
		{"some?fields=app_id", 400, "the known fields are score"},
	}
}

// testQueries sends requests to which all databases give the same answers.
func testQueries(t *testing.T, base string) {
	t.Helper()
	for _, c := range append(shapes(), []queryCase{
		{"records?app_id=a", 200, `{"data":[{"app_id":"a","score":1},{"app_id":"a","score":3}]}`},
		{"v1/records?app_id=b", 200, `{"data":[{"app_id":"b","score":2}]}`},
		{"records?app_id=" + url.QueryEscape(`o'b"--`), 200, `{"data":[{"app_id":"o'b\"--","score":7}]}`},
		{"records?app_id=" + url.QueryEscape(`' OR '1'='1`), 200, `{"data":[]}`},
		{"records?app_id=", 200, `{"data":[{"app_id":"","score":9}]}`},
		{"records", 400, "parameter app_id is missing"},
		{"records?app_id=%00", 400, "app_id must be UTF-8 text without NUL"},
		{"records?app_id=%bf%27", 400, "app_id must be UTF-8 text without NUL"},
		{"slow?low=0;drop", 400, "low must be a whole number of at most 64 bits"},
		{"kept?low=2", 200, `{"data":[{"score":3},{"score":7},{"score":9}]}`},
		{"kept?low=-5", 500, "exceeds the limit"},
		{"some", 200, `{"data":[{"score":1},{"score":2},{"score":3}]}`},
		{"some?low=1&apps=a", 200, `{"data":[{"score":3}]}`},
		{"some?apps=b&apps=&apps=" + url.QueryEscape(`o'b"--`), 200, `{"data":[{"score":2},{"score":7},{"score":9}]}`},
		{"some?apps=a,b", 200, `{"data":[]}`},
		{"some?apps=a&apps=b&apps=c&apps=d", 400, "apps has more than 3 values"},
		{"some?apps=a&low=", 400, "low must be a whole number"},
		{"one?low=7&high=8", 200, `{"app_id":"o'b\"--","score":7}`},
		{"one?low=9", 200, `{"app_id":"","score":9}`},
		{"one?low=8&high=8", 404, "no row has these values"},
		{"one?low=1", 500, "several rows"},
		{"one", 400, "parameter low is missing"},
		{"kept?low=%2B2", 200, `{"data":[{"score":3},{"score":7},{"score":9}]}`}, // the same as low=2
	}...) {
		a := apptest.Fetch(t, base+c.path)
		body := string(a.Body)
		if c.status != 200 {
			var problem struct{ Detail, Type string }
			if err := json.Unmarshal(a.Body, &problem); err != nil || !strings.HasPrefix(problem.Type, "urn:spillway:problem:") {
				t.Errorf("%s: %s, %v", c.path, body, err)
			}
			if a.Status == c.status && strings.Contains(problem.Detail, c.want) {
				continue
			}
		}
		if a.Status != c.status || body != c.want {
			t.Errorf("%s: %d %s, want %d %s", c.path, a.Status, body, c.status, c.want)
		}
	}
	testBareFeed(t, base)
	if again := apptest.Fetch(t, base+"some?apps=a&apps=b&apps=b&low=0"); again.Header.Get("Spillway-Source") != "memory" {
		t.Errorf("the values of the default in another order: %v", again.Header)
	}
	first := apptest.Fetch(t, base+"kept?low=2")
	if first.Header.Get("Spillway-Source") != "memory" || first.Header.Get("Etag") == "" || first.Header.Get("Age") == "" {
		t.Errorf("a cached answer: %v", first.Header)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"kept?low=2", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("If-None-Match", first.Header.Get("Etag"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotModified {
		t.Errorf("with the answer's ETag: %d", resp.StatusCode)
	}
}

// testBareFeed walks a feed of bare arrays by its links, at an alias and with fields.
func testBareFeed(t *testing.T, base string) {
	t.Helper()
	at, got := base+"v1/list?limit=2&fields=score,score&offset=1", ""
	for at != "" {
		a := apptest.Fetch(t, at)
		got += string(a.Body)
		reference, found := strings.CutSuffix(strings.TrimPrefix(a.Header.Get("Link"), "<"), `>; rel="next"`)
		from, err := url.Parse(at)
		if err != nil || a.Status != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", at, a.Status, a.Body, err)
		}
		if at = ""; found {
			next, err := from.Parse(reference)
			if err != nil {
				t.Fatal(err)
			}
			at = next.String()
		}
	}
	if want := `[{"score":7},{"score":3}][{"score":2},{"score":1}][{"score":-1}]`; got != want {
		t.Errorf("by links: %s, want %s", got, want)
	}
	if a := apptest.Fetch(t, base+"list?fields=nothing"); a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "the known fields are app_id,score") {
		t.Errorf("unknown field: %d %s", a.Status, a.Body)
	}
	if a := apptest.Fetch(t, base+"list?limit=1"); string(a.Body) != `[{"app_id":"","score":9}]` {
		t.Errorf("all fields: %s", a.Body)
	}
}

// TestQueriesShareRedis starts two replicas with one Redis. They share cached answers, and
// both continue without Redis.
func TestQueriesShareRedis(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, recordRows)
	store := apptest.Redis(t)
	text := strings.ReplaceAll(fmt.Sprintf(queries, "SELECT 1", anyApp), "ttl: 1h", "ttl: 1h\n    cache: redis")
	one := apptest.ServePatiently(t, &binary, text, database, "--redis", store.URL(""))
	two := apptest.ServePatiently(t, &binary, text, database, "--redis", store.URL(""))
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() {
			s := []*apptest.Spillway{one, two}[i%2]
			if a, err := apptest.TryFetch(t.Context(), http.DefaultClient, s.URL("kept?low=2")); err != nil || a.Status != http.StatusOK {
				t.Errorf("%d %s, %v", a.Status, a.Body, err)
			}
		})
	}
	group.Wait()
	const executions = `spillway_query_executions_total{query="/kept"}`
	if n := apptest.Metric(t, one, executions) + apptest.Metric(t, two, executions); n != 1 {
		t.Errorf("%v executions by two replicas", n)
	}
	store.Kill()
	for _, s := range []*apptest.Spillway{one, two} {
		if a := apptest.Fetch(t, s.URL("kept?low=6")); a.Status != http.StatusOK || a.Header.Get("Spillway-Source") != "database" {
			t.Errorf("without Redis: %d %s %v", a.Status, a.Body, a.Header)
		}
	}
}

// crowded is a feed, and a query that takes 10 s of a connection. The query may use four of
// the five connections, so it has time for 120 requests within its timeout.
const crowded = `pool: {max: 5, statement_timeout: 10m}
feeds:
  - path: /records
    sql: SELECT score FROM records
    key: score
    refresh: 50ms
    idle_after: 1h
queries:
  - path: /sleep
    sql: SELECT :n AS n FROM pg_sleep(10)
    params: {n: integer}
    timeout: 5m
`

// TestCrowdOnQuery has 400 clients ask for different values of a slow query. Requests that
// cannot be answered in time are refused at once, and not when their time is over. The feed
// beside the query is refreshed all the while.
func TestCrowdOnQuery(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "CREATE TABLE records (score bigint PRIMARY KEY); INSERT INTO records SELECT generate_series(1, 300)")
	s := apptest.ServePatiently(t, &binary, crowded, database)
	apptest.WantAnswer(t, apptest.Fetch(t, s.URL("sleep?n=0")), http.StatusOK, `{"data":[{"n":0}]}`) // now the time of an execution is known
	const clients, least = 400, 200
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var refused atomic.Int64
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			a, err := apptest.TryFetch(ctx, client, s.URL(fmt.Sprintf("sleep?n=%d", i+1)))
			if ctx.Err() != nil || err == nil && a.Status == http.StatusOK {
				return
			}
			seconds, _ := strconv.Atoi(a.Header.Get("Retry-After"))
			if err != nil || a.Status != http.StatusServiceUnavailable || seconds < 1 {
				t.Errorf("%d %s with Retry-After %q, %v; want 503 with a time", a.Status, a.Body, a.Header.Get("Retry-After"), err)
			}
			refused.Add(1)
		})
	}
	const executions, refreshes = `spillway_query_executions_total{query="/sleep"}`, `spillway_feed_refreshes_total{feed="/records"}`
	apptest.AwaitState(t, "requests are refused long before their timeout", func() (string, bool) {
		return fmt.Sprintf("%d of %d, want %d", refused.Load(), clients, least), refused.Load() >= least
	})
	before := apptest.Metric(t, s, refreshes)
	apptest.Await(t, "the feed is refreshed beside the crowd", func() bool { return apptest.Metric(t, s, refreshes) >= before+10 })
	if failed, started := apptest.Metric(t, s, `spillway_query_execution_errors_total{query="/sleep"}`), apptest.Metric(t, s, executions); failed > 0 || started < 1 {
		t.Errorf("%v of %v executions failed, want none of at least one", failed, started)
	}
	if a := apptest.Fetch(t, s.URL("records")); a.Status != http.StatusOK {
		t.Errorf("the feed: %d %s", a.Status, a.Body)
	}
	leave()
	group.Wait()
}

// TestValueThatTheDatabaseRejects: such a request is the client's mistake, and the response
// does not show the statement.
func TestValueThatTheDatabaseRejects(t *testing.T) {
	t.Parallel()
	s := apptest.ServePatiently(t, &binary, `queries:
  - path: /at
    sql: SELECT :t AS secret_column
    params: {t: timestamp}
  - path: /like
    sql: SELECT 1 AS secret_column WHERE 'abc' LIKE :pattern
    params: {pattern: text}
  - path: /quotient
    sql: SELECT 1 / :n AS secret_column
    params: {n: integer}
`, emptyDatabase(t))
	for _, path := range []string{"at?t=0000-01-01T00:00:00Z", "like?pattern=%5C", "quotient?n=0"} {
		a := apptest.Fetch(t, s.URL(path))
		var problem struct{ Type, Detail string }
		if err := json.Unmarshal(a.Body, &problem); err != nil || a.Status != http.StatusBadRequest || problem.Type != "urn:spillway:problem:bad-request" {
			t.Errorf("%s: %d %s, %v", path, a.Status, a.Body, err)
		}
		if a.Header.Get("Retry-After") != "" || !strings.HasPrefix(problem.Detail, "the database rejects the value of a parameter: ") {
			t.Errorf("%s: Retry-After %q, detail %q", path, a.Header.Get("Retry-After"), problem.Detail)
		}
	}
	for _, path := range []string{"at?t=2016-12-01T00:00:00Z", "like?pattern=%25", "quotient?n=1"} {
		if a := apptest.Fetch(t, s.URL(path)); a.Status != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
}

func TestWrongQuery(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	text := "queries:\n  - path: /a\n    sql: SELECT nothing FROM nowhere\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	database := emptyDatabase(t)
	_, stderr, code := binary.Run(t, "serve", "--strict", "--database", database, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir(), file)
	if code != 2 || !strings.Contains(stderr, "query /a") || !strings.Contains(stderr, "nowhere") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	text = "queries:\n  - path: /a\n    sql: SELECT 1 AS a WHERE 1 IN (:ids)\n    params: {ids: {type: integer, list_max: 2}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code = binary.Run(t, "serve", "--strict", "--database", database, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir(), file)
	if code != 2 || !strings.Contains(stderr, "write = ANY(:ids) instead of IN (:ids)") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}
