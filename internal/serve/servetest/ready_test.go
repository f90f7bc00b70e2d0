package servetest

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestReadyNeighbour: a stream that has filled its share of the spool is named, and nothing
// else is affected.
func TestReadyNeighbour(t *testing.T) {
	t.Parallel()
	server := postgres.Get(t)
	db, link := storetest.PostgresDatabase(t, server), apptest.NewForward(t, server.Addr())
	db.Query(t, "CREATE TABLE notes (note text); CREATE TABLE others (note text)")
	const stream = "  - {path: /%[1]s, table: %[1]s, ack: spool, columns: {note: {type: text, max_length: 100000}}}\n"
	s := apptest.ServePatiently(t, &binary, "spool: {bytes: 4194304}\nstreams:\n"+fmt.Sprintf(stream, "notes")+fmt.Sprintf(stream, "others"), strings.Replace(db.URL, server.Addr(), link.Addr(), 1))
	link.To("")
	body := fmt.Sprintf(`{"note":%q}`, strings.Repeat("x", 60_000))
	var seen []string // what is said of the stream, without numbers
	for range 100 {
		status := apptest.Post(t, s.URL("notes"), body).Status
		_, reason := apptest.Readyz(t, s, "/readyz/writes", "POST /notes")
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
		if status, reason := apptest.Readyz(t, s, path, "POST /others"); status != 200 || reason != "" {
			t.Errorf("%s: %d, the other stream: %q", path, status, reason)
		}
	}
	if a := apptest.Post(t, s.URL("others"), `{"note":"x"}`); a.Status != 202 {
		t.Errorf("the other stream: %d %s", a.Status, a.Body)
	}
}

// TestReadyParts: while the database of feeds and queries is down, reads are ready until the
// rows are older than stale_max, writes to another database are ready, and all parts that do
// not serve are named without SQL and secrets. Then readiness returns without a request.
func TestReadyParts(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := storetest.PostgresDatabase(t, server)
	db.Query(t, "CREATE TABLE secret_table (n int PRIMARY KEY); INSERT INTO secret_table SELECT generate_series(1, 500)")
	writes := storetest.SQLiteDatabase(t)
	writes.Query(t, "CREATE TABLE readings (id bigint NOT NULL)")
	reads, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	reads.User = url.UserPassword(reads.User.Username(), "hunter2")
	text := `feeds: [{path: /numbers, sql: SELECT n FROM secret_table, key: n, stale_max: 1h}]
queries: [{path: /count, sql: SELECT count(*) AS n FROM secret_table}]
streams: [{path: /readings, table: readings, database: '` + writes.URL + `', columns: {id: integer}}]
`
	s := apptest.ServePatiently(t, &binary, text, reads.String())
	strict := apptest.ServePatiently(t, &binary, strings.Replace(text, "stale_max: 1h", "stale_max: 1s", 1), reads.String())
	apptest.Fetch(t, s.URL("numbers"))
	apptest.Fetch(t, strict.URL("numbers"))
	server.Kill()
	apptest.Await(t, "the query is named", func() bool {
		status, reason := apptest.Readyz(t, s, "/readyz/reads", "/count")
		if status != 200 {
			t.Errorf("reads answer %d while rows are fresh", status)
		}
		return strings.HasPrefix(reason, "false the database does not answer: connection refused")
	})
	if status, reason := apptest.Readyz(t, s, "/readyz", "/numbers"); status != 200 || !strings.HasPrefix(reason, "true ") {
		t.Errorf("the feed: %d %q", status, reason)
	}
	apptest.Await(t, "rows are too old", func() bool {
		status, reason := apptest.Readyz(t, strict, "/readyz/reads", "/numbers")
		return status == 503 && strings.HasPrefix(reason, "false ")
	})
	for _, path := range []string{"/readyz", "/readyz/writes"} {
		a := apptest.Fetch(t, strict.Admin+path)
		if a.Status != 200 {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
		for _, secret := range []string{"hunter2", "secret_table", "SELECT", "postgres"} {
			if strings.Contains(string(a.Body), secret) {
				t.Errorf("%s shows %s: %s", path, secret, a.Body)
			}
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "ready without a request", func() bool {
		a := apptest.Fetch(t, strict.Admin+"/readyz/reads")
		return a.Status == 200 && string(a.Body) == "{\"ready\":true}\n"
	})
}

// TestMetricConventions checks names and help of the metrics of all kinds of parts, and what is
// running.
func TestMetricConventions(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	for _, sql := range append(thingRows, "CREATE TABLE late (id integer PRIMARY KEY)") {
		db.Query(t, sql)
	}
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf("probes: true\n"+described, "IN (:ids)"), db.URL)
	for _, path := range []string{"things", "one?id=1", "popup?user=7", "hello"} {
		apptest.Fetch(t, s.URL(path))
	}
	metrics := string(apptest.Fetch(t, s.Admin+"/metrics").Body)
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
