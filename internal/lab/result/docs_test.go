package result

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDocumentation wants every field and error class of the file named in docs/results-format.md.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/results-format.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(fieldNames(reflect.TypeFor[record]()), fieldNames(reflect.TypeFor[Usage]())...) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/results-format.md does not name the field %s", name)
		}
	}
	for _, class := range ErrorClasses() {
		if !strings.Contains(string(doc), "| `"+class.String()+"` |") {
			t.Errorf("docs/results-format.md does not name the error class %s", class)
		}
	}
}

// fieldNames are the JSON names of a type and of all that it holds. Part holds a Header again and ends there.
func fieldNames(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[Header]().PkgPath() {
		return nil
	}
	var names []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && !(t == reflect.TypeFor[record]() && name == "record") {
			names = append(names, name)
		}
		if t != reflect.TypeFor[Part]() {
			names = append(names, fieldNames(field.Type)...)
		}
	}
	return names
}
