package config

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Patterns of texts.
const (
	variablePattern   = `\$\{[A-Za-z_][A-Za-z0-9_]*\}`
	durationPattern   = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|` + variablePattern
	keyPattern        = `^\s*[^\s]+(\s+([aA][sS][cC]|[dD][eE][sS][cC]))?\s*$|` + variablePattern
	identifierPattern = `^(claim\.)?[A-Za-z_][A-Za-z0-9_]*$`
)

// Schema returns the JSON Schema (2020-12) of the configuration file, for editors: the
// meaning, the default and the range of each key. Rules between keys are in Validate.
func Schema() []byte {
	schema := blockSchema(reflect.ValueOf(Default()))
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "Spillway configuration"
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic("BUG: the schema is not JSON: " + err.Error())
	}
	return append(text, '\n')
}

// blockSchema returns the schema of a struct whose fields hold the defaults.
func blockSchema(v reflect.Value) map[string]any {
	properties, required := map[string]any{}, []string{}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		property := valueSchema(v.Field(i), field.Tag)
		property["description"] = field.Tag.Get("doc")
		name := field.Tag.Get("yaml")
		properties[name] = property
		if field.Tag.Get("required") != "" {
			required = append(required, name)
		}
	}
	schema := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	if v.Type() == reflect.TypeFor[Pool]() {
		delete(properties["max"].(map[string]any), "default") // it depends on the machine
	}
	return schema
}

func valueSchema(v reflect.Value, tag reflect.StructTag) map[string]any {
	low, high, bounded := strings.Cut(tag.Get("range"), "..")
	switch x := v.Interface().(type) {
	case []string, []Secret:
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	case Keys:
		column := map[string]any{"type": "string", "pattern": keyPattern}
		return map[string]any{"anyOf": []any{column, map[string]any{"type": "array", "minItems": 1, "items": column}}}
	case Types:
		kinds := map[string]any{"enum": strings.Split(cmp.Or(tag.Get("types"), paramTypes), ",")}
		return map[string]any{
			"type":                 "object",
			"propertyNames":        map[string]any{"pattern": identifierPattern},
			"additionalProperties": orVariable(kinds),
		}
	case Statements:
		return map[string]any{"type": "object", "maxProperties": listsMax, "additionalProperties": map[string]any{"type": "string"}}
	case Caps:
		return map[string]any{
			"type":                 "object",
			"maxProperties":        capsMax,
			"propertyNames":        map[string]any{"pattern": durationPattern},
			"additionalProperties": orVariable(map[string]any{"type": "integer", "minimum": 1, "maximum": capShowsMax}),
		}
	case Params:
		return paramsSchema()
	case Columns:
		return columnsSchema()
	case Secret:
		return map[string]any{"type": "string"}
	case Address:
		text := map[string]any{"type": "string"}
		block := map[string]any{
			"type": "object", "additionalProperties": false, "required": []string{"url"},
			"properties": map[string]any{"url": text, "user": text, "password": text},
		}
		return map[string]any{"anyOf": []any{text, block}}
	case time.Duration:
		return map[string]any{"type": "string", "pattern": durationPattern, "default": shortDuration(x)}
	case string:
		if allowed, ok := tag.Lookup("enum"); ok {
			schema := orVariable(map[string]any{"enum": strings.Split(allowed, ",")})
			schema["default"] = x
			return schema
		}
		schema := map[string]any{"type": "string"}
		if x != "" {
			schema["default"] = x
		}
		return schema
	}
	if v.Kind() == reflect.Struct {
		return blockSchema(v)
	}
	if v.Kind() == reflect.Slice {
		block, _ := Preset(v.Type().Elem())
		return map[string]any{"type": "array", "items": blockSchema(block)}
	}
	kind := map[string]any{"type": map[reflect.Kind]string{
		reflect.Bool: "boolean", reflect.Int: "integer",
		reflect.Float64: "number",
	}[v.Kind()]}
	if bounded {
		kind["minimum"], kind["maximum"] = json.Number(low), json.Number(high)
	}
	schema := orVariable(kind)
	schema["default"] = v.Interface()
	return schema
}

// paramsSchema returns the schema of a statement's parameters.
func paramsSchema() map[string]any {
	kind := orVariable(map[string]any{"enum": strings.Split(paramTypes, ",")})
	literal := map[string]any{"type": []string{"string", "number", "boolean"}}
	block := map[string]any{"type": "object", "additionalProperties": false, "required": []string{"type"}, "properties": map[string]any{
		"type": kind,
		"default": map[string]any{"anyOf": []any{
			literal, map[string]any{"type": "array", "minItems": 1, "items": literal}, map[string]any{"type": "null"},
		}},
		"list_max": orVariable(map[string]any{"type": "integer", "minimum": 0, "maximum": listMax}),
	}}
	return map[string]any{
		"type":                 "object",
		"propertyNames":        map[string]any{"pattern": identifierPattern},
		"additionalProperties": map[string]any{"anyOf": []any{kind, block}},
	}
}

// columnsSchema returns the schema of a stream's columns.
func columnsSchema() map[string]any {
	kind := orVariable(map[string]any{"enum": strings.Split(columnTypes, ",")})
	literal := map[string]any{"type": []string{"string", "number", "boolean"}}
	properties := map[string]any{
		"type": kind, "default": literal, "min": literal, "max": literal,
		"required":   orVariable(map[string]any{"type": "boolean"}),
		"max_length": orVariable(map[string]any{"type": "integer", "minimum": 0}),
		"claim":      map[string]any{"type": "string"},
		"format":     orVariable(map[string]any{"enum": []string{"unix_ms"}}),
		"round":      orVariable(map[string]any{"type": "boolean"}),
	}
	block := map[string]any{"type": "object", "additionalProperties": false, "required": []string{"type"}, "properties": properties}
	return map[string]any{
		"type":                 "object",
		"minProperties":        1,
		"additionalProperties": map[string]any{"anyOf": []any{kind, block}},
	}
}

// orVariable also allows any text with ${NAME} in it.
func orVariable(schema map[string]any) map[string]any {
	return map[string]any{"anyOf": []any{schema, map[string]any{"type": "string", "pattern": variablePattern}}}
}
