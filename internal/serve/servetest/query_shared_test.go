package servetest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// TestQueriesThroughPgBouncer runs testQueries through a pooler in transaction mode, which
// sends each statement over any of its connections.
func TestQueriesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, recordRows)
	bouncer := apptest.PgBouncer(t, postgres.Get(t), "transaction")
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf(queries, "SELECT 1 FROM pg_sleep(0.01)", anyApp), strings.Replace(database, postgres.Get(t).Addr(), bouncer.Addr(), 1))
	testQueries(t, s.URL(""))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 50 {
				path := fmt.Sprintf("slow?low=%d", -10*i-j%7-2)
				if a, err := apptest.TryFetch(t.Context(), http.DefaultClient, s.URL(path)); err != nil || string(a.Body) != `{"data":[{"n":6}]}` {
					t.Errorf("%s: %d %s, %v", path, a.Status, a.Body, err)
				}
			}
		})
	}
	group.Wait()
	if err := bouncer.Stop(); err != nil { // an error if the pooler has crashed
		t.Error(err)
	}
}

// alone is a query that returns whether it is the only execution on the database server.
const alone = `queries:
  - path: /alone
    sql: SELECT pg_try_advisory_xact_lock(:k) AS alone, pg_sleep(0.05)::text AS slept, current_database() AS name
    params: {k: integer}
    ttl: 200ms
    stale: 300ms
    cache: redis
`

// TestExpiryOnTwoServers lets answers expire under load on two servers with one Redis. There
// is at most one execution per key at a time, and one per TTL.
func TestExpiryOnTwoServers(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	database, store := postgres.Get(t).CreateDatabase(t), apptest.Redis(t)
	servers := []*apptest.Spillway{
		apptest.ServePatiently(t, &binary, alone, database, "--redis", store.URL("")),
		apptest.ServePatiently(t, &binary, alone, database, "--redis", store.URL("")),
	}
	const keys = 3
	begin := time.Now()
	executed := func() (executions float64) {
		for _, s := range servers {
			executions += apptest.Metric(t, s, `spillway_query_executions_total{query="/alone"}`)
		}
		return executions
	}
	var enough atomic.Bool
	var group sync.WaitGroup
	for i := range 24 {
		group.Go(func() {
			path := servers[i%2].URL(fmt.Sprintf("alone?k=%d", i%keys))
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for ; !enough.Load(); <-pace.C {
				if a, err := apptest.TryFetch(t.Context(), http.DefaultClient, path); err != nil || !strings.Contains(string(a.Body), `"alone":true`) {
					t.Errorf("%d %s, %v", a.Status, a.Body, err)
					return
				}
			}
		})
	}
	apptest.Await(t, "answers have expired several times", func() bool { return executed() >= keys*8 })
	enough.Store(true)
	group.Wait()
	took := time.Since(begin)
	executions, answers := executed(), 0.0
	for _, s := range servers {
		for _, source := range []string{"memory", "stale", "waited"} {
			answers += apptest.Metric(t, s, `spillway_query_answers_total{query="/alone",source="`+source+`"}`)
		}
	}
	// Each of the eight clients of a key waits for an execution, or gets its answer.
	most := keys * (float64(took/(200*time.Millisecond)) + 1)
	if executions > most || answers < executions {
		t.Errorf("%v executions and %v answers without one in %v, want at most %v executions and fewer of them than answers", executions, answers, took, most)
	}

	// The same statement on another database has its own cached answer.
	other := apptest.ServePatiently(t, &binary, alone, emptyDatabase(t), "--redis", store.URL(""))
	one, two := apptest.Fetch(t, servers[0].URL("alone?k=9")), apptest.Fetch(t, other.URL("alone?k=9"))
	if one.Status != http.StatusOK || two.Status != http.StatusOK || string(one.Body) == string(two.Body) {
		t.Errorf("two databases with one Redis: %s and %s", one.Body, two.Body)
	}
}
