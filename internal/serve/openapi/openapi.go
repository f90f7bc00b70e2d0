// Package openapi describes the public listener as an OpenAPI 3.1 document.
//
// The document follows from the configuration, and from the columns of statements whose part
// has started. It contains no SQL, no names of tables or databases, and no secrets, so that
// anybody may read it. Equal listeners have equal documents, byte by byte.
package openapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/stream"
)

// Path is where the public listener serves its document.
const Path = "/openapi.json"

// Listener is what a public listener serves, and what all its requests must satisfy.
type Listener struct {
	Feeds   []Feed
	Queries []Query
	Streams []Stream
	Popup   *Popup // nil: none

	Hosts     bool // only some host names are served
	RateLimit bool // clients have a limit of requests per minute
	WriteKeys bool // there are keys of write paths
}

// Feed is a feed.
type Feed struct {
	Paths                      []string
	Access                     string // what requests need: open, key, jwt or any
	Params                     []param.Param
	Limit, LimitMax, OffsetMax int
	Columns                    []feed.Column // none: not known yet
	Envelope                   feed.Envelope
	Live                       bool // requests may ask for server-sent events
	Strict                     bool // requests with other parameters are refused
}

// Query is a query.
type Query struct {
	Paths    []string
	Access   string // as of a feed
	Params   []param.Param
	Envelope feed.Envelope // with EnvelopeOne the response is the only row
	RowsMax  int
	Columns  []feed.Column // none: not known yet
	Strict   bool          // as of a feed
}

// Stream is a stream.
type Stream struct {
	Paths      []string
	Access     string // key, jwt or any
	Columns    []stream.Column
	Extra      bool // records may have fields without a column
	RecordsMax int
	BodyBytes  int
	Strict     bool // as of a feed
}

// Popup is the popups.
type Popup struct {
	Path        string
	Placements  []string // the first is the default
	User        param.Type
	Attributes  []Attribute
	TokenHeader string // with the JWT that names the user; "": the query names the user
	ClockOffset bool   // requests may shift the clock
	Strict      bool   // as of a feed
}

// Attribute is an attribute of a request for a popup.
type Attribute struct {
	Name, Type string // the type is that of a parameter, or texts
}

// object is a JSON object.
type object = map[string]any

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
}

// paths are the operations by path and method.
type paths map[string]map[string]operation

// add adds an operation at several paths. Each has an id of its own.
func (p paths) add(method string, at []string, o operation) {
	for _, path := range at {
		if p[path] == nil {
			p[path] = make(map[string]operation)
		}
		o.ID = method + identifier(path)
		for p.has(o.ID) {
			o.ID += "_"
		}
		p[path][method] = o.at(path)
	}
}

// at returns the operation at a path, which has some of its parameters.
func (o operation) at(path string) operation {
	names := param.NewPath(path).Names()
	o.Parameters = slices.Clone(o.Parameters)
	for i, p := range o.Parameters {
		if name, _ := p["name"].(string); p["in"] != "query" || !slices.Contains(names, name) {
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

// strict returns the operation, which refuses other parameters than its own if strict is set.
func (o operation) strict(strict bool) operation {
	if strict {
		o.Description = "Parameters that are not listed are refused."
	}
	return o
}

// identifier returns a path without the characters that identifiers of programs lack.
func identifier(path string) string {
	return strings.NewReplacer("/", "_", ".", "_", "~", "_", "-", "_", "{", "", "}", "").Replace(path)
}

func (p paths) has(id string) bool {
	for _, methods := range p {
		for _, o := range methods {
			if o.ID == id {
				return true
			}
		}
	}
	return false
}

// document is a Listener's document while it is written.
type document struct {
	*Listener
	status   func(code string) int // of a problem, by the end of its type; 0: there is none
	schemas  object                // by name
	problems object                // responses by the codes of their problems
}

// paths returns all operations.
func (d *document) paths() paths {
	all := make(paths)
	all.add("get", []string{Path}, d.own())
	for i := range d.Feeds {
		all.add("get", d.Feeds[i].Paths, d.feed(&d.Feeds[i]).strict(d.Feeds[i].Strict))
	}
	for i := range d.Queries {
		all.add("get", d.Queries[i].Paths, d.query(&d.Queries[i]).strict(d.Queries[i].Strict))
	}
	for i := range d.Streams {
		all.add("post", d.Streams[i].Paths, d.stream(&d.Streams[i]).strict(d.Streams[i].Strict))
	}
	if p := d.Popup; p != nil {
		all.add("get", []string{p.Path}, d.popup(p).strict(p.Strict))
		all.add("post", []string{p.Path + "/click"}, d.answer(p, "Record that the user has clicked the popup").strict(p.Strict))
		all.add("post", []string{p.Path + "/dismiss"}, d.answer(p, "Record that the user has dismissed the popup").strict(p.Strict))
		all.add("post", []string{p.Path + "/convert"}, d.conversion(p).strict(p.Strict))
	}
	return all
}

// named makes a schema a component that is named after a path, and returns a reference to it.
func (d *document) named(kind, path string, schema object) object {
	name := kind + identifier(path)
	for d.schemas[name] != nil {
		name += "_"
	}
	d.schemas[name] = schema
	return object{"$ref": "#/components/schemas/" + name}
}

// Document returns the document. status returns the status of a problem by the end of its type;
// 0: there is no such problem.
func (l *Listener) Document(status func(code string) int) []byte {
	schemas := object{"Problem": problemSchema(), "Refusal": refusalSchema()}
	d := &document{Listener: l, status: status, schemas: schemas, problems: object{}}
	operations := d.paths()
	text, err := json.Marshal(struct {
		OpenAPI    string `json:"openapi"`
		Info       object `json:"info"`
		Paths      paths  `json:"paths"`
		Components object `json:"components"`
	}{
		"3.1.0",
		object{
			"title": "Spillway", "version": "1",
			"description": "GET paths also answer HEAD, except those of popups. A response repeats the X-Request-Id of its request. Parameters " +
				"that are not listed are ignored, unless the operation says otherwise.",
		},
		operations,
		object{"schemas": d.schemas, "responses": d.problems, "headers": headers(), "securitySchemes": l.schemes()},
	})
	if err != nil {
		panic("bug: the OpenAPI document does not encode: " + err.Error())
	}
	return append(text, '\n')
}

// The names of security schemes.
const (
	readKey  = "readKey"
	writeKey = "writeKey"
	jwt      = "jwt"
	userJWT  = "userJWT"
)

// schemes returns the security schemes that operations refer to.
func (l *Listener) schemes() object {
	bearer := func(format, description string) object {
		return object{"type": "http", "scheme": "bearer", "bearerFormat": format, "description": description}
	}
	all := object{}
	note := func(access, key string) {
		if access == "key" || access == "any" {
			all[key] = bearer("key", "One of the configured keys")
		}
		if access == "jwt" || access == "any" {
			all[jwt] = bearer("JWT", "A JSON Web Token of the configured issuer")
		}
	}
	for _, f := range l.Feeds {
		note(f.Access, readKey)
	}
	for _, q := range l.Queries {
		note(q.Access, readKey)
	}
	for _, s := range l.Streams {
		if s.Access != "key" || l.WriteKeys {
			note(s.Access, writeKey)
		}
	}
	if p := l.Popup; p != nil && strings.EqualFold(p.TokenHeader, "Authorization") {
		all[userJWT] = bearer("JWT", "A JSON Web Token that names the user")
	} else if p != nil && p.TokenHeader != "" {
		all[userJWT] = object{"type": "apiKey", "in": "header", "name": p.TokenHeader, "description": "A JSON Web Token that names the user"}
	}
	return all
}

// security returns the requirements of an operation. Each is enough.
func security(schemes ...string) []map[string][]string {
	all := []map[string][]string{}
	for _, name := range schemes {
		all = append(all, map[string][]string{name: {}})
	}
	return all
}

// access returns what an operation requires, and the problems of requests without it.
func access(kind, key string, claims bool) ([]map[string][]string, []string) {
	switch kind {
	case "key":
		return security(key), []string{"unauthorized"}
	case "jwt", "any":
		codes := []string{"unauthorized", "token-keys-down"}
		if claims {
			codes = append(codes, "claim-missing")
		}
		if kind == "jwt" {
			return security(jwt), codes
		}
		return security(key, jwt), codes
	}
	return security(), nil
}

// hasClaims reports whether a parameter is a claim of the JWT.
func hasClaims(params []param.Param) bool {
	return slices.ContainsFunc(params, func(p param.Param) bool { return param.IsClaim(p.Name) })
}
