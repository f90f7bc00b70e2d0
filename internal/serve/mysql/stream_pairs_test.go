package mysql

import (
	"context"
	"flag"
	"slices"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
	"spillway/internal/serve/stream"
)

func only(kind stream.Type) []stream.Type { return []stream.Type{kind} }

// exactColumns has every type of a column.
func exactColumns() []storetest.ExactColumn {
	const (
		bin   = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
		loose = " CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
	)
	numbers, texts := []stream.Type{stream.Integer, stream.Boolean}, []stream.Type{stream.Text, stream.Integer, stream.Decimal, stream.JSON, stream.Timestamp, stream.Date, stream.Time, stream.UUID}
	unjson := []stream.Type{stream.Text, stream.Integer, stream.Decimal, stream.Timestamp, stream.Date, stream.Time, stream.UUID}
	ascii, bytes := unjson[1:], []stream.Type{stream.Bytes, stream.Text}
	moments := func(sql string, types ...stream.Type) storetest.ExactColumn {
		return storetest.ExactColumn{SQL: sql, Types: types, Rounds: types}
	}
	epoch := moments("timestamp(3) NULL", stream.Timestamp)
	epoch.From, epoch.To = time.Unix(1, 0), time.Unix(1<<31-1, 0)
	epoch.Key = "timestamp(3)"
	list := []storetest.ExactColumn{
		{SQL: "tinyint", Types: numbers, Refused: []string{"128", "-129", "true"}},
		{SQL: "tinyint(1)", Types: numbers},
		{SQL: "smallint unsigned", Types: numbers, Refused: []string{"-1", "65536"}},
		{SQL: "mediumint", Types: numbers},
		{SQL: "int zerofill", Types: numbers},
		{SQL: "bigint", Types: numbers, Refused: []string{"9223372036854775808"}},
		{SQL: "bigint unsigned", Types: []stream.Type{stream.Decimal, stream.Integer, stream.Boolean}, Refused: []string{"1.5", "18446744073709551616", "-1"}},
		{SQL: "bit(5)", Types: []stream.Type{stream.Integer, stream.Decimal, stream.Boolean}, Read: "v+0", Refused: []string{"-1", "32"}},
		{SQL: "bit(64)", Types: []stream.Type{stream.Integer, stream.Decimal, stream.Boolean}, Read: "v+0", Refused: []string{"-1"}},
		{SQL: "year", Types: only(stream.Integer), Wholes: []string{"1901", "1970", "2000", "2155"}, Read: "v+0", Refused: []string{"5", "70", "1900", "2156"}},
		{SQL: "double", Types: []stream.Type{stream.Integer, stream.Real}, Refused: []string{"9007199254740993"}},
		{SQL: "double(10,2)", Types: only(stream.Integer), Rounds: only(stream.Real), Refused: []string{"100000000", "-100000000"}},
		{SQL: "double(20,0) unsigned", Types: only(stream.Integer), Rounds: only(stream.Real), Refused: []string{"-1", "9007199254740993"}},
		{SQL: "float", Rounds: only(stream.Real)},
		{SQL: "float(8,2)", Rounds: only(stream.Real)},
		{
			SQL: "decimal(10,2)", Types: []stream.Type{stream.Real, stream.Decimal, stream.Integer}, Rounds: []stream.Type{stream.Real, stream.Decimal},
			Refused: []string{"1.239", "1e8", "1e-5"},
		},
		{SQL: "decimal(20,3)", Types: []stream.Type{stream.Decimal, stream.Integer}, Rounds: only(stream.Decimal)},
		{SQL: "char(5)" + bin, Types: unjson, Refused: []string{`"a "`, `"abcdef"`}},
		{SQL: "varchar(40)" + bin, Types: texts},
		{SQL: "varchar(5) CHARACTER SET latin1 COLLATE latin1_bin", Types: texts, Refused: []string{`"12345 "`, `"\u0142"`}},
		{SQL: "varchar(40) CHARACTER SET tis620 COLLATE tis620_bin", Types: texts, Refused: []string{`"\ud800\udc41"`, `"\u00e9"`}},
		{SQL: "varchar(40)" + loose, Types: texts, Unkeyed: []stream.Type{stream.Text, stream.JSON}},
		{SQL: "tinytext" + bin, Types: texts, NoKey: true},
		{SQL: "varbinary(40)", Types: bytes, Hex: "HEX(v)"},
		{SQL: "binary(4)", Types: bytes, Hex: "HEX(v)", Refused: []string{`"AAAA"`}},
		{SQL: "blob", Types: bytes, Hex: "HEX(v)", NoKey: true},
		{
			SQL: `enum('a','2','x y','Ä','it''s','\','a'',''b','')` + bin, Types: only(stream.Text), Refused: []string{`"1"`, `"A"`, `"ä"`, `"a "`},
			Texts: []string{"a", "2", "x y", "Ä", "it's", `\`, "a','b", "", "1", "0", "A", "a "},
		},
		{
			SQL: "set('a','b','1','x y')", Types: only(stream.Text), Refused: []string{`"b,a"`, `"a,a"`, `"2"`, `"a,"`},
			Texts: []string{"a", "b", "a,b", "", "1", "a,1", "b,x y", "3", "0", "A", "x y,a"},
		},
		moments("datetime", stream.Timestamp), moments("datetime(6)", stream.Timestamp), epoch,
		moments("time", stream.Time), moments("time(6)", stream.Time),
		{SQL: "date", Types: only(stream.Date)},
	}
	addReturns(list)
	if onMySQL() {
		return append(list, storetest.ExactColumn{SQL: "json", Types: only(stream.JSON), NoKey: true}, storetest.ExactColumn{SQL: "point", NoKey: true})
	}
	return append(list, storetest.ExactColumn{SQL: "uuid", Types: only(stream.UUID)},
		storetest.ExactColumn{
			SQL: "inet6", Types: only(stream.Text), Refused: []string{`"::FFFF"`, `"0::1"`, `"1.2.3.4"`, `"::102:304"`, `"fe80::1%1"`},
			Texts: []string{"0::2:3:4:5:6:7:8", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "1:0:3:0:5:6:7:8", "1::3:0:5:6:7:8", "::", "::1", "2001:db8::1", "2001:0db8::1", "::ffff:1.2.3.4", "::1.2.3.4", "1:0:0:2::3", "1:0:2:3:4:5:6:7", "1::2:3:4:5:6:7", "::1:0:0", "::0.1.0.2"},
		},
		storetest.ExactColumn{SQL: "inet4", Types: only(stream.Text), Texts: []string{"1.2.3.4", "01.2.3.4", "255.255.255.255", "0.0.0.0", "1.2.3"}},
		storetest.ExactColumn{SQL: "json", Types: texts, NoKey: true, Texts: []string{"1", "true", "[]", "-", "\t- "}, Returns: documents(texts)},
		storetest.ExactColumn{SQL: "varchar(9) CHARACTER SET cp932 COLLATE cp932_bin", Types: ascii}, storetest.ExactColumn{SQL: "point", NoKey: true})
}

// documents are the types of a stream that stores what is in a column of MariaDB's JSON, whatever has stored it.
func documents(types []stream.Type) map[stream.Type]stream.Type {
	all := make(map[stream.Type]stream.Type)
	for _, kind := range types {
		all[kind] = stream.JSON
	}
	return all
}

// addReturns adds the types that a feed writes: JSON in a column of texts is a text, and a binary column is base64.
func addReturns(list []storetest.ExactColumn) {
	for i, c := range list {
		switch {
		case slices.Contains(c.Types, stream.Bytes):
			list[i].Returns = map[stream.Type]stream.Type{stream.Text: stream.Bytes}
		case slices.Contains(c.Types, stream.Text):
			list[i].Returns = map[stream.Type]stream.Type{stream.JSON: stream.Text}
		}
	}
}

// Values of exact pairs of types come back as they were sent, and all other pairs are refused.
func TestStreamPairs(t *testing.T) {
	t.Parallel()
	values := 200_000
	if testing.Short() {
		values = 2000
	}
	url := freshDatabase(t, apptest.MySQL(t, append(hostileSettings(), "--explicit-defaults-for-timestamp=0")...))
	db := open(t, url, database.Pool{})
	storetest.StreamPairs(t, storetest.StreamBackend{
		Open: func(testing.TB, database.Pool) storetest.StreamDB {
			return storetest.StreamDB{
				Sink:  func(_ testing.TB, schema *stream.Schema) stream.Sink { return db.Stream(schema) },
				Exec:  func(ctx context.Context, sql string) error { return execute(ctx, url, sql) },
				Rows:  func(ctx context.Context, sql string) ([][]string, error) { return streamRows(ctx, url, sql) },
				Feeds: []func(feed.Definition) (feed.Source, error){db.Source},
			}
		},
		Types: map[stream.Type]string{stream.Integer: "bigint"},
		Loose: true,
	}, exactColumns(), values)
}

var update = flag.Bool("update", false, "write the table of pairs into the document")

func TestPairsDocumented(t *testing.T) {
	t.Parallel()
	var list []stream.Pair
	for _, p := range pairs {
		list = append(list, p.Pair)
	}
	storetest.PairsDocumented(t, "MySQL and MariaDB", list, *update)
}

// Filters equal exactly the stored value: a YEAR is no two digits, a label has no position.
func TestFilterTypes(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	db := open(t, url, database.Pool{})
	for _, sql := range []string{
		"CREATE TABLE f (id INT PRIMARY KEY, y YEAR, e ENUM('a','2'), c TIME(3), d DATE, n DECIMAL(5,2))",
		"INSERT INTO f VALUES (1, 2005, 'a', '-01:00:00.5', '2016-12-01', 1.50)",
	} {
		if err := execute(t.Context(), url, sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		column string
		kind   param.Type
		value  string
		found  int
	}{
		{"y", param.Integer, "2005", 1},
		{"y", param.Integer, "5", 0},
		{"e", param.Text, "a", 1},
		{"e", param.Text, "1", 0},
		{"e", param.Integer, "1", -1},
		{"c", param.Time, "-01:00:00.500", 1},
		{"c", param.Time, "-01:00:00", 0},
		{"d", param.Date, "2016-12-01", 1},
		{"n", param.Decimal, "1.5", 1},
		{"n", param.Decimal, "1.501", 0},
	} {
		def := feed.Definition{Name: "/f", SQL: "SELECT * FROM f", Key: []feed.KeyColumn{{Name: "id"}}, Params: []param.Param{param.Filter(test.column, test.kind)}}
		source, err := db.Source(def)
		if err != nil {
			t.Fatal(err)
		}
		if err := source.Check(t.Context(), 10); (err != nil) != (test.found < 0) {
			t.Errorf("%+v: %v", test, err)
		}
		arg, err := param.Argument(def.Params[0], test.value)
		var rows feed.Rows
		if err == nil && test.found >= 0 {
			err = source.Read(t.Context(), feed.Range{Args: []string{arg}, Limit: 2}, &rows)
		}
		if err != nil || rows.Len() != max(test.found, 0) {
			t.Errorf("%+v: %s, %v", test, rows.Data, err)
		}
	}
}
