package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/stream"
)

// testStreamTypes stores values of every type, extremes and NULL, and reads them back.
func testStreamTypes(t *testing.T, b StreamBackend) {
	db := b.Open(t, streamPool)
	values := map[stream.Type][]string{
		stream.Integer: {"0", "-1", "9223372036854775807", "-9223372036854775808"},
		stream.Real:    {"0", "-0.5", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1", "3e-5", "123456789.123456789"},
		stream.Text:    {`""`, `"a"`, `"集装箱 \ud83d\ude00"`, `"'\"\\\\%_\n\t\u0001"`, `"` + strings.Repeat("x", 5000) + `"`, `"NULL"`, `" "`},
		stream.Boolean: {"true", "false"},
		stream.Timestamp: {
			`"2016-12-01T23:59:57Z"`, `"2016-12-02T07:59:57.000001+08:00"`, `"1970-01-01T00:00:00Z"`, `"1000-01-01T00:00:00Z"`,
			`"9999-12-31T23:59:59.999999Z"`, `"1969-12-31T23:59:59.5Z"`,
		},
		stream.JSON: {`{}`, `[]`, `1`, `"x"`, `{"a":[1,2.5,{"b":null}],"c":"集'\\\""}`, `true`, `"` + strings.Repeat("y", 5000) + `"`},
		stream.Decimal: {
			"0", "-0.01", "12345678901234.56", "1.50", "1.5e3", `"99999999999999999999.999999"`, `"-1e-9"`,
			"123456789012345678901234567890",
		},
		stream.UUID: {
			`"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`, `"00000000-0000-0000-0000-000000000000"`,
			`"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"`,
		},
	}
	for kind, columnType := range b.Types {
		t.Run(string(kind), func(t *testing.T) {
			table := "v_" + string(kind)
			db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL, v %s)", table, b.Types[stream.Integer], columnType))
			s := db.stream(t, stream.Definition{Name: "/" + table, Table: table, Columns: []stream.Column{
				{Name: "id", Type: stream.Integer, Required: true}, {Name: "v", Type: kind},
			}}, nil)
			var body strings.Builder
			for i, v := range values[kind] {
				fmt.Fprintf(&body, "{\"id\":%d,\"v\":%s}\n", i, v)
			}
			n := len(values[kind])
			fmt.Fprintf(&body, "{\"id\":%d}\n{\"id\":%d,\"v\":null}\n", n, n+1)
			if o := send(t, s, "", body.String()); o.Stored != n+2 || len(o.Refused) > 0 {
				t.Fatalf("outcome %+v", o)
			}
			rows := db.rows(t, "SELECT v FROM "+table+" ORDER BY id")
			if len(rows) != n+2 || rows[n][0] != "NULL" || rows[n+1][0] != "NULL" {
				t.Fatalf("%d rows %.200q, want %d and two NULLs", len(rows), rows, n)
			}
			for i, v := range values[kind] {
				if !sameValue(kind, v, rows[i][0]) {
					t.Errorf("%.100s came back as %.100q", v, rows[i][0])
				}
			}
		})
	}
}

// sameValue reports whether a database's text is the same value as the JSON.
func sameValue(kind stream.Type, sent, got string) bool {
	var text string
	_ = json.Unmarshal([]byte(sent), &text) // where it is a string
	switch kind {
	case stream.Integer:
		return sent == got
	case stream.Real:
		a, errA := strconv.ParseFloat(sent, 64)
		b, errB := strconv.ParseFloat(got, 64)
		return errA == nil && errB == nil && a == b
	case stream.Decimal:
		return sameDecimal(sent, got)
	case stream.Boolean:
		return map[string]string{"t": "true", "1": "true", "true": "true", "f": "false", "0": "false", "false": "false"}[got] == sent
	case stream.Timestamp:
		want := map[string]string{
			"2016-12-02T07:59:57.000001+08:00": "2016-12-01 23:59:57.000001",
		}[text]
		if want == "" {
			want = strings.TrimSuffix(strings.Replace(text, "T", " ", 1), "Z")
		}
		got = strings.TrimSuffix(got, "+00")
		if strings.Contains(got, ".") {
			got = strings.TrimRight(strings.TrimRight(got, "0"), ".")
		}
		return got == want
	case stream.JSON:
		var a, b any
		errA, errB := json.Unmarshal([]byte(sent), &a), json.Unmarshal([]byte(got), &b)
		return errA == nil && errB == nil && reflect.DeepEqual(a, b)
	case stream.UUID:
		return strings.EqualFold(text, got)
	}
	return text == got
}

// sameDecimal reports whether two decimals, which may be strings in JSON, are equal.
func sameDecimal(sent, got string) bool {
	a, okA := new(big.Rat).SetString(strings.Trim(sent, `"`))
	b, okB := new(big.Rat).SetString(got)
	return okA && okB && a.Cmp(b) == 0
}

// amounts opens a database with the table amounts (seq, id, amount), whose amounts have 20
// digits, 2 of them behind the point, and returns a stream into it.
func (b StreamBackend) amounts(t testing.TB) (StreamDB, stream.Definition) {
	t.Helper()
	db := b.Open(t, streamPool)
	db.exec(t, fmt.Sprintf("CREATE TABLE amounts (seq %s, id %s NOT NULL, amount %s)", b.Serial, b.Types[stream.Integer], b.Fixed))
	return db, stream.Definition{Name: "/amounts", Table: "amounts", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true}, {Name: "amount", Type: stream.Decimal},
	}}
}

// exact are decimals that a column of 20 digits, 2 of them behind the point, holds.
var exact = []string{
	"12345678901234.56", "-12345678901234.56", "0", "-0.01", "1.50", "1.5000", "15e-1", "1e3", `"99.99"`, "null",
	"100000000000000.25",
}

// testStreamDecimals stores exact decimals between some that the column would round.
func testStreamDecimals(t *testing.T, b StreamBackend) {
	db, def := b.amounts(t)
	s := db.stream(t, def, nil)
	var body strings.Builder
	var refused, stored []string
	for i := range 200 {
		amount := exact[i%len(exact)]
		if i%40 == 17 {
			amount = b.Inexact[i/40%len(b.Inexact)]
			refused = append(refused, fmt.Sprint(i))
		} else {
			stored = append(stored, strings.ReplaceAll(amount, "null", "NULL"))
		}
		fmt.Fprintf(&body, "{\"id\":%d,\"amount\":%s}\n", i, amount)
	}
	o := send(t, s, "", body.String())
	var got []string
	for _, r := range o.Refused {
		got = append(got, fmt.Sprint(r.Index))
		if !strings.HasPrefix(r.Reason, "amount: ") || !strings.Contains(r.Reason, "cannot be stored exactly") {
			t.Errorf("record %d: %s", r.Index, r.Reason)
		}
	}
	if o.Stored != len(stored) || !reflect.DeepEqual(got, refused) {
		t.Errorf("%d stored, %v refused, want %d and %v", o.Stored, got, len(stored), refused)
	}
	checkAmounts(t, db, stored)
	// Alone, and all of a request.
	if o := send(t, s, "", `{"id":1000,"amount":`+b.Inexact[0]+"}"); o.Stored != 0 || len(o.Refused) != 1 {
		t.Errorf("an inexact one alone: %+v", o)
	}
	if o := send(t, s, "", `{"id":1000,"amount":12345678901234.56}`); o.Stored != 1 {
		t.Errorf("an exact one alone: %+v", o)
	}
	if b.Narrowed == "" {
		return
	}
	// The table changes while the stream runs.
	db.exec(t, "DELETE FROM amounts")
	db.exec(t, b.Narrowed)
	if o := send(t, s, "", `{"id":1,"amount":1.25}`+"\n"+`{"id":2,"amount":1.5}`); o.Stored != 1 || len(o.Refused) != 1 ||
		o.Refused[0].Index != 0 {
		t.Errorf("after ALTER TABLE: %+v", o)
	}
	checkAmounts(t, db, []string{"1.5"})
}

// checkAmounts compares the column with decimals, in order.
func checkAmounts(t testing.TB, db StreamDB, want []string) {
	t.Helper()
	rows := db.rows(t, "SELECT amount FROM amounts ORDER BY seq")
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for i, row := range rows {
		if row[0] != want[i] && !sameDecimal(want[i], row[0]) {
			t.Errorf("row %d is %s, want %s", i, row[0], want[i])
		}
	}
}

// testStreamDecimalsSpooled drains decimals. Those that the column would round become dead
// letters.
func testStreamDecimalsSpooled(t *testing.T, b StreamBackend) {
	db, def := b.amounts(t)
	d := db.spooled(t, def, filepath.Join(t.TempDir(), "s.db"), false, immortal)
	defer d.close(t)
	d.send(t, "", `{"id":1,"amount":12345678901234.56}`+"\n"+`{"id":2,"amount":`+b.Inexact[0]+"}\n"+`{"id":3,"amount":"-1.5e1"}`)
	d.empty(t)
	checkAmounts(t, db, []string{"12345678901234.56", "-15"})
	if letters := d.deadLetters(t); len(letters) != 1 || !strings.Contains(letters[0], `{"id":2,"amount":`) ||
		!strings.Contains(letters[0], "amount: ") {
		t.Errorf("dead letters %q", letters)
	}
}

// check runs Check on a new sink for a definition.
func (db StreamDB) check(t testing.TB, def stream.Definition) error {
	t.Helper()
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	sink, ok := db.Sink(t, schema).(interface{ Check(context.Context) error })
	if !ok {
		t.Fatal(errors.New("the sink has no Check"))
	}
	return sink.Check(t.Context())
}

// testStreamRounded refuses columns that would round: a real on a numeric column of more
// digits than a double keeps, and a decimal on a column of doubles or integers.
func testStreamRounded(t *testing.T, b StreamBackend) {
	db := b.Open(t, streamPool)
	db.exec(t, fmt.Sprintf("CREATE TABLE rounded (id %s NOT NULL, wide %s, narrow %s, number %s, label %s, free %s)",
		b.Types[stream.Integer], b.Fixed, b.Narrow, b.Types[stream.Real], b.Types[stream.Text], b.Types[stream.Decimal]))
	def := stream.Definition{Name: "/rounded", Table: "rounded"}
	for _, test := range []struct {
		column string
		kind   stream.Type
		want   string // "": accepted
	}{
		{"wide", stream.Real, "column wide is"},
		{"narrow", stream.Real, ""},
		{"number", stream.Real, ""},
		{"number", stream.Decimal, "column number is"},
		{"id", stream.Decimal, "column id is"},
		{"wide", stream.Decimal, ""},
		{"narrow", stream.Decimal, ""},
		{"label", stream.Decimal, ""},
		{"free", stream.Decimal, ""},
	} {
		def.Columns = []stream.Column{{Name: test.column, Type: test.kind}}
		err := db.check(t, def)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s as %s: %v", test.column, test.kind, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "decimal")):
			t.Errorf("%s as %s: %v, want %s", test.column, test.kind, err, test.want)
		}
	}
}

// testStreamKeyCollation refuses a key of texts whose collation takes ab and AB as equal,
// unless the stream accepts that.
func testStreamKeyCollation(t *testing.T, b StreamBackend) {
	db := b.Open(t, streamPool)
	if b.Setup != "" {
		db.exec(t, b.Setup)
	}
	db.exec(t, fmt.Sprintf("CREATE TABLE labels (loose %s NOT NULL UNIQUE, strict %s NOT NULL UNIQUE, id %s NOT NULL UNIQUE)", b.Insensitive,
		b.Sensitive, b.Types[stream.Integer]))
	def := stream.Definition{Name: "/labels", Table: "labels", Columns: []stream.Column{
		{Name: "loose", Type: stream.Text, Required: true},
		{Name: "strict", Type: stream.Text, Required: true},
		{Name: "id", Type: stream.Integer, Required: true},
	}}
	for _, test := range []struct {
		key    string
		accept bool
		want   string // "": accepted
	}{
		{"id", false, ""},
		{"strict", false, ""},
		{"loose", true, ""},
		{"loose", false, "key_collation: accept"},
	} {
		def.Key, def.AnyKeyCollation = []string{test.key}, test.accept
		err := db.check(t, def)
		if (err == nil) != (test.want == "") || err != nil &&
			(!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "key column loose")) {
			t.Errorf("key %s, accepted %v: %v, want %q", test.key, test.accept, err, test.want)
		}
	}
	def.Key, def.AnyKeyCollation = []string{"strict"}, false
	s := db.stream(t, def, nil)
	if o := send(t, s, "", `{"loose":"1","strict":"ab","id":1}`+"\n"+`{"loose":"2","strict":"AB","id":2}`+"\n"+`{"loose":"3","strict":"äb","id":3}`); o.Stored != 3 || len(o.Refused) > 0 {
		t.Errorf("keys that differ: %+v", o)
	}
	if got := db.column(t, "SELECT id FROM labels ORDER BY id"); got != "1,2,3" {
		t.Errorf("stored %s", got)
	}
	// The database may have been away when the stream was checked, and the table missing.
	def.Table, def.Key = "later", []string{"loose"}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	sink := db.Sink(t, schema)
	records, refused, err := schema.Parse([]byte(`{"loose":"ab","strict":"ab","id":1}`+"\n"+`{"loose":"AB","strict":"AB","id":2}`), stream.FormLines, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 10, Depth: 2, Fields: 10})
	if err != nil || len(refused) > 0 {
		t.Fatal(err, refused)
	}
	for _, step := range []struct{ sql, want string }{
		{"", "later"},
		{fmt.Sprintf("CREATE TABLE later (loose %s NOT NULL UNIQUE, strict %s NOT NULL, id %s)", b.Insensitive, b.Sensitive,
			b.Types[stream.Integer]), "key_collation: accept"},
	} {
		if step.sql != "" {
			db.exec(t, step.sql)
		}
		err := tryCommit(t, sink, &stream.Batch{ID: [16]byte{200}, Requests: []*stream.Entry{{Records: records}}})
		if err == nil || errors.Is(err, stream.ErrTransient) || !strings.Contains(err.Error(), step.want) {
			t.Errorf("a commit without a check, after %q: %v, want %s", step.sql, err, step.want)
		}
	}
}

// testStreamBounds stores values that only the database finds out of range or too long.
func testStreamBounds(t *testing.T, b StreamBackend) {
	if b.Small == "" {
		return // the database has no such bounds
	}
	db := b.Open(t, streamPool)
	db.exec(t, fmt.Sprintf("CREATE TABLE bounded (id %s NOT NULL, small %s NOT NULL, short %s)", b.Types[stream.Integer], b.Small, b.Short))
	s := db.stream(t, stream.Definition{Name: "/bounded", Table: "bounded", Columns: []stream.Column{
		{Name: "id", Type: stream.Integer}, {Name: "small", Type: stream.Integer}, {Name: "short", Type: stream.Text},
	}}, nil)
	o := send(t, s, "", `{"id":1,"small":32767,"short":"12345"}
		{"id":2,"small":32768,"short":"1"}
		{"id":3,"small":-32768,"short":"集装箱集装"}
		{"id":4,"small":1,"short":"123456"}
		{"id":5,"short":"1"}
		{"id":6,"small":1}`)
	if o.Stored != 3 || len(o.Refused) != 3 || o.Refused[0].Index != 1 || o.Refused[1].Index != 3 || o.Refused[2].Index != 4 {
		t.Errorf("outcome %+v", o)
	}
	if got := db.column(t, "SELECT id FROM bounded ORDER BY id"); got != "1,3,6" {
		t.Errorf("stored %s", got)
	}
}
