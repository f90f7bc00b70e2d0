package streamtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// TestStreamSyncsBeforeAnswer traces the server with strace. Between the last write to the
// WAL of the database or the spool and the HTTP answer, an fsync of the WAL must have ended.
// With fsync disabled the test must find no such fsync.
func TestStreamSyncsBeforeAnswer(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal("this test needs strace: apt-get install strace")
	}
	for _, c := range []struct {
		name, settings, log string
		unsynced            int
	}{
		{"database", "", "app.db-wal", 0},
		{"spool", "    ack: spool\n", "spool.db-wal", 0},
		{"not synced", "    fsync: \"off\"\n", "app.db-wal", syncPosts},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace, listener := postTraced(t, apptest.Readings+c.settings)
			answers, unsynced := answersBeforeSync(trace, c.log, listener)
			if answers != syncPosts || unsynced != c.unsynced {
				t.Errorf("%d answers, want %d; %d of them before the sync, want %d", answers, syncPosts, unsynced, c.unsynced)
			}
		})
	}
}

const syncPosts = 20

// postTraced posts records one by one to a server that runs under strace, and returns the
// trace and the server's address.
func postTraced(t *testing.T, config string) (trace, listener string) {
	t.Helper()
	db := storetest.SQLiteDatabase(t)
	db.Query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	dir := t.TempDir()
	file, trace, traced := filepath.Join(dir, "spillway.yaml"), filepath.Join(dir, "trace"), filepath.Join(dir, "traced")
	// With -D strace is the grandchild, so signals reach the server.
	script := fmt.Sprintf("#!/bin/sh\nexec strace -D -f -yy -s 16 -e trace=pwrite64,write,sendto,fsync,fdatasync -o %s %s \"$@\"\n", trace, binary.Path(t))
	for name, text := range map[string]string{file: config, traced: script} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := apptest.Serve(t, traced, "--database", db.URL, file)
	s.WaitReady(t)
	if strings.Contains(config, "ack: spool") {
		db.Query(t, "DROP TABLE readings") // otherwise the drain would write to the same WAL
	}
	for i := range syncPosts {
		if a := apptest.Post(t, s.URL("readings"), fmt.Sprintf(`{"id":%d}`, i)); a.Status != 200 && a.Status != 202 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatalf("strace (it requires permission to trace its children): %v\n%s", err, s.Log(t))
	}
	var text []byte
	apptest.Await(t, "strace has written its last line", func() bool {
		var err error
		text, err = os.ReadFile(trace)
		return err == nil && strings.Contains(string(text), "+++ exited with 0 +++")
	})
	return string(text), s.Addr()
}

var tracedCall = regexp.MustCompile(`^(\d+) +(?:<\.\.\. )?(\w+)(.*)$`)

// answersBeforeSync returns how many answers the server wrote, and how many of them were not
// preceded by an fsync of the log that ended after the previous answer and after the last
// write to the log.
func answersBeforeSync(trace, log, listener string) (answers, unsynced int) {
	dirty, synced := false, false
	syncing := make(map[string]bool) // threads in an fsync; true if it is of the log
	for line := range strings.Lines(trace) {
		m := tracedCall.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		thread, call, rest := m[1], m[2], m[3]
		ours := strings.Contains(rest, log+">")
		switch {
		case call == "pwrite64" && ours:
			dirty = true
		case call == "fsync" || call == "fdatasync":
			if strings.Contains(rest, "unfinished") {
				syncing[thread] = ours
				continue
			}
			if strings.Contains(rest, "resumed") {
				ours = syncing[thread]
			}
			if ours && strings.HasSuffix(rest, "= 0") {
				dirty, synced = false, true
			}
		case (call == "write" || call == "sendto") && strings.Contains(rest, "TCP:["+listener+"->") && strings.Contains(rest, `"HTTP/1.1 `):
			answers++
			if dirty || !synced {
				unsynced++
			}
			synced = false
		}
	}
	return answers, unsynced
}
