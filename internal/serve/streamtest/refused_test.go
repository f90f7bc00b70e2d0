package streamtest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
)

// spoil makes an insert into a table fail for records with the note spoil, with an error that
// is not one of the record.
const spoil = "CREATE TRIGGER spoil_%[1]s BEFORE INSERT ON %[1]s WHEN NEW.note = 'spoil' BEGIN SELECT json('{'); END"

// TestStreamSpoiled: a record that makes the transaction fail gets 500. The others that were
// sent at the same time are stored.
func TestStreamSpoiled(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	s := db.ServeReadings(t, &binary, apptest.Readings)
	db.Query(t, fmt.Sprintf(spoil, "readings"))
	const rounds, clients = 5, 40
	var want []int
	for round := range rounds {
		var group sync.WaitGroup
		for client := range clients {
			id, note, status := round*clients+client, "good", 200
			if client == 3 || client == 20 {
				note, status = "spoil", 500
			} else {
				want = append(want, id)
			}
			group.Go(func() {
				a, err := apptest.TryPost(t.Context(), http.DefaultClient, s.URL("readings"), fmt.Sprintf(`{"id":%d,"note":%q}`, id, note))
				if err != nil || a.Status != status {
					t.Errorf("record %d: %d %s, %v, want %d", id, a.Status, a.Body, err, status)
				}
			})
		}
		group.Wait()
	}
	if ids := db.IDs(t); !slices.Equal(ids, want) {
		t.Errorf("stored %v", ids)
	}
}

// TestStreamSpoolHeld: the drain holds a record that is refused for a reason that may be the
// database's, and the process is not ready. When a later record is stored, the first becomes
// a dead letter.
func TestStreamSpoolHeld(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	s := db.ServeReadings(t, &binary, apptest.Readings+"    ack: spool\n")
	db.Query(t, fmt.Sprintf(spoil, "readings"))
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `[{"id":1},{"id":2,"note":"spoil"}]`), 2)
	apptest.Await(t, "the drain holds the record", func() bool {
		a := apptest.Fetch(t, s.Admin+"/readyz")
		return a.Status == 503 && strings.Contains(string(a.Body), "a record is refused, and no later one was stored")
	})
	if n := apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`); n != 0 || len(db.IDs(t)) != 0 {
		t.Errorf("%v dead letters, stored %v", n, db.IDs(t))
	}
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":3}`), 1)
	apptest.Await(t, "a later record is stored", func() bool {
		return slices.Equal(db.IDs(t), []int{1, 3}) && apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`) == 1 && apptest.IsReady(t, s.Admin)
	})
	// A condition of the server makes no dead letter: the table is missing for every record.
	db.Query(t, "ALTER TABLE readings RENAME TO elsewhere")
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":4}`), 1)
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":5}`), 1)
	apptest.Await(t, "the drain waits for the table", func() bool { return !apptest.IsReady(t, s.Admin) })
	db.Query(t, "ALTER TABLE elsewhere RENAME TO readings")
	apptest.Await(t, "the table is back", func() bool { return slices.Equal(db.IDs(t), []int{1, 3, 4, 5}) && apptest.IsReady(t, s.Admin) })
	if n := apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`); n != 1 {
		t.Errorf("%v dead letters, want 1", n)
	}
}

// TestStreamSpoolShares: a stream that cannot be drained fills its share of the spool only.
// The other stream goes on.
func TestStreamSpoolShares(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	db.Query(t, "CREATE TABLE stuck (id bigint NOT NULL, note text)")
	db.Query(t, fmt.Sprintf(spoil, "stuck"))
	s := db.ServeReadings(t, &binary, "spool: {bytes: 4194304}\n"+apptest.Readings+"    ack: spool\n"+
		"  - {path: /stuck, table: stuck, columns: {id: integer, note: text}, ack: spool}\n")
	var body strings.Builder
	for id := range 1000 {
		fmt.Fprintf(&body, "{\"id\":%d,\"note\":\"spoil\"}\n", id)
	}
	full := apptest.Answer{}
	for range 500 {
		if full = apptest.Post(t, s.URL("stuck"), body.String(), "Content-Type", "application/x-ndjson"); full.Status != 202 {
			break
		}
	}
	apptest.WantAnswer(t, full, 503, "busy spool_bytes")
	for id := range 100 {
		apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id)), 1)
	}
	apptest.Await(t, "the other stream is drained", func() bool { return len(db.IDs(t)) == 100 })
	if used := apptest.Metric(t, s, "spillway_spool_used_bytes"); used > 3<<20 {
		t.Errorf("%v bytes in use", used)
	}
}

// TestStreamSpoolMaxAge: a request with an idempotency key that has waited longer than
// spool.max_age becomes a dead letter in doubt.
func TestStreamSpoolMaxAge(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	s := db.ServeReadings(t, &binary, "spool: {max_age: 1s}\n"+apptest.Readings+"    ack: spool\n    commit_timeout: 100ms\n")
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 1)
	apptest.Await(t, "the first record is drained", func() bool { return len(db.IDs(t)) == 1 })
	conn, err := sqlite.OpenConn(strings.TrimPrefix(db.URL, "sqlite:"), sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := sqlitex.ExecuteTransient(conn, "BEGIN IMMEDIATE", nil); err != nil {
		t.Fatal(err)
	}
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":2}`, "Idempotency-Key", "two"), 1)
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":3}`), 1)
	apptest.Await(t, "the records are older than max_age", func() bool {
		return apptest.Metric(t, s, `spillway_spool_backlog_age_seconds{stream="/readings"}`) > 3 // an attempt takes 100 ms
	})
	if err := sqlitex.ExecuteTransient(conn, "ROLLBACK", nil); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the rest is drained", func() bool {
		return slices.Equal(db.IDs(t), []int{1, 3}) && apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`) == 1
	})
	stdout, stderr, code := binary.Run(t, "spool", "export", "--dead", "--data", s.Dir()+"/data")
	if code != exit.OK || !strings.Contains(stdout, "spool.max_age") || !strings.Contains(stdout, `"in_doubt":true`) || !strings.Contains(stdout, `"id":2`) {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestStreamKeyEmpty: an empty Idempotency-Key is a mistake of the client.
func TestStreamKeyEmpty(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	s := db.ServeReadings(t, &binary, apptest.Readings)
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":1}`, "Idempotency-Key", ""), 400, "bad-request Idempotency-Key is empty")
	if ids := db.IDs(t); len(ids) != 0 {
		t.Errorf("stored %v", ids)
	}
}
