package streamtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestStreamSpoolDiskFull fills the spool's disk while the database is down, twice. The spool
// keeps the space that its drain needs, so every acknowledged record is stored, and the
// drain frees space for new records.
func TestStreamSpoolDiskFull(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := storetest.PostgresDatabase(t, server)
	s := db.ServeReadings(t, &binary, apptest.Readings+"    ack: spool\n", "--data", apptest.NewSmallDisk(t, 16).Path)
	accepted := 0
	for range 2 {
		server.Kill()
		for refused := false; !refused; {
			var records []string
			for i := range 1000 {
				records = append(records, fmt.Sprintf(`{"id":%d,"note":"0123456789"}`, accepted+i))
			}
			a := apptest.Post(t, s.URL("readings"), "["+strings.Join(records, ",")+"]")
			switch refused = a.Status != 202; {
			case refused:
				apptest.WantAnswer(t, a, 503, "busy disk")
			default:
				accepted += len(records)
			}
			if accepted > 1_000_000 {
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
	if got := apptest.Metric(t, s, `spillway_spool_overloads_total{limit="disk"}`); got != 2 {
		t.Errorf("%v requests refused because of the disk, want 2", got)
	}
}
