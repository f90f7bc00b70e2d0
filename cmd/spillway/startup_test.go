package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
)

// isolated has parts whose databases answer, reject them, cannot be reached, or do not exist.
// %[1]s is a database, %[2]s one that cannot be reached, %[3]s a file in a directory that does
// not exist.
const isolated = `database: %[1]s
probes: true
feeds:
  - {path: /good, sql: 'SELECT n FROM generate_series(1, 50) AS n', key: n}
  - {path: /rejected, aliases: [/v1/rejected], sql: SELECT id FROM late_table, key: id}
  - {path: /unreachable, sql: SELECT id FROM t, key: id, database: "%[2]s"}
queries:
  - {path: /late, sql: SELECT id FROM late_table}
  - {path: /answer, sql: SELECT 42 AS n}
streams:
  - {path: /rejected, table: late_table, columns: {id: integer}}
  - {path: /readings, table: readings, columns: {id: integer}, database: "%[3]s"}
popups:
  path: /popup
  database: "%[3]s"
`

// notReady returns the reasons of /readyz by name.
func notReady(t *testing.T, s *apptest.Spillway) map[string]string {
	t.Helper()
	var body struct {
		Reasons []struct{ Name, Reason string }
	}
	a := fetch(t, s.Admin+"/readyz")
	if err := json.Unmarshal(a.body, &body); err != nil {
		t.Fatalf("readyz: %d %s", a.status, a.body)
	}
	reasons := map[string]string{}
	for _, r := range body.Reasons {
		reasons[r.Name] = r.Reason
	}
	return reasons
}

// wantNotStarted checks the answers of the parts that cannot start.
func wantNotStarted(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	refused := map[string]answer{}
	for _, path := range []string{"rejected", "v1/rejected", "unreachable", "late", "popup?user=1"} {
		refused["GET /"+path] = fetch(t, s.URL(path))
	}
	for _, path := range []string{"rejected", "readings", "popup/click"} {
		refused["POST /"+path] = post(t, s.URL(path), `{"id":1}`)
	}
	for request, a := range refused {
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		if a.status != 503 || err != nil || seconds < 1 || seconds > 15 || !strings.Contains(string(a.body), `"urn:spillway:problem:not-started"`) {
			t.Errorf("%s: %d %v %s", request, a.status, a.header, a.body)
		}
		if strings.Contains(string(a.body), "late_table") || strings.Contains(string(a.body), "127.0.0.1:1") {
			t.Errorf("%s tells the client what the database says: %s", request, a.body)
		}
	}
}

// TestPartsStartAlone: a feed, a query, a stream or popups that cannot start answer 503 and
// are named by /readyz, while the rest is served. They are served once their cause is fixed.
func TestPartsStartAlone(t *testing.T) {
	t.Parallel()
	db := postgresDatabase(t, shared.postgres)
	missing := filepath.Join(t.TempDir(), "missing")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	own := "sqlite:" + filepath.Join(missing, "own.db")
	if err := os.WriteFile(file, fmt.Appendf(nil, isolated, db.url, "postgres://nobody@127.0.0.1:1/none", own), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, shared.binary, file)
	c := client(t)
	eventually(t, "the public listener answers", func() bool {
		a, err := tryFetch(t.Context(), c, s.URL("hello"))
		return err == nil && a.status == 200
	})
	eventually(t, "what is in order is served", func() bool {
		return fetch(t, s.URL("good")).status == 200 && fetch(t, s.URL("answer")).status == 200
	})
	wantNotStarted(t, s)
	reasons := notReady(t, s)
	for name, want := range map[string]string{
		"/rejected": "cannot start: ", "/unreachable": "waiting for the database: connection refused", "/late": "cannot start: SQLSTATE 42P01",
		"POST /rejected": "cannot start: ", "POST /readings": "waiting for the database: ", "/popup": "waiting for the database: ",
	} {
		reason := reasons[name]
		if !strings.HasPrefix(reason, want) || strings.Contains(reason, "late_table") || strings.Contains(reason, "127.0.0.1:1") || strings.Contains(reason, missing) {
			t.Errorf("/readyz says of %s %q, want %q", name, reason, want)
		}
		delete(reasons, name)
	}
	if len(reasons) > 0 {
		t.Errorf("/readyz also names %v", reasons)
	}
	for _, text := range []string{"late_table", "127.0.0.1:1", missing} {
		if !strings.Contains(s.Log(t), text) {
			t.Errorf("the log does not say %s", text)
		}
	}

	db.query(t, "CREATE TABLE late_table (id bigint PRIMARY KEY)")
	db.query(t, "INSERT INTO late_table VALUES (7)")
	if err := os.Mkdir(missing, 0o700); err != nil {
		t.Fatal(err)
	}
	sqliteFile(filepath.Join(missing, "own.db")).query(t, "CREATE TABLE readings (id integer)")
	eventually(t, "everything but the unreachable feed is ready", func() bool {
		reasons := notReady(t, s)
		return len(reasons) == 1 && reasons["/unreachable"] != ""
	})
	for _, path := range []string{"rejected", "v1/rejected", "late"} {
		if a := fetch(t, s.URL(path)); a.status != 200 || !strings.Contains(string(a.body), `{"id":7}`) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := post(t, s.URL("readings"), `{"id":1}`); a.status != 200 {
		t.Errorf("readings: %d %s", a.status, a.body)
	}
	if a := post(t, s.URL("rejected"), `{"id":8}`); a.status != 200 {
		t.Errorf("POST rejected: %d %s", a.status, a.body)
	}
	if a := fetch(t, s.URL("popup?user=1")); a.status != 204 {
		t.Errorf("popup: %d %s", a.status, a.body)
	}
	if n := metric(t, s, `spillway_http_requests_total{code="503",route="/late"}`); n != 1 {
		t.Errorf("%v refusals of /late are counted, want 1", n)
	}
	if n := metric(t, s, `spillway_http_requests_total{code="200",route="/late"}`); n != 1 {
		t.Errorf("%v answers of /late are counted, want 1", n)
	}
}

// TestStrict: with --strict a part that does not start ends the process, with 2 if its
// database rejects it, so that a service manager does not start it for ever.
func TestStrict(t *testing.T) {
	t.Parallel()
	url := shared.postgres.CreateDatabase(t)
	good := "feeds: [{path: /good, sql: 'SELECT n FROM generate_series(1, 50) AS n', key: n}]\n"
	for _, c := range []struct {
		database, text, says string
		code                 int
	}{
		{url, "feeds: [{path: /f, sql: SELECT id FROM nowhere, key: id}]\n", "nowhere", exit.Usage},
		{url, good + "streams: [{path: /s, table: nowhere, columns: {id: integer}}]\n", "nowhere", exit.Usage},
		{url, good + "popups: {path: /p, attributes_sql: 'SELECT 1 AS a FROM nowhere WHERE 1 = :user', user_type: integer, attributes: {a: integer}}\n", "nowhere", exit.Usage},
		{"postgres://nobody@127.0.0.1:1/none", good, "127.0.0.1:1", exit.Error},
		{"sqlite:/nonexistent/x.db", "queries: [{path: /q, sql: SELECT 1 AS n}]\n", "/nonexistent", exit.Error},
	} {
		file := filepath.Join(t.TempDir(), "spillway.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := spillway(t, "serve", "--strict", file, "--database", c.database, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir())
		if last := stderr[strings.LastIndex(strings.TrimSpace(stderr), "\n")+1:]; code != c.code || !strings.Contains(last, c.says) {
			t.Errorf("exit %d, want %d and %q:\n%s", code, c.code, c.says, stderr)
		}
	}
}
