package main

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

	"spillway/internal/apptest"
)

// client returns an HTTP client of a test.
func client(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// reloadable is a configuration whose version, %[2]d, is in each answer of /numbers and /now.
// %[1]s is the database.
const reloadable = `database: %[1]s
probes: true
pool: {max: 6}
http: {drain_timeout: 5s}
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
	db   streamDatabase
}

func newReloadedServer(t *testing.T, more string) *reloadedServer {
	t.Helper()
	r := &reloadedServer{file: filepath.Join(t.TempDir(), "spillway.yaml"), db: postgresDatabase(t, shared.postgres)}
	r.db.query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	r.write(t, fmt.Sprintf(reloadable, r.db.url, 0)+more)
	r.Spillway = apptest.Serve(t, shared.binary, r.file)
	r.WaitReady(t)
	return r
}

func (r *reloadedServer) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload runs config reload.
func (r *reloadedServer) reload(t *testing.T) (output string, code int) {
	t.Helper()
	stdout, stderr, code := spillway(t, "config", "reload", r.file, "--admin", strings.TrimPrefix(r.Admin, "http://"))
	return stdout + stderr, code
}

// TestReloadUnderLoad reloads while clients read and write. Every request is answered, on
// connections that stay open, and every acknowledged record is stored once.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	streams := readings + strings.NewReplacer("streams:\n", "", "/readings", "/spooled", "/v1/readings", "/v1/spooled").Replace(readings) + "    ack: spool\n"
	r := newReloadedServer(t, streams)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	var next, answered atomic.Int64
	var mu sync.Mutex
	var stored []int
	ask := func(send func(c *http.Client) (answer, error)) {
		c := client(t)
		clients.Go(func() {
			for ctx.Err() == nil {
				a, err := send(c)
				if err != nil || a.status != 200 && a.status != 202 || a.header.Get("Connection") != "" {
					t.Errorf("%d %v %s: %v", a.status, a.header, a.body, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	for _, path := range []string{"numbers", "numbers?limit=3", "kept", "now", "hello"} {
		ask(func(c *http.Client) (answer, error) { return tryFetch(t.Context(), c, r.URL(path)) })
	}
	for _, path := range []string{"readings", "spooled"} {
		ask(func(c *http.Client) (answer, error) {
			id := int(next.Add(1))
			a, err := tryPost(t.Context(), c, r.URL(path), fmt.Sprintf(`{"id":%d}`, id))
			if err == nil && a.status < 300 {
				mu.Lock()
				stored = append(stored, id)
				mu.Unlock()
			}
			return a, err
		})
	}
	for version := 1; version <= 8; version++ {
		before := answered.Load()
		eventually(t, "requests are answered", func() bool { return answered.Load() > before+50 })
		text := fmt.Sprintf(reloadable, r.db.url, version) + streams
		if version%2 == 1 {
			text = strings.Replace(text, "queries:\n", "  - {path: /extra, sql: 'SELECT n FROM generate_series(1, 9) AS n', key: n}\nqueries:\n", 1)
		}
		r.write(t, text)
		if output, code := r.reload(t); code != 0 {
			t.Fatalf("reload: exit %d, %s", code, output)
		}
		for _, path := range []string{"numbers?limit=1", "now"} {
			if a := fetch(t, r.URL(path)); !strings.Contains(string(a.body), fmt.Sprintf(`"version":%d}`, version)) {
				t.Errorf("%s after reload %d: %s", path, version, a.body)
			}
		}
		if a := fetch(t, r.URL("extra")); a.status != []int{404, 200}[version%2] {
			t.Errorf("/extra after reload %d: %d", version, a.status)
		}
	}
	stop()
	clients.Wait()
	slices.Sort(stored)
	eventually(t, "each acknowledged record is stored once", func() bool { return slices.Equal(r.db.ids(t), stored) })
	if n := metric(t, r.Spillway, `spillway_feed_windows{feed="/kept"}`); n != 1 {
		t.Errorf("the unchanged feed has %v windows", n)
	}
}

// TestReloadRefused: a configuration that cannot be applied changes nothing, and the reason
// names what is wrong.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	r := newReloadedServer(t, readings)
	good := fmt.Sprintf(reloadable, r.db.url, 0) + readings
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
			if a := fetch(t, r.URL(path)); a.status != 200 {
				t.Errorf("%s: afterwards /%s answers %d %s", c.to, path, a.status, a.body)
			}
		}
	}
	if a := post(t, r.URL("readings"), `{"id":1}`); a.status != 200 {
		t.Errorf("readings: %d %s", a.status, a.body)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log says why the signal has changed nothing", func() bool {
		return strings.Contains(r.Log(t), "nothing has changed") && strings.Contains(r.Log(t), "widow")
	})
	if r.PID() != pid || !isReady(t, r.Admin) {
		t.Error("the process has not survived SIGHUP")
	}
}

// TestReloadSettings: keys and CORS origins change with a signal, and reloads at the same time
// follow each other. A reload while the process stops does not disturb it.
func TestReloadSettings(t *testing.T) {
	t.Parallel()
	r := newReloadedServer(t, readings)
	const key = "0123456789abcdef"
	text := strings.Replace(fmt.Sprintf(reloadable, r.db.url, 1), "http: {", "http: {cors_origins: ['https://a.example'], ", 1) + readings
	r.write(t, "keys: ["+key+"]\n"+text)
	if err := syscall.Kill(r.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a key is required", func() bool { return post(t, r.URL("readings"), `{"id":1}`).status == 401 })
	if a := post(t, r.URL("readings"), `{"id":2}`, "Authorization", "Bearer "+key, "Origin", "https://a.example"); a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("with the key: %d %v %s", a.status, a.header, a.body)
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
	r.write(t, fmt.Sprintf(reloadable, r.db.url, 2)+readings)
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
	db, gone := postgresDatabase(t, shared.postgres), postgresDatabase(t, shared.postgres)
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(queries string) {
		t.Helper()
		text := fmt.Sprintf("database: %s\nhttp: {drain_timeout: 10ms}\nqueries: [{path: /now, sql: SELECT 1 AS n}%s]\n", db.url, queries)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(", {path: /slow, database: '%s', sql: SELECT 1 AS n FROM pg_sleep(1)}", gone.url))
	s := apptest.Serve(t, shared.binary, file)
	s.WaitReady(t)
	pool := fmt.Sprintf(`spillway_pool_connections_max{database=%q}`, gone.url)
	slow := make(chan answer, 1)
	go func() { slow <- fetch(t, s.URL("slow")) }()
	eventually(t, "a request waits", func() bool { return metric(t, s, `spillway_query_waiting{query="/slow"}`) == 1 })
	if metric(t, s, pool) == 0 {
		t.Fatalf("no metric %s", pool)
	}
	write("")
	if stdout, stderr, code := spillway(t, "config", "reload", file, "--admin", strings.TrimPrefix(s.Admin, "http://")); code != 0 {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	if a := <-slow; a.status != 200 {
		t.Errorf("/slow: %d %s", a.status, a.body)
	}
	eventually(t, "the database is closed", func() bool { return metric(t, s, pool) == 0 })
}
