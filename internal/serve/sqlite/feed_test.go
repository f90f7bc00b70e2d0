package sqlite_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/sqlite"
)

const selectFreight = "SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno FROM orders JOIN users ON users.id = orders.users_id"

// newestFirst is a feed over sql, its key columns descending.
func newestFirst(sql string, key ...string) feed.Definition {
	def := feed.Definition{Name: "/goodslist", SQL: sql}
	for _, name := range key {
		def.Key = append(def.Key, feed.KeyColumn{Name: name})
	}
	return def
}

func source(t testing.TB, db *sqlite.DB, def feed.Definition) feed.Source {
	t.Helper()
	f, err := db.Source(def)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// openFreight opens a file with the freight app's two tables, orders of them
// and 2,000 users.
func openFreight(t testing.TB, orders int) (*sqlite.DB, func(sql string)) {
	db, writer := open(t, database.Pool{})
	run := func(sql string) { script(t, writer, sql) }
	run(fmt.Sprintf(`
		CREATE TABLE users (id integer NOT NULL PRIMARY KEY, nickname text NOT NULL, mobileno text NOT NULL, createtime timestamp NOT NULL);
		CREATE TABLE orders (id integer NOT NULL PRIMARY KEY, createtime timestamp NOT NULL, users_id integer NOT NULL, goods_name text NOT NULL);
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000)
			INSERT INTO users SELECT i, 13000000000 + i, 13000000000 + i, '2016-01-01 00:00:00' FROM n;
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT %d)
			INSERT INTO orders SELECT i, datetime('2016-01-01', (i * 150) || ' seconds'), 1 + i * 7919 %% 2000, printf('%%032x', i) FROM n;
		CREATE INDEX orders_createtime_idx ON orders (createtime);
		CREATE INDEX orders_users_id_idx ON orders (users_id);`, orders))
	return db, run
}

func TestFreightRow(t *testing.T) {
	t.Parallel()
	db, _ := openFreight(t, 100)
	rows := new(feed.Rows)
	if err := source(t, db, newestFirst(selectFreight, "id")).Read(t.Context(), feed.Range{Limit: 1}, rows); err != nil {
		t.Fatal(err)
	}
	const want = `{"id":100,"createtime":"2016-01-01 04:10:00","goods_name":"00000000000000000000000000000064","nickname":"13000001901","mobileno":"13000001901"}`
	if string(rows.Data) != want {
		t.Errorf("got  %s\nwant %s", rows.Data, want)
	}
}

// TestSchemaChanges changes the table below a SELECT *: the next read shows
// the new columns under their names, on every connection.
func TestSchemaChanges(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE t (id INTEGER PRIMARY KEY, a BOOLEAN); INSERT INTO t VALUES (1, 1)")
	f := source(t, db, newestFirst("SELECT * FROM t", "id"))
	for _, step := range []struct{ sql, want string }{
		{"", `{"id":1,"a":true}`},
		{"ALTER TABLE t ADD COLUMN b TEXT DEFAULT 'x'", `{"id":1,"a":true,"b":"x"}`},
		{"ALTER TABLE t RENAME COLUMN a TO c", `{"id":1,"c":true,"b":"x"}`},
		{"ALTER TABLE t DROP COLUMN b", `{"id":1,"c":true}`},
		{"DROP TABLE t", ""},
		{"CREATE TABLE t (id INTEGER PRIMARY KEY, z INTEGER); INSERT INTO t VALUES (2, 1)", `{"id":2,"z":1}`},
	} {
		script(t, writer, step.sql)
		rows := new(feed.Rows)
		err := f.Read(t.Context(), feed.Range{Limit: 10}, rows)
		if string(rows.Data) != step.want || (err != nil) != (step.want == "") {
			t.Errorf("%s: %s, %v, want %s", step.sql, rows.Data, err, step.want)
		}
	}
}

// TestDeclaredKey reads and passes key values that the key column's declared type does not hold.
func TestDeclaredKey(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR(9) NOT NULL); INSERT INTO t VALUES (1, 'a')")
	f := source(t, db, newestFirst("SELECT id, name FROM t", "id", "name"))
	key := func(kinds string) feed.Key {
		var b []byte
		for _, kind := range []byte(kinds) {
			b = feed.AppendKey(b, feed.KeyKind(kind), []byte("1"))
		}
		return feed.Key(b)
	}
	for kinds, ok := range map[string]bool{"it": true, "rt": true, "tt": false, "bt": false, "ii": false, "ib": false} {
		err := f.Read(t.Context(), feed.Range{After: key(kinds), Limit: 1}, new(feed.Rows))
		if ok && err != nil || !ok && !errors.Is(err, feed.ErrCursor) {
			t.Errorf("a key of kinds %s: %v", kinds, err)
		}
	}
	nan := feed.Key(feed.AppendKey(feed.AppendKey(nil, feed.KeyReal, []byte("NaN")), feed.KeyText, nil))
	if err := f.Read(t.Context(), feed.Range{After: nan, Limit: 1}, new(feed.Rows)); !errors.Is(err, feed.ErrCursor) {
		t.Errorf("NaN: %v", err)
	}
	script(t, writer, "INSERT INTO t VALUES ('many', 'b')")
	err := f.Read(t.Context(), feed.Range{Limit: 5}, new(feed.Rows))
	if err == nil || !strings.Contains(err.Error(), "key column id holds") || errors.Is(err, feed.ErrCursor) {
		t.Errorf("a text among integers: %v", err)
	}
}

func TestDefinitionErrors(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE a (id INTEGER PRIMARY KEY, x); CREATE TABLE b (id INTEGER PRIMARY KEY, x)")
	tests := []struct {
		def  feed.Definition
		want string
	}{
		{newestFirst("SELECT a.id, b.id FROM a JOIN b", "id"), `two output columns are named "id"`},
		{newestFirst("SELECT a.id, b.x, a.x AS X FROM a JOIN b", "id"), `two output columns are named "X"`},
		{newestFirst("SELECT x FROM a", "id"), `the key column "id" is not an output column; the statement yields x`},
		{newestFirst("SELECT id FROM nowhere", "id"), "no such table: nowhere"},
		{newestFirst("SELECT id FROM a WHERE x = :x", "id"), ":x"},
		{newestFirst("SELECT id FROM a; SELECT 1", "id"), "feed /goodslist: 1:"},
	}
	for _, test := range tests {
		f, err := db.Source(test.def)
		if err == nil {
			err = f.Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows))
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.def.SQL, err, test.want)
		}
	}
}

// TestReadKeepsRowsOnError reads a feed whose third row has no key.
func TestReadKeepsRowsOnError(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, "CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (2), (1), (NULL)")
	f := source(t, db, newestFirst("SELECT id FROM t", "id"))
	rows := new(feed.Rows)
	if err := f.Read(t.Context(), feed.Range{Limit: 1}, rows); err != nil {
		t.Fatal(err)
	}
	err := f.Read(t.Context(), feed.Range{Limit: 3}, rows)
	if !errors.Is(err, feed.ErrNullKey) {
		t.Errorf("NULL key: %v", err)
	}
	if string(rows.Data) != `{"id":2}` || rows.Len() != 1 || len(rows.Keys) != 1 {
		t.Errorf("rows after an error: %+v", rows)
	}
}

// TestRowsOfAnotherProcess reads what a connection that is not of the pool
// commits, also when it checkpoints the WAL.
func TestRowsOfAnotherProcess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "test.db")
	db, writer := openFile(t, file, database.Pool{}), openWriter(t, file)
	script(t, writer, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
	f := source(t, db, newestFirst("SELECT id FROM t", "id"))
	for i := 1; i <= 3; i++ {
		for _, sql := range []string{fmt.Sprintf("INSERT INTO t VALUES (%d)", i), "PRAGMA wal_checkpoint(TRUNCATE)"} {
			if err := sqlitex.ExecuteTransient(writer, sql, nil); err != nil {
				t.Fatal(err)
			}
		}
		rows := new(feed.Rows)
		if err := f.Read(t.Context(), feed.Range{Limit: 10}, rows); err != nil || rows.Len() != i {
			t.Errorf("%d rows, want %d: %v", rows.Len(), i, err)
		}
	}
}

// TestMergedValues compares rows that come through the merge of two searches
// with the same rows read from the first on: a merge keeps every value's class.
func TestMergedValues(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, `CREATE TABLE t (a INTEGER, r REAL, j JSON, b BOOLEAN, d DECIMAL_TEXT, x BLOB, n, PRIMARY KEY (a, r));
		INSERT INTO t VALUES (1, 2.0, '{"k": 1}', 1, '1.50', x'00', 2.0), (1, 3, '7', 0, '2', '', 9223372036854775807),
			(2, 1e300, NULL, NULL, 'x', NULL, 'text'), (2, -1, '[]', 5, '-0.10', x'ff', x'61'), (3, 0.5, 'no', 1, 7, 1, NULL)`)
	def := newestFirst("SELECT * FROM t", "a", "r")
	for range 2 {
		f := source(t, db, def)
		all := readAll(t, f)
		for i, key := range all.Keys {
			var behind, upTo feed.Rows
			if err := f.Read(t.Context(), feed.Range{After: key, Limit: 10}, &behind); err != nil {
				t.Fatal(err)
			}
			if err := f.Read(t.Context(), feed.Range{After: all.Keys[0], Until: key, Limit: 10}, &upTo); err != nil {
				t.Fatal(err)
			}
			if string(behind.Data) != string(all.Slice(i+1, 5)) || string(upTo.Data) != string(all.Slice(1, i+1)) {
				t.Errorf("at key %d: up to it %s, behind it %s", i, upTo.Data, behind.Data)
			}
		}
		def.Key[1].Ascending = true // then in mixed directions
	}
}

func BenchmarkFeedRead(b *testing.B) {
	db, _ := openFreight(b, 200_000)
	f := source(b, db, newestFirst(selectFreight, "id"))
	rows := new(feed.Rows)
	if err := f.Read(b.Context(), feed.Range{Limit: 1, Skip: 100_000}, rows); err != nil {
		b.Fatal(err)
	}
	middle := rows.Keys[0]
	byTime := source(b, db, newestFirst(selectFreight, "createtime", "id"))
	rows.Reset()
	if err := byTime.Read(b.Context(), feed.Range{Limit: 1, Skip: 100_000}, rows); err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name string
		feed feed.Source
		r    feed.Range
	}{
		{"window=200", f, feed.Range{Limit: 200}},
		{"window=1000", f, feed.Range{Limit: 1000}},
		{"page=10/after=100000", f, feed.Range{After: middle, Limit: 10}},
		{"page=10/after=100000/key=createtime,id", byTime, feed.Range{After: rows.Keys[0], Limit: 10}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rows.Reset()
				if err := bench.feed.Read(b.Context(), bench.r, rows); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows.Len()), "ns/row")
		})
	}
	b.Run("keys=200000/every=1000", func(b *testing.B) {
		for b.Loop() {
			if walk, err := f.Keys(b.Context(), feed.Range{Limit: 1_000_000}, 1000); err != nil || walk.Count != 200_000 {
				b.Fatal(walk.Count, err)
			}
		}
	})
	b.Run("probe", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := db.Probe(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestTies pages through rows whose first key column is the same in all of them, on the
// index that Check wants: a page costs no more than one at the start.
func TestTies(t *testing.T) {
	t.Parallel()
	db, run := openFreight(t, 1)
	run(`CREATE TABLE t (id INTEGER PRIMARY KEY, city TEXT NOT NULL);
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30000) INSERT INTO t SELECT i, 'same' FROM n;
		CREATE INDEX t_city_id ON t (city, id)`)
	f := source(t, db, newestFirst("SELECT id, city FROM t", "city", "id"))
	if err := f.Check(t.Context(), 200); err != nil {
		t.Fatal(err)
	}
	key := func(id string) feed.Key {
		return feed.Key(feed.AppendKey(feed.AppendKey(nil, feed.KeyText, []byte("same")), feed.KeyInteger, []byte(id)))
	}
	pages := [3]feed.Range{
		{After: key("29990"), Limit: 10},
		{After: key("500"), Limit: 10},
		{After: key("29990"), Until: key("29980"), Limit: 1000},
	}
	fastest := [3]time.Duration{time.Hour, time.Hour, time.Hour}
	// A walk over all rows takes a thousand times as long as a page, however often it is
	// repeated. A page that the machine has disturbed is as fast as the others the next time.
	for range 500 {
		for i, page := range pages {
			start := time.Now()
			rows := new(feed.Rows)
			if err := f.Read(t.Context(), page, rows); err != nil || rows.Len() != 10 {
				t.Fatalf("%d rows, %v, want 10", rows.Len(), err)
			}
			fastest[i] = min(fastest[i], time.Since(start))
		}
		if fastest[1] <= 10*fastest[0] && fastest[2] <= 10*fastest[0] {
			return
		}
	}
	t.Errorf("near the start %v, deep %v, up to a key %v, want at most ten times the first", fastest[0], fastest[1], fastest[2])
}

// A query tells a value that a function does not accept from other errors, too.
func TestQueryRejectsValue(t *testing.T) {
	t.Parallel()
	db, _ := openFreight(t, 10)
	q, err := db.Source(feed.Definition{Name: "/q", SQL: "SELECT json_extract('{}', :path) AS v", Params: []param.Param{{Name: "path", Type: param.Text}}})
	if err != nil {
		t.Fatal(err)
	}
	for value, rejected := range map[string]bool{"$.a": false, "a[": true} {
		err := q.Read(t.Context(), feed.Range{Args: []string{value}}, &feed.Rows{Limit: feed.Limit{Rows: 1, Bytes: 99}})
		if (err != nil) != rejected || errors.Is(err, param.ErrValue) != rejected {
			t.Errorf("%q: %v", value, err)
		}
	}
}
