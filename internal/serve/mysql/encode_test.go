package mysql

import (
	"fmt"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// typeTest is a value of a type that MySQL and MariaDB have, and its JSON.
type typeTest struct{ column, literal, want string }

func typeTests() []typeTest {
	return []typeTest{
		{"tinyint", "-128", "-128"},
		{"tinyint(1)", "1", "true"},
		{"tinyint(1)", "0", "false"},
		{"boolean", "7", "7"},
		{"tinyint unsigned", "255", "255"},
		{"smallint unsigned", "65535", "65535"},
		{"mediumint", "-8388608", "-8388608"},
		{"int unsigned", "4294967295", "4294967295"},
		{"int(8) zerofill", "42", "42"},
		{"bigint unsigned", "18446744073709551615", "18446744073709551615"},
		{"bigint unsigned", "9223372036854775807", "9223372036854775807"},
		{"float", "0.1", "0.1"},
		{"float", "1e30", "1e+30"},
		{"decimal(65,30)", "12345678901234567890123456789012345.123456789012345678901234567890", "12345678901234567890123456789012345.123456789012345678901234567890"},
		{"decimal(10,2) zerofill", "1.50", "1.50"},
		{"decimal(4,3)", "-0.001", "-0.001"},
		{"bit(1)", "b'1'", "1"},
		{"bit(64)", "b'" + strings.Repeat("1", 64) + "'", "18446744073709551615"},
		{"year", "2016", "2016"},
		{"date", "'2016-12-01'", `"2016-12-01"`},
		{"date", "'0000-00-00'", "null"},
		{"date", "'2016-00-00'", `"2016-00-00"`},
		{"datetime", "'0000-00-00 00:00:00'", "null"},
		{"datetime(6)", "'0000-00-00 00:00:00'", "null"},
		{"datetime(3)", "'2016-12-01 23:59:57.250'", `"2016-12-01 23:59:57.25"`},
		{"datetime", "'2016-12-01 00:00:00'", `"2016-12-01 00:00:00"`},
		{"timestamp NULL", "'2016-12-01 23:59:57'", `"2016-12-01T23:59:57Z"`},
		{"timestamp(3) NULL", "'2016-12-01 23:59:57.120'", `"2016-12-01T23:59:57.12Z"`},
		{"timestamp NULL", "'0000-00-00 00:00:00'", "null"},
		{"time", "'-838:59:59'", `"-838:59:59"`},
		{"time(6)", "'23:59:57.25'", `"23:59:57.25"`},
		{"enum('a','b \"c\"')", `'b "c"'`, `"b \"c\""`},
		{"set('x','y','z')", "'x,z'", `"x,z"`},
		{"char(5)", "'x'", `"x"`},
		{"varchar(20) CHARACTER SET latin1", "'caf\u00e9'", "\"caf\u00e9\""},
		{"varchar(20) CHARACTER SET gbk", "'集装箱'", `"集装箱"`},
		{"varchar(20) CHARACTER SET utf16", "'🚚'", `"🚚"`},
		{"text CHARACTER SET utf8mb4", "'🚚 é 集'", `"🚚 é 集"`},
		{"binary(3)", "x'00ff'", `"AP8A"`},
		{"varbinary(9)", "x'27'", `"Jw=="`},
		{"longblob", "x''", `""`},
		{"point", "POINT(1, 2)", `"AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA=="`},
		{"json", `'{"b": 1, "a": [1.50, "é\n"]}'`, `{"b": 1, "a": [1.50, "é\n"]}`},
		{"uuid", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", `"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`},
		{"inet6", "'::1'", `"::1"`},
		{"int", "NULL", "null"},
	}
}

// TestTypes reads values of the types that MySQL and MariaDB alone have, some of which
// only a lax sql_mode lets in.
func TestTypes(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	db := open(t, url, database.Pool{})
	for i, test := range typeTests() {
		table := fmt.Sprintf("t%d", i)
		mustExecute(t, url, "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
			fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, v %s) CHARACTER SET utf8mb4", table, test.column),
			fmt.Sprintf("INSERT INTO %s VALUES (1, %s)", table, test.literal))
		got := readAll(t, mustFeed(t, db, "SELECT id, v FROM "+table, "id"), feed.Range{Limit: 5})
		if want := `{"id":1,"v":` + test.want + `}`; got != want {
			t.Errorf("%s %s: got %s, want %s", test.column, test.literal, got, want)
		}
	}
	testFormats(t, db, url)
	// What comes out of a view or is computed.
	mustExecute(t, url, "CREATE VIEW shown AS SELECT a.id AS `the ``id``, \"s\"`, a.v AS flag, b.v AS doc FROM t1 a JOIN t42 b ON a.id = b.id")
	got := readAll(t, mustFeed(t, db, "SELECT *, 1 AS one, NULL AS nothing, 'a' AS `a, b` FROM shown", "the `id`, \"s\""), feed.Range{Limit: 5})
	if want := `{"the ` + "`id`" + `, \"s\"":1,"flag":true,"doc":{"b": 1, "a": [1.50, "é\n"]},"one":1,"nothing":null,"a, b":"a"}`; got != want {
		t.Errorf("view: got %s, want %s", got, want)
	}
}

// testFormats reads timestamps as RFC 3339 and large numbers as text.
func testFormats(t *testing.T, db *DB, url string) {
	def := feed.Definition{Name: "/formats", SQL: "SELECT id, v, -v AS computed FROM formats", Key: keyOf("id"), RFC3339: true, NumbersAsText: true}
	exact, err := db.source(def)
	if err != nil {
		t.Fatal(err)
	}
	def.SQL = "SELECT id, v FROM formats"
	times, err := db.source(def)
	if err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct{ column, literal, want string }{
		{"bigint", "7", `"7","computed":"-7"`},
		{"bigint unsigned", "0", `"0","computed":"0"`},
		{"decimal(6,3) zerofill", "1.5", `"1.500","computed":"-1.500"`},
		{"smallint unsigned", "7", `7,"computed":-7`},
		{"int", "7", `7,"computed":"-7"`},
		{"double", "7.5", `7.5,"computed":-7.5`},
		{"bit(64)", "b'101'", "5"},
		{"datetime", "'2016-12-01 23:59:57'", `"2016-12-01T23:59:57Z"`},
		{"datetime(3)", "'2016-12-01 23:59:57'", `"2016-12-01T23:59:57.000Z"`},
		{"datetime(6)", "'2016-12-01 23:59:57.12'", `"2016-12-01T23:59:57.120000Z"`},
		{"timestamp(1) NULL", "'2016-12-01 23:59:57.1'", `"2016-12-01T23:59:57.1Z"`},
		{"timestamp(2) NULL", "'0000-00-00 00:00:00'", "null"},
		{"datetime(2)", "'2016-12-00 00:00:00.5'", `"2016-12-00 00:00:00.5"`},
		{"date", "'2016-12-01'", `"2016-12-01"`},
		{"time(3)", "'23:59:57.5'", `"23:59:57.5"`},
	} {
		mustExecute(t, url, "SET sql_mode = 'NO_BACKSLASH_ESCAPES'", "DROP TABLE IF EXISTS formats",
			"CREATE TABLE formats (id int PRIMARY KEY, v "+test.column+")", fmt.Sprintf("INSERT INTO formats VALUES (%d, %s)", i, test.literal))
		source := times
		if strings.Contains(test.want, "computed") {
			source = exact
		}
		if got, want := readAll(t, source, feed.Range{Limit: 5}), fmt.Sprintf(`{"id":%d,"v":%s}`, i, test.want); got != want {
			t.Errorf("%s %s: got %s, want %s", test.column, test.literal, got, want)
		}
	}
}

// TestKeyTypes walks a feed row by row by keys of each type.
func TestKeyTypes(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	db := open(t, url, database.Pool{})
	for i, test := range []struct {
		column   string
		literals []string // ascending
	}{
		{"bigint unsigned", []string{"0", "9223372036854775807", "9223372036854775808", "18446744073709551615"}},
		{"decimal(30,10) unsigned", []string{"0.0000000001", "0.0000000002", "12345678901234567890.1234567890", "99999999999999999999.9999999999"}},
		{"float", []string{"-1e30", "0.1", "0.3", "16777217"}},
		{"double", []string{"-1e300", "5e-324", "0.1", "0.30000000000000004"}},
		{"date", []string{"'0999-01-01'", "'2016-02-29'", "'2016-12-01'"}},
		{"datetime(6)", []string{"'2016-12-01 23:59:57'", "'2016-12-01 23:59:57.000001'", "'2016-12-01 23:59:57.1'"}},
		{"timestamp(3)", []string{"'2016-12-01 23:59:57'", "'2016-12-01 23:59:57.001'", "'2016-12-02 00:00:00'"}},
		{"time(2)", []string{"'-100:00:00'", "'-00:00:01.50'", "'00:00:00'", "'838:59:59'"}},
		{"year", []string{"1901", "2016", "2155"}},
		{"bit(10)", []string{"b'0'", "b'1'", "b'1111111111'"}},
		{"varbinary(20)", []string{"x'00'", "x'2700'", "x'bf27'", "x'ff'"}},
		{"varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", []string{"''", `'\'`, "'it''s'", "'集'", "'🚚'"}},
		{"varchar(20) CHARACTER SET latin1", []string{"'a'", "'B'", "'ÿ'"}},
		{"varchar(20) CHARACTER SET gbk COLLATE gbk_bin", []string{"'a'", "'一'", "'装'"}},
	} {
		for _, ascending := range []string{" asc", ""} {
			table := fmt.Sprintf("k%d%s", i, strings.TrimSpace(ascending))
			mustExecute(t, url, fmt.Sprintf("CREATE TABLE %s (k %s NOT NULL PRIMARY KEY, n int NOT NULL) CHARACTER SET utf8mb4", table, test.column))
			for n, literal := range test.literals {
				mustExecute(t, url, fmt.Sprintf("INSERT INTO %s VALUES (%s, %d)", table, literal, n))
			}
			f := mustFeed(t, db, "SELECT k, n FROM "+table, "k"+ascending)
			checkWalk(t, test.column+ascending, f, len(test.literals), ascending != "")
		}
	}
	for sql, want := range map[string]string{
		"SELECT CAST(NULL AS DATE) AS k":         "NULL",
		"SELECT k FROM zero":                     "is not a date",
		"SELECT k FROM choice":                   "CAST(`k` AS CHAR)",
		"SELECT ST_GeomFromText('POINT(1 1)') k": "no order",
	} {
		mustExecute(t, url, "SET sql_mode = ''", "CREATE TABLE IF NOT EXISTS zero (k date NOT NULL)", "CREATE TABLE IF NOT EXISTS choice (k enum('b', 'a') NOT NULL)", "INSERT INTO zero VALUES ('2016-00-01')")
		err := mustFeed(t, db, sql, "k").Read(t.Context(), feed.Range{Limit: 1}, new(feed.Rows))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
}

// checkWalk walks n rows one by one, and asks for each once more by Until.
func checkWalk(t *testing.T, name string, f *source, n int, ascending bool) {
	t.Helper()
	r := feed.Range{Limit: 1}
	for i := range n {
		var rows feed.Rows
		if err := f.Read(t.Context(), r, &rows); err != nil || rows.Len() != 1 {
			t.Fatalf("%s: row %d: %s, %v", name, i, rows.Data, err)
		}
		want := i
		if !ascending {
			want = n - 1 - i
		}
		if !strings.HasSuffix(string(rows.Data), fmt.Sprintf(`"n":%d}`, want)) {
			t.Errorf("%s: row %d is %s, want n %d", name, i, rows.Data, want)
		}
		if walk, err := f.Keys(t.Context(), feed.Range{Until: rows.Keys[0], Limit: 100}, 1); err != nil || walk.Count != i+1 || walk.Last != rows.Keys[0] {
			t.Errorf("%s: up to row %d: %+v, %v", name, i, walk, err)
		}
		r.After = rows.Keys[0]
	}
	if walk, err := f.Keys(t.Context(), r, 1); err != nil || walk.Count != 0 {
		t.Errorf("%s: behind the last: %+v, %v", name, walk, err)
	}
}
