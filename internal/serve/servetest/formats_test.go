package servetest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// What version 0.1.0 left behind is read: its spool with two records and a dead letter, its event log with a show, and its tables. The
// process was killed while its database was away.
func TestFormatsOfVersion010(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from := filepath.Join("testdata", "0.1.0")
	data := filepath.Join(dir, "data")
	if err := os.CopyFS(data, os.DirFS(filepath.Join(from, "data"))); err != nil {
		t.Fatal(err)
	}
	tables, err := os.ReadFile(filepath.Join(from, "postgres.sql"))
	if err != nil {
		t.Fatal(err)
	}
	url := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	apptest.Execute(t, conn, string(tables))

	s := apptest.ServeText(t, &binary, `
streams:
  - {path: /readings, table: readings, ack: spool, columns: {id: {type: integer, required: true}, note: text}}
popups: {path: /popup, store: memory, user_type: integer}
`, url, "--data", data)
	count := func(sql string) (n int) {
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	apptest.AwaitState(t, "two records and two shows are stored, once each", func() (string, bool) {
		records, shows := count("SELECT count(*) FROM readings WHERE id IN (2, 3)"), count("SELECT count(*) FROM popup_events")
		return fmt.Sprint(records, " records, ", shows, " shows"), records == 2 && shows == 2
	})
	s.WaitReady(t)
	if n := apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`); n != 1 {
		t.Errorf("%v dead letters", n)
	}
	if n := count("SELECT count(*) FROM popup_state WHERE sequence = 1"); n != 2 {
		t.Errorf("the popups of %d users are known, want 2", n)
	}
}
