package storetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
)

// value is an SQL literal and the JSON that a feed shows for it.
type value struct {
	literal string
	json    string
}

// sharedValues returns, for each kind, values that every database keeps exactly.
func sharedValues() map[Kind][]value {
	same := func(literals ...string) []value {
		var values []value
		for _, literal := range literals {
			values = append(values, value{literal, literal})
		}
		return values
	}
	quoted := func(texts ...string) []value {
		var values []value
		for _, text := range texts {
			want, _ := json.Marshal(text) // a string always marshals
			values = append(values, value{quote(text), string(want)})
		}
		return values
	}
	return map[Kind][]value{
		Integer: same("0", "-1", "42", "9007199254740993", "9223372036854775807", "-9223372036854775808"),
		Real:    same("0.1", "-2.5", "1e300", "5e-324", "1.7976931348623157e308", "123456789.125", "1e-7"),
		Decimal: {
			{"12345678901234567890.123456", "12345678901234567890.123456"},
			{"-0.000001", "-0.000001"},
			{"10.100000", "10.100000"},
			{"0", "0.000000"},
		},
		Boolean: {{"TRUE", "true"}, {"FALSE", "false"}},
		Text: quoted("", "plain", `quotes " ' and \ backslash`, "tab\t newline\n return\r", "\x01\x02\x1f\x7f",
			"集装箱 🚚 é", "line\u2028separators\u2029", "<a href='x'>&amp;</a>", "null", "{}", strings.Repeat("long ", 2000)),
		Timestamp: quoted("2016-12-01 23:59:57", "2016-12-01 23:59:57.123456", "1970-01-01 00:00:00", "9999-12-31 23:59:59"),
		TimestampTZ: {
			{"'2016-12-01 23:59:57+00:00'", `"2016-12-01T23:59:57Z"`},
			{"'2016-12-01 23:59:57.25+08:00'", `"2016-12-01T15:59:57.25Z"`},
		},
		Date: quoted("2016-12-01", "0999-02-28"),
		JSON: {
			{`'{"a": [1, 2.50, null], "b": "\u00e9\n"}'`, `{"a": [1, 2.50, null], "b": "\u00e9\n"}`},
			{`'[]'`, `[]`},
			{`'"text"'`, `"text"`},
		},
		UUID: quoted("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
	}
}

// quote writes text as an SQL literal.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// byteValues are blobs in the database's notation, shown as base64.
func byteValues(literal func([]byte) string) []value {
	if literal == nil {
		return nil
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var values []value
	for _, b := range [][]byte{{}, {0}, {0xff, 0}, []byte("abc"), []byte(`\x41`), every} {
		want, _ := json.Marshal(b) // encoding/json writes bytes as base64
		values = append(values, value{literal(b), string(want)})
	}
	return values
}

// testTypes reads values of every kind and NULL.
func testTypes(t *testing.T, b Backend) {
	db := b.Open(t, patient(database.Pool{}))
	kinds := sharedValues()
	kinds[Bytes] = byteValues(b.Bytes)
	for kind, values := range kinds {
		columnType, ok := b.Types[kind]
		if !ok || len(values) == 0 {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			table := "t_" + strings.ReplaceAll(string(kind), " ", "_")
			db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL PRIMARY KEY, v %s)", table, b.Types[Integer], columnType))
			var rowsOf []string
			for i, v := range append(values, value{"NULL", "null"}) {
				rowsOf = append(rowsOf, fmt.Sprintf("(%d, %s)", i, v.literal))
			}
			db.exec(t, fmt.Sprintf("INSERT INTO %s VALUES %s", table, strings.Join(rowsOf, ", ")))
			source := db.source(t, definition("SELECT id, v FROM "+table, "id asc"))
			rows := read(t, source, feed.Range{Limit: len(values) + 2})
			if rows.Len() != len(values)+1 {
				t.Fatalf("%d rows, want %d", rows.Len(), len(values)+1)
			}
			for i, v := range append(values, value{"NULL", "null"}) {
				want := v.json
				if b.JSON != nil && want != "null" {
					want = b.JSON(kind, want)
				}
				checkValue(t, kind, v.literal, rows.Slice(i, i+1), fmt.Sprintf(`{"id":%d,"v":%s}`, i, want))
			}
			CheckColumns(t, source.Columns(), rows.Data)
			testFormat(t, db, kind, table)
		})
	}
}

// testFormat compares the rows of a table in all other formats with what their source describes.
func testFormat(t *testing.T, db DB, kind Kind, table string) {
	t.Helper()
	def := definition("SELECT id, v FROM "+table, "id asc")
	def.RFC3339, def.NumbersAsText = true, true
	source := db.source(t, def)
	rows := read(t, source, feed.Range{Limit: 100})
	columns := source.Columns()
	CheckColumns(t, columns, rows.Data)
	want := map[Kind]feed.JSONType{
		Integer: feed.JSONString, Decimal: feed.JSONString, Timestamp: feed.JSONTimestamp,
		TimestampTZ: feed.JSONTimestamp,
	}
	if c := columns[1]; want[kind] != "" && c.JSON != want[kind] {
		t.Errorf("%s: %+v, want %s", kind, c, want[kind])
	}
	if columns[1].JSON != feed.JSONTimestamp {
		return
	}
	for i := range rows.Len() {
		row, err := decodeRow(rows.Slice(i, i+1))
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := row["v"].(string); ok {
			if _, err := time.Parse(time.RFC3339, text); err != nil {
				t.Error(err)
			}
		}
	}
}

// checkValue compares two rows: numbers by their text, so that no digit is lost, but
// floating-point numbers by value.
func checkValue(t *testing.T, kind Kind, literal string, got []byte, want string) {
	t.Helper()
	gotRow, err := decodeRow(got)
	if err != nil {
		t.Errorf("%.100s: got %.200q: %v", literal, got, err)
		return
	}
	wantRow, err := decodeRow([]byte(want))
	if err != nil {
		t.Fatalf("%.100s: want %.200q: %v", literal, want, err)
	}
	if kind == Real && sameFloat(gotRow["v"], wantRow["v"]) {
		delete(gotRow, "v")
		delete(wantRow, "v")
	}
	if !reflect.DeepEqual(gotRow, wantRow) {
		t.Errorf("%.100s: got %.200s, want %.200s", literal, got, want)
	}
}

func decodeRow(text []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var row map[string]any
	err := decoder.Decode(&row)
	return row, err
}

func sameFloat(a, b any) bool {
	x, okX := a.(json.Number)
	y, okY := b.(json.Number)
	if !okX || !okY {
		return false
	}
	f, errF := x.Float64()
	g, errG := y.Float64()
	return errF == nil && errG == nil && math.Float64bits(f) == math.Float64bits(g)
}

// CheckColumns compares rows, joined by commas, with the columns that their source describes.
func CheckColumns(t testing.TB, columns []feed.Column, rows []byte) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader("[" + string(rows) + "]"))
	decoder.UseNumber()
	var all []map[string]any
	if err := decoder.Decode(&all); err != nil {
		t.Fatal(err)
	}
	for _, row := range all {
		if len(row) != len(columns) {
			t.Errorf("%d columns are described, and a row has %d", len(columns), len(row))
		}
		for _, c := range columns {
			if value, ok := row[c.Name]; !ok || !fits(c, value) {
				t.Errorf("%+v does not describe the value %v", c, value)
			}
		}
	}
}

// fits reports whether a column can have a value.
func fits(c feed.Column, value any) bool {
	number, isNumber := value.(json.Number)
	text, isText := value.(string)
	isInteger := isNumber && !strings.ContainsAny(string(number), ".eE")
	_, isBoolean := value.(bool)
	switch {
	case c.JSON == feed.JSONAny:
		return true
	case value == nil:
		return c.Null
	}
	switch c.JSON {
	case feed.JSONInteger:
		return isInteger
	case feed.JSONNumber:
		return isNumber
	case feed.JSONFloat:
		return isNumber || text == "NaN" || strings.HasSuffix(text, "Infinity")
	case feed.JSONBoolean:
		return isBoolean
	case feed.JSONFlag:
		return isBoolean || isInteger
	case feed.JSONArray:
		_, isArray := value.([]any)
		return isArray
	case feed.JSONBytes:
		_, err := base64.StdEncoding.DecodeString(text)
		return isText && err == nil
	default:
		return isText
	}
}
