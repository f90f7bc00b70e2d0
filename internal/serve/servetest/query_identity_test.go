package servetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

const accounts = `queries:
  - path: /account
    sql: SELECT owner FROM accounts WHERE id = :id
    params: {id: integer}
    ttl: 1h
    cache: redis
pool: {connect_timeout: 1s}
`

// TestSharedCacheOfTwoDatabases: at one address, now one database answers and then another one.
// Each process gets the rows of the database that it reaches, from the shared cache too, and one
// that starts without a database shares answers as soon as it knows which one it has.
func TestSharedCacheOfTwoDatabases(t *testing.T) {
	t.Parallel()
	redis := apptest.Redis(t)
	first, second := postgres.Get(t), apptest.Postgres(t)
	for oid, server := range map[int]*apptest.PostgresServer{70001: first, 70002: second} { // the servers are copies of one
		owner := map[int]string{70001: "first", 70002: "second"}[oid]
		conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		apptest.Execute(t, conn, "DROP DATABASE IF EXISTS accounts_of_two WITH (FORCE)") // of an earlier run of this test
		apptest.Execute(t, conn, fmt.Sprintf("CREATE DATABASE accounts_of_two OID %d", oid))
		_ = conn.Close(t.Context())
		if conn, err = pgx.Connect(t.Context(), server.URL("accounts_of_two")); err != nil {
			t.Fatal(err)
		}
		apptest.Execute(t, conn, "CREATE TABLE accounts (id int PRIMARY KEY, owner text)")
		apptest.Execute(t, conn, "INSERT INTO accounts SELECT id, '"+owner+"' FROM generate_series(1, 9999) AS id")
		_ = conn.Close(t.Context())
	}
	address := apptest.NewForward(t, "")
	url := strings.Replace(first.URL("accounts_of_two"), first.Addr(), address.Addr(), 1)
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	serve := func(more string) *apptest.Spillway {
		if err := os.WriteFile(file, []byte(more+accounts), 0o600); err != nil {
			t.Fatal(err)
		}
		return apptest.Serve(t, binary.Path(t), "--database", url, "--redis", redis.URL(""), file)
	}
	ask := func(s *apptest.Spillway, id int, owner, source string) {
		t.Helper()
		a := apptest.Fetch(t, s.URL(fmt.Sprintf("account?id=%d", id)))
		if a.Status != http.StatusOK || string(a.Body) != `{"data":[{"owner":"`+owner+`"}]}` || a.Header.Get("Spillway-Source") != source {
			t.Errorf("%d %s from %s, want %s from %s", a.Status, a.Body, a.Header.Get("Spillway-Source"), owner, source)
		}
	}
	early := serve("") // without a database
	address.To(first.Addr())
	early.WaitReady(t)
	ask(early, 1, "first", "database")
	replica := serve("")
	replica.WaitReady(t)
	ask(replica, 1, "first", "redis")
	moved := serve("redis_prefix: app\n")
	moved.WaitReady(t)
	ask(moved, 1, "first", "database")

	id := 100
	address.To(second.Addr())
	other := serve("")
	other.WaitReady(t)
	ask(other, 1, "second", "database")
	apptest.Await(t, "a process that was there before shares the answers of the other database", func() bool {
		id++
		a, err := apptest.Get(t.Context(), other.URL(fmt.Sprintf("account?id=%d", id)))
		b, err2 := apptest.Get(t.Context(), early.URL(fmt.Sprintf("account?id=%d", id)))
		return err == nil && err2 == nil && a.Status == http.StatusOK && b.Header.Get("Spillway-Source") == "redis"
	})
	same := serve("redis_prefix: app\n")
	same.WaitReady(t)
	ask(same, 1, "first", "redis") // redis_prefix replaces what is known of the database
}

// TestCacheAfterUserChanges: the file of the address names another user. As soon as a connection is opened with it, no answer of
// the first user is served, from memory either, and at no time is an answer shared under the other one's name.
func TestCacheAfterUserChanges(t *testing.T) {
	t.Parallel()
	redis, pg := apptest.Redis(t), postgres.Get(t)
	database := pg.CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	first, second := apptest.DatabaseName(database)+"_a", apptest.DatabaseName(database)+"_b"
	for _, role := range []string{first, second} { // each sees its own table
		apptest.Execute(t, conn, "CREATE ROLE "+role+" LOGIN")
		apptest.Execute(t, conn, "CREATE SCHEMA AUTHORIZATION "+role)
		apptest.Execute(t, conn, "CREATE TABLE "+role+".accounts AS SELECT id, '"+role+"' AS owner FROM generate_series(1, 9999) AS id")
		apptest.Execute(t, conn, "ALTER TABLE "+role+".accounts ADD PRIMARY KEY (id), OWNER TO "+role)
	}
	as := func(role string) string { return strings.Replace(database, "postgres@", role+"@", 1) }
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	serve := func(name, address string) *apptest.Spillway {
		return apptest.Serve(t, binary.Path(t), "--redis", redis.URL(""), write(name, "database: '"+address+"'\n"+accounts))
	}
	changing := serve("changing.yaml", "file:"+write("url", as(first)))
	staying := serve("staying.yaml", as(first))
	ask := func(s *apptest.Spillway, id int) string {
		t.Helper()
		a, err := apptest.Get(t.Context(), s.URL(fmt.Sprintf("account?id=%d", id)))
		owner, _, _ := strings.Cut(strings.TrimPrefix(string(a.Body), `{"data":[{"owner":"`), `"`)
		return map[bool]string{true: owner, false: fmt.Sprint(a.Status, err)}[err == nil && a.Status == http.StatusOK]
	}
	changing.WaitReady(t)
	staying.WaitReady(t)
	if got := ask(changing, 1); got != first {
		t.Fatal(got)
	}
	write("url", as(second))
	id := 1
	for got := first; got != second; got = ask(changing, id) {
		apptest.Execute(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+first+"'")
		id++
	}
	if got := ask(changing, 1); got != second {
		t.Errorf("from memory: %s", got)
	}
	for n := range id + 1 {
		apptest.AwaitState(t, "the other process has its rows", func() (string, bool) {
			got := ask(staying, 1+n)
			return got, got == first
		})
	}
}
