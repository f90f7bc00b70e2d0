package postgres

import (
	"context"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

// hostileRole sets what changes the texts of values.
const hostileRole = "SET intervalstyle = iso_8601|SET bytea_output = escape|SET extra_float_digits = -15|SET datestyle = 'SQL, DMY'"

// exactColumns has every type of a column, except for jsonb and arrays.
func exactColumns() []storetest.ExactColumn {
	only := func(types ...stream.Type) []stream.Type { return types }
	texts := only(stream.Text, stream.Integer, stream.Decimal, stream.JSON, stream.UUID)
	numbers := only(stream.Real, stream.Decimal, stream.Integer)
	const utc = "v AT TIME ZONE 'UTC'"
	addresses := []string{
		"10.0.0.1", "10.0.0.1/24", "10.0.0.0/24", "10.0.0.1/32", "::1", "0::1", "::1.2.3.4", "::102:304", "::ffff:1.2.3.4", "::ffff:102:304", "2001:db8::/32",
		"2001:DB8::/32", "::/0", "0.0.0.0/0", "::", "1:0:0:2::3", "1:0:2:3:4:5:6:7", "fe80::1%1", "10.1", "::1.2.0.0/112", "::ffff:1.2.3.0/120", "::0.1.0.0",
	}
	list := []storetest.ExactColumn{
		{SQL: "bigint", Types: only(stream.Integer)},
		{SQL: "integer", Types: only(stream.Integer), Refused: []string{"2147483648", "-2147483649"}},
		{SQL: "smallint", Types: only(stream.Integer), Refused: []string{"32768", "-32769"}},
		{SQL: "small_domain", Types: only(stream.Integer), Refused: []string{"32768"}},
		{SQL: "oid", Types: only(stream.Integer), Refused: []string{"-1", "4294967296"}},
		{SQL: "double precision", Types: only(stream.Integer, stream.Real), Rounds: only(stream.Integer), Refused: []string{"9007199254740993"}},
		{SQL: "real", Types: only(stream.Real, stream.Integer), Rounds: only(stream.Real, stream.Integer), Refused: []string{"0.123456789", "1e39"}},
		{SQL: "numeric(10,2)", Types: numbers, Rounds: numbers, Refused: []string{"1.239", "1e8", "1e-5"}},
		{SQL: "numeric(20,2)", Types: only(stream.Decimal, stream.Integer), Rounds: numbers, Refused: []string{"1.005", "1e18"}},
		{SQL: "price", Types: only(stream.Decimal, stream.Integer), Rounds: numbers, Refused: []string{"1.005"}},
		{SQL: "numeric", Types: only(stream.Decimal, stream.Integer), Rounds: numbers},
		{SQL: "text", Types: texts},
		{SQL: "varchar", Types: texts},
		{SQL: "varchar(40)", Types: texts, Refused: []string{`"` + strings.Repeat("a", 40) + ` "`}},
		{SQL: "text COLLATE loose", Types: texts, Unkeyed: only(stream.Text, stream.JSON)},
		{SQL: "citext", Types: only(stream.Text), Unkeyed: only(stream.Text)},
		{SQL: "char(3)", Types: only(stream.Text), Rounds: only(stream.Text), Refused: []string{`"ab"`, `"abcd"`, `"abc "`}, Texts: []string{"abc", "a  ", "a b", "   ", "ab ", "äbc"}},
		{SQL: "char(36)", Types: only(stream.UUID, stream.Text), Rounds: only(stream.Text), Texts: []string{strings.Repeat("a", 36)}},
		{SQL: "bpchar"},
		{SQL: "name", Types: only(stream.Text), Refused: []string{`"` + strings.Repeat("ä", 32) + `"`}},
		{SQL: `"char"`},
		{SQL: "mood", Types: only(stream.Text), Refused: []string{`"c"`, `"A"`, `"a "`}, Texts: []string{"a", "b", "x y", "1", ""}},
		{SQL: "inet", Types: only(stream.Text), Refused: []string{`"10.1"`, `"fe80::1%1"`, `""`}, Texts: addresses},
		{SQL: "cidr", Types: only(stream.Text), Refused: []string{`"10.0.0.1/24"`}, Texts: addresses},
		{
			SQL: "macaddr", Types: only(stream.Text), Refused: []string{`"08:00:2b:01:02"`},
			Texts: []string{"08:00:2b:01:02:03", "08:00:2B:01:02:03", "08-00-2b-01-02-03", "0800.2b01.0203", "00:00:00:00:00:00", "08:00:2b:01:02:04"},
		},
		{SQL: "macaddr8", Types: only(stream.Text), Refused: []string{`"08:00:2b:01:02:03"`}, Texts: []string{"08:00:2b:01:02:03:04:05", "08:00:2b:ff:fe:01:02:03"}},
		{SQL: "bit(3)", Types: only(stream.Text), Refused: []string{`"10"`, `"1011"`, `"x1F"`}, Texts: []string{"101", "010", "000", "111"}},
		{SQL: "varbit(5)", Types: only(stream.Text), Refused: []string{`"101010"`, `"x1"`, `"B1"`}, Texts: []string{"101", "", "0", "00", "10100", "11111", "1"}},
		{
			SQL: "interval", Types: only(stream.Text), Unkeyed: only(stream.Text), Refused: []string{`"24 hours"`, `"1 days"`, `"P1D"`, `"13 mons"`, `"1 day -0:00:01"`, `""`},
			Texts: []string{
				"00:00:00", "1 day", "-1 days", "1 year 2 mons", "-1 years -2 mons +3 days", "1 mon -1 days +02:03:04.5", "-00:00:01", "100:00:00", "-1 days", "3 days -04:05:06",
				"00:00:00.000001", "1 year -00:00:00.5", "2 years", "1 year 12 mons", "01:02", "1 day 01:02:03.500", "-1 days 01:00:00",
			},
		},
		{SQL: "interval(0)", Types: only(stream.Text), NoKey: true, Refused: []string{`"00:00:01.5"`}, Texts: []string{"00:00:01", "1 day 00:00:01"}},
		{SQL: "interval year to month"},
		{SQL: "xml", Types: only(stream.Text), NoKey: true, Refused: []string{`"<?xml version=\"1.0\" encoding=\"UTF-8\"?><a/>"`, `"<a>"`}, Texts: []string{"<a/>", "<a b='1'>x &amp; y</a>", " <a></a> ", "text", ""}},
		{SQL: "boolean", Types: only(stream.Boolean), Read: "v::int", Refused: []string{"1"}},
		{SQL: "uuid", Types: only(stream.UUID)},
		{
			SQL: "date", Types: only(stream.Date, stream.Text), Refused: []string{`"2016-02-30"`},
			Texts: []string{"2016-12-01", "0001-01-01", "9999-12-31", "2016-12-01 ", "infinity", "0044-03-15 BC", "January 8, 1999"},
		},
		clock("time"), clock("time(2)"), moments("timestamptz", utc, stream.Timestamp), moments("timestamptz(0)", utc, stream.Timestamp),
		moments("timestamp", "", stream.Timestamp), moments("timestamp(3)", "", stream.Timestamp),
		{SQL: "timetz"},
		{SQL: "bytea", Types: only(stream.Bytes), Read: "encode(v, 'hex')"},
		{SQL: "json", Types: only(stream.JSON), NoKey: true},
		{SQL: "money"},
		{SQL: "point", NoKey: true},
		{SQL: "int4range"},
		{SQL: "tsvector"},
	}
	return withLiterals(list)
}

func moments(sql, read string, kind stream.Type) storetest.ExactColumn {
	return storetest.ExactColumn{SQL: sql, Types: []stream.Type{kind}, Rounds: []stream.Type{kind}, Read: read}
}

func clock(sql string) storetest.ExactColumn {
	texts := []string{"12:00:00", "24:00:00", "00:00:00.5", "00:00:00.50", "12:00:00+01", "12:00:60", "1:00:00", "24:00:01", "-01:00:00"}
	kinds := []stream.Type{stream.Time, stream.Text}
	return storetest.ExactColumn{SQL: sql, Types: kinds, Rounds: kinds, Texts: texts}
}

// withLiterals adds values that only SQL stores, and the types that a feed writes: JSON in a column of texts is a text.
func withLiterals(list []storetest.ExactColumn) []storetest.ExactColumn {
	returned := map[stream.Type]stream.Type{stream.JSON: stream.Text}
	literals := map[string][]string{
		"double precision": {"'-Infinity'", "'NaN'", "5e-324", "0.1"}, "real": {"'Infinity'", "'NaN'", "0.1", "3.4028235e38"}, "numeric": {"'NaN'", "'-Infinity'", "1e-500"},
		"numeric(10,2)": {"'NaN'"}, "timestamptz": {"'infinity'", "'-infinity'", "'0044-03-15 12:00+00 BC'", "'4713-01-01 00:00+00 BC'", "'20000-02-29 00:00+00'", "'1850-07-01'"},
		"timestamp": {"'infinity'", "'0044-03-15 12:00:00.5 BC'", "'294246-12-31'", "'1850-07-01 01:02:03.000004'"}, "timestamptz(0)": {"'-infinity'"},
		"date": {"'infinity'", "'-infinity'", "'0001-02-29 BC'", "'4713-01-01 BC'", "'5874897-12-31'"}, "time": {"'24:00'"},
		"interval": {"'1 year -3 days -04:05:06.7'"}, "boolean": {"true"}, "bytea": {`'\\xff00'`}, "xml": {"'<a b=\"1\"/>'"},
	}
	for i := range list {
		list[i].Literals = literals[list[i].SQL]
		if slices.Contains(list[i].Types, stream.Text) {
			list[i].Returns = returned
		}
	}
	return list
}

// Values of exact pairs of types come back as they were sent, and all other pairs are refused.
func TestStreamPairs(t *testing.T) {
	t.Parallel()
	values := 200_000
	if testing.Short() {
		values = 1000
	}
	url := shared.Get(t).CreateDatabase(t)
	for _, sql := range []string{
		"CREATE EXTENSION citext", "CREATE TYPE mood AS ENUM ('a', 'b', 'x y', '1', '')", "CREATE DOMAIN small_domain AS smallint", "CREATE DOMAIN price AS numeric(20,2)",
		"CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
	} {
		mustExecute(t, url, sql)
	}
	for setting := range strings.SplitSeq(hostileRole, "|") {
		mustExecute(t, url, "ALTER DATABASE "+apptest.DatabaseName(url)+" "+setting)
	}
	db := open(t, url, database.Pool{})
	storetest.StreamPairs(t, storetest.StreamBackend{
		Open: func(testing.TB, database.Pool) storetest.StreamDB {
			return storetest.StreamDB{
				Sink: func(_ testing.TB, schema *stream.Schema) stream.Sink { return db.Stream(schema) },
				Exec: func(ctx context.Context, sql string) error { return execute(ctx, url, sql) },
				Rows: func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Feeds: []func(feed.Definition) (feed.Source, error){
					db.Source, open(t, url+"&timezone=Asia/Shanghai", database.Pool{}).Source, open(t, url+"&timezone=America/New_York", database.Pool{}).Source,
				},
			}
		},
		Types:   map[stream.Type]string{stream.Integer: "bigint"},
		Special: true,
	}, exactColumns(), values)
}

const arrayRecords = `{"id":0,"i":[1,null,-5],"r":[0.1,2,1e-7],"d":[1.50,"2"],"t":["a","NULL",null,"\"\\{},",""],"v":["abc"],"e":["a","b"],"b":[true,null],"at":["2016-12-01T23:59:57Z"],"local":["2016-12-01T23:59:57.5+01:00"],"u":["6BA7B810-9dad-11d1-80b4-00c04fd430c8"],"day":["0044-03-15"],"clock":["24:00:00"],"raw":["AQI="],"net":["10.0.0.0/8"],"object":{"b":[1.50],"a":-0},"jt":["a",null,"1"],"ji":[[1,-2]]}
{"id":1,"i":[[1,2],[3,4]],"t":[],"e":[null]}
{"id":2,"i":[2147483648]}
{"id":3,"d":[1.005]}
{"id":4,"v":["abcd"]}
{"id":5,"at":["2016-12-01T23:59:57.5Z"]}
{"id":6,"e":["c"]}
{"id":7,"i":[[[[[[[1]]]]]]]}
{"id":14,"ji":["1"]}
{"id":15,"jt":[1]}
{"id":16,"jt":{}}
{"id":8,"i":[[1],[2,3]]}
{"id":9,"i":[1,"x"]}
{"id":10,"i":[[]]}
{"id":11,"t":[{}]}
{"id":12,"t":"a"}
{"id":13,"t":[["a"],null]}`

func arrayColumns() []stream.Column {
	return []stream.Column{
		{Name: "id", Type: "integer", Required: true},
		{Name: "i", Type: "integer[]"},
		{Name: "r", Type: "real[]"},
		{Name: "d", Type: "decimal[]"},
		{Name: "t", Type: "text[]"},
		{Name: "v", Type: "text[]"},
		{Name: "e", Type: "text[]"},
		{Name: "b", Type: "boolean[]"},
		{Name: "at", Type: "timestamp[]"},
		{Name: "local", Type: "timestamp[]"},
		{Name: "u", Type: "uuid[]"},
		{Name: "day", Type: "date[]"},
		{Name: "clock", Type: "time[]"},
		{Name: "raw", Type: "bytes[]"},
		{Name: "net", Type: "text[]"},
		{Name: "object", Type: "json"},
		{Name: "jt", Type: "json"},
		{Name: "ji", Type: "json"},
	}
}

// Arrays and jsonb come back as they were sent, also if array_nulls is off. A key of them is refused,
// and so is a key on a DEFERRABLE constraint.
func TestStreamArrays(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TYPE mood AS ENUM ('a', 'b')")
	mustExecute(t, url, `CREATE TABLE arrays (id bigint UNIQUE DEFERRABLE, i integer[], r real[], d numeric(10,2)[], t text[], v varchar(3)[], e mood[], b boolean[],
	at timestamptz(0)[], local timestamp[], u uuid[], day date[], clock time[], raw bytea[], net inet[], object jsonb, jt text[], ji smallint[])`)
	mustExecute(t, url, "ALTER DATABASE "+apptest.DatabaseName(url)+" SET array_nulls = off")
	columns := arrayColumns()
	sinkOf := func(url string, key ...string) (*stream.Schema, *Stream) {
		for i := range columns {
			columns[i].Required = slices.Contains(key, columns[i].Name)
		}
		schema, err := stream.NewSchema(stream.Definition{Name: "/arrays", Table: "arrays", Columns: columns, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return schema, open(t, url, database.Pool{}).Stream(schema)
	}
	for key, want := range map[string]string{"id": "DEFERRABLE", "t": "key column t is text[]", "object": "key column object is jsonb"} {
		if _, sink := sinkOf(url, key); true {
			if err := sink.Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("key %s: %v", key, err)
			}
		}
	}
	schema, sink := sinkOf(url + "&timezone=Asia/Shanghai")
	records, refused, err := schema.Parse([]byte(arrayRecords), stream.FormLines, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 100, Depth: 20, Fields: 20})
	if err != nil || len(refused) != 6 {
		t.Fatal(err, refused)
	}
	b := &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{{Records: records}}}
	if err := sink.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, r := range b.Requests[0].Result.Refused {
		reasons = append(reasons, r.Reason)
	}
	want := []string{
		"i: 2147483648 cannot be stored exactly in a column of type integer[]", "d: 1.005 cannot be stored exactly in a column of type numeric(10,2)[]",
		"v: abcd cannot be stored exactly in a column of type character varying(3)[]",
		"at: 2016-12-01 23:59:57.5 cannot be stored exactly in a column of type timestamp(0) with time zone[]", `invalid input value for enum mood: "c"`,
		"i: [[[[[[[1]]]]]]] cannot be stored exactly in a column of type integer[]",
		`ji: ["1"] cannot be stored exactly in a column of type smallint[]`, "jt: [1] cannot be stored exactly in a column of type text[]",
		"jt: {} cannot be stored exactly in a column of type text[]",
	}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Error(diff)
	}
	rows, err := streamRows(t.Context(), url, "SELECT * FROM arrays ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	null := slices.Repeat([]string{"NULL"}, 20)
	stored := [][]string{
		{
			"0", "{1,NULL,-5}", "{0.1,2,1e-07}", "{1.50,2.00}", `{a,"NULL",NULL,"\"\\{},",""}`, "{abc}", "{a,b}", "{t,NULL}", `{"2016-12-01 23:59:57+00"}`, `{"2016-12-01 22:59:57.5"}`,
			"{6ba7b810-9dad-11d1-80b4-00c04fd430c8}", "{0044-03-15}", "{24:00:00}", `{"\\x0102"}`, "{10.0.0.0/8}", `{"a": 0, "b": [1.50]}`, "{a,NULL,1}", "{{1,-2}}",
		},
		slices.Concat([]string{"1", "{{1,2},{3,4}}", "NULL", "NULL", "{}", "NULL", "{NULL}"}, null[:11]),
	}
	if diff := cmp.Diff(stored, rows); diff != "" {
		t.Error(diff)
	}
	sendArraysBack(t, url, schema, func() *Stream { _, sink := sinkOf(url); return sink }, rows)
}

// round: true rounds values to what the column holds.
func TestStreamRounds(t *testing.T) {
	t.Parallel()
	url := shared.Get(t).CreateDatabase(t)
	mustExecute(t, url, "CREATE TABLE rounds (n numeric(10,2), d numeric(10,2), wide numeric, c char(3), at timestamptz(0), local timestamp(1), clock time(0), f real, ns numeric(5,1)[])")
	def := stream.Definition{Name: "/rounds", Table: "rounds"}
	for name, kind := range map[string]stream.Type{
		"n": stream.Real, "d": stream.Decimal, "wide": stream.Real, "c": stream.Text, "at": stream.Timestamp, "local": stream.Timestamp, "clock": stream.Time, "f": stream.Real,
		"ns": "decimal[]",
	} {
		def.Columns = append(def.Columns, stream.Column{Name: name, Type: kind, Round: true})
	}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	body := `[{"n":1.239,"d":1.005,"wide":0.1,"c":"a","at":"2016-12-01T23:59:59.5Z","local":"2016-12-01T23:59:59.123456789Z","clock":"23:59:57.5","f":0.123456789,"ns":[1.25]},
		{"d":1e9},{"c":"abcd"}]`
	records, refused, err := schema.Parse([]byte(body), stream.FormJSON, time.Now(), stream.Limits{Bytes: 1000, Records: 10, Depth: 5, Fields: 10})
	if err != nil || len(refused) > 0 {
		t.Fatal(err, refused)
	}
	entry := &stream.Entry{Records: records}
	if err := open(t, url, database.Pool{}).Stream(schema).Commit(t.Context(), &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{entry}}); err != nil {
		t.Fatal(err)
	}
	rows, err := streamRows(t.Context(), url, "SELECT * FROM rounds")
	want := [][]string{{"1.24", "1.01", "0.1", "a  ", "2016-12-02 00:00:00+00", "2016-12-01 23:59:59.1", "23:59:58", "0.12345679", "{1.3}"}}
	if diff := cmp.Diff(want, rows); diff != "" || err != nil || len(entry.Result.Refused) != 2 {
		t.Errorf("%s, %v, refused %v", diff, err, entry.Result.Refused)
	}
}

var update = flag.Bool("update", false, "write the table of pairs into the documents")

func TestPairsDocumented(t *testing.T) {
	var all []stream.Pair
	for _, p := range pairs {
		all = append(all, p.Pair)
	}
	storetest.PairsDocumented(t, "PostgreSQL", all, *update)
}

// sendArraysBack reads the arrays by a feed and stores what it sends in another table.
func sendArraysBack(t *testing.T, url string, schema *stream.Schema, sink func() *Stream, rows [][]string) {
	t.Helper()
	mustExecute(t, url, "CREATE TABLE again (LIKE arrays)")
	var sent feed.Rows
	source, err := open(t, url+"&timezone=Asia/Shanghai", database.Pool{}).Source(feed.Definition{
		Name: "/arrays", SQL: "SELECT * FROM arrays", Key: []feed.KeyColumn{{Name: "id"}}, RFC3339: true,
	})
	if err == nil {
		err = source.Read(t.Context(), feed.Range{Limit: 10}, &sent)
	}
	if err != nil {
		t.Fatal(err)
	}
	records, refused, err := schema.Parse([]byte("["+string(sent.Data)+"]"), stream.FormJSON, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 100, Depth: 20, Fields: 20})
	if err != nil || len(refused) != 0 {
		t.Fatal(err, refused, string(sent.Data))
	}
	mustExecute(t, url, "ALTER TABLE arrays RENAME TO before")
	mustExecute(t, url, "ALTER TABLE again RENAME TO arrays")
	if err := sink().Commit(t.Context(), &stream.Batch{ID: [16]byte{2}, Requests: []*stream.Entry{{Records: records}}}); err != nil {
		t.Fatal(err)
	}
	again, err := streamRows(t.Context(), url, "SELECT * FROM arrays ORDER BY id")
	if diff := cmp.Diff(rows, again); diff != "" || err != nil {
		t.Error("from a feed: ", diff, err)
	}
}
