package mysql

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/storetest"
)

// The servers of the tests that do not need one of their own, on MariaDB.
var (
	sharedPlain   = apptest.Shared[*apptest.Server]{Start: func() (*apptest.Server, error) { return apptest.StartMariaDB() }}
	sharedHostile = apptest.Shared[*apptest.Server]{Start: func() (*apptest.Server, error) { return apptest.StartMariaDB(hostileSettings()...) }}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &sharedPlain, &sharedHostile)) }

// plainServer returns a server with its own defaults, which other tests use too.
func plainServer(t testing.TB) *apptest.Server {
	t.Helper()
	if apptest.KindOfMySQL() != apptest.KindMariaDB {
		return apptest.MySQL(t)
	}
	return sharedPlain.Get(t)
}

// hostileServer returns a server with hostileSettings, which other tests use too.
func hostileServer(t testing.TB) *apptest.Server {
	t.Helper()
	if apptest.KindOfMySQL() != apptest.KindMariaDB {
		return apptest.MySQL(t, hostileSettings()...)
	}
	return sharedHostile.Get(t)
}

// hostileSettings returns server defaults that would change what values look like or
// how statements are read, if sessions did not set their own.
func hostileSettings() []string {
	settings := []string{
		"--default-time-zone=+08:00", "--character-set-server=latin1", "--skip-character-set-client-handshake", "--transaction-isolation=READ-UNCOMMITTED",
	}
	if onMySQL() {
		return append(settings, "--sql-mode=ANSI_QUOTES", "--default-storage-engine=MyISAM")
	}
	return append(settings, "--sql-mode=ANSI_QUOTES,EMPTY_STRING_IS_NULL", "--default-storage-engine=Aria")
}

// onMySQL reports whether the tests run on MySQL instead of MariaDB.
func onMySQL() bool { return apptest.KindOfMySQL() == apptest.KindMySQL }

func TestConformance(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t, hostileSettings()...)
	storetest.Feed(t, backend(server))
}

// backend is a server for the conformance suite.
func backend(server *apptest.Server) storetest.Backend {
	return storetest.Backend{
		Open: func(t testing.TB, pool database.Pool) storetest.DB {
			url := freshDatabase(t, server)
			db := open(t, url, pool)
			return storetest.DB{
				Source:  db.Source,
				InList:  "IN (:list)",
				Exec:    func(ctx context.Context, sql string) error { return execute(ctx, url, sql) },
				Restart: server.Restart,
			}
		},
		// MariaDB's literals have no time zone.
		Types: map[storetest.Kind]string{
			storetest.Integer:   "bigint",
			storetest.Real:      "double",
			storetest.Decimal:   "decimal(30,6)",
			storetest.Boolean:   "boolean",
			storetest.Text:      "text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
			storetest.Timestamp: "datetime(6)",
			storetest.Date:      "date",
			storetest.Bytes:     "blob",
			storetest.JSON:      "json",
			storetest.UUID:      "char(36)",
		},
		Bytes: func(b []byte) string { return fmt.Sprintf("x'%x'", b) },
		Slow:  "SELECT id FROM items WHERE id < (SELECT BENCHMARK(100000000000, SHA2(RAND(), 512)))",
	}
}

// freshDatabase makes an empty database and returns its URL. Its name may be that of a user,
// too.
func freshDatabase(t testing.TB, server *apptest.Server) string {
	t.Helper()
	name := fmt.Sprintf("fresh_%x", rand.Uint64())
	mustExecute(t, server.URL(""), "CREATE DATABASE "+name)
	return server.URL(name)
}

// patience bounds what should succeed. It is long, so that only a hang reaches it.
const patience = 5 * time.Minute

// unhurried returns a pool whose timeouts are patience unless the test has set them.
func unhurried(pool database.Pool) database.Pool {
	for _, bound := range []*time.Duration{&pool.ConnectTimeout, &pool.AcquireTimeout, &pool.StatementTimeout} {
		*bound = cmp.Or(*bound, patience)
	}
	return pool
}

// open opens url through the adapter until the test ends.
func open(t testing.TB, url string, pool database.Pool) *DB {
	t.Helper()
	db, err := Open(t.Context(), parse(t, url), unhurried(pool), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

func parse(t testing.TB, url string) database.URL {
	t.Helper()
	parsed, err := database.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// connect returns a new session.
func connect(t testing.TB, url string) *database.MySQLSession {
	t.Helper()
	connector, err := database.NewMySQLConnector(parse(t, url), patience, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := connector.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// execute runs a statement in a new session.
func execute(ctx context.Context, url string, statements ...string) error {
	parsed, err := database.Parse(url)
	if err != nil {
		return err
	}
	connector, err := database.NewMySQLConnector(parsed, patience, 0)
	if err != nil {
		return err
	}
	s, err := connector.Connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, sql := range statements {
		if err := s.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.200s: %w", sql, err)
		}
	}
	return nil
}

func mustExecute(t testing.TB, url string, statements ...string) {
	t.Helper()
	if err := execute(t.Context(), url, statements...); err != nil {
		t.Fatal(err)
	}
}

func keyOf(columns ...string) []feed.KeyColumn {
	var key []feed.KeyColumn
	for _, column := range columns {
		name, ascending := strings.CutSuffix(column, " asc")
		key = append(key, feed.KeyColumn{Name: name, Ascending: ascending})
	}
	return key
}

func mustFeed(t testing.TB, db *DB, sql string, key ...string) *source {
	t.Helper()
	source, err := db.source(feed.Definition{Name: "/test", SQL: sql, Key: keyOf(key...)})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// readAll returns the rows of a feed.
func readAll(t testing.TB, f *source, r feed.Range) string {
	t.Helper()
	var rows feed.Rows
	if err := f.Read(t.Context(), r, &rows); err != nil {
		t.Fatal(err)
	}
	storetest.CheckColumns(t, f.Columns(), rows.Data)
	return string(rows.Data)
}
