package streamtest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// formats serves the table moments with all formats, filters and parameters, and stores records
// in two tables like it. ANY compares a column with a list.
const formats = `feeds:
  - {path: /plain, sql: SELECT * FROM moments, key: [at, id]}
  - {path: /exact, sql: SELECT * FROM moments, key: [at, id], timestamps: rfc3339, numbers: text}
  - {path: /plain-copies, sql: SELECT * FROM plain_copies, key: [at, id]}
  - {path: /exact-copies, sql: SELECT * FROM exact_copies, key: [at, id]}
  - path: /some
    sql: SELECT id, small, label FROM moments WHERE id >= :low AND small ANY
    key: id
    params: {low: {type: integer, default: 1}, smalls: {type: integer, list_max: 4, default: [7, -5]}}
    filters: {label: text, small: integer}
queries:
  - path: /query
    sql: SELECT id, amount, moment FROM moments WHERE id = :id
    params: {id: {type: integer, default: 1}}
    timestamps: rfc3339
    numbers: text
    one: true
streams:
  - path: /plain
    table: plain_copies
    columns:
`

const formatColumns = `      id: {type: integer, required: true}
      small: integer
      amount: decimal
      x: real
      at: timestamp
      moment: {type: timestamp, format: unix_ms}
      label: text
      yes: boolean
      doc: json
      guid: uuid
`

// formatDatabase is what testFormats must know about a database.
type formatDatabase struct {
	types string // of the columns
	zone  string // behind a literal of an instant
	any   string // compares with the list smalls
}

const inSmalls = "IN (:smalls)"

// testFormats reads rows in each format, posts them to tables of equal columns, and expects the
// same rows there.
func testFormats(t *testing.T, db storetest.Database, of formatDatabase) {
	for _, table := range []string{"moments", "plain_copies", "exact_copies"} {
		db.Query(t, "CREATE TABLE "+table+" ("+of.types+")")
	}
	const uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	db.Query(t, strings.NewReplacer("ZONE", of.zone).Replace(`INSERT INTO moments VALUES
		(1, -5, '12.50', 0.25, '2016-12-01 23:59:57.25', '2016-12-01 23:59:57.123456ZONE', 'a', TRUE, '{"a":1.5}', '`+uuid+`'),
		(9007199254740993, 7, '-0.01', -1.5, '2016-12-02 00:00:00', '2016-12-02 00:00:01ZONE', 'it''s', FALSE, '[]', '`+uuid+`'),
		(2, NULL, NULL, NULL, '2016-11-30 00:00:00.001', NULL, NULL, NULL, NULL, NULL)`))
	text := strings.Replace(formats, "ANY", of.any, 1)
	text += formatColumns + "  - path: /exact\n    table: exact_copies\n    columns:\n" + formatColumns
	s := apptest.ServeText(t, &binary, text, db.URL)

	data := func(path string) string {
		var a struct{ Data json.RawMessage }
		if err := json.Unmarshal(apptest.Fetch(t, s.URL(path)).Body, &a); err != nil {
			t.Fatal(err)
		}
		return string(a.Data)
	}
	plain, exact := data("plain"), data("exact")
	const want = `[{"id":"9007199254740993","small":7,"amount":"-0.01","x":-1.5,"at":"2016-12-02T00:00:00.000Z","moment":"2016-12-02T00:00:01.000000Z","label":"it's","yes":false,"doc":[],"guid":"` + uuid + `"},` +
		`{"id":"1","small":-5,"amount":"12.50","x":0.25,"at":"2016-12-01T23:59:57.250Z","moment":"2016-12-01T23:59:57.123456Z","label":"a","yes":true,"doc":{"a":1.5},"guid":"` + uuid + `"},` +
		`{"id":"2","small":null,"amount":null,"x":null,"at":"2016-11-30T00:00:00.001Z","moment":null,"label":null,"yes":null,"doc":null,"guid":null}]`
	if got := strings.ReplaceAll(exact, `{"a": 1.5}`, `{"a":1.5}`); got != want {
		t.Errorf("exact: %s\nwant %s", got, want)
	}
	if part := `{"id":9007199254740993,"small":7,"amount":-0.01,"x":-1.5,"at":"2016-12-02 00:00:00",`; !strings.HasPrefix(plain, "["+part) {
		t.Errorf("plain: %s, want %s", plain, part)
	}
	apptest.WantAnswer(t, apptest.Fetch(t, s.URL("query")), 200, `{"id":"1","amount":"12.50","moment":"2016-12-01T23:59:57.123456Z"}`)
	if a, b := cursorKey(t, apptest.Fetch(t, s.URL("plain?limit=1")).Body), cursorKey(t, apptest.Fetch(t, s.URL("exact?limit=1")).Body); a != b || a == "" {
		t.Errorf("cursors of keys %q and %q", a, b)
	}
	for path, body := range map[string]string{"plain": plain, "exact": exact} {
		if a := apptest.Post(t, s.URL(path), body); a.Status != 200 || !strings.HasPrefix(string(a.Body), `{"stored":3,`) {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
		apptest.Await(t, "the copies are like the rows", func() bool { return data(path+"-copies") == plain })
	}
	apptest.WantAnswer(t, apptest.Post(t, s.URL("plain"), `{"id":5,"at":1480636797123}`), 422, `records-refused for a number, the stream's owner can set format: unix_ms`)
	apptest.WantAnswer(t, apptest.Post(t, s.URL("plain"), `{"id":5,"moment":1480636797}`), 422, `records-refused whole milliseconds since 1970`)
	if a := apptest.Post(t, s.URL("plain"), `{"id":5,"at":"2017-01-01T00:00:00Z","moment":1480636797123}`); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	apptest.Await(t, "the number is a time", func() bool { return strings.Contains(data("plain-copies"), "23:59:57.123") })
	testFilters(t, s, data)
}

// testFilters reads rows by filters and by parameters with defaults. data returns the rows of a path.
func testFilters(t *testing.T, s *apptest.Spillway, data func(path string) string) {
	for path, want := range map[string]string{
		"some":                             "9007199254740993 1",
		"some?low=2":                       "9007199254740993",
		"some?low=2&low=1":                 "9007199254740993",
		"some?smalls=-5":                   "1",
		"some?smalls=-5&smalls=7&smalls=7": "9007199254740993 1",
		"some?smalls=8&smalls=9&smalls=7":  "9007199254740993",
		"some?label=a":                     "1",
		"some?label=a&label=it%27s":        "1",
		"some?label=it%27s&small=7":        "9007199254740993",
		"some?label=it%27s&small=-5":       "",
		"some?label=":                      "",
		"some?small=99999999999":           "", // the column holds no such number
		"some?other=a":                     "9007199254740993 1",
	} {
		var rows []struct{ ID json.Number }
		if err := json.Unmarshal([]byte(data(path)), &rows); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, row := range rows {
			ids = append(ids, row.ID.String())
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: ids %q, want %q", path, got, want)
		}
	}
	apptest.WantAnswer(t, apptest.Fetch(t, s.URL("some?small=x")), 400, "bad-request small must be a whole number")
	apptest.WantAnswer(t, apptest.Fetch(t, s.URL("some?smalls=1&smalls=2&smalls=3&smalls=4&smalls=5")), 400, "bad-request smalls has more than 4 values")
}

// cursorKey returns the key in the cursor of a page.
func cursorKey(t *testing.T, body []byte) string {
	t.Helper()
	var a struct{ Next string }
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatal(err)
	}
	plain, err := base64.RawURLEncoding.DecodeString(a.Next)
	const before, behind = 5, 4 // version and feed, checksum
	if err != nil || len(plain) <= before+behind {
		t.Fatal(fmt.Errorf("cursor %q: %w", a.Next, err))
	}
	return string(plain[before : len(plain)-behind])
}
