package crashtest

import (
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
)

// The tests share the program and a database server.
var (
	binary   apptest.Binary
	postgres = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) { return apptest.StartPostgres() }}
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &binary, &postgres)) }
