package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

const replicated = `feeds:
  - path: /list
    sql: SELECT id, pg_is_in_recovery() AS replica FROM items
    key: id
queries:
  - path: /item
    sql: SELECT id, pg_is_in_recovery() AS replica FROM items WHERE id = :id
    params: {id: integer}
`

// TestReplica reads from a streaming replica, from the primary while the replica
// is down, and from the replica again.
func TestReplica(t *testing.T) {
	primary := apptest.Postgres(t, apptest.ReplicaSettings()...)
	database := primary.CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	execute(t, conn, "CREATE TABLE items (id bigint PRIMARY KEY); INSERT INTO items VALUES (1), (2)")
	replica := primary.Replica(t)
	s := serveQueries(t, "replica: "+replica.URL("test_1")+"\n"+replicated, database)

	answers := func(path, want string) bool {
		a := fetch(t, s.URL(path))
		return a.status == http.StatusOK && string(a.body) == want
	}
	item := func(id int, replica bool) string {
		return fmt.Sprintf(`{"return_code":"SUCCESS","data":[{"id":%d,"replica":%v}]}`, id, replica)
	}
	list := func(replica bool) string {
		return fmt.Sprintf(`{"return_code":"SUCCESS","data":[{"id":3,"replica":%v},{"id":2,"replica":%[1]v},{"id":1,"replica":%[1]v}]}`, replica)
	}
	execute(t, conn, "INSERT INTO items VALUES (3)")
	eventually(t, "the replica's rows are served", func() bool { return answers("item?id=3", item(3, true)) && answers("list", list(true)) })

	if err := replica.Stop(); err != nil {
		t.Fatal(err)
	}
	if !answers("item?id=2", item(2, false)) {
		t.Errorf("with the replica down: %s", fetch(t, s.URL("item?id=2")).body)
	}
	eventually(t, "the primary's rows are served", func() bool { return answers("list", list(false)) })
	if n := metric(t, s, `spillway_replica_down{database="`+replica.URL("test_1")+`"}`); n != 1 {
		t.Errorf("spillway_replica_down is %v", n)
	}
	if a := fetch(t, s.Admin+"/readyz"); a.status != http.StatusOK {
		t.Errorf("without the replica: %d %s", a.status, a.body)
	}
	if err := replica.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica's rows are served again", func() bool { return answers("item?id=1", item(1, true)) })
}
