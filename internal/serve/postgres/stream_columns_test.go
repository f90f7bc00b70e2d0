package postgres

import (
	"strings"
	"testing"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// pricesTable is the table Prices in the schema Odd "one".
const pricesTable = `Odd "one".Prices`

// TestStreamColumns checks types that only PostgreSQL has, and tables outside the search
// path.
func TestStreamColumns(t *testing.T) {
	t.Parallel()
	pg := shared.Get(t)
	url := pg.CreateDatabase(t)
	for _, sql := range []string{
		"CREATE EXTENSION citext",
		"CREATE DOMAIN price AS numeric(20,2)",
		"CREATE DOMAIN nested AS price", "CREATE DOMAIN code AS char(8)", "CREATE DOMAIN nested_code AS code",
		"CREATE DOMAIN free AS numeric CHECK (VALUE > 0)",
		"CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
		`CREATE SCHEMA "Odd ""one"""`,
		`CREATE TABLE "Odd ""one"""."Prices" (id bigint, "It's" price, free free, hundreds numeric(3,-2), tiny numeric(2,4), label varchar(8), nested nested, small real)`,
		"CREATE TABLE labels (a citext UNIQUE, b text, c text UNIQUE, d char(8) UNIQUE, e nested_code UNIQUE, f varchar(8) UNIQUE, g varchar UNIQUE, h name UNIQUE)", "CREATE UNIQUE INDEX ON labels (b COLLATE loose)",
	} {
		if err := execute(t.Context(), url, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	db := open(t, url, database.Pool{})
	check := func(def stream.Definition) error {
		t.Helper()
		schema, err := stream.NewSchema(def)
		if err != nil {
			t.Fatal(err)
		}
		return db.Stream(schema).Check(t.Context())
	}
	for _, test := range []struct {
		key    string
		most   int
		accept bool
		want   string
	}{
		{"a", 0, false, "collation citext"},
		{"b", 0, false, "collation loose"},
		{"c", 0, false, ""},
		{"d", 0, false, ""},
		{"d", 0, true, ""},
		{"e", 8, false, ""},
		{"f", 0, false, ""},
		{"f", 8, false, ""},
		{"f", 0, true, ""},
		{"g", 0, false, ""},
		{"h", 0, false, ""},
	} {
		err := check(stream.Definition{
			Name: "/labels", Table: "labels", Key: []string{test.key}, AnyKeyCollation: test.accept,
			Columns: []stream.Column{{Name: test.key, Type: stream.Text, Required: true, MaxLength: test.most}},
		})
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) || test.want == "" && err != nil {
			t.Errorf("%+v: %v", test, err)
		}
	}
	for column, want := range map[string]string{"It's": "column It's is price", "free": "column free is free", "hundreds": "", "nested": "column nested is nested", "small": ""} {
		err := check(stream.Definition{Name: "/prices", Table: pricesTable, Columns: []stream.Column{{Name: column, Type: stream.Real}}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("real on %s: %v, want %s", column, err, want)
		}
	}
	testExactRows(t, url, db)
}

// testExactRows stores decimals in columns of several scales.
func testExactRows(t *testing.T, url string, db *DB) {
	t.Helper()
	def := stream.Definition{Name: "/prices", Table: pricesTable, Columns: []stream.Column{{Name: "id", Type: stream.Integer}}}
	for _, name := range []string{"It's", "free", "hundreds", "tiny", "label", "nested"} {
		def.Columns = append(def.Columns, stream.Column{Name: name, Type: stream.Decimal})
	}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Stream(schema).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	body := `{"id":1,"It's":12345678901234.56,"free":1e-20,"hundreds":99900,"tiny":-0.0099,"label":"1.50","nested":0.25}
{"id":2,"It's":1.005}
{"id":3,"hundreds":99910}
{"id":4,"hundreds":100000}
{"id":5,"tiny":0.01}
{"id":6,"label":123456789}
{"id":7,"free":0}
{"id":8}
{"id":9,"nested":1.005}`
	records, refused, err := schema.Parse([]byte(body), stream.FormLines, time.Now(), stream.Limits{Bytes: 1 << 20, Records: 100, Depth: 5, Fields: 10})
	if err != nil || len(refused) > 0 {
		t.Fatal(err, refused)
	}
	b := &stream.Batch{ID: [16]byte{1}, Requests: []*stream.Entry{{Records: records}}}
	if err := db.Stream(schema).Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	want := map[int]string{
		1: "It's: 1.005 cannot be stored exactly in a column of type price",
		2: "hundreds: 99910 cannot be stored exactly in a column of type numeric(3,-2)",
		3: "hundreds: 100000 cannot be stored exactly",
		4: "tiny: 0.01 cannot be stored exactly in a column of type numeric(2,4)",
		8: "nested: 1.005 cannot be stored exactly in a column of type nested",
		5: "label: 123456789 cannot be stored exactly", 6: "violates check constraint",
	}
	for _, r := range b.Requests[0].Result.Refused {
		if want[r.Row] == "" || !strings.Contains(r.Reason, want[r.Row]) {
			t.Errorf("row %d: %s, want %s", r.Row, r.Reason, want[r.Row])
		}
		delete(want, r.Row)
	}
	if len(want) > 0 {
		t.Errorf("not refused: %v", want)
	}
	rows, err := streamRows(t.Context(), url, `SELECT * FROM "Odd ""one"""."Prices" ORDER BY id`)
	if err != nil || len(rows) != 2 || strings.Join(rows[0], " ") != "1 12345678901234.56 0.00000000000000000001 99900 -0.0099 1.50 0.25 NULL" {
		t.Errorf("stored %v, %v", rows, err)
	}
}
