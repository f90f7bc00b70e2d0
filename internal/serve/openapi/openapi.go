// Package openapi describes the public listener as an OpenAPI 3.1 document.
//
// The document follows from the configuration, and from the columns of statements whose part
// has started. It contains no SQL, no names of tables or databases, and no secrets, so that
// anybody may read it. Equal listeners have equal documents, byte by byte. What does not depend
// on the configuration is in openapi.json.
package openapi

import (
	"bytes"
	_ "embed" // openapi.json
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Path is where the public listener serves its document.
const Path = "/openapi.json"

//go:embed openapi.json
var fixed []byte

// object is a JSON object.
type object = map[string]any

// document is a document while it is written.
type document struct {
	OpenAPI    string                     `json:"openapi"`
	Info       object                     `json:"info"`
	Schemas    object                     `json:"schemas"` // by name
	Headers    object                     `json:"headers"`
	Schemes    map[string]object          `json:"securitySchemes"` // those that are used are in used
	Problems   []string                   `json:"problems"`        // that every request can have
	Parameters map[string]json.RawMessage `json:"parameters"`      // schemas by the type of a parameter
	Notes      map[string]string          `json:"notes"`           // what these schemas cannot say
	Columns    map[string]json.RawMessage `json:"columns"`         // schemas by feed.JSONType
	Fields     map[string]json.RawMessage `json:"fields"`          // schemas by the type of a stream's column
	Operations map[string]json.RawMessage `json:"operations"`

	cfg       *config.Config
	columns   func(path string) []feed.Column
	status    func(code string) int
	used      object // security schemes
	responses object // with problems, by their codes
	paths     map[string]map[string]operation
}

// operation is one method of a path.
type operation struct {
	ID          string                `json:"operationId"`
	Tags        []string              `json:"tags"`
	Summary     string                `json:"summary"`
	Description string                `json:"description,omitempty"`
	Parameters  []object              `json:"parameters,omitempty"`
	RequestBody object                `json:"requestBody,omitempty"`
	Responses   map[string]object     `json:"responses"`
	Security    []map[string][]string `json:"security"`
	Problems    []string              `json:"problems,omitempty"` // only in openapi.json, where headers are lists of names
}

// Document returns the document of the listener of a configuration. columns returns the columns of
// the feed or the query with a path; nil if they are not known yet. status returns the status of a
// problem by the end of its type; 0: there is no such problem.
func Document(cfg *config.Config, columns func(path string) []feed.Column, status func(code string) int) []byte {
	d := read[*document](fixed)
	d.cfg, d.columns, d.status = cfg, columns, status
	d.used, d.responses, d.paths = object{}, object{}, make(map[string]map[string]operation)
	d.addAll()
	text, err := json.Marshal(struct {
		OpenAPI    string                          `json:"openapi"`
		Info       object                          `json:"info"`
		Paths      map[string]map[string]operation `json:"paths"`
		Components object                          `json:"components"`
	}{
		d.OpenAPI, d.Info, d.paths,
		object{"schemas": d.Schemas, "responses": d.responses, "headers": d.Headers, "securitySchemes": d.used},
	})
	if err != nil {
		panic("bug: the OpenAPI document does not encode: " + err.Error())
	}
	return append(text, '\n')
}

// read decodes a part of openapi.json.
func read[T any](text []byte) (value T) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		panic("bug: openapi.json: " + err.Error())
	}
	return value
}

// addAll adds all operations.
func (d *document) addAll() {
	d.add("get", []string{Path}, d.operation("document"), "")
	for i := range d.cfg.Feeds {
		f := &d.cfg.Feeds[i]
		d.add("get", append([]string{f.Path}, f.Aliases...), d.feed(f), f.Unknown)
	}
	for i := range d.cfg.Queries {
		q := &d.cfg.Queries[i]
		d.add("get", append([]string{q.Path}, q.Aliases...), d.query(q), q.Unknown)
	}
	for i := range d.cfg.Streams {
		s := &d.cfg.Streams[i]
		d.add("post", append([]string{s.Path}, s.Aliases...), d.stream(s), s.Unknown)
	}
	p := &d.cfg.Popups
	if p.Path == "" {
		return
	}
	d.add("get", []string{p.Path}, d.popup(p), p.Unknown)
	answers := []string{"show-unknown", "show-repeated", "show-late"}
	for _, event := range []struct {
		path, summary string
		codes         []string
	}{
		{"/click", "Record that the user has clicked the popup", answers},
		{"/dismiss", "Record that the user has dismissed the popup", answers},
		{"/convert", "Record that the user did what the popup is for; the database counts one conversion per show", nil},
	} {
		o := d.userOperation(p, "event", event.codes...)
		o.Summary = event.summary
		for _, parameter := range o.Parameters {
			parameter["required"] = false // the show token names the user
		}
		d.add("post", []string{p.Path + event.path}, o, p.Unknown)
	}
}

// add adds an operation at several paths, whose unknown_params is given. Each has an id of its own.
func (d *document) add(method string, paths []string, o operation, unknown string) {
	if d.cfg.RefusesUnknown(unknown) {
		o.Description = "Parameters that are not listed are refused."
	}
	for _, path := range paths {
		if d.paths[path] == nil {
			d.paths[path] = make(map[string]operation)
		}
		o.ID = method + identifier(path)
		for d.has(o.ID) {
			o.ID += "_"
		}
		d.paths[path][method] = o.at(path)
	}
}

func (d *document) has(id string) bool {
	for _, methods := range d.paths {
		for _, o := range methods {
			if o.ID == id {
				return true
			}
		}
	}
	return false
}

// at returns the operation at a path, which has some of its parameters.
func (o operation) at(path string) operation {
	names := param.NewPath(path).Names()
	o.Parameters = slices.Clone(o.Parameters)
	for i, p := range o.Parameters {
		if p["in"] != "query" || !slices.Contains(names, p["name"].(string)) {
			continue
		}
		p, schema := maps.Clone(p), maps.Clone(p["schema"].(object))
		if delete(schema, "default"); schema["type"] == "string" {
			schema["minLength"] = 1
		}
		p["in"], p["required"], p["schema"] = "path", true, schema
		o.Parameters[i] = p
	}
	return o
}

// identifier returns a path without the characters that identifiers of programs lack.
func identifier(path string) string {
	return strings.NewReplacer("/", "_", ".", "_", "~", "_", "-", "_", "{", "", "}", "").Replace(path)
}

// operation returns an operation of openapi.json that everybody may use. Besides its own problems it
// has those of codes.
func (d *document) operation(name string, codes ...string) operation {
	o := read[operation](d.Operations[name])
	o.Security = []map[string][]string{}
	for _, r := range o.Responses {
		if names, ok := r["headers"].([]any); ok {
			r["headers"] = refer(names...)
		}
	}
	codes = slices.Concat(o.Problems, codes, d.Problems)
	if len(d.cfg.HTTP.Hosts) > 0 {
		codes = append(codes, "wrong-host")
	}
	if d.cfg.HTTP.RatePerMinute > 0 {
		codes = append(codes, "rate-limited")
	}
	o.Problems = nil
	byStatus := make(map[int][]string)
	for _, code := range codes {
		status := d.status(code)
		if status == 0 {
			panic("bug: no status for the problem " + code)
		}
		byStatus[status] = append(byStatus[status], code)
	}
	for status, codes := range byStatus {
		slices.Sort(codes)
		codes = slices.Compact(codes)
		name := strings.Join(codes, ".")
		d.responses[name] = problemResponse(status, codes)
		o.Responses[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + name}
	}
	return o
}

// problemResponse returns the response with one of several problems of a status.
func problemResponse(status int, codes []string) object {
	var types []string
	for _, code := range codes {
		types = append(types, "urn:spillway:problem:"+code)
	}
	r := object{
		"description": strings.Join(codes, ", "),
		"content": object{"application/problem+json": object{"schema": object{"allOf": []object{
			{"$ref": "#/components/schemas/Problem"},
			{"type": "object", "properties": object{"type": object{"enum": types}, "status": object{"const": status}}},
		}}}},
	}
	switch status {
	case 401:
		r["headers"] = refer("WWW-Authenticate")
	case 415:
		r["headers"] = refer("Accept-Encoding")
	case 429, 503:
		r["headers"] = refer("Retry-After")
	}
	return r
}

// refer returns references to response headers, by their names.
func refer(names ...any) object {
	all := object{}
	for _, name := range names {
		all[name.(string)] = object{"$ref": "#/components/headers/" + name.(string)}
	}
	return all
}

// named makes a schema a component that is named after a path, and returns a reference to it.
func (d *document) named(kind, path string, schema object) object {
	name := kind + identifier(path)
	for d.Schemas[name] != nil {
		name += "_"
	}
	d.Schemas[name] = schema
	return object{"$ref": "#/components/schemas/" + name}
}

// require lets an operation be used with each of some security schemes.
func (d *document) require(o *operation, schemes ...string) {
	for _, name := range schemes {
		o.Security = append(o.Security, map[string][]string{name: {}})
		d.used[name] = d.Schemes[name]
	}
}

// accessible returns an operation of openapi.json that requires what access says: open, key, jwt or
// any. key is the security scheme of its keys, and with claims it uses some of the JWT.
func (d *document) accessible(name, access, key string, claims bool, codes ...string) operation {
	if access != "open" {
		codes = append(codes, "unauthorized")
	}
	if access == "jwt" || access == "any" {
		if codes = append(codes, "token-keys-down"); claims {
			codes = append(codes, "claim-missing")
		}
	}
	o := d.operation(name, codes...)
	if access == "key" || access == "any" {
		d.require(&o, key)
	}
	if access == "jwt" || access == "any" {
		d.require(&o, "jwt")
	}
	return o
}
