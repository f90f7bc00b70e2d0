package streamtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/storetest"
)

func TestSpoolVerbs(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	expect := func(code int, want string, args ...string) string {
		t.Helper()
		stdout, stderr, got := binary.Run(t, append([]string{"spool"}, append(args, "--data", data)...)...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("spool %s: exit %d, want %d and %q:\n%s%s", strings.Join(args, " "), got, code, want, stdout, stderr)
		}
		return stdout
	}
	expect(2, "there is no spool in", "status")
	expect(2, "there is no spool in", "retry")

	storetest.FillSpool(t, data, true, 1, 13, 3)
	var status struct{ Streams []spool.NameStats }
	if err := json.Unmarshal([]byte(expect(0, "", "status", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	if s := status.Streams; len(s) != 1 || s[0].Name != "/readings" || s[0].Groups != 3 || s[0].Rows != 3 || s[0].OldestSeconds <= 0 {
		t.Errorf("status %+v", s)
	}
	lines := expect(0, `"record":{"id":13,"at":"2016-12-01T10:00:00Z","note":"é"}`, "export")
	if n := strings.Count(lines, "\n"); n != 3 {
		t.Errorf("%d lines exported:\n%s", n, lines)
	}
	expect(0, "", "export", "--dead")
	expect(0, "nothing is missing", "repair")

	// One drained record is refused, put back, and refused again.
	storetest.FillSpool(t, data, false)
	expect(1, "1 dead letter", "status")
	expect(0, `"reason":"no luck","record":{"id":13`, "export", "--dead")
	expect(0, "1 dead letter put back", "retry")
	expect(0, `"id":13`, "export")
	storetest.FillSpool(t, data, false)
	expect(0, `"reason":"no luck"`, "export", "--dead", "--stream", "/readings")
	expect(1, "say --yes", "discard")
	expect(0, "1 dead letter deleted", "discard", "--yes")
	expect(0, "/readings", "status")
}

// alterSpool runs SQL on the spool's file in data, which no process has open.
func alterSpool(t *testing.T, data, sql string) {
	t.Helper()
	conn, err := driver.OpenConn(spool.Path(data), driver.OpenReadWrite)
	if err == nil {
		err = errors.Join(sqlitex.ExecuteScript(conn, sql, nil), conn.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unreachable is the database of a server whose spool is not drained.
const unreachable = "postgres://nobody@127.0.0.1:1/none"

// Dead letters that the database may have are retried with --in-doubt only. A server that has
// the spool open does the work for retry, discard and move, which find it by the file.
func TestSpoolInDoubtVerbs(t *testing.T) {
	t.Parallel()
	s := apptest.ServeText(t, &binary, apptest.Readings+"    ack: spool\n", unreachable)
	data := s.Dir() + "/data"
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	storetest.FillSpool(t, data, false, 13, 13, 13)
	alterSpool(t, data, "UPDATE dead SET in_doubt = 1 WHERE id > 1")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.WaitReady(t)
	steps := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status", "--json"}, 1, `"dead_letters_in_doubt": 2`},
		{[]string{"export", "--dead"}, 0, `"reason":"no luck","in_doubt":true,"record"`},
		{[]string{"retry"}, 1, "1 dead letter put back"},
		{[]string{"retry"}, 1, "2 dead letters may be in the database: compare, then discard them or say --in-doubt"},
		{[]string{"retry", "--in-doubt"}, 0, "2 dead letters put back"},
		{[]string{"status", "--json"}, 0, `"records": 3`},
		{[]string{"discard", "--yes"}, 0, "0 dead letters deleted"},
		{[]string{"move", "/readings", "/readings"}, 2, "to must name another stream"},
		{[]string{"move", "/readings", "/none"}, 2, "there is no stream /none"},
		{[]string{"move", "/none", "/readings"}, 2, "there is nothing under /none"},
		{[]string{"status", "--admin", strings.TrimPrefix(s.Admin, "http://")}, 0, "/readings                         2          3"},
	}
	for _, step := range steps {
		stdout, stderr, code := binary.Run(t, append(append([]string{"spool"}, step.args...), "--data", data)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.want) {
			t.Errorf("%v: exit %d, want %d and %q:\n%s%s", step.args, code, step.code, step.want, stdout, stderr)
		}
	}
}

func TestSpoolRepairVerb(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	storetest.FillSpool(t, data, true, 1, 2, 3, 4)
	alterSpool(t, data, "DELETE FROM groups WHERE id & 0xff = 2; UPDATE groups SET payload = x'00' WHERE id & 0xff = 3;")
	stdout, stderr, code := binary.Run(t, "spool", "repair", "--data", data)
	if code != 1 || !strings.Contains(stdout, "/readings: group 2: missing, accepted after ") ||
		!strings.Contains(stdout, "/readings: group 3: bad checksum, 1 bytes are kept as a dead letter") || !strings.Contains(stderr, "--yes") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if stdout, stderr, code = binary.Run(t, "spool", "export", "--data", data); code != 3 || !strings.Contains(stderr, "the spool is damaged") {
		t.Errorf("export: exit %d\n%s%s", code, stdout, stderr)
	}
	// While a server has the spool open, repair is refused.
	held, err := spool.Open(t.Context(), spool.Path(data), spool.Config{Bytes: 1 << 30, QueueBytes: 1, GroupBytes: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr, code = binary.Run(t, "spool", "repair", "--yes", "--data", data); code != 3 || !strings.Contains(stderr, "in use by another process (pid") {
		t.Errorf("repair: exit %d, %s", code, stderr)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code = binary.Run(t, "spool", "repair", "--yes", "--data", data); code != 0 || !strings.Contains(stdout, "the old file is "+spool.Path(data)+".damaged-") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if stdout, _, code = binary.Run(t, "spool", "export", "--data", data); code != 0 || strings.Count(stdout, "\n") != 2 {
		t.Errorf("export: exit %d\n%s", code, stdout)
	}
	if stdout, _, code = binary.Run(t, "spool", "repair", "--data", data); code != 0 {
		t.Errorf("repair: exit %d\n%s", code, stdout)
	}
}

// A file of a newer version is refused, by name of both versions, and stays as it is.
func TestNewerSpool(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	storetest.FillSpool(t, data, true, 1)
	alterSpool(t, data, "PRAGMA user_version = 99")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(apptest.Readings+"    ack: spool\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"serve", "--strict", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--database", "postgres://nobody@127.0.0.1:1/none", file},
		{"spool", "status"},
		{"spool", "retry"},
		{"spool", "repair", "--yes"},
	} {
		stdout, stderr, code := binary.Run(t, append(args, "--data", data)...)
		if code == exit.OK || !strings.Contains(stderr, "the file has version 99, this program supports version 1") {
			t.Errorf("%s %s: exit %d\n%s%s", args[0], args[1], code, stdout, stderr)
		}
	}
	alterSpool(t, data, "PRAGMA user_version = 1")
	if stdout, stderr, code := binary.Run(t, "spool", "export", "--data", data); code != exit.OK || strings.Count(stdout, "\n") != 1 {
		t.Errorf("export: exit %d\n%s%s", code, stdout, stderr)
	}
}

// Records that a stream has left in the spool, because its ack or its path has changed, are drained
// if there is still a stream with that path. Others are named until they are moved.
func TestSpoolLeftovers(t *testing.T) {
	t.Parallel()
	db := storetest.PostgresDatabase(t, postgres.Get(t))
	db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	write := func(database, path, ack string) {
		t.Helper()
		text := strings.Replace(apptest.Readings, "path: /readings\n    aliases: [/v1/readings]", "path: "+path, 1)
		if err := os.WriteFile(file, []byte("database: "+database+"\n"+text+"    ack: "+ack+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(unreachable, "/readings", "spool")
	s := apptest.Serve(t, binary.Path(t), file)
	restart := func() {
		t.Helper()
		if err := errors.Join(s.Stop(), s.Start()); err != nil {
			t.Fatal(err)
		}
		s.WaitReady(t)
	}
	verb := func(want string, args ...string) {
		t.Helper()
		if stdout, stderr, code := binary.Run(t, append([]string{"spool"}, append(args, "--data", s.Dir()+"/data")...)...); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%v: exit %d, want %q:\n%s%s", args, code, want, stdout, stderr)
		}
	}
	stored := func(want ...int) {
		t.Helper()
		apptest.Await(t, fmt.Sprint("stored are ", want), func() bool { return slices.Equal(db.IDs(t), want) })
	}
	s.WaitReady(t)
	apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":1}`, "Idempotency-Key", "1"), 1)
	write(db.URL, "/readings", "database")
	restart()
	stored(1)

	for id, server := range []string{"runs", "is stopped"} {
		write(unreachable, "/readings", "spool")
		restart()
		apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, id+2)), 1)
		write(db.URL, "/other", []string{"database", "spool"}[id])
		restart()
		apptest.Await(t, "the records are named", func() bool { return strings.Contains(s.Log(t), "records in the spool belong to no stream") })
		if status, reason := apptest.Readyz(t, s, "/readyz/writes", "spool /readings"); status != 200 || !strings.Contains(reason, "1 records and 0 dead letters belong to no stream") {
			t.Errorf("%d %s", status, reason)
		}
		if n := apptest.Metric(t, s, `spillway_spool_undrained_records{stream="/readings"}`); n != 1 {
			t.Errorf("%v records are not drained, want 1", n)
		}
		verb("none: spillway spool move /readings", "status")
		if server == "is stopped" {
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		verb("1 record and 0 dead letters of /readings belong to /other", "move", "/readings", "/other")
		if server == "is stopped" {
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			s.WaitReady(t)
		}
		stored([]int{1, 2, 3}[:id+2]...)
		if _, reason := apptest.Readyz(t, s, "/readyz/writes", "spool /readings"); reason != "" {
			t.Errorf("%s: still named: %s", server, reason)
		}
	}
}
