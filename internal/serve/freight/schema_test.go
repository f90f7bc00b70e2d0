package freight

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/database"
)

const threeParts = `-- A comment.

--- registry
CREATE TABLE r (
    a integer
);
--- tables
CREATE TABLE a (id integer);
CREATE TABLE b (id integer);
-- Another comment.
--- indexes
CREATE INDEX i ON a (id);
`

func TestParseSchema(t *testing.T) {
	s, err := parseSchema(threeParts)
	if err != nil {
		t.Fatal(err)
	}
	f := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f("registry", s["registry"], "CREATE TABLE r (\n    a integer\n);")
	f("tables", s["tables"], "CREATE TABLE a (id integer);", "CREATE TABLE b (id integer);")
	f("indexes", s["indexes"], "CREATE INDEX i ON a (id);")
}

func TestParseSchemaErrors(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if _, err := parseSchema(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseSchema(%q) = %v, want %q", text, err, want)
		}
	}
	f("--- registry\nCREATE TABLE a (id integer)\n", "without a semicolon")
}

func TestDialects(t *testing.T) {
	for _, driver := range []database.Driver{database.Postgres, database.SQLite, database.MySQL} {
		got, want := slices.Sorted(maps.Keys(dialectOf(driver).schema)), []string{"freight indexes", "freight tables", "games tables", "registry"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("parts of the schema of %s (-want +got):\n%s", driver, diff)
		}
	}
}

func TestDecide(t *testing.T) {
	want := Dataset{Users: 10, Days: 2, PerDay: 3, Seed: 1}
	a := freightApp()
	ours := component{app: a, version: 1, dataset: want.String(), tables: map[string][]string{
		registryTable: a.columns[registryTable], "users": append(slices.Clip(a.columns["users"]), "added"), "orders": a.columns["orders"], "positions": a.columns["positions"],
	}}
	with := func(change func(*component)) component {
		c := ours
		c.tables = map[string][]string{}
		for name, columns := range ours.tables {
			c.tables[name] = columns
		}
		change(&c)
		return c
	}
	f := func(name string, found component, replace, create bool, text string) {
		t.Helper()
		got, err := decide(found, want.String(), replace, "go elsewhere")
		if text == "" && (err != nil || got != create) {
			t.Errorf("%s: %t, %v, want %t", name, got, err, create)
		}
		if text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("%s: %v, want %q", name, err, text)
		}
	}
	f("empty", component{app: a}, false, true, "")
	f("empty, replace", component{app: a}, true, true, "")
	f("the same", ours, false, false, "")
	f("the same, replace", ours, true, true, "")
	other := with(func(c *component) { c.dataset = Dataset{Users: 10, Days: 2, PerDay: 3, Seed: 2}.String() })
	f("another", other, false, false, "the database contains another data set (--users 10 --days 2 --per-day 3 --random-seed 2); --replace")
	f("another, replace", other, true, true, "")
	f("no tables", with(func(c *component) { c.tables = map[string][]string{registryTable: a.columns[registryTable]} }), false, true, "")
	gone := with(func(c *component) { delete(c.tables, "users") })
	f("one table", gone, false, false, "is missing; --replace")
	f("one table, replace", gone, true, true, "")
	f("newer", with(func(c *component) { c.version = 2 }), true, false, "newer Spillway")
	f("not in the registry", with(func(c *component) { c.version = 0 }), true, false, `"users" belongs to a table that Spillway did not create; go elsewhere`)
	f("foreign registry", component{app: a, tables: map[string][]string{registryTable: {"id"}}}, true, false, `"spillway_schema" belongs to`)
	f("foreign users", component{app: a, tables: map[string][]string{"users": {"id"}}}, true, false, `"users" belongs to`)
	f("foreign without columns", component{app: a, tables: map[string][]string{"orders": {""}}}, true, false, `"orders" belongs to`)
	f("orders made anew", with(func(c *component) { c.tables["orders"] = []string{"id", "total"} }), true, false, `"orders" belongs to`)
}
