package mysql

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// checkFeed checks a feed and returns its error and the warnings logged.
func checkFeed(t *testing.T, url string, def feed.Definition) (string, string) {
	t.Helper()
	var log bytes.Buffer
	db, err := Open(t.Context(), parse(t, url), unhurried(database.Pool{}), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	source, err := db.source(def)
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Check(t.Context(), 200); err != nil {
		return err.Error(), log.String()
	}
	return "", log.String()
}

func TestCheckKey(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	mustExecute(t, url,
		"CREATE TABLE items (id bigint NOT NULL PRIMARY KEY, at datetime, `group` int NOT NULL)",
		"CREATE VIEW shown AS SELECT * FROM items",
		"CREATE TABLE log (at datetime NOT NULL, n int NOT NULL, UNIQUE (n, at)) ENGINE=Aria")
	tests := []struct {
		name, sql string
		key       []feed.KeyColumn
		err, log  string
	}{
		{"primary key", "SELECT * FROM items", keyOf("id"), "", ""},
		{"more than the primary key", "SELECT * FROM items", keyOf("group", "id"), "", ""},
		{"nullable", "SELECT * FROM items", keyOf("at", "id"), "ALTER TABLE items MODIFY at datetime NOT NULL", ""},
		{"renamed", "SELECT id, at AS `when` FROM items", keyOf("when"), "ALTER TABLE items MODIFY at datetime NOT NULL", ""},
		{"not unique", "SELECT * FROM items", keyOf("group"), "", "no unique index"},
		{"expression", "SELECT id + 1 AS next FROM items", keyOf("next"), "", ""},
		{"view", "SELECT * FROM shown", keyOf("at"), "MODIFY at datetime NOT NULL", ""},
		{"another engine", "SELECT * FROM log", keyOf("at", "n"), "", "not InnoDB"},
	}
	for _, test := range tests {
		err, log := checkFeed(t, url, feed.Definition{Name: "/test", SQL: test.sql, Key: test.key})
		if (err == "") != (test.err == "") || !strings.Contains(err, test.err) {
			t.Errorf("%s: error %q, want %q", test.name, err, test.err)
		}
		if (log == "") != (test.log == "") || !strings.Contains(log, test.log) {
			t.Errorf("%s: logged %q, want %q", test.name, log, test.log)
		}
	}
}

// largeFreight makes 100,000 orders of 30,000 users. A table that is created from a SELECT is
// filled much faster than by INSERT.
func largeFreight(t *testing.T, url string) {
	t.Helper()
	mustExecute(t, url,
		"CREATE TABLE `Users` (id int NOT NULL PRIMARY KEY, name varchar(99) NOT NULL, city int NOT NULL)"+
			" SELECT seq AS id, CONCAT('n', seq) AS name, seq % 400 AS city FROM seq_1_to_30000",
		"CREATE TABLE orders (id int NOT NULL PRIMARY KEY, at datetime NOT NULL, users_id int NOT NULL, city int NOT NULL, state varchar(9) NOT NULL, goods char(32) NOT NULL, KEY (users_id))"+
			" SELECT seq AS id, '2016-01-01' + INTERVAL seq SECOND AS at, 1 + seq * 7 % 30000 AS users_id, seq % 4 AS city, IF(seq % 10 = 0, 'closed', 'open') AS state, MD5(seq) AS goods FROM seq_1_to_100000",
		"CREATE TABLE notes (orders_id int NOT NULL, note varchar(99) NOT NULL) SELECT seq AS orders_id, 'note' AS note FROM seq_1_to_60000",
		"ANALYZE TABLE `Users`, orders, notes")
}

func TestCheckPlans(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	largeFreight(t, url)
	city := []param.Param{{Name: "city", Type: param.Integer}}
	tests := []struct {
		name, sql string
		key       []feed.KeyColumn
		params    []param.Param
		want      string // in the error; "" for none
	}{
		{"key indexed, joined", "SELECT o.id, u.name FROM orders o JOIN `Users` u ON u.id = o.users_id", keyOf("id"), nil, ""},
		{"joined the other way round", "SELECT o.id, u.name FROM `Users` u JOIN orders o ON u.id = o.users_id", keyOf("id"), nil, "name orders first in FROM"},
		{"key not indexed", "SELECT o.id, o.at FROM orders o", keyOf("at", "id"), nil, "CREATE INDEX orders_at_id ON orders (at DESC, id DESC)"},
		{"aliased and joined", "SELECT o.id, o.at AS `when`, u.name FROM orders o JOIN `Users` u ON u.id = o.users_id", keyOf("when", "id asc"), nil, "ON orders (at DESC, id)"},
		{"filtered", "SELECT o.id, o.goods FROM orders AS o WHERE o.city = :city AND o.state = 'open'", keyOf("goods", "id"), city, "ON orders (city, state, goods DESC, id DESC)"},
		{"join not indexed", "SELECT o.id, n.note FROM orders o JOIN notes n ON n.orders_id = o.id", keyOf("id"), nil, "CREATE INDEX notes_orders_id ON notes (orders_id)"},
		{"quoted names", "SELECT u.name, u.id FROM `Users` u", keyOf("name", "id"), nil, "ON Users (name DESC, id DESC)"},
		{"columns of two tables", "SELECT o.at, u.id FROM orders o JOIN `Users` u ON u.id = o.users_id", keyOf("at", "id"), nil, "columns of one table"},
		{"grouped", "SELECT users_id AS id, count(*) AS n FROM orders GROUP BY users_id", keyOf("id"), nil, "groups, unites or limits"},
		{"united", "SELECT id FROM orders UNION ALL SELECT id FROM `Users`", keyOf("id"), nil, "groups, unites or limits"},
		{"subquery", "SELECT o.id, (SELECT COUNT(*) FROM notes n WHERE n.note <> o.goods) AS n FROM orders o", keyOf("id"), nil, "notes"},
	}
	for _, test := range tests {
		err, _ := checkFeed(t, url, feed.Definition{Name: "/test", SQL: test.sql, Key: test.key, Params: test.params})
		if (err == "") != (test.want == "") || !strings.Contains(err, test.want) {
			t.Errorf("%s: error %q, want %q", test.name, err, test.want)
		}
	}
	// The command in the error is what the feed needs.
	filtered := feed.Definition{Name: "/test", SQL: tests[4].sql, Key: tests[4].key, Params: city}
	refusal, _ := checkFeed(t, url, filtered)
	_, command, _ := strings.Cut(refusal, "feed's order: ")
	mustExecute(t, url, command, "ANALYZE TABLE orders")
	if err, _ := checkFeed(t, url, filtered); err != "" {
		t.Errorf("after %s: %s", command, err)
	}
	mustExecute(t, url, "DROP INDEX orders_city_state_goods_id ON orders")
	// An index on the filter alone: few orders share a value of state's, many one of city's.
	mustExecute(t, url, "CREATE INDEX by_city ON orders (city)", "CREATE INDEX by_at ON orders (at, id)", "ANALYZE TABLE orders")
	for sql, want := range map[string]string{
		"SELECT id, goods FROM orders WHERE city = :city": "ON orders (city, goods DESC, id DESC)",
	} {
		err, _ := checkFeed(t, url, feed.Definition{Name: "/test", SQL: sql, Key: keyOf("goods", "id"), Params: city})
		if !strings.Contains(err, want) {
			t.Errorf("%s: error %q, want %q", sql, err, want)
		}
	}
	if err, _ := checkFeed(t, url, feed.Definition{Name: "/test", SQL: tests[2].sql, Key: keyOf("at", "id")}); err != "" {
		t.Errorf("with the index: %s", err)
	}
}

// TestReadsNoMore counts the rows that the server reads of 100,000.
func TestReadsNoMore(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	largeFreight(t, url)
	mustExecute(t, url, "CREATE INDEX by_at ON orders (at, id)", "CREATE INDEX mixed ON orders (city, at DESC, id)", "ANALYZE TABLE orders")
	db := open(t, url, database.Pool{Max: 1})
	const sql = "SELECT o.id, o.at, o.city, u.name FROM orders o JOIN `Users` u ON u.id = o.users_id"
	for _, test := range []struct {
		key    []string
		middle feed.Key
	}{
		{[]string{"id"}, key('i', "50000")},
		{[]string{"id asc"}, key('i', "50000")},
		{[]string{"at", "id"}, key('t', "2016-01-01 12:00:00", 'i', "43200")},
		{[]string{"at asc", "id asc"}, key('t', "2016-01-01 12:00:00", 'i', "43200")},
		{[]string{"city asc", "at", "id asc"}, key('i', "2", 't', "2016-01-01 12:00:02", 'i', "43202")},
		{[]string{"city", "at asc", "id"}, key('i', "2", 't', "2016-01-01 12:00:02", 'i', "43202")},
	} {
		f := mustFeed(t, db, sql, test.key...)
		if err := f.Check(t.Context(), 200); err != nil {
			t.Errorf("%v: %v", test.key, err)
			continue
		}
		until := readKey(t, f, feed.Range{After: test.middle, Skip: 500, Limit: 1})
		for name, r := range map[string]feed.Range{
			"window": {Limit: 200}, "after": {After: test.middle, Skip: 3, Limit: 200}, "after and until": {After: test.middle, Until: until, Limit: 200},
		} {
			for what, work := range map[string]func() error{
				"keys": func() error { _, err := f.Keys(t.Context(), r, 50); return err },
				"rows": func() error { return f.Read(t.Context(), r, new(feed.Rows)) },
			} {
				if n := rowsRead(t, db, work); n < 400 || n > 430 {
					t.Errorf("%v, %s, %s: %d rows read, want about 200 of each table", test.key, what, name, n)
				}
			}
		}
	}
}

// key encodes kinds and texts in turn.
func key(parts ...any) feed.Key {
	var k []byte
	for i := 0; i < len(parts); i += 2 {
		k = feed.AppendKey(k, feed.KeyKind(parts[i].(rune)), []byte(parts[i+1].(string)))
	}
	return feed.Key(k)
}

func readKey(t *testing.T, f *source, r feed.Range) feed.Key {
	t.Helper()
	walk, err := f.Keys(t.Context(), r, 1)
	if err != nil || walk.Count != 1 {
		t.Fatalf("%+v, %v", walk, err)
	}
	return walk.Last
}

// rowsRead counts what the pool's one connection reads of tables.
func rowsRead(t *testing.T, db *DB, work func() error) int {
	t.Helper()
	total := func() (n int) {
		err := db.withSession(t.Context(), func(ctx context.Context, se *session) error {
			rows, err := se.Query(ctx, "SHOW SESSION STATUS LIKE 'Handler_read%'")
			for _, row := range rows {
				var count int
				if _, err := fmt.Sscan(row[1], &count); err != nil {
					return err
				}
				n += count
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	own := total()
	own = total() - own // what looking costs
	before := total()
	if err := work(); err != nil {
		t.Fatal(err)
	}
	return total() - before - own
}
