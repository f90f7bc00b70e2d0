package streamtest

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

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
)

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text) // writes to memory and cannot fail
	_ = z.Close()
	return b.String()
}

func TestStreams(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) { testStreams(t, storetest.SQLiteDatabase(t), "database") })
	t.Run("postgres", func(t *testing.T) {
		testStreams(t, storetest.PostgresDatabase(t, postgres.Get(t)), "database, not fsynced: fsync=off, full_page_writes=off")
	})
	t.Run("mariadb", func(t *testing.T) {
		testStreams(t, mariaDatabase(t, "streams"), "database, not fsynced: innodb_flush_log_at_trx_commit=0")
	})
}

// testStreams serves the freight app, then a configured stream, on one database.
func testStreams(t *testing.T, p storetest.Database, ack string) {
	if _, stderr, code := binary.Run(t, "seed", "freight", "--database", p.URL, "--users", "100", "--days", "20", "--per-day", "5"); code != 0 {
		t.Fatalf("seed: exit %d\n%s", code, stderr)
	}
	app := apptest.Serve(t, binary.Path(t), "--database", p.URL)
	app.WaitReady(t)
	before := apptest.Page(t, app.URL("goodslist")).Data[0].ID
	apptest.WantAnswer(t, apptest.Post(t, app.URL("orders"), `{"users_id": 7, "goods_name": "钢管 \"12 t\""}`), 200, `{"stored":1,"ack":"`+ack+`"}`)
	apptest.Await(t, "the order is on page 1", func() bool { return apptest.Page(t, app.URL("goodslist")).Data[0].ID == before+1 })
	if o := apptest.Page(t, app.URL("goodslist")).Data[0]; o.Goods_name != `钢管 "12 t"` || o.Nickname != "13800000007" || !strings.HasPrefix(o.Createtime, "20") {
		t.Errorf("%+v", o)
	}
	positions := `[{"device_id":7,"latitude":31.23,"longitude":121.47,"speed":62.5},{"device_id":8,"latitude":91}]`
	apptest.WantAnswer(t, apptest.Post(t, app.URL("positions"), positions), 200, `{"stored":1,"ack":"`+ack+`","refused":[{"index":1,"field":"latitude","reason":"must be at most 90"}]}`)
	if rows := p.Query(t, "SELECT device_id FROM positions WHERE speed = 62.5 AND recorded_at IS NOT NULL"); len(rows) != 1 || rows[0][0] != "7" {
		t.Errorf("positions %v", rows)
	}
	if err := app.Stop(); err != nil {
		t.Error(err)
	}

	s := p.ServeReadings(t, &binary, apptest.Readings)
	ok := func(n int, rest string) string { return fmt.Sprintf(`{"stored":%d,"ack":"%s"%s}`, n, ack, rest) }
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":1,"device":4,"value":2.5}`), 200, ok(1, ""))
	lines := "{\"id\":2}\n\n{\"id\":3,\"note\":\"12345678901\"}\nnot json\n{\"id\":4,\"value\":13}\n{\"id\":5}"
	a := apptest.Post(t, s.URL("v1/readings"), lines, "Content-Type", "application/x-ndjson")
	var got struct {
		Stored  int
		Refused []struct {
			Index         int
			Field, Reason string
		}
	}
	if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != 200 || got.Stored != 2 || len(got.Refused) != 3 {
		t.Fatalf("%d %s, %v", a.Status, a.Body, err)
	}
	if r := got.Refused; r[0].Index != 1 || r[0].Field != "note" || r[1].Index != 2 || r[2].Index != 3 || r[2].Reason == "" {
		t.Errorf("%s", a.Body)
	}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `[{"value":1},{"id":6,"value":13}]`), 422, `records-refused {"index":0,"field":"id","reason":"is missing"}`)

	key := []string{"Idempotency-Key", "8e03978e-40d5"}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `[{"id":10},{"id":11,"value":13}]`, key...), 200, string(apptest.Post(t, s.URL("readings"), `[{"id":12},{"id":13,"value":13}]`).Body))
	again := apptest.Post(t, s.URL("readings"), `[{"id":10},{"id":11,"value":13}]`, key...)
	if !strings.HasPrefix(string(again.Body), `{"stored":1,"ack":"`+ack+`","replayed":true,"refused":[{"index":1,`) {
		t.Errorf("%d %s", again.Status, again.Body)
	}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":14}`, key...), 409, "key-reused nothing was stored")

	zipped := []string{"Content-Encoding", "gzip"}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), gzipped(`{"id":20}`), zipped...), 200, ok(1, ""))
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), gzipped(`{"id":21}`)[:15], zipped...), 400, "bad-body gzip")
	bomb := gzipped(`{"id":22,"note":"` + strings.Repeat("a", 8<<20))
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), bomb, zipped...), 413, "body-too-large 1048576")
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":23}`, "Content-Encoding", "br"), 415, "unsupported-media-type gzip")
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":24}`, "Content-Type", "text/plain"), 415, "unsupported-media-type application/json")
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":25`), 400, "bad-body not JSON")
	apptest.WantAnswer(t, apptest.Fetch(t, s.URL("readings")), 405, "method-not-allowed POST, OPTIONS")
	if ids := p.IDs(t); !slices.Equal(ids, []int{1, 2, 5, 10, 12, 20}) {
		t.Errorf("stored %v", ids)
	}
	if n := apptest.Metric(t, s, `spillway_stream_records_total{result="stored",stream="/readings"}`); n != 6 {
		t.Errorf("%v records are counted as stored", n)
	}
}

func TestStreamKeys(t *testing.T) {
	t.Setenv("SPILLWAY_TEST_KEY", "another-key-of-sixteen")
	p := storetest.SQLiteDatabase(t)
	s := p.ServeReadings(t, &binary, "keys: [one-key-of-sixteen, \"${SPILLWAY_TEST_KEY}\"]\n"+apptest.Readings)
	for _, c := range []struct {
		authorization string
		status        int
	}{{"", 401}, {"Bearer", 401}, {"Bearer one-key-of-sixteem", 401}, {"Basic one-key-of-sixteen", 401}, {"bearer one-key-of-sixteen", 200}, {"Bearer another-key-of-sixteen", 200}} {
		a := apptest.Post(t, s.URL("readings"), `{"id":1}`, "Authorization", c.authorization)
		if a.Status != c.status || c.status == 401 && !strings.HasPrefix(a.Header.Get("Www-Authenticate"), "Bearer") {
			t.Errorf("%q: %d %s", c.authorization, a.Status, a.Body)
		}
	}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), strings.Repeat(" ", 100_000)), 401, "unauthorized Authorization")
	if log := s.Log(t); strings.Contains(log, "key-of-sixteen") {
		t.Errorf("a key is logged:\n%s", log)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listen: :0\n"+apptest.Readings), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := binary.Run(t, "serve", file); code != exit.Usage || !strings.Contains(stderr, "keys: must be given if other hosts can reach streams") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	open := apptest.Serve(t, binary.Path(t), "--listen", "0.0.0.0:0")
	apptest.Await(t, "orders are disabled", func() bool { return strings.Contains(open.Log(t), "orders and positions are disabled") })
}

// TestStreamOverload locks the table. Requests beyond the limit are refused at once, and the
// waiting ones are stored after the lock is released.
func TestStreamOverload(t *testing.T) {
	t.Parallel()
	p := storetest.PostgresDatabase(t, postgres.Get(t))
	s := p.ServeReadings(t, &binary, apptest.Readings+"    wait_max: 200ms\n    timeout: 1s\n    commit_timeout: 1s\n    retry_for: 1h\n")
	conn, err := pgx.Connect(t.Context(), p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "BEGIN")
	apptest.Execute(t, conn, "LOCK TABLE readings")
	var waiting sync.WaitGroup
	for i := range 2 { // the committers
		waiting.Go(func() {
			var a apptest.Answer
			var err error
			for tried := false; !tried || a.Status == http.StatusServiceUnavailable; tried = true { // refused while the others wait
				a, err = apptest.TryPost(t.Context(), http.DefaultClient, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, i), "Idempotency-Key", strconv.Itoa(i))
			}
			if err != nil || a.Status != http.StatusGatewayTimeout || !strings.Contains(string(a.Body), "unknown-outcome") || !strings.Contains(string(a.Body), "again with the same") {
				t.Errorf("%d %s %v, want 504 unknown-outcome", a.Status, a.Body, err)
			}
		})
	}
	var more atomic.Int64
	var refused atomic.Bool
	notReady := false
	apptest.AwaitState(t, "a request was refused at once, and the server was not ready", func() (string, bool) {
		waiting.Go(func() { // one that is accepted waits, while others come
			a, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, 100+more.Add(1)))
			if err == nil && a.Status == 503 && strings.Contains(string(a.Body), "wait_max") && a.Header.Get("Retry-After") != "" {
				refused.Store(true)
			}
		})
		status, reason := apptest.Readyz(t, s, "/readyz", "POST /readings")
		notReady = notReady || status == 503 && reason != ""
		return fmt.Sprintf("refused: %v, not ready: %v", refused.Load(), notReady), refused.Load() && notReady
	})
	waiting.Wait()
	apptest.Execute(t, conn, "ROLLBACK")
	for i := range 2 {
		apptest.Await(t, "the unknown outcome is resolved", func() bool {
			return apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, i), "Idempotency-Key", strconv.Itoa(i)).Status == 200
		})
	}
	apptest.Await(t, "ready again", func() bool { return apptest.Fetch(t, s.Admin+"/readyz").Status == 200 })
	if ids := p.IDs(t); len(ids) < 2 || ids[0] != 0 || ids[1] != 1 || slices.Contains(ids[2:], 1) {
		t.Errorf("stored %v, want 0 and 1 once, then others", ids)
	}
}

// TestStreamDatabaseDown: /readyz reports that the database is down, and that it is back, without a request.
func TestStreamDatabaseDown(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t, "fsync=on")
	p := storetest.PostgresDatabase(t, server)
	s := p.ServeReadings(t, &binary, patientPool+apptest.Readings+"    wait_max: 10m\n    timeout: 10m\n    retry_for: 300ms\n")
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 200, `{"stored":1,"ack":"database, not fsynced: full_page_writes=off"}`)
	server.Kill()
	apptest.Await(t, "not ready", func() bool {
		a := apptest.Fetch(t, s.Admin+"/readyz")
		return a.Status == 503 && strings.Contains(string(a.Body), "the database does not accept records")
	})
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":2}`), 503, "database-down nothing was stored")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "ready again without a request", func() bool { return apptest.Fetch(t, s.Admin+"/readyz").Status == 200 })
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":3}`), 200, `{"stored":1,"ack":"database, not fsynced: full_page_writes=off"}`)
	if ids := p.IDs(t); !slices.Equal(ids, []int{1, 3}) {
		t.Errorf("stored %v", ids)
	}
}
