package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// seed creates a small freight data set with 8-digit order ids, like the reference data set.
func seed(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = shared.postgres.CreateDatabase(t)
	if _, stderr, code := spillway(t, "seed", "freight", "--database", url, "--users", "1000", "--days", "366", "--per-day", "70"); code != 0 {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	execute(t, conn, "UPDATE orders SET id = id + 10000000")
	execute(t, conn, "SELECT setval('orders_id_seq', (SELECT max(id) FROM orders))")
	return url, conn
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// insert inserts n orders, one by one.
func insert(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	execute(t, conn, `INSERT INTO orders (createtime, users_id, goods_name)
		SELECT '2016-12-02', 1 + i % 1000, md5(i::text) FROM generate_series(1, $1) AS i`, n)
}

// configuration writes a configuration with the freight feed.
func configuration(t *testing.T, feed string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	text := `feeds:
  - path: /goodslist
    envelope: return_code
    sql: SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno FROM orders JOIN users ON users.id = orders.users_id
    ` + strings.ReplaceAll(feed, "\n", "\n    ") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// fetch requests a URL and returns the answer.
func fetch(t *testing.T, url string) answer {
	t.Helper()
	a, err := tryFetch(t.Context(), http.DefaultClient, url)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tryFetch(ctx context.Context, client *http.Client, url string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body}, err
}

type goods struct {
	Code string `json:"return_code"`
	Data []struct {
		ID                                         int64
		Createtime, Goods_name, Nickname, Mobileno string
	}
	Next string
}

// page requests a page of orders.
func page(t *testing.T, url string) goods {
	t.Helper()
	a := fetch(t, url)
	var g goods
	if err := json.Unmarshal(a.body, &g); err != nil || a.status != http.StatusOK {
		t.Fatalf("%s: %d %s: %v", url, a.status, a.body, err)
	}
	return g
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 2 minutes: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestFreightOnPostgres(t *testing.T) {
	t.Parallel()
	url, conn := seed(t)
	redis := apptest.Redis(t)
	app := apptest.Serve(t, shared.binary, "--database", url, "--redis", redis.URL("0"))
	app.WaitReady(t)
	nginx := apptest.Nginx(t, `upstream app { server `+app.Addr()+`; keepalive 8; }
		server { listen {addr}; location /openapi/ { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; } }`)

	a := fetch(t, nginx.URL("openapi/goodslist?offset=0"))
	next := regexp.MustCompile(`,"next":"[A-Za-z0-9_-]+"`)
	if seed := next.ReplaceAll(a.body, nil); len(seed) != 1524 || !next.Match(a.body) {
		t.Errorf("ten rows are %d bytes without next, the reference is 1524:\n%s", len(seed), a.body)
	}
	g := page(t, app.URL("goodslist"))
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
	eventually(t, "a new order is on page 1", func() bool { return page(t, app.URL("goodslist")).Data[0].ID == id+1 })
	for _, offset := range []int{150, 195, 900, 18_000} {
		var want int64
		if err := conn.QueryRow(t.Context(), "SELECT id FROM orders ORDER BY id DESC OFFSET $1 LIMIT 1", offset).Scan(&want); err != nil {
			t.Fatal(err)
		}
		if g := page(t, app.URL("goodslist?offset="+strconv.Itoa(offset))); g.Data[0].ID != want {
			t.Errorf("offset %d begins with %d, want %d", offset, g.Data[0].ID, want)
		}
	}
	if a := fetch(t, app.URL("goodslist?offset=10000000")); string(a.body) != `{"return_code":"FAIL","data":[]}` {
		t.Errorf("after the last row: %s", a.body)
	}
	if a := fetch(t, app.URL("goodslist?limit=1&fields=nickname,id")); !strings.HasPrefix(string(a.body), fmt.Sprintf(`{"return_code":"SUCCESS","data":[{"id":%d,"nickname":"`, id+1)) {
		t.Errorf("two fields: %s", a.body)
	}
	if a := fetch(t, app.URL("goodslist?offset=0;drop%20table%20users")); a.status != http.StatusBadRequest {
		t.Errorf("injection: %d %s", a.status, a.body)
	}
	for path, status := range map[string]int{"probe/database": 200, "probe/redis?key=none": 204, "hello": 200} {
		if a := fetch(t, app.URL(path)); a.status != status {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	metrics := string(fetch(t, app.Admin+"/metrics").body)
	for _, name := range []string{"spillway_http_request_duration_seconds_bucket{route=\"/goodslist\",le=\"5e-05\"}", "spillway_feed_age_seconds", "spillway_pool_connections", "go_goroutines"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
}

func TestThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url, conn := seed(t)
	bouncer := apptest.PgBouncer(t, shared.postgres, "transaction")
	name := url[strings.LastIndexByte(url, '/')+1:]
	app := apptest.Serve(t, shared.binary, "--database", bouncer.URL(name))
	app.WaitReady(t)
	first := page(t, app.URL("goodslist"))
	insert(t, conn, 3)
	eventually(t, "new orders are on page 1", func() bool { return page(t, app.URL("goodslist")).Data[3].ID == first.Data[0].ID })
	var walked int
	for query := "goodslist?limit=100"; walked < 2000; {
		g := page(t, app.URL(query))
		walked += len(g.Data)
		query = "goodslist?limit=100&before=" + g.Next
	}
	if g := page(t, app.URL("goodslist?offset=15000")); len(g.Data) != 10 {
		t.Errorf("deep offset: %d rows", len(g.Data))
	}
	if a := fetch(t, app.URL("probe/database")); a.status != http.StatusOK {
		t.Errorf("probe: %d %s", a.status, a.body)
	}
}

func TestDatabaseDownAtStart(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t)
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "feeds: [{path: /numbers, sql: 'SELECT n FROM generate_series(1, 50) AS n', key: n}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, shared.binary, file, "--database", pg.URL("postgres"))
	eventually(t, "the log says what is waited for", func() bool { return strings.Contains(app.Log(t), pg.Addr()) })
	if a := fetch(t, app.Admin+"/readyz"); a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "waiting for the database") {
		t.Errorf("readyz while the database is down: %d %s", a.status, a.body)
	}
	if err := pg.Start(); err != nil {
		t.Fatal(err)
	}
	app.WaitReady(t)
	if a := fetch(t, app.URL("numbers?limit=1")); !strings.HasPrefix(string(a.body), `{"data":[{"n":50}]`) {
		t.Errorf("%s", a.body)
	}
}

func TestOutage(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "CREATE TABLE t (n int PRIMARY KEY)")
	execute(t, conn, "INSERT INTO t SELECT generate_series(1, 500)")
	_ = conn.Close(t.Context())
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "feeds: [{path: /numbers, sql: SELECT n FROM t, key: n, stale_max: 3s}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, shared.binary, file, "--database", pg.URL("postgres"))
	app.WaitReady(t)
	ready := func() int { return fetch(t, app.Admin+"/readyz").status }

	fetch(t, app.URL("numbers")) // an idle window would not be refreshed
	pg.Kill()
	var ages []int
	eventually(t, "503 past the bound", func() bool {
		a := fetch(t, app.URL("numbers"))
		if a.status == http.StatusOK {
			age, err := strconv.Atoi(a.header.Get("Age"))
			if err != nil {
				t.Fatal(err)
			}
			ages = append(ages, age)
			return false
		}
		return a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != ""
	})
	if last := ages[len(ages)-1]; last != 2 && last != 3 {
		t.Errorf("the oldest page was %d s old, limit 3 s", last)
	}
	if ready() != http.StatusServiceUnavailable {
		t.Error("ready although pages are older than the limit")
	}
	if err := pg.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "200 again by itself", func() bool { return fetch(t, app.URL("numbers")).status == http.StatusOK })
	eventually(t, "ready again", func() bool { return ready() == http.StatusOK })
}

func TestSlowPlanIsRefused(t *testing.T) {
	t.Parallel()
	url, conn := seed(t)
	execute(t, conn, "ANALYZE")
	file := configuration(t, "key: [goods_name, id]")
	_, stderr, code := spillway(t, "serve", "--strict", file, "--database", url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if code != 2 || !strings.Contains(stderr, "CREATE INDEX") || !strings.Contains(stderr, "goods_name") {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
	execute(t, conn, "CREATE INDEX ON orders (goods_name, id)")
	app := apptest.Serve(t, shared.binary, file, "--database", url)
	app.WaitReady(t)
	if g := page(t, app.URL("goodslist")); g.Data[0].Goods_name < g.Data[9].Goods_name {
		t.Errorf("order: %s before %s", g.Data[0].Goods_name, g.Data[9].Goods_name)
	}
}

func TestParameters(t *testing.T) {
	t.Parallel()
	url, conn := seed(t)
	execute(t, conn, "CREATE INDEX ON orders (users_id, id)")
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf(`database: %s
feeds:
  - path: /mine
    sql: SELECT id, users_id FROM orders WHERE users_id = :user
    key: id
    params: {user: integer}
`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	app := apptest.Serve(t, shared.binary, file)
	app.WaitReady(t)
	for _, user := range []int{1, 2, 3, 1} {
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM orders WHERE users_id = $1", user).Scan(&n); err != nil {
			t.Fatal(err)
		}
		g := page(t, app.URL(fmt.Sprintf("mine?limit=100&user=%d", user)))
		if len(g.Data) != n {
			t.Errorf("user %d: %d orders, want %d", user, len(g.Data), n)
		}
	}
	for _, query := range []string{"mine", "mine?user=", "mine?user=x", "mine?user=1%27"} {
		if a := fetch(t, app.URL(query)); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "user") {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
}
