package stream

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func FuzzSpooledRecords(f *testing.F) {
	schema := spooledSchema(f, "id integer", "name text", "at timestamp", "x real", "ok boolean", "j json", "u uuid", "d decimal")
	f.Add(spooledPayload(f, schema, `{"id":1,"name":"é","at":"2016-12-01T00:00:00Z","x":1.5,"ok":true,"j":[1],"u":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","d":"-1.50"}`))
	f.Add([]byte(recordsFormat + "\x01\x01d\x07decimal\x01\x00\x01\x031e5\x00"))
	f.Add([]byte(recordsFormat + "\x01\x01a\x04text\x01\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte(recordsFormat + "\x01\x01a\x04blob\x01\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\x00"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		_, _ = SpooledJSON(payload)
		r, _, err := decodeRecords(payload)
		if err != nil {
			return
		}
		records, _, _ := r.fit(schema, time.Now())
		for row := range records.Len() {
			if _, err := appendRecords(nil, records, row, row+1, nil); err != nil {
				t.Error(err)
			}
		}
	})
}

// spooledSchema is a stream with columns "name type" and, behind those, "required" or
// "default=...".
func spooledSchema(t testing.TB, columns ...string) *Schema {
	t.Helper()
	def := Definition{Name: "/s", Table: "s"}
	for _, text := range columns {
		words := strings.Fields(text)
		c := Column{Name: words[0], Type: Type(words[1])}
		for _, word := range words[2:] {
			if value, ok := strings.CutPrefix(word, "default="); ok {
				c.Default = &value
			}
			c.Required = c.Required || word == "required"
		}
		def.Columns = append(def.Columns, c)
	}
	schema, err := NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func spooledPayload(t testing.TB, schema *Schema, lines string) []byte {
	t.Helper()
	records, refused, err := schema.Parse([]byte(lines), FormLines, time.Now(), Limits{Bytes: 1 << 20, Records: 100, Depth: 10, Fields: 100})
	if err != nil || len(refused) > 0 {
		t.Fatal(err, refused)
	}
	payload, err := appendRecords(nil, records, 0, records.Len(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// Spooled records are mapped to the columns of a changed stream, or rejected with a reason.
func TestSpooledSchemaChange(t *testing.T) {
	at := time.Date(2016, 12, 1, 10, 0, 0, 0, time.UTC)
	payload := spooledPayload(t, spooledSchema(t, "id integer", "name text", "x real"), "{\"id\":-1,\"name\":\"é\",\"x\":1.5}\n{\"id\":18446744073709551615}\n{\"name\":\"c\"}")
	tests := []struct {
		columns []string
		want    string
		lost    string
	}{
		{[]string{"id integer", "name text", "x real"}, `{"id":-1,"name":"é","x":1.5} {"id":18446744073709551615} {"name":"c"}`, ""},
		{[]string{"x real", "name text", "id integer"}, `{"x":1.5,"name":"é","id":-1} {"id":18446744073709551615} {"name":"c"}`, ""},
		{
			[]string{"id integer", "name text", "x real", "at timestamp default=now", "n integer default=7", "s text default=new", "u uuid"},
			`{"id":-1,"name":"é","x":1.5,"at":"2016-12-01T10:00:00Z","n":7,"s":"new"} {"id":18446744073709551615,"at":"2016-12-01T10:00:00Z","n":7,"s":"new"} {"name":"c","at":"2016-12-01T10:00:00Z","n":7,"s":"new"}`, "",
		},
		{[]string{"id decimal", "name text", "x decimal"}, `{"id":-1,"name":"é","x":1.5} {"id":18446744073709551615} {"name":"c"}`, ""},
		{[]string{"id integer", "name decimal", "x real"}, `{"id":18446744073709551615}`, "0 column name was text and is decimal now, 2 column name was text and is decimal now"},
		{[]string{"id integer", "name text", "x real", "d decimal default=1.50e1"}, `{"id":-1,"name":"é","x":1.5,"d":15.0} {"id":18446744073709551615,"d":15.0} {"name":"c","d":15.0}`, ""},
		{[]string{"id integer", "name text"}, `{"id":18446744073709551615} {"name":"c"}`, "0 the stream no longer has a column x"},
		{[]string{"id text", "name text", "x real"}, `{"name":"c"}`, "0 column id was integer and is text now, 1 column id was integer and is text now"},
		{[]string{"id integer required", "name text", "x real"}, `{"id":-1,"name":"é","x":1.5} {"id":18446744073709551615}`, "2 column id must not be null now"},
		{[]string{"id integer", "name text", "x real", "y real required"}, "", "0 column y is required now, 1 column y is required now, 2 column y is required now"},
	}
	for _, test := range tests {
		r, _, err := decodeRecords(payload)
		if err != nil {
			t.Fatal(err)
		}
		records, origin, lost := r.fit(spooledSchema(t, test.columns...), at)
		var got, reasons []string
		for row := range records.Len() {
			object, err := records.object(row)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(object))
			if records.Index(row) != origin[row] {
				t.Errorf("row %d of %d was %d", row, origin[row], records.Index(row))
			}
		}
		for _, d := range lost {
			reasons = append(reasons, fmt.Sprint(d.Row, " ", d.Reason))
			alone, err := appendRecords(nil, r, d.Row, d.Row+1, nil)
			if err != nil {
				t.Fatal(err)
			}
			one, err := SpooledJSON(alone)
			whole, wholeErr := SpooledJSON(payload)
			if err != nil || wholeErr != nil || len(one) != 1 || string(one[0]) != string(whole[d.Row]) {
				t.Errorf("alone it is %s, %v", one, err)
			}
		}
		if strings.Join(got, " ") != test.want || strings.Join(reasons, ", ") != test.lost {
			t.Errorf("%v:\ngot  %s\nwant %s\nlost %s\nwant %s", test.columns, strings.Join(got, " "), test.want, strings.Join(reasons, ", "), test.lost)
		}
	}
}

// A payload of a build without decimals is read as before, and one with a type that this
// build does not know is refused whole.
func TestSpooledFormat(t *testing.T) {
	old := recordsFormat + "\x02\x02id\x07integer\x01t\x04text\x01\x00\x01\x0e\x01\x01\xc3\xa9"
	for payload, want := range map[string]string{
		old + "\x00": "",
		recordsFormat + "\x02\x02id\x07integer\x01t\x04text\x01\x00\x01\x0e\x01\x02\xc3\xa9\x00": `{"id":7,"t":"é"}`,
		recordsFormat + "\x01\x01d\x07decimal\x01\x00\x01\x0412.5\x00":                           `{"d":12.5}`,
		recordsFormat + "\x01\x01d\x07decimal\x01\x00\x01\x031e5\x00":                            "",
		recordsFormat + "\x01\x01d\x06money!\x01\x00\x01\x031e5\x00":                             "",
	} {
		_, _, err := decodeRecords([]byte(payload))
		if (err == nil) != (want != "") {
			t.Errorf("%q: %v", payload, err)
			continue
		}
		if want == "" {
			continue
		}
		if objects, err := SpooledJSON([]byte(payload)); err != nil || len(objects) != 1 || string(objects[0]) != want {
			t.Errorf("%q: %s, %v, want %s", payload, objects, err, want)
		}
	}
}
