package openapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/stream"
)

// queryParameter returns a parameter of the query string.
func queryParameter(name, description string, required bool, schema object) object {
	p := object{"name": name, "in": "query", "required": required, "schema": schema}
	if description != "" {
		p["description"] = description
	}
	return p
}

// parameters returns the parameters of a statement that requests pass.
func (d *document) parameters(params []param.Param) []object {
	var all []object
	for _, p := range params {
		if param.IsClaim(p.Name) {
			continue
		}
		schema := d.parameterSchema(p.Type)
		if p.ListMax > 0 {
			schema = object{"type": "array", "items": schema, "minItems": 1, "maxItems": p.ListMax}
		}
		note := d.Notes[string(p.Type)]
		switch {
		case p.Filter:
			note = strings.TrimSuffix("Only rows whose column has this value. "+note, ". ")
		case p.Default == param.Absent: // NULL
		case p.Optional:
			schema["default"] = parameterDefault(p)
		}
		all = append(all, queryParameter(p.Name, note, !p.Optional, schema))
	}
	return all
}

// parameterSchema returns the schema of one value.
func (d *document) parameterSchema(t param.Type) object { return read[object](d.Parameters[string(t)]) }

// parameterDefault returns the default of an optional parameter.
func parameterDefault(p param.Param) any {
	if p.ListMax == 0 {
		return parameterValue(p.Type, p.Default)
	}
	texts, err := param.Values(p.Default)
	if err != nil {
		panic("bug: default of " + p.Name + ": " + err.Error())
	}
	var values []any
	for _, text := range texts {
		values = append(values, parameterValue(p.Type, text))
	}
	return values
}

// parameterValue returns the JSON value of a canonical text.
func parameterValue(t param.Type, text string) any {
	if t == param.Integer || t == param.Real || t == param.Boolean {
		return json.RawMessage(text)
	}
	return text
}

// rowSchema returns the schema of a row. Columns may be added while the server runs.
func (d *document) rowSchema(columns []feed.Column) object {
	if len(columns) == 0 {
		return object{"type": "object", "description": "The columns are not known yet, because the database has not answered"}
	}
	properties := object{}
	for _, c := range columns {
		schema := read[object](d.Columns[string(c.JSON)])
		if c.Null {
			allowNull(schema)
		}
		properties[c.Name] = schema
	}
	return object{"type": "object", "properties": properties, "additionalProperties": false} // fields may leave some out
}

// allowNull lets the values of a schema be null.
func allowNull(schema object) {
	if kind, ok := schema["type"].(string); ok {
		schema["type"] = []string{kind, "null"}
	}
	if kinds, ok := schema["type"].([]any); ok {
		schema["type"] = append(kinds, "null")
	}
	if any, ok := schema["anyOf"].([]any); ok {
		allowNull(any[0].(object))
	}
}

// recordSchema returns the schema of a stream's record.
func (d *document) recordSchema(s *config.Stream) object {
	properties, required := object{}, []string{}
	for _, c := range s.Columns {
		properties[c.Name] = d.fieldSchema(c)
		if c.Required && c.Claim == "" {
			required = append(required, c.Name)
		}
	}
	r := object{"type": "object", "properties": properties, "additionalProperties": s.Extra != ""}
	if len(required) > 0 {
		r["required"] = required
	}
	return r
}

// fieldSchema returns the schema of a record's field.
func (d *document) fieldSchema(c config.Column) object {
	kind := c.Type
	if strings.HasSuffix(kind, "[]") {
		kind = "array"
	} else if c.Format == stream.UnixMS {
		kind = stream.UnixMS
	}
	schema := read[object](d.Fields[kind])
	if !c.Required {
		allowNull(schema)
	}
	switch stream.Type(c.Type) {
	case stream.Text:
		if c.MaxLength > 0 {
			schema["maxLength"] = c.MaxLength
		}
	case stream.Integer, stream.Real, stream.Decimal:
		for keyword, bound := range map[string]string{"minimum": c.Min.Text, "maximum": c.Max.Text} {
			if json.Valid([]byte(bound)) {
				schema[keyword] = json.RawMessage(bound)
			}
		}
	}
	describeField(c, schema)
	return schema
}

// describeField adds what the type does not say: the default, and where the value comes from.
func describeField(c config.Column, schema object) {
	var notes []string
	if c.Claim != "" {
		notes = append(notes, "The claim "+c.Claim+" of the JWT; a record may repeat it.")
	}
	kind, text := stream.Type(c.Type), c.Default.Text
	switch {
	case !c.Default.Given:
	case text == stream.Now && kind == stream.Timestamp:
		notes = append(notes, "Default: the time of the request.")
	case slices.Contains([]stream.Type{stream.Text, stream.Timestamp, stream.UUID, stream.Bytes}, kind), !json.Valid([]byte(text)):
		schema["default"] = text
	default:
		schema["default"] = json.RawMessage(text)
	}
	if kind == stream.Timestamp && c.Min.Text != "" {
		notes = append(notes, "At least "+c.Min.Text+".")
	}
	if kind == stream.Timestamp && c.Max.Text != "" {
		notes = append(notes, "At most "+c.Max.Text+".")
	}
	if kind == stream.JSON && c.MaxLength > 0 {
		notes = append(notes, fmt.Sprintf("At most %d bytes.", c.MaxLength))
	}
	if c.Format == stream.UnixMS {
		notes = append(notes, "Integers are milliseconds since 1970.")
	}
	if len(notes) > 0 {
		schema["description"] = strings.Join(notes, " ")
	}
}
