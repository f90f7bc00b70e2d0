package crashtest

import (
	"bytes"
	"compress/gzip"
	varint "encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	driver "zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/storetest"
)

// The files in testdata/upgrade were written by a program that kept no epochs and wrote
// version 1 of the spool's file, with the tests in generate.txt. For each database they are:
//
//   - tables.sql: all tables, as its program for dumps writes them, without settings of the
//     session and without backslashes before quotes. /readings has the records
//     1, 2, 4, 5 and 7, with the keys k1, k4 and k6. /direct has 1 with the key d1, and 2.
//   - spool.db.gz: the spool of /readings. Group 3 was refused. Groups 4 to 6 wait, although
//     the database has them: the program was stopped before it deleted them. They are record
//     4 with the key k4; 5; 6 and 7 with the key k6, of which the database refused 6. Groups 7
//     to 9 wait and are new: record 8 with the key k8; 9; and 1 with the key k1, once more.
const upgradeStreams = `streams:
  - path: /readings
    table: readings
    columns: {id: {type: integer, required: true}, value: {type: real, max: 1000}, note: {type: text, max_length: 10, default: none}}
    ack: spool
  - path: /direct
    table: direct
    columns: {id: {type: integer, required: true}}
`

const upgradePopups = `popups:
  path: /popup
  placements: [home]
`

// upgradeDatabase is a database with the tables of an earlier version.
type upgradeDatabase struct {
	storetest.Database
	name  string
	later string // an expression: a time in SQL, %s, with %d microseconds added
	now   string // an expression: the time now
	data  string
}

// upgradeDatabases runs a test for each database.
func upgradeDatabases(t *testing.T, test func(t *testing.T, db *upgradeDatabase)) {
	for _, name := range []string{"postgres", "mariadb", "sqlite"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "mariadb" {
				apptest.Long(t)
			}
			db := &upgradeDatabase{name: name, data: filepath.Join(t.TempDir(), "data")}
			switch name {
			case "postgres":
				db.Database = storetest.PostgresDatabase(t, postgres.Get(t))
				db.later, db.now = "%s + interval '%d microseconds'", "now()"
			case "mariadb":
				db.Database = storetest.MariaDatabase(t, apptest.MariaDB(t))
				db.later, db.now = "%s + INTERVAL %d MICROSECOND", "UTC_TIMESTAMP(6)"
			case "sqlite":
				db.Database = storetest.SQLiteDatabase(t)
				db.later, db.now = "%s + %d", fmt.Sprint(time.Now().UnixMicro())
			}
			db.load(t)
			test(t, db)
		})
	}
}

// load fills the database and the spool. All times are moved, as if the earlier version had
// been stopped a minute ago.
func (db *upgradeDatabase) load(t *testing.T) {
	t.Helper()
	dir := filepath.Join("testdata", "upgrade", db.name)
	text, err := os.ReadFile(filepath.Join(dir, "tables.sql"))
	if err != nil {
		t.Fatal(err)
	}
	for statement := range strings.SplitSeq(string(text), ";\n") {
		if strings.TrimSpace(statement) != "" {
			db.Query(t, statement)
		}
	}
	packed, err := os.Open(filepath.Join(dir, "spool.db.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	image, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	file := spool.Path(db.data)
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	moved := moveSpool(t, file)
	for column, table := range map[string]string{"expires_at": "spillway_requests", "created_at": "spillway_batches", "updated_at": "spillway_spools"} {
		db.Query(t, fmt.Sprintf("UPDATE %s SET %s = "+db.later, table, column, column, moved.Microseconds()))
	}
}

// moveSpool adds to all times in a spool's file of version 1 what is missing until a minute
// ago, and returns it.
func moveSpool(t *testing.T, file string) time.Duration {
	t.Helper()
	conn, err := driver.OpenConn(file, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	last := int64(0)
	type group struct {
		id      int64
		payload []byte
	}
	var groups []group
	err = sqlitex.Execute(conn, "SELECT id, at, payload FROM groups ORDER BY id", &sqlitex.ExecOptions{ResultFunc: func(stmt *driver.Stmt) error {
		payload := make([]byte, stmt.ColumnLen(2))
		stmt.ColumnBytes(2, payload)
		groups = append(groups, group{stmt.ColumnInt64(0), payload})
		last = max(last, stmt.ColumnInt64(1))
		return nil
	}})
	if err != nil || len(groups) != 6 {
		t.Fatalf("%d groups: %v", len(groups), err)
	}
	moved := time.Since(time.UnixMicro(last)) - time.Minute
	for _, g := range groups {
		payload := movePayload(t, g.payload, moved)
		const sequenceBits = 44
		sum := crc32.MakeTable(crc32.Castagnoli)
		signed := append([]byte("/readings\x00"), varint.LittleEndian.AppendUint64(nil, uint64(g.id&(1<<sequenceBits-1)))...)
		err := sqlitex.Execute(conn, "UPDATE groups SET at = at + ?, sum = ?, payload = ? WHERE id = ?", &sqlitex.ExecOptions{
			Args: []any{moved.Microseconds(), int64(crc32.Checksum(append(signed, payload...), sum)), payload, g.id},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{"UPDATE keys SET expires_at = expires_at + ?", "UPDATE dead SET at = at + ?"} {
		if err := sqlitex.Execute(conn, sql, &sqlitex.ExecOptions{Args: []any{moved.Microseconds()}}); err != nil {
			t.Fatal(err)
		}
	}
	return moved
}

// movePayload moves the times in a group of version 1.
func movePayload(t *testing.T, payload []byte, moved time.Duration) []byte {
	t.Helper()
	d := queue.Decoder{Rest: payload}
	out := bytes.Clone(d.Take(1))
	n := d.Uvarint()
	out = varint.AppendUvarint(out, n)
	for range n {
		out = varint.AppendVarint(out, d.Varint()+moved.Microseconds())
		out = varint.AppendUvarint(out, d.Uvarint())
		key := d.Bytes()
		out = queue.AppendBytes(out, key)
		if len(key) > 0 {
			out = append(out, d.Take(32)...)
			out = varint.AppendVarint(out, d.Varint()+moved.Microseconds())
		}
		out = queue.AppendBytes(out, d.Bytes())
	}
	if d.Bad || len(d.Rest) > 0 {
		t.Fatalf("a group of version 1 cannot be decoded: %x", payload)
	}
	return out
}

// direct returns the ids that /direct has stored.
func (db *upgradeDatabase) direct(t *testing.T) []string {
	t.Helper()
	var ids []string
	for _, row := range db.Query(t, "SELECT id FROM direct ORDER BY id") {
		ids = append(ids, row[0])
	}
	return ids
}

// drained waits until the spool of /readings is empty.
func drained(t *testing.T, s *apptest.Spillway) {
	t.Helper()
	apptest.Await(t, "the spool is drained", func() bool {
		return apptest.Metric(t, s, `spillway_spool_backlog_records{stream="/readings"}`) == 0 && apptest.IsReady(t, s.Admin)
	})
}

// TestUpgrade: the files and tables of an earlier version are taken over. Nothing of what
// waits is lost, and nothing is stored twice, although a batch was stored and not yet deleted.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	upgradeDatabases(t, func(t *testing.T, db *upgradeDatabase) {
		s := apptest.ServePatiently(t, &binary, upgradeStreams+upgradePopups, db.URL, "--data", db.data)
		want := []int{1, 2, 4, 5, 7, 8, 9}
		check := func(when string) {
			t.Helper()
			drained(t, s)
			if ids := db.IDs(t); !slices.Equal(ids, want) {
				t.Errorf("%s: /readings has %v, want %v", when, ids, want)
			}
			if n := apptest.Metric(t, s, `spillway_spool_dead_letters{stream="/readings"}`); n != 2 {
				t.Errorf("%s: %v dead letters, want records 3 and 6", when, n)
			}
			if ids := db.direct(t); !slices.Equal(ids, []string{"1", "2"}) {
				t.Errorf("%s: /direct has %v", when, ids)
			}
		}
		check("after the upgrade")
		// Requests that the earlier version has stored or accepted are recognized.
		if a := apptest.Post(t, s.URL("direct"), `{"id":1}`, "Idempotency-Key", "d1"); a.Status != 200 || !strings.Contains(string(a.Body), `"replayed":true`) {
			t.Errorf("/direct with the key d1: %d %s", a.Status, a.Body)
		}
		apptest.WantAnswer(t, apptest.Post(t, s.URL("direct"), `{"id":3}`, "Idempotency-Key", "d1"), 409, "key-reused")
		for key, body := range map[string]string{"k1": `{"id":1}`, "k4": `{"id":4}`, "k6": `[{"id":6,"value":13},{"id":7}]`, "k8": `{"id":8}`} {
			if a := apptest.Post(t, s.URL("readings"), body, "Idempotency-Key", key); a.Status != 202 {
				t.Errorf("/readings with the key %s: %d %s", key, a.Status, a.Body)
			}
		}
		check("sent again")
		checkUpgradedPopups(t, s, db)
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
		check("after a restart")
		if err := s.Stop(); err != nil {
			t.Errorf("stop: %v\n%s", err, s.Log(t))
		}
		dead, stderr, code := binary.Run(t, "spool", "export", "--dead", "--data", db.data)
		if code != exit.OK || strings.Count(dead, "\n") != 2 || !strings.Contains(dead, `"id":3`) || !strings.Contains(dead, `"id":6`) {
			t.Errorf("dead letters, exit %d:\n%s%s", code, dead, stderr)
		}
		if version := spoolVersion(t, spool.Path(db.data), 0); version < 2 {
			t.Errorf("the file still has version %d: an earlier program would open it, and mistake its groups", version)
		}
	})
}

// checkUpgradedPopups: campaigns, states, events and counts are those of the earlier version.
// What its tables lack was added.
func checkUpgradedPopups(t *testing.T, s *apptest.Spillway, db *upgradeDatabase) {
	t.Helper()
	if a, shown := apptest.AskPopup(t, s, "user=8"); a.Status != 200 || shown.Campaign != 1 || string(shown.Payload) != `{"n":1}` {
		t.Errorf("a popup for a new user: %d %+v %v", a.Status, shown, a.Header)
	}
	apptest.Await(t, "two popups are counted", func() bool {
		return db.Query(t, "SELECT sum(events) FROM popup_counts WHERE kind = 1")[0][0] == "2"
	})
	users := db.Query(t, "SELECT user_id, variant, CASE WHEN first THEN 1 ELSE 0 END FROM popup_events ORDER BY user_id")
	if fmt.Sprint(users) != "[[7 0 0] [8 0 1]]" {
		t.Errorf("popup events of %v", users)
	}
	if hours := db.Query(t, "SELECT campaign_id, variant, kind, events, users FROM popup_hours"); fmt.Sprint(hours) != "[[1 0 1 1 1]]" {
		t.Errorf("hours: %v", hours)
	}
	if states := db.Query(t, "SELECT count(*) FROM popup_state"); states[0][0] != "2" {
		t.Errorf("%s states", states[0][0])
	}
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns/1/pause", "", 200)
	history := db.Query(t, "SELECT h.campaign_id, h.version - c.version, CASE WHEN c.settings LIKE '{%' THEN 'settings' END FROM popup_history AS h, popup_campaigns AS c")
	if fmt.Sprint(history) != "[[1 0 settings]]" {
		t.Errorf("history: %v", history)
	}
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns/1/resume", "", 200)
}

// spoolVersion returns the version of a spool's file. It sets another one unless that is 0.
func spoolVersion(t *testing.T, file string, set int) int {
	t.Helper()
	conn, err := driver.OpenConn(file, driver.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	version := 0
	if set > 0 {
		err = sqlitex.ExecuteTransient(conn, fmt.Sprint("PRAGMA user_version = ", set), nil)
	}
	if err == nil {
		err = sqlitex.ExecuteTransient(conn, "PRAGMA user_version", &sqlitex.ExecOptions{ResultFunc: func(stmt *driver.Stmt) error {
			version = stmt.ColumnInt(0)
			return nil
		}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// TestNewerSpool: a file of a later version is refused, by name of both versions, and stays
// as it is. The program that TestUpgrade's files come from serves only with a file of
// version 1. It is not here: what is checked is that a new file does not have that version,
// and in TestUpgrade that one of version 1 loses it.
func TestNewerSpool(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	storetest.FillSpool(t, data, true, 1)
	if version := spoolVersion(t, spool.Path(data), 0); version < 2 {
		t.Errorf("a new file has version %d: an earlier program would open it, and mistake its groups", version)
	}
	spoolVersion(t, spool.Path(data), 99)
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
		if code == exit.OK || !strings.Contains(stderr, "the file has version 99, this program supports 1 to 2") {
			t.Errorf("%s %s: exit %d\n%s%s", args[0], args[1], code, stdout, stderr)
		}
	}
	spoolVersion(t, spool.Path(data), 2)
	if stdout, stderr, code := binary.Run(t, "spool", "export", "--data", data); code != exit.OK || strings.Count(stdout, "\n") != 1 {
		t.Errorf("export: exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestTwoVersions: a process of an earlier version may use the same database. It is played by
// the statements that it ran.
func TestTwoVersions(t *testing.T) {
	t.Parallel()
	upgradeDatabases(t, func(t *testing.T, db *upgradeDatabase) {
		s := apptest.ServePatiently(t, &binary, upgradeStreams, db.URL, "--data", db.data)
		drained(t, s)
		id, key := func(n int) string { return fmt.Sprintf("X'%032d'", n) }, "`key`"
		if db.name != "mariadb" {
			key = "key"
		}
		if db.name == "postgres" {
			id = func(n int) string { return fmt.Sprintf("'%032d'", n) }
		}
		later := fmt.Sprintf(db.later, db.now, time.Hour.Microseconds())
		// It stores a batch with a key, drains a spool of its own twice, and sweeps.
		for _, sql := range []string{
			fmt.Sprintf("INSERT INTO spillway_batches (id, created_at) VALUES (%s, %s)", id(1), db.now),
			"INSERT INTO direct VALUES (10)",
			fmt.Sprintf("INSERT INTO spillway_requests (stream, %[1]s, fingerprint, outcome, expires_at) SELECT stream, 'old', fingerprint, outcome, %[2]s FROM spillway_requests WHERE stream = '/direct' AND %[1]s = 'd1'", key, later),
			fmt.Sprintf("INSERT INTO spillway_spools (id, stream, after, sequence, updated_at) VALUES (%s, '/readings', 0, 2, %s)", id(2), db.now),
			fmt.Sprintf("UPDATE spillway_spools SET stream = '/readings', after = 2, sequence = 3, results = NULL, updated_at = %s WHERE id = %s", db.now, id(2)),
			fmt.Sprintf("DELETE FROM spillway_requests WHERE expires_at < %s", db.now),
		} {
			db.Query(t, sql)
		}
		// Its key is known here: the fingerprint of d1 is that of this body.
		if a := apptest.Post(t, s.URL("direct"), `{"id":1}`, "Idempotency-Key", "old"); a.Status != 200 || !strings.Contains(string(a.Body), `"replayed":true`) {
			t.Errorf("a key of the earlier version: %d %s", a.Status, a.Body)
		}
		apptest.WantAnswer(t, apptest.Post(t, s.URL("direct"), `{"id":2}`, "Idempotency-Key", "old"), 409, "key-reused")
		// It knows the keys of this version, and what it answers to them.
		if a := apptest.Post(t, s.URL("direct"), `{"id":1}`, "Idempotency-Key", "new"); a.Status != 200 || strings.Contains(string(a.Body), "replayed") {
			t.Errorf("a new key: %d %s", a.Status, a.Body)
		}
		same := db.Query(t, fmt.Sprintf("SELECT count(*) FROM spillway_requests AS ours, spillway_requests AS theirs WHERE ours.stream = '/direct' AND ours.%[1]s = 'new' AND theirs.stream = '/direct' AND theirs.%[1]s = 'd1' "+
			"AND ours.fingerprint = theirs.fingerprint AND ours.outcome = theirs.outcome AND ours.expires_at > %[2]s", key, later))
		if same[0][0] != "1" {
			t.Error("the earlier version would not recognize a key of this one")
		}
		apptest.WantSpooled(t, apptest.Post(t, s.URL("readings"), `{"id":11}`, "Idempotency-Key", "k11"), 1)
		drained(t, s)
		if ids := db.direct(t); !slices.Equal(ids, []string{"1", "1", "10", "2"}) && !slices.Equal(ids, []string{"1", "1", "2", "10"}) {
			t.Errorf("/direct has %v", ids)
		}
		if ids := db.IDs(t); !slices.Equal(ids, []int{1, 2, 4, 5, 7, 8, 9, 11}) {
			t.Errorf("/readings has %v", ids)
		}
		if mark := db.Query(t, fmt.Sprintf("SELECT after, sequence FROM spillway_spools WHERE id = %s", id(2))); fmt.Sprint(mark) != "[[2 3]]" {
			t.Errorf("the mark of the earlier version: %v", mark)
		}
		db.checkSubjects(t)
	})
}

// checkSubjects starts a process with write keys. It finds the idempotency keys of the earlier
// version, which were not scoped to a write key, and not those of this one.
func (db *upgradeDatabase) checkSubjects(t *testing.T) {
	t.Helper()
	const subject = "a-key-of-sixteen-bytes"
	s := apptest.ServePatiently(t, &binary, "keys: ["+subject+"]\n"+upgradeStreams, db.URL, "--data", filepath.Join(t.TempDir(), "data"))
	send := func(path, key, body string) apptest.Answer {
		t.Helper()
		return apptest.Post(t, s.URL(path), body, "Authorization", "Bearer "+subject, "Idempotency-Key", key)
	}
	if a := send("direct", "old", `{"id":1}`); a.Status != 200 || !strings.Contains(string(a.Body), `"replayed":true`) {
		t.Errorf("a key of the earlier version, with a write key: %d %s", a.Status, a.Body)
	}
	apptest.WantAnswer(t, send("direct", "old", `{"id":2}`), 409, "key-reused")
	for _, replayed := range []bool{false, true} {
		if a := send("direct", "new", `{"id":12}`); a.Status != 200 || strings.Contains(string(a.Body), "replayed") != replayed {
			t.Errorf("a key that this version has for another subject: %d %s", a.Status, a.Body)
		}
	}
	apptest.WantSpooled(t, send("readings", "k4", `{"id":4}`), 1)
	apptest.WantSpooled(t, send("readings", "k11", `{"id":13}`), 1)
	drained(t, s)
	if ids := db.IDs(t); !slices.Equal(ids, []int{1, 2, 4, 5, 7, 8, 9, 11, 13}) {
		t.Errorf("with write keys, /readings has %v", ids)
	}
}
