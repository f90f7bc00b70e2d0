package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"spillway/internal/apptest"
)

// groupState is the readiness of a group.
type groupState struct {
	Ready   bool
	Reasons []struct {
		Name, Reason string
		Serves       bool
		Since        time.Time
	}
}

// readyz returns the status of a path of the admin listener, and what it says of a part; "" if
// nothing.
func readyz(t *testing.T, s *apptest.Spillway, path, part string) (status int, reason string) {
	t.Helper()
	a := fetch(t, s.Admin+path)
	var state groupState
	if err := json.Unmarshal(a.body, &state); err != nil || state.Ready != (a.status == 200) {
		t.Fatalf("%s: %d %s %v", path, a.status, a.body, err)
	}
	for _, r := range state.Reasons {
		if age := time.Since(r.Since); age < 0 || age > 10*time.Minute || r.Reason == "" {
			t.Errorf("%s: %+v", path, r)
		}
		if r.Name == part {
			reason = fmt.Sprint(r.Serves, " ", r.Reason)
		}
	}
	return a.status, reason
}

// TestReadyNeighbour: a stream that has filled its share of the spool is named, and nothing
// else is affected.
func TestReadyNeighbour(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := postgresDatabase(t, server)
	db.query(t, "CREATE TABLE notes (note text); CREATE TABLE others (note text)")
	const stream = "  - {path: /%[1]s, table: %[1]s, ack: spool, columns: {note: {type: text, max_length: 100000}}%[2]s}\n"
	s := serveQueries(t, "streams:\n"+fmt.Sprintf(stream, "notes", ", spool_bytes: 2097152")+fmt.Sprintf(stream, "others", ""), db.url)
	server.Kill()
	body := fmt.Sprintf(`{"note":%q}`, strings.Repeat("x", 60_000))
	var seen []string // what is said of the stream, without numbers
	for range 100 {
		status := post(t, s.URL("notes"), body).status
		_, reason := readyz(t, s, "/readyz/writes", "POST /notes")
		kind, _, _ := strings.Cut(reason, ":")
		if len(seen) == 0 || seen[len(seen)-1] != kind {
			seen = append(seen, kind)
		}
		if status == 503 {
			break
		}
	}
	if len(seen) < 2 || seen[0] != "" || seen[1] != "true nearly full" {
		t.Errorf("the share fills: %q", seen)
	}
	for _, path := range []string{"/readyz", "/readyz/reads", "/readyz/writes", "/readyz/popups"} {
		if status, reason := readyz(t, s, path, "POST /others"); status != 200 || reason != "" {
			t.Errorf("%s: %d, the other stream: %q", path, status, reason)
		}
	}
	if a := post(t, s.URL("others"), `{"note":"x"}`); a.status != 202 {
		t.Errorf("the other stream: %d %s", a.status, a.body)
	}
}

// TestReadyParts: while the database of feeds and queries is down, reads are ready until the
// rows are older than stale_max, writes to another database are ready, and all parts that do
// not serve are named without SQL and secrets. Then readiness returns without a request.
func TestReadyParts(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := postgresDatabase(t, server)
	db.query(t, "CREATE TABLE secret_table (n int PRIMARY KEY); INSERT INTO secret_table SELECT generate_series(1, 500)")
	writes := sqliteDatabase(t)
	writes.query(t, "CREATE TABLE readings (id bigint NOT NULL)")
	reads, err := url.Parse(db.url)
	if err != nil {
		t.Fatal(err)
	}
	reads.User = url.UserPassword(reads.User.Username(), "hunter2")
	s := serveQueries(t, `feeds: [{path: /numbers, sql: SELECT n FROM secret_table, key: n, stale_max: 5s}]
queries: [{path: /count, sql: SELECT count(*) AS n FROM secret_table}]
streams: [{path: /readings, table: readings, database: '`+writes.url+`', columns: {id: integer}}]
`, reads.String())
	fetch(t, s.URL("numbers"))
	server.Kill()
	eventually(t, "the query is named", func() bool {
		status, reason := readyz(t, s, "/readyz/reads", "/count")
		if status != 200 {
			t.Errorf("reads answer %d while rows are fresh", status)
		}
		return strings.HasPrefix(reason, "false the database does not answer: connection refused")
	})
	if status, reason := readyz(t, s, "/readyz", "/numbers"); status != 200 || !strings.HasPrefix(reason, "true ") {
		t.Errorf("the feed: %d %q", status, reason)
	}
	eventually(t, "rows are too old", func() bool {
		status, reason := readyz(t, s, "/readyz/reads", "/numbers")
		return status == 503 && strings.HasPrefix(reason, "false ")
	})
	for _, path := range []string{"/readyz", "/readyz/writes"} {
		a := fetch(t, s.Admin+path)
		if a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		for _, secret := range []string{"hunter2", "secret_table", "SELECT", "postgres"} {
			if strings.Contains(string(a.body), secret) {
				t.Errorf("%s shows %s: %s", path, secret, a.body)
			}
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready without a request", func() bool {
		a := fetch(t, s.Admin+"/readyz/reads")
		return a.status == 200 && string(a.body) == "{\"ready\":true}\n"
	})
}

// TestMetricConventions checks names and help of all metrics of the freight app, and what is
// running.
func TestMetricConventions(t *testing.T) {
	t.Parallel()
	s := apptest.Serve(t, shared.binary)
	s.WaitReady(t)
	for _, path := range []string{"goodslist", "popup?user=7", "hello"} {
		fetch(t, s.URL(path))
	}
	metrics := string(fetch(t, s.Admin+"/metrics").body)
	problems, err := promlint.New(strings.NewReader(metrics)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "spillway_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for line := range strings.Lines(metrics) {
		if help, ok := strings.CutPrefix(line, "# HELP spillway_"); ok && !strings.HasSuffix(strings.TrimSpace(help), ".") {
			t.Errorf("help without a full stop: %s", help)
		}
	}
	if !strings.Contains(metrics, "\nspillway_build_info{goversion=\"go1.") || !strings.Contains(metrics, ",revision=\"") || !strings.Contains(metrics, ",version=\"") {
		t.Error("no spillway_build_info")
	}
}
