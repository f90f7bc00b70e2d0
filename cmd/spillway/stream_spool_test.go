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

// TestStreamSpool takes records while the database is down, is killed, starts without
// the database, and stores each record once when that is back.
func TestStreamSpool(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	p := postgresPlace(t, server)
	s := p.serve(t, readings+"    ack: spool\n")
	eventually(t, "it is known what the database makes of a commit", func() bool {
		return strings.Contains(string(fetch(t, s.Admin+"/readyz").body), `"ack":"spool, then a database not fsynced: fsync=off, full_page_writes=off"`)
	})
	var want []int
	take := func(n int) {
		t.Helper()
		for range n {
			id := len(want) + 1
			wantSpooled(t, post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id), "Idempotency-Key", fmt.Sprint(id)), 1)
			want = append(want, id)
		}
	}
	take(5)
	eventually(t, "records are drained", func() bool { return len(p.ids(t)) == 5 })
	server.Kill()
	take(20)
	if a := fetch(t, s.Admin+"/readyz"); a.status != 200 {
		t.Errorf("with the database down: %d %s", a.status, a.body)
	}
	s.Kill()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	take(20)
	wantAnswer(t, post(t, s.URL("readings"), `{"id":45}`, "Idempotency-Key", "45"), 202, `{"stored":1,"ack":"spool","replayed":true}`)
	if n := metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`); n != 40 {
		t.Errorf("%v records wait", n)
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
	eventually(t, "all is drained", func() bool { return len(p.ids(t)) >= len(want) })
	wantSpooled(t, post(t, s.URL("readings"), `[{"id":46,"value":13},{"id":47}]`), 2)
	want = append(want, 47)
	eventually(t, "one is refused by the database", func() bool {
		return metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`) == 1 && len(p.ids(t)) == len(want)
	})
	if ids := p.ids(t); !slices.Equal(ids, want) {
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

// Popups wait for their database at start although a stream could do without it.
func TestStreamSpoolBesidePopups(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	p := postgresPlace(t, server)
	p.query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	p.query(t, "CHECKPOINT") // the server does not sync: it would lose the table
	server.Kill()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(readings+"    ack: spool\npopups:\n  path: /popup\n  placements: [home]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := apptest.Serve(t, shared.binary, "--database", p.url, file)
	eventually(t, "it waits", func() bool { return strings.Contains(s.Log(t), "waiting for it") })
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	wantSpooled(t, post(t, s.URL("readings"), `{"id":1}`), 1)
}

// wantSpooled wants records to be in the spool; what the database makes of them later
// may be known or not.
func wantSpooled(t *testing.T, a answer, records int) {
	t.Helper()
	if a.status != 202 || !strings.HasPrefix(string(a.body), fmt.Sprintf(`{"stored":%d,"ack":"spool`, records)) {
		t.Errorf("%d %s, want %d in the spool", a.status, a.body, records)
	}
}

// TestStreamSpoolFull fills the spool while the database is down: readiness says no first,
// then records are refused with 503, and what was taken is stored when it is back.
func TestStreamSpoolFull(t *testing.T) {
	t.Parallel()
	server := apptest.Postgres(t)
	p := postgresPlace(t, server)
	s := p.serve(t, "spool: {bytes: 1048576}\n"+readings+"    ack: spool\n")
	p.query(t, "CHECKPOINT") // the server does not sync: it would lose the table
	server.Kill()
	notReady, taken := -1, 0
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
		taken = request + 1
		if notReady < 0 && !isReady(t, s.Admin) {
			notReady = request
		}
	}
	wantAnswer(t, full, 503, "busy spool_bytes")
	if full.header.Get("Retry-After") == "" || metric(t, s, `spillway_spool_overloads_total{limit="spool_bytes"}`) != 1 {
		t.Errorf("%v", full.header)
	}
	if notReady < 0 || notReady >= taken-3 {
		t.Errorf("not ready from request %d on, refused after %d", notReady, taken)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is drained", func() bool { return len(p.ids(t)) >= 100*taken })
	if ids := p.ids(t); len(ids) != 100*taken || ids[len(ids)-1] != 100*taken-1 || len(slices.Compact(ids)) != 100*taken {
		t.Errorf("%d stored, %d taken", len(ids), 100*taken)
	}
	eventually(t, "there is room again", func() bool {
		return post(t, s.URL("readings"), `{"id":1000000}`).status == 202 && isReady(t, s.Admin)
	})
}
