package main

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
const eventFeeds = `pool: {max: 5, statement_timeout: 300ms}
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
    timeout: 20s
`

// serveEvents serves eventFeeds from a database of its own.
func serveEvents(t *testing.T) *apptest.Spillway {
	t.Helper()
	url := shared.postgres.CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	execute(t, conn, "CREATE TABLE events (id bigint PRIMARY KEY, v bigint NOT NULL, name text NOT NULL, at timestamptz NOT NULL)")
	execute(t, conn, "INSERT INTO events SELECT n, n % 200, 'name ' || n, '2016-12-01' FROM generate_series(1, 6000) AS n")
	execute(t, conn, "CREATE INDEX ON events (v, id)")
	execute(t, conn, "ANALYZE events")
	return serveQueries(t, eventFeeds, url)
}

// TestBadValueOfAParameter requests values that the database rejects, and one whose statement
// always times out. They are the client's mistake or the statement's: the process stays ready,
// answers other values, and forgets these.
func TestBadValueOfAParameter(t *testing.T) {
	t.Parallel()
	s := serveEvents(t)
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
		a := fetch(t, s.URL(c.path))
		if a.status != c.status {
			t.Errorf("%s: %d %s, want %d", c.path, a.status, a.body, c.status)
		}
		ready := fetch(t, s.Admin+"/readyz")
		if ready.status != http.StatusOK {
			t.Errorf("after %s: not ready: %s", c.path, ready.body)
		}
		for _, text := range []string{"SQLSTATE", "ERROR", "timestamptz", "LIKE", "cancel"} {
			if strings.Contains(string(a.body)+string(ready.body), text) {
				t.Errorf("after %s, the text of the database is told: %s %s", c.path, a.body, ready.body)
			}
		}
	}
	eventually(t, "the bad values have no windows", func() bool {
		return metric(t, s, `spillway_feed_windows{feed="/since"}`) == 1 && metric(t, s, `spillway_feed_windows{feed="/named"}`) == 1 &&
			metric(t, s, `spillway_feed_windows{feed="/slow"}`) == 1
	})
}

// TestMoreValuesThanWindows has 150 clients ask for 150 values over 100 windows, with
// statements of 20 ms, and 20 more for one of them. Nobody is refused, and the value that is
// asked for most has a window.
func TestMoreValuesThanWindows(t *testing.T) {
	t.Parallel()
	s := serveEvents(t)
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
			for range 20 {
				a, err := tryFetch(t.Context(), client, s.URL(fmt.Sprintf("value?v=%d", v)))
				switch {
				case err != nil || a.status != http.StatusOK:
					refused.Add(1)
				case strings.Count(string(a.body), fmt.Sprintf(`"v":%d}`, v)) != 10:
					wrong.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := refused.Load(); n > 0 {
		t.Errorf("%d of %d requests are refused", n, 170*20)
	}
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d answers are wrong", n)
	}
	if a := fetch(t, s.URL("value?v=7")); a.header.Get("Spillway-Source") != "window" {
		t.Errorf("the value that is asked for most is read from the %s", a.header.Get("Spillway-Source"))
	}
	if n := metric(t, s, `spillway_feed_windows{feed="/value"}`); n != 100 {
		t.Errorf("%v windows", n)
	}
}
