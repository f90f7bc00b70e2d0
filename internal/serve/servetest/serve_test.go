package servetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// freight is the database of freightDatabase.
var freight struct {
	sync.Mutex
	url string
}

// freightDatabase returns the database of apptest.SeedFreight, which one test at a time uses. At the end of the test, the new orders
// are deleted. The test may not change others, and drops its indexes itself.
func freightDatabase(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	freight.Lock()
	t.Cleanup(freight.Unlock)
	if freight.url == "" {
		freight.url, _ = apptest.SeedFreight(t, &binary, postgres.Get(t))
	}
	conn, err := pgx.Connect(t.Context(), freight.url)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	var last int64
	if err := conn.QueryRow(ctx, "SELECT max(id) FROM orders").Scan(&last); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := conn.Exec(ctx, fmt.Sprintf("DELETE FROM orders WHERE id > %d; SELECT setval('orders_id_seq', %[1]d)", last))
		if err := errors.Join(err, conn.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return freight.url, conn
}

// insert inserts n orders, one by one.
func insert(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	apptest.Execute(t, conn, `INSERT INTO orders (createtime, users_id, goods_name)
		SELECT '2016-12-02', 1 + i % 1000, md5(i::text) FROM generate_series(1, $1) AS i`, n)
}

func TestFreightOnPostgres(t *testing.T) {
	t.Parallel()
	url, conn := freightDatabase(t)
	redis := apptest.Redis(t)
	app := apptest.Serve(t, binary.Path(t), "--database", url, "--redis", redis.URL("0"))
	app.WaitReady(t)
	nginx := apptest.Nginx(t, `upstream app { server `+app.Addr()+`; keepalive 8; }
		server { listen {addr}; location /openapi/ { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; } }`)

	a := apptest.Fetch(t, nginx.URL("openapi/goodslist?offset=0"))
	next := regexp.MustCompile(`,"next":"[A-Za-z0-9_-]+"`)
	if seed := next.ReplaceAll(a.Body, nil); len(seed) != 1524 || !next.Match(a.Body) {
		t.Errorf("ten rows are %d bytes without next, the reference is 1524:\n%s", len(seed), a.Body)
	}
	g := apptest.Page(t, app.URL("goodslist"))
	var id int64
	var created, name, nick string
	if err := conn.QueryRow(t.Context(), `SELECT o.id, o.createtime::text, goods_name, nickname
		FROM orders o JOIN users u ON u.id = o.users_id ORDER BY o.id DESC LIMIT 1`).Scan(&id, &created, &name, &nick); err != nil {
		t.Fatal(err)
	}
	if r := g.Data[0]; r.ID != id || r.Createtime != created || r.Goods_name != name || r.Nickname != nick || r.Mobileno != nick {
		t.Errorf("first row %+v, the database says %d %s %s %s", r, id, created, name, nick)
	}
	insert(t, conn, 1)
	apptest.Await(t, "a new order is on page 1", func() bool { return apptest.Page(t, app.URL("goodslist")).Data[0].ID == id+1 })
	for _, offset := range []int{150, 195, 900, 18_000} {
		var want int64
		if err := conn.QueryRow(t.Context(), "SELECT id FROM orders ORDER BY id DESC OFFSET $1 LIMIT 1", offset).Scan(&want); err != nil {
			t.Fatal(err)
		}
		if g := apptest.Page(t, app.URL("goodslist?offset="+strconv.Itoa(offset))); g.Data[0].ID != want {
			t.Errorf("offset %d begins with %d, want %d", offset, g.Data[0].ID, want)
		}
	}
	apptest.AwaitState(t, "the page after the last row is empty", func() (string, bool) { // 503 while all rows are counted
		a := apptest.Fetch(t, app.URL("goodslist?offset=10000000"))
		return string(a.Body), string(a.Body) == `{"return_code":"FAIL","data":[]}`
	})
	if a := apptest.Fetch(t, app.URL("goodslist?limit=1&fields=nickname,id")); !strings.HasPrefix(string(a.Body), fmt.Sprintf(`{"return_code":"SUCCESS","data":[{"id":%d,"nickname":"`, id+1)) {
		t.Errorf("two fields: %s", a.Body)
	}
	if a := apptest.Fetch(t, app.URL("goodslist?offset=0;drop%20table%20users")); a.Status != http.StatusBadRequest {
		t.Errorf("injection: %d %s", a.Status, a.Body)
	}
	for path, status := range map[string]int{"probe/database": 200, "probe/redis?key=none": 204, "hello": 200} {
		if a := apptest.Fetch(t, app.URL(path)); a.Status != status {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	metrics := string(apptest.Fetch(t, app.Admin+"/metrics").Body)
	for _, name := range []string{"spillway_http_request_duration_seconds_bucket{route=\"/goodslist\",le=\"5e-05\"}", "spillway_feed_age_seconds", "spillway_pool_connections", "go_goroutines"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
}

func TestThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url, conn := freightDatabase(t)
	bouncer := apptest.PgBouncer(t, postgres.Get(t), "transaction")
	name := apptest.DatabaseName(url)
	app := apptest.Serve(t, binary.Path(t), "--database", bouncer.URL(name))
	app.WaitReady(t)
	first := apptest.Page(t, app.URL("goodslist"))
	insert(t, conn, 3)
	apptest.Await(t, "new orders are on page 1", func() bool { return apptest.Page(t, app.URL("goodslist")).Data[3].ID == first.Data[0].ID })
	var walked int
	for query := "goodslist?limit=100"; walked < 2000; {
		g := apptest.Page(t, app.URL(query))
		walked += len(g.Data)
		query = "goodslist?limit=100&before=" + g.Next
	}
	if g := apptest.Page(t, app.URL("goodslist?offset=15000")); len(g.Data) != 10 {
		t.Errorf("deep offset: %d rows", len(g.Data))
	}
	if a := apptest.Fetch(t, app.URL("probe/database")); a.Status != http.StatusOK {
		t.Errorf("probe: %d %s", a.Status, a.Body)
	}
}

func TestDatabaseDownAtStart(t *testing.T) {
	t.Parallel()
	server := postgres.Get(t)
	link := apptest.NewForward(t, "")
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "feeds: [{path: /numbers, sql: 'SELECT n FROM generate_series(1, 50) AS n', key: n}]\n"
	if err := os.WriteFile(file, []byte(apptest.Patient(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, binary.Path(t), file, "--database", strings.Replace(emptyDatabase(t), server.Addr(), link.Addr(), 1))
	apptest.Await(t, "the log says what is waited for", func() bool { return strings.Contains(app.Log(t), link.Addr()) })
	if a := apptest.Fetch(t, app.Admin+"/readyz"); a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), "waiting for the database") {
		t.Errorf("readyz while the database is down: %d %s", a.Status, a.Body)
	}
	link.To(server.Addr())
	app.WaitReady(t)
	if a := apptest.Fetch(t, app.URL("numbers?limit=1")); !strings.HasPrefix(string(a.Body), `{"data":[{"n":50}]`) {
		t.Errorf("%s", a.Body)
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	server := postgres.Get(t)
	url, link := server.CreateDatabase(t), apptest.NewForward(t, server.Addr())
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	apptest.Execute(t, conn, "CREATE TABLE t (n int PRIMARY KEY)")
	apptest.Execute(t, conn, "INSERT INTO t SELECT generate_series(1, 500)")
	_ = conn.Close(t.Context())
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "feeds: [{path: /numbers, sql: SELECT n FROM t, key: n, stale_max: 3s}]\n"
	if err := os.WriteFile(file, []byte(apptest.Patient(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, binary.Path(t), file, "--database", strings.Replace(url, server.Addr(), link.Addr(), 1))
	app.WaitReady(t)
	ready := func() int { return apptest.Fetch(t, app.Admin+"/readyz").Status }

	apptest.Fetch(t, app.URL("numbers")) // an idle window would not be refreshed
	link.To("")
	var last int
	var sent time.Time // of the request with the last page
	apptest.Await(t, "503 past the bound", func() bool {
		began := time.Now()
		a := apptest.Fetch(t, app.URL("numbers"))
		if a.Status == http.StatusOK {
			age, err := strconv.Atoi(a.Header.Get("Age"))
			if err != nil {
				t.Fatal(err)
			}
			last, sent = age, began
			return false
		}
		return a.Status == http.StatusServiceUnavailable && a.Header.Get("Retry-After") != ""
	})
	if last > 3 {
		t.Errorf("the oldest page was %d s old, limit 3 s", last)
	}
	if oldest := time.Since(sent) + time.Duration(last+1)*time.Second; oldest < 3*time.Second { // Age is rounded down
		t.Errorf("refused when rows were at most %s old, limit 3 s", oldest)
	}
	apptest.Await(t, "not ready while pages are older than the limit", func() bool { return ready() == http.StatusServiceUnavailable })
	link.To(server.Addr())
	apptest.Await(t, "200 again by itself", func() bool { return apptest.Fetch(t, app.URL("numbers")).Status == http.StatusOK })
	apptest.Await(t, "ready again", func() bool { return ready() == http.StatusOK })
}

func TestSlowPlanIsRefused(t *testing.T) {
	t.Parallel()
	url, conn := freightDatabase(t)
	apptest.Execute(t, conn, "ANALYZE")
	file := apptest.FreightFeed(t, "key: [goods_name, id]")
	_, stderr, code := binary.Run(t, "serve", "--strict", file, "--database", url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code != 2 || !strings.Contains(stderr, "CREATE INDEX") || !strings.Contains(stderr, "goods_name") {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
	apptest.Execute(t, conn, "CREATE INDEX orders_by_name ON orders (goods_name, id)")
	defer apptest.Execute(t, conn, "DROP INDEX orders_by_name")
	app := apptest.Serve(t, binary.Path(t), file, "--database", url)
	app.WaitReady(t)
	if g := apptest.Page(t, app.URL("goodslist")); g.Data[0].Goods_name < g.Data[9].Goods_name {
		t.Errorf("order: %s before %s", g.Data[0].Goods_name, g.Data[9].Goods_name)
	}
}

func TestParameters(t *testing.T) {
	t.Parallel()
	url, conn := freightDatabase(t)
	apptest.Execute(t, conn, "CREATE INDEX orders_by_user ON orders (users_id, id)")
	defer apptest.Execute(t, conn, "DROP INDEX orders_by_user")
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf(`database: %s
feeds:
  - path: /mine
    sql: SELECT id, users_id FROM orders WHERE users_id = :user
    key: id
    params: {user: integer}
`, url)
	if err := os.WriteFile(file, []byte(apptest.Patient(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, binary.Path(t), file)
	app.WaitReady(t)
	for _, user := range []int{1, 2, 3, 1} {
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM orders WHERE users_id = $1", user).Scan(&n); err != nil {
			t.Fatal(err)
		}
		g := apptest.Page(t, app.URL(fmt.Sprintf("mine?limit=100&user=%d", user)))
		if len(g.Data) != n {
			t.Errorf("user %d: %d orders, want %d", user, len(g.Data), n)
		}
	}
	for _, query := range []string{"mine", "mine?user=", "mine?user=x", "mine?user=1%27"} {
		if a := apptest.Fetch(t, app.URL(query)); a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "user") {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
}
