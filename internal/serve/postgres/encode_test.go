package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// testTypes reads values of the types that PostgreSQL alone has.
func testTypes(t *testing.T, pg *apptest.PostgresServer) {
	url := pg.CreateDatabase(t)
	mustExecute(t, url, `CREATE TYPE mood AS ENUM ('sad', 'ok "quoted"');
		CREATE DOMAIN small AS int CHECK (VALUE < 100);
		CREATE TYPE pair AS (a int, b text)`)
	tests := []struct{ expression, want string }{
		{`7::smallint`, `7`},
		{`(-2147483648)::int`, `-2147483648`},
		{`4294967295::oid`, `4294967295`},
		{`42::small`, `42`},
		{`0.1::real`, `0.1`},
		{`1e30::real`, `1e+30`},
		{`'NaN'::float8`, `"NaN"`},
		{`'-Infinity'::float8`, `"-Infinity"`},
		{`'-0'::float8`, `-0`},
		{`'NaN'::numeric`, `"NaN"`},
		{`'Infinity'::numeric`, `"Infinity"`},
		{`0.10::numeric`, `0.10`},
		{`1e-20::numeric(30,20)`, `0.00000000000000000001`},
		{`'ok "quoted"'::mood`, `"ok \"quoted\""`},
		{`'x'::char(5)`, `"x    "`},
		{`'{"a":1,  "a":2}'::json`, `{"a":1,  "a":2}`},
		{`'{"b":1,"a":[1.50,null]}'::jsonb`, `{"a": [1.50, null], "b": 1}`},
		{`'2016-12-01 23:59:57.5'::timestamp`, `"2016-12-01 23:59:57.5"`},
		{`'infinity'::timestamp`, `"infinity"`},
		{`'2016-12-01 23:59:57.5+08'::timestamptz`, `"2016-12-01T15:59:57.5Z"`},
		{`'infinity'::timestamptz`, `"infinity"`},
		{`'0044-03-15 12:00:00+00 BC'::timestamptz`, `"0044-03-15 12:00:00+00 BC"`},
		{`'2016-12-01'::date`, `"2016-12-01"`},
		{`'23:59:57.25'::time`, `"23:59:57.25"`},
		{`'1 day 02:03:04'::interval`, `"1 day 02:03:04"`},
		{`'192.168.0.1/24'::inet`, `"192.168.0.1/24"`},
		{`'12.5'::money`, `"$12.50"`},
		{`B'101'`, `"101"`},
		{`'{1,NULL,-3}'::int[]`, `[1,null,-3]`},
		{`'{}'::text[]`, `[]`},
		{`ARRAY['a', 'b "c"', NULL, 'NULL', 'x,{}\', '']`, `["a","b \"c\"",null,"NULL","x,{}\\",""]`},
		{`ARRAY[[1,2],[3,4]]`, `[[1,2],[3,4]]`},
		{`'[0:1]={5,6}'::bigint[]`, `[5,6]`},
		{`ARRAY[1.50, 'NaN']::numeric[]`, `[1.50,"NaN"]`},
		{`ARRAY[true,false,NULL]`, `[true,false,null]`},
		{`ARRAY['2016-12-01 00:00+00'::timestamptz]`, `["2016-12-01T00:00:00Z"]`},
		{`ARRAY['{"a": 1}'::jsonb]`, `[{"a": 1}]`},
		{`ARRAY['\x0001'::bytea]`, `["AAE="]`},
		{`ARRAY['6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid]`, `["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]`},
		{`ARRAY['sad']::mood[]`, `["sad"]`},
		{`ROW(1, 'x "y"')::pair`, `"(1,\"x \"\"y\"\"\")"`},
		{`'[1,5)'::int4range`, `"[1,5)"`},
		{`NULL::int`, `null`},
	}
	db := open(t, url, database.Pool{})
	check := func(expression, want string) {
		t.Helper()
		got := readAll(t, db, "SELECT 1 AS id, "+expression+" AS v")
		if want := `{"id":1,"v":` + want + `}`; got != want {
			t.Errorf("%s: got %s, want %s", expression, got, want)
		}
	}
	for _, test := range tests {
		check(test.expression, test.want)
	}
	testFormats(t, db)
	testSharedText(t, url)

	mustExecute(t, url, "ALTER ROLE postgres IN DATABASE "+apptest.DatabaseName(url)+" SET bytea_output = escape")
	db = open(t, url, database.Pool{})
	check(`'\x00ff5c78415c5c'::bytea`, `"AP9ceEFcXA=="`)
	check(`'\x5c7830'::bytea`, `"XHgw"`)
}

// testFormats reads timestamps as RFC 3339 and large numbers as text.
func testFormats(t *testing.T, db *DB) {
	for _, test := range []struct{ expression, want string }{
		{`'2016-12-01 23:59:57'::timestamp`, `"2016-12-01T23:59:57.000000Z"`},
		{`'2016-12-01 23:59:57.1'::timestamp(3)`, `"2016-12-01T23:59:57.100Z"`},
		{`'2016-12-01 23:59:57+01'::timestamptz`, `"2016-12-01T22:59:57.000000Z"`},
		{`'2016-12-01 23:59:57.9+01'::timestamptz(0)`, `"2016-12-01T22:59:58Z"`},
		{`'infinity'::timestamp`, `"infinity"`},
		{`'-infinity'::timestamptz`, `"-infinity"`},
		{`'0044-03-15 12:00:00+00 BC'::timestamptz`, `"0044-03-15 12:00:00+00 BC"`},
		{`'12016-12-01 23:59:57'::timestamp`, `"12016-12-01 23:59:57"`},
		{`'{2016-12-01 23:59:57.5,NULL,infinity}'::timestamp(3)[]`, `["2016-12-01T23:59:57.500Z",null,"infinity"]`},
		{`'2016-12-01'::date`, `"2016-12-01"`},
		{`'23:59:57.25'::time`, `"23:59:57.25"`},
		{`7::bigint`, `"7"`},
		{`7::int`, `7`},
		{`7::smallint`, `7`},
		{`7.5::float8`, `7.5`},
		{`4294967295::oid`, `4294967295`},
		{`0.10::numeric`, `"0.10"`},
		{`'NaN'::numeric`, `"NaN"`},
		{`ARRAY[1.50, NULL]::numeric[]`, `["1.50",null]`},
		{`'{5,6}'::bigint[]`, `["5","6"]`},
		{`sum(7::int)`, `"7"`},
	} {
		source, err := db.source(feed.Definition{Name: "/test", SQL: "SELECT 1 AS id, " + test.expression + " AS v", Key: keyOf("id"), RFC3339: true, NumbersAsText: true})
		if err != nil {
			t.Fatal(err)
		}
		var rows feed.Rows
		if err := source.Read(t.Context(), feed.Range{Limit: 1}, &rows); err != nil {
			t.Fatal(err)
		}
		if want := `{"id":1,"v":` + test.want + `}`; string(rows.Data) != want {
			t.Errorf("%s: got %s, want %s", test.expression, rows.Data, want)
		}
	}
}

// testSharedText reads one statement in two formats over one connection.
func testSharedText(t *testing.T, url string) {
	db := open(t, url, database.Pool{Max: 1})
	def := feed.Definition{Name: "/test", SQL: "SELECT 7::bigint AS id, '2016-12-01 23:59:57'::timestamp(0) AS at", Key: keyOf("id")}
	for _, test := range []struct {
		rfc3339, text bool
		want          string
	}{
		{false, false, `{"id":7,"at":"2016-12-01 23:59:57"}`},
		{true, false, `{"id":7,"at":"2016-12-01T23:59:57Z"}`},
		{false, true, `{"id":"7","at":"2016-12-01 23:59:57"}`},
		{true, true, `{"id":"7","at":"2016-12-01T23:59:57Z"}`},
	} {
		def.RFC3339, def.NumbersAsText = test.rfc3339, test.text
		f, err := db.source(def)
		if err != nil {
			t.Fatal(err)
		}
		q, err := db.Source(feed.Definition{Name: "/test", SQL: def.SQL, RFC3339: test.rfc3339, NumbersAsText: test.text})
		if err != nil {
			t.Fatal(err)
		}
		var rows feed.Rows
		answer := feed.Rows{Limit: feed.Limit{Rows: 1, Bytes: 1000}}
		if err := errors.Join(f.Read(t.Context(), feed.Range{Limit: 1}, &rows), q.Read(t.Context(), feed.Range{}, &answer)); err != nil {
			t.Fatal(err)
		}
		if string(rows.Data) != test.want || string(answer.Data) != test.want {
			t.Errorf("feed %s, query %s, want %s", rows.Data, answer.Data, test.want)
		}
	}
}

func TestAppendArrayMalformed(t *testing.T) {
	for _, text := range []string{"", "{", "}", "{1", "{1,", "{1,}", `{"`, `{"\`, "{1}x", "[", "[0:1]", "[0:1]=", "{,}", "{{1}"} {
		want := string(feed.AppendString(nil, []byte(text)))
		if got := string(appendArray(nil, []byte(text), appendRaw)); got != want {
			t.Errorf("%q: got %s, want the text %s", text, got, want)
		}
	}
}

// Whatever the text, the array is valid JSON, and what was there stays.
func FuzzAppendArray(f *testing.F) {
	for _, text := range []string{`{}`, `{1,NULL,-3}`, `{"a","b \"c\""}`, `{{1,2},{3,4}}`, `[0:1]={5,6}`, `{"\\",""}`, "{\xff}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, encode := range []encoder{feed.AppendString, appendBytea, appendBool} {
			got := appendArray([]byte("before "), text, encode)
			if !bytes.HasPrefix(got, []byte("before ")) || !json.Valid(got[len("before "):]) {
				t.Errorf("%q became %q", text, got)
			}
		}
	})
}

func FuzzAppendBytea(f *testing.F) {
	for _, text := range []string{``, `\x`, `\x00ff`, `\x0`, `abc\\`, `\001`, `\`, `\99`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if got := appendBytea(nil, text); !json.Valid(got) {
			t.Errorf("%q became %q", text, got)
		}
	})
}

func TestNewColumnsErrors(t *testing.T) {
	def := feed.Definition{Key: []feed.KeyColumn{{Name: "id"}}}
	if _, err := newColumns(def, nil, nil); err == nil || !strings.Contains(err.Error(), "id") {
		t.Errorf("no columns: %v", err)
	}
}
