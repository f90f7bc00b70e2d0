package sqlite_test

import (
	"log/slog"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/storetest"
)

// TestPlans compares the check at start with the rows that the loops of a statement visit.
func TestPlans(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	log := &storetest.PlanLog{}
	sqlite.SetLog(db, slog.New(log))
	storetest.Plans(t, storetest.PlanBackend{
		Name: "SQLite", InList: "IN (:list, 'none')", Scalar: true, Analyze: "ANALYZE %s", DropIndex: "DROP index INDEX",
		Exec: func(t *testing.T, sql string) { t.Helper(); script(t, writer, sql) },
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
			reads, err := sqlite.Reads(t.Context(), source, r)
			if err != nil {
				t.Fatal(err)
			}
			return reads
		},
	}, *update)
}
