package servetest

import (
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// The tests share the program and the database servers.
var (
	binary   apptest.Binary
	postgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) { return apptest.StartPostgres() }}
	mariadb  = apptest.Shared[*apptest.Server]{Start: func() (*apptest.Server, error) { return apptest.StartMariaDB("--log-bin=binlog", "--server-id=1") }}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &binary, &postgres, &mariadb)) }

// emptyDatabase returns the URL of a database on the shared server, for tests that create nothing in it.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	return postgres.Get(t).URL("postgres")
}

// createMariaDB creates a database on the shared server.
func createMariaDB(t *testing.T, name string) {
	t.Helper()
	storetest.MariaDatabase(t, mariadb.Get(t)).Query(t, "CREATE OR REPLACE DATABASE "+name)
}
