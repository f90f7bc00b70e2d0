package servetest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// eventFeeds are feeds with parameters over a table with 30 rows for each of 200 values.
const eventFeeds = `pool: {max: 5, statement_timeout: 10s}
feeds:
  - path: /all
    sql: SELECT id FROM events
    key: id
  - path: /since
    sql: SELECT id, at FROM events WHERE at >= :t
    key: id
    params: {t: timestamp}
  - path: /named
    sql: SELECT id FROM events WHERE name LIKE :name
    key: id
    params: {name: text}
  - path: /slow
    sql: SELECT id FROM events WHERE v = :v AND CASE WHEN :v < 13 THEN true ELSE (SELECT true FROM pg_sleep(:v)) END
    key: id
    params: {v: integer}
  - path: /value
    sql: SELECT id, v FROM events, (SELECT 1 FROM pg_sleep(0.02)) AS slow WHERE v = :v
    key: id
    params: {v: integer}
    timeout: 5m
`

// TestFeedsWithParameters requests bad values, and then more values than there are windows.
func TestFeedsWithParameters(t *testing.T) {
	t.Parallel()
	s := serveEvents(t)
	t.Run("bad value", func(t *testing.T) { testBadValue(t, s) })
	t.Run("more values than windows", func(t *testing.T) { testMoreValuesThanWindows(t, s) })
}

// serveEvents serves eventFeeds from a database of its own.
func serveEvents(t *testing.T) *apptest.Spillway {
	t.Helper()
	url := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "CREATE TABLE events (id bigint PRIMARY KEY, v bigint NOT NULL, name text NOT NULL, at timestamptz NOT NULL)")
	apptest.Execute(t, conn, "INSERT INTO events SELECT n, n % 200, 'name ' || n, '2016-12-01' FROM generate_series(1, 6000) AS n")
	apptest.Execute(t, conn, "CREATE INDEX ON events (v, id)")
	apptest.Execute(t, conn, "ANALYZE events")
	return apptest.ServePatiently(t, &binary, eventFeeds, url)
}

// testBadValue requests values that the database rejects, and one whose statement
// always times out. They are the client's mistake or the statement's: the process stays ready,
// answers other values, and forgets these.
func testBadValue(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	for _, c := range []struct {
		path   string
		status int
	}{
		{"since?t=0000-01-01T00:00:00Z", http.StatusBadRequest},
		{"since?t=2016-01-01T00:00:00Z", http.StatusOK},
		{"since?t=0000-01-01T00:00:00Z", http.StatusBadRequest},
		{`named?name=%5C`, http.StatusBadRequest},
		{"named?name=name%25", http.StatusOK},
		{"slow?v=60", http.StatusServiceUnavailable},
		{"slow?v=1", http.StatusOK},
		{"all", http.StatusOK},
	} {
		a := apptest.Fetch(t, s.URL(c.path))
		if a.Status != c.status {
			t.Errorf("%s: %d %s, want %d", c.path, a.Status, a.Body, c.status)
		}
		ready := apptest.Fetch(t, s.Admin+"/readyz")
		if ready.Status != http.StatusOK {
			t.Errorf("after %s: not ready: %s", c.path, ready.Body)
		}
		for _, text := range []string{"SQLSTATE", "ERROR", "timestamptz", "LIKE", "cancel"} {
			if strings.Contains(string(a.Body)+string(ready.Body), text) {
				t.Errorf("after %s, the text of the database is told: %s %s", c.path, a.Body, ready.Body)
			}
		}
	}
	apptest.Await(t, "the bad values have no windows", func() bool {
		return apptest.Metric(t, s, `spillway_feed_windows{feed="/since"}`) == 1 && apptest.Metric(t, s, `spillway_feed_windows{feed="/named"}`) == 1 &&
			apptest.Metric(t, s, `spillway_feed_windows{feed="/slow"}`) == 1
	})
}

// testMoreValuesThanWindows has 150 clients ask for 150 values over 100 windows, with
// statements of 20 ms, and 20 more for one of them. Nobody is refused, and the value that is
// asked for most has a window.
func testMoreValuesThanWindows(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	rounds := 20
	if testing.Short() {
		rounds = 8
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	var refused, wrong atomic.Int64
	for i := range 170 {
		v := i
		if i >= 150 {
			v = 7
		}
		all.Go(func() {
			for range rounds {
				a, err := apptest.TryFetch(t.Context(), client, s.URL(fmt.Sprintf("value?v=%d", v)))
				switch {
				case err != nil || a.Status != http.StatusOK:
					refused.Add(1)
				case strings.Count(string(a.Body), fmt.Sprintf(`"v":%d}`, v)) != 10:
					wrong.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := refused.Load(); n > 0 {
		t.Errorf("%d of %d requests are refused", n, 170*rounds)
	}
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d answers are wrong", n)
	}
	if a := apptest.Fetch(t, s.URL("value?v=7")); a.Header.Get("Spillway-Source") != "window" {
		t.Errorf("the value that is asked for most is read from the %s", a.Header.Get("Spillway-Source"))
	}
	if n := apptest.Metric(t, s, `spillway_feed_windows{feed="/value"}`); n != 100 {
		t.Errorf("%v windows", n)
	}
}
