package servetest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// The replica may take two thirds of a request's timeout.
const replicated = `feeds:
  - path: /list
    sql: SELECT id, pg_is_in_recovery() AS replica FROM items
    key: id
    timeout: 15s
    stale_max: 1h
queries:
  - path: /divided
    sql: SELECT id / :by AS n, pg_is_in_recovery() AS replica FROM items WHERE id = 2
    params: {by: integer}
    timeout: 15s
    stale_max: 1h
  - path: /wait
    sql: SELECT pg_is_in_recovery() AS replica, pg_sleep(:s)::text AS slept
    params: {s: real}
    timeout: 600ms
    stale_max: 1h
  - path: /item
    sql: SELECT id, pg_is_in_recovery() AS replica FROM items WHERE id = :id
    params: {id: integer}
    timeout: 15s
    stale_max: 1h
`

// replicaCase is a server with a primary, a streaming replica and a table of three rows.
type replicaCase struct {
	*apptest.Spillway
	primary, replica *apptest.PostgresServer
	conn             *pgx.Conn // to the primary
	down, lag, late  string    // the metrics' series
}

// newReplicaCase starts them.
func newReplicaCase(t *testing.T) *replicaCase {
	t.Helper()
	primary := apptest.Postgres(t, apptest.ReplicaSettings()...)
	database := primary.CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	apptest.Execute(t, conn, "CREATE TABLE items (id bigint PRIMARY KEY); INSERT INTO items VALUES (1), (2)")
	replica := primary.Replica(t)
	label := `{database="` + replica.URL("test_1") + `"}`
	c := &replicaCase{
		primary: primary, replica: replica, conn: conn,
		down: "spillway_replica_down" + label, lag: "spillway_replica_lag_seconds" + label, late: "spillway_replica_late" + label,
	}
	c.Spillway = c.serve(t, replicated)
	apptest.Execute(t, conn, "INSERT INTO items VALUES (3)")
	apptest.Await(t, "the replica's rows are served", func() bool { return c.item(t, 3, true) && c.list(t, true) })
	return c
}

// serve starts a server with a configuration of primary and replica.
func (c *replicaCase) serve(t *testing.T, text string) *apptest.Spillway {
	t.Helper()
	return apptest.ServePatiently(t, &binary, "replica: "+c.replica.URL("test_1")+"\n"+text, c.primary.URL("test_1"))
}

// withLagMax is c with another server, which tolerates little lag.
func (c *replicaCase) withLagMax(t *testing.T) *replicaCase {
	t.Helper()
	other := *c
	other.Spillway = c.serve(t, lagMax+replicated)
	return &other
}

const lagMax = "replica_lag_max: 2s\n"

func (c *replicaCase) answers(t *testing.T, path, want string) bool {
	t.Helper()
	a := apptest.Fetch(t, c.URL(path))
	return a.Status == http.StatusOK && string(a.Body) == want
}

// item reports whether a query is answered by the replica, or, if replica is false, by the primary.
func (c *replicaCase) item(t *testing.T, id int, replica bool) bool {
	t.Helper()
	return c.answers(t, fmt.Sprintf("item?id=%d", id), fmt.Sprintf(`{"data":[{"id":%d,"replica":%v}]}`, id, replica))
}

// list is item for a feed.
func (c *replicaCase) list(t *testing.T, replica bool) bool {
	t.Helper()
	return c.answers(t, "list", fmt.Sprintf(`{"data":[{"id":3,"replica":%v},{"id":2,"replica":%[1]v},{"id":1,"replica":%[1]v}]}`, replica))
}

// TestReplica lets statements fail and the replica lag, go down, and lose its primary.
func TestReplica(t *testing.T) {
	t.Parallel()
	c := newReplicaCase(t)
	t.Run("used after errors", c.testUsedAfterErrors)
	t.Run("down", c.testDown)
	t.Run("cut off", c.testCutOff)
}

// TestReplicaAlone lets the replica hang, and takes the primary away.
func TestReplicaAlone(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	c := newReplicaCase(t)
	t.Run("hangs", c.testHangs)
	t.Run("without primary", c.testWithoutPrimary)
}

// testDown: reads go to the replica, to the primary while the replica is down, and to the
// replica again after its restart.
func (c *replicaCase) testDown(t *testing.T) {
	if err := c.replica.Stop(); err != nil {
		t.Fatal(err)
	}
	if !c.item(t, 2, false) {
		t.Errorf("with the replica down: %s", apptest.Fetch(t, c.URL("item?id=2")).Body)
	}
	apptest.Await(t, "the primary's rows are served", func() bool { return c.list(t, false) })
	apptest.Await(t, "spillway_replica_down is 1, and there is no lag", func() bool {
		return apptest.Metric(t, c.Spillway, c.down) == 1 && !hasMetric(t, c.Spillway, c.lag)
	})
	apptest.Await(t, "the replica is named", func() bool { return c.named(t, "away: ") })
	if err := c.replica.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the replica's rows are served again", func() bool { return c.item(t, 1, true) && c.named(t, "") })
}

// named reports whether reads are ready and the replica is named with a reason; "": not named.
func (c *replicaCase) named(t *testing.T, reason string) bool {
	t.Helper()
	status, got := apptest.Readyz(t, c.Spillway, "/readyz/reads", "replica")
	return status == http.StatusOK && (got == "" && reason == "" || reason != "" && strings.HasPrefix(got, "false "+reason))
}

// testHangs stops the replica's processes with SIGSTOP. The current request falls back
// to the primary, and later requests use it without delay.
func (c *replicaCase) testHangs(t *testing.T) {
	apptest.SignalServer(t, c.replica, syscall.SIGSTOP)
	if !c.item(t, 2, false) {
		t.Errorf("a query: %s", apptest.Fetch(t, c.URL("item?id=2")).Body)
	}
	if a := apptest.Fetch(t, c.URL("list?before="+listCursor(t, c.Spillway))); a.Status != http.StatusOK {
		t.Errorf("an older page: %d %s", a.Status, a.Body)
	}
	apptest.Await(t, "the replica is down", func() bool { return apptest.Metric(t, c.Spillway, c.down) == 1 && c.list(t, false) })
	apptest.Await(t, "a request uses the primary at once, without a try of the replica", func() bool {
		begin := time.Now()
		return c.item(t, 1, false) && time.Since(begin) < 8*time.Second // a try takes 10 s
	})
	apptest.SignalServer(t, c.replica, syscall.SIGCONT)
	apptest.Await(t, "the replica answers again", func() bool { return c.item(t, 2, true) })
}

// testUsedAfterErrors: the server keeps using the replica after a statement's error,
// and while the replica lags. The lag is a metric.
func (c *replicaCase) testUsedAfterErrors(t *testing.T) {
	// A replica that stops for a second is down for another reason: then the errors come again.
	apptest.Await(t, "the replica answers at once after a statement's error", func() bool {
		apptest.WantAnswer(t, apptest.Fetch(t, c.URL("divided?by=0")), http.StatusBadRequest, "bad-request")
		apptest.WantAnswer(t, apptest.Fetch(t, c.URL("wait?s=5")), http.StatusServiceUnavailable, "busy")
		return c.item(t, 3, true) && apptest.Metric(t, c.Spillway, c.down) == 0
	})
	caughtUp := func() bool { return hasMetric(t, c.Spillway, c.lag) && apptest.Metric(t, c.Spillway, c.lag) == 0 }
	apptest.Await(t, "the lag is 0", caughtUp)
	onReplica, err := pgx.Connect(t.Context(), c.replica.URL("test_1"))
	if err != nil {
		t.Fatal(err)
	}
	defer onReplica.Close(context.Background())
	apptest.Execute(t, onReplica, "SELECT pg_wal_replay_pause()")
	apptest.Execute(t, c.conn, "UPDATE items SET id = id")
	apptest.Await(t, "the lag grows", func() bool { return apptest.Metric(t, c.Spillway, c.lag) > 0.5 })
	apptest.Execute(t, onReplica, "SELECT pg_wal_replay_resume()")
	apptest.Await(t, "the lag is 0 again", caughtUp)
}

// testCutOff cuts the replica off from its primary, and restarts it. The primary
// answers until the replica has caught up.
func (c *replicaCase) testCutOff(t *testing.T) {
	c = c.withLagMax(t)
	link := apptest.NewForward(t, c.primary.Addr())
	host, port, err := net.SplitHostPort(link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	onReplica, err := pgx.Connect(t.Context(), c.replica.URL("test_1"))
	if err != nil {
		t.Fatal(err)
	}
	defer onReplica.Close(context.Background())
	apptest.Execute(t, onReplica, "ALTER SYSTEM SET primary_conninfo = 'host="+host+" port="+port+" user=postgres'")
	apptest.Execute(t, onReplica, "SELECT pg_reload_conf()")
	apptest.Execute(t, c.conn, "INSERT INTO items VALUES (4)")
	apptest.Await(t, "the replica streams over the link", func() bool { return c.item(t, 4, true) })
	c.checkpoint(t, onReplica)

	link.To("")
	apptest.Execute(t, c.conn, "INSERT INTO items VALUES (5)")
	apptest.Await(t, "the primary answers, and the lag grows", func() bool {
		return c.item(t, 5, false) && apptest.Metric(t, c.Spillway, c.lag) > 2 && apptest.Metric(t, c.Spillway, c.late) == 1 && c.named(t, "late: ")
	})
	if err := c.replica.Restart(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the lag after the restart", func() bool { return c.item(t, 5, false) && hasMetric(t, c.Spillway, c.lag) })
	if lag := apptest.Metric(t, c.Spillway, c.lag); lag < 2 {
		t.Errorf("a replica that lacks a row and has replayed nothing since its start reports a lag of %v s", lag)
	}
	link.To(c.primary.Addr())
	apptest.Await(t, "the replica has caught up", func() bool {
		return c.item(t, 5, true) && hasMetric(t, c.Spillway, c.lag) && apptest.Metric(t, c.Spillway, c.lag) == 0 && apptest.Metric(t, c.Spillway, c.late) == 0
	})
}

// checkpoint has the replica's next start replay no transaction.
func (c *replicaCase) checkpoint(t *testing.T, onReplica *pgx.Conn) {
	t.Helper()
	apptest.Execute(t, c.conn, "CHECKPOINT")
	var written string
	if err := c.conn.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&written); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the checkpoint is replayed", func() (done bool) {
		if err := onReplica.QueryRow(t.Context(), "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written).Scan(&done); err != nil {
			t.Fatal(err)
		}
		return done
	})
	apptest.Execute(t, onReplica, "CHECKPOINT")
}

// testWithoutPrimary stops the primary. The replica answers with the age of its rows,
// up to stale_max, and readiness follows.
func (c *replicaCase) testWithoutPrimary(t *testing.T) {
	c = c.withLagMax(t)
	apptest.Await(t, "the replica's rows are served", func() bool { return c.item(t, 3, true) && c.list(t, true) })
	strict := c.serve(t, lagMax+strings.ReplaceAll(replicated, "stale_max: 1h", "stale_max: 3s"))
	if err := c.primary.Stop(); err != nil {
		t.Fatal(err)
	}
	aged := func(path string, least int) bool {
		a := apptest.Fetch(t, c.URL(path))
		age, err := strconv.Atoi(a.Header.Get("Age"))
		if a.Status == http.StatusOK && (err != nil || strings.Contains(string(a.Body), "false")) {
			t.Errorf("%s: Age %q, %s", path, a.Header.Get("Age"), a.Body)
		}
		return a.Status == http.StatusOK && age >= least
	}
	apptest.Await(t, "older rows of the replica", func() bool { return aged("item?id=2", 4) && aged("list", 4) })
	if a := apptest.Fetch(t, c.Admin+"/readyz"); a.Status != http.StatusOK {
		t.Errorf("with older rows: %d %s", a.Status, a.Body)
	}
	apptest.Await(t, "rows beyond stale_max are refused", func() bool {
		return apptest.Fetch(t, strict.URL("item?id=2")).Status == http.StatusServiceUnavailable && apptest.Fetch(t, strict.URL("list")).Status == http.StatusServiceUnavailable
	})
	apptest.Await(t, "reads are not ready, although the replica answers", func() bool {
		return apptest.Fetch(t, strict.Admin+"/readyz/reads").Status == http.StatusServiceUnavailable
	})
	if err := c.primary.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the replica's rows are young again", func() bool { return c.item(t, 2, true) && c.list(t, true) && c.named(t, "") })
	apptest.Await(t, "reads are ready again", func() bool {
		return apptest.Fetch(t, strict.Admin+"/readyz/reads").Status == http.StatusOK && apptest.Fetch(t, strict.URL("list")).Status == http.StatusOK
	})
}

// TestReplicaOnMariaDB stops the replica's SQL thread, with a user who may only read.
func TestReplicaOnMariaDB(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	primary := mariadb.Get(t)
	replica := apptest.MariaDB(t, "--server-id=2", "--replicate-do-db=replicated")
	createMariaDB(t, "replicated")
	run := func(server *apptest.Server, statements ...string) {
		t.Helper()
		db, err := sql.Open("mysql", "root@tcp("+server.Addr()+")/replicated")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for _, statement := range statements {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	_, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	storetest.MariaDatabase(t, replica).Query(t, "CREATE DATABASE replicated")
	run(replica, "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = "+port+", MASTER_USER = 'root', MASTER_USE_GTID = slave_pos", "START SLAVE")
	for _, server := range []*apptest.Server{primary, replica} {
		run(server, "CREATE USER IF NOT EXISTS reader@'%' IDENTIFIED BY 'secret'", "GRANT SELECT ON replicated.* TO reader@'%'")
	}
	run(primary, "CREATE TABLE items (id bigint PRIMARY KEY)", "INSERT INTO items VALUES (1)")
	url := func(server *apptest.Server) string { return "mysql://reader:secret@" + server.Addr() + "/replicated" }
	s := apptest.ServePatiently(t, &binary, "replica: "+url(replica)+"\n"+lagMax+`queries:
  - path: /newest
    sql: SELECT max(id) AS id, @@server_id AS server FROM items
`, url(primary))
	answers := func(id, server int) bool {
		a := apptest.Fetch(t, s.URL("newest"))
		return string(a.Body) == fmt.Sprintf(`{"data":[{"id":%d,"server":%d}]}`, id, server)
	}
	lag := `spillway_replica_lag_seconds{database="mysql://reader:***@` + replica.Addr() + `/replicated"}`
	apptest.Await(t, "the replica answers", func() bool { return answers(1, 2) })
	run(replica, "STOP SLAVE SQL_THREAD")
	run(primary, "INSERT INTO items VALUES (2)")
	apptest.Await(t, "the primary answers, and the lag grows", func() bool { return answers(2, 1) && apptest.Metric(t, s, lag) > 2 })
	run(replica, "START SLAVE SQL_THREAD")
	apptest.Await(t, "the replica has caught up", func() bool { return answers(2, 2) && hasMetric(t, s, lag) && apptest.Metric(t, s, lag) == 0 })
}

// listCursor returns the cursor after the newest row.
func listCursor(t *testing.T, s *apptest.Spillway) string {
	t.Helper()
	var page struct{ Next string }
	if err := json.Unmarshal(apptest.Fetch(t, s.URL("list?limit=1")).Body, &page); err != nil || page.Next == "" {
		t.Fatalf("no cursor: %v", err)
	}
	return page.Next
}

// hasMetric reports whether /metrics shows the series.
func hasMetric(t *testing.T, s *apptest.Spillway, series string) bool {
	t.Helper()
	return strings.Contains(string(apptest.Fetch(t, s.Admin+"/metrics").Body), "\n"+series+" ")
}
