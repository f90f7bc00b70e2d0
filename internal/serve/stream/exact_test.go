package stream

import (
	"strings"
	"testing"
	"time"
)

// exactTests are records, what they are then, if that differs, and why they are refused.
var exactTests = []struct{ body, want, refused string }{
	{`{"day":"2016-02-29","clock":"23:59:57.120000"}`, `{"day":"2016-02-29","clock":"23:59:57.12"}`, ""},
	{`{"day":"0001-01-01","clock":"24:00:00"}`, "", ""},
	{`{"day":"9999-12-31","clock":"-838:59:59"}`, "", ""},
	{`{"day":"2015-02-29"}`, "", "day must be a date like 2016-12-01"},
	{`{"day":"0000-01-01"}`, "", "day must be a date"},
	{`{"day":"2016-1-1"}`, "", "day must be"},
	{`{"day":1}`, "", "day must be"},
	{`{"clock":"24:00:00.1"}`, "", "clock must be at most 24:00:00"},
	{`{"clock":"1:00:00"}`, "", "clock must be a time like"},
	{`{"clock":"01:60:00"}`, "", "clock must be"},
	{`{"clock":"01:00:00.1234567"}`, "", "clock has more than 6 digits"},
	{`{"clock":"01:00:00."}`, "", "clock must be"},
	{`{"clock":"+1:00:00"}`, "", "clock must be"},
	{`{"span":"-00:00:00.9999996"}`, `{"span":"-00:00:01"}`, ""},
	{`{"at":"2016-12-31T23:59:59.9999995Z"}`, `{"at":"2017-01-01T00:00:00Z"}`, ""},
	{`{"at":"2016-12-31T23:59:59.9999994Z"}`, `{"at":"2016-12-31T23:59:59.999999Z"}`, ""},
	{`{"raw":"AQI="}`, "", ""},
	{`{"raw":""}`, "", ""},
	{`{"raw":"AQI"}`, "", "raw must be a string of base64"},
	{`{"raw":"AQJ="}`, "", "raw must be"},
	{`{"raw":"AQ\nI="}`, "", "raw must be"},
	{`{"r":1e-400}`, "", "r must be a number within the range of a double"},
	{`{"r":0e-400}`, `{"r":0}`, ""},
	{`{"r":5e-324}`, "", ""},
	{`{"j":[1e-400]}`, "", " a number is out of the range"},
	{`{"texts":["a",null,"\"\\"]}`, "", ""},
	{`{"texts":[]}`, "", ""},
	{`{"texts":[["a"],["b"]]}`, "", ""},
	{`{"n":[1,"2",-9223372036854775808]}`, "", ""},
	{`{"on":[true,false]}`, "", ""},
	{`{"texts":[1]}`, "", "texts must be an array, of which each element is null or a string"},
	{`{"texts":"a"}`, "", "texts must be"},
	{`{"texts":[["a"],"b"]}`, "", "texts must be"},
	{`{"texts":[["a"],[]]}`, "", "texts must be"},
	{`{"n":[1.5]}`, "", "n must be"},
	{`{"n":["1 "]}`, "", "n must be"},
	{`{"n":["0x1"]}`, "", "n must be"},
	{`{"on":["true"]}`, "", "on must be"},
	{`{"d":["1.50",2]}`, "", ""},
	{`{"d":["x"]}`, "", "d must be"},
	{`{"big":18446744073709551615}`, "", ""},
	{`{"big":-9223372036854775808}`, "", ""},
	{`{"texts":["\u0000"]}`, "", " has a string with NUL"},
}

// Values of the types that have no other test come out of the parser and of a spool as they were sent.
func TestExactTypes(t *testing.T) {
	t.Parallel()
	s := mustSchema(t, Definition{Columns: []Column{
		{Name: "day", Type: Date, Min: "0001-01-01"},
		{Name: "clock", Type: Time, Max: "24:00:00"},
		{Name: "raw", Type: Bytes},
		{Name: "big", Type: Integer},
		{Name: "r", Type: Real},
		{Name: "j", Type: JSON},
		{Name: "texts", Type: "text[]"},
		{Name: "n", Type: "integer[]"},
		{Name: "on", Type: "boolean[]"},
		{Name: "d", Type: "decimal[]"},
		{Name: "at", Type: Timestamp, Round: true},
		{Name: "span", Type: Time, Round: true},
	}})
	for _, test := range exactTests {
		records, refused, err := s.Parse([]byte(test.body), FormJSON, testNow, testLimits)
		if err != nil || (len(refused) > 0) != (test.refused != "") || len(refused) > 0 && !strings.HasPrefix(refused[0].Field+" "+refused[0].Reason, test.refused) {
			t.Errorf("%s: %v, %v; want %q", test.body, refused, err, test.refused)
			continue
		}
		if test.refused != "" {
			continue
		}
		payload, err := appendRecords(nil, records, 0, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := decodeRecords(payload)
		if err != nil {
			t.Fatal(err)
		}
		fitting, _, unfit := decoded.fit(s, time.Now())
		want := test.want
		if want == "" {
			want = test.body
		}
		if len(unfit) > 0 || len(fitting.values) == 0 {
			t.Fatal(unfit)
		}
		if object, err := fitting.object(0); err != nil || string(object) != want {
			t.Errorf("%s became %s, %v", test.body, object, err)
		}
	}
	if _, err := NewSchema(Definition{Key: []string{"at"}, Columns: []Column{{Name: "at", Type: Timestamp, Round: true}}}); err == nil {
		t.Error("a column of key was rounded")
	}
}

func TestDecimalFitsOddScales(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text             string
		precision, scale int
		want             bool
	}{
		{"99900", 3, -2, true},
		{"99910", 3, -2, false},
		{"100000", 3, -2, false},
		{"1", 3, -2, false},
		{"0", 3, -2, true},
		{"-200", 3, -2, true},
		{"0.0099", 2, 4, true},
		{"0.01", 2, 4, false},
		{"1", 2, 4, false},
		{"0", 2, 4, true},
		{"0.00991", 2, 4, false},
		{"9.990", 3, 2, true},
		{"10", 3, 2, false},
	} {
		if got := DecimalFits([]byte(test.text), test.precision, test.scale); got != test.want {
			t.Errorf("%s in numeric(%d,%d): %v", test.text, test.precision, test.scale, got)
		}
	}
}
