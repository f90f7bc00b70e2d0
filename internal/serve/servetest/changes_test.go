package servetest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// Who changed what is there after a crash, in the database of the campaigns or in a file. A change that cannot be recorded is made,
// and its answer says so.
func TestChangesAfterCrash(t *testing.T) {
	t.Parallel()
	const feed = "feeds:\n  - {path: /orders, sql: 'SELECT id FROM orders', key: id, limit: %d}\n"
	for name, more := range map[string]string{"file": "", "database": "popups: {path: /popup}\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.SQLiteDatabase(t)
			db.Query(t, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
			file := filepath.Join(t.TempDir(), "spillway.yaml")
			write := func(limit int) {
				t.Helper()
				if err := os.WriteFile(file, fmt.Appendf(nil, feed+more, limit), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(10)
			data := t.TempDir()
			s := apptest.Serve(t, binary.Path(t), "--data", data, "--database", db.URL, file)
			s.WaitReady(t)
			write(20)
			if a := apptest.Fetch(t, s.Admin+"/configuration"); !strings.Contains(string(a.Body), `{"setting":"feeds[0].limit","fixed":false,"now":"10","next":"20"}`) {
				t.Errorf("%s", a.Body)
			}
			if a := apptest.Post(t, s.Admin+"/reload", ""); a.Status != http.StatusNoContent {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			s.Kill()
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			s.WaitReady(t)
			if a := apptest.Fetch(t, s.Admin+"/changes"); !strings.Contains(string(a.Body), `"address":"127.0.0.1","request":"POST /reload","detail":"feeds[0].limit"}`) {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if err := os.MkdirAll(filepath.Join(data, "changes.jsonl.new"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(30)
			want, log := http.StatusInternalServerError, true
			if name == "database" {
				want, log = http.StatusNoContent, false
			}
			if a := apptest.Post(t, s.Admin+"/reload", ""); a.Status != want || strings.Contains(s.Log(t), "change made but not recorded") != log {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if a := apptest.Fetch(t, s.Admin+"/configuration"); !strings.Contains(string(a.Body), `"changes":[]`) {
				t.Errorf("%s", a.Body)
			}
		})
	}
}
