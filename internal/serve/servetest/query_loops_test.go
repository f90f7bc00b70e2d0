package servetest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// loopQueries has a query that is executed for each request. %[2]d changes nothing but the file.
const loopQueries = `database: %[1]s
probes: true
http: {drain_timeout: 1m}
pool: {max: 6}
queries:
  - {path: /item, sql: 'SELECT * FROM items WHERE id = :id', params: {id: integer}, one: true}
  - {path: /part, sql: 'SELECT %[2]d AS version, 12 / (:id %% 5) AS part', params: {id: integer}, one: true}
`

// queryCrowd are clients that ask a server until they are stopped.
type queryCrowd struct {
	group    sync.WaitGroup
	stopped  atomic.Bool
	answered atomic.Int64
}

// ask has n clients ask. Each answer must be right, whatever happens meanwhile.
func (c *queryCrowd) ask(t *testing.T, s *apptest.Spillway, n int, forms []string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	t.Cleanup(client.CloseIdleConnections)
	for worker := range n {
		c.group.Go(func() {
			for i := worker; !c.stopped.Load(); i += n {
				id := i%100 + 1
				path, status := fmt.Sprintf("item?id=%d", id), 200
				if i%3 == 0 {
					path = fmt.Sprintf("part?id=%d", id)
					if id%5 == 0 {
						status = 400 // a division by zero
					}
				}
				a, err := apptest.TryFetch(context.WithoutCancel(t.Context()), client, s.URL(path))
				if err != nil || a.Status != status || i%3 > 0 && !slices.ContainsFunc(forms, func(form string) bool { return string(a.Body) == fmt.Sprintf(form, id) }) {
					t.Errorf("%s: %d %s, %v", path, a.Status, a.Body, err)
					return
				}
				c.answered.Add(1)
			}
		})
	}
}

// more returns when so many more requests have been answered.
func (c *queryCrowd) more(t *testing.T, n int64) {
	t.Helper()
	before := c.answered.Load()
	apptest.Await(t, "more answers", func() bool { return t.Failed() || c.answered.Load() >= before+n })
}

// TestQueriesInLoops: every answer is right while the table changes, connections are killed and the configuration is reloaded.
func TestQueriesInLoops(t *testing.T) {
	t.Parallel()
	r := newReloadedServer(t, "")
	conn, err := pgx.Connect(t.Context(), r.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "CREATE TABLE items (id bigint PRIMARY KEY, name text)")
	apptest.Execute(t, conn, "INSERT INTO items SELECT i, 'n' || i FROM generate_series(1, 100) AS s(i)")
	r.write(t, fmt.Sprintf(loopQueries, r.db.URL, 0))
	if output, code := r.reload(t); code != 0 {
		t.Fatal(output)
	}
	var crowd queryCrowd
	crowd.ask(t, r.Spillway, 8, []string{`{"id":%[1]d,"name":"n%[1]d"}`, `{"id":%[1]d,"name":"n%[1]d","more":true}`})
	crowd.more(t, 200)
	for i := range 3 {
		apptest.Execute(t, conn, "ALTER TABLE items ADD more boolean NOT NULL DEFAULT true")
		crowd.more(t, 100)
		apptest.Execute(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'spillway' AND datname = current_database()")
		crowd.more(t, 100)
		apptest.Execute(t, conn, "ALTER TABLE items DROP more")
		crowd.more(t, 100)
		r.write(t, fmt.Sprintf(loopQueries, r.db.URL, i+1))
		if output, code := r.reload(t); code != 0 {
			t.Error(output)
		}
		crowd.more(t, 100)
	}
	crowd.stopped.Store(true)
	crowd.group.Wait()
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}
