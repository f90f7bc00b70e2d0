package storetest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// testStreamTypes stores values of every type, extremes and NULL, and reads them back.
func testStreamTypes(t *testing.T, b StreamBackend) {
	db := b.Open(t, database.Pool{})
	values := map[stream.Type][]string{
		stream.Integer:   {"0", "-1", "9223372036854775807", "-9223372036854775808"},
		stream.Real:      {"0", "-0.5", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1", "3e-5", "123456789.123456789"},
		stream.Text:      {`""`, `"a"`, `"集装箱 \ud83d\ude00"`, `"'\"\\\\%_\n\t\u0001"`, `"` + strings.Repeat("x", 5000) + `"`, `"NULL"`, `" "`},
		stream.Boolean:   {"true", "false"},
		stream.Timestamp: {`"2016-12-01T23:59:57Z"`, `"2016-12-02T07:59:57.000001+08:00"`, `"1970-01-01T00:00:00Z"`, `"1000-01-01T00:00:00Z"`, `"9999-12-31T23:59:59.999999Z"`, `"1969-12-31T23:59:59.5Z"`},
		stream.JSON:      {`{}`, `[]`, `1`, `"x"`, `{"a":[1,2.5,{"b":null}],"c":"集'\\\""}`, `true`, `"` + strings.Repeat("y", 5000) + `"`},
		stream.UUID:      {`"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`, `"00000000-0000-0000-0000-000000000000"`, `"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"`},
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

// testStreamBounds stores values that only the database finds out of range or too long.
func testStreamBounds(t *testing.T, b StreamBackend) {
	if b.Small == "" {
		return // the database has no such bounds
	}
	db := b.Open(t, database.Pool{})
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
