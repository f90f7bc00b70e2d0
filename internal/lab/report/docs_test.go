package report

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDocumentation wants every field of the JSON document and every format named in docs/results-format.md.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/results-format.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Document](), reflect.TypeFor[DocumentStep](), reflect.TypeFor[Figures](), reflect.TypeFor[WatchError]()} {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !strings.Contains(string(doc), "`"+name+"`") {
				t.Errorf("docs/results-format.md does not name the field %s", name)
			}
		}
	}
	for _, format := range Formats() {
		if !strings.Contains(string(doc), "| `"+string(format)+"` |") {
			t.Errorf("docs/results-format.md does not name the format %s", format)
		}
	}
}
