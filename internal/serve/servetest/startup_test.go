package servetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
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
	a := apptest.Fetch(t, s.Admin+"/readyz")
	if err := json.Unmarshal(a.Body, &body); err != nil {
		t.Fatalf("readyz: %d %s", a.Status, a.Body)
	}
	reasons := map[string]string{}
	for _, r := range body.Reasons {
		reasons[r.Name] = r.Reason
	}
	return reasons
}

// notReadyOnceAsked is notReady as soon as each database was asked.
func notReadyOnceAsked(t *testing.T, s *apptest.Spillway) (reasons map[string]string) {
	t.Helper()
	apptest.Await(t, "each database was asked", func() bool {
		reasons = notReady(t, s)
		return !slices.Contains(slices.Collect(maps.Values(reasons)), "the database was not asked yet")
	})
	return reasons
}

// wantNotStarted checks the answers of the parts that cannot start.
func wantNotStarted(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	refused := map[string]apptest.Answer{}
	for _, path := range []string{"rejected", "v1/rejected", "unreachable", "late", "popup?user=1"} {
		refused["GET /"+path] = apptest.Fetch(t, s.URL(path))
	}
	for _, path := range []string{"rejected", "readings", "popup/click"} {
		refused["POST /"+path] = apptest.Post(t, s.URL(path), `{"id":1}`)
	}
	for request, a := range refused {
		seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if a.Status != 503 || err != nil || seconds < 1 || seconds > 15 || !strings.Contains(string(a.Body), `"urn:spillway:problem:not-started"`) {
			t.Errorf("%s: %d %v %s", request, a.Status, a.Header, a.Body)
		}
		if strings.Contains(string(a.Body), "late_table") || strings.Contains(string(a.Body), "127.0.0.1:1") {
			t.Errorf("%s tells the client what the database says: %s", request, a.Body)
		}
	}
}

// TestPartsStartAlone: a feed, a query, a stream or popups that cannot start answer 503 and
// are named by /readyz, while the rest is served. They are served once their cause is fixed.
func TestPartsStartAlone(t *testing.T) {
	t.Parallel()
	db := storetest.PostgresDatabase(t, postgres.Get(t))
	missing := filepath.Join(t.TempDir(), "missing")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	own := "sqlite:" + filepath.Join(missing, "own.db")
	if err := os.WriteFile(file, []byte(apptest.Patient(fmt.Sprintf(isolated, db.URL, "postgres://nobody@127.0.0.1:1/none", own))), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, binary.Path(t), file)
	c := apptest.NewClient(t)
	apptest.Await(t, "the public listener answers", func() bool {
		a, err := apptest.TryFetch(t.Context(), c, s.URL("hello"))
		return err == nil && a.Status == 200
	})
	apptest.Await(t, "what is in order is served", func() bool {
		return apptest.Fetch(t, s.URL("good")).Status == 200 && apptest.Fetch(t, s.URL("answer")).Status == 200
	})
	wantNotStarted(t, s)
	reasons := notReadyOnceAsked(t, s)
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

	db.Query(t, "CREATE TABLE late_table (id bigint PRIMARY KEY)")
	db.Query(t, "INSERT INTO late_table VALUES (7)")
	if err := os.Mkdir(missing, 0o700); err != nil {
		t.Fatal(err)
	}
	storetest.SQLiteFile(filepath.Join(missing, "own.db")).Query(t, "CREATE TABLE readings (id integer)")
	apptest.Await(t, "everything but the unreachable feed is ready", func() bool {
		reasons := notReady(t, s)
		return len(reasons) == 1 && reasons["/unreachable"] != ""
	})
	for _, path := range []string{"rejected", "v1/rejected", "late"} {
		if a := apptest.Fetch(t, s.URL(path)); a.Status != 200 || !strings.Contains(string(a.Body), `{"id":7}`) {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := apptest.Post(t, s.URL("readings"), `{"id":1}`); a.Status != 200 {
		t.Errorf("readings: %d %s", a.Status, a.Body)
	}
	if a := apptest.Post(t, s.URL("rejected"), `{"id":8}`); a.Status != 200 {
		t.Errorf("POST rejected: %d %s", a.Status, a.Body)
	}
	if a := apptest.Fetch(t, s.URL("popup?user=1")); a.Status != 204 {
		t.Errorf("popup: %d %s", a.Status, a.Body)
	}
	apptest.AwaitState(t, "one refusal and one answer of /late are counted", func() (string, bool) {
		refusals, answers := apptest.Metric(t, s, `spillway_http_requests_total{code="503",route="/late"}`), apptest.Metric(t, s, `spillway_http_requests_total{code="200",route="/late"}`)
		return fmt.Sprintf("%v refusals, %v answers", refusals, answers), refusals == 1 && answers == 1
	})
}

// TestServePrintedConfiguration: what `config print` prints without a file is served with the same data as without one.
func TestServePrintedConfiguration(t *testing.T) {
	t.Parallel()
	printed, stderr, code := binary.Run(t, "config", "print")
	if code != exit.OK {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(printed), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, binary.Path(t), file)
	s.WaitReady(t)
	if g := apptest.Page(t, s.URL("goodslist")); len(g.Data) != 10 || g.Data[0].ID != 200_000 {
		t.Errorf("the newest rows: %v", g.Data)
	}
	if a := apptest.Post(t, s.URL("orders"), `{"users_id": 7, "goods_name": "steel pipes"}`); a.Status != 200 {
		t.Errorf("order: %d %s", a.Status, a.Body)
	}
	if a := apptest.Fetch(t, s.URL("popup?user=7&app_version=29")); a.Status != 200 {
		t.Errorf("popup: %d %s", a.Status, a.Body)
	}
}

// TestStrict: with --strict a part that does not start ends the process, with 2 if its
// database rejects it, so that a service manager does not start it for ever.
func TestStrict(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
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
		_, stderr, code := binary.Run(t, "serve", "--strict", file, "--database", c.database, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir())
		if last := stderr[strings.LastIndex(strings.TrimSpace(stderr), "\n")+1:]; code != c.code || !strings.Contains(last, c.says) {
			t.Errorf("exit %d, want %d and %q:\n%s", code, c.code, c.says, stderr)
		}
	}
}

// TestServePortZero: the log names the addresses that are in use.
func TestServePortZero(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(apptest.Readings), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary.Path(t), "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--database", db.URL, "--data", t.TempDir(), file)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var log strings.Builder
	for lines := bufio.NewScanner(stderr); !strings.Contains(log.String(), "msg=serving") && lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
	}
	found := regexp.MustCompile(`msg=serving .*admin=(\S+)`).FindStringSubmatch(log.String())
	if found == nil || apptest.Fetch(t, "http://"+found[1]+"/livez").Status != 200 {
		t.Errorf("no admin listener is where the log says:\n%s", log.String())
	}
}

// TestPlanAccepted serves a feed that sorts a large table, because it says that this is accepted.
func TestPlanAccepted(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	db.Query(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
	db.Query(t, "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s LIMIT 20000) INSERT INTO t SELECT i, i FROM s")
	s := apptest.ServeText(t, &binary, "feeds:\n  - {path: /accepted, sql: SELECT n FROM t, key: n, plan: accept}\n", db.URL)
	if a := apptest.Fetch(t, s.URL("accepted?limit=1")); a.Status != 200 || !strings.Contains(string(a.Body), `"n":20000`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	log := s.Log(t)
	if !strings.Contains(log, "level=WARN msg=\"the plan of a feed is accepted") || !strings.Contains(log, "CREATE INDEX t_n ON t (n DESC)") {
		t.Errorf("log: %s", log)
	}
}
