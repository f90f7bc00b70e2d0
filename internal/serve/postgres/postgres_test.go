package postgres

import (
	"cmp"
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/storetest"
)

// hostileSettings are server defaults that would change what values look like,
// if sessions did not set their own.
var hostileSettings = []string{"timezone=Asia/Shanghai", "datestyle=SQL,DMY"}

// shared is the server of the tests that neither stop nor configure it. The poolers of several
// tests keep connections to it.
var shared = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) {
	return apptest.StartPostgres(append(hostileSettings[:2:2], "max_connections=400")...)
}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &shared)) }

// patience bounds what only a hang exceeds.
const patience = 5 * time.Minute

func TestConformance(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, hostileSettings...)
	storetest.Feed(t, backend(pg, func(url string) string { return url }))
}

// The same through PgBouncer in transaction mode, which loses prepared
// statements and refuses statement_timeout.
func TestConformancePgBouncer(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	bouncer := apptest.PgBouncer(t, pg, "transaction")
	b := backend(pg, func(url string) string { return strings.Replace(url, pg.Addr(), bouncer.Addr(), 1) })
	open := b.Open
	b.Open = func(t testing.TB, pool database.Pool) storetest.DB {
		db := open(t, pool)
		db.Restart = bouncer.Restart
		return db
	}
	b.Pooled = true
	storetest.Feed(t, b)
}

// backend is pg for the conformance suite; via turns a database's URL into the
// one that the adapter is given.
func backend(pg *apptest.PostgresServer, via func(string) string) storetest.Backend {
	return storetest.Backend{
		Open: func(t testing.TB, pool database.Pool) storetest.DB {
			url := pg.CreateDatabase(t)
			db := open(t, via(url), pool)
			return storetest.DB{
				Source:  db.Source,
				InList:  "= ANY(:list)",
				Exec:    func(ctx context.Context, sql string) error { return execute(ctx, url, sql) },
				Restart: pg.Restart,
			}
		},
		Types: map[storetest.Kind]string{
			storetest.Integer:     "bigint",
			storetest.Real:        "double precision",
			storetest.Decimal:     "numeric(30,6)",
			storetest.Boolean:     "boolean",
			storetest.Text:        "text",
			storetest.Timestamp:   "timestamp",
			storetest.TimestampTZ: "timestamptz",
			storetest.Date:        "date",
			storetest.Bytes:       "bytea",
			storetest.JSON:        "jsonb",
			storetest.UUID:        "uuid",
		},
		Bytes: func(b []byte) string { return `'\x` + hex.EncodeToString(b) + `'::bytea` },
	}
}

// open opens url through the adapter until the test ends. A bound that the test does not set is
// one that a slow machine does not meet.
func open(t testing.TB, url string, pool database.Pool) *DB {
	t.Helper()
	parsed, err := database.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), parsed, patient(pool), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func patient(pool database.Pool) database.Pool {
	for _, bound := range []*time.Duration{&pool.ConnectTimeout, &pool.AcquireTimeout, &pool.StatementTimeout} {
		*bound = cmp.Or(*bound, patience)
	}
	return pool
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func mustExecute(t testing.TB, url, sql string) {
	t.Helper()
	if err := execute(t.Context(), url, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// readAll returns the rows of a feed with the key id.
func readAll(t testing.TB, db *DB, sql string) string {
	t.Helper()
	source, err := db.source(feed.Definition{Name: "/test", SQL: sql, Key: []feed.KeyColumn{{Name: "id"}}})
	if err != nil {
		t.Fatal(err)
	}
	var rows feed.Rows
	if err := source.Read(t.Context(), feed.Range{Limit: 100}, &rows); err != nil {
		t.Fatal(err)
	}
	storetest.CheckColumns(t, source.Columns(), rows.Data)
	return string(rows.Data)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	tests := []struct {
		name string
		run  func(*testing.T, *apptest.PostgresServer)
	}{
		{"Types", testTypes},
		{"CheckKey", testCheckKey},
		{"CheckPlans", testCheckPlans},
		{"ReadsNoMore", testReadsNoMore},
		{"Statements", testStatements},
		{"TableChanged", testTableChanged},
		{"Abandoned", testAbandoned},
		{"CancelHitsNoOther", testCancelHitsNoOther},
		{"PoolBusy", testPoolBusy},
		{"Probe", testProbe},
		{"QueryRejectsValue", testQueryRejectsValue},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, pg) })
	}
}
