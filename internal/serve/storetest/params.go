package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
)

// ids returns the ids of the rows of r.
func ids(t testing.TB, source feed.Source, r feed.Range) []int {
	t.Helper()
	var list []int
	for _, item := range decodeItems(t, read(t, source, r)) {
		list = append(list, item.ID)
	}
	return list
}

// testParams passes a parameter of each type.
func testParams(t *testing.T, b Backend) {
	db := b.Open(t, database.Pool{})
	tests := []struct {
		kind     Kind
		param    feed.ParamType
		literals []string // of rows 1, 2, ...
		compare  string
		arg      string
		want     []int
	}{
		{Integer, feed.Integer, []string{"7", "-9223372036854775808", "9223372036854775807"}, "=", "-9223372036854775808", []int{2}},
		{Integer, feed.Integer, []string{"7", "8", "9"}, ">=", "8", []int{3, 2}},
		{Real, feed.Real, []string{"0.5", "1.5", "1e300"}, ">", "1.25", []int{3, 2}},
		{Text, feed.Text, []string{"'a'", "''", "'集装箱'"}, "=", "集装箱", []int{3}},
		{Text, feed.Text, []string{"'a'", "''", "'b'"}, "=", "", []int{2}},
		{Boolean, feed.Boolean, []string{"TRUE", "FALSE", "TRUE"}, "=", "true", []int{3, 1}},
		{Boolean, feed.Boolean, []string{"TRUE", "FALSE", "TRUE"}, "=", "false", []int{2}},
		{Timestamp, feed.Timestamp, []string{"'2016-12-01 23:59:57'", "'2016-12-02 00:00:00'", "'2016-12-02 00:00:01'"}, ">=", "2016-12-02T00:00:00Z", []int{3, 2}},
		{UUID, feed.UUID, []string{"'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "'6ba7b811-9dad-11d1-80b4-00c04fd430c8'"}, "=", "6ba7b811-9dad-11d1-80b4-00c04fd430c8", []int{2}},
	}
	for i, test := range tests {
		columnType, ok := b.Types[test.kind]
		if !ok {
			continue
		}
		t.Run(fmt.Sprintf("%s %s %s", test.param, test.compare, test.arg), func(t *testing.T) {
			table := fmt.Sprintf("p%d", i)
			db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, v %s)", table, b.Types[Integer], columnType))
			for id, literal := range test.literals {
				db.exec(t, fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", table, id+1, literal))
			}
			def := definition(fmt.Sprintf("SELECT id FROM %s WHERE v %s :value", table, test.compare), "id")
			def.Params = []feed.Param{{Name: "value", Type: test.param}}
			source := db.source(t, def)
			args := []string{test.arg}
			if got := ids(t, source, feed.Range{Args: args, Limit: 10}); !slices.Equal(got, test.want) {
				t.Fatalf("ids %v, want %v", got, test.want)
			}
			first := read(t, source, feed.Range{Args: args, Limit: 1}).Keys[0]
			if got := ids(t, source, feed.Range{Args: args, After: first, Limit: 10}); !slices.Equal(got, test.want[1:]) {
				t.Fatalf("after the first: ids %v, want %v", got, test.want[1:])
			}
		})
	}
}

// testParamsQuoted passes texts that would do harm as part of a statement to a feed with
// two parameters, one of them used twice.
func testParamsQuoted(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	texts := []string{
		"'; DROP TABLE items; --", `" OR 1=1 --`, `\'; DELETE FROM items`, "$1 :name ? %s", "/*", "a\nb\tc", "%_", "null",
		strings.Repeat("x'", 1000),
	}
	for i, text := range texts {
		db.exec(t, fmt.Sprintf("INSERT INTO items VALUES (%d, %d, %s, 1)", i+1, i%2, quote(text)))
	}
	def := definition(selectItems+" WHERE (name = :name OR name = :name) AND grp = :grp", "id")
	def.Params = []feed.Param{{Name: "grp", Type: feed.Integer}, {Name: "name", Type: feed.Text}}
	source := db.source(t, def)
	for i, text := range texts {
		r := feed.Range{Args: []string{fmt.Sprint(i % 2), text}, Limit: 10}
		if got := ids(t, source, r); !slices.Equal(got, []int{i + 1}) {
			t.Errorf("%.40q: ids %v, want %d", text, got, i+1)
		}
		walk, err := source.Keys(t.Context(), r, 1)
		if err != nil || walk.Count != 1 {
			t.Errorf("%.40q: keys %+v, %v", text, walk, err)
		}
		r.Args[0] = fmt.Sprint((i + 1) % 2)
		if got := ids(t, source, r); len(got) != 0 {
			t.Errorf("%.40q of the other group: ids %v, want none", text, got)
		}
	}
	all := db.source(t, definition(selectItems, "id"))
	if got := ids(t, all, feed.Range{Limit: 100}); len(got) != len(texts) {
		t.Errorf("%d rows left of %d", len(got), len(texts))
	}
	if _, err := tryRead(t, source, feed.Range{Args: []string{"1"}, Limit: 1}); err == nil {
		t.Error("one argument for two parameters is no error")
	}
}

// testLists passes lists of each type to queries.
func testLists(t *testing.T, b Backend) {
	db := b.Open(t, database.Pool{})
	const uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c"
	tests := []struct {
		kind     Kind
		param    param.Type
		literals []string // of rows 1, 2, ...
		lists    map[string][]string
	}{
		{Integer, param.Integer, []string{"7", "-9223372036854775808", "9223372036854775807", "10"}, map[string][]string{
			"1": {"7"}, "": {"8"}, "1,4": {"10", "7"}, "2,3": {"9223372036854775807", "5", "-9223372036854775808"}, "1,2,3,4": {"1", "7", "9223372036854775807", "-9223372036854775808", "10"},
		}},
		{Real, param.Real, []string{"0.1", "1.5", "1e300"}, map[string][]string{"1,3": {"0.1", "1e300"}, "2": {"1.5"}}},
		{Text, param.Text, []string{"'a'", "''", "'集装箱'", quote(`"{a,b}\`), "'NULL'"}, map[string][]string{
			"1,3": {"集装箱", "a"}, "2": {""}, "4": {`"{a,b}\`}, "2,5": {"", "NULL", "' OR 1=1 --"}, "": {"a,b"},
		}},
		{Boolean, param.Boolean, []string{"TRUE", "FALSE"}, map[string][]string{"1": {"true"}, "2": {"0"}, "1,2": {"false", "true"}}},
		{Timestamp, param.Timestamp, []string{"'2016-12-01 23:59:57'", "'2016-12-02 00:00:00'"}, map[string][]string{"1": {"2016-12-02T00:59:57+01:00"}, "1,2": {"2016-12-02T00:00:00Z", "2016-12-01T23:59:57Z", "2017-01-01T00:00:00Z"}}},
		{UUID, param.UUID, []string{"'" + uuid + "8'", "'" + uuid + "9'"}, map[string][]string{"2": {uuid + "9", uuid + "a"}}},
	}
	for i, test := range tests {
		columnType, ok := b.Types[test.kind]
		if !ok {
			continue
		}
		table := fmt.Sprintf("l%d", i)
		db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, v %s)", table, b.Types[Integer], columnType))
		for id, literal := range test.literals {
			db.exec(t, fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", table, id+1, literal))
		}
		params := []param.Param{{Name: "low", Type: param.Integer}, {Name: "list", Type: test.param, ListMax: 5}}
		source, err := db.Query(query.Definition{
			Name: "/lists", Params: params,
			SQL: fmt.Sprintf("SELECT id FROM %s WHERE v %s AND id >= :low AND v %s ORDER BY id", table, db.InList, db.InList),
		})
		if err != nil {
			t.Fatal(err)
		}
		for want, texts := range test.lists {
			t.Run(fmt.Sprintf("%s %q", test.param, texts), func(t *testing.T) { testList(t, source, params[1], texts, want) })
		}
	}
}

// testList expects the rows with the ids in want.
func testList(t *testing.T, source query.Source, list param.Param, texts []string, want string) {
	arg, err := param.Argument(list, texts...)
	if err != nil {
		t.Fatal(err)
	}
	var rows query.Rows
	if err := source.Run(t.Context(), []string{"0", arg}, query.Limit{Rows: 10, Bytes: 1000}, &rows); err != nil {
		t.Fatal(err)
	}
	got := strings.NewReplacer(`{"id":`, "", "}", "").Replace(string(rows.Data))
	if got != want {
		t.Errorf("ids %s, want %s", got, want)
	}
	for _, args := range [][]string{{"0"}, {"0", ""}, {"0", "\x05a"}} {
		if err := source.Run(t.Context(), args, query.Limit{Rows: 10, Bytes: 1000}, new(query.Rows)); err == nil {
			t.Errorf("arguments %q: no error", args)
		}
	}
}
