package servetest

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"spillway/internal/apptest"
)

// TestQueriesOnMariaDB runs testQueries, a statement in MySQL's syntax, and requests that are
// cancelled while their statement runs.
func TestQueriesOnMariaDB(t *testing.T) {
	t.Parallel()
	server := mariadb.Get(t)
	createMariaDB(t, "queries")
	db, err := sql.Open("mysql", "root@tcp("+server.Addr()+")/queries")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for statement := range strings.SplitSeq(strings.TrimSuffix(recordRows, ";"), ";\n") {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(queries, "SELECT 1", inApps) + `  - path: /minus
    sql: "SELECT 5--:a AS n # :no parameter"
    params: {a: integer}
  - path: /sleep
    sql: SELECT SLEEP(:s) AS slept
    params: {s: integer}
    timeout: 5m
http: {loops: 1} # each loop has a statement of its own
`
	s := apptest.ServePatiently(t, &binary, text, server.URL("queries"))
	testQueries(t, s.URL(""))
	if a := apptest.Fetch(t, s.URL("minus?a=1")); string(a.Body) != `{"data":[{"n":6}]}` {
		t.Errorf("5--1: %d %s", a.Status, a.Body)
	}

	// Ten requests share one statement. It continues while a client waits, and is cancelled
	// in the database when the last client has left.
	running := func() (n int) {
		row := db.QueryRowContext(t.Context(), "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'")
		if err := row.Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, leave := context.WithCancel(t.Context())
	last, leaveLast := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var left, staying sync.WaitGroup
	for i := range 10 {
		group, ctx := &left, ctx
		if i == 0 {
			group, ctx = &staying, last
		}
		group.Go(func() {
			if a, err := apptest.TryFetch(ctx, client, s.URL("sleep?s=50")); err == nil {
				t.Errorf("client %d left and received an answer: %s", i, a.Body)
			}
		})
	}
	const waiting = `spillway_query_waiting{query="/sleep"}`
	apptest.Await(t, "all wait for one statement", func() bool { return apptest.Metric(t, s, waiting) == 10 && running() == 1 })
	leave()
	left.Wait()
	apptest.Await(t, "one request waits", func() bool { return apptest.Metric(t, s, waiting) == 1 })
	if n := running(); n != 1 {
		t.Errorf("%d statements run while one request waits", n)
	}
	leaveLast()
	staying.Wait()
	apptest.Await(t, "the statement is cancelled", func() bool { return running() == 0 })
	if n := apptest.Metric(t, s, `spillway_query_executions_total{query="/sleep"}`); n != 1 {
		t.Errorf("%v executions", n)
	}
}
