package sqlite_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

func readAll(t *testing.T, source feed.Source) *feed.Rows {
	t.Helper()
	rows := new(feed.Rows)
	if err := source.Read(t.Context(), feed.Range{Limit: 1000}, rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestEncode writes values of every storage class into columns of every kind
// of declared type.
func TestEncode(t *testing.T) {
	t.Parallel()
	tests := []struct{ declared, literal, want string }{
		{"", "NULL", "null"},
		{"", "1", "1"},
		{"", "-9223372036854775808", "-9223372036854775808"},
		{"", "1.0", "1"},
		{"", "0.1", "0.1"},
		{"", "-0.0", "-0"},
		{"", "1e21", "1e+21"},
		{"", "123456789012345680000.0", "123456789012345680000"},
		{"", "1e-7", "1e-07"},
		{"", "9e999", `"Infinity"`},
		{"", "-9e999", `"-Infinity"`},
		{"", "'1'", `"1"`},
		{"", "x'00ff'", `"AP8="`},
		{"", "x''", `""`},
		{"TEXT", "''", `""`},
		{"TEXT", "1", `"1"`},
		{"TEXT", "char(0) || 'a'", `"\u0000a"`},
		{"TEXT", "CAST(x'61ff62' AS TEXT)", `"a\ufffdb"`},
		{"BOOLEAN", "1", "true"},
		{"BOOL", "0", "false"},
		{"BOOLEAN", "2", "2"},
		{"BOOLEAN", "'yes'", `"yes"`},
		{"boolean NOT NULL", "TRUE", "true"},
		{"INTEGER", "1", "1"},
		{"DECIMAL(10,2)", "'12.50'", "12.5"}, // SQLite keeps a real
		{"DECIMAL(10,2)", "'n/a'", `"n/a"`},
		{"DECIMAL_TEXT", "'12345678901234567890.123456'", "12345678901234567890.123456"},
		{"DECIMAL_TEXT", "'-0.10'", "-0.10"},
		{"DECIMAL_TEXT", "'1 '", `"1 "`},
		{"DECIMAL_TEXT", "'+1'", `"+1"`},
		{"DECIMAL_TEXT", "''", `""`},
		{"NUMERIC", "9007199254740993", "9007199254740993"},
		{"TIMESTAMP", "'2016-12-01 23:59:57'", `"2016-12-01 23:59:57"`},
		{"DATETIME", "1480636797", "1480636797"},
		{"JSON", `'{"a":[1,{}]}'`, `{"a":[1,{}]}`},
		{"JSON", `'{"a":'`, `"{\"a\":"`},
		{"JSON", "'7'", "7"},
		{"JSONB", "'[1, 2]'", "[1, 2]"},
		{"JSON", "CAST(x'22ff22' AS TEXT)", `"\"\ufffd\""`},
		{"TEXT", "'{}'", `"{}"`},
	}
	for _, encoding := range []string{"UTF-8", "UTF-16le"} {
		t.Run(encoding, func(t *testing.T) {
			db, writer := open(t, database.Pool{})
			if encoding != "UTF-8" {
				db, writer = openUTF16(t)
			}
			for i, test := range tests {
				if encoding != "UTF-8" && strings.Contains(test.literal, "CAST") {
					continue // bytes of that encoding
				}
				script(t, writer, fmt.Sprintf("CREATE TABLE t%d (id INTEGER PRIMARY KEY, v %s); INSERT INTO t%d VALUES (1, %s)", i, test.declared, i, test.literal))
				source, err := db.Source(feed.Definition{Name: "/t", SQL: fmt.Sprintf("SELECT v, id FROM t%d", i), Key: []feed.KeyColumn{{Name: "id"}}})
				if err != nil {
					t.Fatal(err)
				}
				got := string(readAll(t, source).Data)
				if want := `{"v":` + test.want + `,"id":1}`; got != want || !json.Valid([]byte(got)) {
					t.Errorf("%s in %s: %s, want %s", test.literal, test.declared, got, want)
				}
			}
		})
	}
}

// TestFormats reads timestamps as RFC 3339 and large numbers as text.
func TestFormats(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	for i, test := range []struct{ declared, literal, want string }{
		{"DATETIME(3)", "'2016-12-01 23:59:57.25'", `"2016-12-01T23:59:57.250Z"`},
		{"datetime ( 0 )", "'2016-12-01 23:59:57'", `"2016-12-01T23:59:57Z"`},
		{"DATETIME(0)", "'2016-12-01T23:59:57.5+01:00'", `"2016-12-01T22:59:57.5Z"`},
		{"TIMESTAMP", "'2016-12-01 23:59:57'", `"2016-12-01T23:59:57.000000Z"`},
		{"TIMESTAMP WITH TIME ZONE", "'2016-12-01 23:59:57Z'", `"2016-12-01T23:59:57.000000Z"`},
		{"TIMESTAMP", "'2016-12-01'", `"2016-12-01"`},
		{"TIMESTAMP", "'soon'", `"soon"`},
		{"TIMESTAMP", "1480636797", `"1480636797"`},
		{"TIMESTAMP", "x'00'", `"AA=="`},
		{"TEXT", "'2016-12-01 23:59:57'", `"2016-12-01 23:59:57"`},
		{"DATE", "'2016-12-01'", `"2016-12-01"`},
		{"", "7", `"7"`},
		{"BIGINT", "7", `"7"`},
		{"INT", "7", `"7"`},
		{"SMALLINT", "7", "7"},
		{"int4", "7", "7"},
		{"INT2(9)", "7", "7"},
		{"BOOLEAN", "1", "true"},
		{"DOUBLE", "7", "7"},
		{"DECIMAL(10,2)", "'12.50'", `"12.5"`},
		{"DECIMAL(10,2)", "7", `"7"`},
		{"DECIMAL(10,2)", "9e999", `"Infinity"`},
		{"DECIMAL_TEXT", "'12.50'", `"12.50"`},
		{"JSON", "'[7]'", "[7]"},
	} {
		script(t, writer, fmt.Sprintf("CREATE TABLE t%d (id SMALLINT PRIMARY KEY, v %s); INSERT INTO t%d VALUES (1, %s)", i, test.declared, i, test.literal))
		source, err := db.Source(feed.Definition{Name: "/t", SQL: fmt.Sprintf("SELECT v, id FROM t%d", i), Key: []feed.KeyColumn{{Name: "id"}}, RFC3339: true, NumbersAsText: true})
		if err != nil {
			t.Fatal(err)
		}
		got := string(readAll(t, source).Data)
		if want := `{"v":` + test.want + `,"id":1}`; got != want {
			t.Errorf("%s in %s: %s, want %s", test.literal, test.declared, got, want)
		}
	}
}

// TestKeyClasses orders a column without a type, whose values are of all classes: SQLite
// puts numbers before text before blobs, and a key finds its place again.
func TestKeyClasses(t *testing.T) {
	t.Parallel()
	db, writer := open(t, database.Pool{})
	script(t, writer, `CREATE TABLE t (k PRIMARY KEY NOT NULL);
		INSERT INTO t VALUES (1), (1.5), (2), (-9e999), (9223372036854775807), ('1'), ('a' || char(0)), (''), (x'61'), (x''), ('é')`)
	source, err := db.Source(feed.Definition{Name: "/t", SQL: "SELECT k, typeof(k) AS class FROM t", Key: []feed.KeyColumn{{Name: "k", Ascending: true}}})
	if err != nil {
		t.Fatal(err)
	}
	all := readAll(t, source)
	if all.Len() != 11 {
		t.Fatalf("%d rows: %s", all.Len(), all.Data)
	}
	walk, err := source.Keys(t.Context(), feed.Range{Limit: 100}, 1)
	if err != nil || walk.Count != 11 || walk.Last != all.Keys[10] {
		t.Fatalf("keys: %+v, %v", walk, err)
	}
	for i, key := range all.Keys {
		if walk.Keys[i] != key {
			t.Errorf("key %d: %q by Keys, %q by Read", i, walk.Keys[i], key)
		}
		var behind, upTo feed.Rows
		if err := source.Read(t.Context(), feed.Range{After: key, Limit: 100}, &behind); err != nil {
			t.Fatal(err)
		}
		if err := source.Read(t.Context(), feed.Range{Until: key, Limit: 100}, &upTo); err != nil {
			t.Fatal(err)
		}
		if string(behind.Data) != string(all.Slice(i+1, 11)) || string(upTo.Data) != string(all.Slice(0, i+1)) {
			t.Errorf("at key %d: up to it %s, behind it %s", i, upTo.Data, behind.Data)
		}
	}
}
