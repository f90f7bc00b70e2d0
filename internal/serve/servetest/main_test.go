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
	mariadb  = apptest.Shared[*apptest.Server]{Start: func() (*apptest.Server, error) { return apptest.StartMariaDB() }}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &binary, &postgres, &mariadb)) }

// createMariaDB creates a database on the shared server.
func createMariaDB(t *testing.T, name string) {
	t.Helper()
	storetest.MariaDatabase(t, mariadb.Get(t)).Query(t, "CREATE OR REPLACE DATABASE "+name)
}
