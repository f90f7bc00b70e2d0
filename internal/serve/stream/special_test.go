package stream

import (
	"testing"
	"time"
)

// Special values are taken only from databases that may have them, and keep their text. So do booleans as numbers.
func TestSpecial(t *testing.T) {
	t.Parallel()
	def := Definition{Name: "/s", Table: "s", Special: true, Loose: true, Columns: []Column{
		{Name: "r", Type: Real},
		{Name: "d", Type: Decimal},
		{Name: "at", Type: Timestamp},
		{Name: "day", Type: Date},
		{Name: "b", Type: Boolean},
		{Name: "i", Type: Integer},
		{Name: "low", Type: Real, Max: "5"},
	}}
	schemas := make(map[bool]*Schema)
	for _, special := range []bool{true, false} {
		def.Special, def.Loose = special, special
		s, err := NewSchema(def)
		if err != nil {
			t.Fatal(err)
		}
		schemas[special] = s
	}
	parse := func(s *Schema, body string) (*Records, []Refusal) {
		records, refused, err := s.Parse([]byte(body), FormJSON, time.Now(), Limits{Bytes: 1000, Records: 1, Depth: 2, Fields: 10})
		if err != nil {
			t.Fatal(body, err)
		}
		return records, refused
	}
	for _, test := range specialTests() {
		records, refused := parse(schemas[true], test.body)
		if (len(refused) == 0) != (test.text != "") {
			t.Errorf("%s: %v, want %q", test.body, refused, test.text)
			continue
		}
		if _, refused := parse(schemas[false], test.body); len(refused) == 0 {
			t.Errorf("%s: taken for every database", test.body)
		}
		if len(refused) > 0 {
			continue
		}
		payload, err := appendRecords(nil, records, 0, 1, nil) // as in the spool
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := decodeRecords(payload)
		if err != nil {
			t.Fatal(test.body, err)
		}
		if _, err := SpooledJSON(payload); err != nil {
			t.Error(test.body, err)
		}
		for i, c := range records.columns {
			if !again.Null(0, i) && string(c.kind.AppendText(nil, again.Value(0, i))) != test.text || again.Value(0, i).Loose != records.Value(0, i).Loose {
				t.Errorf("%s: %+v", test.body, again.Value(0, i))
			}
		}
	}
}

type specialTest struct{ body, text string }

func specialTests() []specialTest {
	return []specialTest{
		{`{"r":"NaN"}`, "NaN"},
		{`{"r":"-Infinity"}`, "-Infinity"},
		{`{"d":"Infinity"}`, "Infinity"},
		{`{"at":"-infinity"}`, "-infinity"},
		{`{"at":"0044-03-15 12:00:00.5 BC"}`, "0044-03-15 12:00:00.5 BC"},
		{`{"at":"0044-03-15 20:05:43+08:05:43 BC"}`, "0044-03-15 12:00:00 BC"},
		{`{"at":"294246-12-31 23:59:59.999999"}`, "294246-12-31 23:59:59.999999"},
		{`{"at":"9999-12-31 23:00:00-05"}`, "10000-01-01 04:00:00"},
		{`{"at":"0001-01-01T00:00:00+01:00"}`, "0001-12-31 23:00:00 BC"},
		{`{"day":"0001-02-29 BC"}`, "0001-02-29 BC"},
		{`{"day":"5874897-12-31"}`, "5874897-12-31"},
		{`{"b":1}`, "true"},
		{`{"b":"0"}`, "false"},
		{`{"i":true}`, "1"},
		{`{"r":"nan"}`, ""},
		{`{"low":"NaN"}`, ""},
		{`{"low":"Infinity"}`, ""},
		{`{"at":"0002-02-29 00:00:00 BC"}`, ""},
		{`{"at":"300000-01-01 00:00:00"}`, ""},
		{`{"at":"10000-01-01T00:00:00"}`, ""},
		{`{"at":"2016-12-01 23:59:57+01"}`, ""},
		{`{"at":"0000-01-01 00:00:00"}`, ""},
		{`{"day":"4715-01-01 BC"}`, ""},
		{`{"b":2}`, ""},
		{`{"b":1.0}`, ""},
	}
}
