package streamtest

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestStreamNotReadyWhileRefused: while the database refuses every record, the process is not
// ready, although the database executes other statements.
func TestStreamNotReadyWhileRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ breakSQL, repairSQL string }{
		"privilege": {"REVOKE INSERT ON readings FROM writer", "GRANT INSERT ON readings TO writer"},
		"trigger": {
			`CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM no_such_function(); RETURN new; END';
			CREATE TRIGGER broken BEFORE INSERT ON readings FOR EACH ROW EXECUTE FUNCTION broken()`, "DROP TRIGGER broken ON readings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := storetest.PostgresDatabase(t, postgres.Get(t))
			db.Query(t, `DO $$ BEGIN CREATE ROLE writer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$; GRANT ALL ON SCHEMA public TO writer`)
			writer, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			writer.User = url.User("writer")
			db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20)); GRANT ALL ON readings TO writer")
			s := apptest.ServeText(t, &binary, apptest.Readings, writer.String())
			if a := apptest.Post(t, s.URL("readings"), `{"id":1}`); a.Status != 200 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			db.Query(t, c.breakSQL)
			var readyCount int
			for id := range 20 { // two seconds, several health checks
				if a := apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, 10+id)); a.Status != 500 {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				if apptest.IsReady(t, s.Admin) {
					readyCount++
				}
				apptest.Pause(t)
			}
			for range 20 {
				if apptest.IsReady(t, s.Admin) {
					readyCount++
				}
				apptest.Pause(t)
			}
			if readyCount > 0 {
				t.Errorf("ready %d times while every record is refused", readyCount)
			}
			db.Query(t, c.repairSQL)
			apptest.Await(t, "a record is stored again", func() bool { return apptest.Post(t, s.URL("readings"), `{"id":2}`).Status == 200 })
			if a := apptest.Fetch(t, s.Admin+"/readyz"); a.Status != 200 || !strings.Contains(string(a.Body), `"streams":[{"stream":"/readings","ack":"database`) {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		})
	}
}

// TestStreamNamedBeforeRefusing fills a queue. The stream is ready as long as it accepts
// records, and is named before it refuses the first one.
func TestStreamNamedBeforeRefusing(t *testing.T) {
	t.Parallel()
	db := storetest.PostgresDatabase(t, postgres.Get(t))
	s := db.ServeReadings(t, &binary, patientPool+apptest.Readings+"    records_max: 100\n    batch_rows: 100\n    queue_rows: 1000\n    committers: 2\n"+patient)
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(t, conn, "BEGIN")
	apptest.Execute(t, conn, "LOCK TABLE readings")
	var waiting sync.WaitGroup
	var stored, refused int
	var mu sync.Mutex
	named, firstRefused := -1, -1
	const committers = 2
	refusals := func() float64 {
		return apptest.Metric(t, s, `spillway_stream_overloads_total{limit="queue_rows",stream="/readings"}`)
	}
	for request := range 40 {
		var records []string
		for i := range 50 {
			records = append(records, fmt.Sprintf(`{"id":%d}`, 50*request+i))
		}
		waiting.Go(func() {
			a, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL("readings"), "["+strings.Join(records, ",")+"]")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && a.Status == 200:
				stored += 50
			case err == nil && a.Status == 503 && strings.Contains(string(a.Body), "queue_rows"):
				refused++
			default:
				t.Errorf("%d %s %v", a.Status, a.Body, err)
			}
		})
		apptest.AwaitState(t, fmt.Sprintf("request %d is committed, queued or refused", request), func() (string, bool) {
			committing := int(apptest.Metric(t, s, `spillway_stream_committing{stream="/readings"}`))
			rows := int(apptest.Metric(t, s, `spillway_stream_queue_rows{stream="/readings"}`))
			taken := committing == min(request+1, committers) && rows == 50*max(0, request+1-committers)
			return fmt.Sprintf("%d transactions, %d rows in the queue", committing, rows), taken || refusals() > 0
		})
		var reason string
		// A probe of the database may be late on a busy machine. The next one is not.
		apptest.AwaitState(t, fmt.Sprintf("the stream is ready or full after request %d", request), func() (string, bool) {
			var status int
			status, reason = apptest.Readyz(t, s, "/readyz/writes", "POST /readings")
			return fmt.Sprint(status, " ", reason), status == 200 || strings.HasPrefix(reason, "false 1000 records wait")
		})
		if named < 0 && strings.HasPrefix(reason, "true nearly full") {
			named = request
		}
		if refusals() > 0 {
			firstRefused = request
			break
		}
	}
	apptest.Execute(t, conn, "ROLLBACK")
	waiting.Wait()
	if named < 0 || firstRefused < 0 || named >= firstRefused-3 {
		t.Errorf("named since request %d, first refusal at request %d, want both, and three requests between them", named, firstRefused)
	}
	if ids := db.IDs(t); len(ids) != stored || refused != 1 {
		t.Errorf("%d stored, %d acknowledged, %d requests refused, want 1", len(ids), stored, refused)
	}
}
