package mysql

import (
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

// keyKinds are columns of a key, with four values.
var keyKinds = []struct {
	sql  string
	kind stream.Type
	keys [4]string
}{
	{"int NOT NULL AUTO_INCREMENT", stream.Integer, [4]string{"0", "5", "7", "8"}},
	{"bigint unsigned NOT NULL", stream.Decimal, [4]string{"18446744073709551615", "0", "7", "8"}},
	{"timestamp(6) NOT NULL", stream.Timestamp, [4]string{`"2016-12-01T00:00:00.5Z"`, `"2016-12-02T00:00:00Z"`, `"2016-12-03T00:00:00Z"`, `"2016-12-04T00:00:00Z"`}},
	{"decimal(5,2) NOT NULL", stream.Decimal, [4]string{"1.5", "-1.25", "1", "0"}},
	{"double NOT NULL", stream.Real, [4]string{"0.1", "1e300", "5e-324", "0"}},
	{"year NOT NULL", stream.Integer, [4]string{"0", "1901", "2155", "2000"}},
	{"bit(5) NOT NULL", stream.Integer, [4]string{"0", "31", "7", "8"}},
	{"time(6) NOT NULL", stream.Time, [4]string{`"00:00:00"`, `"-838:59:59"`, `"23:59:57.5"`, `"-00:00:00.5"`}},
	{"date NOT NULL", stream.Date, [4]string{`"2016-12-01"`, `"0001-01-01"`, `"9999-12-31"`, `"2016-12-02"`}},
	{"enum('a','b','0','it''s') NOT NULL", stream.Text, [4]string{`"a"`, `"b"`, `"0"`, `"it's"`}},
	{"varbinary(9) NOT NULL", stream.Bytes, [4]string{`""`, `"AA=="`, `"/w=="`, `"YQ=="`}},
}

// A record whose key exists changes nothing, and one that another unique index refuses is named,
// whatever the type of the key, the triggers of the table, and the records beside it.
func TestStreamKeyLeavesRows(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, apptest.MySQL(t, "--explicit-defaults-for-timestamp=0"))
	for i, k := range keyKinds {
		mustExecute(t, url, "DROP TABLE IF EXISTS base", "DROP VIEW IF EXISTS v",
			"CREATE TABLE base (k "+k.sql+" PRIMARY KEY, mail varchar(9) UNIQUE, note varchar(99))", "CREATE VIEW v AS SELECT k, mail, note FROM base",
			"CREATE TRIGGER spoil BEFORE UPDATE ON base FOR EACH ROW SET NEW.note = 'altered'")
		for n, table := range []string{"base", "v", "base", "v"} {
			mustExecute(t, url, "DELETE FROM base")
			schema, err := stream.NewSchema(stream.Definition{Name: "/keyed", Table: table, Spooled: true, Key: []string{"k"}, Columns: []stream.Column{
				{Name: "k", Type: k.kind, Required: true}, {Name: "mail", Type: stream.Text}, {Name: "note", Type: stream.Text},
			}})
			if err != nil {
				t.Fatal(err)
			}
			sink := open(t, url, database.Pool{}).Stream(schema)
			if err := sink.Check(t.Context()); err != nil {
				t.Fatalf("%s: %v", k.sql, err)
			}
			for step, records := range []string{
				"0a first,1b first",
				"2a lost,1b again",              // another unique index, beside a repeated key
				"2a lost",                       // alone
				"0a again",                      //
				"0d again,2c new,2e twice,0a x", // a new key twice
				"3a lost,3f second,1b again",    // the second record of a key whose first is refused
			} {
				var bodies, want []string
				for record := range strings.SplitSeq(records, ",") {
					bodies = append(bodies, fmt.Sprintf(`{"k":%s,"mail":"%s","note":"%s"}`, k.keys[record[0]-'0'], record[1:2], record[3:]))
					if strings.HasSuffix(record, "lost") {
						want = append(want, record)
					}
				}
				id := byte(i*10 + n)
				b := notesOf(t, schema, id, strings.Join(bodies, "\n"))
				b.ID[1] = byte(step)
				if n > 1 {
					b = marked(b, id+1, uint64(step+1), byte(step))
				}
				mustCommit(t, sink, b)
				var refused []string
				for _, r := range b.Requests[0].Result.Refused {
					refused = append(refused, strings.Split(records, ",")[r.Row])
					if r.Unsure || !strings.Contains(r.Reason, "Duplicate entry 'a'") {
						t.Errorf("%s, %s: %+v", k.sql, records, r)
					}
				}
				if fmt.Sprint(refused) != fmt.Sprint(want) {
					t.Errorf("%s in %s, %s: refused %s", k.sql, table, records, refused)
				}
			}
			got := value(t, url, "SELECT GROUP_CONCAT(mail, ' ', note ORDER BY mail) FROM base")
			if got != "a first,b first,c new,f second" {
				t.Errorf("%s in %s: stored %s", k.sql, table, got)
			}
		}
	}
}

// A key with a character that its column does not have is refused by name beside one that exists.
func TestStreamKeyOfOtherCharacters(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	mustExecute(t, url, "CREATE TABLE names (name varchar(9) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY)")
	schema, err := stream.NewSchema(stream.Definition{Name: "/names", Table: "names", Key: []string{"name"}, Columns: []stream.Column{
		{Name: "name", Type: stream.Text, Required: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sink := open(t, url, database.Pool{}).Stream(schema)
	for i, names := range []string{"a", "a,\u0142,b", "\u0142", "b,\u0142"} {
		body := `{"name":"` + strings.ReplaceAll(names, ",", "\"}\n{\"name\":\"") + `"}`
		b := notesOf(t, schema, byte(i), body)
		mustCommit(t, sink, b)
		refused := 0
		for _, r := range b.Requests[0].Result.Refused {
			refused++
			if !strings.Contains(r.Reason, "name") || r.Unsure {
				t.Errorf("%s: %+v", names, r)
			}
		}
		if want := strings.Count(names, "\u0142"); refused != want {
			t.Errorf("%s: %d refused", names, refused)
		}
	}
	if got := value(t, url, "SELECT GROUP_CONCAT(name ORDER BY name) FROM names"); got != "a,b" {
		t.Errorf("stored %s", got)
	}
}

// Many records, of which the table has some, are stored in few statements.
func TestStreamKeyMany(t *testing.T) {
	t.Parallel()
	server := plainServer(t)
	url := freshDatabase(t, server)
	mustExecute(t, url, "CREATE TABLE keyed (id bigint PRIMARY KEY, note text)")
	proxy := storetest.NewProxy(t, server.Addr(), func([]byte) bool { return false })
	sink, schema := eventsOf(t, strings.Replace(url, server.Addr(), proxy.Addr(), 1), "keyed", "id", "")
	var bodies []string
	for i := range 2000 {
		bodies = append(bodies, fmt.Sprintf(`{"id":%d,"note":"%d"}`, i*7%1500, i))
	}
	for n, part := range [][]string{bodies[300:700], bodies} {
		b := notesOf(t, schema, byte(n), strings.Join(part, "\n"))
		before := proxy.Trips()
		mustCommit(t, sink, b)
		trips := proxy.Trips() - before
		if refused := b.Requests[0].Result.Refused; len(refused) > 0 {
			t.Errorf("refused %+v", refused)
		}
		if trips > 120 {
			t.Errorf("%d round trips for %d records", trips, len(part))
		}
	}
	if got := value(t, url, "SELECT CONCAT_WS(' ', COUNT(*), SUM(id), SUM(note), SUM(note <> id * 643 % 1500)) FROM keyed"); got != "1500 1124250 1124250 0" {
		t.Errorf("stored %s", got)
	}
}

// A statement that has stored fewer rows than it was sent is tried row by row, and then refused.
func TestStreamCountRows(t *testing.T) {
	t.Parallel()
	_, schema := eventsOf(t, freshDatabase(t, plainServer(t)), "keyed", "", "")
	for _, test := range []struct {
		skipped      string
		rows, stored int
		want         string
	}{
		{"", 2, 2, "[] 0 <nil>"},
		{"", 1, 0, "[row-skipped] 0 <nil>"},
		{"", 2, 1, "[] 0 " + errUncounted.Error()},
		{stream.SkippedAccept, 2, 1, "[] 1 <nil>"},
	} {
		b := notesOf(t, schema, 1, strings.Repeat("{\"id\":1}\n", test.rows))
		w := &batchWriter{st: &Stream{def: stream.Definition{SkippedRows: test.skipped}}, b: b}
		refused, err := w.countRows(b.Rows(nil), int64(test.stored))
		reasons := []string{}
		if refused != nil {
			reason, _, _ := strings.Cut(refused.Reason, ":")
			reasons = append(reasons, reason)
		}
		if got := fmt.Sprint(reasons, b.Skipped, err); got != test.want {
			t.Errorf("%d of %d: %s, want %s", test.stored, test.rows, got, test.want)
		}
	}
}

// Labels are what the server says they are, whatever characters it escapes.
func TestStreamLabels(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	labels := []string{`\`, `a\b`, `a\\b`, `\n`, "\n", "\r", "\t", `it's`, `\'`, `''`, `,\,`, "Ä", `"`, `\0`, "x\u001ay", `%_`, ""}
	var quoted, bodies []string
	for _, label := range labels {
		quoted = append(quoted, "'"+strings.ReplaceAll(label, "'", "''")+"'")
		bodies = append(bodies, fmt.Sprintf(`{"note":%q}`, label))
	}
	list := strings.Join(quoted, ",")
	mustExecute(t, url, "CREATE TABLE labelled (id int AUTO_INCREMENT PRIMARY KEY, note enum("+list+") CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)")
	schema, err := stream.NewSchema(stream.Definition{Name: "/labelled", Table: "labelled", Columns: []stream.Column{{Name: "note", Type: stream.Text}}})
	if err != nil {
		t.Fatal(err)
	}
	bodies[14] = `{"note":"x\u001ay"}`
	b := notesOf(t, schema, 1, strings.Join(append(bodies, `{"note":"\\\\"}`), "\n"))
	mustCommit(t, open(t, url, database.Pool{}).Stream(schema), b)
	if refused := b.Requests[0].Result.Refused; len(refused) != 1 || refused[0].Row != len(labels) {
		t.Errorf("refused %+v", refused)
	}
	rows, err := streamRows(t.Context(), url, "SELECT note FROM labelled ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		if i < len(labels) && row[0] != labels[i] {
			t.Errorf("%q came back as %q", labels[i], row[0])
		}
	}
}
