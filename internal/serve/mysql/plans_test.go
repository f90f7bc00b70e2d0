package mysql

import (
	"log/slog"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/storetest"
)

// TestPlans compares the check at start with the server's counters of what it reads, which count all that is
// read if conditions are checked outside of the engine.
func TestPlans(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t, "--optimizer-switch=index_condition_pushdown=off", "--max-allowed-packet=32M")
	url := server.URL("test")
	log := &storetest.PlanLog{}
	db, err := Open(t.Context(), parse(t, url), unhurried(database.Pool{Max: 1}), slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	query := storetest.MariaDBQuery(t, url)
	version := query("SELECT version()")[0][0]
	name := "MariaDB"
	if !strings.Contains(version, "MariaDB") {
		name = "MySQL " + version[:3]
	}
	storetest.Plans(t, storetest.PlanBackend{
		Name: name, InList: "IN (:list)", Analyze: "ANALYZE TABLE %s", DropIndex: "DROP index INDEX ON TABLE",
		Exec: func(t *testing.T, sql string) { t.Helper(); mustExecute(t, url, sql) },
		Source: func(t *testing.T, def feed.Definition) feed.Source {
			t.Helper()
			s, err := db.Source(def)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Judged: log.Judged,
		Reads: func(t *testing.T, source feed.Source, r feed.Range) float64 {
			t.Helper()
			return float64(rowsRead(t, db, func() error { return source.Read(t.Context(), r, new(feed.Rows)) }))
		},
	}, *update)
}
