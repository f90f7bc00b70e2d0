package config

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/yaml"
)

// The tables of the manual are generated from the types.
func TestManualTables(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "<!-- table:configuration -->\n")
	got, _, closed := strings.Cut(rest, "<!-- /table -->\n")
	if !found || !closed {
		t.Fatal("no tables in " + manual)
	}
	if diff := cmp.Diff(Manual(), got); diff != "" {
		t.Errorf("%s is stale: run make readme-table\n%s", manual, diff)
	}
}

// eachKey calls yield for each key of the configuration.
func eachKey(yield func(path string, v reflect.Value, tag reflect.StructTag)) {
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			field, tag := v.Field(i), v.Type().Field(i).Tag
			at := yaml.Join(path, tag.Get("yaml"))
			yield(at, field, tag)
			if field.Kind() == reflect.Struct {
				walk(at, field)
			} else if block, ok := elementPreset(field.Type()); ok {
				walk(at+"[]", block)
			}
		}
	}
	walk("", reflect.ValueOf(Default()))
}

// The manual has a row with the default and the meaning of each key. For numbers and durations
// it also says what happens beyond the limit.
func TestManualLimits(t *testing.T) {
	t.Parallel()
	tables := Manual()
	eachKey(func(path string, v reflect.Value, tag reflect.StructTag) {
		if _, bounded := tag.Lookup("range"); bounded != (tag.Get("over") != "") {
			t.Errorf("%s: bounded %v, and beyond it %q", path, bounded, tag.Get("over"))
		}
		_, isList := elementPreset(v.Type())
		if row := "| `" + tag.Get("yaml") + "` | "; v.Kind() != reflect.Struct && !isList && !strings.Contains(tables, row) {
			t.Errorf("%s has no row", path)
		}
		if tag.Get("doc") == "" {
			t.Errorf("%s has no meaning", path)
		}
	})
}
