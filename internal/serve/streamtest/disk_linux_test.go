package streamtest

import (
	"fmt"
	"slices"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestStreamSpoolDiskFull fills the spool's disk while the database is down, and again after that. The spool
// keeps the space that its drain needs, so every acknowledged record is stored, and the
// drain frees space for new records.
func TestStreamSpoolDiskFull(t *testing.T) {
	apptest.NeedRoot(t)
	t.Parallel()
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	server := apptest.Postgres(t)
	db := storetest.PostgresDatabase(t, server)
	s := serveNotes(t, db, "", "--data", apptest.NewSmallDisk(t, 18).Path)
	accepted := 0
	for range rounds {
		server.Kill()
		for refused := false; !refused; {
			const records = 50
			a := apptest.Post(t, s.URL("readings"), longNotes(accepted, records))
			switch refused = a.Status != 202; {
			case refused:
				apptest.WantAnswer(t, a, 503, "busy disk")
			default:
				accepted += records
			}
			if accepted > 100_000 {
				t.Fatal("the disk is never full")
			}
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		apptest.Await(t, "all records are drained", func() bool { return apptest.Metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`) == 0 })
		if ids := db.IDs(t); len(ids) != accepted || len(slices.Compact(ids)) != accepted {
			t.Errorf("%d stored, %d accepted", len(ids), accepted)
		}
	}
	t.Logf("%d records accepted", accepted)
	if got := apptest.Metric(t, s, `spillway_spool_overloads_total{limit="disk"}`); got != float64(rounds) {
		t.Errorf("%v requests refused because of the disk, want %d", got, rounds)
	}
	apptest.Await(t, "there is room again", func() bool {
		return apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, accepted)).Status == 202
	})
}
