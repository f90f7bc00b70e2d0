package openapi

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"spillway/internal/apptest"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/server"
	"spillway/internal/serve/stream"
)

// example is a configuration with parts of all kinds.
func example() *config.Config {
	return &config.Config{
		HTTP: config.HTTP{Hosts: []string{"example.com"}, RatePerMinute: 1},
		Keys: []config.Secret{"a key"},
		Auth: config.Auth{Reads: "open"},
		Feeds: []config.Feed{
			{Path: "/a/b", Aliases: []string{"/a_b"}, Auth: "default", Window: 10, Limit: 10, LimitMax: 100, OffsetMax: 1000},
			{Path: "/down", Auth: "any", Limit: 10, Params: config.Params{{Name: "claim.sub", Type: "text"}, {Name: "x", Type: "real"}}},
			{
				Path: "/filtered", Auth: "open", Window: 10, Limit: 10, Params: config.Params{{Name: "ids", Type: "integer", ListMax: 2}},
				Filters: config.Types{{Name: "city", Type: "text"}, {Name: "n", Type: "integer"}},
			},
		},
		Queries: []config.Query{{Path: "/q", Auth: "key", One: true, Params: config.Params{
			{Name: "ids", Type: "integer", ListMax: 3, Default: config.Literals{"2", "1"}},
			{Name: "b", Type: "boolean", Default: config.Literals{"true"}},
		}}, {Path: "/s/{city}", Aliases: []string{"/s"}, Auth: "open", Unknown: "refuse", Params: config.Params{
			{Name: "n", Type: "integer"}, {Name: "city", Type: "text", Default: config.Literals{"Graz"}},
		}}},
		Streams: []config.Stream{{Path: "/a/b", Auth: "key", RecordsMax: 5, Columns: config.Columns{
			{Name: "n", Type: "integer", Required: true, Min: config.Literal{Text: "1", Given: true}},
			{Name: "label", Type: "text", MaxLength: 3, Default: config.Literal{Text: "x", Given: true}},
			{Name: "price", Type: "decimal", Max: config.Literal{Text: "9.5", Given: true}},
			{Name: "at", Type: "timestamp", Default: config.Literal{Text: stream.Now, Given: true}},
			{Name: "sent", Type: "timestamp", Format: stream.UnixMS, Required: true},
			{Name: "speed", Type: "real"},
		}}},
		Popups: config.Popups{
			Path: "/popup", UserType: "text", Attributes: config.Types{{Name: "tags", Type: "texts"}},
			Identity: config.Identity{Trust: "jwt", Header: "X-User"},
		},
	}
}

// columns are those of the example.
func columns(path string) []feed.Column {
	return map[string][]feed.Column{
		"/a/b": {
			{Name: "integer", JSON: feed.JSONInteger},
			{Name: "float", JSON: feed.JSONFloat, Null: true},
			{Name: "flag", JSON: feed.JSONFlag},
			{Name: "bytes", JSON: feed.JSONBytes, Null: true},
			{Name: "at", JSON: feed.JSONTimestamp},
			{Name: "any"},
		},
		"/filtered": {{Name: "text", JSON: feed.JSONString}},
	}[path]
}

// Limits of the engines are in openapi.json too.
func TestLimits(t *testing.T) {
	t.Parallel()
	d := read[*document](fixed)
	for _, kind := range []param.Type{param.Text, param.Decimal, param.Bytes} {
		if diff := cmp.Diff(json.Number(strconv.Itoa(param.MaxBytes)), d.parameterSchema(kind)["maxLength"]); diff != "" {
			t.Error(diff)
		}
	}
	sent := read[object](d.Fields[stream.UnixMS])
	want := []any{json.Number(strconv.FormatInt(stream.MillisecondsMin, 10)), json.Number(strconv.FormatInt(stream.MillisecondsMax, 10))}
	if diff := cmp.Diff(want, []any{sent["minimum"], sent["maximum"]}); diff != "" {
		t.Error(diff)
	}
}

// TestDocument checks places of the document by their JSON pointers.
func TestDocument(t *testing.T) {
	t.Parallel()
	document := Document(example(), columns, server.ProblemStatus())
	if again := Document(example(), columns, server.ProblemStatus()); string(again) != string(document) {
		t.Error("equal listeners have different documents")
	}
	d := apptest.NewOpenAPI(t, document)
	for pointer, want := range map[string]string{
		"/components/schemas/row_a_b/properties/integer":       `{"type":"integer"}`,
		"/components/schemas/row_a_b/properties/float":         `{"anyOf":[{"type":["number","null"]},{"enum":["NaN","Infinity","-Infinity"]}]}`,
		"/components/schemas/row_a_b/properties/flag":          `{"anyOf":[{"type":"boolean"},{"type":"integer"}]}`,
		"/components/schemas/row_a_b/properties/bytes":         `{"contentEncoding":"base64","type":["string","null"]}`,
		"/components/schemas/row_a_b/properties/any":           `{}`,
		"/components/schemas/row_a_b/additionalProperties":     `false`,
		"/components/schemas/row_down/type":                    `"object"`,
		"/components/schemas/record_a_b/properties/label":      `{"default":"x","maxLength":3,"pattern":"^[^\\x00]*$","type":["string","null"]}`,
		"/components/schemas/record_a_b/properties/price":      `{"maximum":9.5,"pattern":"^-?[0-9]{1,1000}$|^-?[0-9]{1,500}[.][0-9]{1,500}$","type":["number","string","null"]}`,
		"/components/schemas/record_a_b/required":              `["n","sent"]`,
		"/components/schemas/record_a_b/properties/n/type":     `["integer","string"]`,
		"/components/schemas/record_a_b/properties/at":         `{"description":"Default: the time of the request.","format":"date-time","type":["string","null"]}`,
		"/components/schemas/record_a_b/properties/sent":       `{"description":"Integers are milliseconds since 1970.","format":"date-time","maximum":253402300799999,"minimum":100000000000,"type":["integer","string"]}`,
		"/components/schemas/record_a_b/properties/speed/type": `["number","string","null"]`,
		"/paths/~1filtered/get/parameters/3/schema/maxItems":   `2`,
		"/paths/~1filtered/get/parameters/3/required":          `true`,
		"/paths/~1filtered/get/parameters/4":                   `{"description":"Only rows whose column has this value. At most 1024 bytes of UTF-8","in":"query","name":"city","required":false,"schema":{"maxLength":1024,"pattern":"^[^\\x00]*$","type":"string"}}`,
		"/paths/~1filtered/get/parameters/5/description":       `"Only rows whose column has this value"`,
		"/paths/~1a~1b/get/operationId":                        `"get_a_b"`,
		"/paths/~1a~1b/get/responses/200/description":          `"A page. With Accept: text/event-stream and without limit, offset, before and fields, the first page as a server-sent event whenever it changes."`,
		"/paths/~1down/get/responses/200/description":          `"A page"`,
		"/paths/~1a_b/get/operationId":                         `"get_a_b_"`,
		"/paths/~1a~1b/get/security":                           `[]`,
		"/paths/~1a~1b/post/security":                          `[{"writeKey":[]}]`,
		"/paths/~1down/get/security":                           `[{"readKey":[]},{"jwt":[]}]`,
		"/paths/~1down/get/parameters/3/name":                  `"x"`,
		"/paths/~1q/get/parameters/0/schema/default":           `[1,2]`,
		"/paths/~1q/get/parameters/0/required":                 `false`,
		"/paths/~1q/get/parameters/1/schema/default":           `true`,
		"/paths/~1q/get/responses/404/description":             `"not-found"`,
		"/paths/~1q/get/responses/421/description":             `"wrong-host"`,
		"/paths/~1s~1{city}/get/operationId":                   `"get_s_city"`,
		"/paths/~1s~1{city}/get/description":                   `"Parameters that are not listed are refused."`,
		"/paths/~1s~1{city}/get/parameters/0/in":               `"query"`,
		"/paths/~1s~1{city}/get/parameters/1":                  `{"description":"At most 1024 bytes of UTF-8","in":"path","name":"city","required":true,"schema":{"maxLength":1024,"minLength":1,"pattern":"^[^\\x00]*$","type":"string"}}`,
		"/paths/~1s/get/parameters/1/schema/default":           `"Graz"`,
		"/paths/~1s/get/parameters/1/in":                       `"query"`,
		"/paths/~1popup/get/security":                          `[{"userJWT":[]}]`,
		"/components/securitySchemes/userJWT/name":             `"X-User"`,
		"/paths/~1popup~1click/post/responses/410/description": `"show-expired, show-late"`,
	} {
		value, _ := d.At(pointer)
		got, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s", pointer, got, want)
		}
	}
}

// Every reference of the document leads somewhere, and its schemas are valid.
func TestReferences(t *testing.T) {
	t.Parallel()
	document := Document(example(), columns, server.ProblemStatus())
	d := apptest.NewOpenAPI(t, document)
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if found, _ := d.At(strings.TrimPrefix(ref, "#")); found == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, member := range v {
				walk(member)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(d.Document)
	for name := range d.Document["components"].(map[string]any)["schemas"].(map[string]any) {
		compiler := jsonschema.NewCompiler()
		if err := compiler.AddResource("openapi.json", d.Document); err != nil {
			t.Fatal(err)
		}
		if _, err := compiler.Compile("openapi.json#/components/schemas/" + name); err != nil {
			t.Error(err)
		}
	}
}

// A listener without parts has a document too.
func TestEmpty(t *testing.T) {
	t.Parallel()
	d := apptest.NewOpenAPI(t, Document(&config.Config{}, columns, server.ProblemStatus()))
	if diff := cmp.Diff(1, len(d.Document["paths"].(map[string]any))); diff != "" {
		t.Error(diff)
	}
}
