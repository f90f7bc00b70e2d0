package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
	"spillway/internal/exit"
)

// streamDatabase is the database of a stream, with direct access for the test.
type streamDatabase struct {
	url   string
	query func(t *testing.T, sql string) [][]string
}

func postgresDatabase(t *testing.T, server *apptest.PostgresServer) streamDatabase {
	url := server.CreateDatabase(t)
	return streamDatabase{url, postgresQuery(url)}
}

// postgresQuery returns a function that runs statements, each on a connection of its own.
func postgresQuery(url string) func(t *testing.T, sql string) [][]string {
	return func(t *testing.T, sql string) [][]string {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		var rows [][]string
		for _, row := range results[len(results)-1].Rows {
			var texts []string
			for _, value := range row {
				texts = append(texts, string(value))
			}
			rows = append(rows, texts)
		}
		return rows
	}
}

func mariaDatabase(t *testing.T, server *apptest.Server) streamDatabase {
	url := server.URL("test")
	query := mariadb(t, url)
	return streamDatabase{url, func(t *testing.T, sql string) [][]string { t.Helper(); return query(sql) }}
}

func sqliteDatabase(t *testing.T) streamDatabase {
	return sqliteFile(filepath.Join(t.TempDir(), "app.db"))
}

func sqliteFile(file string) streamDatabase {
	return streamDatabase{"sqlite:" + file, func(t *testing.T, sql string) [][]string {
		t.Helper()
		conn, err := sqlite.OpenConn(file, sqlite.OpenReadWrite|sqlite.OpenCreate|sqlite.OpenWAL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetBusyTimeout(10 * time.Second)
		var rows [][]string
		err = sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
			var texts []string
			for i := range stmt.ColumnCount() {
				texts = append(texts, stmt.ColumnText(i))
			}
			rows = append(rows, texts)
			return nil
		}})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return rows
	}}
}

// readings is a stream whose table has no unique key, so a record can be stored twice.
const readings = `streams:
  - path: /readings
    aliases: [/v1/readings]
    table: readings
    columns: {id: {type: integer, required: true}, device: integer, value: {type: real, max: 1000}, note: {type: text, max_length: 10, default: none}}
`

// serve creates the table and serves the configuration.
func (p streamDatabase) serve(t *testing.T, text string, args ...string) *apptest.Spillway {
	t.Helper()
	p.query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision CHECK (value <> 13), note varchar(20))")
	return serveQueries(t, text, p.url, args...)
}

// ids returns the stored ids in ascending order.
func (p streamDatabase) ids(t *testing.T) []int {
	t.Helper()
	var ids []int
	for _, row := range p.query(t, "SELECT id FROM readings ORDER BY id") {
		id, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// post sends a body, as JSON unless the headers say otherwise, and returns the answer.
func post(t *testing.T, url, body string, headers ...string) answer {
	t.Helper()
	a, err := tryPost(t.Context(), http.DefaultClient, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tryPost(ctx context.Context, client *http.Client, url, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, text}, err
}

// wantAnswer compares status and body. For a problem, want is its type and a part of its detail.
func wantAnswer(t *testing.T, a answer, status int, want string) {
	t.Helper()
	body := string(a.body)
	if status < 400 {
		if a.status != status || body != want {
			t.Errorf("%d %s, want %d %s", a.status, body, status, want)
		}
		return
	}
	kind, part, _ := strings.Cut(want, " ")
	if a.status != status || a.header.Get("Content-Type") != "application/problem+json" ||
		!strings.Contains(body, `"urn:spillway:problem:`+kind+`"`) || !strings.Contains(body, part) {
		t.Errorf("%d %s, want %d %s with %q", a.status, body, status, kind, part)
	}
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text) // writes to memory and cannot fail
	_ = z.Close()
	return b.String()
}

func TestStreams(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) { testStreams(t, sqliteDatabase(t), "database") })
	t.Run("postgres", func(t *testing.T) {
		testStreams(t, postgresDatabase(t, shared.postgres), "database, not fsynced: fsync=off, full_page_writes=off")
	})
	t.Run("mariadb", func(t *testing.T) {
		testStreams(t, mariaDatabase(t, apptest.MariaDB(t)), "database, not fsynced: innodb_flush_log_at_trx_commit=0")
	})
}

// testStreams serves the freight app, then a configured stream, on one database.
func testStreams(t *testing.T, p streamDatabase, ack string) {
	if _, stderr, code := spillway(t, "seed", "freight", "--database", p.url, "--users", "100", "--days", "20", "--per-day", "5"); code != 0 {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	app := apptest.Serve(t, shared.binary, "--database", p.url)
	app.WaitReady(t)
	before := page(t, app.URL("goodslist")).Data[0].ID
	wantAnswer(t, post(t, app.URL("orders"), `{"users_id": 7, "goods_name": "钢管 \"12 t\""}`), 200, `{"stored":1,"ack":"`+ack+`"}`)
	eventually(t, "the order is on page 1", func() bool { return page(t, app.URL("goodslist")).Data[0].ID == before+1 })
	if o := page(t, app.URL("goodslist")).Data[0]; o.Goods_name != `钢管 "12 t"` || o.Nickname != "13800000007" || !strings.HasPrefix(o.Createtime, "20") {
		t.Errorf("%+v", o)
	}
	positions := `[{"device_id":7,"latitude":31.23,"longitude":121.47,"speed":62.5},{"device_id":8,"latitude":91}]`
	wantAnswer(t, post(t, app.URL("positions"), positions), 200, `{"stored":1,"ack":"`+ack+`","refused":[{"index":1,"field":"latitude","reason":"must be at most 90"}]}`)
	if rows := p.query(t, "SELECT device_id FROM positions WHERE speed = 62.5 AND recorded_at IS NOT NULL"); len(rows) != 1 || rows[0][0] != "7" {
		t.Errorf("positions %v", rows)
	}
	if err := app.Stop(); err != nil {
		t.Error(err)
	}

	s := p.serve(t, readings)
	ok := func(n int, rest string) string { return fmt.Sprintf(`{"stored":%d,"ack":"%s"%s}`, n, ack, rest) }
	wantAnswer(t, post(t, s.URL("readings"), `{"id":1,"device":4,"value":2.5}`), 200, ok(1, ""))
	lines := "{\"id\":2}\n\n{\"id\":3,\"note\":\"12345678901\"}\nnot json\n{\"id\":4,\"value\":13}\n{\"id\":5}"
	a := post(t, s.URL("v1/readings"), lines, "Content-Type", "application/x-ndjson")
	var got struct {
		Stored  int
		Refused []struct {
			Index         int
			Field, Reason string
		}
	}
	if err := json.Unmarshal(a.body, &got); err != nil || a.status != 200 || got.Stored != 2 || len(got.Refused) != 3 {
		t.Fatalf("%d %s, %v", a.status, a.body, err)
	}
	if r := got.Refused; r[0].Index != 1 || r[0].Field != "note" || r[1].Index != 2 || r[2].Index != 3 || r[2].Reason == "" {
		t.Errorf("%s", a.body)
	}
	wantAnswer(t, post(t, s.URL("readings"), `[{"value":1},{"id":6,"value":13}]`), 422, `records-refused {"index":0,"field":"id","reason":"is missing"}`)

	key := []string{"Idempotency-Key", "8e03978e-40d5"}
	wantAnswer(t, post(t, s.URL("readings"), `[{"id":10},{"id":11,"value":13}]`, key...), 200, string(post(t, s.URL("readings"), `[{"id":12},{"id":13,"value":13}]`).body))
	again := post(t, s.URL("readings"), `[{"id":10},{"id":11,"value":13}]`, key...)
	if !strings.HasPrefix(string(again.body), `{"stored":1,"ack":"`+ack+`","replayed":true,"refused":[{"index":1,`) {
		t.Errorf("%d %s", again.status, again.body)
	}
	wantAnswer(t, post(t, s.URL("readings"), `{"id":14}`, key...), 409, "key-reused nothing was stored")

	zipped := []string{"Content-Encoding", "gzip"}
	wantAnswer(t, post(t, s.URL("readings"), gzipped(`{"id":20}`), zipped...), 200, ok(1, ""))
	wantAnswer(t, post(t, s.URL("readings"), gzipped(`{"id":21}`)[:15], zipped...), 400, "bad-body gzip")
	bomb := gzipped(`{"id":22,"note":"` + strings.Repeat("a", 8<<20))
	wantAnswer(t, post(t, s.URL("readings"), bomb, zipped...), 413, "body-too-large 1048576")
	wantAnswer(t, post(t, s.URL("readings"), `{"id":23}`, "Content-Encoding", "br"), 415, "unsupported-media-type gzip")
	wantAnswer(t, post(t, s.URL("readings"), `{"id":24}`, "Content-Type", "text/plain"), 415, "unsupported-media-type application/json")
	wantAnswer(t, post(t, s.URL("readings"), `{"id":25`), 400, "bad-body not JSON")
	wantAnswer(t, fetch(t, s.URL("readings")), 405, "method-not-allowed POST, OPTIONS")
	if ids := p.ids(t); !slices.Equal(ids, []int{1, 2, 5, 10, 12, 20}) {
		t.Errorf("stored %v", ids)
	}
	if n := metric(t, s, `spillway_stream_records_total{result="stored",stream="/readings"}`); n != 6 {
		t.Errorf("%v records are counted as stored", n)
	}
}

func TestStreamKeys(t *testing.T) {
	t.Setenv("SPILLWAY_TEST_KEY", "another-key-of-sixteen")
	p := sqliteDatabase(t)
	s := p.serve(t, "keys: [one-key-of-sixteen, \"${SPILLWAY_TEST_KEY}\"]\n"+readings)
	for _, c := range []struct {
		authorization string
		status        int
	}{{"", 401}, {"Bearer", 401}, {"Bearer one-key-of-sixteem", 401}, {"Basic one-key-of-sixteen", 401}, {"bearer one-key-of-sixteen", 200}, {"Bearer another-key-of-sixteen", 200}} {
		a := post(t, s.URL("readings"), `{"id":1}`, "Authorization", c.authorization)
		if a.status != c.status || c.status == 401 && !strings.HasPrefix(a.header.Get("Www-Authenticate"), "Bearer") {
			t.Errorf("%q: %d %s", c.authorization, a.status, a.body)
		}
	}
	wantAnswer(t, post(t, s.URL("readings"), strings.Repeat(" ", 100_000)), 401, "unauthorized Authorization")
	if log := s.Log(t); strings.Contains(log, "key-of-sixteen") {
		t.Errorf("a key is logged:\n%s", log)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: :0\n"+readings), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := spillway(t, "serve", file); code != exit.Usage || !strings.Contains(stderr, "keys: must be given if other hosts can reach streams") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	open := apptest.Serve(t, shared.binary, "--listen", "0.0.0.0:0")
	eventually(t, "orders are disabled", func() bool { return strings.Contains(open.Log(t), "orders and positions are disabled") })
}

// TestStreamOverload locks the table. Requests beyond the limit are refused at once, and the
// waiting ones are stored after the lock is released.
func TestStreamOverload(t *testing.T) {
	t.Parallel()
	p := postgresDatabase(t, shared.postgres)
	s := p.serve(t, readings+"    wait_max: 200ms\n    timeout: 1s\n    commit_timeout: 1s\n    retry_for: 20s\n")
	conn, err := pgx.Connect(t.Context(), p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	execute(t, conn, "BEGIN")
	execute(t, conn, "LOCK TABLE readings")
	var waiting sync.WaitGroup
	for i := range 2 { // the committers
		waiting.Go(func() {
			a, err := tryPost(t.Context(), http.DefaultClient, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, i), "Idempotency-Key", strconv.Itoa(i))
			if err != nil || a.status != http.StatusGatewayTimeout || !strings.Contains(string(a.body), "unknown-outcome") || !strings.Contains(string(a.body), "again with the same") {
				t.Errorf("%d %s %v", a.status, a.body, err)
			}
		})
	}
	// Requests that wait for a lock are put aside, so that one more may be accepted. Then two come at once, and so on.
	var more atomic.Int64
	together := 0
	eventually(t, "a request is refused at once, and the server is not ready", func() bool {
		together = min(together+1, 8)
		var refused atomic.Bool
		var clients sync.WaitGroup
		for range together {
			clients.Go(func() {
				a, err := tryPost(t.Context(), http.DefaultClient, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, 100+more.Add(1)))
				if err == nil && a.status == 503 && strings.Contains(string(a.body), "wait_max") && a.header.Get("Retry-After") != "" {
					refused.Store(true)
				}
			})
		}
		clients.Wait()
		a := fetch(t, s.Admin+"/readyz")
		return refused.Load() && a.status == 503 && strings.Contains(string(a.body), "POST /readings")
	})
	waiting.Wait()
	execute(t, conn, "ROLLBACK")
	for i := range 2 {
		eventually(t, "the unknown outcome is resolved", func() bool {
			return post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, i), "Idempotency-Key", strconv.Itoa(i)).status == 200
		})
	}
	eventually(t, "ready again", func() bool { return fetch(t, s.Admin+"/readyz").status == 200 })
	if ids := p.ids(t); len(ids) < 2 || ids[0] != 0 || ids[1] != 1 || slices.Contains(ids[2:], 1) {
		t.Errorf("stored %v", ids)
	}
}

// TestStreamDatabaseDown: /readyz reports that the database is down, and that it is back, without a request.
func TestStreamDatabaseDown(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t, "fsync=on")
	p := postgresDatabase(t, server)
	s := p.serve(t, readings+"    retry_for: 300ms\n")
	wantAnswer(t, post(t, s.URL("readings"), `{"id":1}`), 200, `{"stored":1,"ack":"database, not fsynced: full_page_writes=off"}`)
	server.Kill()
	eventually(t, "not ready", func() bool {
		a := fetch(t, s.Admin+"/readyz")
		return a.status == 503 && strings.Contains(string(a.body), "the database does not accept records")
	})
	wantAnswer(t, post(t, s.URL("readings"), `{"id":2}`), 503, "database-down nothing was stored")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready again without a request", func() bool { return fetch(t, s.Admin+"/readyz").status == 200 })
	wantAnswer(t, post(t, s.URL("readings"), `{"id":3}`), 200, `{"stored":1,"ack":"database, not fsynced: full_page_writes=off"}`)
	if ids := p.ids(t); !slices.Equal(ids, []int{1, 3}) {
		t.Errorf("stored %v", ids)
	}
}
