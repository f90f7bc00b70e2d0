package servetest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// TestMemoryOfWindows asks for 60 values whose windows have 4 MB each, three times, and then for
// nothing. Without windows_bytes, the windows alone would have 240 MB.
func TestMemoryOfWindows(t *testing.T) {
	t.Parallel()
	database := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "CREATE TABLE large (id bigint PRIMARY KEY, body text)")
	apptest.Execute(t, conn, "INSERT INTO large SELECT id, repeat(md5(id::text), 640) FROM generate_series(1, 400) AS id")
	apptest.Execute(t, conn, "ANALYZE large")
	s := apptest.ServePatiently(t, &binary, `feeds:
  - path: /large
    sql: SELECT id, body FROM large WHERE :any >= 0
    params: {any: integer}
    key: [id]
    windows_bytes: 16777216
    idle_after: 100ms
    refresh: 100ms
    stale_max: 1s
`, database)
	start := memoryOf(t, s)
	most := start
	for round := range 3 {
		for value := range 60 {
			apptest.AwaitState(t, "the rows", func() (string, bool) { // 503 if the machine is slower than stale_max
				a := apptest.Fetch(t, s.URL(fmt.Sprintf("large?any=%d&limit=1", value)))
				return fmt.Sprintf("%d %s", a.Status, a.Body), a.Status == http.StatusOK
			})
			most = max(most, memoryOf(t, s))
		}
		t.Logf("round %d: %d MB resident, at most %d; windows %v of %.0f MB", round, memoryOf(t, s)>>20, most>>20,
			apptest.Metric(t, s, `spillway_feed_windows{feed="/large"}`), apptest.Metric(t, s, `spillway_feed_window_bytes{feed="/large"}`)/(1<<20))
		if held := apptest.Metric(t, s, `spillway_feed_window_bytes{feed="/large"}`); held == 0 || held > 16<<20 {
			t.Errorf("the windows have %.0f bytes", held)
		}
	}
	if grown := most - start; grown > 160<<20 {
		t.Errorf("the process grew by %d MB", grown>>20)
	}
	began := time.Now()
	apptest.Await(t, "windows that are not used are freed", func() bool {
		return apptest.Metric(t, s, `spillway_feed_window_bytes{feed="/large"}`) == 0
	})
	t.Logf("%d MB resident %s after the last request", memoryOf(t, s)>>20, time.Since(began).Round(time.Millisecond))
}

var resident = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// memoryOf returns the resident memory of a process in bytes.
func memoryOf(t *testing.T, s *apptest.Spillway) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	found := resident.FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s", text)
	}
	kilobytes, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}
