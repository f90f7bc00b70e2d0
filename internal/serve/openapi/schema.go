package openapi

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

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
func parameters(params []param.Param) []object {
	var all []object
	for _, p := range params {
		if param.IsClaim(p.Name) {
			continue
		}
		schema := parameterSchema(p.Type)
		if p.ListMax > 0 {
			schema = object{"type": "array", "items": schema, "minItems": 1, "maxItems": p.ListMax}
		}
		note := parameterNote(p.Type)
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
func parameterSchema(t param.Type) object {
	switch t {
	case param.Integer:
		return integerSchema()
	case param.Real:
		return object{"type": "number"}
	case param.Boolean:
		return object{"type": "boolean"}
	case param.Timestamp:
		return object{"type": "string", "format": "date-time"}
	case param.UUID:
		return object{"type": "string", "format": "uuid"}
	case param.Decimal:
		return object{"type": "string", "pattern": `^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`, "maxLength": param.MaxBytes}
	case param.Date:
		return object{"type": "string", "format": "date"}
	case param.Time:
		return object{"type": "string", "pattern": `^-?[0-9]{2,3}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?$`}
	case param.Bytes:
		return object{"type": "string", "contentEncoding": "base64", "maxLength": param.MaxBytes}
	case param.Text:
	}
	return object{"type": "string", "maxLength": param.MaxBytes, "pattern": noNUL}
}

// noNUL is the pattern of texts without NUL.
const noNUL = `^[^\x00]*$`

func integerSchema() object {
	return object{"type": "integer", "format": "int64", "minimum": math.MinInt64, "maximum": math.MaxInt64}
}

// parameterNote says what the schema of a parameter cannot.
func parameterNote(t param.Type) string {
	switch t {
	case param.Text:
		return fmt.Sprintf("At most %d bytes of UTF-8", param.MaxBytes)
	case param.Boolean:
		return "1 and 0 are read as true and false"
	default:
		return ""
	}
}

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
func rowSchema(columns []feed.Column) object {
	if len(columns) == 0 {
		return object{"type": "object", "description": "The columns are not known yet, because the database has not answered"}
	}
	properties := object{}
	for _, c := range columns {
		properties[c.Name] = columnSchema(c)
	}
	return object{"type": "object", "properties": properties, "additionalProperties": false} // fields may leave some out
}

// columnSchema returns the schema of a column's values.
func columnSchema(c feed.Column) object {
	typed := func(name string) object {
		if c.Null {
			return object{"type": []string{name, "null"}}
		}
		return object{"type": name}
	}
	text := func(format string) object {
		s := typed("string")
		s["format"] = format
		return s
	}
	switch c.JSON {
	case feed.JSONInteger, feed.JSONNumber, feed.JSONBoolean, feed.JSONString, feed.JSONArray:
		return typed(string(c.JSON))
	case feed.JSONFloat:
		return object{"anyOf": []object{typed("number"), {"enum": []string{"NaN", "Infinity", "-Infinity"}}}}
	case feed.JSONFlag:
		return object{"anyOf": []object{typed("boolean"), {"type": "integer"}}}
	case feed.JSONDate:
		return text("date")
	case feed.JSONTimestamp:
		return text("date-time")
	case feed.JSONUUID:
		return text("uuid")
	case feed.JSONBytes:
		s := typed("string")
		s["contentEncoding"] = "base64"
		return s
	case feed.JSONAny:
	}
	return object{}
}

// recordSchema returns the schema of a stream's record.
func recordSchema(s *Stream) object {
	properties, required := object{}, []string{}
	for _, c := range s.Columns {
		properties[c.Name] = fieldSchema(c)
		if c.Required && c.Claim == "" {
			required = append(required, c.Name)
		}
	}
	r := object{"type": "object", "properties": properties, "additionalProperties": s.Extra}
	if len(required) > 0 {
		r["required"] = required
	}
	return r
}

// fieldSchema returns the schema of a record's field.
func fieldSchema(c stream.Column) object {
	var schema object
	types := []string{"string"}
	switch c.Type {
	case stream.Integer:
		schema, types = integerSchema(), []string{"integer", "string"}
		schema["pattern"] = `^-?(0|[1-9][0-9]{0,18})$`
	case stream.Real:
		schema, types = object{"format": "double", "pattern": `^-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?$`}, []string{"number", "string"}
	case stream.Decimal:
		schema, types = object{"pattern": `^-?[0-9]{1,1000}$|^-?[0-9]{1,500}[.][0-9]{1,500}$`}, []string{"number", "string"}
	case stream.Boolean:
		schema, types = object{}, []string{"boolean"}
	case stream.Timestamp:
		schema = object{"format": "date-time"}
		if c.Format == stream.UnixMS {
			schema["minimum"], schema["maximum"] = stream.MillisecondsMin, stream.MillisecondsMax
			types = []string{"integer", "string"}
		}
	case stream.UUID:
		schema = object{"format": "uuid"}
	case stream.Text:
		schema = object{"pattern": noNUL}
		if c.MaxLength > 0 {
			schema["maxLength"] = c.MaxLength
		}
	case stream.Date:
		schema = object{"format": "date"}
	case stream.Time:
		schema = object{"pattern": `^-?[0-9]{2,3}:[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?$`}
	case stream.Bytes:
		schema = object{"contentEncoding": "base64"}
	case stream.JSON:
		return describeField(c, object{})
	default:
		schema, types = object{"items": object{}}, []string{"array"}
	}
	if !c.Required {
		types = append(types, "null")
	}
	schema["type"] = types
	if c.Type == stream.Integer || c.Type == stream.Real || c.Type == stream.Decimal {
		for keyword, bound := range map[string]string{"minimum": c.Min, "maximum": c.Max} {
			if json.Valid([]byte(bound)) {
				schema[keyword] = json.RawMessage(bound)
			}
		}
	}
	return describeField(c, schema)
}

// describeField adds what the type does not say: the default, and where the value comes from.
func describeField(c stream.Column, schema object) object {
	var notes []string
	if c.Claim != "" {
		notes = append(notes, "The claim "+c.Claim+" of the JWT; a record may repeat it.")
	}
	switch {
	case c.Default == nil:
	case *c.Default == stream.Now && c.Type == stream.Timestamp:
		notes = append(notes, "Default: the time of the request.")
	case slices.Contains([]stream.Type{stream.Text, stream.Timestamp, stream.UUID, stream.Bytes}, c.Type), !json.Valid([]byte(*c.Default)):
		schema["default"] = *c.Default
	default:
		schema["default"] = json.RawMessage(*c.Default)
	}
	if c.Type == stream.Timestamp && c.Min != "" {
		notes = append(notes, "At least "+c.Min+".")
	}
	if c.Type == stream.Timestamp && c.Max != "" {
		notes = append(notes, "At most "+c.Max+".")
	}
	if c.Type == stream.JSON && c.MaxLength > 0 {
		notes = append(notes, fmt.Sprintf("At most %d bytes.", c.MaxLength))
	}
	if c.Format == stream.UnixMS {
		notes = append(notes, "Integers are milliseconds since 1970.")
	}
	if len(notes) > 0 {
		schema["description"] = strings.Join(notes, " ")
	}
	return schema
}
