package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
)

// TestStreamSpool: the server accepts records while the database is down, is killed, and
// starts without the database. When the database is back, each record is stored once.
func TestStreamSpool(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := postgresDatabase(t, server)
	s := db.serve(t, readings+"    ack: spool\n")
	eventually(t, "the durability of the database is known", func() bool {
		return strings.Contains(string(fetch(t, s.Admin+"/readyz").body), `"ack":"spool, then a database not fsynced: fsync=off, full_page_writes=off"`)
	})
	var want []int
	postEach := func(n int) {
		t.Helper()
		for range n {
			id := len(want) + 1
			wantSpooled(t, post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id), "Idempotency-Key", fmt.Sprint(id)), 1)
			want = append(want, id)
		}
	}
	postEach(5)
	eventually(t, "records are drained", func() bool { return len(db.ids(t)) == 5 })
	server.Kill()
	postEach(20)
	if a := fetch(t, s.Admin+"/readyz"); a.status != 200 {
		t.Errorf("with the database down: %d %s", a.status, a.body)
	}
	s.Kill()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	postEach(20)
	wantAnswer(t, post(t, s.URL("readings"), `{"id":45}`, "Idempotency-Key", "45"), 202, `{"stored":1,"ack":"spool","replayed":true}`)
	if n := metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`); n != 40 {
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
	eventually(t, "all is drained", func() bool { return len(db.ids(t)) >= len(want) })
	wantSpooled(t, post(t, s.URL("readings"), `[{"id":46,"value":13},{"id":47}]`), 2)
	want = append(want, 47)
	eventually(t, "the database refuses one record", func() bool {
		return metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`) == 1 && len(db.ids(t)) == len(want)
	})
	if ids := db.ids(t); !slices.Equal(ids, want) {
		t.Errorf("stored %v", ids)
	}
	if err := s.Stop(); err != nil || !strings.Contains(s.Log(t), "every accepted record stored") {
		t.Errorf("stop: %v\n%s", err, s.Log(t))
	}
	stdout, stderr, code := spillway(t, "spool", "status", "--data", s.Dir()+"/data")
	if code != exit.Failed || !strings.Contains(stdout, "/readings") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// A spooled stream accepts records while popups wait for the database of both.
func TestStreamSpoolBesidePopups(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := postgresDatabase(t, server)
	db.query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	db.query(t, "CHECKPOINT") // the server does not sync: it would lose the table
	server.Kill()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(readings+"    ack: spool\npopups:\n  path: /popup\n  placements: [home]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, shared.binary, "--database", db.url, file)
	eventually(t, "the stream accepts records", func() bool { return fetch(t, s.Admin+"/readyz/writes").status == 200 })
	wantSpooled(t, post(t, s.URL("readings"), `{"id":1}`), 1)
	if a := fetch(t, s.URL("popup?user=1")); a.status != 503 {
		t.Errorf("popup: %d %s", a.status, a.body)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	wantSpooled(t, post(t, s.URL("readings"), `{"id":2}`), 1)
	eventually(t, "all is drained", func() bool { return slices.Equal(db.ids(t), []int{1, 2}) })
}

// wantSpooled checks that the answer acknowledges records in the spool. It ignores the part
// about the database.
func wantSpooled(t *testing.T, a answer, records int) {
	t.Helper()
	if a.status != 202 || !strings.HasPrefix(string(a.body), fmt.Sprintf(`{"stored":%d,"ack":"spool`, records)) {
		t.Errorf("%d %s, want %d in the spool", a.status, a.body, records)
	}
}

// TestStreamSpoolFull fills the spool while the database is down. The stream is first named as
// nearly full, then refuses records with 503. Accepted records are stored later.
func TestStreamSpoolFull(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	db := postgresDatabase(t, server)
	s := db.serve(t, "spool: {bytes: 1048576}\n"+readings+"    ack: spool\n")
	db.query(t, "CHECKPOINT") // the server does not sync: it would lose the table
	server.Kill()
	named, accepted := -1, 0
	var full answer
	for request := range 2000 {
		var records []string
		for i := range 100 {
			records = append(records, fmt.Sprintf(`{"id":%d,"note":"0123456789"}`, 100*request+i))
		}
		full = post(t, s.URL("readings"), "["+strings.Join(records, ",")+"]")
		if full.status != 202 {
			break
		}
		accepted = request + 1
		if _, reason := readyz(t, s, "/readyz/writes", "POST /readings"); named < 0 && strings.HasPrefix(reason, "true nearly full") {
			named = request
		}
	}
	wantAnswer(t, full, 503, "busy spool_bytes")
	if full.header.Get("Retry-After") == "" || metric(t, s, `spillway_spool_overloads_total{limit="spool_bytes"}`) != 1 {
		t.Errorf("%v", full.header)
	}
	if named < 0 || named >= accepted-3 {
		t.Errorf("named since request %d, refused after %d requests", named, accepted)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is drained", func() bool { return len(db.ids(t)) >= 100*accepted })
	if ids := db.ids(t); len(ids) != 100*accepted || ids[len(ids)-1] != 100*accepted-1 || len(slices.Compact(ids)) != 100*accepted {
		t.Errorf("%d stored, %d accepted", len(ids), 100*accepted)
	}
	eventually(t, "there is room again", func() bool {
		return post(t, s.URL("readings"), `{"id":1000000}`).status == 202 && isReady(t, s.Admin)
	})
}
