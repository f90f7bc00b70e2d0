package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
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
	db := b.Open(t, patient(database.Pool{}))
	tests := []struct {
		kind     Kind
		param    param.Type
		literals []string // of rows 1, 2, ...
		compare  string
		arg      string
		want     []int
	}{
		{Integer, param.Integer, []string{"7", "-9223372036854775808", "9223372036854775807"}, "=", "-9223372036854775808", []int{2}},
		{Integer, param.Integer, []string{"7", "8", "9"}, ">=", "8", []int{3, 2}},
		{Real, param.Real, []string{"0.5", "1.5", "1e300"}, ">", "1.25", []int{3, 2}},
		{Text, param.Text, []string{"'a'", "''", "'集装箱'"}, "=", "集装箱", []int{3}},
		{Text, param.Text, []string{"'a'", "''", "'b'"}, "=", "", []int{2}},
		{Boolean, param.Boolean, []string{"TRUE", "FALSE", "TRUE"}, "=", "true", []int{3, 1}},
		{Boolean, param.Boolean, []string{"TRUE", "FALSE", "TRUE"}, "=", "false", []int{2}},
		{
			Timestamp, param.Timestamp,
			[]string{"'2016-12-01 23:59:57'", "'2016-12-02 00:00:00'", "'2016-12-02 00:00:01'"},
			">=",
			"2016-12-02T00:00:00Z",
			[]int{3, 2},
		},
		{
			UUID, param.UUID,
			[]string{"'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "'6ba7b811-9dad-11d1-80b4-00c04fd430c8'"},
			"=",
			"6ba7b811-9dad-11d1-80b4-00c04fd430c8",
			[]int{2},
		},
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
			def.Params = []param.Param{{Name: "value", Type: test.param}}
			source := db.source(t, def)
			args := []string{test.arg}
			if got := ids(t, source, feed.Range{Args: args, Limit: 10}); !slices.Equal(got, test.want) {
				t.Fatalf("ids %v, want %v", got, test.want)
			}
			first := read(t, source, feed.Range{Args: args, Limit: 1}).Keys[0]
			if got := ids(t, source, feed.Range{Args: args, After: first, Limit: 10}); !slices.Equal(got, test.want[1:]) {
				t.Fatalf("after the first: ids %v, want %v", got, test.want[1:])
			}
			def.SQL = fmt.Sprintf("SELECT id FROM %s WHERE (:value IS NULL OR v %s :value)", table, test.compare)
			optional := db.source(t, def)
			for arg, want := range map[string]int{test.arg: len(test.want), param.Absent: len(test.literals)} {
				if got := ids(t, optional, feed.Range{Args: []string{arg}, Limit: 10}); len(got) != want {
					t.Errorf("optional %q: ids %v, want %d", arg, got, want)
				}
			}
		})
	}
}

// testOptionalPlan checks and reads a feed with parameters that may be NULL, by the indexes of their columns.
func testOptionalPlan(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	fillItems(t, db, 20000, 10)
	_ = db.Exec(t.Context(), "ANALYZE items") // for the estimates of PostgreSQL; MySQL has other words
	def := definition(selectItems+" WHERE (:grp IS NULL OR grp = :grp) AND (name = :name OR :name IS NULL)", "id")
	for _, p := range []param.Param{{Name: "grp", Type: param.Integer}, {Name: "name", Type: param.Text}} {
		p.Optional, p.Default = true, param.Absent
		def.Params = append(def.Params, p)
	}
	source := db.source(t, def)
	const index = "(grp, id DESC)"
	if err := source.Check(t.Context(), 200); err == nil || !strings.Contains(err.Error(), index) {
		t.Errorf("without an index on %s: %v", index, err)
	}
	db.exec(t, "CREATE INDEX items_by_group ON items "+index)
	if err := source.Check(t.Context(), 200); err != nil {
		t.Error(err)
	}
	r := feed.Range{Args: []string{param.Absent, param.Absent}, Limit: 3}
	if got := ids(t, source, r); len(got) != 3 {
		t.Errorf("without parameters: %v", got)
	}
	r.Args[0], r.Limit = "7", 100
	if got := ids(t, source, r); len(got) != 10 {
		t.Errorf("of a group: %v", got)
	}
	r.Args[1] = "no such name"
	if got := ids(t, source, r); len(got) != 0 {
		t.Errorf("of a group and a name: %v", got)
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
	def.Params = []param.Param{{Name: "grp", Type: param.Integer}, {Name: "name", Type: param.Text}}
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

// testLists passes lists of each type to queries and feeds.
func testLists(t *testing.T, b Backend) {
	db := b.Open(t, patient(database.Pool{}))
	const uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c"
	tests := []struct {
		kind     Kind
		param    param.Type
		literals []string // of rows 1, 2, ...
		lists    map[string][]string
	}{
		{Integer, param.Integer, []string{"7", "-9223372036854775808", "9223372036854775807", "10"}, map[string][]string{
			"1": {"7"}, "": {"8"}, "1,4": {"10", "7"}, "2,3": {"9223372036854775807", "5", "-9223372036854775808"},
			"1,2,3,4": {"1", "7", "9223372036854775807", "-9223372036854775808", "10"},
		}},
		{Real, param.Real, []string{"0.1", "1.5", "1e300"}, map[string][]string{"1,3": {"0.1", "1e300"}, "2": {"1.5"}}},
		{Text, param.Text, []string{"'a'", "''", "'集装箱'", quote(`"{a,b}\`), "'NULL'"}, map[string][]string{
			"1,3": {"集装箱", "a"}, "2": {""}, "4": {`"{a,b}\`}, "2,5": {"", "NULL", "' OR 1=1 --"}, "": {"a,b"},
		}},
		{Boolean, param.Boolean, []string{"TRUE", "FALSE"}, map[string][]string{"1": {"true"}, "2": {"0"}, "1,2": {"false", "true"}}},
		{
			Timestamp, param.Timestamp,
			[]string{"'2016-12-01 23:59:57'", "'2016-12-02 00:00:00'"},
			map[string][]string{
				"1":   {"2016-12-02T00:59:57+01:00"},
				"1,2": {"2016-12-02T00:00:00Z", "2016-12-01T23:59:57Z", "2017-01-01T00:00:00Z"},
			},
		},
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
		source, err := db.Source(feed.Definition{
			Name: "/lists", Params: params,
			SQL: fmt.Sprintf("SELECT id FROM %s WHERE v %s AND id >= :low AND v %s ORDER BY id", table, db.InList, db.InList),
		})
		if err != nil {
			t.Fatal(err)
		}
		def := definition(fmt.Sprintf("SELECT id FROM %s WHERE v %s AND id >= :low", table, db.InList), "id asc")
		def.Params = params
		for want, texts := range test.lists {
			t.Run(fmt.Sprintf("%s %q", test.param, texts), func(t *testing.T) {
				testList(t, source, params[1], texts, want)
				testFeedList(t, db.source(t, def), params[1], texts, want)
			})
		}
	}
}

// testList expects the rows with the ids in want.
func testList(t *testing.T, source feed.Source, list param.Param, texts []string, want string) {
	arg, err := param.Argument(list, texts...)
	if err != nil {
		t.Fatal(err)
	}
	rows := feed.Rows{Limit: feed.Limit{Rows: 10, Bytes: 1000}}
	if err := source.Read(t.Context(), feed.Range{Args: []string{"0", arg}}, &rows); err != nil {
		t.Fatal(err)
	}
	got := strings.NewReplacer(`{"id":`, "", "}", "").Replace(string(rows.Data))
	if got != want {
		t.Errorf("ids %s, want %s", got, want)
	}
	for _, args := range [][]string{{"0"}, {"0", ""}, {"0", "\x05a"}} {
		if err := source.Read(t.Context(), feed.Range{Args: args}, &feed.Rows{Limit: feed.Limit{Rows: 10, Bytes: 1000}}); err == nil {
			t.Errorf("arguments %q: no error", args)
		}
	}
}

// testFeedList expects the rows with the ids in want, also after the first and in Keys.
func testFeedList(t *testing.T, source feed.Source, list param.Param, texts []string, want string) {
	arg, err := param.Argument(list, texts...)
	if err != nil {
		t.Fatal(err)
	}
	r := feed.Range{Args: []string{"0", arg}, Limit: 10}
	rows := read(t, source, r)
	expect := func(what, want string, rows *feed.Rows) {
		t.Helper()
		if got := strings.NewReplacer(`{"id":`, "", "}", "").Replace(string(rows.Data)); got != want {
			t.Errorf("%s: ids %s, want %s", what, got, want)
		}
	}
	expect("feed", want, rows)
	if walk, err := source.Keys(t.Context(), r, 1); err != nil || walk.Count != rows.Len() {
		t.Errorf("feed: keys %+v, %v", walk, err)
	}
	if rows.Len() > 0 {
		r.After, r.Until = rows.Keys[0], rows.Keys[rows.Len()-1]
		_, rest, _ := strings.Cut(want, ",")
		expect("after the first", rest, read(t, source, r))
	}
	for _, args := range [][]string{{"0"}, {"0", ""}, {"0", "\x05a"}} {
		if _, err := tryRead(t, source, feed.Range{Args: args, Limit: 1}); err == nil {
			t.Errorf("feed with arguments %q: no error", args)
		}
	}
	if err := source.Check(t.Context(), 10); err != nil {
		t.Error(err)
	}
}

// testFilters reads a feed with filters on columns of several types, and with a parameter and a
// list.
func testFilters(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	var values []string
	for id := range 40 {
		values = append(values, fmt.Sprintf("(%d, %d, %s, %d.5)", id, id%2, quote([]string{"a", "", "it's"}[id%3]), id%5))
	}
	db.exec(t, "INSERT INTO items VALUES "+strings.Join(values, ", "))
	def := definition("SELECT id, grp AS team, name, score FROM items WHERE id >= :low AND id "+db.InList, "team", "id")
	def.Params = []param.Param{
		{Name: "low", Type: param.Integer},
		{Name: "list", Type: param.Integer, ListMax: 40},
		param.Filter("team", param.Integer), param.Filter("name", param.Text), param.Filter("score", param.Real),
	}
	source := db.source(t, def)
	if err := source.Check(t.Context(), 10); err != nil || len(source.Columns()) != 4 {
		t.Fatalf("%v, columns after the check: %v, want 4", err, source.Columns())
	}
	var list []string
	for id := range 33 {
		list = append(list, fmt.Sprint(id))
	}
	all, err := param.Argument(def.Params[1], list...)
	if err != nil {
		t.Fatal(err)
	}
	for _, filters := range [][]string{
		{param.Absent, param.Absent, param.Absent},
		{"1", param.Absent, param.Absent},
		{param.Absent, "", param.Absent},
		{param.Absent, "it's", "2.5"},
		{"0", "a", "0.5"},
		{"0", "' OR 1=1 --", param.Absent},
		{"7", param.Absent, param.Absent},
	} {
		var want []int
		for team := 1; team >= 0; team-- {
			for id := 32; id >= 3; id-- {
				row := []string{fmt.Sprint(team), []string{"a", "", "it's"}[id%3], fmt.Sprintf("%d.5", id%5)}
				matches := id%2 == team
				for i, filter := range filters {
					matches = matches && (filter == param.Absent || filter == row[i])
				}
				if matches {
					want = append(want, id)
				}
			}
		}
		r := feed.Range{Args: append([]string{"3", all}, filters...), Limit: 100}
		rows := read(t, source, r)
		if got := ids(t, source, r); !slices.Equal(got, want) {
			t.Errorf("filters %q: ids %v, want %v", filters, got, want)
		}
		if walk, err := source.Keys(t.Context(), r, 1); err != nil || !slices.Equal(walk.Keys, rows.Keys) {
			t.Errorf("filters %q: keys %+v, %v", filters, walk, err)
		}
		if len(want) > 2 {
			r.After, r.Until = rows.Keys[0], rows.Keys[len(want)-2]
			if got := ids(t, source, r); !slices.Equal(got, want[1:len(want)-1]) {
				t.Errorf("filters %q between keys: ids %v, want %v", filters, got, want[1:len(want)-1])
			}
		}
	}
	def.Params = append(def.Params, param.Filter("grp", param.Integer))
	if err := db.source(t, def).Check(t.Context(), 10); err == nil ||
		!strings.Contains(err.Error(), "the filter grp is not among the columns") {
		t.Errorf("a filter that is no output column: %v", err)
	}
}

// testFilterValues filters columns by values that differ a little from those of other rows.
func testFilterValues(t *testing.T, b Backend) {
	db := b.Open(t, patient(database.Pool{}))
	const uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c"
	numbers := []string{"9007199254740992", "9007199254740993", "-9223372036854775808"}
	times := []string{"'2016-12-01 23:59:57'", "'2016-12-01 23:59:57.25'", "'2016-12-01 23:59:57.123456'"}
	tests := []struct {
		kind     Kind
		filter   param.Type
		literals []string         // of rows 1, 2, ...
		want     map[string][]int // the ids for each value
	}{
		{Integer, param.Integer, numbers, map[string][]int{"9007199254740993": {2}, "-9223372036854775808": {3}, "9223372036854775807": nil}},
		{Integer, param.Text, numbers, map[string][]int{"9007199254740993": {2}}},
		{
			Decimal, param.Integer,
			[]string{"9007199254740992", "9007199254740993", "9007199254740993.5"},
			map[string][]int{"9007199254740993": {2}},
		},
		{Decimal, param.Text, []string{"12345678901234567890.123456", "12345678901234567890.123457", "0"}, map[string][]int{
			"12345678901234567890.123457": {2}, "12345678901234567890.1234569": nil, "0.00": {3}, "-0": {3},
		}},
		{
			Decimal, param.Real,
			[]string{"0.1", "12345678901234567890.123456"},
			map[string][]int{"0.10": {1}, "12345678901234567890.123456": nil, "0.1000001": nil},
		},
		{Text, param.Text, []string{"'a'", "''", "'7'"}, map[string][]int{"": {2}, "7": {3}, "07": nil}},
		{Boolean, param.Boolean, []string{"TRUE", "FALSE"}, map[string][]int{"1": {1}, "false": {2}}},
		{Timestamp, param.Timestamp, times, map[string][]int{
			"2016-12-02T00:59:57+01:00": {1}, "2016-12-01T23:59:57.250Z": {2}, "2016-12-01T23:59:57.123456Z": {3},
			"2016-12-01T23:59:57.1234561Z": nil, "2016-12-01T23:59:57.1234559Z": nil, "2016-12-01T23:59:57.123Z": nil,
		}},
		{TimestampTZ, param.Timestamp, []string{"'2016-12-02 00:59:57+01'", "'2016-12-01 23:59:57.25+00'"}, map[string][]int{
			"2016-12-02T05:29:57+05:30": {1}, "2016-12-01T23:59:57.25Z": {2}, "2016-12-01T23:59:57.2500004Z": nil,
		}},
		{Date, param.Date, []string{"'2016-12-01'", "'2016-12-02'"}, map[string][]int{"2016-12-02": {2}, "2016-12-03": nil}},
		{Text, param.Time, []string{"'23:59:57'", "'23:59:57.5'"}, map[string][]int{"23:59:57": {1}, "23:59:57.50": {2}}},
		{Decimal, param.Decimal, []string{"12345678901234567890.123456", "2"}, map[string][]int{"12345678901234567890.123456": {1}}},
		{UUID, param.UUID, []string{"'" + uuid + "8'", "'" + uuid + "9'"}, map[string][]int{strings.ToUpper(uuid) + "9": {2}, uuid + "a": nil}},
	}
	for i, test := range tests {
		columnType, ok := b.Types[test.kind]
		if !ok {
			continue
		}
		table := fmt.Sprintf("f%d", i)
		db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, v %s)", table, b.Types[Integer], columnType))
		for id, literal := range test.literals {
			db.exec(t, fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", table, id+1, literal))
		}
		def := definition("SELECT id, v FROM "+table, "id")
		def.Params = []param.Param{param.Filter("v", test.filter)}
		t.Run(fmt.Sprintf("%s of %s", test.filter, test.kind), func(t *testing.T) {
			source := db.source(t, def)
			if err := source.Check(t.Context(), 10); err != nil {
				t.Error(err)
			}
			for text, want := range test.want {
				arg, err := param.Argument(def.Params[0], text)
				if err != nil {
					t.Fatal(err)
				}
				if got := ids(t, source, feed.Range{Args: []string{arg}, Limit: 10}); !slices.Equal(got, want) {
					t.Errorf("%s: ids %v, want %v", text, got, want)
				}
			}
		})
	}
}

// testFilterBytes filters a column of bytes, also by what is no text.
func testFilterBytes(t *testing.T, b Backend) {
	if b.Bytes == nil {
		t.Skip("no literal of bytes")
	}
	db := b.Open(t, patient(database.Pool{}))
	db.exec(t, fmt.Sprintf("CREATE TABLE raw (id %s NOT NULL PRIMARY KEY, v %s)", b.Types[Integer], b.Types[Bytes]))
	for id, value := range [][]byte{{0xff, 0}, []byte("a"), {}, {0xff}} {
		db.exec(t, fmt.Sprintf("INSERT INTO raw VALUES (%d, %s)", id+1, b.Bytes(value)))
	}
	def := definition("SELECT id, v FROM raw", "id")
	def.Params = []param.Param{param.Filter("v", param.Bytes)}
	listed := definition("SELECT id FROM raw WHERE v "+db.InList, "id")
	listed.Params = []param.Param{{Name: "list", Type: param.Bytes, ListMax: 3}}
	for text, want := range map[string]int{"/wA=": 1, "_wA=": 1, "YQ==": 2, "": 3, "/w==": 4} {
		for _, d := range []feed.Definition{def, listed} {
			arg, err := param.Argument(d.Params[0], text)
			if err != nil {
				t.Fatal(err)
			}
			if got := ids(t, db.source(t, d), feed.Range{Args: []string{arg}, Limit: 10}); !slices.Equal(got, []int{want}) {
				t.Errorf("%q: ids %v, want %d", text, got, want)
			}
		}
	}
}
