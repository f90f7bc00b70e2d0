package feed_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/feed"
)

// selected returns the page of rows with some fields, as it is sent.
func selected(t testing.TB, rows string, columns feed.Columns, lists ...string) string {
	t.Helper()
	f, err := columns.Select(lists...)
	if err != nil {
		t.Fatal(err)
	}
	p := feed.NewPage([]byte(rows), 1, xxhash.Sum64String(rows), feed.EnvelopeOne)
	p.Select(f)
	return string(p.Append(nil))
}

func TestFields(t *testing.T) {
	t.Parallel()
	columns := feed.Columns{"id", "doc", `say "hi"`, "größe"}
	const rows = `{"id":1,"doc":{"id":[1,{"a":"},{\""}],"x":null} ,"say \"hi\"":"\\","größe":-1.5e7},{"id":2,"doc":[],"say \"hi\"":"\"","größe":null}`
	for _, c := range []struct{ list, want string }{
		{"", rows},
		{"id", `{"id":1},{"id":2}`},
		{"doc", `{"doc":{"id":[1,{"a":"},{\""}],"x":null} },{"doc":[]}`},
		{`say "hi"`, `{"say \"hi\"":"\\"},{"say \"hi\"":"\""}`},
		{"größe,id", `{"id":1,"größe":-1.5e7},{"id":2,"größe":null}`},
		{"id,id,id", `{"id":1},{"id":2}`},
		{`größe,say "hi",doc,id`, rows},
	} {
		if got := selected(t, rows, columns, c.list); got != c.want {
			t.Errorf("%s: %s, want %s", c.list, got, c.want)
		}
	}
	if got := selected(t, rows, columns, "id", "", "größe"); got != `{"id":1,"größe":-1.5e7},{"id":2,"größe":null}` {
		t.Errorf("two lists: %s", got)
	}
	if got := selected(t, "", columns, "id"); got != "" {
		t.Errorf("no rows: %s", got)
	}
	// The table has changed since the check.
	if got := selected(t, `{"doc":1,"new":2},{"new":2}`, columns, "id,doc"); got != `{"doc":1},{}` {
		t.Errorf("without a column: %s", got)
	}
	for _, list := range []string{"ID", "id,", ",", "id, doc", "id,nothing", `"id"`, strings.Repeat("x", 5000)} {
		_, err := columns.Select(list)
		if !errors.Is(err, feed.ErrRequest) || !strings.HasSuffix(err.Error(), `the known fields are id,doc,say "hi",größe`) || len(err.Error()) > 250 {
			t.Errorf("%q: %v", list, err)
		}
	}
}

// TestEnvelopes: a page has the size that it says, whether it is copied, framed or read, and
// pages that differ have different tags.
func TestEnvelopes(t *testing.T) {
	t.Parallel()
	id, err := feed.Columns{"id", "n"}.Select("id")
	if err != nil {
		t.Fatal(err)
	}
	const row = `{"id":1,"n":2}`
	tags := map[uint64]string{}
	for _, c := range []struct {
		envelope feed.Envelope
		rows     int
		next     string
		fields   feed.Fields
		want     string
	}{
		{feed.EnvelopeData, 1, "", feed.Fields{}, `{"data":[{"id":1,"n":2}]}`},
		{feed.EnvelopeData, 1, "QQ", feed.Fields{}, `{"data":[{"id":1,"n":2}],"next":"QQ"}`},
		{feed.EnvelopeData, 1, "QQ", id, `{"data":[{"id":1}],"next":"QQ"}`},
		{feed.EnvelopeData, 0, "", feed.Fields{}, `{"data":[]}`},
		{feed.EnvelopeNone, 1, "", feed.Fields{}, `[{"id":1,"n":2}]`},
		{feed.EnvelopeNone, 1, "QQ", feed.Fields{}, `[{"id":1,"n":2}]`},
		{feed.EnvelopeNone, 1, "", id, `[{"id":1}]`},
		{feed.EnvelopeNone, 0, "", feed.Fields{}, `[]`},
		{feed.EnvelopeCode, 1, "", feed.Fields{}, `{"return_code":"SUCCESS","data":[{"id":1,"n":2}]}`},
		{feed.EnvelopeCode, 1, "QQ", feed.Fields{}, `{"return_code":"SUCCESS","data":[{"id":1,"n":2}],"next":"QQ"}`},
		{feed.EnvelopeCode, 1, "", id, `{"return_code":"SUCCESS","data":[{"id":1}]}`},
		{feed.EnvelopeCode, 0, "", feed.Fields{}, `{"return_code":"FAIL","data":[]}`},
		{feed.EnvelopeOne, 1, "", feed.Fields{}, row},
		{feed.EnvelopeOne, 1, "", id, `{"id":1}`},
	} {
		p := feed.Page{Data: []byte(row[:c.rows*len(row)]), Rows: c.rows, Next: c.next, Envelope: c.envelope}
		whole := feed.NewPage(p.Data, p.Rows, xxhash.Sum64(p.Data), c.envelope)
		if c.next == "" && whole.Tag() != p.Tag() {
			t.Errorf("%s: tags %x and %x", c.want, whole.Tag(), p.Tag())
		}
		p.Select(c.fields)
		read, err := io.ReadAll(iotest.OneByteReader(p.Reader()))
		if got := string(p.Append([]byte("x"))); got != "x"+c.want || string(read) != c.want || err != nil || p.Size() != len(c.want) {
			t.Errorf("%s and %s of %d bytes, %v; want %s", got, read, p.Size(), err, c.want)
		}
		if frame, at := p.AppendFrame(nil); c.fields.All() && string(frame[:at])+string(p.Data)+string(frame[at:]) != c.want {
			t.Errorf("frame %s of %s", frame, c.want)
		}
		if other := tags[p.Tag()]; other != "" {
			t.Errorf("%s has the tag of %s", c.want, other)
		}
		tags[p.Tag()] = c.want
	}
}

// FuzzFields encodes rows as the sources do, and compares the selected fields with what
// encoding/json reads from all of them.
func FuzzFields(f *testing.F) {
	f.Add(`{"a": [1, "}"], "b\"": {"c": ",\\"}} `, ` -1e-7`, "b\"", "", uint8(5))
	f.Add(`"\u0022"`, `[{}, []]`, "a,b", "ü", uint8(2))
	f.Fuzz(func(t *testing.T, first, second, name, other string, mask uint8) {
		columns := feed.Columns{"id", "x" + name, "y" + other}
		if !json.Valid([]byte(first)) || !json.Valid([]byte(second)) || strings.Contains(name+other, ",") {
			return
		}
		var rows []byte
		for i, values := range [][]string{{"1", first, second}, {second, "null", first}, {first, second, `"},{"`}} {
			for j, value := range values {
				rows = append(rows, []string{"{", ",", ","}[j]...)
				rows = append(append(feed.AppendString(rows, []byte(columns[j])), ':'), value...)
			}
			rows = append(rows, '}')
			if i < 2 {
				rows = append(rows, ',')
			}
		}
		var names []string
		for i, column := range columns {
			if mask&(1<<i) != 0 {
				names = append(names, column)
			}
		}
		if len(names) == 0 {
			return
		}
		compareFields(t, string(rows), selected(t, string(rows), columns, strings.Join(names, ",")), names)
	})
}

// compareFields checks that the objects in got have the named fields of those in rows.
func compareFields(t *testing.T, rows, got string, names []string) {
	t.Helper()
	var all, some []map[string]json.RawMessage
	if err := json.Unmarshal([]byte("["+rows+"]"), &all); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte("["+got+"]"), &some); err != nil || len(some) != len(all) {
		t.Fatalf("%s of %s: %v", got, rows, err)
	}
	for i := range all {
		maps.DeleteFunc(all[i], func(name string, _ json.RawMessage) bool {
			return !slices.ContainsFunc(names, func(n string) bool { return decoded(t, n) == name })
		})
		if !maps.EqualFunc(all[i], some[i], func(a, b json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }) {
			t.Errorf("fields %q of %s: %s", names, rows, got)
		}
	}
}

// decoded returns what a JSON reader makes of a column's name.
func decoded(t *testing.T, name string) (s string) {
	if err := json.Unmarshal(feed.AppendString(nil, []byte(name)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// FuzzFieldsOfGarbage: rows that are no JSON, as from a damaged shared cache, end.
func FuzzFieldsOfGarbage(f *testing.F) {
	for _, rows := range []string{`{`, `{,`, `{"`, `{"id"`, `{"id":`, `{]`, `,,`, `{"id":1]}`, `}`, `{"id":"\`, `{1,}`} {
		f.Add(rows)
	}
	f.Fuzz(func(t *testing.T, rows string) {
		if got := selected(t, rows, feed.Columns{"id"}, "id"); len(got) > len(rows) {
			t.Errorf("%q became %q", rows, got)
		}
	})
}
