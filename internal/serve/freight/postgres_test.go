package freight

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	fresh := freshPostgres(t, server)
	t.Run("schema of the search path", func(t *testing.T) { testSearchPath(t, fresh(t)) })
	t.Run("minimum grants", func(t *testing.T) { testGrants(t, server) })
	t.Run("pooler in transaction mode", func(t *testing.T) { testPooler(t, server) })
	t.Run("pooler, interrupted while it passes on orders", func(t *testing.T) { testPoolerInterrupted(t, server) })
	t.Run("dependent view", func(t *testing.T) { testDependent(t, fresh(t)) })
}

// freshPostgres returns a function that returns the URL of an empty database. It is the same
// one each time, because creating one takes longer than most tests here; so only one test may
// use it at a time.
func freshPostgres(t *testing.T, server *apptest.PostgresServer) func(t *testing.T) database.URL {
	t.Helper()
	url := parse(t, server.CreateDatabase(t)+"&connect_timeout=60")
	return func(t *testing.T) database.URL {
		t.Helper()
		postgresPlace(t).exec(t, url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
		return url
	}
}

func postgresPlace(t *testing.T) place {
	t.Helper()
	return place{dialect: dialectOf(database.Postgres)}
}

// refused runs Seed and expects an error that contains each text.
func refused(t *testing.T, url database.URL, replace bool, texts ...string) {
	t.Helper()
	_, err := Seed(context.Background(), url, small, replace, quiet())
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v\nlacks %q", err, text)
		}
	}
}

func testSearchPath(t *testing.T, public database.URL) {
	p := postgresPlace(t)
	other := parse(t, public.Raw()+"&search_path=other")
	p.exec(t, public, "CREATE TABLE users (id integer)")
	refused(t, public, true, "did not create; use another database, or another schema")
	refused(t, other, false, "no schema of the search_path exists")
	p.exec(t, public, "CREATE SCHEMA other")
	p.seed(t, other, small, false, true)
	p.complete(t, other, small)
	refused(t, public, true, "did not create; use another database, or another schema")
}

// testGrants checks that the grants in docs/reference/databases.md are sufficient, and that a missing
// grant causes a clear error.
func testGrants(t *testing.T, server *apptest.PostgresServer) {
	p := postgresPlace(t)
	text := server.CreateDatabase(t)
	as := func(role string) database.URL { return parse(t, strings.Replace(text, "postgres@", role+"@", 1)) }
	owner := as("postgres")
	name := apptest.DatabaseName(text)
	loader, reader, writer := "loader_"+name, "reader_"+name, "writer_"+name // roles belong to the server
	p.exec(t, owner, "CREATE ROLE "+loader+" LOGIN", "CREATE ROLE "+reader+" LOGIN", "CREATE ROLE "+writer+" LOGIN")

	refused(t, as(loader), false, "permission denied for schema public", "grant the role CREATE on the schema")
	p.exec(t, owner, "GRANT USAGE, CREATE ON SCHEMA public TO "+loader)
	p.seed(t, as(loader), small, false, true)
	p.complete(t, as(loader), small)
	p.seed(t, as(loader), medium, true, true)

	p.exec(t, as(loader), "GRANT SELECT ON users, orders TO "+reader,
		"GRANT SELECT, INSERT ON users, orders TO "+writer)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, as(reader).Raw())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var goods string
	_, sql, _ := strings.Cut(string(Configuration), "\n    sql: ")
	sql, _, _ = strings.Cut(sql, "\n")
	row := conn.QueryRow(ctx, fmt.Sprintf("SELECT goods_name FROM (%s) AS feed ORDER BY id DESC LIMIT 1", sql))
	if err := row.Scan(&goods); err != nil || len(goods) != 32 {
		t.Errorf("the feed's statement as reader: %q, %v", goods, err)
	}
	p.exec(t, as(writer), "INSERT INTO orders (users_id, goods_name) VALUES (1, 'new')")
	refused(t, as(reader), true, "permission denied for table spillway_schema")
	p.exec(t, owner, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+reader, "GRANT ALL ON SCHEMA public TO "+reader)
	refused(t, as(reader), true, "must be owner of table spillway_schema", "make it the owner of the tables")
}

func testPooler(t *testing.T, server *apptest.PostgresServer) {
	p := postgresPlace(t)
	direct := server.CreateDatabase(t)
	name := apptest.DatabaseName(direct)
	pooled := parse(t, apptest.PgBouncer(t, server, "transaction").URL(name))
	p.seed(t, pooled, small, false, true)
	p.complete(t, pooled, small)
	interrupt(t, pooled, medium, "orders")
	p.complete(t, pooled, small)
	p.seed(t, pooled, medium, true, true)
	p.complete(t, parse(t, direct), medium)
}

func testPoolerInterrupted(t *testing.T, server *apptest.PostgresServer) {
	apptest.Long(t)
	p := postgresPlace(t)
	name := apptest.DatabaseName(server.CreateDatabase(t))
	pooled := parse(t, apptest.PgBouncer(t, server, "transaction").URL(name))
	p.seed(t, pooled, small, false, true)
	interruptPooled(t, pooled)
	p.complete(t, pooled, small)
}

func testDependent(t *testing.T, url database.URL) {
	p := postgresPlace(t)
	p.seed(t, url, small, false, true)
	p.exec(t, url, "CREATE VIEW recent AS SELECT * FROM orders")
	refused(t, url, true, "other objects depend on it", "drop what depends on the tables first")
	p.complete(t, url, small)
}
