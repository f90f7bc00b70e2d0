package streamtest

import (
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// The tests share the program and database servers.
var (
	binary   apptest.Binary
	postgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) { return apptest.StartPostgres() }}
	mariadb  = apptest.Shared[*apptest.Server]{Start: func() (*apptest.Server, error) { return apptest.StartMariaDB() }}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &binary, &postgres, &mariadb)) }

// mariaDatabase creates a database on the shared MariaDB server.
func mariaDatabase(t *testing.T, name string) storetest.Database {
	t.Helper()
	server := mariadb.Get(t)
	storetest.MariaDatabase(t, server).Query(t, "CREATE DATABASE "+name)
	url := server.URL(name)
	query := storetest.MariaDBQuery(t, url)
	return storetest.Database{URL: url, Query: func(t *testing.T, sql string) [][]string { t.Helper(); return query(sql) }}
}

// patient are the limits of a stream whose requests wait for the database until a test ends,
// however slow the machine is. patientPool belongs to it, at the top of the configuration.
const (
	patient     = "    wait_max: 10m\n    timeout: 10m\n    commit_timeout: 10m\n    retry_for: 1h\n"
	patientPool = "pool: {statement_timeout: 1h, max: 16}\n"
)
