package streamtest

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
)

// TestStreamSpool: the server accepts records while the database is down, is killed, and
// starts without the database. When the database is back, each record is stored once.
func TestStreamSpool(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := storetest.PostgresDatabase(t, server)
	s := db.ServeReadings(t, &binary, apptest.Readings+"    ack: spool\n")
	apptest.Await(t, "the durability of the database is known", func() bool {
		return strings.Contains(string(apptest.Fetch(t, s.Admin+"/readyz").Body), `"ack":"spool, then a database not fsynced: fsync=off, full_page_writes=off"`)
	})
	var want []int
	postEach := func(n int) {
		t.Helper()
		for range n {
			id := len(want) + 1
			apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id), "Idempotency-Key", fmt.Sprint(id)), 1)
			want = append(want, id)
		}
	}
	postEach(5)
	apptest.Await(t, "records are drained", func() bool { return len(db.IDs(t)) == 5 })
	server.Kill()
	postEach(20)
	if a := apptest.Fetch(t, s.Admin+"/readyz"); a.Status != 200 {
		t.Errorf("with the database down: %d %s", a.Status, a.Body)
	}
	s.Kill()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	postEach(20)
	apptest.WantAnswer(t, apptest.Post(t, s.URL("readings"), `{"id":45}`, "Idempotency-Key", "45"), 202, `{"stored":1,"ack":"spool","replayed":true}`)
	if n := apptest.Metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`); n != 40 {
		t.Errorf("%v records wait, want 40", n)
	}
	if err := s.Stop(); err != nil || !strings.Contains(s.Log(t), "records wait in the spool") || !strings.Contains(s.Log(t), "waiting./readings=40") {
		t.Errorf("stop: %v\n%s", err, s.Log(t))
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "all is drained", func() bool { return len(db.IDs(t)) >= len(want) })
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `[{"id":46,"value":13},{"id":47}]`), 2)
	want = append(want, 47)
	apptest.Await(t, "the database refuses one record", func() bool {
		return apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`) == 1 && len(db.IDs(t)) == len(want)
	})
	if ids := db.IDs(t); !slices.Equal(ids, want) {
		t.Errorf("stored %v", ids)
	}
	if err := s.Stop(); err != nil || !strings.Contains(s.Log(t), "every accepted record stored") {
		t.Errorf("stop: %v\n%s", err, s.Log(t))
	}
	stdout, stderr, code := binary.Run(t, "spool", "status", "--data", s.Dir()+"/data")
	if code != exit.Failed || !strings.Contains(stdout, "/readings") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// A spooled stream accepts records while popups wait for the database of both.
func TestStreamSpoolBesidePopups(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := storetest.PostgresDatabase(t, server)
	db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	db.Query(t, "CHECKPOINT") // the server does not sync: it would lose the table
	server.Kill()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(apptest.Readings+"    ack: spool\npopups:\n  path: /popup\n  placements: [home]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, binary.Path(t), "--database", db.URL, file)
	apptest.Await(t, "the stream accepts records", func() bool { return apptest.Fetch(t, s.Admin+"/readyz/writes").Status == 200 })
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":1}`), 1)
	if a := apptest.Fetch(t, s.URL("popup?user=1")); a.Status != 503 {
		t.Errorf("popup: %d %s", a.Status, a.Body)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":2}`), 1)
	apptest.Await(t, "all is drained", func() bool { return slices.Equal(db.IDs(t), []int{1, 2}) })
}

// serveNotes serves the spooled stream readings with long notes.
func serveNotes(t *testing.T, db storetest.Database, config string, args ...string) *apptest.Spillway {
	t.Helper()
	db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note text)")
	config += strings.Replace(apptest.Readings, "max_length: 10", "max_length: 1000", 1) + "    ack: spool\n"
	return apptest.ServeText(t, &binary, config, db.URL, args...)
}

// longNotes returns records with the ids from first and notes that can hardly be compressed, so
// that few records fill a spool.
func longNotes(first, records int) string {
	var all []string
	for id := first; id < first+records; id++ {
		note := make([]byte, 500)
		_, _ = rand.Read(note) // never fails
		all = append(all, fmt.Sprintf(`{"id":%d,"note":"%x"}`, id, note))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// TestStreamSpoolFull fills the spool while the database is down. The stream is first named as
// nearly full, then refuses records with 503. Accepted records are stored later.
func TestStreamSpoolFull(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := storetest.PostgresDatabase(t, server)
	s := serveNotes(t, db, "spool: {bytes: 1048576}\n")
	db.Query(t, "CHECKPOINT") // the server does not sync: it would lose the table
	server.Kill()
	named, accepted := -1, 0
	var full apptest.Answer
	const records = 10
	for request := range 2000 {
		full = apptest.Post(t, s.URL("readings"), longNotes(records*request, records))
		if full.Status != 202 {
			break
		}
		accepted = request + 1
		if _, reason := apptest.Readyz(t, s, "/readyz/writes", "POST /readings"); named < 0 && strings.HasPrefix(reason, "true nearly full") {
			named = request
		}
	}
	apptest.WantAnswer(t, full, 503, "busy spool_bytes")
	if full.Header.Get("Retry-After") == "" || apptest.Metric(t, s, `spillway_spool_overloads_total{limit="spool_bytes"}`) != 1 {
		t.Errorf("%v", full.Header)
	}
	t.Logf("nearly full since request %d, %d requests accepted", named, accepted)
	if named < 0 || named >= accepted-3 {
		t.Errorf("named since request %d, refused after %d requests, want three or more between them", named, accepted)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "all is drained", func() bool { return apptest.Metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`) == 0 })
	if ids := db.IDs(t); len(ids) != records*accepted || ids[len(ids)-1] != records*accepted-1 || len(slices.Compact(ids)) != records*accepted {
		t.Errorf("%d stored, %d accepted", len(ids), records*accepted)
	}
	apptest.Await(t, "there is room again", func() bool {
		return apptest.Post(t, s.URL("readings"), `{"id":1000000}`).Status == 202 && apptest.IsReady(t, s.Admin)
	})
}
