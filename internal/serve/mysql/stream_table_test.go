package mysql

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// eventsOf opens a stream into a table or a view with columns id and note.
func eventsOf(t testing.TB, url, table, key, skipped string) (*Stream, *stream.Schema) {
	t.Helper()
	def := stream.Definition{Name: "/" + table, Table: table, Spooled: true, SkippedRows: skipped, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "note", Type: stream.Text},
	}}
	if key != "" {
		def.Key = []string{key}
	}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, url, database.Pool{}).Stream(schema), schema
}

// Tables without transactions are refused, also behind views, and for a user with few rights.
func TestStreamEngines(t *testing.T) {
	t.Parallel()
	server := plainServer(t)
	url := freshDatabase(t, server)
	name := url[strings.LastIndexByte(url, '/')+1:]
	const columns = "(id bigint, note varchar(9))"
	mustExecute(t, url, "CREATE TABLE good "+columns, "CREATE TABLE isam "+columns+" ENGINE=MyISAM", "CREATE TABLE `we``ird.x` "+columns+" ENGINE=MEMORY",
		"CREATE VIEW v AS SELECT * FROM good", "CREATE VIEW v_isam AS SELECT * FROM isam", "CREATE VIEW v_v AS SELECT id, note FROM v_isam WHERE id > 3",
		"CREATE VIEW v_memory AS SELECT w.id, w.note FROM `we``ird.x` w", "CREATE VIEW v_join AS SELECT g.id, i.note FROM good g JOIN isam i ON g.id = i.id")
	mustExecute(t, url, ownTables()...)
	mustExecute(t, url, "CREATE USER "+name+"@'%' IDENTIFIED BY 'x'", "GRANT INSERT ON v TO "+name+"@'%'", "GRANT INSERT (id, note) ON good TO "+name+"@'%'")
	for _, table := range ownTables() {
		mustExecute(t, url, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+strings.Fields(table)[5]+" TO "+name+"@'%'")
	}
	few := "mysql://" + name + ":x@" + server.Addr() + "/" + name
	for i, test := range []struct{ url, table, want string }{
		{url, "good", ""},
		{url, "v", ""},
		{url, "isam", "engine MyISAM"},
		{url, "v_isam", "ALTER TABLE"},
		{url, "v_v", "engine MyISAM"},
		{url, "v_memory", "engine MEMORY"},
		{url, "v_join", "engine MyISAM"},
		{few, "good", ""},
		{few, "v", "GRANT SHOW VIEW"},
	} {
		sink, schema := eventsOf(t, test.url, test.table, "", "")
		if err := sink.Check(t.Context()); (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || !errors.Is(err, tables.ErrUnusable)) {
			t.Errorf("%s: %v, want %q", test.table, err, test.want)
		}
		err := sink.Commit(t.Context(), notesOf(t, schema, byte(i), fmt.Sprintf(`{"id":%d}`, i)))
		if (err == nil) != (test.want == "") || errors.Is(err, stream.ErrTransient) {
			t.Errorf("commit into %s: %v", test.table, err)
		}
	}
	if got := value(t, url, "SELECT CONCAT((SELECT GROUP_CONCAT(id ORDER BY id) FROM good), ';', (SELECT COUNT(*) FROM isam))"); got != "0,1,7;0" {
		t.Errorf("stored %s", got)
	}
}

// A table that changes after the start is checked again before anything is stored in it.
func TestStreamTableChanges(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, "CREATE TABLE kept (seq int AUTO_INCREMENT PRIMARY KEY, id bigint, note varchar(9))", "CREATE VIEW v AS SELECT id, note FROM kept")
	for i, table := range []string{"kept", "v"} {
		sink, schema := eventsOf(t, url, table, "", "")
		id := byte(10 * i)
		record := func(n byte) *stream.Batch { return notesOf(t, schema, id+n, fmt.Sprintf(`{"id":%d,"note":"a"}`, id+n)) }
		for n, test := range []struct{ alter, back, want string }{
			{"ENGINE=MyISAM", "ENGINE=InnoDB", "engine MyISAM"},
			{"MODIFY id float", "MODIFY id bigint", "id"},
			{"ADD COLUMN more int", "DROP COLUMN more", ""},
		} {
			mustCommit(t, sink, record(byte(n)))
			mustExecute(t, url, "ALTER TABLE kept "+test.alter)
			b := record(3)
			if err := sink.Commit(t.Context(), b); !errors.Is(err, stream.ErrTransient) {
				t.Errorf("%s, %s: %v", table, test.alter, err)
			}
			b.Reset()
			if err := sink.Commit(t.Context(), b); test.want == "" && err != nil ||
				test.want != "" && (!errors.Is(err, tables.ErrUnusable) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s, %s, checked again: %v", table, test.alter, err)
			}
			mustExecute(t, url, "ALTER TABLE kept "+test.back)
		}
	}
	if got := value(t, url, "SELECT GROUP_CONCAT(id ORDER BY id) FROM kept"); got != "0,1,2,3,10,11,12,13" {
		t.Errorf("stored %s", got)
	}
}

// A table that is missing when it is checked, at the start or later, is checked when it is there.
func TestStreamTableMissing(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	const create = "CREATE TABLE late (id bigint, note varchar(9))"
	mustExecute(t, url, create)
	sink, schema := eventsOf(t, url, "late", "", "")
	again, _ := eventsOf(t, url, "late", "", "")
	mustExecute(t, url, "RENAME TABLE late TO away")
	for i, missing := range []func() error{
		func() error { return sink.Check(t.Context()) },
		func() error { return again.Commit(t.Context(), notesOf(t, schema, 9, `{"id":9,"note":"a"}`)) },
	} {
		if err := missing(); err == nil || !strings.Contains(err.Error(), "exist") {
			t.Errorf("without the table, %d: %v", i, err)
		}
	}
	mustExecute(t, url, "RENAME TABLE away TO late")
	if err := sink.Check(t.Context()); err != nil {
		t.Error(err)
	}
	mustCommit(t, sink, notesOf(t, schema, 1, `{"id":1,"note":"a"}`))
	mustCommit(t, again, notesOf(t, schema, 2, `{"id":2,"note":"b"}`))
	if got := value(t, url, "SELECT GROUP_CONCAT(CONCAT(COALESCE(id, 'null'), COALESCE(note, 'null')) ORDER BY id) FROM late"); got != "1a,2b" {
		t.Errorf("stored %s", got)
	}
}

// TestStreamSkipped has a trigger that changes the keys of some records to that of another. No row is
// skipped: the database refuses it.
func TestStreamSkipped(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	const key = " NOT NULL UNIQUE"
	for i, test := range []struct{ skipped, kind, records, refused, stored string }{
		{"", "bigint", "1 2 3 2", "", "1,2,3"},
		{"", "bigint", "1 91 92 2 1 3", "2.0", "1,2,3,90"},
		{stream.SkippedAccept, "bigint", "1 91 92 2 1", "2.0", "1,2,90"},
		{"", "decimal(5,2)", "1 91 92 2 1 3", "2.0", "1.00,2.00,3.00,90.00"},
	} {
		mustExecute(t, url, "DROP TABLE IF EXISTS keyed", "CREATE TABLE keyed (id "+test.kind+key+", note text)",
			"CREATE TRIGGER bend BEFORE INSERT ON keyed FOR EACH ROW SET NEW.id = IF(NEW.id > 90, 90, NEW.id)")
		for _, drained := range []bool{false, true} {
			mustExecute(t, url, "DELETE FROM keyed")
			sink, schema := eventsOf(t, url, "keyed", "id", test.skipped)
			var bodies []string
			for id := range strings.FieldsSeq(test.records) {
				bodies = append(bodies, fmt.Sprintf(`{"id":%s}`, id))
			}
			b := notesOf(t, schema, byte(i+1), bodies...)
			if drained {
				b = marked(b, byte(i+1), 1, make([]byte, len(bodies))...)
			} else {
				b.ID[1] = 1
			}
			mustCommit(t, sink, b)
			refused := ""
			for n, e := range b.Requests {
				for _, r := range e.Result.Refused {
					refused += fmt.Sprintf("%d.%d", n, r.Row)
					if !strings.Contains(r.Reason, "Duplicate entry '90") {
						t.Errorf("%d: %s", i, r.Reason)
					}
				}
			}
			if got := value(t, url, "SELECT GROUP_CONCAT(id ORDER BY id) FROM keyed"); got != test.stored || refused != test.refused {
				t.Errorf("%d, drained %v: stored %s, refused %s", i, drained, got, refused)
			}
			if b.Skipped != 0 {
				t.Errorf("%d: %d skipped", i, b.Skipped)
			}
		}
	}
}

// Settings with which a crash loses commits or tears pages are part of the acknowledgement.
func TestStreamUnsafeSettings(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t, "--innodb-flush-method=nosync", "--innodb-doublewrite=0", "--innodb-flush-log-at-trx-commit=1")
	url := freshDatabase(t, server)
	mustExecute(t, url, "CREATE TABLE t (id bigint, note text)")
	sink, _ := eventsOf(t, url, "t", "", "")
	if d, err := sink.Durability(t.Context()); err != nil || d.String() != "database, not fsynced: innodb_flush_method=nosync, innodb_doublewrite=OFF" {
		t.Errorf("%q, %v", d, err)
	}
}
