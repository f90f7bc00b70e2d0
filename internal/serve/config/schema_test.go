package config

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	goccy "github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"spillway/internal/yaml"
)

// compiled returns the compiled schema after validating it against the 2020-12 metaschema.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("spillway.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("spillway.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// The definitions have the limits that Validate has.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	type kinds struct {
		AnyOf []struct {
			Enum    []string
			Maximum int
		}
	}
	type object struct {
		MaxProperties        int
		AdditionalProperties kinds
	}
	var d struct {
		ParamType, ColumnType kinds
		Statements, Caps      object
	}
	if err := json.Unmarshal(definitions, &d); err != nil {
		t.Fatal(err)
	}
	got := []any{
		strings.Join(d.ParamType.AnyOf[0].Enum, ","), strings.Join(d.ColumnType.AnyOf[0].Enum, ","), d.Statements.MaxProperties,
		d.Caps.MaxProperties, d.Caps.AdditionalProperties.AnyOf[0].Maximum,
	}
	want := []any{paramTypes, columnTypes, listsMax, capsMax, capShowsMax}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// judge validates a YAML text with the schema.
func judge(t *testing.T, schema *jsonschema.Schema, src string) error {
	t.Helper()
	text, err := goccy.YAMLToJSON([]byte(src))
	if err != nil {
		t.Fatalf("%v in\n%s", err, src)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, src)
	}
	return schema.Validate(instance)
}

// manual is the file that explains the configuration.
const manual = "../../../docs/reference/configuration.md"

// examples returns the complete configurations in the manual.
func examples(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, block := range strings.Split(string(text), "\n```yaml\n")[1:] {
		example, _, _ := strings.Cut(block, "\n```\n")
		found = append(found, example+"\n")
	}
	if len(found) == 0 {
		t.Fatal("no ```yaml blocks in " + manual)
	}
	return found
}

// withQueryParams adds a query with parameters of every kind.
func withQueryParams(c *Config) {
	q := Defaults[Query]()
	q.Path, q.SQL, q.One = "/q", "SELECT 1", true
	q.Params = Params{
		{Name: "a", Type: "text"},
		{Name: "no", Type: "boolean", Default: Literals{"true"}},
		{Name: "b", Type: "text", Default: Literals{"", "${x}", "a: b"}, ListMax: 3},
		{Name: "c", Type: "integer", ListMax: 1000},
	}
	c.Queries = append(c.Queries, q)
}

func TestSchemaAccepts(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	good := func(src string) {
		t.Helper()
		if err := judge(t, schema, src); err != nil {
			t.Errorf("%v in\n%s", err, src)
		}
	}
	good(printed(Default()))
	good(printed(valid(func(c *Config) { c.Feeds[0].Params = Params{{Name: "a", Type: "uuid"}} })))
	good("feeds:\n  - path: /a\n    sql: SELECT 1\n    key: [a, b DESC]\n    window: ${WINDOW}\n    refresh: ${X}ms\n    params: {a: \"${TYPE}\"}\nlog: {level: \"${LEVEL}\", access: \"${A}\"}\n")
	good(printed(valid(withQueryParams)))
	good("feeds:\n  - path: /a\n    sql: SELECT 1\n    key: a\n    params: {a: {type: text, default: b}}\n    filters: {b: integer}\n    timestamps: rfc3339\n    numbers: text\nstreams:\n  - path: /s\n    table: t\n    columns: {at: {type: timestamp, format: unix_ms}}\n")
	good("queries:\n  - path: /a\n    sql: SELECT 1\n    params: {a: text, b: {type: integer, default: 5}, c: {type: text, default: [a, b], list_max: 7}}\n    one: true\n")
	for _, example := range examples(t) {
		good(example)
	}
}

// Every example in the manual is valid.
func TestManualExamples(t *testing.T) {
	t.Parallel()
	env := func(string) (string, bool) { return "postgres://app:pw@db/app", true }
	file := func(string) ([]byte, error) { return []byte("a-token-of-24-characters"), nil }
	for _, example := range examples(t) {
		if _, err := Read("example", []byte(example), env, file); err != nil {
			t.Errorf("%v in\n%s", err, example)
		}
	}
}

func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	schema := compiled(t)
	bad := func(src, says string) {
		t.Helper()
		if err := judge(t, schema, src); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q of\n%s", err, says, src)
		}
	}
	bad("litsen: a\n", "'litsen' not allowed")
	bad(orders+"    widow: 3\n", "'widow' not allowed")
	bad("feeds: [{path: /a, sql: SELECT 1}]\n", "missing property 'key'")
	bad(orders+"    window: 0\n", "minimum")
	bad(orders+"    sweep_share: 1.5\n", "maximum")
	bad(orders+"    refresh: 100\n", "got number, want string")
	bad(orders+"    refresh: fast\n", "pattern")
	bad(orders+"    params: {a: string}\n", "'text'")
	bad(orders+"    params: {a-b: text}\n", "propertyName")
	bad("log: {level: all}\n", "'debug'")
	bad("listen: 8080\n", "got number, want string")
	bad("pool: {max: three}\n", "pattern")
}

// Each key of the schema has a description and, if there is one, its default.
func TestSchemaDescribes(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	n := 0
	var walk func(path string, block map[string]any)
	walk = func(path string, block map[string]any) {
		for key, value := range block["properties"].(map[string]any) {
			n++
			property := value.(map[string]any)
			if text, _ := property["description"].(string); text == "" {
				t.Errorf("%s has no description", yaml.Join(path, key))
			}
			if _, ok := property["properties"]; ok {
				walk(yaml.Join(path, key), property)
			}
			if items, ok := property["items"].(map[string]any); ok && items["properties"] != nil {
				walk(yaml.Join(path, key)+"[]", items)
			}
		}
	}
	walk("", schema)
	want := 0
	eachKey(func(string, reflect.Value, reflect.StructTag) { want++ })
	if n != want {
		t.Errorf("%d keys, want %d", n, want)
	}
	if again := Schema(); !bytes.Equal(again, Schema()) {
		t.Error("two calls return different schemas")
	}
}
