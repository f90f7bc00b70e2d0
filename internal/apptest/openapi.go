package apptest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// OpenAPI compares answers of a server with its OpenAPI document. Use NewOpenAPI.
type OpenAPI struct {
	Document map[string]any
	Statuses map[string]bool // seen, as "GET /livez 200"
	Fields   map[string]bool // of answers, seen, as JSON pointers to their schemas

	t        *testing.T
	compiler *jsonschema.Compiler
}

// NewOpenAPI reads a document.
func NewOpenAPI(t *testing.T, text []byte) *OpenAPI {
	t.Helper()
	d := &OpenAPI{t: t, Statuses: map[string]bool{}, Fields: map[string]bool{}, compiler: jsonschema.NewCompiler()}
	if err := json.Unmarshal(text, &d.Document); err != nil {
		t.Fatal(err)
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("openapi.json", d.Document); err != nil {
		t.Fatal(err)
	}
	return d
}

// At returns the value at a JSON pointer without its "#", and where it is. It follows references.
func (d *OpenAPI) At(pointer string) (value any, at string) {
	value = d.Document
	for _, name := range strings.Split(pointer, "/")[1:] {
		at += "/" + name
		switch v := value.(type) {
		case map[string]any:
			value = v[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) {
				return nil, at
			}
			value = v[i]
		default:
			return nil, at
		}
		if ref, ok := asObject(value)["$ref"].(string); ok {
			value, at = d.At(strings.TrimPrefix(ref, "#"))
		}
	}
	return value, at
}

// See checks an answer to a request of a documented path. The document must name its status, its
// media type and, unless they are optional, its headers; the body must follow its schema.
func (d *OpenAPI) See(method, path string, response *http.Response, body []byte) {
	d.t.Helper()
	operation := "/paths/" + strings.ReplaceAll(path, "/", "~1") + "/" + strings.ToLower(method)
	if description, _ := d.At(operation); description == nil {
		switch response.StatusCode {
		case http.StatusMethodNotAllowed, http.StatusUnauthorized, http.StatusMisdirectedRequest:
		default:
			d.t.Errorf("%s %s is not documented, and answers %d", method, path, response.StatusCode)
		}
		return
	}
	name := fmt.Sprintf("%s %s %d", method, path, response.StatusCode)
	answer, at := d.At(fmt.Sprintf("%s/responses/%d", operation, response.StatusCode))
	if answer == nil {
		d.t.Errorf("%s is not documented: %s", name, body)
		return
	}
	d.Statuses[name] = true
	for header, described := range asObject(answer.(map[string]any)["headers"]) {
		if ref, ok := asObject(described)["$ref"].(string); ok {
			described, _ = d.At(strings.TrimPrefix(ref, "#"))
		}
		if asObject(described)["required"] != false && response.Header.Get(header) == "" {
			d.t.Errorf("%s has no %s", name, header)
		}
	}
	media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	content := asObject(answer.(map[string]any)["content"])
	if len(content) == 0 && media == "" && len(body) == 0 {
		return
	}
	if content[media] == nil {
		d.t.Errorf("%s has the media type %s", name, media)
		return
	}
	if !strings.HasSuffix(media, "json") || strings.HasSuffix(media, "ndjson") {
		return
	}
	schema, err := d.compiler.Compile("openapi.json#" + at + "/content/" + strings.ReplaceAll(media, "/", "~1") + "/schema")
	if err != nil {
		d.t.Fatalf("%s: %v", name, err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		d.t.Fatalf("%s: %v", name, err)
	}
	if err := schema.Validate(value); err != nil {
		d.t.Errorf("%s: %s: %v", name, body, err)
	}
	d.seeFields(at+"/content/"+strings.ReplaceAll(media, "/", "~1")+"/schema", value)
}

// seeFields notes which documented fields an answer has.
func (d *OpenAPI) seeFields(pointer string, value any) {
	found, at := d.At(pointer)
	schema := asObject(found)
	for i := range asList(schema["allOf"]) {
		d.seeFields(fmt.Sprint(at, "/allOf/", i), value)
	}
	for i, item := range asList(value) {
		if schema["items"] != nil && i < 100 {
			d.seeFields(at+"/items", item)
		}
	}
	for name := range asObject(schema["properties"]) {
		if member, ok := asObject(value)[name]; ok {
			d.Fields[at+"/properties/"+name] = true
			d.seeFields(at+"/properties/"+name, member)
		}
	}
}

func asObject(value any) map[string]any { object, _ := value.(map[string]any); return object }
func asList(value any) []any            { list, _ := value.([]any); return list }

// Promises returns all statuses and fields of answers that the document lists.
func (d *OpenAPI) Promises() (statuses, fields map[string]bool) {
	statuses, fields = map[string]bool{}, map[string]bool{}
	var walk func(pointer string)
	walk = func(pointer string) {
		found, at := d.At(pointer)
		schema := asObject(found)
		for i := range asList(schema["allOf"]) {
			walk(fmt.Sprint(at, "/allOf/", i))
		}
		if schema["items"] != nil {
			walk(at + "/items")
		}
		for name := range asObject(schema["properties"]) {
			fields[at+"/properties/"+name] = true
			walk(at + "/properties/" + name)
		}
	}
	for path, operations := range asObject(d.Document["paths"]) {
		for method, operation := range asObject(operations) {
			for status := range asObject(asObject(operation)["responses"]) {
				statuses[fmt.Sprintf("%s %s %s", strings.ToUpper(method), path, status)] = true
				_, at := d.At("/paths/" + strings.ReplaceAll(path, "/", "~1") + "/" + method + "/responses/" + status)
				content, _ := d.At(at)
				for media := range asObject(asObject(content)["content"]) {
					walk(at + "/content/" + strings.ReplaceAll(media, "/", "~1") + "/schema")
				}
			}
		}
	}
	return statuses, fields
}
