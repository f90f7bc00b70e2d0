package config

import (
	_ "embed" // schema.json
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// definitions are schemas of values, by the names of their types where they have one.
//
//go:embed schema.json
var definitions []byte

// Schema returns the JSON Schema (2020-12) of the configuration file, for editors: the
// meaning, the default and the range of each key. Rules between keys are in Validate.
func Schema() []byte {
	var known map[string]any
	if err := json.Unmarshal(definitions, &known); err != nil {
		panic("BUG: schema.json: " + err.Error())
	}
	schema := blockSchema(reflect.ValueOf(Default()), known)
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["$defs"] = known
	schema["title"] = "Spillway configuration"
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		panic("BUG: the schema is not JSON: " + err.Error())
	}
	return append(text, '\n')
}

// blockSchema returns the schema of a struct whose fields hold the defaults. known are the definitions.
func blockSchema(v reflect.Value, known map[string]any) map[string]any {
	properties, required := map[string]any{}, []string{}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		property := valueSchema(v.Field(i), field.Tag, known)
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

func valueSchema(v reflect.Value, tag reflect.StructTag, known map[string]any) map[string]any {
	if kinds, ok := tag.Lookup("types"); ok {
		kind := orVariable(map[string]any{"enum": strings.Split(kinds, ",")})
		return map[string]any{"type": "object", "propertyNames": defined("name"), "additionalProperties": kind}
	}
	if known[v.Type().Name()] != nil {
		return defined(v.Type().Name())
	}
	switch x := v.Interface().(type) {
	case []string, []Secret:
		return defined("list")
	case time.Duration:
		schema := defined("duration")
		schema["default"] = shortDuration(x)
		return schema
	case string:
		schema := map[string]any{"type": "string"}
		allowed, ok := tag.Lookup("enum")
		if ok {
			schema = orVariable(map[string]any{"enum": strings.Split(allowed, ",")})
		}
		if ok || x != "" {
			schema["default"] = x
		}
		return schema
	}
	if v.Kind() == reflect.Struct {
		return blockSchema(v, known)
	}
	if v.Kind() == reflect.Slice {
		block, _ := Preset(v.Type().Elem())
		return map[string]any{"type": "array", "items": blockSchema(block, known)}
	}
	kind := map[string]any{"type": map[reflect.Kind]string{
		reflect.Bool: "boolean", reflect.Int: "integer",
		reflect.Float64: "number",
	}[v.Kind()]}
	if low, high, bounded := strings.Cut(tag.Get("range"), ".."); bounded {
		kind["minimum"], kind["maximum"] = json.Number(low), json.Number(high)
	}
	schema := orVariable(kind)
	schema["default"] = v.Interface()
	return schema
}

// defined returns a schema that refers to a definition.
func defined(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }

// orVariable also allows any text with ${NAME} in it.
func orVariable(schema map[string]any) map[string]any {
	return map[string]any{"anyOf": []any{schema, defined("variable")}}
}
