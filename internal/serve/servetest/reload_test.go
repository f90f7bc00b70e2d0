package servetest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// reloadable is a configuration whose version, %[2]d, is in each answer of /numbers and /now.
// %[1]s is the database.
const reloadable = `database: %[1]s
probes: true
pool: {max: 6}
http: {drain_timeout: 1m}
feeds:
  - {path: /numbers, sql: 'SELECT n, %[2]d AS version FROM generate_series(1, 50) AS n', key: n}
  - {path: /kept, sql: 'SELECT n FROM generate_series(1, 50) AS n', key: n}
queries:
  - {path: /now, sql: 'SELECT %[2]d AS version'}
`

// reloadedServer is a server whose configuration a test changes.
type reloadedServer struct {
	*apptest.Spillway
	file string
	db   storetest.Database
}

func newReloadedServer(t *testing.T, more string) *reloadedServer {
	t.Helper()
	r := &reloadedServer{file: filepath.Join(t.TempDir(), "spillway.yaml"), db: storetest.PostgresDatabase(t, postgres.Get(t))}
	r.db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	r.write(t, fmt.Sprintf(reloadable, r.db.URL, 0)+more)
	r.Spillway = apptest.Serve(t, binary.Path(t), r.file)
	r.WaitReady(t)
	return r
}

func (r *reloadedServer) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte(apptest.Patient(text)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload runs config reload.
func (r *reloadedServer) reload(t *testing.T) (output string, code int) {
	t.Helper()
	stdout, stderr, code := binary.Run(t, "config", "reload", r.file, "--admin", strings.TrimPrefix(r.Admin, "http://"))
	return stdout + stderr, code
}

// TestReloadUnderLoad reloads while clients read and write. Every request is answered, on
// connections that stay open, and every acknowledged record is stored once. With -short, there are fewer reloads.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	streams := apptest.Readings + strings.NewReplacer("streams:\n", "", "/readings", "/spooled", "/v1/readings", "/v1/spooled").Replace(apptest.Readings) + "    ack: spool\n"
	r := newReloadedServer(t, streams)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	var next, answered atomic.Int64
	var mu sync.Mutex
	var stored []int
	ask := func(send func(c *http.Client) (apptest.Answer, error)) {
		c := apptest.NewClient(t)
		clients.Go(func() {
			for ctx.Err() == nil {
				a, err := send(c)
				if err != nil || a.Status != 200 && a.Status != 202 || a.Header.Get("Connection") != "" {
					t.Errorf("%d %v %s: %v", a.Status, a.Header, a.Body, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	for _, path := range []string{"numbers", "numbers?limit=3", "kept", "now", "hello"} {
		ask(func(c *http.Client) (apptest.Answer, error) { return apptest.TryFetch(t.Context(), c, r.URL(path)) })
	}
	for _, path := range []string{"readings", "spooled"} {
		ask(func(c *http.Client) (apptest.Answer, error) {
			id := int(next.Add(1))
			a, err := apptest.TryPost(t.Context(), c, r.URL(path), fmt.Sprintf(`{"id":%d}`, id))
			if err == nil && a.Status < 300 {
				mu.Lock()
				stored = append(stored, id)
				mu.Unlock()
			}
			return a, err
		})
	}
	reloads := 8
	if testing.Short() {
		reloads = 4
	}
	for version := 1; version <= reloads; version++ {
		before := answered.Load()
		apptest.Await(t, "requests are answered", func() bool { return answered.Load() > before+50 })
		text := fmt.Sprintf(reloadable, r.db.URL, version) + streams
		if version%2 == 1 {
			text = strings.Replace(text, "queries:\n", "  - {path: /extra, sql: 'SELECT n FROM generate_series(1, 9) AS n', key: n}\nqueries:\n", 1)
		}
		r.write(t, text)
		if output, code := r.reload(t); code != 0 {
			t.Fatalf("reload: exit %d, %s", code, output)
		}
		for _, path := range []string{"numbers?limit=1", "now"} {
			if a := apptest.Fetch(t, r.URL(path)); !strings.Contains(string(a.Body), fmt.Sprintf(`"version":%d}`, version)) {
				t.Errorf("%s after reload %d: %s", path, version, a.Body)
			}
		}
		if a := apptest.Fetch(t, r.URL("extra")); a.Status != []int{404, 200}[version%2] {
			t.Errorf("/extra after reload %d: %d", version, a.Status)
		}
	}
	stop()
	clients.Wait()
	slices.Sort(stored)
	apptest.Await(t, "each acknowledged record is stored once", func() bool { return slices.Equal(r.db.IDs(t), stored) })
	if n := apptest.Metric(t, r.Spillway, `spillway_feed_windows{feed="/kept"}`); n != 1 {
		t.Errorf("the unchanged feed has %v windows", n)
	}
}

// TestReloadRefused: a configuration that cannot be applied changes nothing, and the reason
// names what is wrong.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	r := newReloadedServer(t, apptest.Readings)
	good := fmt.Sprintf(reloadable, r.db.URL, 0) + apptest.Readings
	pid := r.PID()
	for _, c := range []struct {
		from, to, says string
		code           int
	}{
		{"pool: {max: 6}", "pool: {max: 7}", "pool.max cannot change", 1},
		{"http: {", "http: {connections: 5, ", "http.connections cannot change", 1},
		{"http: {", "http: {loops: 1, ", "http.loops cannot change while the process runs: restart it", 1},
		{"/v1/readings]", "/v1/readings]\n    wait_max: 3s", "streams[0].wait_max cannot change", 1},
		{"database: ", "data: elsewhere\ndatabase: ", "", 0}, // --data overrules it
		{"SELECT 0 AS version", "SELECT 0 AS version FROM nowhere", "nowhere", 1},
		{"path: /kept", "path: /kept, database: 'postgres://nobody@127.0.0.1:1/none'", "127.0.0.1:1", 1},
		{"path: /kept", "path: /kept, widow: 3", "widow", 2},
	} {
		r.write(t, strings.Replace(good, c.from, c.to, 1))
		if output, code := r.reload(t); code != c.code || !strings.Contains(output, c.says) {
			t.Errorf("%s: exit %d, want %d and %q: %s", c.to, code, c.code, c.says, output)
		}
		for _, path := range []string{"numbers", "kept", "now"} {
			if a := apptest.Fetch(t, r.URL(path)); a.Status != 200 {
				t.Errorf("%s: afterwards /%s answers %d %s", c.to, path, a.Status, a.Body)
			}
		}
	}
	if a := apptest.Post(t, r.URL("readings"), `{"id":1}`); a.Status != 200 {
		t.Errorf("readings: %d %s", a.Status, a.Body)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the log says why the signal has changed nothing", func() bool {
		return strings.Contains(r.Log(t), "nothing has changed") && strings.Contains(r.Log(t), "widow")
	})
	if r.PID() != pid || !apptest.IsReady(t, r.Admin) {
		t.Error("the process has not survived SIGHUP")
	}
}

// TestReloadSettings: keys and CORS origins change with a signal, and reloads at the same time
// follow each other. A reload while the process stops does not disturb it.
func TestReloadSettings(t *testing.T) {
	t.Parallel()
	r := newReloadedServer(t, apptest.Readings)
	const key = "0123456789abcdef"
	text := strings.Replace(fmt.Sprintf(reloadable, r.db.URL, 1), "http: {", "http: {cors_origins: ['https://a.example'], ", 1) + apptest.Readings
	r.write(t, "keys: ["+key+"]\n"+text)
	if err := syscall.Kill(r.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "a key is required", func() bool { return apptest.Post(t, r.URL("readings"), `{"id":1}`).Status == 401 })
	if a := apptest.Post(t, r.URL("readings"), `{"id":2}`, "Authorization", "Bearer "+key, "Origin", "https://a.example"); a.Status != 200 || a.Header.Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("with the key: %d %v %s", a.Status, a.Header, a.Body)
	}
	var reloads sync.WaitGroup
	for range 3 {
		reloads.Go(func() {
			if output, code := r.reload(t); code != 0 {
				t.Errorf("exit %d: %s", code, output)
			}
		})
	}
	reloads.Wait()
	r.write(t, fmt.Sprintf(reloadable, r.db.URL, 2)+apptest.Readings)
	if err := syscall.Kill(r.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if log := r.Log(t); !strings.Contains(log, "every accepted record stored") {
		t.Error(log)
	}
}

// TestReloadClosesLater: a database that a reload takes away is closed once the last request
// has its answer, however long that takes and whoever waits for the reload.
func TestReloadClosesLater(t *testing.T) {
	t.Parallel()
	db, gone := storetest.PostgresDatabase(t, postgres.Get(t)), storetest.PostgresDatabase(t, postgres.Get(t))
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(queries string) {
		t.Helper()
		text := apptest.Patient(fmt.Sprintf("database: %s\nhttp: {drain_timeout: 10ms}\nqueries: [{path: /now, sql: SELECT 1 AS n}%s]\n", db.URL, queries))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), gone.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "SELECT pg_advisory_lock(1)")
	write(fmt.Sprintf(", {path: /slow, database: '%s', sql: SELECT 1 AS n FROM pg_advisory_xact_lock(1)}", gone.URL))
	s := apptest.Serve(t, binary.Path(t), file)
	s.WaitReady(t)
	pool := fmt.Sprintf(`spillway_pool_connections_max{database=%q}`, gone.URL)
	slow := make(chan apptest.Answer, 1)
	go func() { slow <- apptest.Fetch(t, s.URL("slow")) }()
	apptest.Await(t, "a request waits", func() bool { return apptest.Metric(t, s, `spillway_query_waiting{query="/slow"}`) == 1 })
	if apptest.Metric(t, s, pool) == 0 {
		t.Fatalf("no metric %s", pool)
	}
	write("")
	if stdout, stderr, code := binary.Run(t, "config", "reload", file, "--admin", strings.TrimPrefix(s.Admin, "http://")); code != 0 {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	if apptest.Metric(t, s, pool) == 0 {
		t.Error("the database is closed before its last request has an answer")
	}
	apptest.Execute(t, conn, "SELECT pg_advisory_unlock(1)")
	if a := apptest.Receive(t, "the answer", slow); a.Status != 200 {
		t.Errorf("/slow: %d %s", a.Status, a.Body)
	}
	apptest.Await(t, "the database is closed", func() bool { return apptest.Metric(t, s, pool) == 0 })
}
