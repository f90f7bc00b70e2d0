package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// row is a key as the manual's table of keys shows it.
type row struct {
	path, kind, fallback, doc string
	bounded                   bool
}

func (r row) String() string {
	return fmt.Sprintf("| `%s` | %s | %s | %s |", r.path, r.kind, r.fallback, r.doc)
}

// manualRows returns a row for each key, in the order of the types.
func manualRows() []row {
	var rows []row
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			field, tag := v.Field(i), v.Type().Field(i).Tag
			at := join(path, tag.Get("yaml"))
			rows = append(rows, newRow(at, field, tag))
			switch {
			case field.Kind() == reflect.Struct:
				walk(at, field)
			case field.Kind() == reflect.Slice:
				if block, ok := preset(field.Type().Elem()); ok {
					walk(at+"[]", block)
				}
			}
		}
	}
	walk("", reflect.ValueOf(Default()))
	return rows
}

func newRow(path string, v reflect.Value, tag reflect.StructTag) row {
	kind := strings.TrimPrefix(strings.TrimPrefix(typeName(v.Type()), "a "), "whole ")
	if bounds, ok := tag.Lookup("range"); ok {
		low, high, _ := strings.Cut(bounds, "..")
		kind += ", " + low + " to " + high
	}
	if allowed, ok := tag.Lookup("enum"); ok {
		kind = orList(allowed)
	}
	r := row{path: path, kind: kind, doc: tag.Get("doc"), fallback: "none"}
	_, r.bounded = tag.Lookup("range")
	switch x := v.Interface().(type) {
	case time.Duration:
		r.fallback = "`" + shortDuration(x) + "`"
	case int, float64, bool:
		r.fallback = "`" + fmt.Sprint(x) + "`"
	case string:
		if x != "" {
			r.fallback = "`" + x + "`"
		}
	}
	switch {
	case path == "pool.max":
		r.fallback = "(cores x 2) + 1"
	case v.Kind() == reflect.Struct:
		r.fallback = "as below"
	}
	return r
}

// tables returns the cells of each table row in the manual, by its first cell
// without backticks. A key stands once in the table of keys (4 cells) and, if
// it is a limit, once in the table of limits (3 cells).
func tables(t *testing.T) (keys []string, limits map[string][]string) {
	t.Helper()
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	limits = map[string][]string{}
	line := regexp.MustCompile("^\\| `([a-z_.\\[\\]]+)` \\|.*\\|$")
	for _, l := range strings.Split(string(text), "\n") {
		m := line.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		cells := strings.Split(strings.Trim(l, "| "), " | ")
		if len(cells) == 4 {
			keys = append(keys, l)
			continue
		}
		if _, repeated := limits[m[1]]; repeated || len(cells) != 3 {
			t.Errorf("a second row, or not three cells: %s", l)
		}
		limits[m[1]] = cells
	}
	return keys, limits
}

// The manual's table of keys is what the types say.
func TestManualKeys(t *testing.T) {
	got, _ := tables(t)
	var want []string
	for _, r := range manualRows() {
		want = append(want, r.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table of keys in %s:\n%s", manual, diff)
	}
}

// The manual's table of limits has every number and duration, with its
// default, and nothing else.
func TestManualLimits(t *testing.T) {
	_, limits := tables(t)
	for _, r := range manualRows() {
		cells, listed := limits[r.path]
		if listed != r.bounded {
			t.Errorf("%s: in the table of limits: %v, bounded: %v", r.path, listed, r.bounded)
			continue
		}
		if listed && (cells[1] != r.fallback || strings.TrimSpace(cells[2]) == "") {
			t.Errorf("%s: %q, want the default %s and what happens beyond", r.path, cells, r.fallback)
		}
		delete(limits, r.path)
	}
	for path := range limits {
		t.Errorf("%s in the table of limits is no key", path)
	}
}
