package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/serve/config"
)

// The tables in docs/reference/configuration.md are those of the types.
func TestManualTables(t *testing.T) {
	const file = "../../docs/reference/configuration.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "<!-- table:configuration -->\n")
	got, _, closed := strings.Cut(rest, "<!-- /table -->\n")
	if !found || !closed {
		t.Fatal("no tables in " + file)
	}
	if diff := cmp.Diff(manual(), got); diff != "" {
		t.Errorf("%s is stale: run make readme-table\n%s", file, diff)
	}
}

// Every key of the schema has a row or a table.
func TestManualIsComplete(t *testing.T) {
	tables, rows := manual(), 0
	var walk func(path string, schema map[string]any)
	walk = func(path string, schema map[string]any) {
		for key, value := range schema["properties"].(map[string]any) {
			property := value.(map[string]any)
			at := strings.TrimPrefix(path+"."+key, ".")
			items, _ := property["items"].(map[string]any)
			switch {
			case property["properties"] != nil:
				walk(at, property)
			case items["properties"] != nil:
				at += "[]"
				walk(at, items)
			default:
				rows++
				at = "| `" + key + "` |"
			}
			if !strings.Contains(tables, at) {
				t.Errorf("%s is not in the tables", at)
			}
		}
	}
	var schema map[string]any
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	walk("", schema)
	if got := strings.Count(tables, "\n| `"); got != rows {
		t.Errorf("%d rows, want %d", got, rows)
	}
}
