package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

func ptr(s string) *string { return &s }

func mustSchema(t testing.TB, def Definition) *Schema {
	t.Helper()
	if def.Table == "" {
		def.Name, def.Table = "/test", "test"
	}
	s, err := NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wide has a column of every type, and one with every limit.
func wide() Definition {
	return Definition{Columns: []Column{
		{Name: "i", Type: Integer, Min: "-5", Max: "9223372036854775807"},
		{Name: "r", Type: Real, Min: "-1.5", Max: "1e308"},
		{Name: "t", Type: Text, MaxLength: 4},
		{Name: "b", Type: Boolean},
		{Name: "at", Type: Timestamp, Min: "2000-01-01T00:00:00Z"},
		{Name: "j", Type: JSON, MaxLength: 20},
		{Name: "u", Type: UUID},
		{Name: "d", Type: Decimal, Min: "-12345678901234.56", Max: "1e20"},
		{Name: "ms", Type: Timestamp, Format: UnixMS, Max: "2100-01-01T00:00:00Z"},
	}}
}

var testNow = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// What is reserved for texts counts, and a body of blanks reserves no more than it needs.
func TestRecordsSize(t *testing.T) {
	s := mustSchema(t, Definition{Columns: []Column{{Name: "name", Type: Text}, {Name: "n", Type: Integer}}})
	for body, most := range map[string]int{
		`{"name":"a"}`: 100,
		`{"name":"a"` + strings.Repeat(" ", 2000) + "}":    2000,
		`{"name":"a"` + strings.Repeat(" ", 1<<19) + "}":   100,
		`{"name":"` + strings.Repeat("a", 1<<19) + `"}`:    1 << 20,
		`[` + strings.Repeat(`{"n":1},`, 999) + `{"n":2}]`: 64 << 10,
	} {
		records, _, err := s.Parse([]byte(body), FormJSON, testNow, testLimits)
		if err != nil {
			t.Fatal(err)
		}
		if held := cap(records.arena) + 16*cap(records.values) + 4*cap(records.indexes); records.Size() < held || records.Size() > most {
			t.Errorf("%.20s: the size is %d, %d bytes are held, want %d at most", body, records.Size(), held, most)
		}
	}
}

var testLimits = Limits{Bytes: 1 << 20, Records: 1000, Depth: 8, Fields: 20}

// show writes a record as JSON without NULLs.
func show(r *Records, row int) string {
	var fields []string
	for i, c := range r.columns {
		if r.Null(row, i) {
			continue
		}
		text := c.kind.AppendText(nil, r.Value(row, i))
		if c.kind == Bytes {
			text = r.Bytes(row, i)
		}
		fields = append(fields, c.name+"="+string(text))
	}
	return strings.Join(fields, " ")
}

const badMS = "ms must be a time like 2016-12-01T23:59:57Z, or whole milliseconds since 1970, from 100000000000 to 253402300799999"

// valueTests are records and the expected results.
var valueTests = []struct{ body, want, refused string }{
	{`{}`, "", ""},
	{` { } `, "", ""},
	{`{"i":9223372036854775807}`, "i=9223372036854775807", ""},
	{`{"i":-5,"r":-1.5}`, "i=-5 r=-1.5", ""},
	{`{"r":1,"i":-0}`, "i=0 r=1", ""},
	{`{"r":1.25e2}`, "r=125", ""},
	{`{"i":null,"r":null,"t":null,"b":null,"at":null,"j":null,"u":null,"d":null}`, "", ""},
	{`{"t":"集装箱号"}`, "t=集装箱号", ""},
	{`{"t":"\u96c6\ud83d\ude00\n\/"}`, "t=集😀\n/", ""},
	{`{"\u0074":"x"}`, "t=x", ""},
	{`{"b":true}`, "b=true", ""},
	{`{"at":"2016-12-01T23:59:57Z"}`, "at=2016-12-01 23:59:57", ""},
	{`{"at":"2016-12-01T23:59:57.1234560+08:00"}`, "at=2016-12-01 15:59:57.123456", ""},
	{`{"at":"2016-12-01T23:59:57.1234567+08:00"}`, "", "at has more than 6 digits behind the point; the stream's owner can set round: true"},
	{`{"j": {"a": [1, null]} }`, `j={"a": [1, null]}`, ""},
	{`{"j":{"a":1,"b":{"a":2}}}`, `j={"a":1,"b":{"a":2}}`, ""},
	{`{"u":"6BA7B810-9DAD-11D1-80B4-00C04FD430C8"}`, "u=6ba7b810-9dad-11d1-80b4-00c04fd430c8", ""},
	{`{"d":12345678901234.56}`, "d=12345678901234.56", ""},
	{`{"d":"-12345678901234.560"}`, "d=-12345678901234.560", ""},
	{`{"d":1.5e3}`, "d=1500", ""},
	{`{"d":"\u0031e-2"}`, "d=0.01", ""},
	{`{"d":100000000000000000000}`, "d=100000000000000000000", ""},
	{`{"d":-0.0}`, "d=0.0", ""},
	{`{"d":100000000000000000000.01}`, "", "d must be at most 1e20"},
	{`{"d":-12345678901234.561}`, "", "d must be at least -12345678901234.56"},
	{`{"d":"1,5"}`, "", "d must be a number, or a string that is one, of at most 1000 digits"},
	{`{"d":""}`, "", "d must be a number, or a string that is one, of at most 1000 digits"},
	{`{"d":1e1000}`, "", "d must be a number, or a string that is one, of at most 1000 digits"},
	{`{"d":true}`, "", "d must be a number, or a string that is one, of at most 1000 digits"},
	{`{"d":"1","d":2}`, "", "d is there twice"},
	{`{"i":18446744073709551616}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":"9223372036854775807","r":"15e-1"}`, "i=9223372036854775807 r=1.5", ""},
	{`{"i":"\u0031"}`, "i=1", ""},
	{`{"i":"+1"}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":"01"}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":" 1"}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":"18446744073709551616"}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":"-6"}`, "", "i must be at least -5"},
	{`{"i":"\ud800"}`, "", "i has a string with half a surrogate pair"},
	{`{"i":1.5}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":1e-3}`, "", "i must be a whole number of at most 64 bits"},
	{`{"r":"NaN"}`, "", "r must be a number within the range of a double"},
	{`{"r":"0x1p4"}`, "", "r must be a number within the range of a double"},
	{`{"r":""}`, "", "r must be a number within the range of a double"},
	{`{"i":true,"r":"x"}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":[[1]]}`, "", "i must be a whole number of at most 64 bits"},
	{`{"i":-6}`, "", "i must be at least -5"},
	{`{"r":1e309}`, "", "r must be a number within the range of a double"},
	{`{"r":1.1e308}`, "", "r must be at most 1e308"},
	{`{"t":"12345"}`, "", "t must be no longer than 4 characters"},
	{`{"t":1}`, "", "t must be a string"},
	{"{\"t\":\"\xff\"}", "", "t has a string that is not UTF-8"},
	{`{"t":"\u0000"}`, "", "t has a string with NUL"},
	{`{"t":"\ud800"}`, "", "t has a string with half a surrogate pair"},
	{`{"t":"\udc00\ud800"}`, "", "t has a string with half a surrogate pair"},
	{`{"t":"\ud800\u0041"}`, "", "t has a string with half a surrogate pair"},
	{`{"j":"\u0000"}`, "", " has a string with NUL"},
	{`{"j":{"a":1,"\u0061":2}}`, "", "a is there twice"},
	{`{"j":[1e999]}`, "", " a number is out of the range of a double"},
	{`{"j":"123456789012345678901"}`, "", "j must be no longer than 20 bytes"},
	{`{"i":1,"i":1}`, "", "i is there twice"},
	{`{"x":1}`, "", "x is not a field of this stream"},
	{`{"b":1}`, "", "b must be true or false"},
	{`{"at":"2016-12-01 23:59:57"}`, "at=2016-12-01 23:59:57", ""},
	{`{"at":"2016-12-01 23:59:57.25"}`, "at=2016-12-01 23:59:57.25", ""},
	{`{"at":"2016-12-01 23:59:57.100000+01:00"}`, "at=2016-12-01 22:59:57.1", ""},
	{`{"ms":1480636797123}`, "ms=2016-12-01 23:59:57.123", ""},
	{`{"ms":100000000000}`, "ms=1973-03-03 09:46:40", ""},
	{`{"ms":"2016-12-01T23:59:57.1234Z"}`, "ms=2016-12-01 23:59:57.1234", ""},
	{`{"ms":1480636797}`, "", badMS},
	{`{"ms":1480636797123456}`, "", badMS},
	{`{"ms":253402300800000}`, "", badMS},
	{`{"ms":-1480636797123}`, "", badMS},
	{`{"ms":1480636797123.0}`, "", badMS},
	{`{"ms":1.480636797123e12}`, "", badMS},
	{`{"ms":"1480636797123"}`, "", badMS},
	{`{"ms":253402300799999}`, "", "ms must be at most 2100-01-01T00:00:00Z"},
	{`{"at":"2016-12-01T23:59:57"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"2016-12-01_23:59:57Z"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"2016-12-01 23:59:57+00"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"infinity"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"2016-02-30T00:00:00Z"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"2016-12-31T23:59:60Z"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"0001-01-01T00:00:00+01:00"}`, "", "at must be a time like 2016-12-01T23:59:57Z"},
	{`{"at":"1999-12-31T23:59:59Z"}`, "", "at must be at least 2000-01-01T00:00:00Z"},
	{`{"at":1480636797}`, "", "at must be a time like 2016-12-01T23:59:57Z; for a number, the stream's owner can set format: unix_ms"},
	{`{"u":"6ba7b810-9dad-11d1-80b4-00c04fd430c"}`, "", "u must be a UUID like 6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
	{`[1,2]`, "", " must be an object"},
}

func TestParseValues(t *testing.T) {
	s := mustSchema(t, wide())
	for _, test := range valueTests {
		// Valid records before and after, in each format.
		array := `[{"i":1},` + test.body + `,{"i":3}]`
		lines := "{\"i\":1}\n\n" + test.body + "\r\n{\"i\":3}"
		for form, body := range map[Form]string{FormJSON: array, FormLines: lines} {
			records, refused, err := s.Parse([]byte(body), form, testNow, testLimits)
			if err != nil {
				t.Errorf("%s: %v", test.body, err)
				continue
			}
			if test.refused == "" {
				if len(refused) > 0 || records.Len() != 3 || show(records, 1) != test.want {
					t.Errorf("%s: refused %v, or not %s", test.body, refused, test.want)
				}
				continue
			}
			if records.Len() != 2 || show(records, 0) != "i=1" || show(records, 1) != "i=3" || records.Index(1) != 2 {
				t.Errorf("%s: the neighbours are gone", test.body)
			}
			if len(refused) != 1 || refused[0].Index != 1 || refused[0].Field+" "+refused[0].Reason != test.refused {
				t.Errorf("%s: refused %+v, want %s", test.body, refused, test.refused)
			}
		}
	}
}

func TestParseBodies(t *testing.T) {
	s := mustSchema(t, Definition{Columns: []Column{{Name: "i", Type: Integer}, {Name: "j", Type: JSON}}})
	tests := []struct {
		body  string
		form  Form
		count int
		want  string // in the error, or in the first refusal of lines
	}{
		{`{"i":1}`, FormJSON, 1, ""},
		{`[]`, FormJSON, 0, ""},
		{"\n [ {} , {} ] \n", FormJSON, 2, ""},
		{"", FormLines, 0, ""},
		{"{}\n{}\n\n", FormLines, 2, ""},
		{"\ufeff{\"i\":1}\n{}\n", FormLines, 2, ""},
		{"", FormJSON, 0, "it is empty"},
		{`{"i":1} x`, FormJSON, 0, "more after the record"},
		{"{\"i\":1}\n{\"i\":2}", FormJSON, 0, "application/x-ndjson"},
		{`[{"i":1}] []`, FormJSON, 0, "more after the array"},
		{`[{"i":1},]`, FormJSON, 0, "no value at byte 9"},
		{`[{"i":1} {"i":2}]`, FormJSON, 0, "no comma or ] after a record at byte 9"},
		{`[{"i":01}]`, FormJSON, 0, "no comma or } after a field"},
		{`[{"i":1.}]`, FormJSON, 0, "no digit after the point"},
		{`[{"i":NaN}]`, FormJSON, 0, "no value"},
		{`[{"i":-}]`, FormJSON, 0, "no value"},
		{`[{"i":nul}]`, FormJSON, 0, "no value"},
		{`[{"i"}]`, FormJSON, 0, "no colon"},
		{`[{i:1}]`, FormJSON, 0, "no string"},
		{`[{"i":1,}]`, FormJSON, 0, "no string"},
		{"[{\"j\":\"a\nb\"}]", FormJSON, 0, "control character"},
		{`[{"j":"\x"}]`, FormJSON, 0, "unknown escape"},
		{`[{"j":"\u12g4"}]`, FormJSON, 0, "unknown escape"},
		{`[{"j":"abc`, FormJSON, 0, "without end"},
		{"\xef\xbb\xbf{}", FormJSON, 0, "no value"},
		{`{"j":[[[[[[[[[1]]]]]]]]]}`, FormJSON, 0, "more than 8 objects and arrays"},
		{strings.Repeat("{}\n", 1001), FormLines, 0, "more than 1000 records"},
		{"[" + strings.Repeat("{},", 1001) + "{}]", FormJSON, 0, "more than 1000 records"},
		{strings.Repeat(" ", 1<<20+1), FormLines, 0, "1048577 bytes, more than 1048576"},
		{"{\"i\":1}\n{\"i\":\n{\"i\":2}{}\n{\"i\":3}", FormLines, 2, "is not JSON: no value at byte 5"},
		{"x", FormLines, 0, "is not JSON"},
		{`[{"i":1}]`, FormLines, 0, "must be an object"},
	}
	for _, test := range tests {
		records, refused, err := s.Parse([]byte(test.body), test.form, testNow, testLimits)
		got := ""
		switch {
		case err != nil && !errors.Is(err, ErrBody):
			t.Errorf("%.50q: %v is no ErrBody", test.body, err)
		case err != nil:
			got = err.Error()
			if errors.Is(err, ErrTooMany) != strings.Contains(test.want, "records") {
				t.Errorf("%.50q: %v, want ErrTooMany where there are too many", test.body, err)
			}
		default:
			if records.Len() != test.count {
				t.Errorf("%.50q: %d records, want %d", test.body, records.Len(), test.count)
			}
			if len(refused) > 0 {
				got = refused[0].Reason
			}
		}
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%.50q: %q, want %q", test.body, got, test.want)
		}
	}
}

func TestParseDefaultsAndExtra(t *testing.T) {
	s := mustSchema(t, Definition{Extra: "more", OrderBy: "id", Columns: []Column{
		{Name: "id", Type: Integer, Required: true},
		{Name: "at", Type: Timestamp, Default: ptr("now")},
		{Name: "name", Type: Text, Default: ptr("")},
		{Name: "level", Type: Integer, Default: ptr("7"), Min: "0"},
		{Name: "tags", Type: JSON, Default: ptr("[1, 2]")},
		{Name: "by", Type: UUID, Default: ptr("00000000-0000-0000-0000-000000000001")},
	}})
	fixed := "at=2026-01-02 03:04:05.000006 name= level=7 tags=[1, 2] by=00000000-0000-0000-0000-000000000001 "
	tests := []struct{ body, want string }{
		{`{"id":1}`, "id=1 " + fixed + "more={}"},
		{`{"x":{"y": [1]},"id":1, "\u007a" : "\"" , "more":2}`, "id=1 " + fixed + `more={"x":{"y": [1]},"\u007a":"\"","more":2}`},
		{`{"id":1,"at":null,"name":null,"level":null,"tags":null,"by":null}`, "id=1 more={}"},
		{`{"name":"x"}`, "id is missing"},
		{`{"id":null}`, "id must not be null"},
		{`{"id":1,"x":1,"\u0078":2}`, "x is there twice"},
		{`{"id":1,"x":"\ud800"}`, " has a string with half a surrogate pair"},
		{"{\"id\":1,\"\xff\":1}", " has a string that is not UTF-8"},
	}
	for _, test := range tests {
		records, refused, err := s.Parse([]byte(test.body), FormJSON, testNow, testLimits)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if records.Len() == 1 {
			got = show(records, 0)
		} else {
			got = refused[0].Field + " " + refused[0].Reason
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.body, got, test.want)
		}
	}
}

func TestSchemaMistakes(t *testing.T) {
	column := func(c Column) Definition { return Definition{Table: "t", Columns: []Column{c}} }
	tests := []struct {
		def  Definition
		want string
	}{
		{column(Column{Name: "a", Type: Text, Min: "1"}), "min and max are for"},
		{column(Column{Name: "a", Type: Integer, Min: "x"}), "min: "},
		{column(Column{Name: "a", Type: Real, MaxLength: 3}), "max_length"},
		{column(Column{Name: "a", Type: Decimal, MaxLength: 3}), "max_length"},
		{column(Column{Name: "a", Type: Decimal, Max: "1,5"}), "max: "},
		{column(Column{Name: "a", Type: Decimal, Default: ptr("x")}), "default: "},
		{column(Column{Name: "a", Type: Decimal, Min: "1.05", Default: ptr("1.0499")}), "must be at least 1.05"},
		{column(Column{Name: "a", Type: Integer, Default: ptr("now")}), "default: "},
		{column(Column{Name: "a", Type: Integer, Format: UnixMS}), "unknown format"},
		{column(Column{Name: "a", Type: Timestamp, Format: "unix"}), "unknown format"},
		{column(Column{Name: "a", Type: Integer, Min: "3", Default: ptr("2")}), "must be at least 3"},
		{column(Column{Name: "a", Type: JSON, Default: ptr("{")}), "default: "},
	}
	for _, test := range tests {
		if _, err := NewSchema(test.def); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %s", test.def, err, test.want)
		}
		if err := test.def.Columns[0].Check(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("check of %+v: %v, want %s", test.def.Columns[0], err, test.want)
		}
	}
	if err := (Column{Name: "a", Type: "nothing", Min: "1", Default: ptr("x")}).Check(); err != nil {
		t.Errorf("an unknown type is reported twice: %v", err)
	}
}

// FuzzParse compares Parse with encoding/json. Both accept the same bodies, within the limits,
// and read the same values.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`[{"i":1,"r":2.5,"t":"x","j":{"a":[]},"b":true},{}]`, `{"t":"\ud83d\ude00\u0000"}`, `[{"d":-1.50e2},{"d":"0.10"}]`, `[{"i":1e5},{"x":{"x":1,"x":2}}]`, "{}\n[]\n{\"i\":",
	} {
		f.Add([]byte(seed))
	}
	def := wide()
	def.Columns[0].Min, def.Columns[2].MaxLength, def.Columns[5].MaxLength = "", 0, 0
	s := mustSchema(f, def)
	limits := Limits{Bytes: 1 << 16, Records: 100, Depth: 50, Fields: 100}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, _, err := s.Parse(body, FormLines, testNow, limits); err != nil && !errors.Is(err, ErrBody) {
			t.Errorf("lines: %v", err)
		}
		records, refused, err := s.Parse(body, FormJSON, testNow, limits)
		if (err == nil) && !json.Valid(body) {
			t.Fatalf("%q is no JSON, and taken", body)
		}
		if err != nil {
			limited := strings.Contains(err.Error(), "more than")
			if json.Valid(body) && !limited && (body[0] == '[' || body[0] == '{') {
				t.Fatalf("%q is JSON, and refused: %v", body, err)
			}
			return
		}
		var list []map[string]any
		if json.Unmarshal(body, &list) != nil {
			list = make([]map[string]any, 1)
			if json.Unmarshal(body, &list[0]) != nil {
				return // an array with elements that are not objects
			}
		}
		if records.Len()+len(refused) != len(list) {
			t.Fatalf("%q: %d records and %d refused, of %d", body, records.Len(), len(refused), len(list))
		}
		for row := range records.Len() {
			compare(t, records, row, list[records.Index(row)])
		}
	})
}

func compare(t *testing.T, records *Records, row int, want map[string]any) {
	for i, c := range records.columns {
		v, ok := want[c.name]
		if records.Null(row, i) != (v == nil || !ok) {
			t.Errorf("%s is null: %v, want %v", c.name, records.Null(row, i), v)
		}
		if records.Null(row, i) {
			continue
		}
		if text, ok := v.(string); ok && (c.kind == Integer || c.kind == Real) {
			if want, err := strconv.ParseFloat(text, 64); err == nil {
				v = want
			}
		}
		switch c.kind {
		case Text:
			if string(records.Bytes(row, i)) != v {
				t.Errorf("%s is %q, want %q", c.name, records.Bytes(row, i), v)
			}
		case Real:
			if records.Value(row, i).Real() != v || math.IsInf(records.Value(row, i).Real(), 0) {
				t.Errorf("%s is %v, want %v", c.name, records.Value(row, i).Real(), v)
			}
		case Decimal:
			if text, ok := v.(string); ok {
				v, _ = strconv.ParseFloat(text, 64)
			}
			if x, err := strconv.ParseFloat(string(records.Bytes(row, i)), 64); err != nil || x != v {
				t.Errorf("%s is %s, want %v", c.name, records.Bytes(row, i), v)
			}
		case Integer:
			if float64(records.Value(row, i).N) != v {
				t.Errorf("%s is %v, want %v", c.name, records.Value(row, i).N, v)
			}
		case JSON:
			if !json.Valid(records.Bytes(row, i)) {
				t.Errorf("%s is no JSON: %q", c.name, records.Bytes(row, i))
			}
		}
	}
}

func BenchmarkParse(b *testing.B) {
	s := mustSchema(b, Definition{Columns: []Column{
		{Name: "device_id", Type: Integer, Required: true},
		{Name: "recorded_at", Type: Timestamp, Default: ptr(Now)},
		{Name: "latitude", Type: Real},
		{Name: "longitude", Type: Real},
		{Name: "note", Type: Text, MaxLength: 100},
	}})
	one := `{"device_id":123456,"recorded_at":"2016-12-01T23:59:57.123Z","latitude":31.230416,"longitude":121.473701,"note":"abc"}`
	for _, n := range []int{1, 100} {
		body := []byte(strings.Repeat(one+"\n", n))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, refused, err := s.Parse(body, FormLines, testNow, testLimits); err != nil || len(refused) > 0 {
					b.Fatal(refused, err)
				}
			}
		})
	}
}

func TestBind(t *testing.T) {
	s, err := NewSchema(Definition{Name: "/s", Table: "t", Extra: "more", Key: []string{"courier"}, OrderBy: "courier", Columns: []Column{
		{Name: "courier", Type: Text, Claim: "sub", MaxLength: 5}, {Name: "n", Type: Integer, Claim: "no", Min: "1"}, {Name: "u", Type: UUID, Claim: "id"}, {Name: "x", Type: Text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]string{"sub": "ann", "no": "7", "id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}
	bound, err := s.Bind(func(name string) string { return claims[name] })
	if err != nil || len(s.Claims()) != 3 || s.Claims()[1].Name != "claim.no" {
		t.Fatalf("%v, %v", s.Claims(), err)
	}
	body := `{}
{"x":"a","courier":"\u0061nn","n":7,"u":"6BA7B810-9DAD-11D1-80B4-00C04FD430C8"}
{"courier":"bob"}
{"courier":"annx"}
{"n":8}
{"n":null}
{"u":"6ba7b810-9dad-11d1-80b4-00c04fd430c9"}
{"courier":"bob","courier":"ann"}
{"Courier":"bob"}`
	records, refused, err := s.ParseBound([]byte(body), FormLines, testNow, testLimits, bound)
	if err != nil || records.Len() != 3 || len(refused) != 6 {
		t.Fatalf("%d records, %v, %v", records.Len(), refused, err)
	}
	for row := range records.Len() {
		if string(records.Bytes(row, 0)) != "ann" || records.Value(row, 1).N != 7 || string(UUID.AppendText(nil, records.Value(row, 2))) != claims["id"] {
			t.Errorf("record %d: %q %d", row, records.Bytes(row, 0), records.Value(row, 1).N)
		}
	}
	for name, bad := range map[string][]string{"sub": {"", "toolong", "a\x00", "\xff"}, "no": {"", "0", "1.5", "x"}, "id": {"", "7"}} {
		for _, text := range bad {
			if _, err := s.Bind(func(of string) string {
				if of == name {
					return text
				}
				return claims[of]
			}); !errors.Is(err, ErrClaim) {
				t.Errorf("%s %q: %v", name, text, err)
			}
		}
	}
	fallback := "x"
	for _, c := range []Column{{Name: "c", Type: Text, Claim: "sub", Default: &fallback}, {Name: "c", Type: JSON, Claim: "sub"}, {Name: "c", Type: Timestamp, Claim: "sub"}} {
		if _, err := NewSchema(Definition{Name: "/s", Table: "t", Columns: []Column{c}}); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
